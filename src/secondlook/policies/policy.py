"""`Policy`: the rule that accepts predictions, with its classifier, views and confidence; and its file."""

import contextlib
import datetime
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from secondlook import __version__
from secondlook.arrays import BoolArray, Float64Array, IntArray, as_array
from secondlook.classifiers import Classifier, OnnxFile, Preprocessing
from secondlook.errors import ANY, ClassifierError, DecisionError, Repair, SecondLookError, SecondLookWarning
from secondlook.estimators import METHODS, CompiledMethod, compile_method, find_method, needs_fitting
from secondlook.files import (
    SealedRecord,
    compute_checksum,
    describe_invalid,
    read_regular_file,
    write_bytes_atomically,
)
from secondlook.policies.costs import Costs
from secondlook.policies.familiarity import Familiarity, UnknownBound
from secondlook.policies.guarantee import (
    GROUP_NOUNS,
    Calibration,
    ComparedMethod,
    GroupedBy,
    GroupThreshold,
    Guarantee,
    Probability,
    Shortfall,
)
from secondlook.policies.reference import Reference, ShiftModel
from secondlook.policies.schedule import Schedule, check_adaptive_method
from secondlook.predictions import DEFAULT_EXECUTION, ClassifierRecord, Execution, PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.tables import MAX_LISTED_GROUPS, TextTable, format_html, shorten_name
from secondlook.views import ViewSet

DEFAULT_METHOD = "blend"
"""The default confidence of policies and of all functions with a `method`."""
LOST_GUARANTEE = "none, since the policy was changed after it was written"
_FILE_OPTION = str | int | float | bool | None
_DECISIONS = "secondlook.decisions"
"""The package that looks at images. It imports this one, so only `decide` and `score` import it, when called."""


class PolicyWarning(SecondLookWarning):
    """A policy lost its guarantee because it was changed after it was written."""


@dataclass(frozen=True)
class Binding:
    """Where a policy finds its classifier."""

    classifier: object = None
    """Anything that `load_classifier` accepts; None for the classifier named in the policy."""
    path: Path | None = None
    """The file of the policy, whose folder may contain its classifier; or an exported file, which contains it."""
    allow_mismatch: bool = False
    execution: Execution = DEFAULT_EXECUTION


class LookedImages(NamedTuple):
    """Number of looks at each image, and confidence and predicted class after the last look."""

    looks: IntArray
    """Number of looks, int64 [N]."""
    confidence: Float64Array
    """float64 [N]"""
    predicted: IntArray
    """The predicted class, int64 [N], or the top k classes, int64 [N, k]."""


def _describe_classifier(classifier: object) -> object:
    return ClassifierRecord.describe(classifier) if isinstance(classifier, Classifier) else classifier


class Policy(SealedRecord):
    """Accept a prediction if its confidence is at least `threshold`, and its familiarity at least the limit, if any.

    `certify` returns a policy with a guarantee, `load_policy` opens a file, and `Policy(threshold=0.9)` is a plain
    threshold. A stored policy has a checksum; it loses its guarantee if the file is changed.
    """

    METADATA: ClassVar[str] = "secondlook.policy"
    """Key of the policy, as JSON, in the metadata of an exported ONNX file."""

    format: Literal["secondlook policy"] = "secondlook policy"
    version: Literal[1] = 1
    made: str = ""
    """Time when the policy was first saved."""
    secondlook: str = __version__
    classifier: Annotated[ClassifierRecord | None, BeforeValidator(_describe_classifier)] = None
    """The classifier that the threshold was chosen for; None if it was chosen from arrays."""
    views: tuple[str, ...] = ()
    """The views for computing the confidence, in the order of looks; empty if unknown."""
    method: str = DEFAULT_METHOD
    options: dict[str, Any] = Field(default_factory=dict)
    predict_from: PredictFrom = "image"
    top_k: int = Field(default=1, gt=0)
    threshold: Annotated[float, Field(allow_inf_nan=True, strict=True)]
    """Smallest accepted confidence, of any group if there are groups; infinite if nothing is accepted."""
    guarantee: Guarantee | None = None
    """The guarantee for accepted images, if any."""
    average_risk: Probability | None = None
    """Bound on the error rate among accepted images, on average over calibrations; not a guarantee."""
    costs: Costs | None = None
    """Costs of errors and reviews for a threshold of least cost; None for other thresholds."""
    calibration: Calibration | None = None
    """Counts on the calibration images."""
    shortfall: Shortfall | None = Field(default=None, exclude=True)
    """Why a requested guarantee could not be given; not stored."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes in the order of the classifier's outputs; None if unknown."""
    schedule: Schedule | None = None
    """The schedule of adaptive looking; None if every image has all looks."""
    grouped_by: GroupedBy | None = None
    groups: tuple[GroupThreshold, ...] = ()
    """The threshold of each predicted class, in the order of the outputs, or of each group; empty if all share one."""
    familiarity: Familiarity | None = None
    """Limit of familiarity for accepted images; None without a limit."""
    unknown: UnknownBound | None = None
    """Bound on accepted images like the example unknown images; None without examples."""
    compared: tuple[ComparedMethod, ...] = ()
    """The methods that were certified together; `method` is the best of them."""
    reference: Reference | None = Field(default=None, repr=False)
    """Statistics of the calibration images, for comparison with new images in monitoring; None if unknown."""
    shifts: ShiftModel | None = Field(default=None, repr=False)
    """Model that estimates accuracy from scores after a shift, learned from corrupted images; None if not learned."""

    _was_changed: bool = PrivateAttr(default=False)
    _binding: Binding = PrivateAttr(default=Binding())
    # A copy with other settings inherits this cache, which is only valid for its owner.
    _plan: tuple["Policy | None", Any] = PrivateAttr(default=(None, None))
    _compiled: tuple["Policy | None", Any] = PrivateAttr(default=(None, None))

    @model_validator(mode="wrap")
    @classmethod
    def _verify_checksum(cls, content: Any, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Validate content; a stored policy loses its guarantee if it was changed after it was written."""
        # Only stored policies have a version; a policy made in Python cannot have been changed.
        is_stored = isinstance(content, dict) and (info.mode == "json" or "version" in content)
        others = {key: value for key, value in content.items() if key != "checksum"} if is_stored else content
        try:
            policy = validate(others)
            policy._check_schedule()
            policy._check_groups()
        except ValueError as error:
            if info.mode == "json":
                raise
            if not isinstance(error, ValidationError):
                raise DecisionError(f"invalid policy: {error}") from None
            first = error.errors()[0]
            argument, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
            raise DecisionError(f"is invalid: {message}", argument=argument, value=first["input"]) from None
        if is_stored and content.get("checksum") != compute_checksum(others):
            path = (info.context or {}).get("path")
            where = "the policy" if path is None else f"policy {str(path)!r}"
            fault = "was changed after it was written (its checksum is wrong or missing), so nothing is guaranteed"
            warnings.warn(PolicyWarning(f"{where} {fault}", repair="restore it, or calibrate again"), stacklevel=4)
            # In place, since a constructor ignores an instance returned by a validator.
            for name in ("guarantee", "average_risk", "unknown"):
                object.__setattr__(policy, name, None)
            policy._was_changed = True
        return policy

    @field_validator("threshold")
    @classmethod
    def _check_threshold(cls, threshold: float) -> float:
        if math.isnan(threshold):
            raise ValueError("expected a number, got NaN")
        return threshold

    @field_validator("views")
    @classmethod
    def _check_views(cls, views: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if views and views[0] != "identity":
            raise ValueError(f"expected a list of views that starts with 'identity', got {list(views)}")
        # Views of external predictions may be plain names.
        is_made = info.mode == "json" and info.data.get("classifier") is not None
        try:
            parsed = ViewSet(list(views)) if is_made else ViewSet.with_names(list(views or ("identity",)))
            return parsed.texts if views else ()
        except SecondLookError as error:
            raise ValueError(str(error)) from None

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str, info: ValidationInfo) -> str:
        try:
            if info.mode == "json":  # in Python, confidences may be computed elsewhere
                find_method(method)
        except SecondLookError as error:
            raise ValueError(str(error)) from None
        return method

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if not options or "method" not in info.data:
            return options
        try:
            compile_method(info.data["method"], options)
        except SecondLookError as error:
            raise ValueError(str(error)) from None
        for name, value in options.items():
            if info.mode == "json" and not isinstance(value, _FILE_OPTION):
                raise ValueError(f"expected a string or a number for option {name!r}")
        return options

    def _check_schedule(self) -> None:
        schedule = self.schedule
        if schedule is None:
            return
        if self.views and self.views != schedule.views:
            looks = " ".join(schedule.views)
            raise ValueError(f"expected the views in the order of looks, {looks}, got {' '.join(self.views)}")
        if schedule.method != self.method:
            raise ValueError(f"expected method {self.method!r} of the schedule, got {schedule.method!r}")
        try:
            check_adaptive_method(schedule.method, self.options)
        except SecondLookError as error:
            raise ValueError(str(error)) from None

    def _check_groups(self) -> None:
        if self.guarantee is not None and self.average_risk is not None:
            raise ValueError("expected a guarantee or an average risk, not both")
        if (self.grouped_by is None) != (not self.groups):
            raise ValueError("expected groups if, and only if, the policy is grouped")
        if not self.groups:
            return
        if self.schedule is not None:
            raise ValueError("expected one threshold for all classes of a policy with a schedule")
        if self.threshold != min(group.threshold for group in self.groups):
            raise ValueError("expected the threshold of the policy to be the smallest one of its groups")
        if self.guarantee is not None and self.guarantee.risk != max(group.risk for group in self.groups):
            raise ValueError("expected the risk of the guarantee to be the largest one of the groups")
        if self.grouped_by == "class":
            if [group.value for group in self.groups] != list(range(len(self.groups))):
                raise ValueError("expected one group for each class, in the order of the outputs")
            n_classes = len(self.groups if self.class_names is None else self.class_names)
            if n_classes != len(self.groups):
                raise ValueError(f"expected a threshold for each of {n_classes} classes, got {len(self.groups)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def replace(self, **changes: Any) -> "Policy":
        """Return a copy with other values of some fields, which are validated."""
        kept = {name: getattr(self, name) for name in Policy.model_fields if name not in ("format", "version")}
        return Policy(**{**kept, **changes})

    @property
    def was_changed(self) -> bool:
        """Whether the policy lost its guarantee because its file was changed after it was written."""
        return self._was_changed

    # --- Decisions from predictions ---

    @property
    def certified(self) -> bool:
        """Whether the error rate among accepted images is guaranteed."""
        return self.guarantee is not None

    @property
    def shared_classes(self) -> dict[str, list[int]]:
        """The classes that share a threshold, by the name of their group."""
        shared: dict[str, list[int]] = {}
        for group in self.groups:
            if group.shared_by is not None:
                shared.setdefault(group.shared_by, []).append(group.value)
        return shared

    @property
    def coverage(self) -> float:
        """Fraction of the calibration images that the policy accepts."""
        if self.calibration is None:
            fault = "a plain threshold has no coverage, since it was not chosen on images"
            raise DecisionError(fault, repair="use accept(preds).mean()")
        return self.calibration.coverage

    def __getstate__(self) -> dict[Any, Any]:
        """Exclude values that are compiled at first use."""
        state = super().__getstate__()
        compiled = {"_compiled": (None, None), "_plan": (None, None)}
        return {**state, "__pydantic_private__": {**(state["__pydantic_private__"] or {}), **compiled}}

    @property
    def compiled(self) -> CompiledMethod:
        """The method with its options, compiled at first use."""
        owner, compiled = self._compiled
        if owner is not self:  # the policy is a changed copy
            compiled = compile_method(self.method, self.options, predict_from=self.predict_from, top_k=self.top_k)
            self._compiled = self, compiled
        return cast(CompiledMethod, compiled)

    def confidence(self, preds: Predictions) -> Float64Array:
        """Compute the confidence to compare with the threshold; with a schedule, after the last look. -> float64 [N]"""
        return self.compiled.confidence(preds) if self.schedule is None else self.look(preds).confidence

    def look(self, preds: Predictions) -> LookedImages:
        """Return the number of looks at each image, and its confidence and class after them.

        `preds` need all views of the policy; with a schedule, only its views.
        """
        if self.schedule is None:
            looks = np.full(preds.n_images, preds.n_views)
            return LookedImages(looks, self.compiled.confidence(preds), preds.predicted(self.predict_from, self.top_k))
        looked_at = select_schedule_views(preds, self.schedule)
        looks, confidence = self.schedule.look(
            self.compiled.running(looked_at), self.threshold, self.is_familiar(self.compute_familiarity(looked_at))
        )
        return LookedImages(looks, confidence, self._predict(looked_at, looks))

    def compute_familiarity(self, preds: Predictions) -> Float64Array | None:
        """Compute the familiarity from all looks, or with a schedule from the first; None without a limit. [N]"""
        if self.familiarity is None:
            return None
        return self.familiarity.compute(preds if self.schedule is None else preds.select(views="identity"))

    def is_familiar(self, familiarity: Float64Array | None) -> BoolArray | None:
        """Return which images are familiar enough to be accepted; None without a limit. float64 [N] -> bool [N]"""
        if self.familiarity is None:
            return None
        if familiarity is None:
            repair = "pass predictions to compute it"
            raise DecisionError("the policy also needs the familiarity of the images", repair=repair)
        familiar: BoolArray = familiarity >= self.familiarity.limit
        return familiar

    def compute_stopped(self, preds: Predictions) -> Float64Array:
        """Compute the confidence if looking stops after the views of `preds`; with a schedule, an estimate. [N]"""
        if self.schedule is None:
            return self.compiled.confidence(preds)
        return self.schedule.estimate(preds.n_views, self.compiled.running(preds)[:, -1])

    def _predict(self, preds: Predictions, looks: IntArray) -> IntArray:
        """Predict classes from the image itself, or from the views that were classified. int64 [N] or [N, k]"""
        if self.predict_from == "image":
            return preds.predicted("image", self.top_k)
        predicted = np.empty((preds.n_images, self.top_k), dtype=np.int64)
        for count in np.unique(looks):
            stopped = looks == count
            seen = preds.select(views=list(preds.views.texts[:count]), images=stopped)
            predicted[stopped] = seen.predicted("views", self.top_k).reshape(-1, self.top_k)
        return predicted[:, 0] if self.top_k == 1 else predicted

    def accept(
        self, preds: Predictions | ArrayLike, *, method: str | None = None, groups: ArrayLike | None = None
    ) -> BoolArray:
        """Return whether each prediction is accepted. -> bool [N]

        Parameters
        ----------
        preds
            Predictions; or confidences computed elsewhere, float [N], with their `method`, which must be the method of
            the policy.
        groups
            For a policy with groups, the label of each image, [N]; not needed for predicted classes.
        """
        familiarity = None
        if isinstance(preds, Predictions):
            chosen = preds.select(views=list(self.views)) if self.views and self.schedule is None else preds
            values, familiarity = self.confidence(chosen), self.compute_familiarity(chosen)
            if self.grouped_by == "class":
                groups = self.find_first_classes(chosen)
        elif method is None:
            fault = "the method of these confidences is unknown, and a threshold is only valid for its own method"
            raise DecisionError(fault, repair=Repair("pass predictions, or {method}", method=self.method))
        elif method != self.method:
            fault = f"the threshold is for confidences of method {self.method!r}, got {method!r}"
            raise DecisionError(fault, repair="pass predictions to compute the right confidence")
        else:
            values = _as_confidences(preds)
        return self.accept_values(values, groups, familiarity)

    def accept_values(
        self, values: Float64Array, groups: ArrayLike | None = None, familiarity: Float64Array | None = None
    ) -> BoolArray:
        """Return whether confidences of the policy's method, and the familiarity, are accepted. float64 [N] -> [N]"""
        accepted: BoolArray = values >= self.find_thresholds(values.shape, groups)
        familiar = self.is_familiar(familiarity)
        return accepted if familiar is None else accepted & familiar

    def find_thresholds(self, shape: tuple[int, ...], groups: ArrayLike | None) -> Float64Array | float:
        """Return the threshold of each image, float64 [N], or a single one; `groups` as in `accept`."""
        if self.grouped_by is None:
            if groups is not None:
                repair = Repair("omit {groups}", groups=ANY)
                raise DecisionError("the policy has one threshold for all images", repair=repair)
            return self.threshold
        known = "the predicted class" if self.grouped_by == "class" else "the label of the group"
        if groups is None:
            repair = Repair(f"pass {{groups}} with {known} of each image", groups=ANY)
            raise DecisionError(f"the policy has a threshold for each {GROUP_NOUNS[self.grouped_by]}", repair=repair)
        values = as_array(groups, "groups", DecisionError)
        if values.shape != shape:
            fault = f"has shape {values.shape} for confidences {shape}; expected {known} of each"
            raise DecisionError(fault, argument="groups")
        by_value = {group.value: group.threshold for group in self.groups}
        for index, value in enumerate(values.ravel().tolist()):
            if value not in by_value:
                names = [str(one) for one in by_value]
                known = f"known groups: {join_names(names)}.{did_you_mean(str(value), names)}"
                raise DecisionError(f"has {value!r} at index {index}, without a threshold; {known}", argument="groups")
        return np.array([by_value[value] for value in values.ravel().tolist()], dtype=np.float64).reshape(shape)

    def find_first_classes(self, preds: Predictions) -> IntArray:
        """Return the predicted class of each image, the first of the top k. int64 [N]"""
        if self.grouped_by == "class" and preds.n_classes != len(self.groups):
            fault = f"the policy has thresholds for {len(self.groups)} classes, the classifier has {preds.n_classes}"
            raise DecisionError(fault, repair="use the classifier that it was certified for, or certify again")
        return preds.predicted(self.predict_from, self.top_k).reshape(preds.n_images, -1)[:, 0]

    # --- Decisions about images ---

    def decide(self, image: object, **options: Any) -> Any:
        """Return the `Decision` about one image: predicted class, confidence, and whether the prediction is accepted.

        The image is a path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C,
        H, W]. `score` makes the same decision. `interval=True` also computes the bootstrap interval of the confidence
        over the views; `level` and `seed` are its confidence level and random seed.
        """
        return import_module(_DECISIONS).compile_policy(self).decide(image, **options)

    def bind(
        self,
        classifier: object = None,
        *,
        path: Path | None = None,
        allow_mismatch: bool = False,
        execution: Execution = DEFAULT_EXECUTION,
    ) -> Self:
        """Return the policy bound to a classifier, which is loaded at first use.

        The arguments are those of `load_policy`; `path` is the file of the policy, whose folder may contain the
        classifier. A classifier or path of None keeps the previous one.
        """
        earlier, bound = self._binding, self.model_copy()
        if classifier is None:
            classifier, allow_mismatch = earlier.classifier, allow_mismatch or earlier.allow_mismatch
        bound._binding = Binding(classifier, path or earlier.path, allow_mismatch, execution)
        bound._plan = None, None
        return bound

    def score(self, data: Any, out: str | Path, **options: Any) -> Any:
        """Decide about all images of `data` and write the decisions to `out`: `secondlook.score` with this policy."""
        return import_module(_DECISIONS).score(self, data, out, **options)

    def parse_views(self) -> ViewSet:
        """Return the views; raise an error if they are unknown, or plain names from external predictions."""
        if not self.views:
            raise DecisionError("the views of the policy are unknown; pass predictions to its accept().")
        try:
            return ViewSet(list(self.views))
        except SecondLookError as error:
            fault = f"a view of the policy is a plain name ({str(error).rstrip('.')}), so it cannot be made"
            raise DecisionError(fault, repair="pass predictions to its accept()") from None

    # --- The classifier of the policy ---

    @property
    def known_classifier(self) -> ClassifierRecord:
        """The classifier; raises an error if the policy has none."""
        if self.classifier is None:
            repair = "pass predictions to its accept(), or certify predictions of a classifier"
            raise DecisionError("the policy was made from arrays, so it has no classifier", repair=repair)
        return self.classifier

    def check(self, classifier: Classifier | ClassifierRecord) -> None:
        """Raise an error if the threshold was chosen for another classifier, output or preprocessing."""
        if (mismatch := self.find_mismatch(classifier)) is not None:
            raise mismatch

    def find_mismatch(self, classifier: Classifier | ClassifierRecord) -> DecisionError | None:
        """Return the error for a classifier that the policy was not made for, or None."""
        expected, given = self.classifier, ClassifierRecord.describe(classifier)
        repair = Repair("calibrate again")
        if expected is None:
            fault = "the policy was made from arrays, so its classifier is unknown"
            repair = Repair("certify predictions that were collected with the classifier")
        elif not expected.digest:
            fault = f"the policy was made with {expected.name!r}, which has no name to identify it"
            repair = Repair("calibrate again with {name}", of="load_classifier(function, ", name="v1")
        elif not given.digest:
            fault = f"classifier {given.name!r} has no name to identify it; the policy is for {expected.name!r}"
            repair = Repair("use {name} with the name at calibration", of="load_classifier(function, ", name=ANY)
        elif given.digest != expected.digest:
            wanted, found = (f"{one.name!r} (digest {one.digest[:12]})" for one in (expected, given))
            fault = f"the policy is for classifier {wanted}, got {found}"
        elif given.output != expected.output:
            fault = f"the policy is for outputs of type {expected.output}, but {given.name!r} outputs {given.output}"
            repair = Repair("load it with {output}", output=expected.output)
        else:
            made, has = expected.preprocessing, given.preprocessing
            differing = [key for key in sorted({*made, *has}) if made.get(key) != has.get(key)]
            if not differing:
                return None
            name, value = Preprocessing.setting_name(differing[0]), made.get(differing[0])
            fault = f"the policy was made with {name} {value}, but the classifier has {has.get(differing[0])}"
            how, shown = ("without", ANY) if value is None else ("with", value)
            repair = Repair(f"load it {how} {{{name}}}", **{name: shown})
        return DecisionError(fault, repair=repair)

    # --- The policy file ---

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the policy and its checksum as a JSON file, atomically.

        An existing file is only replaced if it is the same policy, made at another time, or if `overwrite` is set.
        """
        self.check_storable()
        if not overwrite:
            self._check_replaceable(Path(path))
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        content = self.model_copy(update={"made": self.made or now}).model_dump_json(indent=2)
        # One line for each list of numbers. Strings have no raw line breaks, so they remain unchanged.
        content = re.sub(r"\[\n(?:null|[-+.,eE\d\s])*\]", lambda match: "".join(match[0].split()), content)
        write_bytes_atomically(Path(path), content.encode() + b"\n")

    def check_transfers(self) -> None:
        """Raise an error for a confidence that depends on other images, since its threshold is invalid for new ones."""
        name = self.method.partition(":")[0]
        if name in METHODS and METHODS[name].is_rank:
            reason, repair = "is a rank among the given images", "use 'blend' or 'mean'"
        elif needs_fitting(self.method, self.options):
            reason = "has to be fitted, and its options lack the fitted numbers"
            repair = "calibrate again, or fit them on other images with fit_method"
        else:
            return
        fault = f"confidence {name!r} {reason}, so a threshold on it does not transfer to new images"
        raise DecisionError(fault, repair=repair)

    def check_storable(self) -> None:
        """Raise an error for a policy that cannot be stored in a file."""
        if not math.isfinite(self.threshold):
            raise DecisionError(f"a policy file needs a finite threshold, got {self.threshold}: {self}.")
        find_method(self.method)
        if self.grouped_by == "label":
            repair = "keep the policy in memory, and pass the groups to its accept()"
            raise DecisionError("a policy file cannot store thresholds of groups other than classes", repair=repair)
        for name, value in self.options.items():
            if not isinstance(value, _FILE_OPTION):
                fault = f"option {name!r} of confidence {self.method!r} is a {type(value).__name__}"
                raise DecisionError(fault, repair="choose a method whose options are strings and numbers")

    def _check_replaceable(self, path: Path) -> None:
        if not path.is_file() or path.stat().st_size == 0:
            return
        found = "something else than a policy"
        with warnings.catch_warnings(), contextlib.suppress(ValidationError):
            warnings.simplefilter("ignore", PolicyWarning)
            existing = Policy.model_validate_json(read_regular_file(path))
            if existing.decides_like(self):
                return
            found = f"another policy ({existing.method} >= {existing.threshold:.6g}, made {existing.made!r})"
        repair = Repair("pass {overwrite} to replace it, or choose another name", overwrite=True)
        raise DecisionError(f"{str(path)!r} exists and holds {found}", repair=repair)

    def decides_like(self, other: "Policy") -> bool:
        """Whether the policies differ at most in time, version and joint delta."""
        left_out: Any = {"made": True, "secondlook": True, "checksum": True, "calibration": {"joint_delta"}}
        return self.model_dump(exclude=left_out) == other.model_dump(exclude=left_out)

    # --- Text ---

    @property
    def guarantee_text(self) -> str:
        """The guarantee as text; 'none' without one, with the reason if it was lost."""
        if self._was_changed:
            return LOST_GUARANTEE
        if self.average_risk is None:
            return str(self.guarantee or "none")
        return (
            f"none for this calibration; on average over calibrations, at most {100 * self.average_risk:g} % errors "
            "among accepted images, but in about 40 of 100 calibrations, or more, the error rate is higher"
        )

    @property
    def identity(self) -> str:
        """A text that identifies the policy."""
        return f"{self.method} >= {self.threshold:.6g}, made {self.made}, checksum {self.checksum[:8]}"

    def __repr__(self) -> str:
        threshold = self.describe_threshold() if math.isfinite(self.threshold) else "accept nothing"
        guarantee = "no guarantee" if self.guarantee is None else f"at most {100 * self.guarantee.risk:g} % errors"
        coverage = "" if self.calibration is None else f", coverage {100 * self.calibration.coverage:.4g} %"
        classifier = "" if self.classifier is None else f", for {self.classifier.name}"
        return f"<Policy: {threshold}, {guarantee}{coverage}, {len(self.views)} views{classifier}>"

    def __str__(self) -> str:
        lines = [self.describe_threshold(), f"guarantee: {self.guarantee_text}"]
        if self.costs is not None:
            lines += self.costs.describe(self.guarantee)
        if self.shortfall is not None:
            lines = [f"accept nothing: {self.shortfall}"]
        if len(self.compared) > 1:
            shared = "which share delta equally, so the guarantee holds for the chosen one"
            lines.append(f"method: the best of {len(self.compared)}, {shared}")
        if self.familiarity is not None:
            lines.append(f"familiarity: {self.familiarity}")
        if self.unknown is not None:
            lines.append(f"unknown images: {self.unknown}")
        if self.calibration is not None:
            lines += _format_calibration(self.calibration, self.schedule)
        if self.groups:
            noun, joined = self._list_groups()
            is_short = noun == "class" and not all(math.isfinite(one.threshold) for one in joined)
            advice = "; rare classes can share one, in a calibration on other images" if is_short else ""
            lines.append(f"{'classes' if noun == 'class' else 'groups'}: {_describe_groups(joined)}{advice}")
        lines += map(str, self.list_tables())
        if self.classifier is not None:
            made = f", made {self.made}" if self.made else ""
            lines.append(f"for {self.classifier.name}, {len(self.views)} views{made}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return format_html([self])

    def describe_threshold(self) -> str:
        """Describe the condition for accepting a prediction."""
        threshold = f"{self.threshold:.6g}"
        if self.grouped_by is not None:
            threshold = f"the threshold of the {GROUP_NOUNS[self.grouped_by]}"
        second = "" if self.familiarity is None else f" and familiarity >= {self.familiarity.limit:.6g}"
        return f"accept where {self.method} >= {threshold}{second}"

    def _list_groups(self) -> tuple[str, list[GroupThreshold]]:
        """Return the noun for a group, and the groups, with one entry for all classes that share a threshold."""
        joined = _join_shared(self.groups)
        return "class" if self.grouped_by == "class" and len(joined) == len(self.groups) else "group", joined

    def list_tables(self) -> list[TextTable]:
        """Return the thresholds of groups, the compared methods, and the limits of a schedule, if any."""
        noun, joined = self._list_groups()
        tables = [_make_group_table(joined, noun)] if joined else []
        if len(self.compared) > 1:
            rows = [("method", "threshold", "coverage", "")]
            for one in self.compared:
                threshold = "none" if one.threshold is None else f"{one.threshold:.6g}"
                rows.append((one.method, threshold, f"{100 * one.coverage:.2f} %", "chosen" if one.chosen else ""))
            tables.append(TextTable(rows, numbers=True))
        if self.schedule is not None and math.isfinite(self.threshold):
            tables.append(self.schedule.make_table(self.threshold))
        return tables


def read_policy(path: str | Path) -> Policy:
    """Read and validate a policy file, or the policy in an ONNX file that `export_onnx` wrote.

    If the file was changed after it was written, warn with a `PolicyWarning` and drop the guarantee.
    """
    try:
        return Policy.model_validate_json(_read_content(Path(path)), context={"path": path})
    except OSError as error:
        raise DecisionError(f"cannot read policy {str(path)!r}: {error.strerror}; check the path.") from None
    except ValidationError as error:
        repair = "calibrate again, or use the version of secondlook that wrote it"
        raise DecisionError(f"invalid policy {str(path)!r}, {describe_invalid(error)}", repair=repair) from None


def join_names(names: Sequence[str]) -> str:
    """Return quoted names for a message, abbreviated if there are many."""
    shown = names if len(names) <= MAX_LISTED_GROUPS else names[:5]
    more = len(names) - len(shown)
    return ", ".join(map(repr, shown)) + (f" and {more:,} more" if more else "")


def select_schedule_views(preds: Predictions, schedule: Schedule) -> Predictions:
    """Return the predictions for the views of a schedule, in the order of looks."""
    missing = [view for view in schedule.views if view not in preds.views.texts]
    if missing:
        fault = f"the predictions lack view {missing[0]!r} of the schedule (they have {', '.join(preds.views.texts)})"
        raise DecisionError(fault, repair="collect with the views of the schedule, or fit another schedule")
    return preds.select(views=list(schedule.views))


def _read_content(path: Path) -> bytes:
    """Return the JSON of a policy file, or of the policy in the metadata of an ONNX file."""
    if not OnnxFile.has_suffix(path):
        return read_regular_file(path)
    try:
        metadata = OnnxFile(path, str(path)).read_metadata()
    except ClassifierError as error:
        raise DecisionError.from_error(error, "cannot read a policy from an ONNX file: ") from error
    if Policy.METADATA not in metadata:
        repair = "export a policy with this classifier, or pass a policy file (.json)"
        raise DecisionError(f"{str(path)!r} contains no policy, only a classifier", repair=repair)
    if not OnnxFile(path, str(path)).is_sealed():
        fault = f"the exported file {str(path)!r} is damaged, or another program changed it (wrong or missing checksum)"
        repair = "export the policy again; to optimize or quantize the model, do so before you evaluate and calibrate"
        raise DecisionError(fault, repair=repair)
    return metadata[Policy.METADATA].encode()


def _as_confidences(values: ArrayLike) -> Float64Array:
    array = as_array(values, "confidence", DecisionError)
    if array.dtype.kind not in "fiu":
        raise DecisionError(f"confidence has dtype {array.dtype}, expected real numbers; convert it to float64.")
    for index in np.flatnonzero(np.isnan(array)):
        raise DecisionError(f"confidence is NaN at index {index}, expected a number; fix or remove this image.")
    return array.astype(np.float64, copy=False)


def _join_shared(groups: Sequence[GroupThreshold]) -> list[GroupThreshold]:
    """Return one entry, with joint counts, per group of classes that share a threshold."""
    joined: dict[str, GroupThreshold] = {}
    for one in groups:
        name = one.shared_by or one.name
        counts = {key: getattr(one, key) for key in ("images", "accepted", "errors")}
        if name in joined:
            counts = {key: count + getattr(joined[name], key) for key, count in counts.items()}
        joined[name] = one.model_copy(update={"name": name, **counts})
    return list(joined.values())


def _describe_groups(groups: Sequence[GroupThreshold]) -> str:
    """Describe how many groups have a threshold, and how many more images the others need."""
    nothing = [group for group in groups if not math.isfinite(group.threshold)]
    if not nothing:
        return f"all {len(groups):,} have a threshold"
    needed = sorted(group.additional_images for group in nothing if group.additional_images is not None)
    reasons = []
    if needed:
        several = f" to {needed[-1]:,} more labeled images each (median {needed[len(needed) // 2]:,})"
        more = several if len(needed) > 1 else f" more labeled image{'s' * (needed[0] != 1)}"
        reasons.append(f"{len(needed):,} need{'s' * (len(needed) == 1)} roughly {needed[0]:,}{more}")
    if len(needed) < len(nothing):
        reasons.append(f"for {len(nothing) - len(needed):,}, more would not help")
    start = f"{len(groups) - len(nothing):,} of {len(groups):,} have a threshold, the others accept nothing"
    return f"{start}: {'; '.join(reasons)}"


def _make_group_table(groups: Sequence[GroupThreshold], noun: str) -> TextTable:
    """Return a table with one row per group; if there are many, for those with the smallest coverage."""
    shown, more = groups, len(groups) - MAX_LISTED_GROUPS
    if more > 0:
        shown = sorted(groups, key=lambda group: (group.coverage, group.additional_images or math.inf))
    rows: list[tuple[str, ...]] = [(noun, "risk", "threshold", "images", "accepted", "wrong", "coverage", "")]
    for group in shown[:MAX_LISTED_GROUPS]:
        threshold, note = f"{group.threshold:.6g}", ""
        if not math.isfinite(group.threshold):
            needed = group.additional_images
            threshold, note = "none", "more would not help" if needed is None else f"needs {needed:,} more"
        counts = (f"{count:,}" for count in (group.images, group.accepted, group.errors))
        cells = (f"{100 * group.risk:g} %", threshold, *counts, f"{100 * group.coverage:.1f} %", note)
        rows.append((shorten_name(group.name), *cells))
    if more > 0:
        rows.append((f"and {more:,} others", *[""] * 7))
    return TextTable(rows, numbers=True)


def _format_calibration(counts: Calibration, schedule: Schedule | None) -> list[str]:
    accepted = f"{counts.accepted:,} of {counts.images:,} images accepted ({100 * counts.coverage:.4g} %)"
    lines = [f"calibration: {accepted}, {counts.describe_errors()}"]
    if counts.labels is not None:
        lines.append(
            f"labels: {counts.labels:,}, from the most confident image down; images without one count as wrong"
        )
    if counts.tuning:
        apart = f"{counts.tuning:,} other images were set apart"
        lines.append(f"tuning: {apart} to choose views or fit the method, schedule or limit")
    if schedule is not None and counts.mean_looks is not None:
        full = schedule.full_looks
        saved = f"{100 * (1 - counts.mean_looks / full):.1f} % fewer than all {full}"
        bound, level = 100 * (counts.differing_bound or 0), 100 * (1 - (counts.differing_delta or 0))
        differing = f"{counts.differing:,} of {counts.images:,} differ from those with all {full} looks"
        lines += [
            f"looks: {counts.mean_looks:.2f} on average, at most {schedule.max_looks}: {saved}",
            f"decisions: {differing}; at most {bound:.2g} % of new images with {level:g} % confidence",
        ]
    if counts.duplicates:
        copies = "copy" if counts.duplicates == 1 else "copies"
        lines.append(f"{counts.duplicates:,} correct {copies} of other images left out; wrong copies count")
    if counts.joint_delta is not None:
        failure = f"one of the guarantees fails with a probability of up to {100 * counts.joint_delta:.4g} %"
        lines.append(f"with the other calibrations on these images: {failure}")
    return lines
