"""Operating points: what a threshold accepts, how many errors that includes, and what can be guaranteed.

The sliders of the page compute the same in the browser from the same numbers; tests compare the two.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import DecisionError, ReportError
from secondlook.estimators import split_method
from secondlook.metrics import Ranking, count_for_coverage, rank
from secondlook.policies import check_threshold_transfers, largest_certified_count
from secondlook.report.study import Study

MAX_RISK_STEPS = 100
MAX_DECIMALS = 4
ROUNDING = 1e-12
"""A risk that exceeds the tolerated risk by less than this fraction of it does so because of rounding."""


@dataclass(frozen=True)
class OperatingPoint:
    """Accept images with confidence >= threshold: how many these are, and how many of them are wrong."""

    threshold: float
    accepted: int
    errors: int


NOTHING_ACCEPTED = OperatingPoint(math.inf, 0, 0)


@dataclass(frozen=True, eq=False)
class CertifiedPoints:
    """The certified operating point for each of R tolerated risks; 0 accepted if nothing can be guaranteed. [R] each"""

    thresholds: Float64Array
    accepted: IntArray
    errors: IntArray

    def __getitem__(self, index: int) -> OperatingPoint:
        return OperatingPoint(float(self.thresholds[index]), int(self.accepted[index]), int(self.errors[index]))


def choose_headline_risk(error_rate: float) -> float:
    """Return the largest of 1, 2, 5 x 10^n that is at most a quarter of the error rate; 0.01 if there are no errors."""
    return _round_to_125(error_rate / 4, up=False) if error_rate > 0 else 0.01


def slider_risks(error_rate: float, headline_risk: float) -> Float64Array:
    """Return the tolerated risks of the slider: even steps from 0 to the error rate, and the risk of the headline."""
    if not 0 < headline_risk < 1:
        raise ReportError(f"risk is {headline_risk}, expected an error rate between 0 and 1, such as 0.01 for 1 %.")
    highest = max(error_rate, 0.01)
    step = _round_to_125(highest / MAX_RISK_STEPS, up=True)
    # Rounded so that a step is the float nearest to its decimal: 3 * 0.1 is 0.30000000000000004.
    even = np.round(np.arange(math.ceil(highest / step - ROUNDING) + 1) * step, 12)
    return np.unique(np.append(np.minimum(even, 1.0), headline_risk))


def point_at_risk(ranking: Ranking, risk: float) -> OperatingPoint:
    """Return the point with the highest coverage at which at most `risk` of the accepted images are wrong."""
    tolerated = np.flatnonzero(ranking.errors <= risk * (1 + ROUNDING) * ranking.accepted)
    return _point_of_block(ranking, int(tolerated[-1])) if len(tolerated) else NOTHING_ACCEPTED


def point_at_coverage(ranking: Ranking, coverage: float) -> OperatingPoint:
    """Return the highest threshold that accepts at least this fraction; equal confidences are accepted together."""
    count = count_for_coverage(coverage, ranking.n_images)
    return _point_of_block(ranking, int(np.searchsorted(ranking.accepted, count)))


def point_at_threshold(ranking: Ranking, threshold: float) -> OperatingPoint:
    """Return the point of one of the confidences of the ranking as threshold; it accepts nothing at infinity."""
    block = int(np.searchsorted(-ranking.confidences, -threshold))
    return NOTHING_ACCEPTED if threshold == math.inf else _point_of_block(ranking, block)


def certified_point(ranking: Ranking, risk: float, delta: float) -> OperatingPoint:
    """Return the point that `certify` finds; it accepts nothing if nothing can be guaranteed."""
    accepted = largest_certified_count(ranking, risk, delta) if 0 < risk < 1 else None
    return _point_of_block(ranking, int(np.searchsorted(ranking.accepted, accepted))) if accepted else NOTHING_ACCEPTED


def certify_methods(
    study: Study, risks: Float64Array, delta: float, calibrated: Collection[str] = ()
) -> dict[str, CertifiedPoints | str]:
    """Return the certified points of each method, or the reason why it has none.

    As in `certify`, the methods share `delta`, so that the guarantee holds for whichever of them is chosen. Where some
    methods were calibrated, only these are certified: to certify another one would be another calibration.
    """
    reasons = {name: _find_reason_against(study, name, calibrated) for name in study.confidences}
    sharing = max(1, sum(reason is None for reason in reasons.values()))
    return {name: reason or certify_points(study, name, risks, delta / sharing) for name, reason in reasons.items()}


def certify_points(study: Study, method: str, risks: Float64Array, delta: float) -> CertifiedPoints:
    """Return the certified point of a method for each risk, where copies of images count once."""
    confidence, ranking = study.confidences[method], study.rankings[method]
    distinct = ranking if study.distinct.all() else rank(study.correct[study.distinct], confidence[study.distinct])
    points = [point_at_threshold(ranking, certified_point(distinct, float(risk), delta).threshold) for risk in risks]
    return CertifiedPoints(
        np.array([point.threshold for point in points]),
        np.array([point.accepted for point in points], dtype=np.int64),
        np.array([point.errors for point in points], dtype=np.int64),
    )


def describe_decisions(n_images: int, n_errors: int, point: OperatingPoint) -> str:
    """Return how many images the point accepts and sends to review, and where the errors are, for any reader."""
    accepted, rejected, caught = point.accepted, n_images - point.accepted, n_errors - point.errors
    images = "1 image" if n_images == 1 else f"{n_images:,} images"
    were = "was" if point.errors == 1 else "were"
    first = f"Of {images}, {accepted:,} can be accepted automatically; {point.errors:,} of those {were} wrong."
    review = f"{rejected:,} {'goes' if rejected == 1 else 'go'} to review"
    errors = "the 1 error" if n_errors == 1 else f"the {n_errors:,} errors"
    return f"{first} {review}, with {caught:,} of {errors} among them." if n_errors else f"{first} {review}."


def thin_ranking(ranking: Ranking, max_thresholds: int) -> Ranking:
    """Return the ranking with at most this many thresholds, spread evenly over the ranks, with exact counts."""
    if len(ranking.accepted) <= max_thresholds:
        return ranking
    targets = np.linspace(0, ranking.n_images, max_thresholds + 1)[1:]
    kept = np.unique(np.searchsorted(ranking.accepted, targets))
    return Ranking(ranking.confidences[kept], ranking.accepted[kept], ranking.errors[kept])


def format_threshold(ranking: Ranking, point: OperatingPoint) -> str:
    """Return the shortest decimal that accepts exactly the images of the point."""
    if point.accepted == 0:
        return "none"
    block = int(np.searchsorted(ranking.accepted, point.accepted)) + 1
    below = float(ranking.confidences[block]) if block < len(ranking.confidences) else -math.inf
    for decimals in range(1, 17):
        text = f"{math.floor(point.threshold * 10**decimals) / 10**decimals:.{decimals}f}"
        if below < float(text) <= point.threshold:
            return text
    return repr(point.threshold)


def format_percent(fraction: float, decimals: int = 2) -> str:
    """Return a fraction in percent with at most this many decimals: '1 %', '0.25 %'."""
    text = f"{100 * fraction:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def format_pair(after: float, before: float, decimals: int, unit: str = "") -> str:
    """Return 'a instead of b' in percent, with enough decimals to tell the two apart and from 0 and 100."""
    values = [100 * after, 100 * before]
    if values[0] == values[1]:
        return f"{values[0]:.{decimals}f}{unit}, as before"
    while decimals < MAX_DECIMALS and _is_ambiguous(values, decimals):
        decimals += 1
    return f"{values[0]:.{decimals}f}{unit} instead of {values[1]:.{decimals}f}{unit}"


def _find_reason_against(study: Study, method: str, calibrated: Collection[str]) -> str | None:
    if calibrated and method not in calibrated:
        return f"the calibration was for {' and '.join(calibrated)}; calibrate {method} on other images."
    try:
        check_threshold_transfers(split_method(method)[0], study.fitted.options[method])
    except DecisionError as error:
        return str(error)
    return None


def _is_ambiguous(values: list[float], decimals: int) -> bool:
    rounded = [round(value, decimals) for value in values]
    at_an_end = any(short in (0, 100) and short != value for short, value in zip(rounded, values, strict=True))
    return rounded[0] == rounded[1] or at_an_end


def _point_of_block(ranking: Ranking, block: int) -> OperatingPoint:
    return OperatingPoint(float(ranking.confidences[block]), int(ranking.accepted[block]), int(ranking.errors[block]))


def _round_to_125(value: float, *, up: bool) -> float:
    """Round a positive value up or down to 1, 2 or 5 x 10^n, as the float nearest to that decimal."""
    power = math.floor(math.log10(value))
    candidates = [float(f"{digit}e{power + shift}") for shift in (0, 1) for digit in (1, 2, 5)]
    if up:
        return min(one for one in candidates if one >= value * (1 - ROUNDING))
    return max(one for one in candidates if one <= value * (1 + ROUNDING))
