"""One number of an evaluation, how uncertain it is, and how it compares on the same images."""

from dataclasses import asdict, dataclass
from typing import Literal

from secondlook.metrics import Interval


@dataclass(frozen=True)
class Estimate:
    """A metric of a method on a part of the images."""

    part: str
    method: str
    metric: str
    better: Literal["higher", "lower"]
    value: float | None
    """None where the metric has no meaning for these images; `reason` says why."""
    interval: Interval | None
    difference: float | None
    """Value less that of the baseline method on the same images; None for the baseline itself."""
    difference_interval: Interval | None
    reason: str | None
    images: int
    errors: int

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"] | None:
        """How the method compares with the baseline, 'unclear' where the interval of the difference holds zero."""
        ends = self.difference_interval
        if ends is None:
            return None
        if ends.low <= 0 <= ends.high:
            return "unclear"
        return "better" if (ends.low > 0) == (self.better == "higher") else "worse"

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as JSON can hold it."""
        return {**asdict(self), "verdict": self.verdict}
