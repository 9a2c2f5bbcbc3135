"""A rule: accept an answer whose confidence reaches a threshold, and what is guaranteed about it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray
from secondlook.errors import DecisionError


@dataclass(frozen=True)
class Guarantee:
    """With probability 1 - delta over the draw of the labeled images, at most `risk` of the accepted are wrong."""

    risk: float
    delta: float

    def __str__(self) -> str:
        return (
            f"at most {100 * self.risk:g} % errors among the accepted, with certainty {100 * (1 - self.delta):g} % "
            "over the draw of the labeled images, for images like them"
        )


@dataclass(frozen=True)
class Calibration:
    """What was seen on the images a threshold was chosen on."""

    images: int
    accepted: int
    errors: int | None
    """Wrong images among the accepted; None where there were no labels."""

    @property
    def coverage(self) -> float:
        """Share of the images that were accepted."""
        return self.accepted / self.images

    @property
    def risk(self) -> float | None:
        """Error rate among the accepted, as observed: no guarantee. None without labels or where none is accepted."""
        return None if self.errors is None or self.accepted == 0 else self.errors / self.accepted


@dataclass(frozen=True)
class Shortfall:
    """What was asked for and could not be guaranteed, and what could be."""

    asked: Guarantee
    smallest_risk: float | None
    """A risk that could have been guaranteed with the same certainty; None where none could."""
    further_images: int | None
    """Roughly how many more labeled images would allow it; None where more would not help."""

    def __str__(self) -> str:
        could = f"a risk of {100 * self.smallest_risk:.4g} % could be" if self.smallest_risk else "no risk could be"
        if self.further_images is None:
            help_needed = "more images would not help, since at no threshold fewer errors were seen"
        else:
            help_needed = f"roughly {self.further_images:,} more labeled images would be needed"
        return f"no threshold allows {self.asked}; {could}, and {help_needed}"


@dataclass(frozen=True)
class Rule:
    """Accept where confidence >= threshold. `Rule(threshold=0.9)` is a plain threshold without a guarantee."""

    threshold: float
    method: str = "mean"
    predict_from: Literal["image", "views"] = "image"
    top_k: int = 1
    options: Mapping[str, object] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    calibration: Calibration | None = None
    shortfall: Shortfall | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            raise DecisionError("the threshold is NaN, expected a number that a confidence can reach.")

    @property
    def certified(self) -> bool:
        """Whether an error rate among the accepted is guaranteed."""
        return self.guarantee is not None

    @property
    def coverage(self) -> float:
        """Share of the calibration images that the rule accepts."""
        if self.calibration is None:
            raise DecisionError(
                "a plain threshold has no coverage of its own; apply accept() to confidences and take the mean."
            )
        return self.calibration.coverage

    def accept(self, confidence: ArrayLike) -> BoolArray:
        """Return whether each answer is accepted. float [N] -> bool [N]"""
        sure = np.asarray(confidence, dtype=np.float64)
        if np.isnan(sure).any():
            index = int(np.flatnonzero(np.isnan(sure))[0])
            raise DecisionError(f"confidence is NaN at index {index}, expected a number: repair the score.")
        return sure >= self.threshold

    def __str__(self) -> str:
        lines = [f"accept where {self.method} >= {self.threshold:.6g}"]
        if self.shortfall is not None:
            lines = [f"accept nothing: {self.shortfall}"]
        else:
            lines.append(f"guarantee: {self.guarantee}" if self.guarantee else "guarantee: none")
        if self.calibration is not None:
            lines.append(_seen(self.calibration))
        return "\n".join(lines)


def _seen(calibration: Calibration) -> str:
    share = f"{calibration.accepted:,} of {calibration.images:,} images accepted ({100 * calibration.coverage:.4g} %)"
    if calibration.errors is None:
        return f"seen: {share}, no labels"
    return f"seen: {share}, {calibration.errors:,} of them wrong"
