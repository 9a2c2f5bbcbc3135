"""The tables and curves of a report as CSV files, at full precision."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from secondlook.metrics import Interval
from secondlook.report.findings import Findings
from secondlook.report.operating_points import CertifiedPoints, point_at_risk
from secondlook.tables import format_csv_row

Rows = Iterable[Sequence[object]]

METHOD_COLUMNS = (
    "method",
    "metric",
    "better",
    "value",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "verdict",
    "images",
    "errors",
    "reason",
)
OPERATING_POINT_COLUMNS = (
    "method",
    "tolerated_risk",
    "threshold",
    "accepted",
    "rejected",
    "errors_accepted",
    "guaranteed_threshold",
    "guaranteed_accepted",
    "guaranteed_errors_accepted",
)
CLASS_COLUMNS = ("class", "images", "errors", "error_rate", "accepted", "coverage", "errors_accepted", "risk", "auroc")
CONFUSION_COLUMNS = ("label", "predicted", "correct", "images", "accepted")
ADAPTIVE_COLUMNS = ("margin", "looks", "certified_coverage", "differing", "default_tolerance")
GALLERY_COLUMNS = ("id", "index", "label", "predicted", "correct", "accepted", "looks")
VIEW_COLUMNS = ("view", "accuracy", "auroc_alone", "auroc_without", "change", "change_low", "change_high")


def render_tables(findings: Findings, facts: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the bytes of each table."""
    methods = tuple(findings.study.confidences)
    for name, columns, rows in (
        ("facts", ("fact", "value"), facts.items()),
        ("methods", METHOD_COLUMNS, _method_rows(findings)),
        ("risk-coverage", ("method", "accepted", "coverage", "risk"), _curve_rows(findings)),
        ("risk-coverage-bands", ("method", "coverage", "low", "high"), _band_rows(findings)),
        ("operating-points", OPERATING_POINT_COLUMNS, _operating_point_rows(findings)),
        ("adaptive-looking", ADAPTIVE_COLUMNS, _adaptive_rows(findings)),
        ("histograms", ("method", "from", "to", "correct", "wrong"), _histogram_rows(findings)),
        ("reliability", ("method", "confidence", "accuracy", "images"), _reliability_rows(findings)),
        ("classes", CLASS_COLUMNS, _class_rows(findings)),
        ("views", VIEW_COLUMNS, _view_rows(findings)),
        ("confusions", CONFUSION_COLUMNS, _confusion_rows(findings)),
        ("galleries", (*GALLERY_COLUMNS, *methods), _gallery_rows(findings)),
        ("skipped", ("id", "reason"), findings.study.preds.skipped),
    ):
        yield f"{name}.csv", _encode_csv(columns, rows)


def _encode_csv(columns: Sequence[str], rows: Rows) -> bytes:
    return "".join(map(format_csv_row, itertools.chain([columns], rows))).encode("utf-8")


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _method_rows(findings: Findings) -> Rows:
    for row in findings.evaluation.rows:
        value = (row.value, *_ends(row.interval), row.difference, *_ends(row.difference_interval))
        yield row.method, row.metric, row.better, *value, row.verdict, row.images, row.errors, row.reason


def _curve_rows(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        for accepted, risk in zip(curve.accepted.tolist(), curve.risk.tolist(), strict=True):
            yield name, accepted, accepted / findings.study.n_images, risk


def _band_rows(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        columns = (curve.band_coverage.tolist(), curve.low.tolist(), curve.high.tolist())
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _operating_point_rows(findings: Findings) -> Rows:
    study = findings.study
    for name, ranking in study.rankings.items():
        for index, risk in enumerate(findings.risks.tolist()):
            point = point_at_risk(ranking, risk)
            counts = (point.accepted, study.n_images - point.accepted, point.errors)
            yield name, risk, point.threshold, *counts, *_certified_cells(findings.certified[name], index)


def _certified_cells(certified: CertifiedPoints | str, index: int) -> tuple[object, object, object]:
    if isinstance(certified, str) or certified[index].accepted == 0:
        return None, None, None
    point = certified[index]
    return point.threshold, point.accepted, point.errors


def _adaptive_rows(findings: Findings) -> Rows:
    if isinstance(findings.adaptive, str):
        return
    for point in findings.adaptive.points:
        yield *point, point == findings.adaptive.chosen


def _histogram_rows(findings: Findings) -> Rows:
    for name, histogram in findings.histograms.items():
        edges = histogram.edges.tolist()
        columns = (edges[:-1], edges[1:], histogram.correct.tolist(), histogram.wrong.tolist())
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _reliability_rows(findings: Findings) -> Rows:
    for name, curve in findings.reliability.items():
        columns = (curve.confidence.tolist(), curve.accuracy.tolist(), curve.images.tolist())
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _class_rows(findings: Findings) -> Rows:
    for one in findings.classes:
        counts = (one.images, one.errors, one.error_rate, one.accepted, one.coverage, one.errors_accepted)
        yield one.name, *counts, one.risk, one.auroc


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
