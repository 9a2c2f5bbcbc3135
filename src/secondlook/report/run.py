"""`Run`: the folder of an evaluation. It can be read without the model."""

import json
import math
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import Preprocessing
from secondlook.decisions import resolve_classifier
from secondlook.diagnosis import SetupWarning, ViewChoice
from secondlook.errors import DecisionError, PredictionsError, Repair, ReportError, SecondLookError, SourceError
from secondlook.estimators import tuning_positions
from secondlook.evaluation import DEFAULT_METRICS, Evaluation, evaluate
from secondlook.files import (
    FrozenRecord,
    PositiveCount,
    SealedRecord,
    compute_checksum,
    describe_invalid,
    read_regular_file,
    write_bytes_atomically,
)
from secondlook.monitoring import learn_shifts
from secondlook.policies import (
    DEFAULT_DELTA,
    Ledger,
    Policy,
    Schedule,
    ShiftModel,
    as_methods,
    certify,
    read_policy,
    threshold_for,
)
from secondlook.predictions import DEFAULT_EXECUTION, ClassifierRecord, Execution, PredictFrom, Predictions, collect
from secondlook.report.study import BASELINE, EvaluationSettings, build_study, describe_method
from secondlook.report.unknown import AcceptedUnknowns, describe_accepted_unknowns
from secondlook.report.writer import check_page_path, list_artifacts, write_study
from secondlook.sources import OnError, Source, open_source
from secondlook.specs import short_name
from secondlook.tables import format_html
from secondlook.views import ViewWarning

RECORD = "run.json"
SETTINGS = "run.toml"
PREDICTIONS = "predictions"
UNKNOWN_PREDICTIONS = "unknown"
EVALUATION = "evaluation.json"
LATEST_POLICY = "latest-policy.json"
REPORT_FILES = "report-files"


class RunData(FrozenRecord):
    """The images of a run."""

    spec: str
    digest: str
    images: PositiveCount
    class_names: tuple[str, ...] | None
    duplicates: tuple[str, ...] = ()
    """Ids of images with the same pixels as an earlier image."""


class UnknownData(FrozenRecord):
    """The unknown images of a run; `predictions` is the key of their entry in the store."""

    spec: str
    digest: str
    predictions: str


@with_config(ConfigDict(extra="allow"))
class RunSettings(TypedDict, total=False):
    """The options of an evaluation, by their command line names; options with default values may be missing."""

    model: list[str]
    data: str
    out: str
    views: str
    method: list[str]
    metric: list[str]
    predict_from: PredictFrom
    top_k: PositiveCount
    per_class: bool
    unknown: str
    level: Annotated[float, Field(gt=0, lt=1)]
    resamples: PositiveCount
    seed: Annotated[int, Field(ge=0)]
    batch_size: PositiveCount
    on_error: OnError
    no_check: bool
    device: str


class RunRecord(SealedRecord):
    """The record of a run. It has no times, so the same run gives the same bytes.

    `predictions` is the key of the run's entry in the predictions store in its folder; the store may also contain
    entries of earlier evaluations.
    """

    format: Literal["secondlook run"] = "secondlook run"
    version: Literal[1] = 1
    secondlook: str
    settings: RunSettings
    classifier: ClassifierRecord
    data: RunData
    unknown: UnknownData | None = None
    views: tuple[str, ...]
    predictions: str
    warnings: tuple[str, ...] = ()
    evaluation: str
    """Checksum of the evaluation."""
    tuning: tuple[str, ...] = ()
    """Ids of the tuning images, used only to choose views and fit methods."""
    view_choice: ViewChoice | None = None
    """Record of the automatic choice of views; None if they were given."""


@dataclass(frozen=True)
class RunReport:
    """The page written by `Run.report`, and its notes (for example, the reason for missing images)."""

    path: Path
    notes: tuple[str, ...]
    terms: str
    """Origin of the risk and delta of its guarantees."""


@dataclass(frozen=True)
class Run:
    """The predictions, the evaluation and the record of one classifier on labeled images.

    Use `open_run` to open a folder and `create_run` to create one. The defaults of methods are the settings of the run.
    """

    REPORT: ClassVar[str] = "report.html"
    SHIFTS: ClassVar[str] = "shifts"

    path: Path
    record: RunRecord

    def __repr__(self) -> str:
        known, n_views = "", len(self.record.views)
        with suppress(SecondLookError):
            known = f", accuracy {100 * (self.evaluation.accuracy_from_image or 0.0):.1f} %"
        size = f"{self.record.data.images:,} images x {n_views} view{'s' * (n_views != 1)}"
        return f"Run {str(self.path)!r}: {self.title}\n{size}{known}"

    def _repr_html_(self) -> str:
        return format_html([repr(self)])

    @property
    def settings(self) -> RunSettings:
        """The options of the evaluation."""
        return self.record.settings

    @property
    def predict_from(self) -> PredictFrom:
        """Whether classes were predicted from the image itself or from the mean over views."""
        return self.settings.get("predict_from", "image")

    @property
    def top_k(self) -> int:
        """Number of most probable classes that count as the prediction."""
        return self.settings.get("top_k", 1)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return shlex.join(["secondlook", "evaluate", "--config", str(self.path / SETTINGS)])

    @property
    def title(self) -> str:
        """Classifier and images, e.g. 'resnet20.onnx on val'."""
        return f"{short_name(self.record.classifier.name)} on {short_name(self.record.data.spec)}"

    @cached_property
    def predictions(self) -> Predictions:
        """The stored predictions for all images, read lazily."""
        return self._open_predictions(ledger=self.path / Ledger.OF_RUN)

    def _open_predictions(self, *, ledger: Path | None) -> Predictions:
        key, views = self.record.predictions, list(self.record.views)
        return Predictions.open(self.path / PREDICTIONS, entry=key, views=views, ledger=ledger)

    @cached_property
    def unknown_predictions(self) -> Predictions | None:
        """The stored predictions for unknown images, read lazily; None if the run has none."""
        if self.record.unknown is None:
            return None
        folder, key = self.path / UNKNOWN_PREDICTIONS, self.record.unknown.predictions
        return Predictions.open(folder, entry=key, views=list(self.record.views))

    @cached_property
    def tuning_positions(self) -> IntArray:
        """Positions of the tuning images in `predictions`. int64 [n]"""
        apart = frozenset(self.record.tuning)
        return np.array([place for place, id_ in enumerate(self.predictions.ids) if id_ in apart], dtype=np.int64)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The stored evaluation of the run."""
        return Evaluation.from_dict(self.evaluation_content)

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Id and reason of each unreadable image."""
        return tuple((image["id"], image["reason"]) for image in self.evaluation_content.get("skipped", ()))

    @cached_property
    def evaluation_content(self) -> dict[str, Any]:
        """The evaluation as JSON values, with the skipped images and the warnings."""
        try:
            content: dict[str, Any] = from_json(read_regular_file(self.path / EVALUATION))
            if compute_checksum(content) != self.record.evaluation:
                raise ValueError("it was changed after it was written")
            Evaluation.from_dict(content)
        except (OSError, ValueError, SecondLookError) as error:
            reason = f"cannot read {str(self.path / EVALUATION)!r}: {str(error).rstrip('.')}"
            raise PredictionsError(f"{reason}; evaluate again to recreate it.") from None
        return content

    @property
    def accepted_unknowns(self) -> str | None:
        """Numbers of unknown images accepted by certified thresholds, as text; None if the evaluation has none."""
        content = self.evaluation_content.get("unknown")
        return None if content is None else describe_accepted_unknowns(content)

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the classifier."""
        return Preprocessing.from_dict(self.record.classifier.preprocessing)

    @cached_property
    def source(self) -> Source:
        """The images, if they have not changed since the run."""
        return _open_unchanged(self.record.data, self.record.data.class_names)

    @cached_property
    def unknown_source(self) -> Source | None:
        """The unknown images, if they have not changed since the run; None if the run has none."""
        return None if self.record.unknown is None else _open_unchanged(self.record.unknown)

    def image(self, position: int) -> Array:
        """Return one image of the predictions as the classifier saw it. uint8 or float32 [H, W, C]"""
        return self._read_image(self.source, self.predictions.ids[position])

    def _read_unknown_image(self, position: int) -> Array:
        assert self.unknown_source is not None, "the run has unknown images"
        assert self.unknown_predictions is not None, "and their predictions"
        return self._read_image(self.unknown_source, self.unknown_predictions.ids[position])

    def _read_image(self, source: Source, id_: str) -> Array:
        image: Array = self.preprocessing.fit([source.read(source.ids.index(id_))])[0]
        return image

    def evaluate(
        self,
        methods: Iterable[str] | None = None,
        metrics: Iterable[str] | None = None,
        *,
        groups: Any = None,
        progress: bool = True,
        **options: Any,
    ) -> Evaluation:
        """Evaluate the stored predictions again, including those for unknown images, without writing anything.

        `options` are those of `evaluate`: `predict_from`, `top_k`, `level`, `resamples` and `seed`. Defaults are the
        settings of the run.
        """
        given = self._options | options
        given |= {"methods": methods or given["methods"], "metrics": metrics or given["metrics"]}
        execution = Execution(progress=progress)
        options = {"unknown": self.unknown_predictions, "tuning": self._tuning, "execution": execution, **given}
        return evaluate(self.predictions, groups=groups, **options)

    @property
    def _options(self) -> dict[str, Any]:
        """The `evaluate` options of the run."""
        lists = {"methods": self.settings.get("method"), "metrics": self.settings.get("metric") or DEFAULT_METRICS}
        given = {**self.settings, **lists}
        return {one.name: given.get(one.name, one.default) for one in fields(EvaluationSettings)}

    @property
    def _tuning(self) -> IntArray | None:
        return self.tuning_positions if len(self.tuning_positions) else None

    def certify(
        self,
        method: str | Sequence[str] | None = None,
        *,
        risk: float | Mapping[Any, float],
        delta: float = DEFAULT_DELTA,
        groups: Literal["class"] | Mapping[str, Sequence[str | int]] | None = None,
        predict_from: PredictFrom | None = None,
        top_k: int | None = None,
        adaptive: bool = False,
        tolerance: float = Schedule.DEFAULT_TOLERANCE,
        max_looks: int | None = None,
        unknown: Predictions | None = None,
        unknown_budget: float | None = None,
        progress: bool = True,
        **options: Any,
    ) -> Policy:
        """Return the policy with the largest coverage whose error rate among accepted images is at most `risk`.

        The guarantee fails with probability at most `delta`. Several methods share `delta`, so the guarantee holds for
        the best of them. By default the method is 'blend'. The tuning images of the run fit the method, if necessary,
        and the schedule of an adaptive policy; they are excluded from certification. With `groups="class"`, each
        predicted class has its own threshold, with a mapping each group of classes; `groups`, `adaptive`, `tolerance`,
        `max_looks`, `unknown` (e.g. `unknown_predictions` or the result of `collect_unknown`) and `unknown_budget` are
        as in `certify`. Of copies of images, only errors count. Each calibration is recorded in the run: another one on
        the same images warns about the probability that one of their guarantees fails. Warnings of the run are
        repeated. Raises `DecisionError` if no threshold can be certified; the message suggests an alternative.
        """
        methods = None if method is None else as_methods(method)
        given: object = groups  # untyped callers may pass anything
        if not (given is None or isinstance(given, Mapping) or (isinstance(given, str) and given == "class")):
            raise DecisionError(
                f"a run certifies a policy, whose groups cannot be {given!r}",
                repair=Repair("pass {groups}, or for other groups pass its predictions to certify", groups="class"),
            )
        self._repeat_warnings()
        with self.predictions.show_progress("confidences", 1 + len(methods or ("",)), enabled=progress) as preds:
            policy = certify(
                preds,
                methods,
                risk=risk,
                delta=delta,
                groups=groups,
                predict_from=predict_from or self.predict_from,
                top_k=top_k or self.top_k,
                duplicates=self.record.data.duplicates,
                tuning=self._tuning,
                adaptive=adaptive,
                tolerance=tolerance,
                max_looks=max_looks,
                unknown=unknown,
                unknown_budget=unknown_budget,
                **options,
            )
        if not policy.certified:
            raise DecisionError(f"{policy.shortfall}.")
        return self._complete(policy)

    def _repeat_warnings(self) -> None:
        """Repeat the warnings of the evaluation: a threshold fixes neither the setup nor harmful views."""
        for message in self.record.warnings:
            category = SetupWarning if message.startswith(SetupWarning.START) else ViewWarning
            warnings.warn(message, category, stacklevel=3)

    def threshold_for(
        self,
        method: str | None = None,
        *,
        coverage: float | None = None,
        average_risk: float | None = None,
        cost_error: float | None = None,
        cost_review: float | None = None,
        delta: float = DEFAULT_DELTA,
        predict_from: PredictFrom | None = None,
        top_k: int | None = None,
        progress: bool = True,
        **options: Any,
    ) -> Policy:
        """Return a policy for a coverage, an error rate on average over calibrations, or the least cost.

        The arguments are those of `threshold_for`; `options` are `adaptive`, `tolerance`, `max_looks` and the options
        of the method. A calibration for the least cost has a guarantee and is recorded in the run.
        """
        self._repeat_warnings()
        with self.predictions.show_progress("confidences", 2, enabled=progress) as preds:
            policy = threshold_for(
                preds,
                method,
                coverage=coverage,
                average_risk=average_risk,
                cost_error=cost_error,
                cost_review=cost_review,
                delta=delta,
                predict_from=predict_from or self.predict_from,
                top_k=top_k or self.top_k,
                duplicates=() if coverage is not None else self.record.data.duplicates,
                tuning=self._tuning,
                **options,
            )
        return self._complete(policy)

    def collect_unknown(
        self, data: Any, classifier: Any = None, *, execution: Execution = DEFAULT_EXECUTION
    ) -> Predictions:
        """Return predictions for example unknown images, e.g. 'folder:others/', with the views of the run.

        By default, the classifier is loaded from its local file. Predictions are stored in the folder of the run, so
        existing ones are reused and an interrupted call resumes.
        """
        source = open_source(data, on_error=execution.on_error).without_labels()
        known = self.record.unknown
        if known is not None and known.digest == source.digest:
            assert self.unknown_predictions is not None, "the run has unknown images"
            return self.unknown_predictions
        policy = Policy(threshold=0, classifier=self.record.classifier)
        loaded = resolve_classifier(policy, classifier, allow_mismatch=False, offer=None, folder=self.path).classifier
        store = self.path / UNKNOWN_PREDICTIONS
        return collect(
            loaded.on_device(execution.device), source, self.predictions.views, store=store, execution=execution
        )

    def learn_shifts(
        self,
        policy: Policy,
        classifier: Any = None,
        *,
        n_images: int = ShiftModel.DEFAULT_IMAGES,
        seed: int = 0,
        execution: Execution = DEFAULT_EXECUTION,
    ) -> Policy:
        """Return a policy of the run that can also estimate accuracy after the images change.

        The classifier, by default loaded from its local file, predicts corrupted versions of `n_images` labeled images
        of the run, drawn with `seed`. The policy then includes a model of its accuracy, given confidences and predicted
        classes. Threshold and guarantee do not change: both were chosen without corrupted images. Outputs are stored in
        the folder of the run, so an interrupted job resumes. Only the batch size, device and progress of `execution`
        are used.
        """
        if policy.calibration is None or policy.calibration.digest != self.record.data.digest:
            raise DecisionError("the policy was not calibrated on the images of the run; pass a policy of the run.")
        loaded = resolve_classifier(policy, classifier, allow_mismatch=False, offer=None, folder=self.path).classifier
        tuning = frozenset(self.record.tuning)
        model = learn_shifts(
            policy,
            loaded,
            self.source,
            self.predictions.select(images=np.array([id_ not in tuning for id_ in self.predictions.ids])),
            n_images=n_images,
            seed=seed,
            store=self.path / self.SHIFTS,
            execution=execution,
        )
        return policy.model_copy(update={"shifts": model})

    def count_accepted_unknowns(self, policy: Policy) -> AcceptedUnknowns | None:
        """Count the unknown images of the run that a policy accepts; None if the run has none.

        The guarantee covers only images of the known classes and does not depend on unknown ones.
        """
        if self.unknown_predictions is None:
            return None
        accepted = policy.accept(self.unknown_predictions)
        return AcceptedUnknowns(policy.method, policy.threshold, len(accepted), int(accepted.sum()))

    def _complete(self, policy: Policy) -> Policy:
        """Return a policy with the classifier and the images of the run."""
        assert policy.calibration is not None, "the policy was just calibrated"
        images = {"data": self.record.data.spec, "digest": self.record.data.digest}
        calibration = policy.calibration.model_copy(update=images)
        policy = policy.model_copy(update={"classifier": self.record.classifier, "calibration": calibration})
        if not math.isfinite(policy.threshold):
            return policy
        try:
            policy.save(self.path / LATEST_POLICY, overwrite=True)
        except OSError as error:
            fault = f"the policy cannot be stored in {str(self.path)!r}: {error.strerror}"
            raise DecisionError(fault, repair="make it writable") from None
        return policy

    @property
    def latest_policy(self) -> Policy | None:
        """The policy that the run calibrated last on the images and views of its record; None without one."""
        path = self.path / LATEST_POLICY
        if not path.is_file():
            return None
        policy, record = read_policy(path), self.record
        calibration, tuning = policy.calibration, self._find_tuning(policy)
        is_current = (
            calibration is not None
            and policy.classifier == record.classifier
            and calibration.digest == record.data.digest
            and calibration.tuning == (0 if tuning is None else len(tuning))
            and (policy.views == record.views or (policy.schedule is not None and {*policy.views} <= {*record.views}))
        )
        return policy if is_current else None

    def describe_baseline(self, policy: Policy) -> str | None:
        """Return a sentence if the image itself would certify more coverage than the policy; None otherwise.

        Nothing is recorded: the comparison is no calibration.
        """
        guarantee = policy.guarantee
        if guarantee is None or policy.groups or policy.familiarity or policy.costs or policy.method == BASELINE:
            return None
        with warnings.catch_warnings(action="ignore"):
            baseline = certify(
                self._open_predictions(ledger=None),
                BASELINE,
                risk=guarantee.risk,
                delta=guarantee.delta,
                predict_from=policy.predict_from,
                top_k=policy.top_k,
                duplicates=self.record.data.duplicates,
                tuning=self._find_tuning(policy),
            )
        if not baseline.certified or baseline.coverage <= policy.coverage:
            return None
        more, less = (f"{100 * one.coverage:.4g} %" for one in (baseline, policy))
        return f"Without a second look, more images could be decided with this guarantee: {more} instead of {less}."

    def _find_tuning(self, policy: Policy | None) -> IntArray | None:
        """Return the tuning images of a policy, which may have set its own apart, or of the run."""
        if self._tuning is None and policy is not None and policy.calibration is not None and policy.calibration.tuning:
            return tuning_positions(self.predictions.n_images)
        return self._tuning

    def report(
        self,
        path: str | Path | None = None,
        *,
        delta: float | None = None,
        galleries: bool = True,
        progress: bool = True,
    ) -> RunReport:
        """Write the report of the run, by default to report.html in its folder.

        The report leads with the policy that the run calibrated last. Without one, or with `delta`, all methods of the
        report share `delta`, by default 0.001. The page shows the images if they are still available; otherwise a note
        gives the reason.
        """
        target = check_page_path(path or self.path / self.REPORT)
        policy = self.latest_policy if delta is None else None
        terms = f"delta {delta or DEFAULT_DELTA:g} {'as given' if delta else 'by default: the run has no calibration'}"
        terms = f"{terms}; the risk follows from the error rate"
        if policy is not None:
            terms = f"the terms of the latest calibration of the run, for {describe_method(policy)}"
            terms = f"{terms}: {policy.guarantee_text}"
        notes = []
        calibrations = Ledger.read(self.path / Ledger.OF_RUN).on_images(self.record.data.digest)
        if len(calibrations.calibrations) > 1:
            notes.append(f"{calibrations.describe()}.")
        if policy is None and calibrations.calibrations and delta is None:
            notes.append("No calibrated policy of these predictions is stored in the run: calibrate with the run.")
        image = unknown_image = None
        if galleries:
            try:
                self.image(0)
                image = self.image
                if self.unknown_predictions is not None:
                    self._read_unknown_image(0)
                    unknown_image = self._read_unknown_image
            except SecondLookError as error:
                notes.append(f"No {'unknown ' if image else ''}images in the report: {error}")
        options = self._options
        if policy is not None:
            options |= {"predict_from": policy.predict_from, "top_k": policy.top_k}
        study = build_study(
            self.predictions,
            policy=policy,
            duplicates=self.record.data.duplicates,
            tuning=self._find_tuning(policy),
            unknown=self.unknown_predictions,
            progress=progress,
            **options,
        )
        guarantee = None if policy is None else policy.guarantee
        write_study(
            study,
            target,
            title=self.title,
            risk=None if guarantee is None else guarantee.risk,
            delta=guarantee.delta if guarantee is not None else DEFAULT_DELTA if delta is None else delta,
            image=image,
            unknown_image=unknown_image,
            facts={**self.facts, "risk and delta": terms},
            warnings=self.record.warnings,
            notes=notes,
            command=self.command,
            baseline=None if policy is None else self.describe_baseline(policy),
        )
        return RunReport(target, tuple(notes), terms)

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the origin of the run for the report."""
        classifier, data, unknown = self.record.classifier, self.record.data, self.record.unknown
        return {
            "classifier": classifier.name,
            "classifier digest": classifier.digest,
            "output": classifier.output,
            "preprocessing": str(self.preprocessing),
            "images": data.spec,
            "images digest": data.digest,
            **({} if unknown is None else {"unknown images": unknown.spec, "unknown images digest": unknown.digest}),
            "secondlook": self.record.secondlook,
        }


def _open_unchanged(data: RunData | UnknownData, class_names: tuple[str, ...] | None = None) -> Source:
    source = open_source(data.spec)
    if class_names is not None:
        with suppress(SourceError):  # the digest check reports changed labels
            source = source.with_class_names(class_names)
    if source.digest != data.digest:
        raise SourceError(f"the images of {source.spec!r} changed after the run; restore them or evaluate again.")
    return source


def open_run(path: str | Path) -> Run:
    """Open the folder of a run."""
    folder = Path(path)
    record = folder / RECORD
    try:
        return Run(folder, RunRecord.model_validate_json(read_regular_file(record)))
    except OSError as error:
        if (folder / PREDICTIONS).is_dir() and not record.exists():
            repair = "run the same evaluate command again to resume; its predictions are saved"
            raise PredictionsError(f"the evaluation in {str(folder)!r} was interrupted", repair=repair) from None
        raise PredictionsError(f"{str(folder)!r} is not a readable run folder: {RECORD}: {error.strerror}.") from None
    except ValidationError as error:
        fault = f"the run {str(record)!r} is damaged or of another version, {describe_invalid(error)}"
        repair = "evaluate again into the same folder: stored predictions are reused"
        raise PredictionsError(fault, repair=repair) from None


def write_run(path: Path, record: RunRecord, evaluation: Mapping[str, object]) -> Run:
    """Write the settings, evaluation and record of a run, the record last; remove the report of a different run."""
    options = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in record.settings.items()]
    contents = {
        SETTINGS: f"[evaluate]\n{''.join(options)}",  # the format of `--config`
        EVALUATION: json.dumps(evaluation, indent=2, ensure_ascii=False) + "\n",
        RECORD: record.model_dump_json(indent=2) + "\n",
    }
    name = Run.REPORT
    try:
        if (path / RECORD).is_file() and (path / RECORD).read_bytes() != contents[RECORD].encode():
            _remove_report(path)
        for name, text in contents.items():
            write_bytes_atomically(path / name, text.encode())
    except OSError as error:
        repair = "free space or make the folder writable, and evaluate again: stored predictions are reused"
        raise ReportError(f"cannot write {str(path / name)!r}: {error.strerror}", repair=repair) from None
    return Run(path, record)


def _remove_report(folder: Path) -> None:
    """Remove the report of a run, the page first: it must never exist without its files."""
    (folder / Run.REPORT).unlink(missing_ok=True)
    files = folder / REPORT_FILES
    if files.is_dir() and not files.is_symlink():
        for name in list_artifacts():
            (files / name).unlink(missing_ok=True)
        if not any(files.iterdir()):
            files.rmdir()
