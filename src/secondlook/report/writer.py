"""`write_report`: the page, with every table as CSV and every plot as PNG and SVG in a folder next to it."""

import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from secondlook.diagnosis import describe_harmful_views
from secondlook.errors import ReportError
from secondlook.estimators import needs_fitting
from secondlook.evaluation import DEFAULT_METRICS
from secondlook.files import write_bytes_atomically
from secondlook.policies import DEFAULT_DELTA
from secondlook.predictions import PredictFrom, Predictions
from secondlook.progress import progress_bar
from secondlook.report.curves import BAND_RESAMPLES
from secondlook.report.findings import Findings, compute_findings
from secondlook.report.galleries import ImageReader, read_images
from secondlook.report.page import render_report_page
from secondlook.report.static_plots import N_PLOTS, render_plots
from secondlook.report.study import Study, build_study
from secondlook.report.tables import render_tables

REPORTED_PACKAGES = ("secondlook", "numpy", "scipy", "numba", "pillow", "opencv-python-headless")


def write_report(
    preds: Predictions,
    path: str | Path,
    *,
    title: str,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    risk: float | None = None,
    delta: float = DEFAULT_DELTA,
    calibrated: Sequence[str] = (),
    duplicates: Collection[str] = (),
    tuning: object = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    image: ImageReader | None = None,
    facts: Mapping[str, str] | None = None,
    warnings: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    artifacts: bool = True,
    progress: bool = True,
) -> Path:
    """Write a self-contained HTML report about labeled predictions.

    The page compares the methods, lets the reader choose an operating point with sliders, and shows results per class
    and per view. Images that are set apart to fit methods are not part of it, except for their number. The same
    predictions, arguments and package versions produce the same bytes.

    Parameters
    ----------
    preds : Predictions
        Labeled predictions. Their `class_names` and `skipped` images appear on the page.
    path : str or Path
        The HTML file to write.
    title : str
        Heading of the page.
    methods : sequence of str, optional
        Names of the confidences to compare, by default those of `evaluate`. The first of `blend`, `learned` and `mean`
        among them is the second look that the headline compares with `msr`.
    metrics : sequence of str, optional
        Names of the metrics to compare them by, such as 'auroc' or 'risk_at:0.8'.
    predict_from : {"image", "views"}, default "image"
        Whether the class is predicted from the image itself or from the mean over its views.
    top_k : int, default 1
        A prediction is correct if the label is among the `top_k` most probable classes.
    risk : float, optional
        Tolerated risk that the page selects at first. By default the largest of 1, 2, 5 x 10^n that is at most a
        quarter of the error rate.
    delta : float, default 0.001
        Failure probability of the guarantees (0.001 means 99.9 % confidence). All methods that can have a guarantee
        share it, as in `certify`, so that the guarantee holds for whichever of them is chosen.
    calibrated : sequence of str, optional
        Methods that were calibrated with this `risk` and `delta`. They are reported, only they have a guarantee, and
        the page selects the operating point that `certify` chooses from them.
    duplicates : collection of str, optional
        Ids of images that are copies of others: a guarantee counts them once.
    tuning : positions or mask, optional
        Images that were used to choose or fit something, and on which methods are fitted, as in `evaluate`.
    level : float, default 0.95
        Confidence level of the intervals.
    resamples : int, default 500
        Number of resamplings of the images for the intervals.
    seed : int, default 0
        Random seed.
    image : callable, optional
        Function from the index of an image in `preds` to its pixels at the classifier's input size, uint8 [H, W, 1 or
        3]. By default the page has no example images.
    facts : mapping of str to str, optional
        Further facts about how the results were made, listed at the end of the page.
    warnings : sequence of str, optional
        Warnings for the reader, shown at the top of the page. By default it warns of harmful views.
    notes : sequence of str, optional
        Remarks for the reader, listed at the end of the page.
    command : str, optional
        The command that made the predictions, shown at the end of the page.
    artifacts : bool, default True
        Whether to write all tables (CSV) and plots (PNG, SVG) to the folder `<stem>-files` next to the page.
    progress : bool, default True
        Whether to show progress bars if standard error is a terminal.

    Returns
    -------
    Path
        The HTML file.

    Raises
    ------
    ReportError
        If the predictions have no labels, an argument is invalid, or a file cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"path is {str(target)!r}, expected an HTML file such as 'report.html'.")
    study = build_study(
        preds,
        methods,
        calibrated=calibrated,
        predict_from=predict_from,
        top_k=top_k,
        seed=seed,
        duplicates=duplicates,
        tuning=tuning,
        progress=progress,
    )
    findings = compute_findings(
        study, risk=risk, delta=delta, calibrated=calibrated, metrics=metrics, level=level, resamples=resamples
    )
    all_facts = {**_describe_settings(findings), **(facts or {})}
    folder = target.with_name(f"{target.stem}-files")
    page = render_report_page(
        findings,
        title=title,
        images={} if image is None else read_images(study, findings.images, image),
        facts=all_facts,
        warnings=_find_warnings(study) if warnings is None else warnings,
        notes=(*study.fitted.notes, *notes),
        command=command,
        artifacts=folder.name if artifacts else None,
    )
    if artifacts:
        _write_files(folder, render_tables(findings, all_facts))
        with progress_bar("plots", N_PLOTS, "files", enabled=progress) as advance:
            for plot in render_plots(findings):
                _write_files(folder, [plot])
                advance(1)
    _write_files(target.parent, [(target.name, page.encode("utf-8"))])
    return target


def _find_warnings(study: Study) -> tuple[str, ...]:
    warning = describe_harmful_views(study.preds, top_k=study.top_k)
    return () if warning is None else (warning,)


def _describe_settings(findings: Findings) -> dict[str, str]:
    """Return the settings and versions behind the numbers; no date, so that the same input gives the same bytes."""
    study, evaluation = findings.study, findings.evaluation
    classes = "class" if study.top_k == 1 else f"{study.top_k} most probable classes"
    origin = "the image itself" if study.predict_from == "image" else "the mean over views"
    packages = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in REPORTED_PACKAGES)]
    return {
        "methods": ", ".join(study.confidences),
        **_describe_tuning(study),
        "prediction": f"{classes} predicted from {origin}",
        "views": " ".join(study.preds.views.texts),
        "intervals": (
            f"{100 * evaluation.level:g} % confidence level, {evaluation.resamples:,} resamplings of the images "
            f"({BAND_RESAMPLES} for the bands of curves and the changes per view)"
        ),
        "seed": str(study.seed),
        "guarantee": _describe_guarantee(findings),
        "versions": ", ".join(packages),
    }


def _describe_tuning(study: Study) -> dict[str, str]:
    """Return how many images were set apart, and what was fitted on them."""
    if not study.n_tuning:
        return {}
    n_given = study.n_tuning + study.n_images
    apart = f"{study.n_tuning:,} of {n_given:,} images were set apart; all results are about the others"
    fitted = (
        f"{name}: {', '.join(f'{option}={_format_option(value)}' for option, value in options.items())}"
        for name, options in study.fitted.options.items()
        if needs_fitting(name)
    )
    return {"tuning": "; ".join([apart, *fitted])}


def _format_option(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _describe_guarantee(findings: Findings) -> str:
    """Return the terms of the guarantees, and where they come from."""
    shared = f", shared by {' and '.join(findings.sharing)}" if len(findings.sharing) > 1 else ""
    terms = f"failure probability {findings.delta:g} (confidence level {100 * (1 - findings.delta):g} %{shared})"
    if not findings.calibrated:
        return f"{terms}; no calibration was reported"
    return f"{terms}, as calibrated for {' and '.join(findings.calibrated)} at {100 * findings.risk:g} % risk"


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
