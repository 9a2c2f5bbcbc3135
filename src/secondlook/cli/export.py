"""`secondlook export`: a policy and its classifier as one ONNX file that decides."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from secondlook.cli import options
from secondlook.errors import ExportError


def export(
    policy: Annotated[Path, typer.Option("--policy", metavar="FILE", help="Policy file that calibrate wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.onnx", help="ONNX file to write.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="SPEC", help="Classifier of the policy, if it is not an ONNX file or now somewhere else."
        ),
    ] = None,
    image_shape: Annotated[
        str | None,
        typer.Option(
            "--image-shape",
            metavar="H,W,C",
            help="Height, width and channels of the images, where classifier and preprocessing leave them open.",
        ),
    ] = None,
    pixels: Annotated[
        Literal["uint8", "float32"],
        typer.Option("--pixels", help="Pixels that the file takes: uint8, or float32 in [0, 1]."),
    ] = "uint8",
    allow_mismatch: Annotated[
        bool,
        typer.Option("--allow-mismatch", help="Use a classifier other than the policy's; the guarantee is lost."),
    ] = False,
    overwrite: options.Overwrite = False,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write classifier, views, confidence and threshold as one ONNX file: pixels in, decisions out.

    Example: secondlook export --policy policy.json --out decide.onnx
    """
    from secondlook.onnx_export import export_onnx

    summary = export_onnx(
        policy,
        out,
        classifier=model or None,
        image_shape=None if image_shape is None else _parse_shape(image_shape),
        pixels=pixels,
        allow_mismatch=allow_mismatch,
        overwrite=overwrite,
    )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(str(summary))


def _parse_shape(text: str) -> tuple[int, ...]:
    """Return three positive numbers that are separated by commas."""
    sizes = [size.strip() for size in text.split(",")]
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ExportError(f"--image-shape {text!r} is not H,W,C; expected three numbers, such as 224,224,3.")
    return tuple(int(size) for size in sizes)
