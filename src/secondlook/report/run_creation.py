"""`create_run`: evaluate a classifier on labeled images and store everything in one folder."""

import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import secondlook
from secondlook.classifiers import Classifier, load_classifier
from secondlook.diagnosis import SetupWarning, collect_views, diagnose_views, warn_about_setup
from secondlook.diagnosis import check_setup as check_classifier_setup
from secondlook.errors import ANY, Repair, ReportError, SecondLookError, SourceError
from secondlook.estimators import find_method, needs_fitting
from secondlook.evaluation import DEFAULT_METRICS, evaluate
from secondlook.files import compute_checksum
from secondlook.policies import DEFAULT_DELTA
from secondlook.predictions import (
    DEFAULT_EXECUTION,
    BatchSize,
    ClassifierRecord,
    ClassNamesWarning,
    Execution,
    check_prediction,
    collect,
    entry_key,
    skip_by_default,
)
from secondlook.report.run import (
    PREDICTIONS,
    REPORT_FILES,
    UNKNOWN_PREDICTIONS,
    Run,
    RunData,
    RunRecord,
    RunSettings,
    UnknownData,
    open_run,
    write_run,
)
from secondlook.report.study import EvaluationSettings, build_study
from secondlook.report.unknown import certify_on_unknowns
from secondlook.sources import Source, open_source
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from secondlook.views import AUTO, ViewSet, ViewsLike, ViewWarning


def create_run(
    classifier: object,
    data: Any,
    views: ViewsLike = AUTO,
    *,
    out: str | Path,
    labels: Any = None,
    unknown: Any = None,
    per_class: bool = False,
    check_setup: bool = True,
    execution: Execution = DEFAULT_EXECUTION,
    **options: Any,
) -> Run:
    """Evaluate a classifier on labeled images and write the run to the folder `out`.

    An interrupted call resumes: predictions stored in the folder are reused. If the run differs from the previous one
    in the folder, its old report is removed.

    To choose views or fit methods, a quarter of the images, at most 1,000, becomes tuning images, which are excluded
    from evaluation and certification.

    Parameters
    ----------
    classifier
        A spec like 'onnx:model.onnx', a model, a function, or a list of these (an ensemble).
    data, labels
        Labeled images: a spec like 'folder:val/', or any other input of `open_source`, e.g. an array uint8
        [N, H, W, C]. `labels` are int [N] or class names, for images without labels.
    views
        A preset, view texts or a `ViewSet`; "auto" chooses views for the classifier and the images.
    out
        The folder of the run; must be outside the folders of the images.
    unknown
        Images of none of the classes (out-of-distribution images); every prediction for them counts as an error.
    per_class
        Also evaluate each true class separately.
    check_setup
        Whether to check preprocessing and class order on up to 256 images first, and warn if another setup is clearly
        better; see `check_setup`.
    execution
        Device, batch size, engine and so on. Results do not depend on the engine.
    **options
        Options of `evaluate`: `methods`, `metrics`, `predict_from`, `top_k`, `level`, `resamples` and `seed`.
    """
    settings, engine, on_error = EvaluationSettings.from_options(**options), execution.engine, execution.on_error
    loaded = load_classifier(classifier)
    # The workers of an engine choose their own devices.
    loaded = loaded.on_device(execution.device) if engine is None else loaded
    if loaded.n_classes is not None:
        check_prediction(settings.predict_from, settings.top_k, loaded.n_classes)
    # NumPy numbers become Python numbers.
    settings = replace(settings, methods=settings.methods or None, top_k=int(settings.top_k))
    source = loaded.open_labeled(data, labels, on_error)
    if source.labels is None:
        repair = Repair("pass a folder per class, a table with a label column, or {labels}", labels=ANY)
        raise SourceError(f"{source.spec!r} has no labels, which an evaluation needs", repair=repair)
    # Any labels of unknown images are not classes of the classifier.
    outside = None if unknown is None else open_source(unknown, on_error=on_error).without_labels()
    if engine is not None and on_error is None:
        source = skip_by_default(source, data)
        outside = None if outside is None else skip_by_default(outside, unknown)
    folder = Path(out)
    _check_apart(folder, [source] if outside is None else [source, outside])
    if not (isinstance(views, str) and views == AUTO):
        views = ViewSet(views)  # invalid views fail before the folder is created
    key = entry_key(loaded, source)  # functions without a name fail too
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot create the folder {str(folder)!r}: {error.strerror}; choose another.") from None
    wrong = _check_setup(folder, loaded, source, execution.batch_size) if check_setup else ()
    for message in wrong:
        warnings.warn(message, SetupWarning, stacklevel=2)
    store = folder / PREDICTIONS
    preds, tuning, choice = collect_views(loaded, source, views, top_k=settings.top_k, store=store, execution=execution)
    must_fit = any(map(needs_fitting, settings.methods or ()))
    tuning = tuning if choice is not None or must_fit else tuning[:0]
    none_of_these = None
    if outside is not None:
        none_of_these = collect(loaded, outside, preds.views, store=folder / UNKNOWN_PREDICTIONS, execution=execution)
    judging: dict[str, Any] = {"unknown": none_of_these, "tuning": tuning if len(tuning) else None}
    wrong = wrong or warn_about_setup(preds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetupWarning)  # given above
        evaluation = evaluate(
            preds, groups="class" if per_class else None, execution=execution, **judging, **vars(settings)
        )
    duplicates = tuple(source.ids[index] for index in source.find_duplicates())
    # Thresholds of rank methods do not apply to other images.
    methods = tuple(name for name in evaluation.methods if not find_method(name).is_rank)
    accepted = {}
    if outside is not None and methods:
        options = {**vars(settings), **judging, "methods": methods}
        study = build_study(preds, duplicates=duplicates, progress=execution.progress, **options)
        accepted = {"unknown": certify_on_unknowns(study, DEFAULT_DELTA)}
    if choice is None and (
        harmful := diagnose_views(preds, top_k=settings.top_k, max_images=10_000).describe_harmful()
    ):
        warnings.warn(harmful, ViewWarning, stacklevel=2)
        wrong = (*wrong, harmful)
    content = {
        **evaluation.to_dict(),
        "skipped": [{"id": id_, "reason": reason} for id_, reason in preds.skipped],
        "warnings": list(wrong),
        **accepted,
    }
    given: dict[str, Any] = {
        "model": loaded.name.split(MEMBER_SEPARATOR),
        "data": source.spec,
        "out": str(out),
        "views": AUTO if choice else preds.views.preset.name if preds.views.preset else str(preds.views),
        "method": list(settings.methods or ()),
        "metric": [] if settings.metrics == DEFAULT_METRICS else list(settings.metrics),
        "predict_from": settings.predict_from,
        "top_k": settings.top_k,
        "per_class": per_class,
        "unknown": None if outside is None else outside.spec,
        "level": settings.level,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "batch_size": None if execution.batch_size == "auto" else execution.batch_size,
        "on_error": on_error,
        "no_check": not check_setup,
        "device": None if execution.device == "auto" else execution.device,
    }
    # Omit default values, but not 0.
    recorded = {name: one for name, one in given.items() if one is not None and one is not False and one != []}
    record = RunRecord(
        secondlook=secondlook.__version__,
        settings=cast(RunSettings, recorded),
        classifier=ClassifierRecord.describe(loaded),
        data=RunData(
            spec=source.spec,
            digest=source.digest,
            images=len(source),
            class_names=source.class_names,
            duplicates=duplicates,
        ),
        unknown=None
        if outside is None
        else UnknownData(spec=outside.spec, digest=outside.digest, predictions=entry_key(loaded, outside)),
        views=preds.views.texts,
        predictions=key,
        warnings=wrong,
        evaluation=compute_checksum(content),
        tuning=tuple(preds.ids[position] for position in tuning),
        view_choice=choice,
    )
    return write_run(folder, record, content)


def _check_setup(folder: Path, classifier: Classifier, source: Source, batch_size: BatchSize) -> tuple[str, ...]:
    """Check the setup, or reuse the result if the folder has a checked run of the same classifier and images."""
    with suppress(SecondLookError):
        record = open_run(folder).record
        if record.predictions == entry_key(classifier, source) and not record.settings.get("no_check"):
            return tuple(message for message in record.warnings if message.startswith(SetupWarning.START))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassNamesWarning)  # the evaluation itself warns
        execution = Execution(batch_size=batch_size, progress=False)
        return check_classifier_setup(classifier, source, quick=True, execution=execution).warnings


def _check_apart(folder: Path, sources: Iterable[Source]) -> None:
    """Reject a run folder with files in an image folder: the next evaluation could read them as images."""
    for source in sources:
        try:
            images = parse_spec(source.spec).path
            is_folder = images.is_dir()
        except (SecondLookError, OSError, ValueError):  # data in memory
            continue
        pairs = [
            (folder, images),
            *((images, folder / name) for name in (PREDICTIONS, UNKNOWN_PREDICTIONS, REPORT_FILES)),
        ]
        if is_folder and any(inner.resolve().is_relative_to(outer.resolve()) for inner, outer in pairs):
            fault = f"the files of the run folder {str(folder)!r} would be among the images of {source.spec!r}"
            raise ReportError(fault, repair=f"choose a folder outside of them, e.g. '{images}-run'")
