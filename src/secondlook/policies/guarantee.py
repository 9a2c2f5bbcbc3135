"""Guarantees about accepted images, the counts behind them, and the shortfall if there is no guarantee."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from secondlook.arrays import is_number
from secondlook.errors import DecisionError, Repair
from secondlook.files import Count, FrozenRecord

DEFAULT_DELTA = 0.001
"""Default failure probability of a guarantee: 99.9 % confidence."""
MAX_DELTA = 0.5
"""Larger values are probably confidence levels, passed by mistake."""

GroupedBy = Literal["class", "label"]
"""Kinds of groups: the predicted classes, groups of predicted classes, or one label per image."""
GROUP_NOUNS = {"class": "predicted class", "classes": "group of predicted classes", "label": "group"}

Probability = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Guarantee(FrozenRecord):
    """At most `risk` of the accepted images are wrong, with probability 1 - `delta` over the draw of labeled images."""

    risk: Probability
    """Largest error rate; with groups, the largest of their risks."""
    delta: Probability
    grouped_by: GroupedBy | Literal["classes"] | None = None
    """Whether the guarantee holds in every predicted class, every group of predicted classes, or every group of images,
    jointly; None if only for all images."""
    smallest_risk: Probability | None = None
    """The smallest risk of any group, if groups have different ones."""

    @staticmethod
    def check(name: Literal["risk", "average_risk", "delta"], value: float, where: str = "") -> None:
        """Raise an error unless a risk is between 0 and 1, or a delta between 0 and 0.5."""
        if not is_number(value) or not 0 < value < 1:
            example = "0.001 for 99.9 % confidence" if name == "delta" else "0.01 for 1 % errors"
            fault = f"{where}is invalid; expected a number between 0 and 1, such as {example}"
            raise DecisionError(fault, argument=name, value=value)
        if name == "delta" and value > MAX_DELTA:
            fault = f"is the probability that the guarantee fails; expected at most {MAX_DELTA}"
            repair = Repair(f"for {100 * value:g} % confidence pass {{delta}}", delta=float(f"{1 - value:.6g}"))
            raise DecisionError(fault, argument=name, value=value, repair=repair)

    def __str__(self) -> str:
        risk = f"{100 * self.risk:g} % errors"
        if self.smallest_risk is not None:
            risk = f"its risk ({100 * self.smallest_risk:g} % to {100 * self.risk:g} %) of errors"
        where = "" if self.grouped_by is None else f" in every {GROUP_NOUNS[self.grouped_by]}, jointly"
        return (
            f"at most {risk} among accepted images{where} with {100 * (1 - self.delta):g} % confidence, "
            "for images from the same distribution as the labeled ones"
        )


class Calibration(FrozenRecord):
    """Counts on the calibration images."""

    images: Annotated[Count, Field(gt=0)]
    accepted: Count
    errors: Count | None = None
    """Errors among the accepted images; None without labels."""
    duplicates: Count = 0
    """Correct copies of other images, excluded from `images`; wrong copies are included."""
    joint_delta: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability that any guarantee calibrated on these images fails; None for a single one, or if unknown."""
    tuning: Count = 0
    """Images set apart to choose views or to fit the method or the schedule, excluded from `images`."""
    labels: Count | None = None
    """Number of labels, for the most confident images; the others count as wrong. None if all have labels."""
    mean_looks: Annotated[float, Field(ge=1)] | None = None
    """Mean number of looks; None if every image has all looks."""
    differing: Count | None = None
    """Images whose decision differs from that with all looks; None if every image has all looks."""
    differing_bound: Fraction | None = None
    """Upper bound on the fraction of images whose decision differs from that with all looks."""
    differing_delta: Probability | None = None
    """Failure probability of this bound."""
    reviewed: Count | None = None
    """Number of accepted images that were drawn and reviewed; None if all were labeled."""
    estimated_risk: Fraction | None = None
    """Error rate among accepted images, estimated from reviewed ones, weighted by their sampling probability."""
    reviewer_error: Fraction = 0.0
    """The guarantee is valid if each reviewer errs with a probability of at most this."""
    data: str = ""
    """Spec of the images."""
    digest: str = ""
    """Digest of the images."""

    @model_validator(mode="after")
    def _check_looks(self) -> Self:
        looks = (self.mean_looks, self.differing, self.differing_bound, self.differing_delta)
        if len({value is None for value in looks}) > 1:
            raise ValueError("expected all of mean_looks, differing, differing_bound and differing_delta, or none")
        return self

    @property
    def coverage(self) -> float:
        """Fraction of the images that were accepted."""
        return self.accepted / self.images

    def describe_errors(self) -> str:
        """Describe what is known about errors among the accepted images."""
        if self.reviewed is not None and self.estimated_risk is not None:
            rate = 100 * self.estimated_risk
            valid = f", valid for reviewer errors up to {100 * self.reviewer_error:g} %" if self.reviewer_error else ""
            return f"{self.reviewed:,} of them reviewed, estimated {rate:.2g} % errors{valid}"
        return "no labels" if self.errors is None else f"{self.errors:,} of them wrong"


class Shortfall(FrozenRecord):
    """A guarantee that could not be given, and its requirements.

    Risk and delta were found on the labeled images: they help to plan another calibration, but guarantee nothing.
    """

    requested: Guarantee
    smallest_risk: float | None
    """A larger risk that passes on these images with the same `delta`; None if there is none."""
    additional_images: int | None
    """Rough number of additional labeled images needed if error rates stay as observed; None if none are enough."""
    larger_delta: float | None = None
    """A larger delta that passes on these images with the same `risk`; None if there is none up to 0.1."""
    closest: Calibration | None = None
    """Counts at the threshold closest to the guarantee, the basis of `additional_images`."""
    group: str | None = None
    """The group closest to the guarantee, if each group needs one; the other fields describe it."""
    groups: Count = 0
    """Number of groups."""
    images_needed: Count = 0
    """Smallest number of labeled images per group, without an error, for a guarantee in all groups."""
    median_images: Count = 0
    """Median number of labeled images of a group."""

    def __str__(self) -> str:
        where, place = "", "at the threshold that comes closest"
        if self.group is not None:
            each = f"at least {self.images_needed:,} images of each without an error (the median is"
            where = f"a guarantee in all {self.groups:,} needs {each} {self.median_images:,}); "
            place = f"in {self.group!r}, which comes closest"
        seen, rate = "", "error rates stay as observed"
        if self.closest is not None:
            counts = f"{self.closest.errors:,} of {self.closest.accepted:,} accepted images are wrong"
            seen, rate = f"{place}, {counts}, so ", "this error rate holds"
        needed = "additional images like these would not help"
        if self.additional_images is not None:
            images = "labeled images" if self.group is None else "labeled images of this group"
            needed = f"roughly {self.additional_images:,} more {images} are needed if {rate}"
        repair = "improve the classifier, or plan a calibration on other images with a larger risk or delta"
        if self.requested.grouped_by == "class":
            repair += ", or with rare classes that share a threshold"
        risks = [] if self.smallest_risk is None else [f"a risk of {100 * self.smallest_risk:.4g} %"]
        deltas = [] if self.larger_delta is None else [f"a delta of {self.larger_delta:.4g}"]
        if risks or deltas:
            passing = "would pass" if self.group is None else "would pass in one group"
            repair += f"; {' or '.join(risks + deltas)} {passing} on these images, which guarantees nothing"
        return f"no threshold guarantees {self.requested}; {where}{seen}{needed}; {repair}"


class GroupThreshold(FrozenRecord):
    """The threshold of one group of images, and the counts on its calibration images."""

    name: str
    """Name of the class, or the label of the group as text."""
    value: Any
    """Identifier of the group: the index of the class, or the label."""
    risk: Probability
    """Largest error rate among accepted images of the group."""
    threshold: Annotated[float, Field(allow_inf_nan=True), BeforeValidator(lambda x: math.inf if x is None else x)]
    """Smallest accepted confidence; infinite (null in JSON) if nothing can be guaranteed."""
    images: Count
    accepted: Count
    errors: Count
    """Errors among the accepted images."""
    additional_images: Count | None = None
    """If nothing is accepted, the rough number of additional labeled images that the group needs."""
    shared_by: str | None = None
    """Name of the group that shares this threshold and its guarantee, or None; the counts are those of the class."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if not self.errors <= self.accepted <= self.images:
            raise ValueError(f"expected errors <= accepted <= images in {self.name!r}")
        if math.isfinite(self.threshold) != (self.accepted > 0) and (self.shared_by is None or self.accepted):
            raise ValueError(f"expected a threshold if, and only if, images of {self.name!r} are accepted")
        return self

    @property
    def coverage(self) -> float:
        """Fraction of the images of the group that were accepted; 0 if there are none."""
        return self.accepted / self.images if self.images else 0.0


class ComparedMethod(FrozenRecord):
    """One of several methods that were certified together; the one with the largest coverage was chosen."""

    method: str
    """The method as given, with its options."""
    threshold: float | None
    """The threshold; with groups, the smallest one; None if nothing could be certified."""
    coverage: Fraction
    """Fraction of the calibration images that the method accepts."""
    chosen: bool
