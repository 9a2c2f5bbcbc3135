"""`secondlook list`: every registered method, metric, view, model scheme, data source or export."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from secondlook.cli import options
from secondlook.cli.messages import name_options
from secondlook.registry import Registry

Kind = Literal["methods", "metrics", "views", "models", "sources", "exports"]


def list_kind(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: options.Json = False,
) -> None:
    """List what is available, with a line on each.

    Example: secondlook list metrics
    """
    registries = REGISTRIES[kind]()
    if as_json:
        rows = {title: registry.to_rows() for title, registry in registries.items()}
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    from secondlook.cli.app import find_flags

    console, flags = Console(), find_flags(["evaluate"])
    for title, registry in registries.items():
        table = Table(title, "summary", box=None, pad_edge=False)
        for record in registry.values():
            table.add_row(escape(record.form), escape(name_options(record.summary, flags)))
            if warning := getattr(record, "warning", None):
                table.add_row("", f"[yellow]{escape(warning)}[/]")
        console.print(table)


def _methods() -> dict[str, Registry[Any]]:
    from secondlook.estimators import METHODS

    return {"method": METHODS}


def _metrics() -> dict[str, Registry[Any]]:
    from secondlook.metrics import METRICS

    return {"metric": METRICS}


def _views() -> dict[str, Registry[Any]]:
    from secondlook.views import PRESETS, STEPS

    return {"preset": PRESETS, "step": STEPS}


def _models() -> dict[str, Registry[Any]]:
    from secondlook.classifiers import MODELS

    return {"model": MODELS}


def _sources() -> dict[str, Registry[Any]]:
    from secondlook.sources import SOURCES

    return {"source": SOURCES}


def _exports() -> dict[str, Registry[Any]]:
    from secondlook.decisions import EXPORTS, SCORE_FORMATS

    return {"export": EXPORTS, "score file": SCORE_FORMATS}


REGISTRIES: Mapping[Kind, Callable[[], dict[str, Registry[Any]]]] = {
    "methods": _methods,
    "metrics": _metrics,
    "views": _views,
    "models": _models,
    "sources": _sources,
    "exports": _exports,
}
"""The registries of each kind by the title of their column; a room is imported when it is listed."""
