"""Commands on labeled images: `evaluate` writes a run, `check` comes before, `report`, `compare`, `search` read it."""

import json
import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Argument, Option

from secondlook.cli import options
from secondlook.cli.options import ClusterExecution, LocalExecution, ModelOptions, PrintingLong
from secondlook.cli.wording import word_for
from secondlook.errors import MetricError
from secondlook.metrics import METRICS
from secondlook.policies import DEFAULT_DELTA
from secondlook.views import AUTO, ViewWarning

OBJECTIVES = ", ".join(metric.form for metric in METRICS.values() if metric.name != "accuracy")
"""All metrics but the one that does not depend on the views."""


def check(
    *,
    context: typer.Context,
    model: ModelOptions,
    data: options.Data,
    images: Annotated[
        int, Option("--images", min=1, help="Number of images to use, spread evenly over the data.")
    ] = 256,
    execution: LocalExecution,
    printing: PrintingLong,
) -> None:
    """Check preprocessing, order of channels and order of classes: try others on a few hundred images.

    The exit code is 0 if nothing is clearly better, and 1 if something is.

    Example: secondlook check --model onnx:m.onnx --data folder:val/
    """
    from secondlook.diagnosis import check_setup

    result = check_setup(model.load(), data, images=images, **execution.settings(progress=printing.progress))
    printing.print({**result.to_dict(), "verdict": word_for(context, result.verdict)}, word_for(context, str(result)))
    if not result.looks_right:
        raise typer.Exit(1)


def evaluate(
    *,
    context: typer.Context,
    model: ModelOptions,
    data: options.Data,
    out: Annotated[
        Path, Option("--out", metavar="DIR", help="Folder of the run; stored predictions in it are reused.")
    ],
    views: options.Views = AUTO,
    method: options.Methods = None,
    metric: options.Metrics = None,
    predict_from: options.PredictFromOption = "image",
    top_k: options.TopK = 1,
    per_class: Annotated[bool, Option("--per-class", help="Also evaluate each true class separately.")] = False,
    ood: Annotated[
        str | None, Option("--ood", metavar="SPEC", help="Out-of-distribution images, which count as errors.")
    ] = None,
    level: options.Level = 0.95,
    resamples: options.Resamples = 500,
    seed: options.Seed = 0,
    no_predictions: Annotated[
        bool,
        Option(
            "--no-predictions",
            help="With --engine ray, keep what the evaluation needs of each image, and not its predictions.",
        ),
    ] = False,
    no_check: Annotated[
        bool, Option("--no-check", help="Omit the check of preprocessing and class order on a few hundred images.")
    ] = False,
    execution: ClusterExecution,
    printing: PrintingLong,
) -> None:
    """Evaluate confidence methods on labeled images and write a run folder.

    Example: secondlook evaluate --model onnx:m.onnx --data folder:val/ --out run/
    """
    from secondlook.diagnosis import SetupWarning
    from secondlook.report import EVALUATION, REPORT, create_run

    classifier = model.load()
    options.require_partner({"--no-predictions": no_predictions}, "--engine ray", execution.engine == "ray")
    had_report = (out / REPORT).is_file()
    with warnings.catch_warnings(), execution.open(progress=printing.progress) as settings:
        if printing.quiet:
            warnings.simplefilter("ignore", ViewWarning)
            warnings.simplefilter("ignore", SetupWarning)
        run = create_run(
            classifier,
            data,
            views,
            out=out,
            ood=ood,
            per_class=per_class,
            check_setup=not no_check,
            execution=Execution(
                device=device,
                batch_size=batch_size or "auto",
                engine=opened,
                on_error=on_error,
                progress=not (quiet or no_progress),
            ),
            methods=method,
            metrics=metric,
            predict_from=predict_from,
            top_k=top_k,
            level=level,
            resamples=resamples,
            seed=seed,
            keep_predictions=not no_predictions,
            check_setup=not no_check,
            **settings,
        )
    if printing.as_json:
        typer.echo(json.dumps(json.loads((run.path / EVALUATION).read_bytes()), ensure_ascii=False))
    elif not printing.quiet:
        if run.record.view_choice is not None:
            typer.echo(f"{run.record.view_choice}\n")
        typer.echo(word_for(context, str(run.evaluation)))
        if had_report and not (out / REPORT).exists():
            typer.echo(f"\nRemoved {out / REPORT}, which showed the evaluation before this one.")
        _print_next_step(run.path, len(run.skipped), has_predictions=not no_predictions)


def _print_next_step(path: Path, skipped: int, *, has_predictions: bool) -> None:
    folder = quote(str(path))
    if skipped:
        typer.echo(f"\n{skipped} image(s) could not be read and were skipped; secondlook info {folder} lists them.")
    following = f"secondlook report {folder}, or secondlook calibrate --run {folder} --risk 0.01"
    typer.echo(f"\nSaved in {path}." + (f" Next: {following}" if has_predictions else ""))


def report(
    *,
    run: Annotated[Path, Argument(metavar="RUN", help="Run folder that secondlook evaluate wrote.")],
    out: Annotated[
        Path | None, Option("--out", metavar="FILE", help="HTML file to write.", show_default="RUN/report.html")
    ] = None,
    delta: Annotated[
        float | None,
        Option(
            help="Failure probability of the guarantees, shared by all methods.",
            show_default=f"that of the latest calibration of the run, otherwise {DEFAULT_DELTA:g}",
        ),
    ] = None,
    galleries: Annotated[bool, Option(help="Show images, where they are still available.")] = True,
    printing: PrintingLong,
) -> None:
    """Write a self-contained HTML page that works offline and can be sent to a colleague.

    Example: secondlook report run/
    """
    from secondlook.report import open_run

    opened = open_run(run)
    written = opened.report(out, delta=delta, galleries=galleries, progress=printing.progress)
    for message in () if printing.quiet else opened.record.warnings:
        warnings.warn(message, ViewWarning, stacklevel=1)
    content = {
        "report": str(written.path),
        "guarantees": written.terms,
        "notes": written.notes,
        "warnings": opened.record.warnings,
    }
    lines = [*written.notes, f"Guarantees with {written.terms}.", f"Report written to {written.path}"]
    printing.print(content, "\n".join(lines))


def compare(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Run folders on the same images.")],
    method: options.Methods = None,
    metric: options.Metrics = None,
    predict_from: options.PredictFromOfRun = None,
    top_k: options.TopKOfRun = None,
    level: options.Level = 0.95,
    resamples: options.Resamples = 500,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.Json = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Compare runs on the images they share; differences are to the first row.

    Example: secondlook compare run-a/ run-b/ --metric auroc
    """
    from secondlook.evaluation import compare as compare_predictions
    from secondlook.report import open_run

    places = [path.resolve() for path in runs]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise MetricError(f"duplicate run {str(runs[index])!r}; give each run once.")
    opened = {str(path): open_run(path) for path in runs}
    first = next(iter(opened.values()))
    chosen = {name: value for name, value in {"methods": method, "metrics": metric}.items() if value}
    result = compare_predictions(
        opened,
        **chosen,
        predict_from=predict_from or first.predict_from,
        top_k=top_k or first.top_k,
        level=level,
        resamples=resamples,
        seed=seed,
        progress=not no_progress,
    )
    typer.echo(json.dumps(result.to_dict(), ensure_ascii=False) if as_json else str(result))


def search(
    *,
    run: Annotated[Path, Option("--run", metavar="DIR", help="Run folder with all candidate views and labels.")],
    budget: Annotated[int, Option(help="Number of views to choose, in addition to the image itself.")] = 12,
    objective: Annotated[str, Option(metavar="METRIC", help=f"Metric to improve: {OBJECTIVES}.")] = "auroc",
    preset: Annotated[
        str | None, Option(metavar="SET", help=f"Views to compare with, all of them in the run. {options.VIEWS_HELP}")
    ] = None,
    out: Annotated[
        Path | None, Option("--out", metavar="FILE.txt", help="Text file for the chosen views, with a plot beside it.")
    ] = None,
    curve: Annotated[
        Path | None,
        Option(
            "--curve",
            metavar="FILE.png",
            help="Plot of the gain over the number of views.",
            show_default="FILE.png of --out",
        ),
    ] = None,
    seed: options.Seed = 0,
    printing: PrintingLong,
) -> None:
    """Choose views from the stored predictions of a run, judged on images they were not chosen on.

    Example: secondlook search --run run/ --budget 12 --out views.txt
    """
    from secondlook.diagnosis import search_views
    from secondlook.report import open_run

    opened = open_run(run)
    result = search_views(
        opened.predictions, budget, objective, preset=preset, top_k=opened.top_k, seed=seed, progress=printing.progress
    )
    if printing.is_text:
        typer.echo(str(result))
    plot = curve or (out.with_suffix(".png") if out and out.name else None)
    files = []
    for write, path in ((result.write, out), (result.plot, plot)):
        if path is not None:
            files.append(str(write(path)))
            if printing.is_text:
                typer.echo(f"Written: {path}")
    if printing.as_json:
        typer.echo(json.dumps({**result.to_dict(), "files": files}, ensure_ascii=False))
