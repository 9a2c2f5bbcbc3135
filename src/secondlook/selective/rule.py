"""Rules: accept a prediction whose confidence reaches a threshold, and what is guaranteed about accepted images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array, IntArray, as_array, is_number
from secondlook.errors import DecisionError
from secondlook.estimators import confidence as compute_confidence
from secondlook.estimators import running_confidence
from secondlook.predictions import PredictFrom, Predictions
from secondlook.selective.schedule import Schedule
from secondlook.tables import TextTable, format_html

DEFAULT_DELTA = 0.001
"""Failure probability of a guarantee by default: 99.9 % confidence."""


@dataclass(frozen=True)
class Guarantee:
    """At most `risk` of the accepted images are wrong, with probability 1 - `delta` over the draw of labeled images."""

    risk: float
    delta: float

    def __str__(self) -> str:
        return (
            f"at most {100 * self.risk:g} % errors among accepted images with {100 * (1 - self.delta):g} % confidence, "
            "for images from the same distribution as the labeled ones"
        )


@dataclass(frozen=True)
class Calibration:
    """Counts on the images that a threshold was chosen on."""

    images: int
    accepted: int
    errors: int | None
    """Errors among the accepted images; None without labels."""
    duplicates: int = 0
    """Copies of other images that were left out; `images` does not include them."""
    joint_delta: float | None = None
    """Probability that any guarantee calibrated on these images fails; None if there is no other, or it is unknown."""
    tuning: int = 0
    """Images set apart to choose views or to fit the method or the schedule; `images` does not include them."""
    mean_looks: float | None = None
    """Mean number of looks; None if every image has all looks."""
    differing: int | None = None
    """Images whose decision differs from that with all looks; None if every image has all looks."""
    differing_bound: float | None = None
    """Upper bound on the fraction of images whose decision differs from that with all looks."""
    differing_delta: float | None = None
    """Failure probability of this bound."""

    @property
    def coverage(self) -> float:
        """Fraction of the images that were accepted."""
        return self.accepted / self.images

    @property
    def risk(self) -> float | None:
        """Observed error rate among accepted images, without a guarantee; None if it is undefined."""
        return None if self.errors is None or self.accepted == 0 else self.errors / self.accepted


@dataclass(frozen=True)
class Shortfall:
    """A guarantee that could not be given, and what would be needed for it.

    The smallest risk and the larger delta were found on the labeled images themselves. They help to plan a calibration
    on other images, and guarantee nothing.
    """

    requested: Guarantee
    smallest_risk: float | None
    """A larger risk that these images pass with the same `delta`; None if there is none."""
    additional_images: int | None
    """Rough number of additional labeled images that are enough if error rates stay as observed; None if none is."""
    larger_delta: float | None = None
    """A larger delta with which these images pass for the same `risk`; None if there is none up to 0.1."""
    closest: Calibration | None = None
    """Counts at the threshold that comes closest to the guarantee, on which `additional_images` is based."""

    def __str__(self) -> str:
        return f"no threshold guarantees {self.requested}; {self._describe_needed()}; {self._describe_reachable()}"

    def _describe_needed(self) -> str:
        seen, rate = "", "error rates stay as observed"
        if self.closest is not None:
            seen = (
                f"at the threshold that comes closest, {self.closest.errors:,} of {self.closest.accepted:,} accepted "
                "images are wrong, so "
            )
            rate = "this error rate holds"
        if self.additional_images is None:
            return f"{seen}more images like these would not help, whatever their number"
        return f"{seen}roughly {self.additional_images:,} more labeled images are needed if {rate}"

    def _describe_reachable(self) -> str:
        repair = "improve the classifier, or plan a calibration on other images with a larger risk or delta"
        reachable = []
        if self.smallest_risk is not None:
            reachable.append(f"a risk of {100 * self.smallest_risk:.4g} %")
        if self.larger_delta is not None:
            reachable.append(f"a delta of {self.larger_delta:.4g}")
        if not reachable:
            return repair
        return f"{repair}; {' or '.join(reachable)} would pass on these images, which guarantees nothing"


class LookedImages(NamedTuple):
    """How often each image is looked at, its confidence when looking stops, and the class predicted then."""

    looks: IntArray
    """Number of looks, int64 [N]."""
    confidence: Float64Array
    """float64 [N]"""
    predicted: IntArray
    """The predicted class, int64 [N], or the top k classes, int64 [N, k]."""


@dataclass(frozen=True)
class Rule:
    """Accept a prediction if its confidence is at least `threshold`.

    `Rule(threshold=0.9)` is a plain threshold; `certify` returns a rule with a guarantee.

    Attributes
    ----------
    threshold
        Smallest confidence that is accepted; infinite if nothing is.
    method, options
        The confidence that the threshold applies to, and its options.
    predict_from, top_k
        How classes are predicted: from the image itself or from the mean over views, and how many of them.
    guarantee
        The guarantee about accepted images; None if there is none.
    calibration
        Counts on the images that the threshold was chosen on.
    shortfall
        Why a requested guarantee could not be given.
    schedule
        In which order to look at the views, and when to stop; None if every image has all looks.
    """

    threshold: float
    method: str = "mean"
    predict_from: PredictFrom = "image"
    top_k: int = 1
    options: Mapping[str, object] = field(default_factory=dict)
    guarantee: Guarantee | None = None
    calibration: Calibration | None = None
    shortfall: Shortfall | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        given: object = self.threshold  # whatever callers without a type checker pass
        if not is_number(given) and not (isinstance(given, float) and math.isinf(given)):
            raise DecisionError(f"threshold={self.threshold!r}, expected a number; pass a confidence such as 0.9.")

    @property
    def certified(self) -> bool:
        """Whether the error rate among accepted images is guaranteed."""
        return self.guarantee is not None

    @property
    def coverage(self) -> float:
        """Fraction of the calibration images that the rule accepts."""
        if self.calibration is None:
            raise DecisionError(
                "a plain threshold has no coverage, since it was not chosen on images; use accept(confidence).mean()."
            )
        return self.calibration.coverage

    def confidence(self, preds: Predictions) -> Float64Array:
        """Compute the confidence that the threshold applies to: with a schedule, when looking stops. -> float64 [N]"""
        return self.look(preds).confidence

    def look(self, preds: Predictions) -> LookedImages:
        """Return how often each image is looked at, and what is known of it then.

        `preds` are for all views of the rule, and with a schedule at least for its views.
        """
        if self.schedule is None:
            return LookedImages(
                np.full(preds.n_images, preds.n_views),
                compute_confidence(
                    preds, self.method, predict_from=self.predict_from, top_k=self.top_k, **self.options
                ),
                preds.predicted(self.predict_from, self.top_k),
            )
        looked_at = select_schedule_views(preds, self.schedule)
        running = self.compute_running(looked_at)
        looks, confidence = self.schedule.look(running, self.threshold)
        return LookedImages(looks, confidence, self._predict(looked_at, looks))

    def list_views(self, views: tuple[str, ...]) -> tuple[str, ...]:
        """Return the views that are looked at, given all views: those of a schedule, in the order of looks."""
        return views if self.schedule is None else self.schedule.views

    def compute_running(self, preds: Predictions) -> Float64Array:
        """Compute the confidence after 1, 2, ... views, in the order of `preds.views`. -> float64 [N, V]"""
        return running_confidence(preds, self.method, predict_from=self.predict_from, top_k=self.top_k, **self.options)

    def _predict(self, preds: Predictions, looks: IntArray) -> IntArray:
        """Predict classes from the image itself, or from as many views as were looked at. int64 [N] or [N, k]"""
        if self.predict_from == "image":
            return preds.predicted("image", self.top_k)
        predicted = np.empty((preds.n_images, self.top_k), dtype=np.int64)
        for count in np.unique(looks):
            stopped = looks == count
            seen = preds.select(views=list(preds.views.texts[:count]), images=stopped)
            predicted[stopped] = seen.predicted("views", self.top_k).reshape(-1, self.top_k)
        return predicted[:, 0] if self.top_k == 1 else predicted

    def accept(self, confidence: ArrayLike) -> BoolArray:
        """Return whether each prediction is accepted. float [N] -> bool [N]"""
        values = as_array(confidence, "confidence", DecisionError)
        if values.dtype.kind not in "fiu":
            raise DecisionError(f"confidence has dtype {values.dtype}, expected real numbers; convert it to float64.")
        values = values.astype(np.float64, copy=False)
        if np.isnan(values).any():
            index = int(np.flatnonzero(np.isnan(values))[0])
            raise DecisionError(f"confidence is NaN at index {index}, expected a number; fix or remove this image.")
        return values >= self.threshold

    def __str__(self) -> str:
        return self.describe(str(self.guarantee or "none"))

    def describe(self, guarantee: str) -> str:
        """Return the rule in words, with what is known about its guarantee."""
        if self.shortfall is not None:
            lines = [f"accept nothing: {self.shortfall}"]
        else:
            lines = [f"accept where {self.method} >= {self.threshold:.6g}", f"guarantee: {guarantee}"]
        if self.calibration is not None:
            lines += _format_calibration(self.calibration, self.schedule)
        return "\n".join([*lines, *(str(table) for table in self.list_tables())])

    def list_tables(self) -> list[TextTable]:
        """Return the limits of each look, if the rule has a schedule."""
        if self.schedule is None or not math.isfinite(self.threshold):
            return []
        return [self.schedule.make_table(self.threshold)]

    def _repr_html_(self) -> str:
        return format_html([self])


def select_schedule_views(preds: Predictions, schedule: Schedule) -> Predictions:
    """Return the predictions for the views of a schedule, in the order of looks."""
    missing = [view for view in schedule.views if view not in preds.views.texts]
    if missing:
        raise DecisionError(
            f"the schedule looks at view {missing[0]!r}, which the predictions lack (they have "
            f"{', '.join(preds.views.texts)}); collect with the views of the schedule, or fit another schedule."
        )
    return preds.select(views=list(schedule.views))


def _format_calibration(calibration: Calibration, schedule: Schedule | None) -> list[str]:
    accepted = (
        f"{calibration.accepted:,} of {calibration.images:,} images accepted ({100 * calibration.coverage:.4g} %)"
    )
    errors = "no labels" if calibration.errors is None else f"{calibration.errors:,} of them wrong"
    lines = [f"calibration: {accepted}, {errors}"]
    if calibration.tuning:
        lines.append(
            f"tuning: {calibration.tuning:,} other images were set apart to choose views or fit the method or schedule"
        )
    if schedule is not None and calibration.mean_looks is not None:
        lines += _format_looks(calibration, schedule)
    if calibration.duplicates:
        copies = "image was" if calibration.duplicates == 1 else "images were"
        lines.append(f"{calibration.duplicates:,} duplicate {copies} counted once")
    if calibration.joint_delta is not None:
        lines.append(
            "with the other calibrations on these images: one of the guarantees fails with a probability of up to "
            f"{100 * calibration.joint_delta:.4g} %"
        )
    return lines


def _format_looks(calibration: Calibration, schedule: Schedule) -> list[str]:
    saved = 1 - (calibration.mean_looks or 0) / schedule.full_looks
    lines = [
        f"looks: {calibration.mean_looks:.2f} on average, at most {schedule.max_looks}: {100 * saved:.1f} % fewer than "
        f"all {schedule.full_looks}"
    ]
    if calibration.differing_bound is not None and calibration.differing_delta is not None:
        lines.append(
            f"decisions: {calibration.differing:,} of {calibration.images:,} differ from those with all "
            f"{schedule.full_looks} looks; at most {100 * calibration.differing_bound:.2g} % of new images with "
            f"{100 * (1 - calibration.differing_delta):g} % confidence"
        )
    return lines
