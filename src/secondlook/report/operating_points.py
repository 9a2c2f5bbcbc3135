"""Operating points: accepted images and errors at a threshold, and certified thresholds.

The page computes the same in the browser from the same numbers; tests compare the two.
"""

import math
from dataclasses import dataclass
from shlex import quote

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError, ReportError
from secondlook.estimators import compile_method, find_method, tuning_positions
from secondlook.evaluation import Evaluation
from secondlook.metrics import Ranking
from secondlook.policies import CountedImages, Frontier, Policy, Schedule, largest_certified_count
from secondlook.report.study import Study

PASSES, PASSES_PER_VIEW = 6, 4
"""Approximate number of passes of adaptive looking over the predictions; per view when predicting from views."""
ROUNDING = 1e-12
"""Relative tolerance for rounding errors when comparing risks."""


@dataclass(frozen=True)
class OperatingPoint:
    """Accept images with confidence >= threshold: numbers of accepted images and of errors among them."""

    threshold: float
    accepted: int
    errors: int


NOTHING_ACCEPTED = OperatingPoint(math.inf, 0, 0)


def choose_headline_risk(error_rate: float) -> float:
    """Return the largest of 1, 2, 5 x 10^n that is at most a quarter of the error rate; 0.01 if there are no errors."""
    return _round_to_125(error_rate / 4, up=False) if error_rate > 0 else 0.01


def slider_risks(error_rate: float, headline_risk: float) -> Float64Array:
    """Return the tolerated risks of the slider: even steps from 0 to the error rate, and the risk of the headline."""
    if not 0 < headline_risk < 1:
        raise ReportError("is not an error rate between 0 and 1, e.g. 0.01", argument="risk", value=headline_risk)
    highest = max(error_rate, 0.01)
    step = _round_to_125(highest / 100, up=True)
    # Rounded to the float nearest to the decimal: 3 * 0.1 is 0.30000000000000004.
    even = np.round(np.arange(math.ceil(highest / step - ROUNDING) + 1) * step, 12)
    return np.unique(np.append(np.minimum(even, 1.0), headline_risk))


def point_at_risk(ranking: Ranking, risk: float) -> OperatingPoint:
    """Return the point with the highest coverage and an observed risk of at most `risk`."""
    tolerated = np.flatnonzero(ranking.errors <= risk * (1 + ROUNDING) * ranking.accepted)
    return _point_of_block(ranking, int(tolerated[-1])) if len(tolerated) else NOTHING_ACCEPTED


def certify_methods(study: Study, risks: Float64Array, delta: float) -> dict[str, list[OperatingPoint] | str]:
    """Return the certified point of each method for each risk, or the reason why it has none.

    As in `certify`, the methods share `delta`, so the guarantee holds for any choice among them. After a calibration,
    none is certified: that would be a new calibration.
    """
    reasons = {name: _find_reason_against(study, name) for name in study.confidences}
    sharing = max(1, sum(reason is None for reason in reasons.values()))
    return {name: reason or certify_points(study, name, risks, delta / sharing) for name, reason in reasons.items()}


def certify_points(study: Study, method: str, risks: Float64Array, delta: float) -> list[OperatingPoint]:
    """Return the point that `certify` finds for each risk, where only wrong copies of images count.

    Without a guarantee, it accepts nothing.
    """
    confidence, ranking = study.confidences[method], study.rankings[method]
    counted = CountedImages.count(study.correct, confidence, ~study.distinct)
    points = []
    for risk in risks.tolist():
        accepted = largest_certified_count(counted, risk, delta) if 0 < risk < 1 else None
        point = NOTHING_ACCEPTED
        if accepted:
            threshold = counted.ranking.confidences[np.searchsorted(counted.ranking.accepted, accepted)]
            point = _point_of_block(ranking, int(np.searchsorted(-ranking.confidences, -threshold)))
        points.append(point)
    return points


def describe_decisions(n_images: int, n_errors: int, point: OperatingPoint) -> str:
    """Describe in plain words how many images and errors the point accepts and sends to review."""
    accepted, rejected, caught = point.accepted, n_images - point.accepted, n_errors - point.errors
    images = "1 image" if n_images == 1 else f"{n_images:,} images"
    were = "was" if point.errors == 1 else "were"
    first = f"Of {images}, {accepted:,} can be accepted automatically; {point.errors:,} of those {were} wrong."
    review = f"{rejected:,} {'goes' if rejected == 1 else 'go'} to review"
    errors = "the 1 error" if n_errors == 1 else f"the {n_errors:,} errors"
    return f"{first} {review}, with {caught:,} of {errors} among them." if n_errors else f"{first} {review}."


def thin_ranking(ranking: Ranking, max_thresholds: int) -> Ranking:
    """Return the ranking with at most `max_thresholds` thresholds, evenly spread over the ranks, with exact counts."""
    if len(ranking.accepted) <= max_thresholds:
        return ranking
    targets = np.linspace(0, ranking.n_images, max_thresholds + 1)[1:]
    kept = np.unique(np.searchsorted(ranking.accepted, targets))
    return Ranking(ranking.confidences[kept], ranking.accepted[kept], ranking.errors[kept])


def format_percent(fraction: float, decimals: int = 2) -> str:
    """Return a fraction in percent with at most `decimals` decimals: '1 %', '0.25 %'."""
    text = f"{100 * fraction:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def format_pair(after: float, before: float, decimals: int, unit: str = "") -> str:
    """Return 'a instead of b' in percent, with enough decimals to distinguish them from each other, 0 and 100."""
    values = [100 * after, 100 * before]
    if values[0] == values[1]:
        return f"{values[0]:.{decimals}f}{unit}, as before"
    while decimals < 4 and _is_ambiguous(values, decimals):
        decimals += 1
    return f"{values[0]:.{decimals}f}{unit} instead of {values[1]:.{decimals}f}{unit}"


def describe_policy(policy: Policy) -> str:
    """Return how a policy decides, for any reader."""
    threshold = "the threshold of the predicted class" if policy.groups else f"{policy.threshold:.6g}"
    text = f"a prediction is accepted if its confidence is at least {threshold}"
    if policy.familiarity is not None:
        text += ", and the image is familiar enough"
    text += "."
    closed = sum(math.isinf(group.threshold) for group in policy.groups)
    if closed:
        text += f" {closed:,} of {len(policy.groups):,} classes have no threshold; their predictions go to review."
    if policy.schedule is not None and policy.calibration is not None:
        looks = f"{policy.calibration.mean_looks:.2f} looks on average instead of {policy.schedule.full_looks}"
        text += f" An image is looked at again only while its decision is open, with {looks}."
    return text


def _find_reason_against(study: Study, method: str) -> str | None:
    if study.policy is not None:
        return "the guarantee is that of the calibrated policy; calibrate another one on other images."
    policy = Policy(threshold=math.inf, method=compile_method(method).name, options=study.fitted.options[method])
    try:
        policy.check_transfers()
    except DecisionError as error:
        return str(error)
    return None


def _is_default(policy: Policy) -> bool:
    """Whether `study_adaptive_looking` finds the same policy, or how it would look adaptively."""
    if policy.guarantee is None or policy.groups or policy.familiarity or policy.costs or len(policy.compared) > 1:
        return False
    schedule = policy.schedule
    return schedule is None or (
        schedule.tolerance == Schedule.DEFAULT_TOLERANCE and schedule.max_looks == schedule.full_looks
    )


def _is_ambiguous(values: list[float], decimals: int) -> bool:
    first, second = rounded = [round(value, decimals) for value in values]
    return first == second or any(short in (0, 100) and short not in values for short in rounded)


def _point_of_block(ranking: Ranking, block: int) -> OperatingPoint:
    return OperatingPoint(float(ranking.confidences[block]), int(ranking.accepted[block]), int(ranking.errors[block]))


def _round_to_125(value: float, *, up: bool) -> float:
    """Round a positive value up or down to 1, 2 or 5 x 10^n, as the nearest float."""
    power = math.floor(math.log10(value))
    candidates = [float(f"{digit}e{power + shift}") for shift in (0, 1) for digit in (1, 2, 5)]
    if up:
        return min(one for one in candidates if one >= value * (1 - ROUNDING))
    return max(one for one in candidates if one <= value * (1 + ROUNDING))


@dataclass(frozen=True, eq=False)
class AdaptiveLooking:
    """Certified coverage when an image is looked at again only while its decision is open."""

    method: str
    risk: float
    delta: float
    frontier: Frontier
    looks: IntArray
    """Looks at each image with the default tolerance, or 0 if the schedule was fitted to it. int64 [N]"""
    accepted: BoolArray
    """Whether each image is accepted with the default tolerance. bool [N]"""
    ranked: IntArray
    """The images with more than one look: most looks first, then the closest to the threshold. int64 [n]"""

    @property
    def sentence(self) -> str:
        """Cost and coverage of the default tolerance in plain words."""
        chosen, full = self.frontier.chosen, self.frontier.all_looks
        certified = f"{format_pair(chosen.coverage, full.coverage, 1, ' %')} of the images"
        if chosen.coverage == full.coverage:
            certified = f"{100 * chosen.coverage:.1f} % of the images, as all looks do"
        return f"{chosen.looks:.1f} looks on average instead of {full.looks:g} certify {certified}."

    @property
    def counts(self) -> str:
        """How many images are decided after one look, and how many need all looks."""
        looked, most = self.looks[self.looks > 0], self.frontier.schedule.max_looks
        first, last = int((looked == 1).sum()), int((looked == most).sum())
        are, need = "is" if first == 1 else "are", "needs" if last == 1 else "need"
        return f"Of {len(looked):,} images, {first:,} {are} decided after one look, and {last:,} {need} all {most}."

    @property
    def command(self) -> str:
        """The command that calibrates an adaptive policy."""
        terms = f"--risk {self.risk:g} --delta {self.delta:g} --method {quote(self.method)}"
        return f"secondlook calibrate --run RUN {terms} --adaptive"


def study_adaptive_looking(study: Study, method: str, risk: float, delta: float) -> AdaptiveLooking | str:
    """Return the result of adaptive looking, or the reason why there is none.

    Uses this method if it is a mean over views, otherwise the first one of the study that is. It does not share its
    `delta`, as in a calibration of one method.
    """
    if study.preds.n_views < 2:
        return "there is only one view"
    if study.policy is not None and not _is_default(study.policy):
        return "the calibration has other settings"
    names = [
        name for name in (method, *Evaluation.SECOND_LOOK_METHODS, *study.confidences) if name in study.confidences
    ]
    able = [name for name in names if find_method(name).is_mean_over_views]
    if not able:
        return "no method on this page is a mean over views"
    tuning = study.fitted.tuning
    if not study.n_tuning:  # the same choice as in a calibration
        tuning = tuning_positions(study.n_images)
    passes = PASSES if study.settings.predict_from == "image" else PASSES + PASSES_PER_VIEW * study.preds.n_views
    with study.given.show_progress("adaptive looking", passes, enabled=study.progress) as given:
        try:
            frontier = Frontier.compute(
                given,
                compile_method(able[0]).name,
                risk=risk,
                delta=delta,
                predict_from=study.settings.predict_from,
                top_k=study.settings.top_k,
                duplicates=study.duplicates,
                tuning=tuning,
                **study.fitted.options[able[0]],
            )
        except DecisionError as error:
            return str(error).partition(";")[0].rstrip(".")
        if not frontier.policy.certified:
            return f"nothing can be certified at {format_percent(risk, 4)} risk with the default tolerance"
        looks, confidence, _ = frontier.policy.look(study.fitted.select_judged(given))
    if not study.n_tuning:
        looks = np.where(np.isin(np.arange(study.n_images), tuning), 0, looks)
    ranked = np.lexsort((np.abs(confidence - frontier.policy.threshold), -looks))
    return AdaptiveLooking(
        method=able[0],
        risk=risk,
        delta=delta,
        frontier=frontier,
        looks=looks,
        accepted=frontier.policy.accept(confidence, method=frontier.policy.method),
        ranked=ranked[looks[ranked] > 1],
    )
