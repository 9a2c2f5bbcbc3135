"""The images that people should look at, the least sure first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from secondlook.arrays import Array
from secondlook.scoring.score_rows import INDEX

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (INDEX, "label", "confidence", "low", "high", "accept")


class Doubtful(NamedTuple):
    """One image for people, with what the classifier says about it."""

    position: int
    """Its place in the source."""
    id: str
    label: int
    class_name: str
    confidence: float
    interval: tuple[float, float] | None
    accept: bool


@dataclass(frozen=True, eq=False)
class ReviewQueue:
    """Images in the order to look at them. Only a few numbers per image are held: the ids belong to the source."""

    columns: dict[str, Array]
    ids: Sequence[str]
    class_names: tuple[str, ...]

    @classmethod
    def of(
        cls, tables: Iterable["pa.Table"], ids: Sequence[str], class_names: tuple[str, ...], *, everything: bool
    ) -> "ReviewQueue":
        """Take the rejected images of a scoring, or all of them."""
        parts: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for table in tables:
            kept = np.ones(len(table), dtype=np.bool_) if everything else ~table["accept"].to_numpy()
            for name in COLUMNS:
                parts[name].append(table[name].to_numpy()[kept])
        columns = {name: np.concatenate(values) for name, values in parts.items()}
        order = np.lexsort((columns[INDEX], columns["confidence"]))
        return cls({name: values[order] for name, values in columns.items()}, ids, class_names)

    def __len__(self) -> int:
        return len(self.columns[INDEX])

    def __iter__(self) -> Iterator[Doubtful]:
        for index, label, confidence, low, high, accept in zip(*self.columns.values(), strict=True):
            yield Doubtful(
                int(index),
                self.ids[int(index)],
                int(label),
                self.class_names[int(label)],
                float(confidence),
                # A missing end is NaN in the array; both are missing or none.
                None if np.isnan(low) else (float(low), float(high)),
                bool(accept),
            )
