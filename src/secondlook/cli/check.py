"""`secondlook check`: whether a model is used with the preprocessing and class order that it was trained with."""

import json
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.cli.messages import list_flags, name_options


def check(
    context: typer.Context,
    model: options.Models,
    data: options.Data,
    images: Annotated[
        int, typer.Option("--images", min=1, help="Number of images to use, spread evenly over the data.")
    ] = 256,
    output: options.OutputOption = None,
    mean: options.Mean = None,
    std: options.Std = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    model_options: options.ModelOptions = None,
    header_from_env: options.HeaderFromEnv = None,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    on_error: options.OnErrorOption = "fail",
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Check preprocessing, order of channels and order of classes: try others on a few hundred images.

    The exit code is 0 if nothing is clearly better, and 1 if something is.

    Example: secondlook check --model onnx:m.onnx --data folder:val/
    """
    from secondlook.diagnosis import check_setup
    from secondlook.predictions import Execution

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
    result = check_setup(
        classifier,
        data,
        n_images=images,
        execution=Execution(
            device=device,
            batch_size=batch_size or "auto",
            on_error=options.choose_on_error(on_error),
            progress=not (quiet or no_progress),
        ),
    )
    flags = list_flags(context.command)
    if as_json:
        typer.echo(json.dumps({**result.to_dict(), "verdict": name_options(result.verdict, flags)}, ensure_ascii=False))
    elif not quiet:
        typer.echo(name_options(str(result), flags))
    if not result.looks_right:
        raise typer.Exit(1)
