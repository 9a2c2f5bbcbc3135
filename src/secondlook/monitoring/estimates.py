"""Accuracy and risk of images without labels: estimates from their scores, and what corrupted images teach for them.

They have intervals, and no guarantee.
"""

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
"""Side of the images that the strengths of `list_shifts` are for."""
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


@dataclass(frozen=True)
class AccuracyEstimate:
    """Accuracy, and error rate among accepted images, estimated without labels, with intervals of 90 %.

    Both are about these very images, not about the distribution that they come from.
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
    intervals include how wrong such estimates were for other corruptions. Without it, accuracy is the share of images
    whose confidence reaches a threshold that as many calibration images reach as are correct, risk is the mean over
    accepted images of the error rate of calibration images of the same confidence, and intervals are of sampling only.
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
        """Return the numbers of each image whose sums `estimate` needs.

        float64 [n] and the predicted classes, int64 [n] or [n, k], of which the first counts -> float64 [n, F]
        """
        if self._reference.errors is None:
            return np.zeros((len(confidence), 0))
        bins = self._reference.confidence.find_bins(confidence)
        # A shift model corrects the bias of accuracies that are drawn to that of all images; nothing else does.
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


def compute_bin_accuracy(reference: Reference) -> Float64Array:
    """Return the accuracy of the calibration images in each bin of confidence, without bias. float64 [B]

    An empty bin has an accuracy between those of its neighbors.
    """
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    filled = np.flatnonzero(counts)
    accuracy: Float64Array = np.interp(np.arange(len(counts)), filled, 1 - errors[filled] / counts[filled])
    return accuracy


def compute_threshold_weights(reference: Reference) -> Float64Array:
    """Return 1 for bins of confidence above a threshold and 0 below; as many images are above as are correct.

    The bin of the threshold has a weight in between. float64 [B]
    """
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    return _weigh_most_confident(counts, float(counts.sum() - errors.sum()))


def _weigh_most_confident(counts: IntArray, images: float) -> Float64Array:
    """Return the fraction of each bin that belongs to so many of the most confident images. int64 [B] -> float64 [B]"""
    above = np.cumsum(counts[::-1])[::-1] - counts
    weights: Float64Array = np.clip((images - above) / np.maximum(counts, 1), 0.0, 1.0)
    return weights


def compute_threshold_variance(reference: Reference) -> float:
    """Return the variance, over the calibration images, of correct minus above the threshold."""
    counts, errors = np.array(reference.confidence.counts), np.array(reference.errors)
    weights = compute_threshold_weights(reference)
    return float(np.sum(errors * weights**2 + (counts - errors) * (1 - weights) ** 2) / counts.sum())


def compute_bin_variance(reference: Reference, images: float) -> float:
    """Return the variance of correct within bins of confidence, over so many of the most confident images."""
    counts, accuracy = np.array(reference.confidence.counts), compute_bin_accuracy(reference)
    # The variance of n images is (n - 1) / n of what it is, and the shares of the bin among the calibration images and
    # in the window, which are not quite equal, add 2 / n.
    variances = accuracy * (1 - accuracy) * (counts + 2) / np.maximum(counts - 1, 1)
    return float(np.sum(_weigh_most_confident(counts, images) * counts * variances) / images)


def _to_interval(log_odds: float, error: float, images: float) -> tuple[float, float, float]:
    low, value, high = map(ShiftModel.to_share, (log_odds - error, log_odds, log_odds + error))
    return _add_sampling_error(low, value, high, value * (1 - value), images)


def _add_sampling_error(
    low: float, value: float, high: float, variance: float, *counts: float
) -> tuple[float, float, float]:
    """Return an interval widened by the errors of means over so many images, independent of what makes it wide.

    `variance` is that of a single image.
    """
    # Two images more, one correct and one wrong, so that the variance is never 0.
    error = Z_OF_LEVEL * math.sqrt(sum((variance * n**2 + n + 1) / (n + 2) ** 2 / n for n in counts))
    return max(value - math.hypot(value - low, error), 0.0), value, min(value + math.hypot(high - value, error), 1.0)


# ---- Corrupted images and their scores


def list_shifts(side: int) -> dict[str, tuple[str, ...]]:
    """Return the views of each kind of shift, from mild to severe, for images with a shorter side of `side` pixels.

    Fine details of large images are larger than those of small ones, though not in proportion: what destroys them
    grows with the square root of the side.
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
    """Return the views of an image that was corrupted before."""
    return tuple(shift if view == "identity" else f"{shift}+{view}" for view in views)


def count_looks(policy: Policy, n_images: int) -> int:
    """Return how many views `learn_shifts` classifies for a policy."""
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
    """Classify corrupted versions of labeled images, and learn how the scores of a policy tell their accuracy.

    `source` has labeled images, of which `n_images` are drawn with `seed`; `preds` are labeled predictions for the
    images that the policy was calibrated on, as they are. Outputs are kept in `store`, so that an interrupted job
    resumes, or in memory.
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
        ShiftedScores(kind, shift, score_images(policy, _look_through(collected, composed[shift], policy.views)))
        for kind, views in shifts.items()
        for shift in views
    ]


def draw_images(source: Source, n_images: int, seed: int) -> Source:
    """Return some of the images of a source, all different, drawn at random."""
    if source.labels is None:
        raise MonitoringError("shifts can be learned from labeled images only; calibrate on labeled images.")
    distinct = np.delete(np.arange(len(source)), source.find_duplicates())
    n_drawn = min(n_images, len(distinct))
    if n_drawn < ShiftModel.MIN_IMAGES:
        repair = Repair("calibrate on more, or pass a larger {n_images}", n_images=ANY)
        raise MonitoringError(f"shifts need {ShiftModel.MIN_IMAGES} labeled images, got {n_drawn}", repair=repair)
    drawn: IntArray = np.sort(np.random.default_rng(seed).permutation(distinct)[:n_images])
    return source.select(drawn)


def score_images(policy: Policy, preds: Predictions) -> LabeledScores:
    """Return the scores that a policy gives to labeled images, looked at as often as it would."""
    looked = policy.look(preds)
    predicted = looked.predicted.reshape(preds.n_images, -1)
    groups = policy.find_first_classes(preds) if policy.grouped_by == "class" else None
    accept = policy.accept_values(looked.confidence, groups, policy.compute_familiarity(preds))
    correct = (predicted == preds.labels[:, None]).any(axis=1)
    return LabeledScores(looked.confidence, predicted[:, 0], accept, correct, preds.labels)


def _look_through(preds: Predictions, composed: tuple[str, ...], views: tuple[str, ...]) -> Predictions:
    """Return the predictions for corrupted images under the names that the views have for other images."""
    if preds.members:
        return Predictions(members=[_look_through(one, composed, views) for one in preds.members], views=list(views))
    chosen = preds.select(views=["identity", *composed])
    name = "logits" if chosen.has_logits else "probabilities"
    outputs: dict[str, Any] = {name: getattr(chosen, name)[:, 1:]}
    return Predictions(**outputs, views=list(views), labels=preds.labels, ids=preds.ids, class_names=preds.class_names)


# ---- What is learned from the scores: a few numbers, and how wrong they are for other kinds


class _Set(NamedTuple):
    """What the model needs of a set of images."""

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
        raise MonitoringError("shifts can be learned from labeled images only; calibrate on labeled images.")
    n_groups = min(n_classes, ShiftModel.MAX_CLASS_GROUPS)
    counts = np.bincount(clean.predicted % n_groups, minlength=n_groups)
    shares = tuple((counts / len(clean.predicted)).tolist())
    sets = _summarize(reference, shares, None, clean, seed=0)
    for seed, (kind, _, scores) in enumerate(shifted, start=1):
        sets += _summarize(reference, shares, kind, scores, seed)
    accuracy, risk = _fit(sets)
    errors, accepted_errors, learned = [], [], []
    for kind in dict.fromkeys(one.kind for one in shifted):
        # How wrong estimates are without having learned from this kind, as at the accuracy of the calibration images.
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
    """Return the 90 % quantile of errors, as one more error that is like them would exceed it rarely enough."""
    place = min(math.ceil(LEVEL * (len(errors) + 1)), len(errors))
    return float(f"{sorted(errors)[place - 1]:.6g}")


def _summarize(
    reference: Reference, class_shares: tuple[float, ...], kind: str | None, scores: LabeledScores, seed: int
) -> list[_Set]:
    """Return the images as they are, and with other shares of the classes, which are not to look like worse images."""
    n_groups = len(class_shares)
    groups, predicted = scores.labels % n_groups, scores.predicted % n_groups
    expected = compute_expected_accuracy(reference)[reference.confidence.find_bins(scores.confidence)]
    sizes = np.maximum(np.bincount(groups, minlength=n_groups), 1)
    mixes = np.random.default_rng(seed).dirichlet(np.ones(n_groups), CLASS_MIXES) / sizes
    sets: list[_Set] = []
    for weights in (np.ones(len(groups)), *mixes[:, groups]):
        counts = np.bincount(predicted, weights, minlength=n_groups).astype(np.float64)
        images, accepted = _count_effectively(weights), weights * scores.accept
        distance = ShiftModel.measure_class_distance(counts, class_shares, images)
        likely, correct = (float(np.average(each, weights=weights)) for each in (expected, scores.correct))
        right = float(np.average(scores.correct, weights=accepted)) if accepted.any() else 0.0
        sets.append(_Set(kind, bool(sets), likely, distance, correct, images, right, _count_effectively(accepted)))
    return sets


def _count_effectively(weights: Float64Array) -> float:
    """Return the number of equally weighted images whose mean varies as much; 0 if there are none."""
    total = float(weights.sum())
    return total**2 / float((weights**2).sum()) if total else 0.0


def _fit(sets: Sequence[_Set]) -> tuple[AccuracyModel, dict[str, float] | None]:
    """Fit both models; their errors are not known yet."""
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
    """Return the log-odds of a share of so many images, and the variance that sampling gives them."""
    # Half an image more of each kind, so that both are finite.
    kept = (share * images + 0.5) / (images + 1)
    return ShiftModel.to_log_odds(kept), 1 / (images * kept * (1 - kept))


def _measure_error(estimate: float, share: float, images: float) -> float:
    """Return how wrong an estimate of log-odds is, less what sampling alone explains."""
    log_odds, variance = _measure_log_odds(share, images)
    return math.sqrt(max((estimate - log_odds) ** 2 - variance, 0.0))
