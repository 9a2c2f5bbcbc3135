"""Results in detail: risk against coverage, and where the errors are by class, by confused pair and by view."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.estimators import iter_view_statistics
from secondlook.evaluation import Comparison
from secondlook.metrics import Interval, Ranking, auroc, resample_metrics
from secondlook.predictions import Execution
from secondlook.progress import progress_bar
from secondlook.report.operating_points import OperatingPoint
from secondlook.report.study import Study

CURVE_POINTS = 1000
BAND_POINTS = 100
RESAMPLES = 200
"""Resamples of the images for the bands of curves and the changes per view."""
MAX_CELL_BYTES = 2_000_000
"""Bytes of the ranked cells of all methods on a page: 500,000 images by 4 methods, if there are at most 256 cells."""
ALL_VIEWS = "all views"


@dataclass(frozen=True, eq=False)
class RiskBand:
    """Risk among the n most confident images for some n, with its interval over resamples of the images."""

    accepted: IntArray
    risk: Float64Array
    band_coverage: Float64Array
    low: Float64Array
    high: Float64Array


def risk_bands(study: Study) -> dict[str, RiskBand]:
    """Return the risk-coverage curve of each method, with its band."""
    accepted = spread_counts(study.n_images, CURVE_POINTS)
    coverage = spread_counts(study.n_images, BAND_POINTS) / study.n_images
    drawn, level = coverage * study.n_images, study.settings.level
    entries = {name: (study.correct, values) for name, values in study.confidences.items()}
    with progress_bar("bands", RESAMPLES, "resamples", enabled=study.progress) as advance:
        resampled = resample_metrics(
            entries, lambda _, ranking: interpolate_risk(ranking, drawn), RESAMPLES, study.settings.seed, advance
        )
    bands = {name: np.quantile(one, ((1 - level) / 2, (1 + level) / 2), axis=0) for name, one in resampled.items()}
    return {
        name: RiskBand(accepted, interpolate_risk(ranking, accepted), coverage, *bands[name])
        for name, ranking in study.rankings.items()
    }


def spread_counts(n_images: int, max_counts: int) -> IntArray:
    """Return at most this many numbers from 1 to N: half of them spaced evenly, half geometrically."""
    if n_images <= max_counts:
        return np.arange(1, n_images + 1)
    even, geometric = np.linspace(1, n_images, max_counts // 2), np.geomspace(1, n_images, max_counts // 2)
    return np.unique(np.rint(np.concatenate([even, geometric])).astype(np.int64))


def interpolate_risk(ranking: Ranking, accepted: IntArray | Float64Array) -> Float64Array:
    """Return the expected error rate among the n most confident images, ties in random order. [P] -> [P]"""
    errors = np.interp(accepted, np.append(0, ranking.accepted), np.append(0, ranking.errors))
    risk: Float64Array = errors / accepted
    return risk


@dataclass(frozen=True)
class ClassRisk:
    """Counts over the images of one true class, and over those that are accepted."""

    name: str
    images: int
    errors: int
    accepted: int
    errors_accepted: int
    auroc: float | None
    """AUROC of the confidence within the class; None if all of its predictions are correct or all are wrong."""

    @property
    def error_rate(self) -> float:
        """Fraction of wrong predictions."""
        return self.errors / self.images

    @property
    def coverage(self) -> float:
        """Fraction of accepted predictions."""
        return self.accepted / self.images

    @property
    def risk(self) -> float | None:
        """Error rate among the accepted predictions; None if none is accepted."""
        return self.errors_accepted / self.accepted if self.accepted else None


@dataclass(frozen=True)
class ViewContribution:
    """What one view contributes.

    AUROC is None if all predictions are correct or all are wrong; without a second view there is no change either.
    """

    text: str
    accuracy: float
    """Accuracy of the class predicted from this view alone."""
    auroc_alone: float | None
    """AUROC of the highest probability of this view alone."""
    auroc_without: float | None
    """AUROC of the mean over all other views."""
    change: float | None
    """`auroc_without` minus the AUROC of the mean over all views: negative if the view helps."""
    change_interval: Interval | None


def class_risks(study: Study, method: str, point: OperatingPoint) -> list[ClassRisk]:
    """Return each class that has images, where the point on the confidence of this method decides."""
    accept = study.confidences[method] >= point.threshold
    aurocs = class_aurocs(study, method)
    rows = []
    for index, members in _class_members(study).items():
        wrong = members[~study.correct[members]]
        counts = (len(members), len(wrong), int(accept[members].sum()), int(accept[wrong].sum()))
        rows.append(ClassRisk(study.class_names[index], *counts, aurocs[index]))
    return rows


def class_aurocs(study: Study, method: str) -> dict[int, float | None]:
    """Return the AUROC of a confidence within each class that has images."""
    confidence = study.confidences[method]
    return {
        index: _auroc_or_none(study.correct[members], confidence[members])
        for index, members in _class_members(study).items()
    }


def view_contributions(study: Study) -> list[ViewContribution]:
    """Return the contribution of every view, in order, from one pass over the predictions."""
    highest, masses, correct = _read_views(study)
    texts = study.preds.views.texts
    accuracies = [float(correct[:, view].mean()) for view in range(len(texts))]
    if not study.has_correct_and_wrong:
        return [ViewContribution(*pair, None, None, None, None) for pair in zip(texts, accuracies, strict=True)]
    without = _evaluate_without_each(study, masses)
    return [
        ViewContribution(text, accuracies[view], auroc(study.correct, highest[:, view]), *without[view])
        for view, text in enumerate(texts)
    ]


def _class_members(study: Study) -> dict[int, IntArray]:
    """Return the positions of the images of each class that has any."""
    order = np.argsort(study.preds.labels, kind="stable")
    classes, starts = np.unique(study.preds.labels[order], return_index=True)
    return dict(zip(classes.tolist(), np.split(order, starts[1:]), strict=True))


def _auroc_or_none(correct: BoolArray, confidence: Float64Array) -> float | None:
    try:
        return auroc(correct, confidence)
    except MetricError:  # all correct or all wrong
        return None


def _read_views(study: Study) -> tuple[Float64Array, Float64Array, BoolArray]:
    """Return per view its highest probability, its mass on the predicted classes, and whether it is correct. [N, V]"""
    preds, top_k = study.preds, study.settings.top_k
    shape = preds.n_images, preds.n_views
    highest, masses, correct = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.bool_)
    with preds.show_progress("views", 1, enabled=study.progress) as table:
        for rows, _, mass, top_mass, top in iter_view_statistics(table, study.settings.predict_from, top_k):
            masses[rows], highest[rows] = mass, top_mass
            correct[rows] = (top == preds.labels[rows, None, None]).any(axis=2)
    return highest, masses, correct


def _evaluate_without_each(
    study: Study, masses: Float64Array
) -> list[tuple[float | None, float | None, Interval | None]]:
    """Return, for each view, the AUROC of the mean without it, the change, and the interval of the change."""
    n_views = study.preds.n_views
    if n_views == 1:
        return [(None, None, None)]
    without = {str(view): np.delete(masses, view, axis=1).mean(axis=1) for view in range(n_views)}
    compared = Comparison.from_confidences(
        {name: (study.correct, values) for name, values in {ALL_VIEWS: masses.mean(axis=1), **without}.items()},
        ["auroc"],
        level=study.settings.level,
        resamples=RESAMPLES,
        seed=study.settings.seed,
        execution=Execution(progress=study.progress),
    )
    return [(row.value, row.difference, row.difference_interval) for row in compared.rows[1:]]


@dataclass(frozen=True, eq=False)
class ConfusionCells:
    """The P pairs of true and predicted class that occur, and the pair of each image.

    With `top_k` above 1 the predicted class is the most probable one, and a prediction can be correct although the two
    differ: such images have a cell of their own.
    """

    labels: IntArray
    """int64 [P]"""
    predicted: IntArray
    """int64 [P]"""
    correct: BoolArray
    """bool [P]"""
    of_image: IntArray
    """The cell of each image. int64 [N]"""

    @property
    def images(self) -> IntArray:
        """Number of images of each cell. int64 [P]"""
        return np.bincount(self.of_image, minlength=len(self.labels))

    def count(self, chosen: BoolArray) -> IntArray:
        """Count the chosen images of each cell. bool [N] -> int64 [P]"""
        return np.bincount(self.of_image[chosen], minlength=len(self.labels))


def find_cells(study: Study) -> ConfusionCells:
    """Return the cells of the confusion matrix that have images, by true class and then by predicted class."""
    triples = np.stack([study.preds.labels, study.leading, study.correct], axis=1).astype(np.int64)
    cells, of_image = np.unique(triples, axis=0, return_inverse=True)
    return ConfusionCells(cells[:, 0], cells[:, 1], cells[:, 2].astype(np.bool_), of_image.reshape(-1))


def rank_cells(study: Study, cells: ConfusionCells, first: str) -> Mapping[str, Array]:
    """Return the cell of each image, most confident image first, for `first` and for as many methods as there is room.

    The first n of them are the cells of the n images that a threshold accepts, so that a page can count any operating
    point. uint8, uint16 or uint32 [N] each
    """
    kind = np.min_scalar_type(max(len(cells.labels) - 1, 0))
    n_methods = MAX_CELL_BYTES // (kind.itemsize * study.n_images)
    names = sorted(study.confidences, key=lambda name: name != first)[:n_methods]
    orders = {name: np.argsort(-study.confidences[name], kind="stable") for name in names}
    return {name: cells.of_image[order].astype(kind) for name, order in orders.items()}
