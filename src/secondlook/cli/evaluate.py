"""`secondlook evaluate`: how well a classifier knows when it is wrong, and how much more views help."""

import json
import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.cli.messages import list_flags, name_options
from secondlook.views import AUTO


def evaluate(
    context: typer.Context,
    model: options.Models,
    data: options.Data,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the run; stored predictions in it are reused.")
    ],
    views: options.Views = AUTO,
    output: options.OutputOption = None,
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    model_options: options.ModelOptions = None,
    header_from_env: options.HeaderFromEnv = None,
    method: options.Methods = None,
    metric: options.Metrics = None,
    predict_from: options.PredictFromOption = "image",
    top_k: options.TopK = 1,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also evaluate each true class separately.")] = False,
    ood: Annotated[
        str | None,
        typer.Option("--ood", metavar="SPEC", help="Out-of-distribution images, which count as errors."),
    ] = None,
    level: options.Level = 0.95,
    resamples: options.Resamples = 500,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    cpus_per_worker: options.CpusPerWorker = None,
    gpus_per_worker: options.GpusPerWorker = None,
    on_error: options.OnErrorOfEngine = None,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="Omit the check of preprocessing and class order on a few hundred images."),
    ] = False,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Evaluate confidence methods on labeled images and write a run folder.

    Example: secondlook evaluate --model onnx:m.onnx --data folder:val/ --out run/
    """
    from secondlook.diagnosis import SetupWarning
    from secondlook.predictions import Execution
    from secondlook.report import Run, create_run
    from secondlook.views import ViewWarning

    classifier = options.load_models(
        model,
        output=output,
        mean=mean,
        std=std,
        resize=resize,
        crop=crop,
        model_options=model_options,
        header_from_env=header_from_env,
    )
    report = out / Run.REPORT
    had_report = report.is_file()
    with (
        warnings.catch_warnings(),
        options.open_engine(engine, address, workers, cpus_per_worker, gpus_per_worker) as opened,
    ):
        if quiet:
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
        )
    if as_json:
        typer.echo(json.dumps(run.evaluation_content, ensure_ascii=False))
    elif not quiet:
        if run.record.view_choice is not None:
            typer.echo(f"{run.record.view_choice}\n")
        typer.echo(name_options(str(run.evaluation), list_flags(context.command)))
        if had_report and not report.exists():
            typer.echo(f"\nRemoved {report}, which showed the evaluation before this one.")
        _print_following(run.path, len(run.skipped))


def _print_following(path: Path, skipped: int) -> None:
    folder = quote(str(path))
    if skipped:
        typer.echo(f"\n{skipped} image(s) could not be read and were skipped; secondlook info {folder} lists them.")
    following = f"secondlook report {folder}, or secondlook calibrate --run {folder} --risk 0.01"
    typer.echo(f"\nSaved in {path}. Next: {following}")
