"""Estimates of accuracy and risk without labels, from scores and corrupted images; with intervals, not guarantees."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.classifiers import Classifier
from secondlook.errors import ANY, MonitoringError, Repair
from secondlook.policies import AccuracyModel, Policy, Reference, ShiftModel
from secondlook.predictions import DEFAULT_EXECUTION, Execution, Predictions, collect, read_first_image
from secondlook.sources import Source
from secondlook.views import ViewSet

Z_OF_LEVEL = 1.6448536269514722
"""Standard deviations on each side of an interval of 90 %."""
EXPECTED, ABOVE = 0, 1
"""Columns of the features; all others are the groups of classes."""
SMALL_SIDE = 32
"""Image side for which the strengths of `list_shifts` were chosen."""
# The following values were chosen on corrupted CIFAR-10 images and resnet20.
LEVEL = 0.9
"""Confidence level of the intervals."""
MIN_ACCEPTED = 20
"""Minimum number of accepted images of a set that the error rate among accepted images is learned from."""
MIN_SETS = 6
"""Minimum number of these sets."""
CLASS_MIXES = 2
"""Number of versions of each set with other class shares that are also learned from."""
MIX_WEIGHT = 0.5
"""Weight of these versions; an unchanged set has weight 1."""
MODEL_VARIANCE = 0.04
"""Variance of log-odds around the model; limits the weight of sets with many images."""
RIDGE = 1e-3
"""Ridge penalty; keeps coefficients finite if the sets are too similar."""


@dataclass(frozen=True)
class AccuracyEstimate:
    """Accuracy, and error rate among accepted images, estimated without labels, with intervals of 90 %.

    Both describe these images, not the distribution they come from.
    They are estimates, not guarantees: without labels, the effect of the next change is unknown.
    """

    MEANING: ClassVar[str] = "estimate, not guarantee"
    """Shown after every number that was estimated without labels."""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    risk: float | None = None
    """Error rate among accepted images; None if none is accepted, or if the calibration images had no labels."""
    risk_low: float | None = None
    risk_high: float | None = None
    includes_shifts: bool = False
    """Whether the intervals include the error under shifts, or the sampling error only."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "meaning": self.MEANING}


class AccuracyEstimator:
    """Estimates accuracy and risk of images from their scores and the reference of a policy.

    With `policy.shifts`, a model learned from corrupted images predicts both from confidences and predicted classes.
    Its intervals include the error on held-out corruptions. Without it, accuracy is the share of images above the
    threshold at which coverage and accuracy of the calibration images are equal. Risk is the mean, over accepted
    images, of the calibration error rate at their confidence. The intervals include the sampling error only.
    """

    def __init__(self, policy: Policy) -> None:
        self._reference = get_reference(policy)
        self._shifts = policy.shifts
        coverage = policy.calibration.accepted / policy.calibration.images if policy.calibration else 1.0
        self._accepted = max(coverage * self._reference.images, 1.0)
        if self._reference.errors is not None:
            self._variance = compute_threshold_variance(self._reference)
            self._accepted_variance = compute_bin_variance(self._reference, self._accepted)

    def features(self, confidence: Float64Array, predicted: IntArray) -> Float64Array:
        """Return the features of each image; `estimate` takes their sums.

        float64 [n] and the predicted classes, int64 [n] or [n, k] (the first is used) -> float64 [n, F]
        """
        if self._reference.errors is None:
            return np.zeros((len(confidence), 0))
        bins = self._reference.confidence.find_bins(confidence)
        # Only a shift model corrects the bias of accuracies that are shrunk towards the overall one.
        expected = compute_bin_accuracy if self._shifts is None else compute_expected_accuracy
        columns = [expected(self._reference)[bins], compute_threshold_weights(self._reference)[bins]]
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
            share = totals[ABOVE] / images
            correct = _add_sampling_error(share, share, share, self._variance, images, self._reference.images)
            if accepted:
                share = accepted_totals[EXPECTED] / accepted
                right = _add_sampling_error(share, share, share, self._accepted_variance, accepted, self._accepted)
        else:
            log_odds, error = self._shifts.estimate_accuracy(totals[EXPECTED] / images, totals[ABOVE + 1 :], images)
            correct = _to_interval(log_odds, error, images)
            learned = self._shifts.estimate_accepted(log_odds) if accepted else None
            right = None if learned is None else _to_interval(*learned, accepted)
        low, value, high = correct
        risk_high, risk, risk_low = (None, None, None) if right is None else (1 - one for one in right)
        return AccuracyEstimate(value, low, high, risk, risk_low, risk_high, self._shifts is not None)


def get_reference(policy: Policy) -> Reference:
    """Return the reference of a policy; raise if it has none."""
    if policy.reference is None:
        raise MonitoringError("the policy has no reference of its calibration images; calibrate again.")
    return policy.reference


def compute_expected_accuracy(reference: Reference) -> Float64Array:
    """Return the accuracy in each bin of confidence, shrunk towards the overall accuracy. float64 [B]"""
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    # Adds one image with the overall error rate to each bin.
    expected: Float64Array = 1 - (errors + errors.sum() / counts.sum()) / (counts + 1)
    return expected


def compute_bin_accuracy(reference: Reference) -> Float64Array:
    """Return the unbiased accuracy in each bin of confidence. float64 [B]

    Empty bins are interpolated from their neighbors.
    """
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    filled = np.flatnonzero(counts)
    accuracy: Float64Array = np.interp(np.arange(len(counts)), filled, 1 - errors[filled] / counts[filled])
    return accuracy


def compute_threshold_weights(reference: Reference) -> Float64Array:
    """Return 1 for bins of confidence above the threshold whose coverage equals the accuracy, and 0 for those below.

    The bin of the threshold has a weight in between. float64 [B]
    """
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    return _weigh_most_confident(counts, float(counts.sum() - errors.sum()))


def _weigh_most_confident(counts: IntArray, images: float) -> Float64Array:
    """Return the fraction of each bin that is among the `images` most confident ones. int64 [B] -> float64 [B]"""
    above = np.cumsum(counts[::-1])[::-1] - counts
    weights: Float64Array = np.clip((images - above) / np.maximum(counts, 1), 0.0, 1.0)
    return weights


def compute_threshold_variance(reference: Reference) -> float:
    """Return the variance of (correct - above the threshold) over the calibration images."""
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    weights = compute_threshold_weights(reference)
    return float(np.sum(errors * weights**2 + (counts - errors) * (1 - weights) ** 2) / counts.sum())


def compute_bin_variance(reference: Reference, images: float) -> float:
    """Return the variance of correctness within bins of confidence, over the `images` most confident images."""
    counts, accuracy = np.array(reference.confidence.counts), compute_bin_accuracy(reference)
    # The variance of n images is too small by the factor (n - 1) / n. Differences between the bin shares of calibration
    # images and window add 2 / n.
    variances = accuracy * (1 - accuracy) * (counts + 2) / np.maximum(counts - 1, 1)
    return float(np.sum(_weigh_most_confident(counts, images) * counts * variances) / images)


def _to_interval(log_odds: float, error: float, images: float) -> tuple[float, float, float]:
    low, value, high = map(ShiftModel.to_share, (log_odds - error, log_odds, log_odds + error))
    return _add_sampling_error(low, value, high, value * (1 - value), images)


def _add_sampling_error(
    low: float, value: float, high: float, variance: float, *counts: float
) -> tuple[float, float, float]:
    """Return an interval widened by the independent sampling errors of means over `counts` images.

    `variance` is that of a single image.
    """
    # Adds one correct and one wrong image, so that the variance is never 0.
    error = Z_OF_LEVEL * math.sqrt(sum((variance * n**2 + n + 1) / (n + 2) ** 2 / n for n in counts))
    return max(value - math.hypot(value - low, error), 0.0), value, min(value + math.hypot(high - value, error), 1.0)


# ---- Corrupted images and their scores


def list_shifts(side: int) -> dict[str, tuple[str, ...]]:
    """Return the views of each kind of shift, from mild to severe, for images with a shorter side of `side` pixels.

    The size of fine details grows with the image, but more slowly. Noise, blur and lost resolution therefore grow with
    the square root of the side.
    """
    detail = math.sqrt(side / SMALL_SIDE)
    return {
        "noise": tuple(f"noise:{sigma * detail:.3g}" for sigma in (6, 12, 20)),
        "blur": tuple(f"blur:{sigma * detail:.3g}" for sigma in (0.64, 0.96, 1.44)),
        "resolution": tuple(_lose_pixels(1 + lost * detail) for lost in (1 / 3, 2 / 3, 11 / 9)),
        "contrast": ("contrast:0.5", "contrast:0.3", "contrast:0.15"),
        "dark": ("brightness:0.5", "brightness:0.3", "brightness:0.15"),
        "bright": ("brightness:1.5", "brightness:2", "brightness:3"),
        "pale": ("gamma:0.5", "gamma:0.3", "gamma:0.2"),
        "zoom out": ("zoom:0.75", "zoom:0.6", "zoom:0.45"),
        "zoom in": ("zoom:1.25", "zoom:1.5", "zoom:2"),
        "rotation": ("rotate:12", "rotate:22", "rotate:35"),
    }


def _lose_pixels(factor: float) -> str:
    """Return the view that shrinks an image and enlarges it again."""
    return f"zoom:{1 / factor:.4g}+zoom:{1 / float(f'{1 / factor:.4g}'):.4g}"


def compose_views(shift: str, views: tuple[str, ...]) -> tuple[str, ...]:
    """Return the views of a corrupted image."""
    return tuple(shift if view == "identity" else f"{shift}+{view}" for view in views)


def count_looks(policy: Policy, n_images: int) -> int:
    """Return the number of looks that `learn_shifts` takes for a policy."""
    return n_images * (1 + sum(map(len, list_shifts(SMALL_SIDE).values())) * len(policy.views))


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


def learn_shifts(
    policy: Policy,
    classifier: Classifier,
    source: Source,
    preds: Predictions,
    *,
    n_images: int = ShiftModel.DEFAULT_IMAGES,
    seed: int = 0,
    store: Path | None = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> ShiftModel:
    """Classify corrupted versions of labeled images, and learn to estimate their accuracy from the scores of a policy.

    `seed` draws `n_images` labeled images of `source`. `preds` are labeled predictions for the uncorrupted calibration
    images of the policy. With `store`, outputs are kept in this folder and an interrupted job resumes; otherwise they
    are kept in memory.
    """
    reference = get_reference(policy)
    sample = draw_images(source, n_images, seed)
    shifted = collect_shifts(policy, classifier, sample, store=store, execution=execution)
    return learn_shift_model(reference, preds.n_classes, score_images(policy, preds), shifted)


def collect_shifts(
    policy: Policy,
    classifier: Classifier,
    source: Source,
    *,
    store: Path | None = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> list[ShiftedScores]:
    """Return the scores of corrupted versions of all images of a source; the arguments are those of `learn_shifts`."""
    shifts = list_shifts(int(min(read_first_image(classifier, source).shape[:2])))
    composed = {shift: compose_views(shift, policy.views) for views in shifts.values() for shift in views}
    views = ViewSet(["identity", *(view for views in composed.values() for view in views)])
    collected = collect(classifier, source, views, store=store, execution=execution)
    return [
        ShiftedScores(kind, shift, score_images(policy, _rename_views(collected, composed[shift], policy.views)))
        for kind, views in shifts.items()
        for shift in views
    ]


def draw_images(source: Source, n_images: int, seed: int) -> Source:
    """Return a random subset of a source, without duplicates."""
    if source.labels is None:
        raise MonitoringError("learning shifts needs labeled images; calibrate on labeled images.")
    distinct = np.delete(np.arange(len(source)), source.find_duplicates())
    n_drawn = min(n_images, len(distinct))
    if n_drawn < ShiftModel.MIN_IMAGES:
        repair = Repair("calibrate on more, or pass a larger {n_images}", n_images=ANY)
        fault = f"learning shifts needs at least {ShiftModel.MIN_IMAGES} labeled images, got {n_drawn}"
        raise MonitoringError(fault, repair=repair)
    drawn: IntArray = np.sort(np.random.default_rng(seed).permutation(distinct)[:n_images])
    return source.select(drawn)


def score_images(policy: Policy, preds: Predictions) -> LabeledScores:
    """Return the scores of labeled images by a policy, after the looks that it takes."""
    looked = policy.look(preds)
    predicted = looked.predicted.reshape(preds.n_images, -1)
    groups = policy.find_first_classes(preds) if policy.grouped_by == "class" else None
    accept = policy.accept_values(looked.confidence, groups, policy.compute_familiarity(preds))
    correct = (predicted == preds.labels[:, None]).any(axis=1)
    return LabeledScores(looked.confidence, predicted[:, 0], accept, correct, preds.labels)


def _rename_views(preds: Predictions, composed: tuple[str, ...], views: tuple[str, ...]) -> Predictions:
    """Select the predictions of the composed views, and give them the names of the views."""
    if preds.members:
        return Predictions(members=[_rename_views(one, composed, views) for one in preds.members], views=list(views))
    chosen = preds.select(views=["identity", *composed])
    name = "logits" if chosen.has_logits else "probabilities"
    outputs: dict[str, Any] = {name: getattr(chosen, name)[:, 1:]}
    return Predictions(**outputs, views=list(views), labels=preds.labels, ids=preds.ids, class_names=preds.class_names)


# ---- The shift model: a few coefficients, and their error on held-out kinds of shift


class _Set(NamedTuple):
    """Summary of a set of images, for the regression."""

    kind: str | None
    """Kind of shift; None for the calibration images."""
    is_mix: bool
    """Whether the shares of the classes were changed."""
    expected: float
    """Mean accuracy of calibration images with the same confidences."""
    class_distance: float
    correct: float
    images: float
    """Effective number of images."""
    accepted_correct: float
    accepted: float


def learn_shift_model(
    reference: Reference, n_classes: int, clean: LabeledScores, shifted: Sequence[ShiftedScores]
) -> ShiftModel:
    """Learn from the labeled calibration images and from corrupted versions of some of them."""
    if reference.errors is None:
        raise MonitoringError("learning shifts needs labeled calibration images; calibrate on labeled images.")
    n_groups = min(n_classes, ShiftModel.MAX_CLASS_GROUPS)
    counts = np.bincount(clean.predicted % n_groups, minlength=n_groups)
    shares = tuple((counts / len(clean.predicted)).tolist())
    sets = _summarize(reference, shares, None, clean, seed=0)
    for seed, (kind, _, scores) in enumerate(shifted, start=1):
        sets += _summarize(reference, shares, kind, scores, seed)
    accuracy, risk = _fit(sets)
    errors, accepted_errors, learned = [], [], []
    for kind in dict.fromkeys(one.kind for one in shifted):
        # Errors of a model fitted without this kind, scaled to the accuracy of the calibration images.
        other, other_risk = _fit([one for one in sets if one.kind != kind])
        judged = [one for one in sets if one.kind == kind and not one.is_mix]
        estimates = [other.estimate(one.expected, one.class_distance) for one in judged]
        for one, estimate in zip(judged, estimates, strict=True):
            spread = other.compute_spread(estimate)
            errors.append(_measure_error(estimate, one.correct, one.images) / spread)
            if other_risk is not None and one.accepted >= MIN_ACCEPTED:
                right = other_risk["constant"] + other_risk["slope"] * estimate
                accepted_errors.append(_measure_error(right, one.accepted_correct, one.accepted) / spread)
        views = [one.view for one in shifted if one.kind == kind]
        correct = [round(one.correct, 4) for one in judged]
        shares_correct = [round(ShiftModel.to_share(estimate), 4) for estimate in estimates]
        learned.append({"kind": kind, "views": views, "accuracy": correct, "estimate": shares_correct})
    content = {
        "images": len(shifted[0].scores.confidence),
        "class_shares": [round(share, 5) for share in shares],
        "accuracy": accuracy.model_copy(update={"error": find_error(errors)}),
        "risk": {**risk, "error": find_error(accepted_errors)} if risk and accepted_errors else None,
        "shifts": learned,
    }
    return ShiftModel.model_validate(content)


def find_error(errors: Sequence[float]) -> float:
    """Return the conformal quantile of errors at the level of the intervals."""
    place = min(math.ceil(LEVEL * (len(errors) + 1)), len(errors))
    return float(f"{sorted(errors)[place - 1]:.6g}")


def _summarize(
    reference: Reference, class_shares: tuple[float, ...], kind: str | None, scores: LabeledScores, seed: int
) -> list[_Set]:
    """Return a set as it is and with other class shares, so that the model does not mistake these for a shift."""
    n_groups = len(class_shares)
    groups, predicted = scores.labels % n_groups, scores.predicted % n_groups
    expected = compute_expected_accuracy(reference)[reference.confidence.find_bins(scores.confidence)]
    sizes = np.maximum(np.bincount(groups, minlength=n_groups), 1)
    mixes = np.random.default_rng(seed).dirichlet(np.ones(n_groups), CLASS_MIXES) / sizes
    sets: list[_Set] = []
    for weights in (np.ones(len(groups)), *mixes[:, groups]):
        counts = np.bincount(predicted, weights, minlength=n_groups).astype(np.float64)
        images, accepted = _compute_effective_size(weights), weights * scores.accept
        distance = ShiftModel.measure_class_distance(counts, class_shares, images)
        likely, correct = (float(np.average(each, weights=weights)) for each in (expected, scores.correct))
        right = float(np.average(scores.correct, weights=accepted)) if accepted.any() else 0.0
        sets.append(_Set(kind, bool(sets), likely, distance, correct, images, right, _compute_effective_size(accepted)))
    return sets


def _compute_effective_size(weights: Float64Array) -> float:
    """Return the effective sample size of weighted images; 0 if all weights are 0."""
    total = float(weights.sum())
    return total**2 / float((weights**2).sum()) if total else 0.0


def _fit(sets: Sequence[_Set]) -> tuple[AccuracyModel, dict[str, float] | None]:
    """Fit both models, without their errors."""
    clean = ShiftModel.to_log_odds(next(one.expected for one in sets if one.kind is None))
    expected = np.array([ShiftModel.to_log_odds(one.expected) for one in sets])
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
    return accuracy, {"constant": constant, "slope": slope}


def _regress(design: Float64Array, sets: Sequence[_Set], shares: Sequence[tuple[float, float]]) -> list[float]:
    """Return the coefficients of a regression of log-odds, given shares and the numbers of images. float64 [S, P]"""
    targets, variances = np.transpose([_measure_log_odds(*one) for one in shares])
    weights = np.array([MIX_WEIGHT if one.is_mix else 1.0 for one in sets]) / (MODEL_VARIANCE + variances)
    weights /= weights.sum()
    gram = design.T @ (weights[:, None] * design) + RIDGE * np.eye(design.shape[1])
    return [float(f"{value:.6g}") for value in np.linalg.solve(gram, design.T @ (weights * targets))]


def _measure_log_odds(share: float, images: float) -> tuple[float, float]:
    """Return the log-odds of a share of `images` images, and their sampling variance."""
    # Adds half an image of each kind, so that both are finite.
    kept = (share * images + 0.5) / (images + 1)
    return ShiftModel.to_log_odds(kept), 1 / (images * kept * (1 - kept))


def _measure_error(estimate: float, share: float, images: float) -> float:
    """Return the error of estimated log-odds, minus the part that sampling explains."""
    log_odds, variance = _measure_log_odds(share, images)
    return math.sqrt(max((estimate - log_odds) ** 2 - variance, 0.0))
