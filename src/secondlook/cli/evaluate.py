"""`secondlook evaluate`: how well does this classifier know when it is wrong, and how much does a second look help?"""

import json
import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from secondlook.cli import options
from secondlook.cli.config import Config, settings_of
from secondlook.errors import MetricError, SourceError
from secondlook.evaluation import Evaluation


def evaluate(
    context: typer.Context,
    model: options.Models,
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the run; what is there is used again.")],
    views: options.Views = "natural",
    output: options.Output = None,
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    model_options: options.ModelOptions = None,
    method: options.Methods = None,
    metric: options.Metrics = None,
    predict_from: options.PredictFrom = "image",
    top_k: options.TopK = 1,
    per_class: Annotated[bool, typer.Option("--per-class", help="Give every number for each true class too.")] = False,
    ood: Annotated[
        str | None, typer.Option("--ood", metavar="SPEC", help="Images of no class at all; they count as errors.")
    ] = None,
    level: options.Level = 0.95,
    resamples: options.Resamples = 500,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    on_error: options.OnError = "fail",
    config: Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Evaluate confidences on labeled images.

    Example: secondlook evaluate --model onnx:m.onnx --data folder:val/ --views natural --out run/
    """
    from secondlook.diagnosis import harmful_view_warnings
    from secondlook.evaluation import DEFAULT_METRICS
    from secondlook.evaluation import evaluate as evaluate_predictions
    from secondlook.predictions import check_top_k, collect
    from secondlook.runs import PREDICTIONS, record_of, write_run
    from secondlook.sources import open_source
    from secondlook.views import ViewSet

    _check_question(method or [], metric or [], predict_from, level)
    classifier = options.load_models(
        model, output=output, mean=mean, std=std, resize=resize, crop=crop, model_options=model_options
    )
    if classifier.n_classes is not None:
        check_top_k(top_k, classifier.n_classes)
    unreadable: Any = None if on_error == "fail" else on_error  # checked where it is used, with a sentence
    source = open_source(data, on_error=unreadable)
    if source.labels is None:
        raise SourceError(
            f"{source.spec!r} has no labels, and without them nothing can be evaluated; "
            "give a folder per class, or a table with a label column."
        )
    # Whatever classes those images have, they are none of the classifier's.
    others = None if ood is None else open_source(ood, on_error=unreadable).without_labels()
    view_set = ViewSet(views)
    store = options.path_in(out, PREDICTIONS)
    progress = not (quiet or no_progress)
    preds = collect(classifier, source, view_set, store=store, batch_size=batch_size or "auto", progress=progress)
    elsewhere = None
    if others is not None:
        elsewhere = collect(
            classifier, others, view_set, store=out / "ood", batch_size=batch_size or "auto", progress=progress
        )
    harmful = tuple(harmful_view_warnings(preds))
    if not quiet:
        for sentence in harmful:
            warnings.warn(sentence, stacklevel=1)
    result = evaluate_predictions(
        preds,
        method or None,
        metric or DEFAULT_METRICS,
        predict_from=predict_from,  # type: ignore[arg-type]  # checked there, with a sentence
        top_k=top_k,
        groups="class" if per_class else None,
        ood=elsewhere,
        level=level,
        resamples=resamples,
        seed=seed,
        progress=progress,
    )
    record = record_of(settings_of(context), classifier, source, view_set.texts, harmful)
    skipped = [{"id": name, "reason": reason} for name, reason in preds.skipped]
    told = {**result.to_dict(), "skipped": skipped, "warnings": list(harmful)}
    write_run(out, record, told)
    if as_json:
        typer.echo(json.dumps(told, ensure_ascii=False))
    elif not quiet:
        _tell(result, out, len(skipped))


def _check_question(methods: list[str], metrics: list[str], predict_from: str, level: float) -> None:
    """Refuse before the classifier is asked what would be refused afterwards."""
    from secondlook.estimators import (
        METHODS,  # noqa: F401 -- fills the registry
        find_method,
    )
    from secondlook.metrics import parse_metrics
    from secondlook.predictions import check_predict_from

    parse_metrics(metrics)
    for name in methods:
        find_method(name)
    check_predict_from(predict_from)
    if not 0 < level < 1:
        raise MetricError(f"level is {level}, expected a share in (0, 1), such as 0.95.")


def _tell(result: Evaluation, out: Path, skipped: int) -> None:
    run = quote(str(out))
    typer.echo(str(result))
    if skipped:
        typer.echo(f"\n{skipped} image(s) could not be read and were left out; secondlook info {run} lists them.")
    typer.echo(f"\nKept in {out}. Next: secondlook report {run}, or secondlook calibrate --run {run} --risk 0.01")
