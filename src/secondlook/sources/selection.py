"""Which images of a source to take: a part, a file of indices, the first so many."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.subset import experimental_positions, read_indices

SubsetName = Literal["experimental", "evaluation"]
PARTS: tuple[SubsetName, ...] = ("experimental", "evaluation")
DEFAULT_FRACTION = 0.1

SELECTION_OPTIONS: Mapping[str, str] = {
    "part": "'experimental' (to choose views and thresholds on) or 'evaluation' (the rest)",
    "fraction": f"how much of the data is experimental, {DEFAULT_FRACTION} unless said",
    "count": "how many images are experimental, instead of a fraction",
    "seed": "which images are experimental, 0 unless said",
    "indices": "a file of the indices to take, text or .npy",
    "limit": "take only the first so many images, after all other choices",
}


@dataclass(frozen=True)
class Selection:
    """Which images to take; first a part or the indices, then the limit."""

    part: SubsetName | None = None
    fraction: float | None = None
    count: int | None = None
    seed: int = 0
    indices: str | None = None
    limit: int | None = None

    def positions(self, ids: Sequence[str], where: str) -> IntArray:
        """Return the indices to take, int64 [n], at least one."""
        if self.indices is not None:
            chosen = read_indices(Path(self.indices).expanduser(), len(ids))
        elif self.part is not None:
            chosen = self._positions_of_part(ids, where)
        else:
            chosen = np.arange(len(ids), dtype=np.int64)
        return chosen[: self.limit]

    def _positions_of_part(self, ids: Sequence[str], where: str) -> IntArray:
        count = self._experimental_count(len(ids), where)
        experimental = experimental_positions(ids, count, self.seed)
        chosen = np.flatnonzero(experimental if self.part == "experimental" else ~experimental)
        if not chosen.size:
            raise SourceError(
                f"the {self.part} part of the {len(ids)} images of {where!r} is empty; choose another fraction or"
                " count."
            )
        return chosen.astype(np.int64)

    def _experimental_count(self, total: int, where: str) -> int:
        if self.count is None:
            return math.floor((DEFAULT_FRACTION if self.fraction is None else self.fraction) * total + 0.5)
        if self.count > total:
            raise SourceError(f"count={self.count} is more than the {total} images of {where!r}; ask for fewer.")
        return self.count


def selection_from(options: Mapping[str, object], where: str) -> Selection | None:
    """Make a selection of texts or values by option name; None where nothing is selected."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return None
    _check_combination(given, where)
    return Selection(
        part=_part(given.get("part"), where),
        fraction=_fraction(given.get("fraction"), where),
        count=whole_number("count", given.get("count"), where),
        seed=whole_number("seed", given.get("seed", 0), where, least=0) or 0,
        indices=None if "indices" not in given else str(given["indices"]),
        limit=whole_number("limit", given.get("limit"), where),
    )


def _check_combination(given: Mapping[str, object], where: str) -> None:
    for option in ("fraction", "count", "seed"):
        if option in given and "part" not in given:
            raise SourceError(f"{option}= of {where!r} needs part=; say part=experimental or part=evaluation.")
    for one, other in (("part", "indices"), ("fraction", "count")):
        if one in given and other in given:
            raise SourceError(f"{one}= and {other}= of {where!r} exclude each other; keep one.")


def _part(value: object, where: str) -> SubsetName | None:
    if value is not None and value not in PARTS:
        raise SourceError(
            f"part={value!r} of {where!r} is none of {', '.join(PARTS)}.{did_you_mean(str(value), PARTS)}"
        )
    return next((part for part in PARTS if part == value), None)


def _fraction(value: object, where: str) -> float | None:
    if value is None:
        return None
    try:
        fraction = float(str(value))
    except ValueError:
        fraction = math.nan
    if not 0.0 < fraction < 1.0:
        raise SourceError(f"fraction={value!r} of {where!r} is not between 0 and 1, as for example 0.1 is.")
    return fraction


def whole_number(name: str, value: object, where: str, least: int = 1) -> int | None:
    """Return the option as a whole number of at least `least`, or None where it is not given."""
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise SourceError(f"{name}={value!r} of {where!r} is not a whole number from {least} on.")
    return number
