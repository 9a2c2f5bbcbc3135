"""`write_report`: the page, and a folder next to it with all tables as CSV and all plots as PNG and SVG."""

import itertools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

from secondlook.arrays import Array
from secondlook.diagnosis import diagnose_views
from secondlook.errors import ReportError
from secondlook.estimators import needs_fitting
from secondlook.evaluation import Estimate
from secondlook.metrics import Interval
from secondlook.policies import DEFAULT_DELTA
from secondlook.predictions import Predictions
from secondlook.progress import progress_bar
from secondlook.report.findings import RESAMPLES, Findings, compute_findings
from secondlook.report.operating_points import NOTHING_ACCEPTED, point_at_risk
from secondlook.report.page import read_images, render_report_page, write_file
from secondlook.report.plots import FORMATS, N_PLOTS, PLOTS, has_matplotlib, render_plots
from secondlook.report.study import Study, build_study
from secondlook.tables import format_csv_row

Rows = Iterable[Sequence[object]]


def write_report(
    preds: Predictions,
    out: str | Path,
    *,
    title: str,
    risk: float | None = None,
    delta: float = DEFAULT_DELTA,
    tuning: object = None,
    image: Callable[[int], Array] | None = None,
    facts: Mapping[str, str] | None = None,
    artifacts: bool = True,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Write a self-contained HTML report about labeled predictions, and return its path.

    The page compares the methods, has sliders to choose an operating point, and shows results per class and per view.
    Its results exclude tuning images. The same predictions, arguments and package versions produce the same bytes.

    Parameters
    ----------
    preds
        Labeled predictions. Their `class_names` and `skipped` images appear on the page.
    out
        The HTML file to write.
    title
        Heading of the page.
    risk
        Initially selected tolerated risk. By default the largest of 1, 2, 5 x 10^n that is at most a quarter of the
        error rate.
    delta
        Failure probability of the guarantees (0.001 means 99.9 % confidence). All methods with a guarantee share it, as
        in `certify`, so the guarantee holds for any choice among them.
    tuning
        Positions or mask of the tuning images, on which methods are fitted, as in `evaluate`.
    image
        Function from the index of an image in `preds` to its pixels at the classifier's input size, uint8 [H, W, 1 or
        3]. By default the page has no example images.
    facts
        Additional facts about the origin of the results, listed at the end of the page.
    artifacts
        Whether to write all tables (CSV) and, if matplotlib is installed, all plots (PNG, SVG) to the folder
        `<stem>-files` next to the page.
    progress
        Whether to show progress bars if standard error is a terminal.
    **options
        Options of `evaluate`: `methods`, `metrics`, `predict_from`, `top_k`, `unknown`, `level`, `resamples` and
        `seed`. The headline compares the first of `blend`, `learned` and `mean` among the methods with `msr`.

    Raises
    ------
    ReportError
        If the predictions have no labels, an argument is invalid, or a file cannot be written.
    """
    target = check_page_path(out)
    study = build_study(preds, tuning=tuning, progress=progress, **options)
    write_study(study, target, title=title, risk=risk, delta=delta, image=image, facts=facts, artifacts=artifacts)
    return target


def check_page_path(out: str | Path) -> Path:
    """Return the path of a page; raise an error for other suffixes."""
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise ReportError("is not an HTML file, e.g. 'report.html'", argument="out", value=str(out))
    return Path(out)


def write_study(
    study: Study,
    target: Path,
    *,
    title: str,
    risk: float | None = None,
    delta: float = DEFAULT_DELTA,
    image: Callable[[int], Array] | None = None,
    unknown_image: Callable[[int], Array] | None = None,
    facts: Mapping[str, str] | None = None,
    warnings: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    baseline: str | None = None,
    artifacts: bool = True,
) -> None:
    """Write the report of a study, with the arguments of `write_report`; `unknown_image` is `image` for unknown images.

    The page shows `warnings`, by default about harmful views, a sentence about the `baseline` in its summary, and
    `notes` and the `command` of the run at the end.
    """
    findings = compute_findings(study, risk=risk, delta=delta)
    all_facts = {**_describe_settings(findings), **(facts or {})}
    if warnings is None:
        harmful = diagnose_views(study.preds, top_k=study.settings.top_k, max_images=10_000).describe_harmful()
        warnings = () if harmful is None else (harmful,)
    has_plots = has_matplotlib()
    folder = target.with_name(f"{target.stem}-files")
    unknown_images = {}
    if findings.unknown is not None and study.unknown is not None and unknown_image is not None:
        unknown_images = read_images(study.unknown, findings.unknown.images, unknown_image)
    page = render_report_page(
        findings,
        {} if image is None else read_images(study.preds, findings.images, image, study.fitted.judged),
        unknown_images,
        title=title,
        facts=all_facts,
        warnings=warnings,
        notes=(*study.fitted.notes, *notes),
        command=command,
        baseline=baseline,
        artifacts=folder.name if artifacts else None,
        has_plots=has_plots,
    )
    if artifacts:
        for name, content in render_tables(findings, all_facts):
            write_file(folder / name, content)
        with progress_bar("plots", N_PLOTS, "files", enabled=study.progress) as advance:
            for name, content in render_plots(findings) if has_plots else ():
                write_file(folder / name, content)
                advance(1)
    write_file(target, page.encode("utf-8"))


def _describe_settings(findings: Findings) -> dict[str, str]:
    """Return the settings and versions, without a date, so that the same input gives the same bytes."""
    study, settings = findings.study, findings.study.settings
    classes = "class" if settings.top_k == 1 else f"{settings.top_k} most probable classes"
    origin = "the image itself" if settings.predict_from == "image" else "the mean over views"
    packages = ("secondlook", "numpy", "scipy", "pillow", "opencv-python-headless")
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    shared = f", shared by {' and '.join(findings.sharing)}" if len(findings.sharing) > 1 else ""
    guarantee = f"failure probability {findings.delta:g} (confidence level {100 * (1 - findings.delta):g} %{shared})"
    calibration = "; no policy is calibrated"
    if study.policy is not None:
        guarantee, calibration = study.policy.guarantee_text, f", as calibrated for {study.calibrated}"
    return {
        "methods": ", ".join(study.confidences),
        **({"tuning": _describe_tuning(study)} if study.n_tuning else {}),
        "prediction": f"{classes} predicted from {origin}",
        "views": " ".join(study.preds.views.texts),
        "intervals": (
            f"{100 * settings.level:g} % confidence level, {settings.resamples:,} resamples of the images "
            f"({RESAMPLES} for the bands of curves and the changes per view)"
        ),
        "seed": str(settings.seed),
        "guarantee": guarantee + calibration,
        "versions": ", ".join(versions),
    }


def _describe_tuning(study: Study) -> str:
    """Return the number of tuning images, and the fitted options."""
    n_given = study.n_tuning + study.n_images
    parts = [f"{study.n_tuning:,} of {n_given:,} images were used for tuning; all results are for the others"]
    for name in filter(needs_fitting, study.fitted.options):
        options = study.fitted.options[name].items()
        values = (f"{one}={value:.4g}" if isinstance(value, float) else f"{one}={value}" for one, value in options)
        parts.append(f"{name}: {', '.join(values)}")
    return "; ".join(parts)


def list_artifacts() -> list[str]:
    """Return the file names of all tables and plots."""
    return [f"{name}.csv" for name in (*TABLES, "facts")] + [f"{name}.{suffix}" for name in PLOTS for suffix in FORMATS]


def render_tables(findings: Findings, facts: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the bytes of each table."""
    tables = {name: (columns.split(), list_rows(findings)) for name, (columns, list_rows) in TABLES.items()}
    tables["galleries"][0].extend(findings.study.confidences)
    tables["facts"] = (["fact", "value"], facts.items())
    for name, (header, rows) in tables.items():
        yield f"{name}.csv", "".join(map(format_csv_row, itertools.chain([header], rows))).encode("utf-8")


def _zip_arrays(method: str, *columns: Array) -> Rows:
    return ((method, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _estimate_rows(estimates: Iterable[Estimate]) -> Rows:
    for row in estimates:
        value = (row.value, *_ends(row.interval), row.difference, *_ends(row.difference_interval))
        yield row.method, row.metric, row.better, *value, row.verdict, row.images, row.errors, row.reason


def _unknown_rows(findings: Findings) -> Rows:
    if findings.unknown is not None:
        yield from _estimate_rows((*findings.unknown.detection.rows, *findings.unknown.joint.rows))


def _accepted_unknown_rows(findings: Findings) -> Rows:
    for one in () if findings.unknown is None else findings.unknown.accepted.values():
        yield one.method, findings.risk, one.threshold, one.images, one.accepted, one.share, *_ends(one.interval)


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
    for point in findings.adaptive.frontier.certified_points:
        yield *point, point == findings.adaptive.frontier.chosen


def _histogram_rows(findings: Findings) -> Rows:
    for name, ranking in findings.study.rankings.items():
        one = ranking.histogram()
        yield from _zip_arrays(name, one.edges[:-1], one.edges[1:], one.correct, one.wrong)


def _reliability_rows(findings: Findings) -> Rows:
    for name in findings.study.probabilities:
        curve = findings.study.rankings[name].reliability()
        yield from _zip_arrays(name, curve.confidence, curve.accuracy, curve.images)


def _view_rows(findings: Findings) -> Rows:
    for one in findings.views:
        yield one.text, one.accuracy, one.auroc_alone, one.auroc_without, one.change, *_ends(one.change_interval)


def _confusion_rows(findings: Findings) -> Rows:
    study, cells = findings.study, findings.cells
    columns = (cells.labels, cells.predicted, cells.correct, cells.images, cells.count(findings.accepted))
    for label, predicted, *numbers in zip(*(column.tolist() for column in columns), strict=True):
        yield study.class_names[label], study.class_names[predicted], *numbers


def _gallery_rows(findings: Findings) -> Rows:
    study, adaptive = findings.study, findings.adaptive
    for index in findings.images.tolist():
        label, predicted = (study.class_names[classes[index]] for classes in (study.preds.labels, study.leading))
        accepted = bool(findings.accepted[index])
        confidences = (float(values[index]) for values in study.confidences.values())
        given = int(study.fitted.judged[index])
        looks = None if isinstance(adaptive, str) else int(adaptive.looks[index]) or None
        decision = (bool(study.correct[index]), accepted, looks)
        yield study.preds.ids[index], given, label, predicted, *decision, *confidences


ESTIMATE_COLUMNS = (
    "method metric better value low high difference difference_low difference_high verdict images errors reason"
)
TABLES: dict[str, tuple[str, Callable[[Findings], Rows]]] = {
    "methods": (ESTIMATE_COLUMNS, lambda findings: _estimate_rows(findings.evaluation.rows)),
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
    "classes": (
        "class images errors error_rate accepted coverage errors_accepted risk auroc",
        lambda findings: findings.classes,
    ),
    "views": ("view accuracy auroc_alone auroc_without change change_low change_high", _view_rows),
    "confusions": ("label predicted correct images accepted", _confusion_rows),
    "galleries": ("id index label predicted correct accepted looks", _gallery_rows),
    "unknown": (ESTIMATE_COLUMNS, _unknown_rows),
    "unknown-accepted": ("method tolerated_risk threshold images accepted share low high", _accepted_unknown_rows),
    "skipped": ("id reason", lambda findings: findings.study.preds.skipped),
}
"""Columns and rows of each table; `galleries` also has the confidence of each method."""
