"""Where the threshold may stand: what is accepted there, how many errors that holds, and what can be guaranteed.

The page's sliders do the same in the browser from the same numbers; tests hold the two together.
"""

import math
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import DecisionError, ReportError
from secondlook.metrics import Ranking, count_for_coverage
from secondlook.report.study import Study
from secondlook.selective import check_threshold_transfers, largest_certified_count

MOST_RISKS = 100
ROUNDING = 1e-12
"""What exceeds a tolerated risk by less than this share of it does so by rounding alone."""


@dataclass(frozen=True)
class OperatingPoint:
    """Accept where confidence >= threshold: how many images that are, and how many of them are wrong."""

    threshold: float
    accepted: int
    errors: int


NOTHING_ACCEPTED = OperatingPoint(math.inf, 0, 0)


@dataclass(frozen=True, eq=False)
class Guarantees:
    """The certified rule for each tolerated risk; 0 accepted where nothing can be guaranteed. [R] each"""

    thresholds: Float64Array
    accepted: IntArray
    errors: IntArray


def telling_risk(error_rate: float) -> float:
    """Return the risk to tell the result at: the largest of 1, 2, 5 x 10^n up to a quarter of the error rate."""
    return _round_number(error_rate / 4, up=False) if error_rate > 0 else 0.01


def risks_to_choose_from(error_rate: float, told: float) -> Float64Array:
    """Return the tolerated risks that the slider offers: even steps from 0 to the error rate, and the one told."""
    if not 0 < told < 1:
        raise ReportError(f"risk is {told}, expected a share of errors between 0 and 1, such as 0.01 for 1 %.")
    highest = max(error_rate, 0.01)
    step = _round_number(highest / MOST_RISKS, up=True)
    # Rounded so that a step reads as the decimal it is: 3 * 0.1 is 0.30000000000000004.
    even = np.round(np.arange(math.ceil(highest / step - ROUNDING) + 1) * step, 12)
    return np.unique(np.append(np.minimum(even, 1.0), told))


def point_at_risk(ranking: Ranking, risk: float) -> OperatingPoint:
    """Return the threshold that accepts most while at most `risk` of the accepted are wrong on these images."""
    kept = np.flatnonzero(ranking.errors <= risk * (1 + ROUNDING) * ranking.accepted)
    return _point(ranking, int(kept[-1])) if len(kept) else NOTHING_ACCEPTED


def point_at_coverage(ranking: Ranking, coverage: float) -> OperatingPoint:
    """Return the threshold that accepts at least this share of the images; equal confidences go together."""
    return _point(ranking, int(np.searchsorted(ranking.accepted, count_for_coverage(coverage, ranking.n_images))))


def certified_point(ranking: Ranking, risk: float, delta: float) -> OperatingPoint:
    """Return the rule that `certify` finds, or one that accepts nothing."""
    accepted = largest_certified_count(ranking, risk, delta) if 0 < risk < 1 else None
    return _point(ranking, int(np.searchsorted(ranking.accepted, accepted))) if accepted else NOTHING_ACCEPTED


def guarantees_of(study: Study, method: str, risks: Float64Array, delta: float) -> Guarantees | str:
    """Return what can be guaranteed at each risk, or why a threshold on this method guarantees nothing."""
    try:
        check_threshold_transfers(method, {})
    except DecisionError as error:
        return str(error)
    points = [certified_point(study.rankings[method], float(risk), delta) for risk in risks]
    return Guarantees(
        np.array([point.threshold for point in points]),
        np.array([point.accepted for point in points], dtype=np.int64),
        np.array([point.errors for point in points], dtype=np.int64),
    )


def shortest_threshold(ranking: Ranking, point: OperatingPoint) -> str:
    """Return the shortest decimal that accepts exactly the images of the point."""
    if point.accepted == 0:
        return "nothing"
    block = int(np.searchsorted(ranking.accepted, point.accepted)) + 1
    below = float(ranking.confidences[block]) if block < len(ranking.confidences) else -math.inf
    for decimals in range(1, 17):
        text = f"{math.floor(point.threshold * 10**decimals) / 10**decimals:.{decimals}f}"
        if below < float(text) <= point.threshold:
            return text
    return repr(point.threshold)


def thinned(ranking: Ranking, most: int) -> Ranking:
    """Return at most so many of the possible thresholds, evenly over the ranks, each with its exact counts."""
    if len(ranking.accepted) <= most:
        return ranking
    wanted = np.linspace(0, ranking.n_images, most + 1)[1:]
    kept = np.unique(np.searchsorted(ranking.accepted, wanted))
    return Ranking(ranking.confidences[kept], ranking.accepted[kept], ranking.errors[kept])


def _point(ranking: Ranking, block: int) -> OperatingPoint:
    return OperatingPoint(float(ranking.confidences[block]), int(ranking.accepted[block]), int(ranking.errors[block]))


def _round_number(value: float, *, up: bool) -> float:
    """Return the nearest of 1, 2, 5 x 10^n on that side of a positive value, as the decimal it is."""
    power = math.floor(math.log10(value))
    candidates = [float(f"{digit}e{power + shift}") for shift in (0, 1) for digit in (1, 2, 5)]
    near = [one for one in candidates if (one >= value * (1 - ROUNDING) if up else one <= value * (1 + ROUNDING))]
    return min(near) if up else max(near)
