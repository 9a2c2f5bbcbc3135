"""What each view contributes: how it does alone, and what is lost without it."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.estimators import class_mass, predicted_classes, top_class_mass
from secondlook.evaluation import evaluate
from secondlook.metrics import Interval, auroc
from secondlook.predictions import top_classes
from secondlook.report.study import Study

RESAMPLINGS = 200
ALL_VIEWS = "all views"


@dataclass(frozen=True)
class ViewContribution:
    """One view. Numbers are None where all images are right or wrong, and without further views nothing is left out."""

    text: str
    accuracy: float
    """How often the class predicted from this view alone is right."""
    auroc_alone: float | None
    """How well the largest output of this view alone finds the errors."""
    auroc_without: float | None
    """How well the mean over all other views finds them."""
    change: float | None
    """`auroc_without` less that of the mean over all views: below zero, the view helps."""
    change_interval: Interval | None


def view_contributions(study: Study, level: float) -> list[ViewContribution]:
    """Return every view of the predictions, in order, from one pass over them."""
    largest, shares, right = _answers_of_views(study)
    texts = study.preds.views.texts
    if not study.has_right_and_wrong:
        return [
            ViewContribution(text, float(right[:, place].mean()), None, None, None, None)
            for place, text in enumerate(texts)
        ]
    without = _without_each(study, shares, level)
    return [
        ViewContribution(text, float(right[:, place].mean()), auroc(study.correct, largest[:, place]), *without[place])
        for place, text in enumerate(texts)
    ]


def _answers_of_views(study: Study) -> tuple[Float64Array, Float64Array, BoolArray]:
    """Return of each view its largest output, its output for the predicted class, and whether it is right. [N, V]"""
    preds, top_k = study.preds, study.top_k
    shape = preds.n_images, preds.n_views
    largest, shares, right = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.bool_)
    classes = predicted_classes(preds, study.predict_from, top_k)
    with preds.read_with_bar("views", 1, enabled=study.progress) as seen:
        for rows, block in seen.blocks():
            shares[rows] = class_mass(block, classes[rows])
            for view in range(preds.n_views):
                largest[rows, view] = top_class_mass(block[:, view], top_k)
                leading = top_classes(block[:, view], top_k)
                right[rows, view] = (leading == preds.labels[rows, None]).any(axis=1)
    return largest, shares, right


def _without_each(
    study: Study, shares: Float64Array, level: float
) -> list[tuple[float | None, float | None, Interval | None]]:
    """Return, for each view, the AUROC of the mean without it, the change, and the interval of the change."""
    n_views = study.preds.n_views
    if n_views == 1:
        return [(None, None, None)]
    left_out = {str(view): np.delete(shares, view, axis=1).mean(axis=1) for view in range(n_views)}
    evaluation = evaluate(
        study.preds,
        {ALL_VIEWS: shares.mean(axis=1), **left_out},
        ["auroc"],
        predict_from=study.predict_from,
        top_k=study.top_k,
        baseline=ALL_VIEWS,
        level=level,
        resamples=RESAMPLINGS,
        seed=study.seed,
        progress=study.progress,
    )
    rows = [evaluation[name, "auroc"] for name in left_out]
    return [(row.value, row.difference, row.difference_interval) for row in rows]
