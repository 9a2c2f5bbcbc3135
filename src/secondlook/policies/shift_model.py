"""What a policy has learned from corrupted versions of labeled images: how scores tell accuracy when images change."""

import math
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from secondlook.arrays import Float64Array, IntArray
from secondlook.files import FrozenRecord, PositiveCount
from secondlook.tables import TextTable, format_html

DEFAULT_SHIFT_IMAGES = 500
"""Number of labeled images that are corrupted to learn from."""
MIN_SHIFT_IMAGES = 50
"""With fewer images the accuracy for a corruption says nothing."""
MAX_CLASS_GROUPS = 16
"""Predicted classes are counted in so many groups at most, so that a window of the stream stays small."""
SMALLEST_SHARE = 1e-3
"""Shares nearer to 0 or 1 have the log-odds of this one."""

Share = Annotated[float, Field(ge=0, le=1)]


class LearnedShift(FrozenRecord):
    """One kind of corruption: its views, from mild to severe, and what was found and estimated for each of them."""

    kind: str
    views: tuple[str, ...] = Field(min_length=1)
    accuracy: tuple[Share, ...]
    estimate: tuple[Share, ...]
    """Accuracy as it is estimated without having learned from this kind."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not len(self.views) == len(self.accuracy) == len(self.estimate):
            raise ValueError("expected an accuracy and an estimate for each view")
        return self


class LogOddsRange(NamedTuple):
    """An estimate and the ends of its interval, in log-odds."""

    low: float
    value: float
    high: float


class AccuracyModel(FrozenRecord):
    """From the images of a window to the log-odds of their accuracy.

    They are constant + slope * e + class_weight * d * (clean - e). e are the log-odds of the accuracy that the
    calibration images with the same confidences have, `clean` is e for the calibration images themselves, and d is how
    much the predicted classes differ from theirs.
    """

    clean: float
    constant: float
    slope: float
    class_weight: float
    error: float = Field(ge=0)
    """90 % quantile of errors for kinds that were not learned from, at the accuracy of the calibration images."""

    def estimate(self, expected: float, class_distance: float) -> float:
        """Return the log-odds of the accuracy, given e as a share and d."""
        log_odds = to_log_odds(expected)
        return self.constant + self.slope * log_odds + self.class_weight * class_distance * (self.clean - log_odds)

    def compute_spread(self, estimate: float) -> float:
        """Return how much larger errors are than at the accuracy of the calibration images, which is 1."""
        return 1 + max(self.constant + self.slope * self.clean - estimate, 0.0)


class RiskModel(FrozenRecord):
    """From the log-odds of the accuracy of all images to those of the accepted ones: constant + slope * log-odds."""

    constant: float
    slope: float
    error: float = Field(ge=0)
    """As that of `AccuracyModel`."""


class ShiftModel(FrozenRecord):
    """How confidences and predicted classes tell the accuracy of images that have changed, in a few numbers."""

    images: PositiveCount
    """Number of images of which corrupted versions were classified."""
    class_shares: tuple[Share, ...] = Field(min_length=1, max_length=MAX_CLASS_GROUPS)
    """Share of the calibration images that are predicted to be in each group of classes."""
    accuracy: AccuracyModel
    risk: RiskModel | None
    """None if corrupted images are hardly ever accepted."""
    shifts: tuple[LearnedShift, ...] = Field(min_length=1)

    def estimate_accuracy(self, expected: float, class_counts: Float64Array, images: float) -> LogOddsRange:
        """Return the log-odds of the accuracy of a window. float, float64 [G], number of images"""
        value = self.accuracy.estimate(expected, measure_class_distance(class_counts, self.class_shares, images))
        error = self.accuracy.error * self.accuracy.compute_spread(value)
        return LogOddsRange(value - error, value, value + error)

    def estimate_accepted(self, accuracy: float) -> LogOddsRange | None:
        """Return the log-odds of the accuracy of accepted images, given those of all; None if it was not learned."""
        if self.risk is None:
            return None
        value = self.risk.constant + self.risk.slope * accuracy
        error = self.risk.error * self.accuracy.compute_spread(accuracy)
        return LogOddsRange(value - error, value, value + error)

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

    def _blocks(self) -> list[object]:
        """Return in words and numbers how well corruptions are estimated that were not learned from."""
        pairs = [pair for one in self.shifts for pair in zip(one.accuracy, one.estimate, strict=True)]
        error = sum(abs(accuracy - estimate) for accuracy, estimate in pairs) / len(pairs)
        rows = [("shift", "accuracy", "estimate")]
        rows += [(one.kind, _format_shares(one.accuracy), _format_shares(one.estimate)) for one in self.shifts]
        return [
            f"shifts: learned from {len(pairs)} corruptions of {self.images:,} images, mild to severe",
            TextTable(rows, numbers=True),
            f"Accuracy of a kind that was not learned from is estimated with an error of {100 * error:.1f} points on "
            "average (an estimate, not a guarantee).",
        ]


def _format_shares(shares: tuple[float, ...]) -> str:
    return "  ".join(f"{100 * share:5.1f} %" for share in shares)


def group_classes(classes: IntArray, n_groups: int) -> IntArray:
    """Return the group of each class: neighbors, which are often alike, are in different ones. int64 [...]"""
    return classes % n_groups


def measure_class_distance(counts: Float64Array, shares: tuple[float, ...], images: float) -> float:
    """Return how far the shares of classes among images are from given ones: the Euclidean distance.

    What images that are drawn at random would differ by is subtracted. float64 [G], number of images; for weighted
    images the counts may be any multiple, and `images` is their effective number.
    """
    found = np.asarray(counts, dtype=np.float64) / np.sum(counts)
    squared = float(np.sum((found - shares) ** 2) - (1 - np.sum(found**2)) / images)
    return math.sqrt(max(squared, 0.0))


def to_log_odds(share: float) -> float:
    """Return log(s / (1 - s)), of the nearest share that is not too close to 0 or 1."""
    kept = min(max(share, SMALLEST_SHARE), 1 - SMALLEST_SHARE)
    return math.log(kept / (1 - kept))


def to_share(log_odds: float) -> float:
    """Return the share with these log-odds."""
    return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else 1 - 1 / (1 + math.exp(log_odds))
