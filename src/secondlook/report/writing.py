"""`write_report`: the page, and beside it every table as CSV and every plot as PNG and SVG."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from secondlook.errors import ReportError
from secondlook.evaluation import DEFAULT_METRICS, Evaluation
from secondlook.files import write_atomically
from secondlook.predictions import PredictFrom, Predictions
from secondlook.progress import progress_bar
from secondlook.report.curves import RESAMPLINGS
from secondlook.report.findings import Findings, found
from secondlook.report.page import page
from secondlook.report.pictures import ImageReader, pictured_images
from secondlook.report.static_plots import N_PLOTS, static_plots
from secondlook.report.study import Study, studied
from secondlook.report.tables import csv_tables
from secondlook.sources import Skipped

VERSIONS = ("secondlook", "numpy", "scipy", "numba", "pillow", "opencv-python-headless")


def write_report(
    preds: Predictions,
    path: str | Path,
    *,
    title: str,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    level: float = 0.95,
    resamples: int = 500,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    risk: float | None = None,
    delta: float = 0.001,
    seed: int = 0,
    image: ImageReader | None = None,
    evaluation: Evaluation | None = None,
    facts: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    skipped: Sequence[Skipped] = (),
    command: str | None = None,
    class_names: Sequence[str] | None = None,
    artefacts: bool = True,
    progress: bool = True,
) -> Path:
    """Write one self-contained HTML page about labeled predictions, and return where it is.

    Parameters
    ----------
    preds
        Labeled predictions.
    path
        The HTML file; tables and plots go to the folder `<stem>-files` beside it unless `artefacts` is False.
    methods
        Confidences to compare: `msr` and, with two views or more, `mean`, `bootstrap` and `bootstrap-lower`.
    metrics, level, resamples
        What the methods are compared by, and of the intervals.
    risk
        The tolerated risk that the result is told at; the largest of 1, 2, 5 x 10^n up to a quarter of the error rate.
    delta
        What is guaranteed holds with certainty 1 - delta.
    image
        From the place of an image to its pixels at the classifier's input size, uint8 [H, W, 1 or 3]. Without it the
        page has no galleries.
    evaluation
        An evaluation of the same predictions, shown as it is; made here where it is not given.
    facts, notes, skipped, command
        How the predictions came about, told at the end of the page; `preds.skipped` is told where none are given.
    progress
        Whether to draw progress bars, where it takes long and standard error is a terminal.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"a report is an HTML file, got path {str(target)!r}; give a name such as 'report.html'.")
    study = studied(
        preds, methods, predict_from=predict_from, top_k=top_k, seed=seed, class_names=class_names, progress=progress
    )
    findings = found(study, evaluation, risk, delta, metrics=metrics, level=level, resamples=resamples)
    left_out = [(one.id, one.reason) for one in skipped] or list(preds.skipped)
    told = {**_circumstances(study, findings), **(facts or {})}
    folder = target.with_name(f"{target.stem}-files")
    pictures = {} if image is None else pictured_images(study, findings.galleries, image)
    html = page(
        findings,
        title=title,
        pictures=pictures,
        facts=told,
        notes=notes,
        skipped=left_out,
        command=command,
        artefacts=folder.name if artefacts else None,
    )
    if artefacts:
        _write(folder, csv_tables(findings, told, left_out))
        with progress_bar("plots", N_PLOTS, "files", enabled=progress) as advance:
            for plot in static_plots(findings):
                _write(folder, [plot])
                advance(1)
    _write(target.parent, [(target.name, html.encode("utf-8"))])
    return target


def _circumstances(study: Study, findings: Findings) -> dict[str, str]:
    """Return what the report itself knows of how its numbers came about; never the date, so that bytes repeat."""
    counted = "the class" if study.top_k == 1 else f"the {study.top_k} leading classes"
    source = "the image itself" if study.predict_from == "image" else "the mean over all views"
    return {
        "methods": ", ".join(study.confidences),
        "answer": f"{counted} predicted from {source}",
        "views": " ".join(study.preds.views.texts),
        "intervals": (
            f"{100 * findings.evaluation.level:g} %, from {findings.evaluation.resamples:,} resamplings of the images; "
            f"bands of curves and changes of views from {RESAMPLINGS}"
        ),
        "seed": str(study.seed),
        "certainty of guarantees": f"{100 * (1 - findings.delta):g} %",
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{one} {version(one)}" for one in VERSIONS)]),
    }


def _write(folder: Path, named: "Iterator[tuple[str, bytes]] | list[tuple[str, bytes]]") -> None:
    for name, content in named:
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
        except OSError as error:
            reason = error.strerror or str(error)
            raise ReportError(
                f"the report cannot be written to {str(path)!r}: {reason}; choose a place that can be written to."
            ) from None
