"""What is guaranteed about accepted images, the counts it was certified on, and what a shortfall would need."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from secondlook.arrays import is_number
from secondlook.errors import DecisionError, Repair
from secondlook.files import Count, FrozenRecord

DEFAULT_DELTA = 0.001
"""Failure probability of a guarantee by default: 99.9 % confidence."""
MAX_DELTA = 0.5
"""Larger ones are confidence levels given by mistake."""

GroupedBy = Literal["class", "label"]
"""What the groups of a policy are: the predicted classes, or groups given by a label for each image."""
GROUP_NOUNS = {"class": "predicted class", "classes": "group of predicted classes", "label": "group"}

Probability = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def check_probability(name: Literal["risk", "average_risk", "delta"], value: float, where: str = "") -> None:
    """Raise an error unless a risk is between 0 and 1, or a delta between 0 and 0.5."""
    if not is_number(value) or not 0 < value < 1:
        example = "0.001 for 99.9 % confidence" if name == "delta" else "0.01 for 1 % errors"
        fault = f"{where}is invalid; expected a number between 0 and 1, such as {example}"
        raise DecisionError(fault, argument=name, value=value)
    if name == "delta" and value > MAX_DELTA:
        fault = f"is the probability that the guarantee fails; expected at most {MAX_DELTA}"
        repair = Repair(f"for {100 * value:g} % confidence pass {{delta}}", delta=float(f"{1 - value:.6g}"))
        raise DecisionError(fault, argument=name, value=value, repair=repair)


class Guarantee(FrozenRecord):
    """At most `risk` of the accepted images are wrong, with probability 1 - `delta` over the draw of labeled images."""

    risk: Probability
    """With groups, the largest risk of any of them."""
    delta: Probability
    grouped_by: GroupedBy | Literal["classes"] | None = None
    """Whether the guarantee holds in every predicted class, every group of predicted classes, or every group of images,
    jointly; None if only for all images."""
    smallest_risk: Probability | None = None
    """The smallest risk of any group, if groups have different ones."""

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
    """Counts on the images that a threshold was chosen on."""

    images: Annotated[Count, Field(gt=0)]
    accepted: Count
    errors: Count | None = None
    """Errors among the accepted images; None without labels."""
    duplicates: Count = 0
    """Correct copies of other images, which were left out; `images` does not include them. Wrong copies count."""
    joint_delta: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability that any guarantee calibrated on these images fails; None if there is no other, or it is unknown."""
    tuning: Count = 0
    """Images set apart to choose views or to fit the method or the schedule; `images` does not include them."""
    labels: Count | None = None
    """Images with a label, the most confident ones; those without one count as wrong. None if all have one."""
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
    """Error rate among accepted images as the reviewed ones suggest, weighted for how they were drawn."""
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
        """Return what is known about errors among the accepted images, in words."""
        if self.reviewed is not None and self.estimated_risk is not None:
            rate = 100 * self.estimated_risk
            return f"{self.reviewed:,} of them reviewed, which suggest {rate:.2g} % errors"
        return "no labels" if self.errors is None else f"{self.errors:,} of them wrong"


class Shortfall(FrozenRecord):
    """A guarantee that could not be given, and what would be needed for it.

    Risk and delta were found on the labeled images: they help to plan a calibration on others, and guarantee nothing.
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
    groups: Count = 0
    """Number of groups."""
    images_needed: Count = 0
    """Labeled images without an error that each group needs at least if all of them are to have a guarantee."""
    median_images: Count = 0
    """Median number of labeled images of a group."""

    def __str__(self) -> str:
        where, place = "", "at the threshold that comes closest"
        if self.group is not None:
            each = f"at least {self.images_needed:,} images of each without an error (the median is"
            where = f"a guarantee in all {self.groups:,} takes {each} {self.median_images:,}); "
            place = f"in {self.group!r}, which comes closest"
        seen, rate = "", "error rates stay as observed"
        if self.closest is not None:
            counts = f"{self.closest.errors:,} of {self.closest.accepted:,} accepted images are wrong"
            seen, rate = f"{place}, {counts}, so ", "this error rate holds"
        needed = "more images like these would not help, whatever their number"
        if self.additional_images is not None:
            images = "labeled images" if self.group is None else "labeled images of it"
            needed = f"roughly {self.additional_images:,} more {images} are needed if {rate}"
        repair = "improve the classifier, or plan a calibration on other images with a larger risk or delta"
        if self.requested.grouped_by == "class":
            repair += ", or with rare classes that share a threshold"
        risks = [] if self.smallest_risk is None else [f"a risk of {100 * self.smallest_risk:.4g} %"]
        deltas = [] if self.larger_delta is None else [f"a delta of {self.larger_delta:.4g}"]
        if risks or deltas:
            passing = "would pass" if self.group is None else "would pass in one of them"
            repair += f"; {' or '.join(risks + deltas)} {passing} on these images, which guarantees nothing"
        return f"no threshold guarantees {self.requested}; {where}{seen}{needed}; {repair}"


class GroupThreshold(FrozenRecord):
    """The threshold of one group of images, and the counts on the images of the group that it was chosen on."""

    name: str
    """Name of the class, or the label of the group as text."""
    value: Any
    """What identifies the group: the index of the class, or the label."""
    risk: Probability
    """Largest error rate among accepted images of the group."""
    threshold: Annotated[float, Field(allow_inf_nan=True), BeforeValidator(lambda x: math.inf if x is None else x)]
    """Smallest confidence that is accepted; infinite (null in JSON) if nothing can be guaranteed."""
    images: Count
    accepted: Count
    errors: Count
    """Errors among the accepted images."""
    additional_images: Count | None = None
    """Where nothing is accepted, the rough number of additional labeled images of the group that are enough."""
    shared_by: str | None = None
    """Name of the group of classes that share this threshold, which is guaranteed for all of them together; the counts
    are those of the class. None if it has a threshold of its own."""

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
    """A method that was certified together with others, of which the one with the largest coverage was chosen."""

    method: str
    """As it was given, with its options."""
    threshold: float | None
    """The smallest one, if there are groups; None if nothing could be certified."""
    coverage: Fraction
    """Fraction of the calibration images that the method accepts."""
    chosen: bool
