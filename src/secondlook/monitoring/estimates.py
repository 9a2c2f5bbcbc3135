"""Accuracy and risk of images without labels: estimates from their scores, with intervals, and no guarantee."""

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MonitoringError
from secondlook.policies import Policy, Reference, ShiftModel

Z_OF_LEVEL = 1.6448536269514722
"""Standard deviations on each side of an interval of 90 %."""
EXPECTED, ABOVE = 0, 1
"""Columns of the features; all others are the groups of classes."""


@dataclass(frozen=True)
class AccuracyEstimate:
    """Accuracy, and error rate among accepted images, estimated without labels, with intervals of 90 %.

    It is an estimate, not a guarantee: no labels tell how images will change next.
    """

    MEANING: ClassVar[str] = "estimate, not guarantee"
    """Follows every number that was estimated without labels."""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    risk: float | None = None
    """Error rate among accepted images; None if none is accepted, or if the calibration images had no labels."""
    risk_low: float | None = None
    risk_high: float | None = None
    includes_shifts: bool = False
    """Whether the intervals tell how wrong estimates are when images change; otherwise the error of sampling only."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "meaning": self.MEANING}


class AccuracyEstimator:
    """Estimates accuracy and risk of images from their scores, by what a policy knows about its calibration images.

    With `policy.shifts`, both follow from confidences and predicted classes as learned from corrupted images, and the
    intervals include how wrong such estimates were for corruptions that they had not learned from. Without it,
    accuracy is the share of images whose confidence reaches a threshold that as many calibration images reach as are
    correct, risk is the mean over accepted images of the error rate of calibration images of the same confidence, and
    the intervals include the error of sampling only.
    """

    def __init__(self, policy: Policy) -> None:
        self._reference = get_reference(policy)
        self._shifts = policy.shifts
        self._coverage = policy.calibration.accepted / policy.calibration.images if policy.calibration else 1.0

    def features(self, confidence: Float64Array, predicted: IntArray) -> Float64Array:
        """Return the numbers of each image whose sums `estimate` needs.

        float64 [n] and the predicted classes, int64 [n] or [n, k], of which the first counts -> float64 [n, F]
        """
        if self._reference.errors is None:
            return np.zeros((len(confidence), 0))
        bins = self._reference.confidence.find_bins(confidence)
        columns = [compute_expected_accuracy(self._reference)[bins], compute_threshold_weights(self._reference)[bins]]
        if self._shifts is not None:
            n_groups = len(self._shifts.class_shares)
            groups = predicted.reshape(len(confidence), -1)[:, 0] % n_groups
            columns += [groups == group for group in range(n_groups)]
        return np.stack(columns, axis=1).astype(np.float64)

    def estimate(self, images: int, sums: ArrayLike, accepted: int, accepted_sums: ArrayLike) -> AccuracyEstimate:
        """Estimate from the numbers of all and of accepted images, and from the sums of their features. float64 [F]"""
        if images == 0 or self._reference.errors is None:
            return AccuracyEstimate()
        totals, accepted_totals = np.asarray(sums, np.float64), np.asarray(accepted_sums, np.float64)
        right = None
        if self._shifts is None:
            share, known = totals[ABOVE] / images, self._reference.images
            correct = _add_sampling_error(share, share, share, images, known)
            if accepted:
                share = accepted_totals[EXPECTED] / accepted
                right = _add_sampling_error(share, share, share, accepted, self._coverage * known)
        else:
            log_odds, error = self._shifts.estimate_accuracy(totals[EXPECTED] / images, totals[ABOVE + 1 :], images)
            correct = _to_interval(log_odds, error, images)
            learned = self._shifts.estimate_accepted(log_odds) if accepted else None
            right = None if learned is None else _to_interval(*learned, accepted)
        low, value, high = correct
        risk_high, risk, risk_low = (None, None, None) if right is None else (1 - one for one in right)
        return AccuracyEstimate(value, low, high, risk, risk_low, risk_high, self._shifts is not None)


def get_reference(policy: Policy) -> Reference:
    """Return how the calibration images of a policy looked; without it nothing can be monitored."""
    if policy.reference is None:
        raise MonitoringError("the policy does not tell how its calibration images looked; calibrate again.")
    return policy.reference


def compute_expected_accuracy(reference: Reference) -> Float64Array:
    """Return the accuracy of the calibration images in each bin of confidence, drawn to that of all. float64 [B]"""
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    # As if each bin had one image more, with the error rate of all images.
    expected: Float64Array = 1 - (errors + errors.sum() / counts.sum()) / (counts + 1)
    return expected


def compute_threshold_weights(reference: Reference) -> Float64Array:
    """Return 1 for bins of confidence above a threshold and 0 below; as many images are above as are correct.

    The bin of the threshold has a weight in between. float64 [B]
    """
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    above = np.cumsum(counts[::-1])[::-1] - counts
    weights: Float64Array = np.clip((counts.sum() - errors.sum() - above) / np.maximum(counts, 1), 0.0, 1.0)
    return weights


def _to_interval(log_odds: float, error: float, images: float) -> tuple[float, float, float]:
    low, value, high = map(ShiftModel.to_share, (log_odds - error, log_odds, log_odds + error))
    return _add_sampling_error(low, value, high, images)


def _add_sampling_error(low: float, value: float, high: float, *counts: float) -> tuple[float, float, float]:
    """Return an interval widened by the error of shares of so many images, independent of what makes it wide."""
    variance = 0.0
    for images in counts:
        # Two images more, one of each kind, so that the variance is never 0.
        share = (value * images + 1) / (images + 2)
        variance += share * (1 - share) / images
    error = Z_OF_LEVEL * math.sqrt(variance)
    return max(value - math.hypot(value - low, error), 0.0), value, min(value + math.hypot(high - value, error), 1.0)
