"""The tables of a report as CSV files at full precision."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple

from secondlook.arrays import Array
from secondlook.metrics import Interval
from secondlook.report.findings import Findings
from secondlook.report.operating_points import NOTHING_ACCEPTED, point_at_risk
from secondlook.tables import format_csv_row

Rows = Iterable[Sequence[object]]


def render_tables(findings: Findings, facts: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the bytes of each table."""
    yield "facts.csv", _encode_csv(("fact", "value"), facts.items())
    for name, (columns, list_rows) in TABLES.items():
        methods = tuple(findings.study.confidences) if name == "galleries" else ()
        yield f"{name}.csv", _encode_csv((*columns.split(), *methods), list_rows(findings))


def _encode_csv(columns: Sequence[str], rows: Rows) -> bytes:
    return "".join(map(format_csv_row, itertools.chain([columns], rows))).encode("utf-8")


def _zip_arrays(method: str, *columns: Array) -> Rows:
    return ((method, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _method_rows(findings: Findings) -> Rows:
    for row in findings.evaluation.rows:
        value = (row.value, *_ends(row.interval), row.difference, *_ends(row.difference_interval))
        yield row.method, row.metric, row.better, *value, row.verdict, row.images, row.errors, row.reason


def _curve_rows(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        yield from _zip_arrays(name, curve.accepted, curve.accepted / findings.study.n_images, curve.risk)


def _band_rows(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        yield from _zip_arrays(name, curve.band_coverage, curve.low, curve.high)


def _operating_point_rows(findings: Findings) -> Rows:
    study = findings.study
    for name, ranking in study.rankings.items():
        certified = findings.certified[name]
        for index, risk in enumerate(findings.risks.tolist()):
            point = point_at_risk(ranking, risk)
            guaranteed = NOTHING_ACCEPTED if isinstance(certified, str) else certified[index]
            cells = astuple(guaranteed) if guaranteed.accepted else (None, None, None)
            counts = (point.accepted, study.n_images - point.accepted, point.errors)
            yield name, risk, point.threshold, *counts, *cells


def _adaptive_rows(findings: Findings) -> Rows:
    if isinstance(findings.adaptive, str):
        return
    for point in findings.adaptive.points:
        yield *point, point == findings.adaptive.chosen


def _histogram_rows(findings: Findings) -> Rows:
    for name, ranking in findings.study.rankings.items():
        one = ranking.histogram()
        yield from _zip_arrays(name, one.edges[:-1], one.edges[1:], one.correct, one.wrong)


def _reliability_rows(findings: Findings) -> Rows:
    for name in findings.study.probabilities:
        curve = findings.study.rankings[name].reliability()
        yield from _zip_arrays(name, curve.confidence, curve.accuracy, curve.images)


def _class_rows(findings: Findings) -> Rows:
    fields = ("name", *TABLES["classes"][0].split()[1:])
    return ([getattr(one, name) for name in fields] for one in findings.classes)


def _view_rows(findings: Findings) -> Rows:
    for one in findings.views:
        yield one.text, one.accuracy, one.auroc_alone, one.auroc_without, one.change, *_ends(one.change_interval)


def _confusion_rows(findings: Findings) -> Rows:
    study, cells = findings.study, findings.cells
    accept = study.confidences[findings.method] >= findings.point.threshold
    columns = (cells.labels, cells.predicted, cells.correct, cells.images, cells.count(accept))
    for label, predicted, *numbers in zip(*(column.tolist() for column in columns), strict=True):
        yield study.class_names[label], study.class_names[predicted], *numbers


def _gallery_rows(findings: Findings) -> Rows:
    study, adaptive = findings.study, findings.adaptive
    for index in findings.images.tolist():
        label, predicted = (study.class_names[classes[index]] for classes in (study.preds.labels, study.leading))
        accepted = bool(study.confidences[findings.method][index] >= findings.point.threshold)
        confidences = (float(values[index]) for values in study.confidences.values())
        given = int(study.fitted.judged[index])
        looks = None if isinstance(adaptive, str) else int(adaptive.looks[index]) or None
        decision = (bool(study.correct[index]), accepted, looks)
        yield study.preds.ids[index], given, label, predicted, *decision, *confidences


TABLES: dict[str, tuple[str, Callable[[Findings], Rows]]] = {
    "methods": (
        "method metric better value low high difference difference_low difference_high verdict images errors reason",
        _method_rows,
    ),
    "risk-coverage": ("method accepted coverage risk", _curve_rows),
    "risk-coverage-bands": ("method coverage low high", _band_rows),
    "operating-points": (
        "method tolerated_risk threshold accepted rejected errors_accepted "
        "guaranteed_threshold guaranteed_accepted guaranteed_errors_accepted",
        _operating_point_rows,
    ),
    "adaptive-looking": ("margin looks certified_coverage differing default_tolerance", _adaptive_rows),
    "histograms": ("method from to correct wrong", _histogram_rows),
    "reliability": ("method confidence accuracy images", _reliability_rows),
    "classes": ("class images errors error_rate accepted coverage errors_accepted risk auroc", _class_rows),
    "views": ("view accuracy auroc_alone auroc_without change change_low change_high", _view_rows),
    "confusions": ("label predicted correct images accepted", _confusion_rows),
    "galleries": ("id index label predicted correct accepted looks", _gallery_rows),
    "skipped": ("id reason", lambda findings: findings.study.preds.skipped),
}
"""Columns and rows of each table; that of the galleries also has the confidence of each method."""
