"""How many images may be accepted: exact binomial tests in a fixed sequence of ranks, for any distribution.

docs/policies.md has the proof. Images are ranked by decreasing confidence. Rank m passes at a level if so few errors
among the first m images have at most that probability at an error rate equal to the guaranteed risk. Every rank after a
start is tested in turn until the first failure, so no correction for the number of ranks is needed. `delta` is divided
equally among several starts that are fixed in advance; a sequence that reaches the next start adds its share to the
level.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

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
    return FixedSequence.plan(ranking, risk, delta).run(delta).largest


class SequenceResult(NamedTuple):
    """What the tests of a ranking certify."""

    largest: int | None
    """How many of the most confident images may be accepted; None if no number can be guaranteed."""
    finished: float
    """Fraction of the level that passes every rank up to the last; 0 if the last rank is not certified."""


@dataclass(frozen=True, eq=False)
class FixedSequence:
    """The tests of a ranking, whose starts are fixed before any is made; they can be run at several levels."""

    ranking: Ranking
    starts: list[int]
    p_values: Float64Array
    """Of every rank, float64 [N]; empty without starts."""

    @classmethod
    def plan(cls, ranking: Ranking, risk: float, delta: float) -> Self:
        """Choose the starts for a level of `delta`, and compute all p-values."""
        starts = compute_starts(ranking.n_images, risk, delta)
        return cls(ranking, starts, _compute_p_values(_count_errors(ranking), risk) if starts else np.empty(0))

    def run(self, delta: float) -> SequenceResult:
        """Test the ranks at a level of `delta`, which all starts share; a larger one never certifies less."""
        if not self.starts:
            return SequenceResult(None, 0.0)
        n_images, fraction = self.ranking.n_images, delta / len(self.starts)
        level, n_shares, largest = 0.0, 0, 0
        for start, end in zip(self.starts, [*self.starts[1:], n_images], strict=True):
            if level > 0:
                level, n_shares = level + fraction, n_shares + 1
            elif self.p_values[start - 1] <= fraction:
                level, n_shares = fraction, 1
            else:
                continue
            # The start itself only opens the sequence; the ranks after it can be certified.
            failures = np.flatnonzero(self.p_values[start:end] > level)
            passed = start + int(failures[0]) if len(failures) else end
            largest = max(largest, _last_tie_end(self.ranking, start, passed))
            level = 0.0 if len(failures) else level
        return SequenceResult(largest or None, n_shares / len(self.starts) if level > 0 else 0.0)


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


def smallest_certifiable_risk(can_certify: Callable[[float], bool], risk: float) -> float | None:
    """Return a risk above `risk` that some images could have guaranteed, to four decimals, or None.

    `can_certify` tells whether they can certify a risk. The result is found by bisection on the images themselves, so
    it only helps to plan the next calibration: a guaranteed risk must be chosen in advance.
    """
    low, high = int(risk * RISK_STEPS), RISK_STEPS - 1
    if not can_certify(high / RISK_STEPS):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if can_certify(middle / RISK_STEPS) else (middle, high)
    return high / RISK_STEPS


def find_certifiable_delta(can_certify: Callable[[float], bool], delta: float) -> float | None:
    """Return the smallest of the usual deltas above `delta` with which some images could guarantee a risk, or None.

    `can_certify` tells whether they can with a delta. Like `smallest_certifiable_risk`, the result only helps to plan
    the next calibration.
    """
    return next((usual for usual in USUAL_DELTAS if usual > delta and can_certify(usual)), None)


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
