"""The files of an experiment: CSV, Markdown, LaTeX, plots, an HTML page, and the circumstances of the run."""

import base64
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

import secondlook as sl
from reproduction.experiment import Experiment, ReproductionError
from reproduction.inputs import format_missing
from reproduction.results import PieceResult, format_csv
from reproduction.workspace import Provenance

PACKAGES = ("numpy", "scipy", "opencv-python-headless", "onnxruntime", "pyarrow", "matplotlib", "torch")


def write_results(
    folder: Path, experiment: Experiment, results: Sequence[PieceResult], circumstances: Mapping[str, object]
) -> None:
    """Write the files of one experiment into its folder."""
    tables = [table.to_latex() for result in results for table in result.tables]
    texts = {
        "results.csv": format_csv(row for result in results for row in result.rows),
        "tables.md": _format_markdown(experiment, results),
        "tables.tex": "% needs \\usepackage{booktabs}\n" + "\n\n".join(tables) + "\n",
        "circumstances.json": json.dumps(circumstances, indent=2) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for picture in (picture for result in results for picture in result.pictures):
            picture.save(folder / f"{picture.name}.png")
        (folder / "page.html").write_text(_render_page(folder, experiment, results, circumstances), encoding="utf-8")
    except OSError as error:
        raise ReproductionError(f"cannot write results to {str(folder)!r}: {error}; choose another folder.") from error


def _format_markdown(experiment: Experiment, results: Sequence[PieceResult]) -> str:
    tables = [table.to_markdown() for result in results for table in result.tables]
    notes = [f"- {note}" for note in _all_notes(experiment, results)]
    return "\n\n".join([f"# {experiment.title}", *tables, "\n".join(notes)]).rstrip() + "\n"


def format_for_terminal(experiment: Experiment, results: Sequence[PieceResult]) -> str:
    """Return tables, notes, pictures and missing items as plain text."""
    tables = [table.to_text() for result in results for table in result.tables]
    notes = [f"note: {note}" for note in _all_notes(experiment, results)]
    pictures = [f"picture: {picture.name}.png, {picture.caption}" for result in results for picture in result.pictures]
    missing = format_missing(tuple(item for result in results for item in result.missing))
    return "\n\n".join(filter(None, [experiment.title, *tables, "\n".join(notes), "\n".join(pictures), missing]))


def _all_notes(experiment: Experiment, results: Sequence[PieceResult]) -> list[str]:
    return [*experiment.notes, *(note for result in results for note in result.notes)]


def _render_page(
    folder: Path, experiment: Experiment, results: Sequence[PieceResult], circumstances: Mapping[str, object]
) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("reproduction").joinpath("page.html").read_text(encoding="utf-8")
    pictures = {
        picture.name: base64.b64encode((folder / f"{picture.name}.png").read_bytes()).decode()
        for result in results
        for picture in result.pictures
    }
    return environment.from_string(template).render(
        experiment=experiment, results=results, pictures=pictures, circumstances=json.dumps(circumstances, indent=2)
    )


def describe_circumstances(
    experiment: str, commit: str, seed: int, limit: int | None, provenance: Provenance
) -> dict[str, object]:
    """Return machine, versions, commit, seed, date and digests for JSON, without the machine's name and any path."""
    return {
        "experiment": experiment,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit,
        "seed": seed,
        "limit": limit,
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "secondlook": sl.__version__, **_package_versions()},
        "digests": provenance.digests,
        "predictions": provenance.versions,
    }


def _package_versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def find_commit() -> str:
    """Return the commit of the source tree, marked as dirty if modified, or 'unknown' outside a repository."""
    try:
        _run_git("ls-files", "--error-unmatch", Path(__file__).name)  # a copy may lie inside another repository
        return _run_git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _run_git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
