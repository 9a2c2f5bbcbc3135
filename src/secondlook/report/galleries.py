"""Which images are worth a look: the surest errors, the least sure right answers, and the most changed ranks."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.report.headline import percent
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import Study

MOST_IMAGES = 24


@dataclass(frozen=True, eq=False)
class Gallery:
    """Some images in order, with a heading and a sentence about them."""

    name: str
    title: str
    says: str
    images: IntArray
    rank_changes: IntArray | None = None
    """How many places each image rose, or fell below zero, by the second look, where that is what it is about."""
    now_accepted: BoolArray | None = None
    """Whether the second look accepts each image, where that is what it is about."""


def galleries_of(study: Study, risk: float) -> list[Gallery]:
    """Return the galleries that have images; equal confidences come in the order of the images."""
    sure = study.confidences[study.shown]
    order = np.argsort(-sure, kind="stable")
    errors = order[~study.correct[order]][:MOST_IMAGES]
    rising = np.argsort(sure, kind="stable")
    right = rising[study.correct[rising]][:MOST_IMAGES]
    found = [
        Gallery(
            "surest-errors",
            "The surest errors",
            f"Wrong answers with the highest confidence by {study.shown}: a threshold catches these last.",
            errors,
        ),
        Gallery(
            "least-sure-right",
            "The least sure right answers",
            f"Right answers with the lowest confidence by {study.shown}: handed to a person although nothing is wrong.",
            right,
        ),
    ]
    if study.second_look is not None:
        found.append(_most_changed(study, study.second_look, risk))
    return [gallery for gallery in found if len(gallery.images)]


def _most_changed(study: Study, second_look: str, risk: float) -> Gallery:
    """Return the images that the two decide differently about, those first whose place among all changed most."""
    rise = _places(study.confidences[study.baseline]) - _places(study.confidences[second_look])
    first, second = (_accepted(study, name, risk) for name in (study.baseline, second_look))
    order = np.argsort(-np.abs(rise), kind="stable")
    order = order[(first != second)[order]][:MOST_IMAGES]
    return Gallery(
        "most-changed",
        "Where the second look changed the decision most",
        f"At {percent(risk, 4)} tolerated risk {study.baseline} and {second_look} decide differently about these; "
        "first those whose place in the order of confidence moved furthest.",
        order,
        np.rint(rise[order]).astype(np.int64),
        second[order],
    )


def _accepted(study: Study, method: str, risk: float) -> BoolArray:
    accepted: BoolArray = study.confidences[method] >= point_at_risk(study.rankings[method], risk).threshold
    return accepted


def _places(sure: Float64Array) -> Float64Array:
    """Return the place of each image from the surest (1) down, the mean place for equals. float64 [N]"""
    from scipy.stats import rankdata

    places: Float64Array = np.asarray(rankdata(-sure), dtype=np.float64)
    return places
