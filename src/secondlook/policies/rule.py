"""Rules: accept a prediction whose confidence reaches a threshold, and what is guaranteed about accepted images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, IntArray, as_array, is_number
from secondlook.errors import DecisionError
from secondlook.estimators import confidence as compute_confidence
from secondlook.estimators import running_confidence
from secondlook.files import FrozenRecord
from secondlook.policies.reference import Reference
from secondlook.policies.schedule import Schedule
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.tables import TextTable, format_html

DEFAULT_DELTA = 0.001
"""Failure probability of a guarantee by default: 99.9 % confidence."""


GroupedBy = Literal["class", "label"]
"""What the groups of a rule are: the predicted classes, or groups given by a label for each image."""
GROUP_NOUNS: Mapping[GroupedBy, str] = {"class": "predicted class", "label": "group"}


@dataclass(frozen=True)
class Guarantee:
    """At most `risk` of the accepted images are wrong, with probability 1 - `delta` over the draw of labeled images."""

    risk: float
    """With groups, the largest risk of any of them."""
    delta: float
    grouped_by: GroupedBy | None = None
    """Whether the guarantee holds in every predicted class, or every group, jointly; None if only for all images."""
    smallest_risk: float | None = None
    """The smallest risk of any group, if groups have different ones."""

    @classmethod
    def of_groups(cls, grouped_by: GroupedBy, risks: Sequence[float], delta: float) -> Self:
        """Return the joint guarantee of groups with these risks."""
        return cls(max(risks), delta, grouped_by, None if min(risks) == max(risks) else min(risks))

    def __str__(self) -> str:
        risk = f"{100 * self.risk:g} % errors"
        if self.smallest_risk is not None:
            risk = f"its risk ({100 * self.smallest_risk:g} % to {100 * self.risk:g} %) of errors"
        where = "" if self.grouped_by is None else f" in every {GROUP_NOUNS[self.grouped_by]}, jointly"
        return (
            f"at most {risk} among accepted images{where} with {100 * (1 - self.delta):g} % confidence, "
            "for images from the same distribution as the labeled ones"
        )


MAX_LISTED_GROUPS = 20
"""Groups that are printed; in the table of more, those with the smallest coverage."""


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
    reviewed: int | None = None
    """Number of accepted images that were drawn and reviewed; None if all were labeled."""
    estimated_risk: float | None = None
    """Error rate among accepted images as the reviewed ones suggest, weighted for how they were drawn."""

    @property
    def coverage(self) -> float:
        """Fraction of the images that were accepted."""
        return self.accepted / self.images

    @property
    def risk(self) -> float | None:
        """Observed error rate among accepted images, without a guarantee; None if it is undefined."""
        return None if self.errors is None or self.accepted == 0 else self.errors / self.accepted

    def describe_errors(self) -> str:
        """Return what is known about errors among the accepted images, in words."""
        if self.reviewed is not None and self.estimated_risk is not None:
            rate = 100 * self.estimated_risk
            return f"{self.reviewed:,} of them reviewed, which suggest {rate:.2g} % errors"
        return "no labels" if self.errors is None else f"{self.errors:,} of them wrong"


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
    group: str | None = None
    """The group that comes closest to the guarantee, if each needs one; all else is about it."""

    def __str__(self) -> str:
        where = "" if self.group is None else f"in {self.group!r}, "
        return (
            f"no threshold guarantees {self.requested}; {where}{self._describe_needed()}; {self._describe_reachable()}"
        )

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
        images = "labeled images" if self.group is None else "labeled images of it"
        return f"{seen}roughly {self.additional_images:,} more {images} are needed if {rate}"

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


@dataclass(frozen=True)
class GroupThreshold:
    """The threshold of one group of images, and the counts on the images of the group that it was chosen on."""

    name: str
    """Name of the class, or the label of the group as text."""
    value: object
    """What identifies the group: the index of the class, or the label."""
    risk: float
    """Largest error rate among accepted images of the group."""
    threshold: float
    """Smallest confidence that is accepted; infinite if nothing can be guaranteed, and nothing is accepted."""
    images: int
    accepted: int
    errors: int
    """Errors among the accepted images."""
    additional_images: int | None = None
    """Where nothing is accepted, the rough number of additional labeled images of the group that are enough."""

    @property
    def coverage(self) -> float:
        """Fraction of the images of the group that were accepted; 0 if there are none."""
        return self.accepted / self.images if self.images else 0.0


class ComparedMethod(FrozenRecord):
    """A method that was certified together with others, of which the one with the largest coverage was chosen."""

    method: str
    """As it was given, with its options."""
    threshold: float | None
    """The smallest one, if there are groups; None if nothing could be certified."""
    coverage: float = Field(ge=0, le=1)
    """Fraction of the calibration images that the method accepts."""
    chosen: bool


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
        Smallest confidence that is accepted, in any group if there are groups; infinite if nothing is accepted.
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
    grouped_by, groups
        Whether every predicted class, or every group, has a threshold of its own, and these thresholds; the classes in
        the order of the classifier's outputs.
    compared
        The methods that were certified together, of which this is the best.
    reference
        How the images that the threshold was chosen on looked, which monitoring compares new images with.
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
    grouped_by: GroupedBy | None = None
    groups: tuple[GroupThreshold, ...] = ()
    compared: tuple[ComparedMethod, ...] = ()
    reference: Reference | None = field(default=None, repr=False)

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

    def accept(self, confidence: ArrayLike, groups: ArrayLike | None = None) -> BoolArray:
        """Return whether each prediction is accepted. float [N] -> bool [N]

        A rule with thresholds for groups needs to know the `groups`: the predicted class of each image, int [N], if it
        was certified with groups="class", and otherwise labels as they were certified, [N].
        """
        values = as_array(confidence, "confidence", DecisionError)
        if values.dtype.kind not in "fiu":
            raise DecisionError(f"confidence has dtype {values.dtype}, expected real numbers; convert it to float64.")
        values = values.astype(np.float64, copy=False)
        if np.isnan(values).any():
            index = int(np.flatnonzero(np.isnan(values))[0])
            raise DecisionError(f"confidence is NaN at index {index}, expected a number; fix or remove this image.")
        accepted: BoolArray = values >= self.find_thresholds(values.shape, groups)
        return accepted

    def find_thresholds(self, shape: tuple[int, ...], groups: ArrayLike | None) -> Float64Array | float:
        """Return the threshold of each image, float64 [N], or that of all; `groups` are those of `accept`."""
        if self.grouped_by is None:
            if groups is not None:
                raise DecisionError("the rule has one threshold for all images, so it takes no groups=; omit it.")
            return self.threshold
        known = "the predicted class" if self.grouped_by == "class" else "the label of the group"
        if groups is None:
            raise DecisionError(
                f"the rule has a threshold for each {GROUP_NOUNS[self.grouped_by]}; pass groups= with {known} of each "
                "image."
            )
        values = as_array(groups, "groups", DecisionError)
        if values.shape != shape:
            raise DecisionError(f"groups has shape {values.shape} for confidences {shape}; expected {known} of each.")
        by_value = {group.value: group.threshold for group in self.groups}
        for value in dict.fromkeys(values.ravel().tolist()):
            if value not in by_value:
                index = int(np.flatnonzero(values == value)[0])
                names = [str(one) for one in by_value]
                raise DecisionError(
                    f"groups is {value!r} at index {index}, a group that the rule has no threshold for; known groups: "
                    f"{join_names(names)}.{did_you_mean(str(value), names)}"
                )
        return np.array([by_value[value] for value in values.ravel().tolist()], dtype=np.float64).reshape(shape)

    def accept_images(self, preds: Predictions, confidence: ArrayLike) -> BoolArray:
        """Return whether each image is accepted, given its confidence and its predicted class in `preds`. -> bool [N]

        With top_k > 1, the class that a threshold belongs to is the first of the k.
        """
        if self.grouped_by != "class":
            return self.accept(confidence)
        if preds.n_classes != len(self.groups):
            raise DecisionError(
                f"the rule has thresholds for {len(self.groups)} classes, but the classifier has {preds.n_classes}; "
                "use the classifier that it was certified for, or certify again."
            )
        return self.accept(confidence, find_first_classes(preds, self.predict_from, self.top_k))

    def __str__(self) -> str:
        return self.describe(str(self.guarantee or "none"))

    def describe(self, guarantee: str) -> str:
        """Return the rule in words, with what is known about its guarantee."""
        if self.shortfall is not None:
            lines = [f"accept nothing: {self.shortfall}"]
        else:
            lines = [self.describe_threshold(), f"guarantee: {guarantee}"]
        if len(self.compared) > 1:
            lines.append(
                f"method: the best of {len(self.compared)}, which share delta equally, so that the guarantee holds for "
                "whichever is chosen"
            )
        if self.calibration is not None:
            lines += _format_calibration(self.calibration, self.schedule)
        return "\n".join([*lines, *(str(table) for table in self.list_tables())])

    def describe_threshold(self) -> str:
        """Return what is accepted, in words."""
        if self.grouped_by is None:
            return f"accept where {self.method} >= {self.threshold:.6g}"
        return f"accept where {self.method} >= the threshold of the {GROUP_NOUNS[self.grouped_by]}"

    def list_tables(self) -> list[TextTable]:
        """Return the thresholds of groups, the methods that were compared, and the limits of a schedule, if any."""
        tables = [self.make_group_table()] if self.groups else []
        if len(self.compared) > 1:
            tables.append(self.make_method_table())
        if self.schedule is not None and math.isfinite(self.threshold):
            tables.append(self.schedule.make_table(self.threshold))
        return tables

    def make_group_table(self) -> TextTable:
        """Return a line for each group, or for those with the smallest coverage if there are many."""
        shown, more = self.groups, len(self.groups) - MAX_LISTED_GROUPS
        if more > 0:
            shown = tuple(sorted(shown, key=lambda group: group.coverage)[:MAX_LISTED_GROUPS])
        rows: list[tuple[str, ...]] = [
            (
                "class" if self.grouped_by == "class" else "group",
                "risk",
                "threshold",
                "images",
                "accepted",
                "wrong",
                "coverage",
                "",
            )
        ]
        rows += [_format_group(group) for group in shown]
        if more > 0:
            rows.append((f"and {more:,} with a larger coverage", *[""] * 7))
        return TextTable(rows, numbers=True)

    def make_method_table(self) -> TextTable:
        """Return a line for each of the methods that were certified together."""
        rows = [("method", "threshold", "coverage", "")]
        for one in self.compared:
            threshold = "none" if one.threshold is None else f"{one.threshold:.6g}"
            rows.append((one.method, threshold, f"{100 * one.coverage:.2f} %", "chosen" if one.chosen else ""))
        return TextTable(rows, numbers=True)

    def _repr_html_(self) -> str:
        return format_html([self])


def join_names(names: Sequence[str]) -> str:
    """Return names of groups for a message, the first of many only."""
    return ", ".join([*names[:MAX_LISTED_GROUPS], *(["..."] if len(names) > MAX_LISTED_GROUPS else [])])


def find_first_classes(preds: Predictions, predict_from: PredictFrom, top_k: int) -> IntArray:
    """Return the predicted class of each image, the first of the top k. int64 [N]"""
    return preds.predicted(predict_from, top_k).reshape(preds.n_images, -1)[:, 0]


def _format_group(group: GroupThreshold) -> tuple[str, ...]:
    threshold, note = f"{group.threshold:.6g}", ""
    if not math.isfinite(group.threshold):
        needed = group.additional_images
        threshold, note = "none", "more would not help" if needed is None else f"needs {needed:,} more"
    counts = (f"{count:,}" for count in (group.images, group.accepted, group.errors))
    return (group.name, f"{100 * group.risk:g} %", threshold, *counts, f"{100 * group.coverage:.1f} %", note)


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
    lines = [f"calibration: {accepted}, {calibration.describe_errors()}"]
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
