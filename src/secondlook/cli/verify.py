"""`secondlook verify`: whether an exported file decides as the library does."""

import json
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli import options

FAILED = 3
"""Exit code for scripts: the file decides otherwise."""


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="ONNX file that export wrote.")],
    policy: Annotated[Path, typer.Option("--policy", metavar="FILE", help="Policy file that was exported.")],
    data: options.Data,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="SPEC", help="Classifier of the policy, if it is not an ONNX file or now somewhere else."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, help="Largest difference of a confidence that is taken for rounding.", show_default="0.001"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of images to compare, spread evenly over the data.", show_default="all images"
        ),
    ] = None,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    on_error: options.OnErrorOption = "fail",
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Compare an exported file with the library, image by image.

    The exit code is 0 if all decisions are the same but for rounding, and 3 if not.

    Example: secondlook verify decide.onnx --policy policy.json --data folder:val/
    """
    from secondlook.onnx_export import DEFAULT_DIFFERENCE, verify_decider

    result = verify_decider(
        file,
        policy,
        data,
        classifier=model or None,
        tolerance=DEFAULT_DIFFERENCE if tolerance is None else tolerance,
        limit=limit,
        batch_size=batch_size or "auto",
        device=device,
        on_error=options.choose_on_error(on_error),
        progress=not (quiet or no_progress),
    )
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(str(result))
    if not result.passed:
        raise typer.Exit(FAILED)
