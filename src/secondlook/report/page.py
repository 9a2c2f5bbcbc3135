"""The page itself: one HTML file with its style, its script, its data and its pictures inside."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from secondlook.evaluation import ARROWS
from secondlook.metrics import Interval, parse_metric
from secondlook.report.findings import Findings
from secondlook.report.headline import percent
from secondlook.report.operating_points import Guarantees, OperatingPoint, shortest_threshold
from secondlook.report.page_data import page_data
from secondlook.report.pictures import PicturedImage
from secondlook.report.study import summary_of, symbol_of

SCRIPTS = (
    "arrays.js",
    "elements.js",
    "chart.js",
    "risk_plot.js",
    "confidence_plots.js",
    "thresholds.js",
    "operating.js",
    "tables.js",
    "galleries.js",
    "start.js",
)
"""In this order they are one script; each knows the ones before it."""
MOST_SKIPPED_SHOWN = 200


def page(
    findings: Findings,
    *,
    title: str,
    pictures: Mapping[int, PicturedImage],
    facts: Mapping[str, str],
    notes: Sequence[str],
    skipped: Sequence[tuple[str, str]],
    command: str | None,
    artefacts: str | None,
) -> str:
    """Return the HTML; `artefacts` is the name of the folder with tables and plots, where there is one."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("secondlook.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "share": _share, "ends": _ends, "count": _count, "unbroken": _unbroken}
    style, script = _file("report.css"), _script()
    study, told_guarantee = findings.study, _told_guarantee(findings)
    return environment.get_template("report.html").render(
        title=title,
        style=Markup(style),
        script=Markup(script),
        data=Markup(page_data(findings, pictures)),
        # Only this script and style may run, and nothing may be fetched, whatever stands in the data.
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        findings=findings,
        study=study,
        told_guarantee=told_guarantee,
        told_threshold=told_guarantee and shortest_threshold(study.rankings[study.shown], told_guarantee),
        accuracy={
            predict_from: study.preds.correct(predict_from=predict_from, top_k=study.top_k).mean()
            for predict_from in ("image", "views")
        },
        metrics=_metrics(findings),
        symbol_of=symbol_of,
        summary_of=summary_of,
        pictures=pictures,
        facts=facts,
        notes=notes,
        skipped=skipped,
        most_skipped=MOST_SKIPPED_SHOWN,
        command=command,
        artefacts=artefacts,
    )


def _file(name: str) -> str:
    return files("secondlook.report").joinpath("templates", name).read_text(encoding="utf-8")


def _script() -> str:
    body = "\n".join(_file(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _told_guarantee(findings: Findings) -> OperatingPoint | None:
    """Return the certified rule at the told risk, None where nothing is guaranteed."""
    guarantees = findings.guarantees[findings.study.shown]
    if not isinstance(guarantees, Guarantees):
        return None
    place = int(findings.risks.searchsorted(findings.risk))
    accepted = int(guarantees.accepted[place])
    return (
        OperatingPoint(float(guarantees.thresholds[place]), accepted, int(guarantees.errors[place]))
        if accepted
        else None
    )


def _metrics(findings: Findings) -> list[dict[str, Any]]:
    """Return the columns of the methods' table: name, meaning, direction, and whether it reads in per cent."""
    texts = dict.fromkeys(row.metric for row in findings.evaluation.rows)
    records = [(text, parse_metric(text).metric) for text in texts]
    return [
        {"text": text, "says": one.says, "arrow": ARROWS[one.better], "scale": 100 if one.bounds[1] <= 1 else 1}
        for text, one in records
    ]


def _percent(share: float, decimals: int = 2) -> str:
    return _unbroken(percent(share, decimals))


def _unbroken(text: str) -> str:
    """Keep a number and its sign on one line."""
    return text.replace(" %", "\u00a0%")


def _share(value: float | None, scale: float = 100, form: str = ".2f") -> str:
    return "–" if value is None else format(scale * value, form)


def _ends(interval: Interval | None, scale: float = 100, form: str = ".2f") -> str:
    if interval is None:
        return ""
    return f"{format(scale * interval.low, form)} to {format(scale * interval.high, form)}"


def _count(value: int) -> str:
    return f"{value:,}"
