"""Policy files: a rule together with the classifier and the views it belongs to, stored as JSON with a checksum.

A file that `export_onnx` wrote has the same JSON in its metadata.
"""

import datetime
import itertools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol, Self

from numpy.typing import ArrayLike
from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from secondlook import __version__
from secondlook.arrays import BoolArray, Output
from secondlook.classifiers import OnnxFile, Preprocessing
from secondlook.errors import ClassifierError, DecisionError, SecondLookError, ViewError
from secondlook.estimators import find_method
from secondlook.evaluation import format_class
from secondlook.files import Count, FrozenRecord, compute_checksum, describe_invalid, write_bytes_atomically
from secondlook.policies.reference import Reference
from secondlook.policies.rule import Calibration, ComparedMethod, GroupThreshold, Guarantee, Rule
from secondlook.policies.schedule import Schedule
from secondlook.policies.schedule_fit import check_adaptive_method
from secondlook.policies.shift_model import ShiftModel
from secondlook.predictions import PredictFrom
from secondlook.registry import did_you_mean
from secondlook.tables import format_html
from secondlook.views import View, ViewSet

OptionValue = str | int | float | bool | None

VERSION_1_KEYS = {"by": "predict_from", "k": "top_k", "promise": "guarantee"}
"""Keys of version 1 files that were renamed in version 2."""
VERSION_1_PREDICT_FROM = {"x": "image", "D": "views"}

OLDER_VERSIONS = (1, 2, 3, 4, 5)
VERSIONS_WITHOUT_CHECKSUM = (1, 2)

POLICY_METADATA = "secondlook.policy"
"""Key of the metadata of an exported ONNX file that has the policy as JSON."""

LOST_GUARANTEE = "none, since the policy was changed after it was written"
UNGUARANTEED = "pass allow_mismatch=True to use it without the guarantee"


class PolicyWarning(UserWarning):
    """A policy that was changed after it was written, so that its guarantee is lost."""


class Describable(Protocol):
    """The attributes of a classifier that a policy stores: a `Classifier`, or the record of one in a store."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102
    @property
    def output(self) -> Output: ...  # noqa: D102
    @property
    def preprocessing(self) -> object: ...  # noqa: D102


class Mismatch(NamedTuple):
    """Why a classifier is not the one of a policy, and how to repair it."""

    reason: str
    repair: str


class PolicyClassifier(FrozenRecord):
    """The classifier of a policy: its name, digest, kind of output and preprocessing."""

    name: str
    digest: str
    output: Output
    preprocessing: dict[str, object]


class PolicyGuarantee(FrozenRecord):
    """The guarantee of a policy, if it has one."""

    certified: bool
    risk: float | None = Field(default=None, gt=0, lt=1)
    delta: float | None = Field(default=None, gt=0, lt=1)
    text: str

    @model_validator(mode="after")
    def _check_certified(self) -> Self:
        if self.certified == (self.risk is None) or self.certified == (self.delta is None):
            raise ValueError("expected risk and delta if, and only if, certified is true")
        return self


class PolicyCalibration(FrozenRecord):
    """The images that the threshold was chosen on, and the counts on them."""

    data: str
    digest: str
    images: int = Field(gt=0)
    accepted: int = Field(ge=0)
    errors: int | None = Field(default=None, ge=0)
    duplicates: int = Field(default=0, ge=0)
    joint_delta: float | None = Field(default=None, gt=0, le=1)
    tuning: int = Field(default=0, ge=0)
    mean_looks: float | None = Field(default=None, ge=1)
    differing: int | None = Field(default=None, ge=0)
    differing_bound: float | None = Field(default=None, ge=0, le=1)
    differing_delta: float | None = Field(default=None, gt=0, lt=1)
    reviewed: int | None = Field(default=None, ge=0)
    estimated_risk: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="after")
    def _check_looks(self) -> Self:
        looks = (self.mean_looks, self.differing, self.differing_bound, self.differing_delta)
        if len({value is None for value in looks}) > 1:
            raise ValueError("expected all of mean_looks, differing, differing_bound and differing_delta, or none")
        return self


class PolicyClasses(FrozenRecord):
    """The threshold of each class and the counts on the images predicted as it, in the order of the outputs."""

    thresholds: tuple[float | None, ...]
    """None where nothing can be guaranteed, and nothing is accepted."""
    risks: tuple[Annotated[float, Field(gt=0, lt=1)], ...]
    images: tuple[Count, ...]
    accepted: tuple[Count, ...]
    errors: tuple[Count, ...]
    """Errors among the accepted images."""
    additional_images: tuple[Count | None, ...]
    """Rough number of additional images that are enough where nothing is accepted."""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in type(self).model_fields}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"expected one value per class in each list, got {lengths}")
        if all(threshold is None for threshold in self.thresholds):
            raise ValueError("expected a threshold for at least one class")
        for index, threshold in enumerate(self.thresholds):
            if not self.errors[index] <= self.accepted[index] <= self.images[index]:
                raise ValueError(
                    f"expected no more errors than accepted images, and no more of them than images of class {index}"
                )
            if (threshold is None) != (self.accepted[index] == 0):
                raise ValueError(f"expected a threshold if, and only if, images of class {index} are accepted")
        return self

    @property
    def threshold(self) -> float:
        """The smallest threshold of any class."""
        return min(threshold for threshold in self.thresholds if threshold is not None)

    @classmethod
    def from_groups(cls, groups: Sequence[GroupThreshold]) -> Self:
        """Return the record of the thresholds of all classes."""
        return cls(
            thresholds=tuple(group.threshold if math.isfinite(group.threshold) else None for group in groups),
            risks=tuple(group.risk for group in groups),
            images=tuple(group.images for group in groups),
            accepted=tuple(group.accepted for group in groups),
            errors=tuple(group.errors for group in groups),
            additional_images=tuple(group.additional_images for group in groups),
        )

    def to_groups(self, class_names: tuple[str, ...] | None) -> tuple[GroupThreshold, ...]:
        """Return the thresholds of all classes as those of groups."""
        columns = (self.risks, self.thresholds, self.images, self.accepted, self.errors, self.additional_images)
        return tuple(
            GroupThreshold(
                format_class(class_names, index), index, risk, math.inf if threshold is None else threshold, *counts
            )
            for index, (risk, threshold, *counts) in enumerate(zip(*columns, strict=True))
        )

    def guarantee(self, delta: float) -> Guarantee:
        """Return what is guaranteed about all classes."""
        return Guarantee.of_groups("class", self.risks, delta)


class Policy(FrozenRecord):
    """A rule together with the classifier, the views and the calibration images it belongs to.

    Make one with `Policy.from_rule`, store it with `save`, read it with `Policy.load`. Files of versions 1 to 5 can be
    read. A stored policy has a checksum; one that was changed since has no guarantee.
    """

    format: Literal["secondlook policy"] = "secondlook policy"
    version: Literal[6] = 6
    made: str
    secondlook: str
    classifier: PolicyClassifier
    views: tuple[str, ...]
    method: str
    options: dict[str, OptionValue] = Field(default_factory=dict)
    predict_from: PredictFrom = "image"
    top_k: int = Field(default=1, gt=0)
    threshold: float
    """Smallest confidence that is accepted; with thresholds for classes, the smallest one of all."""
    guarantee: PolicyGuarantee
    calibration: PolicyCalibration | None = None
    class_names: tuple[str, ...] | None = None
    """Names of the classes in the order of the classifier's outputs; None if unknown."""
    schedule: Schedule | None = None
    """When to stop looking; `views` are in the order of looks then. None if every image has all looks."""
    classes: PolicyClasses | None = None
    """The threshold of each predicted class; None if all have the same."""
    compared: tuple[ComparedMethod, ...] = ()
    """The methods that were certified together, of which `method` is the best."""
    reference: Reference | None = None
    """How the calibration images looked, which monitoring compares new images with; None if unknown."""
    shifts: ShiftModel | None = None
    """How scores tell accuracy when images change, as learned from corrupted images; None if it was not learned."""

    # mypy does not support decorators above a property.
    @computed_field(repr=False)  # type: ignore[prop-decorator]
    @property
    def checksum(self) -> str:
        """Hex sha256 of everything else."""
        return compute_checksum(from_json(self.model_dump_json(exclude={"checksum"})))

    @model_validator(mode="wrap")
    @classmethod
    def _verify(cls, content: object, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Validate the content of any version; a stored policy that was changed since loses its guarantee."""
        # What is stored has a version; a policy made in Python, as in `from_rule`, cannot have been changed.
        if not isinstance(content, dict) or (info.mode == "python" and "version" not in content):
            return validate(content)
        policy = validate(_upgrade(content))
        if _is_intact(content) is False:
            path = (info.context or {}).get("path")
            where = "the policy" if path is None else f"policy {str(path)!r}"
            warnings.warn(
                f"{where} was changed after it was written (its checksum is wrong or missing), so nothing is "
                "guaranteed; restore the file, or calibrate again.",
                PolicyWarning,
                stacklevel=4,  # the caller of `load`
            )
            lost = PolicyGuarantee(certified=False, text=LOST_GUARANTEE)
            # In place, since a constructor returns its own instance whatever a validator returns.
            object.__setattr__(policy, "guarantee", lost)
        return policy

    @field_validator("views")
    @classmethod
    def _check_views(cls, views: tuple[str, ...]) -> tuple[str, ...]:
        if views[:1] != ("identity",):
            raise ValueError(f"expected a list of views that starts with 'identity', got {list(views)}")
        try:
            return ViewSet(list(views)).texts
        except SecondLookError as error:
            raise ValueError(str(error)) from None

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        try:
            find_method(method)
        except SecondLookError as error:
            raise ValueError(str(error)) from None
        return method

    @field_validator("options")
    @classmethod
    def _check_option_names(cls, options: dict[str, OptionValue], info: ValidationInfo) -> dict[str, OptionValue]:
        known = find_method(info.data["method"]).options if "method" in info.data else tuple(options)
        for name in options:
            if name not in known:
                raise ValueError(
                    f"method {info.data['method']!r} has no option {name!r}; known: {', '.join(known) or 'none'}."
                    f"{did_you_mean(name, known)}"
                )
        return options

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: Schedule | None, info: ValidationInfo) -> Schedule | None:
        if schedule is None or not {"views", "method", "options"} <= info.data.keys():
            return schedule
        pairs = itertools.zip_longest(schedule.views, info.data["views"], fillvalue="none")
        for look, (found, expected) in enumerate(pairs, start=1):
            if found != expected:
                raise ValueError(
                    f"expected the views of the policy in the order of looks, got {found} instead of {expected} as "
                    f"look {look}"
                )
        if schedule.method != info.data["method"]:
            raise ValueError(f"expected method {info.data['method']!r}, got {schedule.method!r}")
        try:
            check_adaptive_method(schedule.method, info.data["options"])
        except SecondLookError as error:
            raise ValueError(str(error)) from None
        return schedule

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: PolicyClasses | None, info: ValidationInfo) -> PolicyClasses | None:
        if classes is None:
            return None
        n_classes, names = len(classes.thresholds), info.data.get("class_names")
        if names is not None and len(names) != n_classes:
            raise ValueError(f"expected a threshold for each of {len(names)} classes, got {n_classes}")
        if info.data.get("threshold") != classes.threshold:
            raise ValueError(f"expected the threshold of the policy to be the smallest one, {classes.threshold}")
        if info.data.get("schedule") is not None:
            raise ValueError("expected one threshold for all classes of a policy with a schedule")
        stated = info.data.get("guarantee")
        if stated is not None and stated.certified and stated.risk != max(classes.risks):
            raise ValueError(f"expected the risk of the guarantee to be the largest one, {max(classes.risks)}")
        return classes

    @classmethod
    def from_rule(
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
        """Return the policy of a rule; with a schedule, `views` are those of the schedule.

        Parameters
        ----------
        rule, classifier, views
            The rule, and the classifier and the views that its confidence is computed with.
        data, data_digest
            The spec and the digest of the images that the threshold was chosen on.
        class_names
            Names of the classes in the order of the classifier's outputs.
        made
            Creation time, now by default.
        """
        _check_steps(views)
        if not math.isfinite(rule.threshold):
            raise DecisionError(f"a policy needs a finite threshold, got {rule.threshold}: {rule}.")
        if rule.grouped_by == "label":
            raise DecisionError(
                "a policy can store thresholds of predicted classes, not of other groups, which are unknown when it "
                "decides; keep the rule and pass the groups to its accept()."
            )
        try:
            return cls(
                made=made or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                secondlook=__version__,
                classifier=describe_classifier(classifier),
                views=views,
                method=rule.method,
                options=_check_options(rule),
                predict_from=rule.predict_from,
                top_k=rule.top_k,
                threshold=rule.threshold,
                guarantee=_describe_guarantee(rule.guarantee),
                calibration=_describe_calibration(rule.calibration, data, data_digest),
                class_names=class_names,
                schedule=rule.schedule,
                classes=PolicyClasses.from_groups(rule.groups) if rule.grouped_by else None,
                compared=rule.compared,
                reference=rule.reference,
            )
        except ValidationError as error:
            raise DecisionError(f"invalid policy, {describe_invalid(error)}; correct the rule or its views.") from None

    @property
    def rule(self) -> Rule:
        """The rule to decide by."""
        stated, counts, classes = self.guarantee, self.calibration, self.classes
        guarantee = Guarantee(stated.risk, stated.delta) if stated.risk and stated.delta else None
        if guarantee is not None and classes is not None:
            guarantee = classes.guarantee(guarantee.delta)
        calibration = Calibration(**counts.model_dump(exclude={"data", "digest"})) if counts else None
        return Rule(
            self.threshold,
            self.method,
            self.predict_from,
            self.top_k,
            dict(self.options),
            guarantee,
            calibration,
            schedule=self.schedule,
            grouped_by=None if classes is None else "class",
            groups=() if classes is None else classes.to_groups(self.class_names),
            compared=self.compared,
            reference=self.reference,
        )

    @property
    def class_thresholds(self) -> tuple[float | None, ...] | None:
        """The threshold of each predicted class, None where nothing is accepted; None if all have the same."""
        return None if self.classes is None else self.classes.thresholds

    @property
    def certified(self) -> bool:
        """Whether the error rate among accepted images is guaranteed."""
        return self.rule.certified

    @property
    def guarantee_text(self) -> str:
        """The guarantee in words; 'none' if there is none, with the reason if it was lost."""
        if self.rule.guarantee is not None:
            return str(self.rule.guarantee)
        # Any other text was written by whoever wrote the file, and may claim anything.
        return LOST_GUARANTEE if self.guarantee.text == LOST_GUARANTEE else "none"

    @property
    def coverage(self) -> float:
        """Fraction of the calibration images that the rule accepts."""
        return self.rule.coverage

    @property
    def identity(self) -> str:
        """What tells the policy from others, in words."""
        return f"{self.method} >= {self.threshold:.6g}, made {self.made}, checksum {self.checksum[:8]}"

    def accept(self, confidence: ArrayLike, groups: ArrayLike | None = None) -> BoolArray:
        """Return whether each prediction is accepted. float [N] -> bool [N]

        With thresholds for classes, `groups` are the predicted classes, int [N].
        """
        return self.rule.accept(confidence, groups)

    def check(self, classifier: Describable) -> None:
        """Raise an error for a classifier, an output or a preprocessing that the threshold was not chosen for."""
        mismatch = self.find_mismatch(classifier)
        if mismatch is not None:
            raise DecisionError(f"{mismatch.reason}; {mismatch.repair}.")

    def find_mismatch(self, classifier: Describable) -> Mismatch | None:
        """Return how a classifier differs from the one that the policy was made for, or None."""
        expected, given = self.classifier, describe_classifier(classifier)
        if not given.digest:
            return Mismatch(
                f"classifier {given.name!r} has no digest that could be compared with the policy for {expected.name!r}",
                f"load it with name=, or {UNGUARANTEED}",
            )
        if given.digest != expected.digest:
            return Mismatch(
                f"the policy is for classifier {expected.name!r} (digest {expected.digest[:12]}), got {given.name!r} "
                f"(digest {given.digest[:12]})",
                f"calibrate again, or {UNGUARANTEED}",
            )
        if given.output != expected.output:
            return Mismatch(
                f"the policy is for outputs of type {expected.output}, but {given.name!r} outputs {given.output}",
                f"load it with output={expected.output!r}, or {UNGUARANTEED}",
            )
        return _find_setting_mismatch(expected.preprocessing, given.preprocessing)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the policy and its checksum as a JSON file, atomically.

        A file with another policy, or with anything else, is replaced only if `overwrite` is set. The same policy, made
        at another time, may be written again.
        """
        if not overwrite:
            self._check_replaceable(Path(path))
        # One line for each list of numbers. Texts hold no line breaks, so that none is changed.
        content = re.sub(
            r"\[\n(?:null|[-+.,eE\d\s])*\]", lambda match: "".join(match[0].split()), self.model_dump_json(indent=2)
        )
        write_bytes_atomically(Path(path), content.encode() + b"\n")

    def _check_replaceable(self, path: Path) -> None:
        if not path.is_file() or path.stat().st_size == 0:
            return
        found = "something other than a policy"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyWarning)
            try:
                existing = Policy.model_validate_json(path.read_bytes())
            except ValidationError:
                pass
            else:
                if existing.decides_like(self):
                    return
                found = f"another policy ({existing.method} >= {existing.threshold:.6g}, made {existing.made!r})"
        raise DecisionError(
            f"{str(path)!r} exists and holds {found}; pass overwrite=True to replace it, or choose another name."
        )

    def decides_like(self, other: "Policy") -> bool:
        """Whether the policies differ only in when, by which version and after how many others they were made."""
        return self._decisive_content() == other._decisive_content()

    def _decisive_content(self) -> dict[str, object]:
        return self.model_dump(
            exclude={"made": True, "secondlook": True, "checksum": True, "calibration": {"joint_delta"}}
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read and validate a policy file, or the policy in an ONNX file that `export_onnx` wrote.

        A file that was changed after it was written causes a `PolicyWarning`, and the policy has no guarantee.
        """
        try:
            return cls.model_validate_json(_read_content(Path(path)), context={"path": path})
        except OSError as error:
            raise DecisionError(f"cannot read policy {str(path)!r}: {error.strerror}; check the path.") from None
        except ValidationError as error:
            raise DecisionError(
                f"invalid policy {str(path)!r}, {describe_invalid(error)}; calibrate again, or use the version of "
                "secondlook that wrote it."
            ) from None

    @staticmethod
    def is_intact(file: str | Path | bytes) -> bool | None:
        """Return whether a policy file, or its content, is as it was written.

        None for versions 1 and 2, which have no checksum; a `ValueError` for anything but a JSON object.
        """
        content = from_json(file if isinstance(file, bytes) else _read_content(Path(file)))
        if not isinstance(content, dict):
            raise ValueError("expected a JSON object")
        return _is_intact(content)

    def __str__(self) -> str:
        rule = self.rule.describe(self.guarantee_text)
        return f"{rule}\nfor {self.classifier.name}, {len(self.views)} views, made {self.made}"

    def _repr_html_(self) -> str:
        return format_html([self])


def has_onnx_suffix(path: object) -> bool:
    """Whether something is the path of an ONNX file, by its name."""
    return isinstance(path, str | Path) and Path(path).suffix.lower() == ".onnx"


def _read_content(path: Path) -> bytes:
    """Return the JSON of a policy file, or of the policy in the metadata of an ONNX file."""
    if not has_onnx_suffix(path):
        return path.read_bytes()
    try:
        metadata = OnnxFile(path, str(path)).read_metadata()
    except ClassifierError as error:
        raise DecisionError(f"cannot read a policy from an ONNX file: {error}") from error
    if POLICY_METADATA not in metadata:
        raise DecisionError(
            f"{str(path)!r} has no policy in it, as a classifier has none; make a file with both with "
            "export_onnx(policy, out), or pass a policy file (.json)."
        )
    if not OnnxFile(path, str(path)).is_sealed():
        raise DecisionError(
            f"the exported file {str(path)!r} is damaged, or was changed after it was exported (wrong or missing "
            "checksum), so that its decisions may differ from those that are guaranteed; export the policy again."
        )
    return metadata[POLICY_METADATA].encode()


def _check_steps(views: tuple[str, ...]) -> None:
    """Reject views that are only names, as those of predictions made elsewhere may be."""
    for text in views:
        try:
            View.parse(text)
        except ViewError:
            raise DecisionError(
                f"view {text!r} is only a name, not the text of a view such as 'hflip', so secondlook alone cannot "
                "score images with such a policy; keep the rule and pass your own confidences to its accept()."
            ) from None


def describe_classifier(classifier: Describable) -> PolicyClassifier:
    """Return the record of a classifier that a policy stores."""
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


def _is_intact(content: Mapping[str, object]) -> bool | None:
    if "checksum" not in content and content.get("version") in VERSIONS_WITHOUT_CHECKSUM:
        return None
    others = {key: value for key, value in content.items() if key != "checksum"}
    return content.get("checksum") == compute_checksum(others)


def _upgrade(content: Mapping[str, object]) -> dict[str, object]:
    """Return stored content of any version as that of the present one, without the checksum."""
    upgraded = {key: value for key, value in content.items() if key != "checksum"}
    if content.get("version") == 1:
        upgraded = _upgrade_version_1(upgraded)
    if content.get("version") in OLDER_VERSIONS:
        upgraded["version"] = 6
    return upgraded


def _upgrade_version_1(content: Mapping[str, object]) -> dict[str, object]:
    """Rename the keys and some values of version 1 as in version 2."""
    upgraded = {VERSION_1_KEYS.get(key, key): value for key, value in content.items()}
    by = content.get("by", "x")
    upgraded["predict_from"] = VERSION_1_PREDICT_FROM.get(str(by), by)
    if isinstance(options := content.get("options"), dict) and "on" in options:
        upgraded["options"] = {**options, "on": VERSION_1_PREDICT_FROM.get(str(options["on"]), options["on"])}
    if isinstance(classifier := content.get("classifier"), dict):
        upgraded["classifier"] = {**classifier, "name": _upgrade_spelling(str(classifier.get("name")))}
    return upgraded


def _upgrade_spelling(spec: str) -> str:
    """Return the spec of a classifier with the options `grey` and `colour` of version 1 under their present names."""
    return re.sub(r"(?<=[?&])(grey|colour)(?==)", lambda match: Preprocessing.setting_name(match[0]), spec)


def _find_setting_mismatch(expected: Mapping[str, object], given: Mapping[str, object]) -> Mismatch | None:
    for stored in sorted({*expected, *given}):
        if expected.get(stored) != given.get(stored):
            setting = Preprocessing.setting_name(stored)
            return Mismatch(
                f"the policy was made with preprocessing {setting}={expected.get(stored)}, but the classifier has "
                f"{setting}={given.get(stored)}",
                f"load it with {setting}={expected.get(stored)}, or {UNGUARANTEED}",
            )
    return None


def _check_options(rule: Rule) -> dict[str, OptionValue]:
    """Return the options of a rule, which must be texts and numbers."""
    options: dict[str, OptionValue] = {}
    for name, value in rule.options.items():
        if not isinstance(value, str | int | float | bool | None):
            raise DecisionError(
                f"option {name}= of confidence {rule.method!r} is a {type(value).__name__}, which belongs to the given "
                "images, but a policy can store texts and numbers only; choose a method that needs no such option."
            )
        options[name] = value
    return options


def _describe_guarantee(guarantee: Guarantee | None) -> PolicyGuarantee:
    if guarantee is None:
        return PolicyGuarantee(certified=False, text="none")
    return PolicyGuarantee(certified=True, risk=guarantee.risk, delta=guarantee.delta, text=str(guarantee))


def _describe_calibration(counts: Calibration | None, data: str, digest: str) -> PolicyCalibration | None:
    if counts is None:
        return None
    return PolicyCalibration(data=data, digest=digest, **asdict(counts))
