"""A policy file: everything needed to decide about new images as was decided when it was made."""

import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, Self

from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from secondlook.arrays import BoolArray
from secondlook.errors import DecisionError, SecondLookError
from secondlook.files import describe_invalid
from secondlook.registry import did_you_mean
from secondlook.selective.rule import Calibration, Guarantee, Rule

Option = str | int | float | bool | None
INSISTING = "allow_mismatch=True (--allow-mismatch)"


class Describable(Protocol):
    """What a policy keeps of a classifier: a `Classifier`, or the record of one in a store of predictions."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102
    @property
    def output(self) -> Literal["logits", "probabilities"]: ...  # noqa: D102
    @property
    def preprocessing(self) -> object: ...  # noqa: D102


class Record(BaseModel):
    """A part of a policy: nothing missing, nothing unknown, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PolicyClassifier(Record):
    """Which classifier the policy is for, and how images become its input."""

    name: str
    digest: str
    output: Literal["logits", "probabilities"]
    preprocessing: dict[str, object]


class PolicyGuarantee(Record):
    """What is guaranteed about accepted images, or that nothing is."""

    certified: bool
    risk: float | None = Field(default=None, gt=0, lt=1)
    delta: float | None = Field(default=None, gt=0, lt=1)
    text: str

    @model_validator(mode="after")
    def _says_what_it_guarantees(self) -> Self:
        if self.certified == (self.risk is None) or self.certified == (self.delta is None):
            raise ValueError("a certified guarantee needs risk and delta, and no other has them")
        return self


class PolicyCalibration(Record):
    """The images the threshold was chosen on, and what was seen on them."""

    data: str
    digest: str
    images: int = Field(gt=0)
    accepted: int = Field(ge=0)
    errors: int | None = Field(default=None, ge=0)


class Policy(Record):
    """A rule with the classifier, the views and the calibration data it belongs to."""

    format: Literal["secondlook policy"] = "secondlook policy"
    version: Literal[1] = 1
    made: str
    secondlook: str
    classifier: PolicyClassifier
    views: tuple[str, ...]
    method: str
    options: dict[str, Option] = {}
    predict_from: Literal["image", "views"] = "image"
    top_k: int = Field(default=1, gt=0)
    threshold: float
    guarantee: PolicyGuarantee
    calibration: PolicyCalibration | None = None
    class_names: tuple[str, ...] | None = None
    """What the classes are called, in the order of the classifier's outputs, where that is known."""

    @field_validator("views")
    @classmethod
    def _views_can_be_read(cls, views: tuple[str, ...]) -> tuple[str, ...]:
        from secondlook.views import ViewSet

        if views[:1] != ("identity",):
            raise ValueError(f"expected a list of views that begins with 'identity', got {list(views)}")
        try:
            return ViewSet(list(views)).texts
        except SecondLookError as error:
            raise ValueError(str(error)) from None

    @field_validator("method")
    @classmethod
    def _method_is_known(cls, method: str) -> str:
        from secondlook.estimators import METHODS

        name = method.partition(":")[0]
        if name not in METHODS:
            raise ValueError(f"unknown confidence {method!r}.{did_you_mean(name, METHODS)}")
        return method

    @classmethod
    def of(
        cls,
        rule: Rule,
        *,
        classifier: Describable,
        views: tuple[str, ...],
        data: str = "",
        data_digest: str = "",
        class_names: tuple[str, ...] | None = None,
        made: str | None = None,
    ) -> Self:
        """Make the policy of a rule. `data` and its digest say what the threshold was chosen on."""
        import secondlook

        if not math.isfinite(rule.threshold):
            raise DecisionError(f"a policy needs a finite threshold, got {rule.threshold}: {rule}.")
        try:
            return cls(
                made=made or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                secondlook=secondlook.__version__,
                classifier=describe_classifier(classifier),
                views=views,
                method=rule.method,
                options=_plain_options(rule),
                predict_from=rule.predict_from,
                top_k=rule.top_k,
                threshold=rule.threshold,
                guarantee=_guarantee(rule.guarantee),
                calibration=_calibration(rule.calibration, data, data_digest),
                class_names=class_names,
            )
        except ValidationError as error:
            raise DecisionError(f"no policy can be made of this rule, {describe_invalid(error)}.") from None

    @property
    def rule(self) -> Rule:
        """The rule to decide by."""
        guaranteed, seen = self.guarantee, self.calibration
        guarantee = Guarantee(guaranteed.risk, guaranteed.delta) if guaranteed.risk and guaranteed.delta else None
        calibration = Calibration(seen.images, seen.accepted, seen.errors) if seen else None
        return Rule(
            self.threshold, self.method, self.predict_from, self.top_k, dict(self.options), guarantee, calibration
        )

    def accept(self, confidence: ArrayLike) -> BoolArray:
        """Return whether each answer is accepted. float [N] -> bool [N]"""
        return self.rule.accept(confidence)

    def check(self, classifier: Describable) -> None:
        """Refuse a classifier, or preprocessing, that the threshold was not chosen for."""
        mine, theirs = self.classifier, describe_classifier(classifier)
        if not theirs.digest:
            raise DecisionError(
                f"classifier {theirs.name!r} has no name to recognize it by, but the policy is for {mine.name!r}; "
                f"load it with name=, or say that it is the same with {INSISTING}."
            )
        if theirs.digest != mine.digest:
            raise DecisionError(
                f"the policy is for classifier {mine.name!r} (digest {mine.digest[:12]}), got {theirs.name!r} (digest "
                f"{theirs.digest[:12]}); calibrate again, or lose the guarantee with {INSISTING}."
            )
        if theirs.output != mine.output:
            raise DecisionError(
                f"the policy is for a classifier that gives {mine.output}, but {theirs.name!r} gives {theirs.output}; "
                f"load it with output={mine.output!r}, or insist with {INSISTING}."
            )
        _check_settings(mine.preprocessing, theirs.preprocessing)

    def save(self, path: str | Path) -> None:
        """Write the policy as JSON, whole or not at all."""
        from secondlook.files import write_atomically

        text = self.model_dump_json(indent=2).encode() + b"\n"
        write_atomically(Path(path), lambda file: file.write(text))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a policy and check all of it."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except OSError as error:
            raise DecisionError(f"the policy {str(path)!r} cannot be read: {error.strerror}; check the path.") from None
        except ValidationError as error:
            raise DecisionError(
                f"the policy {str(path)!r} cannot be used, {describe_invalid(error)}; calibrate again, "
                "or use the version of secondlook that wrote it."
            ) from None

    def __str__(self) -> str:
        return f"{self.rule}\nfor {self.classifier.name}, {len(self.views)} views, made {self.made}"


def describe_classifier(classifier: Describable) -> PolicyClassifier:
    """Return what a policy keeps of a classifier."""
    settings = classifier.preprocessing
    to_dict = getattr(settings, "to_dict", None)
    return PolicyClassifier.model_validate(
        {
            "name": classifier.name,
            "digest": classifier.digest,
            "output": classifier.output,
            "preprocessing": settings if to_dict is None else to_dict(),
        }
    )


def _check_settings(mine: Mapping[str, object], theirs: Mapping[str, object]) -> None:
    for setting in sorted({*mine, *theirs}):
        if mine.get(setting) != theirs.get(setting):
            raise DecisionError(
                f"the policy was made with preprocessing {setting}={mine.get(setting)}, but the classifier has "
                f"{setting}={theirs.get(setting)}; load it with the former, or insist with {INSISTING}."
            )


def _plain_options(rule: Rule) -> dict[str, Option]:
    plain: dict[str, Option] = {}
    for name, value in rule.options.items():
        if not isinstance(value, str | int | float | bool | None):
            raise DecisionError(
                f"option {name}= of confidence {rule.method!r} is a {type(value).__name__}, which belongs to the "
                "images at hand; a policy holds texts and numbers only: choose a method that needs no such option."
            )
        plain[name] = value
    return plain


def _guarantee(guarantee: Guarantee | None) -> PolicyGuarantee:
    if guarantee is None:
        return PolicyGuarantee(certified=False, text="none")
    return PolicyGuarantee(certified=True, risk=guarantee.risk, delta=guarantee.delta, text=str(guarantee))


def _calibration(seen: Calibration | None, data: str, digest: str) -> PolicyCalibration | None:
    if seen is None:
        return None
    return PolicyCalibration(data=data, digest=digest, images=seen.images, accepted=seen.accepted, errors=seen.errors)
