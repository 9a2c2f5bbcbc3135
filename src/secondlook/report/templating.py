"""Self-contained HTML files: a template with its style, its scripts and its data, and nothing that is fetched."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from secondlook.report.operating_points import format_percent

Filter = Callable[..., str]


def render_template(
    name: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: object,
    filters: Mapping[str, Filter],
    **values: Any,
) -> str:
    """Return the HTML of a template; all text is escaped.

    Styles and scripts are files beside the template, joined in their order; scripts find `data` as JSON in the element
    with the id `data`. `filters` are added to those that all templates have.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("secondlook.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    common = {"percent": _format_percent, "count": _format_count, "unbroken": use_unbroken_spaces}
    environment.filters |= {**common, **filters}
    style = "".join(map(_read_template, styles))
    body = "\n".join(map(_read_template, scripts))
    script = f'"use strict";\n(() => {{\n{body}\n}})();\n'
    return environment.get_template(name).render(
        style=Markup(style),
        script=Markup(script),
        data=Markup(encode_data(data)),
        # Only this script and this style may run, and nothing may be fetched, whatever the data contain.
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        **values,
    )


def encode_data(data: object) -> str:
    """Return JSON that is safe inside a script element: a class named "</script>" must not end it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def use_unbroken_spaces(text: str) -> str:
    """Keep a number and its percent sign on one line."""
    return text.replace(" %", "\u00a0%")


def _read_template(name: str) -> str:
    return files("secondlook.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _format_percent(fraction: float, decimals: int = 2) -> str:
    return use_unbroken_spaces(format_percent(fraction, decimals))


def _format_count(value: int) -> str:
    return f"{value:,}"
