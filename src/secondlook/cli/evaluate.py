"""Commands for labeled images: `check` the setup, `evaluate` into a run, and `report`, `compare`, `search` runs."""

import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Argument, Option

from secondlook.cli import options
from secondlook.cli.options import ClusterExecution, EvaluationOptions, LocalExecution, ModelOptions, Printing
from secondlook.errors import MetricError
from secondlook.policies import DEFAULT_DELTA
from secondlook.views import AUTO, ViewWarning


def check(
    *,
    model: ModelOptions,
    data: options.Data,
    limit: options.Limit = 256,
    execution: LocalExecution,
    printing: Printing,
) -> None:
    """Check the preprocessing, the order of channels and the order of classes on a few hundred images.

    The check tries others. The exit code is 1 if one is clearly better, and 0 otherwise.

    Example: secondlook check --model onnx:m.onnx --data folder:val/
    """
    from secondlook.cli.app import find_flags
    from secondlook.cli.wording import name_option
    from secondlook.diagnosis import check_setup

    settings = execution.make(printing.progress)  # checked before the model is loaded
    result = check_setup(model.load(), data, n_images=limit, execution=settings)
    # Options apply to all members of an ensemble, but the members may need different ones.
    better = result.better.settings if result.better and not result.members else {}
    to_add = " ".join(name_option(find_flags(["check"]), name, value) for name, value in better.items())
    printing.print({**result.to_dict(), "options": to_add}, f"{result}\nOptions to add: {to_add}" if to_add else result)
    if not result.looks_right:
        raise typer.Exit(1)


def evaluate(
    *,
    model: ModelOptions,
    data: options.Data,
    out: Annotated[Path, Option(metavar="DIR", help="Folder of the run; stored predictions in it are reused.")],
    views: options.Views = AUTO,
    evaluating: EvaluationOptions,
    per_class: Annotated[bool, Option("--per-class", help="Also evaluate each true class separately.")] = False,
    unknown: Annotated[
        str | None,
        Option(metavar="SPEC", help=f"{options.UNKNOWN_HELP} They count as errors."),
    ] = None,
    no_check: Annotated[bool, Option("--no-check", help="Omit the check of preprocessing and class order.")] = False,
    verbose: Annotated[bool, Option("--verbose", help=options.VERBOSE_HELP)] = False,
    execution: ClusterExecution,
    printing: Printing,
) -> None:
    """Evaluate confidence methods on labeled images and write a run folder.

    Example: secondlook evaluate --model onnx:m.onnx --data folder:val/ --out run/
    """
    from secondlook.report import Run, create_run

    report_file = out / Run.REPORT
    had_report = report_file.is_file()
    with execution.open(printing.progress) as settings:
        run = create_run(
            model.load(),
            data,
            views,
            out=out,
            unknown=unknown,
            per_class=per_class,
            check_setup=not no_check,
            execution=settings,
            **evaluating.make(),
        )
    folder, choice = quote(str(run.path)), run.record.view_choice
    lines = [run.evaluation.details() if verbose else str(run.evaluation)]
    if choice is not None:
        lines.append(f"{choice}\n\n{choice.details()}" if verbose else str(choice))
    if run.accepted_unknowns is not None:
        lines.append(run.accepted_unknowns)
    compared = run.evaluation.image_or_views
    if compared is not None and compared.recommended not in (None, run.predict_from):
        lines.append(f"Options to add: --predict-from {compared.recommended}")
    if had_report and not report_file.exists():
        lines.append(f"Removed {report_file}, the report of the previous evaluation.")
    if run.skipped:
        lines.append(f"{len(run.skipped)} unreadable image(s) were skipped; secondlook info {folder} lists them.")
    calibrate = f"secondlook calibrate --run {folder} --risk 0.01"
    every = f" (every class: {run.path / 'evaluation.json'})" if per_class else ""
    lines.append(f"Saved in {run.path}{every}. Next: secondlook report {folder}, or {calibrate}")
    printing.print(run.evaluation_content, "\n\n".join(lines))


def report(
    *,
    run: Annotated[Path, Argument(metavar="RUN", help="Run folder that secondlook evaluate wrote.")],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="HTML file to write.", show_default="RUN/report.html")
    ] = None,
    delta: Annotated[
        float | None,
        Option(
            help=f"{options.DELTA_HELP} All methods of the report share it.",
            show_default=f"that of the latest calibration of the run, otherwise {DEFAULT_DELTA:g}",
        ),
    ] = None,
    galleries: Annotated[bool, Option(help="Show images, where they are still available.")] = True,
    printing: Printing,
) -> None:
    """Write the report of a run: one HTML page that works offline.

    Example: secondlook report run/
    """
    from secondlook.report import open_run

    opened = open_run(run)
    written = opened.report(out, delta=delta, galleries=galleries, progress=printing.progress)
    for message in opened.record.warnings:
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
    *,
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Run folders on the same images.")],
    evaluating: EvaluationOptions,
    printing: Printing,
) -> None:
    """Compare runs on the same images. Differences are to the first row.

    Example: secondlook compare run-a/ run-b/ --metric auroc
    """
    from secondlook.evaluation import compare as compare_predictions
    from secondlook.predictions import Execution
    from secondlook.report import open_run

    places = [path.resolve() for path in runs]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise MetricError(f"duplicate run {str(runs[index])!r}; give each run once.")
    opened = {str(path): open_run(path) for path in runs}
    first = next(iter(opened.values()))
    chosen = {"predict_from": first.predict_from, "top_k": first.top_k, **evaluating.make()}
    result = compare_predictions(opened, **chosen, execution=Execution(progress=printing.progress))
    printing.print(result.to_dict(), result)


def search(
    *,
    run: Annotated[Path, Option(metavar="DIR", help=f"{options.RUN_HELP} Its views are the candidates.")],
    budget: Annotated[int, Option(help="Largest number of views to choose, in addition to the image itself.")] = 12,
    out: Annotated[Path | None, Option(metavar="FILE.txt", help="Text file for the chosen views.")] = None,
    printing: Printing,
) -> None:
    """Choose views from the stored predictions of a run, and leave out harmful ones.

    Example: secondlook search --run run/ --budget 12 --out views.txt
    """
    from secondlook.diagnosis import choose_views
    from secondlook.report import open_run

    opened = open_run(run)
    choice = choose_views(opened.predictions, budget=budget, top_k=opened.top_k)
    written = [] if out is None else [str(choice.write(out))]
    text = "\n".join([str(choice), *(f"Written: {path}" for path in written)])
    printing.print({**choice.model_dump(mode="json"), "files": written}, text)
