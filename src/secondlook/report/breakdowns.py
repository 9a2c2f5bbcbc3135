"""Results per class and per view: where the errors are, and what each view contributes."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.estimators import class_mass, top_class_mass
from secondlook.evaluation import compare_confidences
from secondlook.metrics import Interval, auroc
from secondlook.predictions import top_classes
from secondlook.report.operating_points import OperatingPoint
from secondlook.report.study import Study

VIEW_RESAMPLES = 200
ALL_VIEWS = "all views"


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


def view_contributions(study: Study, level: float) -> list[ViewContribution]:
    """Return the contribution of every view, in order, from one pass over the predictions."""
    highest, masses, correct = _read_views(study)
    texts = study.preds.views.texts
    accuracies = [float(correct[:, view].mean()) for view in range(len(texts))]
    if not study.has_correct_and_wrong:
        return [ViewContribution(*pair, None, None, None, None) for pair in zip(texts, accuracies, strict=True)]
    without = _evaluate_without_each(study, masses, level)
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
    preds, top_k = study.preds, study.top_k
    shape = preds.n_images, preds.n_views
    highest, masses, correct = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.bool_)
    classes = preds.predicted(study.predict_from, top_k).reshape(-1, top_k)
    with preds.show_progress("views", 1, enabled=study.progress) as table:
        for rows, block in table.blocks():
            masses[rows] = class_mass(block, classes[rows])
            for view in range(preds.n_views):
                highest[rows, view] = top_class_mass(block[:, view], top_k)
                leading = top_classes(block[:, view], top_k)
                correct[rows, view] = (leading == preds.labels[rows, None]).any(axis=1)
    return highest, masses, correct


def _evaluate_without_each(
    study: Study, masses: Float64Array, level: float
) -> list[tuple[float | None, float | None, Interval | None]]:
    """Return, for each view, the AUROC of the mean without it, the change, and the interval of the change."""
    n_views = study.preds.n_views
    if n_views == 1:
        return [(None, None, None)]
    without = {str(view): np.delete(masses, view, axis=1).mean(axis=1) for view in range(n_views)}
    compared = compare_confidences(
        {name: (study.correct, values) for name, values in {ALL_VIEWS: masses.mean(axis=1), **without}.items()},
        ["auroc"],
        level=level,
        resamples=VIEW_RESAMPLES,
        seed=study.seed,
        progress=study.progress,
    )
    return [(row.value, row.difference, row.difference_interval) for row in compared.rows[1:]]
