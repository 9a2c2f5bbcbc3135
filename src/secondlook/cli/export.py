"""`export` writes a policy and its classifier as one ONNX file; `verify` compares that file with the library."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from secondlook.cli import options
from secondlook.cli.options import LocalExecution, Printing


def export(
    *,
    policy: options.PolicyFile,
    out: Annotated[Path, Option(metavar="FILE.onnx", help="ONNX file to write.")],
    model: options.PolicyModel = None,
    image_shape: Annotated[
        str | None,
        Option(metavar="H,W,C", help="Height, width and channels of the images, if the classifier does not fix them."),
    ] = None,
    pixels: Annotated[
        Literal["uint8", "float32"], Option(help="Type of the pixels that the file takes: uint8, or float32 in [0, 1].")
    ] = "uint8",
    allow_mismatch: options.AllowMismatch = False,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> None:
    """Write the classifier, the views, the confidence and the threshold as one ONNX file.

    The file takes pixels and returns decisions. It needs no Python, only an ONNX runtime.

    Example: secondlook export --policy policy.json --out decide.onnx
    """
    from secondlook.onnx_export import export_onnx

    # An invalid number is rejected with the other sizes.
    sizes: Any = image_shape and [int(size) if size.strip().isdecimal() else size for size in image_shape.split(",")]
    summary = export_onnx(
        policy,
        out,
        classifier=model or None,
        image_shape=sizes,
        pixels=pixels,
        allow_mismatch=allow_mismatch,
        overwrite=overwrite,
    )
    printing.print(summary.to_dict(), summary)


def verify(
    *,
    file: Annotated[Path, Argument(metavar="FILE.onnx", help="ONNX file that export wrote.")],
    policy: options.PolicyFile,
    data: options.Data,
    model: options.PolicyModel = None,
    max_difference: Annotated[float, Option(min=0, help="Largest difference of confidences due to rounding.")] = 0.001,
    limit: options.LimitOrAll = None,
    execution: LocalExecution,
    printing: Printing,
) -> None:
    """Compare an exported file with the library, image by image.

    The exit code is 0 if all decisions agree, except for rounding; otherwise it is 3.

    Example: secondlook verify decide.onnx --policy policy.json --data folder:val/
    """
    from secondlook.onnx_export import verify_export

    result = verify_export(
        file,
        policy,
        data,
        classifier=model or None,
        max_difference=max_difference,
        limit=limit,
        execution=execution.make(printing.progress),
    )
    printing.print(result.to_dict(), result)
    if not result.passed:
        raise typer.Exit(3)
