"""`write_report`: the page, with every table as CSV and every plot as PNG and SVG in a folder next to it."""

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Unpack

from secondlook.arrays import Array
from secondlook.diagnosis import diagnose_views
from secondlook.errors import ReportError
from secondlook.estimators import needs_fitting
from secondlook.files import write_bytes_atomically
from secondlook.policies import DEFAULT_DELTA
from secondlook.predictions import Predictions
from secondlook.progress import progress_bar
from secondlook.report.breakdowns import RESAMPLES
from secondlook.report.csv_tables import render_tables
from secondlook.report.findings import Findings, compute_findings
from secondlook.report.galleries import read_images
from secondlook.report.page import render_report_page
from secondlook.report.plots import N_PLOTS, has_matplotlib, render_plots
from secondlook.report.study import EvaluationOptions, Study, build_study

REPORTED_PACKAGES = ("secondlook", "numpy", "scipy", "pillow", "opencv-python-headless")


@dataclass(frozen=True)
class ReportContext:
    """What a run knows about its predictions, for the page."""

    calibrated: tuple[str, ...] = ()
    """Methods that were calibrated with the risk and the delta of the report. They are reported, only they have a
    guarantee, and the page selects the operating point that `certify` chooses from them."""
    duplicates: frozenset[str] = frozenset()
    """Ids of images that are copies of others: a guarantee counts them once."""
    warnings: tuple[str, ...] | None = None
    """Warnings at the top of the page; by default it warns of harmful views."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader, listed at the end of the page."""
    command: str | None = None
    """The command that made the predictions, shown at the end of the page."""


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
    context: ReportContext | None = None,
    artifacts: bool = True,
    progress: bool = True,
    **options: Unpack[EvaluationOptions],
) -> Path:
    """Write a self-contained HTML report about labeled predictions, and return its path.

    The page compares the methods, lets the reader choose an operating point with sliders, and shows results per class
    and per view. Images that are set apart to fit methods are not part of it, except for their number. The same
    predictions, arguments and package versions produce the same bytes.

    Parameters
    ----------
    preds
        Labeled predictions. Their `class_names` and `skipped` images appear on the page.
    out
        The HTML file to write.
    title
        Heading of the page.
    risk
        Tolerated risk that the page selects at first. By default the largest of 1, 2, 5 x 10^n that is at most a
        quarter of the error rate.
    delta
        Failure probability of the guarantees (0.001 means 99.9 % confidence). All methods that can have a guarantee
        share it, as in `certify`, so that the guarantee holds for whichever of them is chosen.
    tuning
        Positions or mask of the images that were used to choose or fit something, and on which methods are fitted, as
        in `evaluate`.
    image
        Function from the index of an image in `preds` to its pixels at the classifier's input size, uint8 [H, W, 1 or
        3]. By default the page has no example images.
    facts
        Further facts about how the results were made, listed at the end of the page.
    context
        What `Run.report` adds to the page.
    artifacts
        Whether to write all tables (CSV) and, if matplotlib is installed, all plots (PNG, SVG) to the folder
        `<stem>-files` next to the page.
    progress
        Whether to show progress bars if standard error is a terminal.
    **options
        Options of `evaluate`: `methods`, `metrics`, `predict_from`, `top_k`, `level`, `resamples` and `seed`. The first
        of `blend`, `learned` and `mean` among the methods is the second look that the headline compares with `msr`.

    Raises
    ------
    ReportError
        If the predictions have no labels, an argument is invalid, or a file cannot be written.
    """
    target, known = Path(out), context or ReportContext()
    if target.suffix.lower() not in (".html", ".htm"):
        raise ReportError("is no HTML file such as 'report.html'", argument="out", value=str(target))
    study = build_study(
        preds, calibrated=known.calibrated, duplicates=known.duplicates, tuning=tuning, progress=progress, **options
    )
    findings = compute_findings(study, risk=risk, delta=delta)
    all_facts = {**_describe_settings(findings), **(facts or {})}
    has_plots = has_matplotlib()
    folder = target.with_name(f"{target.stem}-files")
    page = render_report_page(
        findings,
        {} if image is None else read_images(study, findings.images, image),
        title=title,
        facts=all_facts,
        warnings=_find_warnings(study) if known.warnings is None else known.warnings,
        notes=(*study.fitted.notes, *known.notes),
        command=known.command,
        artifacts=folder.name if artifacts else None,
        has_plots=has_plots,
    )
    if artifacts:
        _write_files(folder, render_tables(findings, all_facts))
        with progress_bar("plots", N_PLOTS, "files", enabled=progress) as advance:
            for plot in render_plots(findings) if has_plots else ():
                _write_files(folder, [plot])
                advance(1)
    _write_files(target.parent, [(target.name, page.encode("utf-8"))])
    return target


def _find_warnings(study: Study) -> tuple[str, ...]:
    warning = diagnose_views(study.preds, top_k=study.settings.top_k, max_images=10_000).describe_harmful()
    return () if warning is None else (warning,)


def _describe_settings(findings: Findings) -> dict[str, str]:
    """Return the settings and versions behind the numbers; no date, so that the same input gives the same bytes."""
    study, settings = findings.study, findings.study.settings
    classes = "class" if settings.top_k == 1 else f"{settings.top_k} most probable classes"
    origin = "the image itself" if settings.predict_from == "image" else "the mean over views"
    packages = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in REPORTED_PACKAGES)]
    return {
        "methods": ", ".join(study.confidences),
        **_describe_tuning(study),
        "prediction": f"{classes} predicted from {origin}",
        "views": " ".join(study.preds.views.texts),
        "intervals": (
            f"{100 * settings.level:g} % confidence level, {settings.resamples:,} resamples of the images "
            f"({RESAMPLES} for the bands of curves and the changes per view)"
        ),
        "seed": str(settings.seed),
        "guarantee": _describe_guarantee(findings),
        "versions": ", ".join(packages),
    }


def _describe_tuning(study: Study) -> dict[str, str]:
    """Return how many images were set apart, and what was fitted on them."""
    if not study.n_tuning:
        return {}
    n_given = study.n_tuning + study.n_images
    apart = f"{study.n_tuning:,} of {n_given:,} images were set apart; all results are about the others"
    parts = [apart]
    for name in filter(needs_fitting, study.fitted.options):
        options = study.fitted.options[name].items()
        values = (
            f"{option}={value:.4g}" if isinstance(value, float) else f"{option}={value}" for option, value in options
        )
        parts.append(f"{name}: {', '.join(values)}")
    return {"tuning": "; ".join(parts)}


def _describe_guarantee(findings: Findings) -> str:
    """Return the terms of the guarantees, and where they come from."""
    shared = f", shared by {' and '.join(findings.sharing)}" if len(findings.sharing) > 1 else ""
    terms = f"failure probability {findings.delta:g} (confidence level {100 * (1 - findings.delta):g} %{shared})"
    calibrated = findings.study.calibrated
    if not calibrated:
        return f"{terms}; no calibration was reported"
    return f"{terms}, as calibrated for {' and '.join(calibrated)} at {100 * findings.risk:g} % risk"


def _write_files(folder: Path, contents: Iterable[tuple[str, bytes]]) -> None:
    for name, content in contents:
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes_atomically(path, content)
        except OSError as error:
            raise ReportError(
                f"cannot write the report to {str(path)!r}: {error.strerror or error}; choose a writable location."
            ) from None
