"""`secondlook views`: what views there are, and what they do to a picture."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from secondlook.errors import ViewError
from secondlook.views import PRESETS, STEPS, ViewSet

app = typer.Typer(help="List the presets and steps, or draw every view of a picture.", no_args_is_help=True)


@app.command("list")
def list_views(as_json: Annotated[bool, typer.Option("--json", help="Print for machines.")] = False) -> None:
    """List every preset and every step.

    Example: secondlook views list
    """
    if as_json:
        typer.echo(json.dumps(_catalog(), ensure_ascii=False, indent=2))
        return
    console = Console()
    presets = Table("preset", "views", "for", title="Presets", title_justify="left", box=None)
    for preset in PRESETS.values():
        presets.add_row(preset.name, str(len(preset.views.split())), preset.summary)
        if preset.warning:
            presets.add_row("", "", f"[yellow]{preset.warning}[/]")
    steps = Table("step", "meaning", title="\nSteps, joined by '+'", title_justify="left", box=None)
    for step in STEPS.values():
        steps.add_row(step.form, step.summary.replace("[", r"\["))
    console.print(presets, steps)


@app.command("show")
def show_views(
    views: Annotated[str, typer.Argument(metavar="SET", help="A preset, views in quotes, or a .txt file of views.")],
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture: JPEG, PNG, WebP, BMP or TIFF.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the sheet goes.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Print the views in the paper's notation too.")] = False,
) -> None:
    """Draw every view of a picture with its text under it.

    Example: secondlook views show natural photo.jpg -o sheet.png
    """
    from secondlook.sources import ReadOptions, decode_file
    from secondlook.views import contact_sheet

    view_set = ViewSet(views)
    target = output or Path(f"{image.stem}-views.png")
    sheet = contact_sheet(decode_file(image, str(image), ReadOptions().max_pixels), view_set)
    try:
        sheet.save(target)
    except (OSError, ValueError) as error:
        raise ViewError(f"the sheet cannot be written to {str(target)!r}: {error}; choose another --output.") from None
    if paper:
        for view in view_set:
            typer.echo(view.paper_text())
    typer.echo(f"{len(view_set)} views of {image} in {target}")


@app.command("candidates")
def propose_views(
    kind: Annotated[str, typer.Argument(help="Of images: natural, digits, ...")] = "natural",
    image_size: Annotated[int, typer.Option(help="Side of the classifier's input in pixels.")] = 32,
    number: Annotated[int, typer.Option("-n", "--number", help="How many, the gentlest first.")] = 100,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A .txt file for them.")] = None,
) -> None:
    """Propose a pool of views to search in.

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
    typer.echo(f"{number} views in {output}")


def _catalog() -> dict[str, list[dict[str, object]]]:
    return {
        "presets": [
            {"name": preset.name, "summary": preset.summary, "views": preset.views.split(), "warning": preset.warning}
            for preset in PRESETS.values()
        ],
        "steps": [{"form": step.form, "summary": step.summary} for step in STEPS.values()],
    }
