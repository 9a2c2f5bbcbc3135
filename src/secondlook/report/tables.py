"""The tables and curves of a report as CSV, with all digits."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from secondlook.metrics import Interval
from secondlook.report.findings import Findings
from secondlook.report.operating_points import Guarantees, point_at_risk

Rows = Iterable[Sequence[object]]


def csv_tables(
    findings: Findings, facts: Mapping[str, str], skipped: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each table."""
    for name, header, rows in (
        ("facts", ("fact", "value"), facts.items()),
        ("methods", EVALUATION_COLUMNS, _evaluation(findings)),
        ("risk-coverage", ("method", "accepted", "coverage", "risk"), _curves(findings)),
        ("risk-coverage-bands", ("method", "coverage", "low", "high"), _bands(findings)),
        ("operating-points", OPERATING_COLUMNS, _operating_points(findings)),
        ("histograms", ("method", "from", "to", "right", "wrong"), _histograms(findings)),
        ("reliability", ("method", "confidence", "accuracy", "images"), _reliability(findings)),
        ("classes", CLASS_COLUMNS, _classes(findings)),
        ("views", VIEW_COLUMNS, _views(findings)),
        ("galleries", ("gallery", "id", "index", "truth", "right", *findings.study.confidences), _galleries(findings)),
        ("skipped", ("id", "reason"), skipped),
    ):
        yield f"{name}.csv", _written(header, rows)


EVALUATION_COLUMNS = (
    "part",
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
OPERATING_COLUMNS = (
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
VIEW_COLUMNS = ("view", "accuracy", "auroc_alone", "auroc_without", "change", "change_low", "change_high")


def _written(header: Sequence[str], rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _evaluation(findings: Findings) -> Rows:
    for row in findings.evaluation.rows:
        value = (row.value, *_ends(row.interval), row.difference, *_ends(row.difference_interval))
        yield row.part, row.method, row.metric, row.better, *value, row.verdict, row.images, row.errors, row.reason


def _curves(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        for accepted, risk in zip(curve.accepted.tolist(), curve.risk.tolist(), strict=True):
            yield name, accepted, accepted / findings.study.n_images, risk


def _bands(findings: Findings) -> Rows:
    for name, curve in findings.curves.items():
        columns = (curve.band_coverage.tolist(), curve.low.tolist(), curve.high.tolist())
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _operating_points(findings: Findings) -> Rows:
    study = findings.study
    for name, ranking in study.rankings.items():
        guarantees = findings.guarantees[name]
        for place, risk in enumerate(findings.risks.tolist()):
            point = point_at_risk(ranking, risk)
            rejected = study.n_images - point.accepted
            guaranteed = _guaranteed(guarantees, place)
            yield name, risk, point.threshold, point.accepted, rejected, point.errors, *guaranteed


def _guaranteed(guarantees: Guarantees | str, place: int) -> tuple[object, object, object]:
    if isinstance(guarantees, str) or guarantees.accepted[place] == 0:
        return None, None, None
    return float(guarantees.thresholds[place]), int(guarantees.accepted[place]), int(guarantees.errors[place])


def _histograms(findings: Findings) -> Rows:
    for name, one in findings.histograms.items():
        edges = one.edges.tolist()
        columns = (edges[:-1], edges[1:], one.right.tolist(), one.wrong.tolist())
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _reliability(findings: Findings) -> Rows:
    for name, curve in findings.reliability.items():
        columns = (curve.confidence.tolist(), curve.accuracy.tolist(), curve.images.tolist())
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _classes(findings: Findings) -> Rows:
    for one in findings.classes:
        counted = (one.images, one.errors, one.error_rate, one.accepted, one.coverage, one.errors_accepted)
        yield one.name, *counted, one.risk, one.auroc


def _views(findings: Findings) -> Rows:
    for one in findings.views:
        yield one.text, one.accuracy, one.auroc_alone, one.auroc_without, one.change, *_ends(one.change_interval)


def _galleries(findings: Findings) -> Rows:
    study = findings.study
    for gallery in findings.galleries:
        for index in gallery.images.tolist():
            truth = study.class_names[study.preds.labels[index]]
            sure = (float(values[index]) for values in study.confidences.values())
            yield gallery.name, study.preds.ids[index], index, truth, bool(study.correct[index]), *sure
