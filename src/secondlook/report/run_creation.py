"""`create_run`: evaluate a classifier on labeled images and keep everything in one folder."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from secondlook.classifiers import Classifier, check_device, load_classifier
from secondlook.diagnosis import SetupWarning
from secondlook.diagnosis import check_setup as check_classifier_setup
from secondlook.errors import ReportError, SecondLookError, SourceError
from secondlook.estimators import find_method
from secondlook.evaluation import DEFAULT_METRICS, check_resampling
from secondlook.metrics import parse_metrics
from secondlook.predictions import (
    BatchSize,
    ClassNamesWarning,
    Engine,
    Execution,
    PredictFrom,
    check_predict_from,
    check_top_k,
    skip_by_default,
)
from secondlook.report.evaluation_job import EvaluationJob
from secondlook.report.run import (
    OOD_PREDICTIONS,
    PREDICTIONS,
    REPORT_FILES,
    STATISTICS,
    Run,
    RunRecord,
    open_run,
    store_key,
    write_run,
)
from secondlook.sources import OnError, Source, open_labeled, open_source
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from secondlook.views import AUTO, ViewSet, ViewsLike, ViewWarning, as_view_set


def create_run(
    classifier: object,
    data: Any,
    path: str | Path,
    *,
    views: ViewsLike = AUTO,
    labels: Any = None,
    methods: Iterable[str] | None = None,
    metrics: Iterable[str] | None = None,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    per_class: bool = False,
    ood: Any = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    batch_size: BatchSize = "auto",
    on_error: OnError | None = None,
    check_setup: bool = True,
    progress: bool = True,
    device: str = "auto",
    engine: Engine | None = None,
    keep_predictions: bool = True,
) -> Run:
    """Evaluate a classifier on labeled images and write the run to the folder `path`.

    An interrupted call resumes where it stopped: predictions that are stored in the folder are not computed again. A
    report in the folder is removed if the run is another one than before.

    If views are to be chosen or a method to be fitted, a quarter of the images, at most 1,000, is set apart for that;
    the run knows them, and neither evaluates nor certifies anything on them.

    Parameters
    ----------
    classifier
        A spec such as 'onnx:model.onnx', a model, a function, or a list of these (an ensemble).
    data, labels
        Labeled images: a spec such as 'folder:val/', or anything else that `open_source` accepts, such as an array
        uint8 [N, H, W, C], with `labels` int [N], or class names, if the images have no labels of their own.
    path
        The folder of the run; not one of the images.
    views
        A preset, view texts or a `ViewSet`; "auto" chooses views that suit the classifier and the images.
    methods, metrics
        Names of the confidence methods and metrics to evaluate; None for the defaults of `evaluate`.
    predict_from, top_k
        Predict the class from the "image" itself or from the mean over "views", and count a prediction as correct
        where the label is among the `top_k` leading classes.
    per_class
        Also evaluate each true class separately.
    ood
        Out-of-distribution images; every prediction for them counts as an error.
    level, resamples, seed
        Confidence level of the intervals, number of bootstrap resamples of the images, and random seed.
    batch_size, on_error
        Images per call of the classifier; "fail" or "skip" for an image that cannot be read.
    check_setup
        Whether to check the preprocessing and the class order on up to 256 of the images first, and warn if others are
        clearly better; see `check_setup`.
    progress
        Whether to show progress bars.
    device
        Where to classify: "auto", "cpu", "cuda" (all GPUs) or "cuda:N", see `collect`.
    engine
        Where chunks of the images are classified and reduced to what the evaluation needs to know of each image, such
        as `RayEngine()`; by default in this process. The evaluation is the same. `on_error` is then "skip" by default.
    keep_predictions
        Whether to store the outputs of all images. Without them, which is possible with an engine only, the run has its
        evaluation, but nothing else can be computed from it.
    """
    chosen_methods, chosen_metrics = list(methods or ()), list(metrics or ())
    _check_arguments(chosen_methods, chosen_metrics, predict_from)
    check_resampling(level, resamples, seed)
    check_device(device)
    if engine is None and not keep_predictions:
        raise ReportError("predictions can be left out with engine= only; pass one, or keep the predictions.")
    # The workers of an engine put their classifiers on devices of their own.
    loaded = load_classifier(classifier).on_device(device) if engine is None else load_classifier(classifier)
    if loaded.n_classes is not None:
        check_top_k(top_k, loaded.n_classes)
    # Numbers of NumPy are stored as those of Python.
    level, resamples, seed, top_k = float(level), int(resamples), int(seed), int(top_k)
    source = open_labeled(data, labels, loaded.class_names, on_error)
    if source.labels is None:
        raise SourceError(
            f"{source.spec!r} has no labels, which an evaluation needs; pass a folder per class, a table with a label "
            "column, or labels= with an array."
        )
    # Whatever classes those images have, they are none of the classifier's.
    outside = None if ood is None else open_source(ood, on_error=on_error).without_labels()
    if engine is not None and on_error is None:
        source = skip_by_default(source, data)
        outside = None if outside is None else skip_by_default(outside, ood)
    _check_apart(Path(path), [source] if outside is None else [source, outside])
    if not (isinstance(views, str) and views == AUTO):
        views = as_view_set(views)  # rejected before a folder is made
    folder = _make_folder(Path(path))
    wrong = _find_setup_warnings(folder, loaded, source, batch_size) if check_setup else ()
    for message in wrong:
        warnings.warn(message, SetupWarning, stacklevel=2)
    job = EvaluationJob(
        classifier=loaded,
        source=source,
        ood=outside,
        folder=folder,
        views=views,
        methods=chosen_methods,
        metrics=chosen_metrics or DEFAULT_METRICS,
        predict_from=predict_from,
        top_k=top_k,
        per_class=per_class,
        level=level,
        resamples=resamples,
        seed=seed,
        batch_size=batch_size,
        progress=progress,
        device=device,
    )
    found = job.evaluate_here() if engine is None else job.evaluate_with(engine, keep_predictions=keep_predictions)
    harmful = () if found.harmful is None else (found.harmful,)
    for message in harmful:
        warnings.warn(message, ViewWarning, stacklevel=2)
    settings = {
        "model": _model_specs(loaded),
        "data": source.spec,
        "out": str(path),
        "views": AUTO if found.choice else _views_text(found.views),
        "method": chosen_methods,
        "metric": chosen_metrics,
        "predict_from": predict_from,
        "top_k": top_k,
        "per_class": per_class,
        "ood": None if outside is None else outside.spec,
        "level": level,
        "resamples": resamples,
        "seed": seed,
        "batch_size": None if batch_size == "auto" else batch_size,
        "on_error": on_error,
        "no_check": not check_setup,
        "device": None if device == "auto" else device,
        "no_predictions": not keep_predictions,
    }
    record = RunRecord.create(
        _given(settings),
        loaded,
        source,
        found.views.texts,
        (*wrong, *harmful),
        tuning=found.tuning,
        view_choice=found.choice,
    )
    skipped = [{"id": id_, "reason": reason} for id_, reason in found.skipped]
    evaluation = {**found.evaluation.to_dict(), "skipped": skipped, "warnings": list(record.warnings)}
    return write_run(folder, record, evaluation)


def _check_arguments(methods: list[str], metrics: list[str], predict_from: str) -> None:
    """Reject before the classifier runs what would be rejected afterwards."""
    parse_metrics(metrics)
    for name in methods:
        find_method(name)
    check_predict_from(predict_from)


def _find_setup_warnings(
    folder: Path, classifier: Classifier, source: Source, batch_size: BatchSize
) -> tuple[str, ...]:
    """Check the setup, unless the folder has a checked run of the same classifier and images, which kept the result."""
    with suppress(SecondLookError):
        record = open_run(folder).record
        if record.predictions == store_key(classifier, source) and not record.settings.get("no_check"):
            return tuple(message for message in record.warnings if message.startswith(SetupWarning.START))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassNamesWarning)  # the evaluation itself warns
        execution = Execution(batch_size=batch_size, progress=False)
        return check_classifier_setup(classifier, source, quick=True, execution=execution).warnings


def _check_apart(folder: Path, sources: Iterable[Source]) -> None:
    """Reject a run folder whose files would lie among images: the next evaluation could read them as images."""
    written = [folder / name for name in (PREDICTIONS, OOD_PREDICTIONS, STATISTICS, REPORT_FILES)]
    for source in sources:
        images = _find_folder(source.spec)
        if images is None:
            continue
        if _contains(images, folder) or any(_contains(path, images) for path in written):
            raise ReportError(
                f"the run folder {str(folder)!r} would have its files among the images of {source.spec!r}; choose a "
                f"folder outside of them, such as '{images}-run'."
            )


def _find_folder(spec: str) -> Path | None:
    """Return the folder of the images of a source; None if they are not in a folder."""
    try:
        folder = parse_spec(spec).path
        return folder if folder.is_dir() else None
    except (SecondLookError, OSError, ValueError):  # the spec of an array, of a data set in memory
        return None


def _contains(folder: Path, path: Path) -> bool:
    """Whether a path is a folder or inside of it, whatever links lead there."""
    return path.resolve().is_relative_to(folder.resolve())


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"the folder {str(folder)!r} cannot be created: {error.strerror}; choose another.") from None
    return folder


def _model_specs(classifier: Classifier) -> list[str]:
    return classifier.name.split(MEMBER_SEPARATOR)


def _views_text(views: ViewSet) -> str:
    return views.preset.name if views.preset else str(views)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != []}
