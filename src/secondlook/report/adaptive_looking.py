"""Adaptive looking: how much is certified with how many looks, and which images needed most looks."""

from dataclasses import dataclass
from shlex import quote

import numpy as np

from secondlook.arrays import BoolArray, IntArray
from secondlook.errors import DecisionError
from secondlook.estimators import find_method, split_method, tuning_positions
from secondlook.policies import CertifiedPoint, Frontier, compute_frontier
from secondlook.predictions import Predictions
from secondlook.report.operating_points import format_pair, format_percent
from secondlook.report.study import SECOND_LOOK_METHODS, Study

PASSES, PASSES_PER_VIEW = 6, 4
"""How often predictions are read, roughly; those per view where classes are predicted from the views so far."""


@dataclass(frozen=True, eq=False)
class AdaptiveLooking:
    """What is certified if an image is looked at again only while its decision is open."""

    method: str
    risk: float
    delta: float
    frontier: Frontier
    looks: IntArray
    """Looks at each image with the default tolerance, or 0 if the schedule was fitted to it. int64 [N]"""
    accepted: BoolArray
    """Whether each image is accepted then. bool [N]"""
    ranked: IntArray
    """The images that are looked at more than once: most looks first, then the closest to the threshold. int64 [n]"""

    @property
    def chosen(self) -> CertifiedPoint:
        """The point of the default tolerance."""
        return next(point for point in self.frontier.points if point.margin == self.frontier.schedule.margin)

    @property
    def points(self) -> tuple[CertifiedPoint, ...]:
        """The points at which something is certified, each once, from few looks to all of them."""
        # Of equal points the last one counts: the chosen one, or else all looks.
        found = (*self.frontier.points, self.frontier.all_looks, self.chosen)
        return tuple(sorted({(point.looks, point.coverage): point for point in found if point.coverage}.values()))

    @property
    def sentence(self) -> str:
        """What the default tolerance costs and gives, for any reader."""
        chosen, full = self.chosen, self.frontier.all_looks
        certified = f"{format_pair(chosen.coverage, full.coverage, 1, ' %')} of the images"
        if chosen.coverage == full.coverage:
            certified = f"{100 * chosen.coverage:.1f} % of the images, as all looks do"
        return f"{chosen.looks:.1f} looks on average instead of {full.looks:g} certify {certified}."

    @property
    def counts(self) -> str:
        """How many images are decided after one look, and how many need as many as there can be."""
        looked, most = self.looks[self.looks > 0], self.frontier.schedule.max_looks
        first, last = int((looked == 1).sum()), int((looked == most).sum())
        are, need = "is" if first == 1 else "are", "needs" if last == 1 else "need"
        return f"Of {len(looked):,} images, {first:,} {are} decided after one look, and {last:,} {need} all {most}."

    @property
    def command(self) -> str:
        """The command that makes such a policy."""
        terms = f"--risk {self.risk:g} --delta {self.delta:g} --method {quote(self.method)}"
        return f"secondlook calibrate --run RUN {terms} --adaptive"


def study_adaptive_looking(study: Study, method: str, risk: float, delta: float) -> AdaptiveLooking | str:
    """Return what adaptive looking certifies, or the reason why that cannot be told.

    By this method if it is a mean over views, otherwise by the first one of the study that is. It has the whole `delta`
    for itself, as in a calibration of one method.
    """
    if study.preds.n_views < 2:
        return "there is only one view"
    able = [name for name in (method, *SECOND_LOOK_METHODS, *study.confidences) if _can_be_adaptive(study, name)]
    if not able:
        return "none of the methods of this page is a mean over views"
    passes = PASSES if study.predict_from == "image" else PASSES + PASSES_PER_VIEW * study.preds.n_views
    with study.given.show_progress("adaptive looking", passes, enabled=study.progress) as given:
        try:
            frontier = _compute_frontier(study, given, able[0], risk, delta)
        except DecisionError as error:
            return str(error).partition(";")[0].rstrip(".")
        if not frontier.rule.certified:
            return f"nothing can be certified at {format_percent(risk, 4)} risk with the default tolerance"
        looks, confidence, _ = frontier.rule.look(study.fitted.select_judged(given))
    if not study.n_tuning:
        looks = np.where(np.isin(np.arange(study.n_images), _choose_tuning(study)), 0, looks)
    ranked = np.lexsort((np.abs(confidence - frontier.rule.threshold), -looks))
    return AdaptiveLooking(
        method=able[0],
        risk=risk,
        delta=delta,
        frontier=frontier,
        looks=looks,
        accepted=frontier.rule.accept(confidence),
        ranked=ranked[looks[ranked] > 1],
    )


def _can_be_adaptive(study: Study, method: str) -> bool:
    return method in study.confidences and find_method(method).is_mean_over_views


def _choose_tuning(study: Study) -> IntArray:
    """Return the images that are set apart, or would be in a calibration. int64 [n]"""
    if study.n_tuning:
        return study.fitted.tuning
    distinct = np.flatnonzero(study.distinct)
    return distinct[tuning_positions(len(distinct))]


def _compute_frontier(study: Study, given: Predictions, method: str, risk: float, delta: float) -> Frontier:
    return compute_frontier(
        given,
        split_method(method)[0],
        risk=risk,
        delta=delta,
        predict_from=study.predict_from,
        top_k=study.top_k,
        duplicates=study.duplicates,
        tuning=_choose_tuning(study),
        **study.fitted.options[method],
    )
