"""`views` draws every view of an image, and proposes candidate views to search in."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from secondlook.cli import options
from secondlook.errors import ViewError

views = typer.Typer(help="Draw views of an image, or propose candidate views.", no_args_is_help=True)


@views.command("show")
def show_views(
    views: Annotated[str, Argument(metavar="SET", help=options.VIEWS_HELP)],
    image: Annotated[Path, Argument(metavar="IMAGE", help="Image file: JPEG, PNG, WebP, BMP or TIFF.")],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Image file to write.", show_default="IMAGE-views.png")
    ] = None,
    paper: Annotated[bool, Option("--paper", help="Also print the views in the notation of the paper.")] = False,
    max_pixels: Annotated[int, Option(min=1, help="Maximum number of pixels of the image.")] = 100_000_000,
) -> None:
    """Draw every view of an image, each with its text below.

    Example: secondlook views show natural photo.jpg -o sheet.png
    """
    from secondlook.sources import UnreadableImageError, read_image
    from secondlook.views import ViewSet, contact_sheet

    view_set = ViewSet(views)
    target = output or Path(f"{image.stem}-views.png")
    try:
        pixels = read_image(image, max_pixels=max_pixels, max_bytes=3 * max_pixels)
    except UnreadableImageError as error:
        repair = "make it smaller, or raise --max-pixels" if error.limit is not None else "repair it"
        raise ViewError(f"image {image} cannot be read: {error.reason}; {repair}.") from None
    sheet = contact_sheet(pixels, view_set)
    try:
        sheet.save(target)
    except (OSError, ValueError) as error:
        raise ViewError(f"the image cannot be written to {str(target)!r}: {error}; choose another --output.") from None
    if paper:
        for view in view_set:
            typer.echo(view.to_paper_notation())
    typer.echo(f"{len(view_set)} views of {image} written to {target}")


@views.command("candidates")
def propose_views(
    kind: Annotated[str, Argument(help="Kind of images: natural, digits, harmful or auto.")] = "natural",
    image_size: Annotated[int, Option(help="Side of the classifier's input in pixels.")] = 32,
    number: Annotated[int, Option("-n", "--number", help="Number of views, the gentlest first.")] = 100,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Text file to write.", show_default="standard output")
    ] = None,
) -> None:
    """Propose candidate views for secondlook search.

    Example: secondlook views candidates natural --image-size 32 -o pool.txt
    """
    from secondlook.diagnosis import candidate_views

    text = "\n".join([*candidate_views(kind, image_size, number).texts, ""])
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ViewError(f"the views cannot be written to {str(output)!r}: {error.strerror}.") from None
    typer.echo(f"{number} views written to {output}")
