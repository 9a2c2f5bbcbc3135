"""Writing what an experiment found: CSV, Markdown, LaTeX, plots, circumstances and one self-contained page."""

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from reproduction.experiment import Experiment
from reproduction.findings import Findings, csv_text
from reproduction.needed import missing_text
from secondlook.errors import ExperimentError


def write_findings(
    folder: Path, experiment: Experiment, found: Sequence[Findings], facts: Mapping[str, object]
) -> None:
    """Write the files of one experiment into its folder."""
    grids = [grid for one in found for grid in one.grids]
    texts = {
        "results.csv": csv_text(row for one in found for row in one.rows),
        "tables.md": _markdown(experiment, found),
        "tables.tex": "% needs \\usepackage{booktabs}\n" + "\n\n".join(grid.latex() for grid in grids) + "\n",
        "circumstances.json": json.dumps(facts, indent=2) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for picture in (picture for one in found for picture in one.pictures):
            picture.save(folder / f"{picture.name}.png")
        (folder / "page.html").write_text(_page(folder, experiment, found, facts), encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"results cannot be written to {str(folder)!r}: {error}; choose another out=.") from error


def _markdown(experiment: Experiment, found: Sequence[Findings]) -> str:
    notes = [f"- {note}" for note in (*experiment.notes, *(note for one in found for note in one.notes))]
    grids = [grid.markdown() for one in found for grid in one.grids]
    return "\n\n".join([f"# {experiment.title}", *grids, "\n".join(notes)]).rstrip() + "\n"


def terminal_text(experiment: Experiment, found: Sequence[Findings]) -> str:
    """Return what a terminal shows: the grids, the notes, and what is missing."""
    grids = [grid.text() for one in found for grid in one.grids]
    notes = [f"note: {note}" for note in (*experiment.notes, *(note for one in found for note in one.notes))]
    pictures = [f"picture: {picture.name}.png, {picture.caption}" for one in found for picture in one.pictures]
    missing = missing_text(tuple(gap for one in found for gap in one.missing))
    shown = ["\n".join(notes), "\n".join(pictures)] if any(one.has_run for one in found) else []
    return "\n\n".join(filter(None, [experiment.title, *grids, *shown, missing]))


def _page(folder: Path, experiment: Experiment, found: Sequence[Findings], facts: Mapping[str, object]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("reproduction").joinpath("page.html").read_text(encoding="utf-8")
    pictures = {
        picture.name: base64.b64encode((folder / f"{picture.name}.png").read_bytes()).decode()
        for one in found
        for picture in one.pictures
    }
    return environment.from_string(template).render(
        experiment=experiment, found=found, pictures=pictures, facts=json.dumps(facts, indent=2)
    )
