"""Subsets of a source: experimental or evaluation images, a file of indices, the first images."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.lib import format as npy

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.errors import SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.regular_files import MAX_TEXT_BYTES, open_regular_file, read_text_file, reject_damaged
from secondlook.sources.source import OnError, Source, as_index

if TYPE_CHECKING:
    from torch import Tensor

SubsetName = Literal["experimental", "evaluation"]
SUBSET_NAMES: tuple[SubsetName, ...] = get_args(SubsetName)
DEFAULT_FRACTION = 0.1

SELECTION_OPTIONS: Mapping[str, str] = {
    "subset": "'experimental' (for choosing views and thresholds) or 'evaluation' (the other images)",
    "fraction": f"fraction of experimental images, {DEFAULT_FRACTION} by default",
    "count": "number of experimental images, instead of a fraction",
    "seed": "random seed of the experimental subset, 0 by default",
    "indices": "file of the indices to select, text or .npy",
    "limit": "maximum number of images, applied after all other options",
}


class Subset(Source):
    """The images of another source at the given positions, in that order."""

    def __init__(self, whole: Source, positions: IntArray, spec: str, on_error: OnError) -> None:
        super().__init__(
            spec,
            [whole.ids[position] for position in positions],
            labels=None if whole.labels is None else whole.labels[positions],
            class_names=whole.class_names,
            on_error=on_error,
        )
        self.whole = whole
        self.threads = whole.threads
        self.max_bytes = whole.max_bytes
        self.positions = positions

    def read(self, index: int) -> Array:
        """Read one image from the whole source. -> uint8 [H, W, 1 or 3]"""
        return self.whole.read(int(self.positions[index]))

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Read one image from the whole source, if it takes at most `max_bytes`."""
        return self.whole.read_within(int(self.positions[index]), max_bytes)

    def read_block(self, positions: range | IntArray) -> "Array | Tensor | None":
        """Return images of the whole source together, where it does."""
        chosen = self.positions[as_index(positions)]
        first, stop = int(chosen[0]), int(chosen[0]) + len(chosen)
        is_consecutive = np.array_equal(chosen, np.arange(first, stop))
        return self.whole.read_block(range(first, stop) if is_consecutive else chosen)

    def extract(self, positions: range | IntArray) -> Source | None:
        """Return some of the images of the whole source, where it has them."""
        part = self.whole.extract(self.positions[as_index(positions)])
        return None if part is None else part.with_on_error(self.on_error)

    def hash_content(self, index: int) -> bytes:
        """Return the content digest of one image in the whole source."""
        return self.whole.hash_content(int(self.positions[index]))

    @property
    def _hashes_pixels(self) -> bool:
        return self.whole._hashes_pixels


def spread_images(source: Source, count: int) -> Source:
    """Return `count` images, one from each of as many equal parts of the source, in random order with a fixed seed.

    Taking every n-th image instead could take one class only, where classes alternate.
    """
    rng = np.random.default_rng(0)
    count = min(count, len(source))
    edges = np.arange(count + 1) * len(source) // count
    positions = rng.permutation(rng.integers(edges[:-1], edges[1:]))
    return Subset(source, positions, source.spec, source.on_error)


@dataclass(frozen=True)
class Selection:
    """Which images to select: a subset or a file of indices, then the first `limit` of them."""

    subset: SubsetName | None = None
    fraction: float | None = None
    count: int | None = None
    seed: int = 0
    indices: str | None = None
    limit: int | None = None

    def find_positions(self, ids: Sequence[str], where: str) -> IntArray:
        """Return the positions of the selected images, at least one. -> int64 [n]"""
        if self.indices is not None:
            positions = read_indices(Path(self.indices).expanduser(), len(ids))
        elif self.subset is not None:
            positions = self._find_subset(ids, where)
        else:
            positions = np.arange(len(ids), dtype=np.int64)
        return positions[: self.limit]

    def _find_subset(self, ids: Sequence[str], where: str) -> IntArray:
        experimental = mark_experimental(ids, self._count_experimental(len(ids), where), self.seed)
        positions = np.flatnonzero(experimental if self.subset == "experimental" else ~experimental)
        if not positions.size:
            raise SourceError(
                f"the {self.subset} subset of the {len(ids)} images of {where!r} is empty; choose another fraction or"
                " count."
            )
        return positions.astype(np.int64)

    def _count_experimental(self, n_images: int, where: str) -> int:
        if self.count is None:
            return math.floor((DEFAULT_FRACTION if self.fraction is None else self.fraction) * n_images + 0.5)
        if self.count > n_images:
            raise SourceError(f"count={self.count} exceeds the {n_images} images of {where!r}; choose a smaller count.")
        return self.count


def mark_experimental(ids: Sequence[str], count: int, seed: int) -> BoolArray:
    """Mark the `count` images with the smallest sha256 of 'seed:id'. -> bool [N]

    The hash depends on the id alone, so the order of the images does not matter, and adding or removing an image
    changes the subset of at most one other image.
    """
    keys = [hashlib.sha256(f"{seed}:{id_}".encode()).digest() for id_ in ids]
    ranking = sorted(range(len(ids)), key=keys.__getitem__)
    experimental = np.zeros(len(ids), dtype=np.bool_)
    experimental[ranking[:count]] = True
    return experimental


def parse_selection(options: Mapping[str, object], where: str) -> Selection | None:
    """Parse options given as text or values, by name; None where all of them are missing or None."""
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return None
    _check_combination(given, where)
    return Selection(
        subset=_parse_subset_name(given.get("subset"), where),
        fraction=_parse_fraction(given.get("fraction"), where),
        count=parse_integer("count", given.get("count"), where),
        seed=parse_integer("seed", given.get("seed", 0), where, minimum=0) or 0,
        indices=None if "indices" not in given else str(given["indices"]),
        limit=parse_integer("limit", given.get("limit"), where),
    )


def _check_combination(given: Mapping[str, object], where: str) -> None:
    for option in ("fraction", "count", "seed"):
        if option in given and "subset" not in given:
            raise SourceError(f"{option}= of {where!r} needs subset=experimental or subset=evaluation; add one.")
    for first, second in (("subset", "indices"), ("fraction", "count")):
        if first in given and second in given:
            raise SourceError(f"{first}= and {second}= of {where!r} are mutually exclusive; remove one.")


def _parse_subset_name(value: object, where: str) -> SubsetName | None:
    if value is not None and value not in SUBSET_NAMES:
        raise SourceError(
            f"subset={value!r} of {where!r}; expected one of {', '.join(SUBSET_NAMES)}."
            + did_you_mean(str(value), SUBSET_NAMES)
        )
    return next((name for name in SUBSET_NAMES if name == value), None)


def _parse_fraction(value: object, where: str) -> float | None:
    if value is None:
        return None
    try:
        fraction = float(str(value))
    except ValueError:
        fraction = math.nan
    if not 0.0 < fraction < 1.0:
        raise SourceError(f"fraction={value!r} of {where!r}; expected a number between 0 and 1, such as 0.1.")
    return fraction


def parse_integer(name: str, value: object, where: str, minimum: int = 1) -> int | None:
    """Return an option as an integer of at least `minimum`, or None where it is missing."""
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise SourceError(f"{name}={value!r} of {where!r}; expected an integer of at least {minimum}.")
    return number


def read_indices(path: Path, n_images: int) -> IntArray:
    """Read unique indices from a .npy file, or from a text file of integers separated by white space. -> int64 [n]"""
    with reject_damaged(f"indices file {str(path)!r} cannot be read", "expected integers"):
        indices = _read_index_array(path) if path.suffix == ".npy" else _read_integers(path)
    if indices.ndim != 1 or not indices.size or not np.issubdtype(indices.dtype, np.integer):
        raise SourceError(
            f"indices file {str(path)!r} holds {indices.dtype} {list(indices.shape)}; expected integers [n], n >= 1."
        )
    _check_indices(indices, path, n_images)
    return indices.astype(np.int64)


def _read_integers(path: Path) -> IntArray:
    return np.array([int(number) for number in read_text_file(path).split()], dtype=np.int64)


def _read_index_array(path: Path) -> Array:
    with open_regular_file(path, MAX_TEXT_BYTES) as file:
        return npy.read_array(file, allow_pickle=False)


def _check_indices(indices: IntArray, path: Path, n_images: int) -> None:
    invalid = np.flatnonzero((indices < 0) | (indices >= n_images))
    if invalid.size:
        position = int(invalid[0])
        raise SourceError(
            f"index {indices[position]} at position {position} of {str(path)!r} is out of range; expected 0 to"
            f" {n_images - 1}."
        )
    values, counts = np.unique(indices, return_counts=True)
    if counts.max() > 1:
        duplicate = values[counts.argmax()]
        raise SourceError(
            f"duplicate index {duplicate} ({counts.max()} times) in {str(path)!r}; indices must be unique."
        )
