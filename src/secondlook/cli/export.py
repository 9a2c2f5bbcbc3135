"""`export` writes a policy and its classifier as one ONNX file; `verify` compares that file with the library."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from secondlook.cli import options
from secondlook.cli.options import LocalExecution, Printing
from secondlook.errors import ExportError

FAILED = 3
"""Exit code for scripts: the file decides otherwise."""


def export(
    *,
    policy: options.PolicyFile,
    out: Annotated[Path, Option("--out", metavar="FILE.onnx", help="ONNX file to write.")],
    model: options.PolicyModel = None,
    image_shape: Annotated[
        str | None,
        Option(
            "--image-shape",
            metavar="H,W,C",
            help="Height, width and channels of the images, where classifier and preprocessing leave them open.",
        ),
    ] = None,
    pixels: Annotated[
        Literal["uint8", "float32"], Option("--pixels", help="Pixels that the file takes: uint8, or float32 in [0, 1].")
    ] = "uint8",
    allow_mismatch: options.AllowMismatch = False,
    overwrite: options.Overwrite = False,
    printing: Printing,
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
    printing.print(summary.to_dict(), summary)


def _parse_shape(text: str) -> tuple[int, ...]:
    """Return three positive numbers that are separated by commas."""
    sizes = [size.strip() for size in text.split(",")]
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ExportError(f"--image-shape {text!r} is not H,W,C; expected three numbers, such as 224,224,3.")
    return tuple(int(size) for size in sizes)


def verify(
    *,
    file: Annotated[Path, Argument(metavar="FILE.onnx", help="ONNX file that export wrote.")],
    policy: Annotated[Path, Option("--policy", metavar="FILE", help="Policy file that was exported.")],
    data: options.Data,
    model: options.PolicyModel = None,
    tolerance: Annotated[
        float, Option(min=0, help="Largest difference of a confidence that is taken for rounding.")
    ] = 0.001,
    limit: Annotated[
        int | None,
        Option(min=1, help="Number of images to compare, spread evenly over the data.", show_default="all images"),
    ] = None,
    execution: LocalExecution,
    printing: Printing,
) -> None:
    """Compare an exported file with the library, image by image.

    The exit code is 0 if all decisions are the same but for rounding, and 3 if not.

    Example: secondlook verify decide.onnx --policy policy.json --data folder:val/
    """
    from secondlook.onnx_export import verify_export

    result = verify_export(
        file,
        policy,
        data,
        classifier=model or None,
        tolerance=tolerance,
        limit=limit,
        execution=execution.make(printing.progress),
    )
    printing.print(result.to_dict(), result)
    if not result.passed:
        raise typer.Exit(FAILED)
