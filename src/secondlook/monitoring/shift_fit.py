"""Learning from corrupted images how scores tell accuracy: a few numbers, and how wrong they are for other kinds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import MonitoringError
from secondlook.monitoring.estimates import compute_expected_accuracy
from secondlook.policies import (
    MAX_CLASS_GROUPS,
    AccuracyModel,
    LearnedShift,
    Reference,
    RiskModel,
    ShiftModel,
    group_classes,
    measure_class_distance,
    to_log_odds,
    to_share,
)

# What follows was chosen on corrupted CIFAR-10 images and resnet20.
LEVEL = 0.9
"""Confidence level of the intervals."""
MIN_ACCEPTED = 20
"""Images that are accepted at least where the error rate among them is learned from."""
MIN_SETS = 6
"""Sets of images that the error rate among accepted images is learned from at least."""
CLASS_MIXES = 2
"""How often each set of images is also learned from with other shares of the classes."""
MIX_WEIGHT = 0.5
"""Weight of such a set beside 1 for the images as they are."""
MODEL_VARIANCE = 0.04
"""Variance of log-odds around the model, so that no set counts far more than others because it has more images."""
RIDGE = 1e-3
"""Keeps coefficients finite where sets are too much alike to tell them."""


@dataclass(frozen=True, eq=False)
class LabeledScores:
    """The scores of n labeled images."""

    confidence: Float64Array
    predicted: IntArray
    """The predicted class, the first of the top k. int64 [n]"""
    accept: BoolArray
    correct: BoolArray
    labels: IntArray


class ShiftedScores(NamedTuple):
    """The scores of corrupted images."""

    kind: str
    view: str
    scores: LabeledScores


class _Set(NamedTuple):
    """What is known about a set of images, some of which may count more than others."""

    kind: str | None
    """None for the calibration images."""
    is_mix: bool
    expected: float
    class_distance: float
    correct: float
    images: float
    """Effective number of images."""
    accepted_correct: float
    accepted: float


def learn_shift_model(
    reference: Reference, n_classes: int, clean: LabeledScores, shifted: Sequence[ShiftedScores]
) -> ShiftModel:
    """Learn from the calibration images and from corrupted versions of some of them.

    Raises an error if the reference does not tell the errors of the calibration images.
    """
    if reference.errors is None:
        raise MonitoringError("shifts can be learned from labeled images only; calibrate on labeled images.")
    n_groups = min(n_classes, MAX_CLASS_GROUPS)
    shares = np.bincount(group_classes(clean.predicted, n_groups), minlength=n_groups) / len(clean.predicted)
    summary = _Summary(reference, compute_expected_accuracy(reference), tuple(shares.tolist()))
    sets = [*summary.summarize(None, clean, seed=0)]
    for seed, one in enumerate(shifted, start=1):
        sets += summary.summarize(one.kind, one.scores, seed)
    accuracy, risk = _fit(sets)
    kinds = [_judge_kind(kind, sets) for kind in dict.fromkeys(one.kind for one in shifted)]
    accepted_errors = [error for one in kinds for error in one.accepted_errors]
    return ShiftModel(
        images=len(shifted[0].scores.confidence),
        class_shares=tuple(round(share, 5) for share in shares.tolist()),
        accuracy=accuracy.model_copy(update={"error": find_error([error for one in kinds for error in one.errors])}),
        risk=risk.model_copy(update={"error": find_error(accepted_errors)}) if risk and accepted_errors else None,
        shifts=tuple(
            LearnedShift(
                kind=one.kind,
                views=tuple(each.view for each in shifted if each.kind == one.kind),
                accuracy=one.accuracy,
                estimate=one.estimate,
            )
            for one in kinds
        ),
    )


class _JudgedKind(NamedTuple):
    """How well a kind of shift is estimated by what was learned from the others."""

    kind: str
    accuracy: tuple[float, ...]
    estimate: tuple[float, ...]
    errors: list[float]
    accepted_errors: list[float]


def _judge_kind(kind: str, sets: Sequence[_Set]) -> _JudgedKind:
    """Estimate for a kind without having learned from it. Errors are in log-odds, as at the calibration images."""
    accuracy, risk = _fit([one for one in sets if one.kind != kind])
    judged = [one for one in sets if one.kind == kind and not one.is_mix]
    estimates = [accuracy.estimate(one.expected, one.class_distance) for one in judged]
    errors, accepted_errors = [], []
    for one, estimate in zip(judged, estimates, strict=True):
        spread = accuracy.compute_spread(estimate)
        errors.append(_measure_error(estimate, one.correct, one.images) / spread)
        if risk is not None and one.accepted >= MIN_ACCEPTED:
            right = risk.constant + risk.slope * estimate
            accepted_errors.append(_measure_error(right, one.accepted_correct, one.accepted) / spread)
    return _JudgedKind(
        kind,
        tuple(round(one.correct, 4) for one in judged),
        tuple(round(to_share(estimate), 4) for estimate in estimates),
        errors,
        accepted_errors,
    )


def find_error(errors: Sequence[float]) -> float:
    """Return the 90 % quantile of errors, as one more error that is like them would exceed it rarely enough."""
    place = min(math.ceil(LEVEL * (len(errors) + 1)), len(errors))
    return float(f"{sorted(errors)[place - 1]:.6g}")


@dataclass(frozen=True, eq=False)
class _Summary:
    """From the scores of images to what the model needs of them."""

    reference: Reference
    expected: Float64Array
    """Of each bin of confidence. float64 [B]"""
    class_shares: tuple[float, ...]

    def summarize(self, kind: str | None, scores: LabeledScores, seed: int) -> list[_Set]:
        """Return the images as they are, and with other shares of the classes.

        Otherwise a stream with other classes would be taken for one of worse images.
        """
        n_groups = len(self.class_shares)
        groups = group_classes(scores.labels, n_groups)
        sizes = np.maximum(np.bincount(groups, minlength=n_groups), 1)
        mixes = np.random.default_rng(seed).dirichlet(np.ones(n_groups), CLASS_MIXES) / sizes
        weights = [np.ones(len(groups)), *mixes[:, groups]]
        return [self._summarize(kind, scores, one, is_mix=place > 0) for place, one in enumerate(weights)]

    def _summarize(self, kind: str | None, scores: LabeledScores, weights: Float64Array, *, is_mix: bool) -> _Set:
        counts = np.bincount(
            group_classes(scores.predicted, len(self.class_shares)), weights, minlength=len(self.class_shares)
        ).astype(np.float64)
        images = _count_effectively(weights)
        accepted = weights * scores.accept
        expected = self.expected[self.reference.confidence.find_bins(scores.confidence)]
        return _Set(
            kind,
            is_mix,
            float(np.average(expected, weights=weights)),
            measure_class_distance(counts, self.class_shares, images),
            float(np.average(scores.correct, weights=weights)),
            images,
            float(np.average(scores.correct, weights=accepted)) if accepted.any() else 0.0,
            _count_effectively(accepted),
        )


def _count_effectively(weights: Float64Array) -> float:
    """Return the number of equally weighted images whose mean varies as much; 0 if there are none."""
    total = float(weights.sum())
    return total**2 / float((weights**2).sum()) if total else 0.0


def _fit(sets: Sequence[_Set]) -> tuple[AccuracyModel, RiskModel | None]:
    """Fit both models; their errors are not known yet."""
    clean = to_log_odds(next(one.expected for one in sets if one.kind is None))
    expected = np.array([to_log_odds(one.expected) for one in sets])
    distances = np.array([one.class_distance for one in sets])
    design = np.stack([np.ones(len(sets)), expected, distances * (clean - expected)], axis=1)
    constant, slope, class_weight = _regress(design, sets, [(one.correct, one.images) for one in sets])
    accuracy = AccuracyModel(clean=clean, constant=constant, slope=slope, class_weight=class_weight, error=0.0)
    kept = [one for one in sets if one.accepted >= MIN_ACCEPTED]
    if sum(not one.is_mix for one in kept) < MIN_SETS:
        return accuracy, None
    estimates = [accuracy.estimate(one.expected, one.class_distance) for one in kept]
    design = np.stack([np.ones(len(kept)), estimates], axis=1)
    constant, slope = _regress(design, kept, [(one.accepted_correct, one.accepted) for one in kept])
    return accuracy, RiskModel(constant=constant, slope=slope, error=0.0)


def _regress(design: Float64Array, sets: Sequence[_Set], shares: Sequence[tuple[float, float]]) -> list[float]:
    """Return the coefficients of a regression of log-odds, given shares and the numbers of images. float64 [S, P]"""
    targets, variances = np.transpose([_measure_log_odds(*one) for one in shares])
    weights = np.array([MIX_WEIGHT if one.is_mix else 1.0 for one in sets]) / (MODEL_VARIANCE + variances)
    weights /= weights.sum()
    gram = design.T @ (weights[:, None] * design) + RIDGE * np.eye(design.shape[1])
    return [float(f"{value:.6g}") for value in np.linalg.solve(gram, design.T @ (weights * targets))]


def _measure_log_odds(share: float, images: float) -> tuple[float, float]:
    """Return the log-odds of a share of so many images, and the variance that sampling gives them."""
    # Half an image more of each kind, so that both are finite.
    kept = (share * images + 0.5) / (images + 1)
    return to_log_odds(kept), 1 / (images * kept * (1 - kept))


def _measure_error(estimate: float, share: float, images: float) -> float:
    """Return how wrong an estimate of log-odds is, less what sampling alone explains."""
    log_odds, variance = _measure_log_odds(share, images)
    return math.sqrt(max((estimate - log_odds) ** 2 - variance, 0.0))
