"""`Run`: the folder that an evaluation leaves behind. Everything in it can be read without the model."""

import json
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import Classifier, Preprocessing
from secondlook.decisions import resolve_classifier
from secondlook.diagnosis import LOOKS_WRONG, SetupWarning, ViewChoice
from secondlook.errors import DecisionError, PredictionsError, ReportError, SecondLookError, SourceError
from secondlook.estimators import split_method
from secondlook.evaluation import DEFAULT_METRICS, Evaluation, Groups, evaluate
from secondlook.files import (
    FrozenRecord,
    PositiveCount,
    SealedRecord,
    compute_checksum,
    describe_invalid,
    write_bytes_atomically,
)
from secondlook.monitoring import learn_shifts
from secondlook.policies import (
    DEFAULT_DELTA,
    DEFAULT_SHIFT_IMAGES,
    DEFAULT_TOLERANCE,
    Guarantee,
    Policy,
    PolicyClassifier,
    Risks,
    Rule,
    as_methods,
    certify,
    describe_classifier,
    threshold_for,
)
from secondlook.predictions import BatchSize, PredictFrom, Predictions, entry_key
from secondlook.report.ledger import (
    CalibrationWarning,
    Ledger,
    RecordedCalibration,
    joint_failure_probability,
    latest_calibration,
    record_calibrations,
)
from secondlook.report.writer import write_report
from secondlook.sources import OnError, Source, open_source
from secondlook.specs import short_name
from secondlook.views import ViewWarning

RECORD = "run.json"
SETTINGS = "run.toml"
PREDICTIONS = "predictions"
OOD_PREDICTIONS = "ood"
SHIFTS = "shifts"
STATISTICS = "statistics"
EVALUATION = "evaluation.json"
REPORT = "report.html"
REPORT_FILES = "report-files"

ADAPTIVE_NOTE = (
    "The latest calibration looks adaptively: its policy has its threshold and counts. The operating points of this "
    "page are with all looks, at the same risk and delta."
)
PER_CLASS_NOTE = (
    "The latest calibration has a threshold for each predicted class: they are in its policy. The operating points of "
    "this page have one for all classes, at the largest risk of any class and the same delta."
)


class RunData(FrozenRecord):
    """The images of a run."""

    spec: str
    digest: str
    images: PositiveCount
    class_names: tuple[str, ...] | None
    duplicates: tuple[str, ...] | None = None
    """Ids of the images that have the same pixels as an earlier one; None for runs of version 2, which lack them."""


@with_config(ConfigDict(extra="allow"))
class RunSettings(TypedDict, total=False):
    """The options of an evaluation, by the names of the command line; those that have their default may be missing."""

    model: list[str]
    data: str
    out: str
    views: str
    method: list[str]
    metric: list[str]
    predict_from: PredictFrom
    top_k: PositiveCount
    per_class: bool
    ood: str
    level: Annotated[float, Field(gt=0, lt=1)]
    resamples: PositiveCount
    seed: Annotated[int, Field(ge=0)]
    batch_size: PositiveCount
    on_error: OnError
    no_check: bool
    device: str
    no_predictions: bool


class RunRecord(SealedRecord):
    """How a run came about. It holds no times, so that the same run gives the same bytes.

    `predictions` is the key of the run's entry in the store of predictions beside the record, which may hold entries of
    earlier evaluations. Records of versions 2 and 3 can be read.
    """

    format: Literal["secondlook run"] = "secondlook run"
    version: Literal[4] = 4
    secondlook: str
    settings: RunSettings
    classifier: PolicyClassifier
    data: RunData
    views: tuple[str, ...]
    predictions: str
    warnings: tuple[str, ...] = ()
    evaluation: str | None = None
    """Checksum of the evaluation; None for runs of version 2."""
    tuning: tuple[str, ...] = ()
    """Ids of the images that were set apart to choose views and fit methods; nothing is judged on them."""
    view_choice: ViewChoice | None = None
    """How the views were chosen; None if they were given."""

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, content: object) -> object:
        return {**content, "version": 4} if isinstance(content, dict) and content.get("version") in (2, 3) else content

    @classmethod
    def create(
        cls,
        settings: Mapping[str, Any],
        classifier: Classifier,
        source: Source,
        views: tuple[str, ...],
        warnings: tuple[str, ...],
        *,
        tuning: tuple[str, ...] = (),
        view_choice: ViewChoice | None = None,
    ) -> Self:
        """Describe the evaluation of a classifier on a source."""
        import secondlook

        return cls(
            secondlook=secondlook.__version__,
            settings=cast(RunSettings, settings),
            classifier=describe_classifier(classifier),
            data=RunData(
                spec=source.spec,
                digest=source.digest,
                images=len(source),
                class_names=source.class_names,
                duplicates=tuple(source.ids[index] for index in source.find_duplicates()),
            ),
            views=views,
            predictions=store_key(classifier, source),
            warnings=warnings,
            tuning=tuning,
            view_choice=view_choice,
        )


@dataclass(frozen=True)
class RunReport:
    """The page that `Run.report` wrote, and notes for its reader (why it has no images, for example)."""

    path: Path
    notes: tuple[str, ...]
    terms: str
    """Where the risk and the delta of its guarantees come from."""


@dataclass(frozen=True)
class Run:
    """The predictions, the evaluation and the record of one classifier on labeled images.

    `open_run` opens a folder, `create_run` makes one. The methods take their defaults from the settings of the run.
    """

    path: Path
    record: RunRecord

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
        """How many leading classes counted as the prediction."""
        return self.settings.get("top_k", 1)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return shlex.join(["secondlook", "evaluate", "--config", str(self.path / SETTINGS)])

    @property
    def title(self) -> str:
        """What the run is about, such as 'resnet20.onnx on val'."""
        return f"{short_name(self.record.classifier.name)} on {short_name(self.record.data.spec)}"

    @cached_property
    def predictions(self) -> Predictions:
        """The stored predictions for all images, read lazily."""
        if self.settings.get("no_predictions"):
            raise PredictionsError(
                f"the run {str(self.path)!r} has its evaluation but no predictions, which this needs; evaluate again "
                "into the same folder and keep them."
            )
        return Predictions.open(self.path / PREDICTIONS, entry=self.record.predictions, views=list(self.record.views))

    @cached_property
    def tuning_positions(self) -> IntArray:
        """Positions, in `predictions`, of the images that were set apart to choose views and fit methods. int64 [n]"""
        apart = frozenset(self.record.tuning)
        return np.array([place for place, id_ in enumerate(self.predictions.ids) if id_ in apart], dtype=np.int64)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The evaluation as it was written with the run."""
        try:
            return Evaluation.from_dict(self._evaluation_content)
        except SecondLookError as error:
            raise self._unreadable_evaluation(error) from None

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Id and reason of each image that could not be read."""
        return tuple((image["id"], image["reason"]) for image in self._evaluation_content.get("skipped", ()))

    @cached_property
    def _evaluation_content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = from_json((self.path / EVALUATION).read_bytes())
            if self.record.evaluation not in (None, compute_checksum(content)):
                raise ValueError("it was changed after it was written")
        except (OSError, ValueError) as error:
            raise self._unreadable_evaluation(error) from None
        return content

    def _unreadable_evaluation(self, error: Exception) -> PredictionsError:
        return PredictionsError(
            f"the evaluation {str(self.path / EVALUATION)!r} cannot be read: {str(error).rstrip('.')}; evaluate again "
            "to recreate it."
        )

    @property
    def preprocessing(self) -> Preprocessing:
        """How images become the input of the classifier."""
        return Preprocessing.from_dict(self.record.classifier.preprocessing)

    @cached_property
    def source(self) -> Source:
        """The images, if they have not changed since the run."""
        source = open_source(self.record.data.spec)
        if source.digest != self.record.data.digest:
            raise SourceError(
                f"the images of {self.record.data.spec!r} have changed since the run {str(self.path)!r}; "
                "restore them, or evaluate again."
            )
        return source

    def image(self, position: int) -> Array:
        """Return one image of the predictions as the classifier saw it. uint8 or float32 [H, W, C]"""
        index = self._source_index[self.predictions.ids[position]]
        image: Array = self.preprocessing.fit([self.source.read(index)])[0]
        return image

    @cached_property
    def _source_index(self) -> dict[str, int]:
        return {id_: index for index, id_ in enumerate(self.source.ids)}

    def evaluate(
        self,
        methods: Iterable[str] | None = None,
        metrics: Iterable[str] | None = None,
        *,
        predict_from: PredictFrom | None = None,
        top_k: int | None = None,
        groups: Groups = None,
        level: float | None = None,
        resamples: int | None = None,
        seed: int | None = None,
        progress: bool = True,
    ) -> Evaluation:
        """Evaluate the stored predictions again, with the settings of the run by default. Nothing is written."""
        return evaluate(
            self.predictions,
            methods or self.settings.get("method"),
            metrics or self.settings.get("metric") or DEFAULT_METRICS,
            predict_from=predict_from or self.predict_from,
            top_k=top_k or self.top_k,
            groups=groups,
            level=self.settings.get("level", 0.95) if level is None else level,
            resamples=self.settings.get("resamples", 500) if resamples is None else resamples,
            seed=self.settings.get("seed", 0) if seed is None else seed,
            tuning=self._tuning,
            progress=progress,
        )

    @property
    def _tuning(self) -> IntArray | None:
        return self.tuning_positions if len(self.tuning_positions) else None

    def certify(
        self,
        method: str | Sequence[str] | None = None,
        *,
        risk: Risks,
        delta: float = DEFAULT_DELTA,
        groups: Literal["class"] | None = None,
        predict_from: PredictFrom | None = None,
        top_k: int | None = None,
        adaptive: bool = False,
        tolerance: float = DEFAULT_TOLERANCE,
        max_looks: int | None = None,
        progress: bool = True,
        **options: Any,
    ) -> Policy:
        """Return the policy with the largest coverage whose error rate among accepted images is at most `risk`.

        The guarantee fails with probability at most `delta`. Several methods share `delta`, so that it holds for the
        best of them. By default the method is 'blend'. Images that the run set apart fit the method, if it needs that,
        and the schedule of an adaptive policy, and are not certified on. `groups="class"` gives every predicted class a
        threshold of its own; this, `adaptive`, `tolerance` and `max_looks` are as in `certify`. Duplicate images are
        counted once. Every calibration is recorded in the run: another one on the same images warns how probable it is
        that one of their guarantees fails. Warnings of the run are repeated. Raises `DecisionError` where no threshold
        can be certified; the message says what could be.
        """
        methods = None if method is None else as_methods(method)
        given: object = groups  # whatever callers without a type checker pass
        if given is not None and not (isinstance(given, str) and given == "class"):
            raise DecisionError(
                f"a run certifies a policy, which can have groups='class' only, got {given!r}; for other groups pass "
                "its predictions to certify."
            )
        self._warn_of_unknown_duplicates()
        self._repeat_warnings()
        with self.predictions.show_progress("confidences", 1 + len(methods or ("",)), enabled=progress) as preds:
            rule = certify(
                preds,
                methods,
                risk=risk,
                delta=delta,
                groups=groups,
                predict_from=predict_from or self.predict_from,
                top_k=top_k or self.top_k,
                duplicates=self.record.data.duplicates or (),
                tuning=self._tuning,
                adaptive=adaptive,
                tolerance=tolerance,
                max_looks=max_looks,
                **options,
            )
        # Recorded before anything is told, and also if nothing could be certified: who tries again tries twice.
        terms: dict[str, Any] = {"tolerance": tolerance, "max_looks": max_looks} if adaptive else {}
        if rule.grouped_by is not None:
            terms["class_risks"] = tuple(group.risk for group in rule.groups)
        stated = rule.guarantee if rule.shortfall is None else rule.shortfall.requested
        assert stated is not None, "certify states what is guaranteed or what could not be"
        joint_delta = self._record(rule, methods or (rule.method,), options, stated, terms)
        if not rule.certified:
            raise DecisionError(f"{rule.shortfall}.")
        assert rule.calibration is not None, "a certified rule has one"
        return self._policy(replace(rule, calibration=replace(rule.calibration, joint_delta=joint_delta)))

    def _warn_of_unknown_duplicates(self) -> None:
        if self.record.data.duplicates is None:
            warnings.warn(
                f"the run {str(self.path)!r} does not know its duplicate images, each of which counts as another one; "
                "evaluate again into the same folder to find them.",
                CalibrationWarning,
                stacklevel=3,
            )

    def _repeat_warnings(self) -> None:
        """Warn again of what the evaluation warned of: a threshold repairs neither the setup nor views that harm."""
        for message in self.record.warnings:
            warnings.warn(message, SetupWarning if message.startswith(LOOKS_WRONG) else ViewWarning, stacklevel=3)

    def _record(
        self,
        rule: Rule,
        methods: tuple[str, ...],
        options: Mapping[str, object],
        stated: Guarantee,
        terms: Mapping[str, Any],
    ) -> float | None:
        """Record a calibration; return the joint failure probability, with a warning, if there are others."""
        asked = [split_method(text) for text in methods]
        try:
            new = [
                RecordedCalibration(
                    images=self.record.data.digest,
                    predictions=self.record.predictions,
                    views=self.record.views,
                    method=method,
                    # As asked for: fitted numbers follow from the images.
                    options={**own, **options},  # type: ignore[dict-item]  # validated
                    predict_from=rule.predict_from,
                    top_k=rule.top_k,
                    risk=stated.risk,
                    delta=stated.delta / len(methods),
                    **terms,
                )
                for method, own in asked
            ]
        except ValidationError as error:
            raise DecisionError(
                f"a policy cannot store the options of the method, {describe_invalid(error)}."
            ) from None
        calibrations = record_calibrations(self.path, new)
        if len(calibrations) == len(new):
            return None
        joint_delta = joint_failure_probability(calibrations)
        warnings.warn(
            f"{len(calibrations)} different calibrations used these images, so the probability that one of their "
            f"guarantees fails is up to {100 * joint_delta:.4g} %, the sum of their deltas; to choose the best of "
            "several methods, pass them together in method=, or calibrate on other images.",
            CalibrationWarning,
            stacklevel=3,
        )
        return joint_delta

    def threshold_for(
        self,
        method: str | None = None,
        *,
        coverage: float,
        predict_from: PredictFrom | None = None,
        top_k: int | None = None,
        adaptive: bool = False,
        tolerance: float = DEFAULT_TOLERANCE,
        max_looks: int | None = None,
        progress: bool = True,
        **options: Any,
    ) -> Policy:
        """Return the policy that accepts at least this share of the images, without a guarantee about errors."""
        self._repeat_warnings()
        with self.predictions.show_progress("confidences", 2, enabled=progress) as preds:
            rule = threshold_for(
                preds,
                method,
                coverage=coverage,
                predict_from=predict_from or self.predict_from,
                top_k=top_k or self.top_k,
                tuning=self._tuning,
                adaptive=adaptive,
                tolerance=tolerance,
                max_looks=max_looks,
                **options,
            )
        return self._policy(rule)

    def learn_shifts(
        self,
        policy: Policy,
        classifier: Any = None,
        *,
        images: int = DEFAULT_SHIFT_IMAGES,
        seed: int = 0,
        batch_size: BatchSize = "auto",
        device: str = "auto",
        progress: bool = True,
    ) -> Policy:
        """Return a policy of the run that can also estimate accuracy when images change.

        The classifier is shown corrupted versions of some labeled images of the run, and how confidences and predicted
        classes tell its accuracy for them becomes part of the policy. Threshold and guarantee stay as they are: both
        were chosen without corrupted images. Outputs are kept in the folder of the run, so that an interrupted job
        resumes.

        Parameters
        ----------
        policy
            A policy of this run, from `certify` or `threshold_for`.
        classifier
            The classifier of the run; by default it is loaded from its local file.
        images, seed
            How many labeled images to corrupt, and the random seed that they are drawn with.
        batch_size, device, progress
            As for `collect`.
        """
        if policy.calibration is None or policy.calibration.digest != self.record.data.digest:
            raise DecisionError(
                f"the policy was calibrated on other images than those of the run {str(self.path)!r}; pass a policy of "
                "this run."
            )
        loaded = resolve_classifier(policy, classifier, allow_mismatch=False, folder=self.path).classifier
        left_out = {*self.record.tuning, *(self.record.data.duplicates or ())}
        judged = np.array([id_ not in left_out for id_ in self.predictions.ids], dtype=np.bool_)
        model = learn_shifts(
            policy,
            loaded,
            self.source,
            self.predictions.select(images=judged),
            images=images,
            seed=seed,
            store=self.path / SHIFTS,
            batch_size=batch_size,
            device=device,
            progress=progress,
        )
        return policy.model_copy(update={"shifts": model})

    def _policy(self, rule: Rule) -> Policy:
        return Policy.from_rule(
            rule,
            classifier=self.record.classifier,
            views=rule.list_views(self.record.views),
            data=self.record.data.spec,
            data_digest=self.record.data.digest,
            class_names=self.predictions.class_names,
        )

    def report(
        self,
        path: str | Path | None = None,
        *,
        delta: float | None = None,
        galleries: bool = True,
        progress: bool = True,
    ) -> RunReport:
        """Write the report of the run, by default to report.html in its folder.

        Risk and delta of the guarantees are those of the latest calibration of the run. If there is none, or `delta` is
        given, all methods of the report share `delta`, by default 0.001. The images are shown where they are still
        available; otherwise a note says why not.
        """
        target = self.path / REPORT if path is None else Path(path)
        settings = self.settings
        calibrations = Ledger.read(self.path).on_images(self.record.data.digest)
        calibration = latest_calibration([one for one in calibrations if self._concerns(one)]) if delta is None else ()
        notes = [_ood_note(settings["ood"])] if "ood" in settings else []
        if len(calibrations) > len(calibration) > 0:
            notes.append(_joint_note(calibrations))
        if calibration and calibration[0].is_adaptive:
            notes.append(ADAPTIVE_NOTE)
        if calibration and calibration[0].is_per_class:
            notes.append(PER_CLASS_NOTE)
        image = None
        if galleries:
            try:
                self.image(0)
                image = self.image
            except SecondLookError as error:
                notes.append(f"No images in the report: {error}")
        terms = _describe_terms(calibration, delta)
        if calibration:
            delta = joint_failure_probability(calibration)
        write_report(
            self.predictions,
            target,
            title=self.title,
            methods=settings.get("method"),
            metrics=settings.get("metric") or DEFAULT_METRICS,
            level=settings.get("level", 0.95),
            resamples=settings.get("resamples", 500),
            predict_from=self.predict_from,
            top_k=self.top_k,
            risk=calibration[0].risk if calibration else None,
            delta=DEFAULT_DELTA if delta is None else delta,
            calibrated=[one.method for one in calibration if not one.is_adaptive and not one.is_per_class],
            duplicates=self.record.data.duplicates or (),
            tuning=self._tuning,
            seed=settings.get("seed", 0),
            image=image,
            facts={**self._facts(), "risk and delta": terms},
            warnings=self.record.warnings,
            notes=notes,
            command=self.command,
            progress=progress,
        )
        return RunReport(target, tuple(notes), terms)

    def _concerns(self, calibration: RecordedCalibration) -> bool:
        """Return whether a calibration is about a confidence that the report shows."""
        shown = (self.record.predictions, self.record.views, self.predict_from, self.top_k)
        one = calibration
        return not one.options and (one.predictions, one.views, one.predict_from, one.top_k) == shown

    def _facts(self) -> dict[str, str]:
        """Return how the run came about, as the report shows it."""
        classifier, data = self.record.classifier, self.record.data
        return {
            "classifier": classifier.name,
            "classifier digest": classifier.digest,
            "output": classifier.output,
            "preprocessing": str(self.preprocessing),
            "images": data.spec,
            "images digest": data.digest,
            "views": " ".join(self.record.views),
            "seed": str(self.settings.get("seed", 0)),
            "secondlook": self.record.secondlook,
        }


def _describe_terms(calibration: Sequence[RecordedCalibration], delta: float | None) -> str:
    """Return where the risk and the delta of a report come from."""
    if calibration:
        methods = " and ".join(one.method for one in calibration)
        methods += ", adaptive" if calibration[0].is_adaptive else ""
        methods += ", with a threshold for each class" if calibration[0].is_per_class else ""
        delta = joint_failure_probability(calibration)
        return f"risk {calibration[0].risk:g} and delta {delta:g} of the latest calibration of the run, for {methods}"
    if delta is not None:
        return f"delta {delta:g} as given; the risk follows from the error rate"
    return f"delta {DEFAULT_DELTA:g} by default: the run has no calibration; the risk follows from the error rate"


def _joint_note(calibrations: Sequence[RecordedCalibration]) -> str:
    joint_delta = 100 * joint_failure_probability(calibrations)
    return (
        f"{len(calibrations)} different calibrations used these images: the probability that one of their guarantees "
        f"fails is up to {joint_delta:.4g} %."
    )


def open_run(path: str | Path) -> Run:
    """Open the folder of a run."""
    folder = Path(path)
    record = folder / RECORD
    try:
        return Run(folder, RunRecord.model_validate_json(record.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        found = f"there is no {RECORD} in it" if folder.exists() else "it does not exist"
        raise PredictionsError(
            f"{str(folder)!r} is not a run folder: {found}; expected a folder that an evaluation wrote."
        ) from None
    except OSError as error:
        raise PredictionsError(
            f"the run {str(record)!r} cannot be read: {error.strerror}; check its permissions."
        ) from None
    except ValidationError as error:
        raise PredictionsError(
            f"the run {str(record)!r} is damaged or of another version, {describe_invalid(error)}; evaluate again into "
            "the same folder: stored predictions are reused."
        ) from None


def write_run(path: Path, record: RunRecord, evaluation: Mapping[str, object]) -> Run:
    """Write the settings, the evaluation and the record of a run, the record last; remove the report of another one."""
    record = record.model_copy(update={"evaluation": compute_checksum(evaluation)})
    contents = {
        SETTINGS: format_settings("evaluate", record.settings),
        EVALUATION: json.dumps(evaluation, indent=2, ensure_ascii=False) + "\n",
        RECORD: record.model_dump_json(indent=2) + "\n",
    }
    try:
        if (path / RECORD).is_file() and (path / RECORD).read_bytes() != contents[RECORD].encode():
            _remove_report(path)
    except OSError as error:
        raise ReportError(
            f"the report of an earlier evaluation in {str(path)!r} cannot be removed: {error.strerror}; remove "
            f"{REPORT} and {REPORT_FILES}, or choose another folder."
        ) from None
    for name, text in contents.items():
        try:
            write_bytes_atomically(path / name, text.encode())
        except OSError as error:
            raise ReportError(
                f"the run cannot be written to {str(path / name)!r}: {error.strerror}; free space or make the folder "
                "writable, and evaluate again: stored predictions are reused."
            ) from None
    return Run(path, record)


def _remove_report(folder: Path) -> None:
    """Remove the report of a run, the page first: it must not stand beside other numbers, nor without its files."""
    (folder / REPORT).unlink(missing_ok=True)
    files = folder / REPORT_FILES
    if files.is_dir():
        for path in files.iterdir():
            if path.suffix in (".csv", ".png", ".svg"):
                path.unlink()
        if not any(files.iterdir()):
            files.rmdir()


def format_settings(command: str, settings: Mapping[str, Any]) -> str:
    """Return settings as TOML that the `--config` option of a command reads."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    return "\n".join([f"[{command}]", *lines, ""])


def store_key(classifier: Classifier, source: Source) -> str:
    """Return the name of the entry, in the store of a run, of the predictions of a classifier on a source."""
    return entry_key(classifier, source)


def _ood_note(spec: str) -> str:
    return (
        f"This run was also evaluated on out-of-distribution images of {spec}; those numbers are in {EVALUATION}, not "
        "on this page."
    )
