"""What was decided about each image: the answer, how sure it is, and whether a person should look."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from secondlook.arrays import BoolArray, Float64Array, IntArray

ASK_A_PERSON = -1
"""The label of an image whose answer is not accepted."""


class Decision(NamedTuple):
    """What was decided about one image."""

    id: str
    label: int | tuple[int, ...]
    """The predicted class, or the k leading ones, whether accepted or not."""
    confidence: float
    interval: tuple[float, float] | None
    accept: bool


@dataclass(frozen=True, eq=False)
class Decisions:
    """What was decided about N images, as arrays; iterate for one `Decision` per image."""

    ids: tuple[str, ...]
    labels: IntArray
    """The predicted classes, whether accepted or not. int64 [N], or [N, k] for k > 1"""
    confidence: Float64Array
    interval: tuple[Float64Array, Float64Array] | None
    """Lower and upper ends of the mean confidence over views; None where there is one view only."""
    accept: BoolArray

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Decision:
        label = self.labels[index]
        ends = None if self.interval is None else (float(self.interval[0][index]), float(self.interval[1][index]))
        return Decision(
            self.ids[index],
            int(label) if label.ndim == 0 else tuple(int(one) for one in label),
            float(self.confidence[index]),
            ends,
            bool(self.accept[index]),
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[index] for index in range(len(self)))
