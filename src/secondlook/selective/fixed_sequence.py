"""How many images may be accepted: exact binomial tests in a fixed sequence of ranks, for any distribution.

docs/selective.md has the proof. Images are ranked by decreasing confidence. Rank m passes at a level if so few errors
among the first m images have at most that probability at an error rate equal to the guaranteed risk. Every rank after a
start is tested in turn until the first failure, so no correction for the number of ranks is needed. `delta` is divided
equally among several starts that are fixed in advance; a sequence that reaches the next start adds its share to the
level.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.metrics import Ranking

MAX_STARTS = 10
START_RATIO = math.sqrt(2)

MAX_IMAGES = 10_000_000
"""Estimates above this number of images are not realistic."""
GROWTH_STEP = 1.02
"""Ratio of the numbers of images that are tried one after another."""
USUAL_DELTAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Failure probabilities that people would accept instead of a smaller one."""
RISK_STEPS = 10_000
"""Resolution of the search for a risk that can be guaranteed: hundredths of a percent."""


def largest_certified_count(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return how many of the most confident images may be accepted, or None if no number can be guaranteed.

    The count never splits images of equal confidence, so that a threshold accepts exactly these images.
    """
    starts = compute_starts(ranking.n_images, risk, delta)
    if not starts:
        return None
    p_values = _compute_p_values(_count_errors(ranking), risk)
    fraction = delta / len(starts)
    level, largest = 0.0, 0
    for start, end in zip(starts, [*starts[1:], ranking.n_images], strict=True):
        if level > 0:
            level += fraction
        elif p_values[start - 1] <= fraction:
            level = fraction
        else:
            continue
        # The start itself only opens the sequence; the ranks after it can be certified.
        failures = np.flatnonzero(p_values[start:end] > level)
        passed = start + int(failures[0]) if len(failures) else end
        largest = max(largest, _last_tie_end(ranking, start, passed))
        level = 0.0 if len(failures) else level
    return largest or None


def compute_starts(n_images: int, risk: float, delta: float) -> list[int]:
    """Return the ranks at which testing starts, in increasing order; they must not depend on observed errors."""
    starts: list[int] = []
    for count in range(1, MAX_STARTS + 1):
        ranks = sorted({int(n_images / START_RATIO**step) for step in range(1, count + 1)})
        if ranks[0] >= count_without_errors(risk, delta / len(ranks)):
            starts = ranks
    smallest = count_without_errors(risk, delta)
    # With too few images to divide delta there is one start, at the first rank that can pass.
    return starts or ([smallest] if smallest < n_images else [])


def count_without_errors(risk: float, delta: float) -> int:
    """Return how many images without an error show, with probability 1 - delta, that the error rate is below `risk`."""
    # If delta is exactly (1 - risk)^n, the quotient may exceed n by rounding.
    return math.ceil(math.log(delta) / math.log1p(-risk) * (1 - 1e-12))


def smallest_certifiable_risk(ranking: Ranking, risk: float, delta: float) -> float | None:
    """Return a risk above `risk` that these images could have guaranteed, to four decimals, or None.

    The risk is found by bisection on the images themselves, so it only helps to plan the next calibration: a guaranteed
    risk must be chosen in advance.
    """
    low, high = int(risk * RISK_STEPS), RISK_STEPS - 1
    if largest_certified_count(ranking, high / RISK_STEPS, delta) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        certified = largest_certified_count(ranking, middle / RISK_STEPS, delta)
        low, high = (low, middle) if certified else (middle, high)
    return high / RISK_STEPS


def find_certifiable_delta(ranking: Ranking, risk: float, delta: float) -> float | None:
    """Return the smallest of the usual deltas above `delta` with which these images could guarantee `risk`, or None.

    Like `smallest_certifiable_risk`, it only helps to plan the next calibration.
    """
    larger = (usual for usual in USUAL_DELTAS if usual > delta)
    return next((usual for usual in larger if largest_certified_count(ranking, risk, usual) is not None), None)


@dataclass(frozen=True)
class Prospect:
    """The observed threshold that comes closest to a guarantee, and how many images would reach it."""

    accepted: int
    errors: int
    """Errors among the accepted images."""
    needed: int | None
    """Smallest number of images that is enough if error rates stay as observed; None if none is, or too many are."""


def estimate_prospect(ranking: Ranking, risk: float, delta: float) -> Prospect:
    """Estimate how many images, more than these, would guarantee `risk` if all error rates stay as observed.

    A guarantee begins at a start, which must pass with its share of `delta`. Starts are at certain fractions of the
    images, whatever their number: if the error rate at none of them is below `risk`, no number of images is enough.
    """
    fractions = [START_RATIO**-step for step in range(1, MAX_STARTS + 1)]
    lowest = min(fractions, key=lambda fraction: _observe(ranking, fraction).error_rate)
    needed = None
    if _observe(ranking, lowest).error_rate < risk:
        needed = _find_needed_images(ranking, risk, delta)
    passing = lowest if needed is None else _find_passing_fraction(ranking, needed, risk, delta)
    tie = _observe(ranking, passing or lowest).tie
    return Prospect(int(ranking.accepted[tie]), int(ranking.errors[tie]), needed)


class _Observation(NamedTuple):
    """What decides whether a start passes: real numbers of accepted images and errors, and the tie they end in."""

    accepted: float
    errors: float
    tie: int

    @property
    def error_rate(self) -> float:
        return self.errors / self.accepted


def _observe(ranking: Ranking, fraction: float) -> _Observation:
    """Return the errors among the most confident fraction of the images, with the errors of each tie first.

    A sequence that starts before the errors of a tie must pass all of them, since a threshold accepts the whole tie.
    """
    accepted = fraction * ranking.n_images
    tie = min(int(np.searchsorted(ranking.accepted, accepted)), len(ranking.accepted) - 1)
    size, errors = int(ranking.tie_sizes[tie]), int(ranking.tie_errors[tie])
    before = int(ranking.accepted[tie]) - size
    if size == 1:
        # With more images, each of these stands for several that are equally often wrong.
        return _Observation(accepted, int(ranking.errors[tie]) - errors + errors * (accepted - before), tie)
    return _Observation(max(accepted, before + errors), int(ranking.errors[tie]), tie)


def _find_needed_images(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return the smallest number of images, more than there are, at which a start passes; None if it is too large."""

    def passes(n_images: int) -> bool:
        return _find_passing_fraction(ranking, n_images, risk, delta) is not None

    low = max(ranking.n_images, count_without_errors(risk, delta))
    high = low + 1
    while not passes(high):
        if high > MAX_IMAGES:
            return None
        low, high = high, max(high + 1, int(high * GROWTH_STEP))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def _find_passing_fraction(ranking: Ranking, n_images: int, risk: float, delta: float) -> float | None:
    """Return the fraction of `n_images` at which the first of their starts passes and certifies a rank, or None."""
    from scipy.special import betainc

    starts, growth = compute_starts(n_images, risk, delta), n_images / ranking.n_images
    for start in starts:
        # A start only opens the sequence: the next rank must pass, too.
        fraction = (start + 1) / n_images
        accepted, errors, _ = _observe(ranking, fraction)
        # The binomial distribution function, for a number of errors that need not be an integer.
        p_value = betainc(growth * (accepted - errors), growth * errors + 1, 1 - risk) if errors < accepted else 1.0
        if p_value <= delta / len(starts):
            return fraction
    return None


def _count_errors(ranking: Ranking) -> IntArray:
    """Count errors among the first n images, n = 1 .. N, with the errors of each tie first. int64 [N]"""
    sizes, errors = ranking.tie_sizes, ranking.tie_errors
    tie = np.repeat(np.arange(len(sizes)), sizes)
    rank_in_tie = np.arange(1, ranking.n_images + 1) - (ranking.accepted - sizes)[tie]
    return (ranking.errors - errors)[tie] + np.minimum(rank_in_tie, errors[tie])


def _compute_p_values(errors: IntArray, risk: float) -> Float64Array:
    """Compute the probability of at most that many errors among n images, n = 1 .. N, at error rate `risk`. [N]"""
    from scipy.special import bdtr

    return np.asarray(bdtr(errors.astype(np.float64), np.arange(1, len(errors) + 1), risk), dtype=np.float64)


def _last_tie_end(ranking: Ranking, start: int, passed: int) -> int:
    """Return the last rank after `start` and up to `passed` that ends a tie, or 0."""
    tie = int(np.searchsorted(ranking.accepted, passed, side="right")) - 1
    end = int(ranking.accepted[tie]) if tie >= 0 else 0
    return end if end > start else 0
