"""How many images may be accepted: exact binomial tests in a fixed sequence of ranks, for any distribution.

docs/selective.md has the proof. Images are ranked by decreasing confidence. Rank m passes at a level if so few errors
among the first m images have at most that probability at an error rate equal to the guaranteed risk. Every rank after a
start is tested in turn until the first failure, so no correction for the number of ranks is needed. `delta` is divided
equally among several starts that are fixed in advance; a sequence that reaches the next start adds its share to the
level.
"""

import math

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.metrics import Ranking

MAX_STARTS = 10
START_RATIO = math.sqrt(2)

MAX_GROWTH = 100
"""Estimates above this multiple of the available images are too uncertain to report."""
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


def estimate_additional_images(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return roughly how many more labeled images the guarantee needs, or None if more do not seem to help.

    Assumes that error rates stay as observed: at the best rank, the error rate must be below `risk` by as many standard
    errors as `delta` requires.
    """
    from scipy.special import ndtri

    # One error more than observed, so that a lucky first rank does not count as free of errors.
    error_rates = (ranking.errors + 1) / ranking.accepted
    promising = error_rates < risk
    if not promising.any():
        return _missing_without_errors(ranking, risk, delta)
    fraction = delta / max(1, len(compute_starts(ranking.n_images, risk, delta)))
    accepted, gaps = ranking.accepted[promising], risk - error_rates[promising]
    growth = float(np.min(ndtri(fraction) ** 2 * risk * (1 - risk) / (accepted * gaps**2)))
    additional = max(1, math.ceil(ranking.n_images * (growth - 1)))
    return additional if additional <= MAX_GROWTH * ranking.n_images else None


def _missing_without_errors(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return how many images are missing to the smallest number that can guarantee anything, if only that is wrong."""
    missing = 2 * count_without_errors(risk, delta) - ranking.n_images
    few_errors = float(np.min(ranking.errors / ranking.accepted)) < risk
    return missing if few_errors and missing > 0 else None


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
