"""Which numbers of surest images may be accepted: exact binomial tests along the ranks, for any distribution.

docs/selective.md holds the proof. Among the m surest images errors are counted, and rank m passes while a binomial
variable with the guaranteed risk would show so few with at most the chance at stake. Every rank from a start on is tested
in turn and the first failure ends the run, so that no correction for the number of ranks is due. `delta` is split
between several starts fixed in advance; a run that reaches the next start takes its share along.
"""

import math

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.metrics import Ranking

MOST_STARTS = 10
RATIO_OF_STARTS = math.sqrt(2)


def largest_certified_count(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return how many of the surest images may be accepted, or None where no number can be guaranteed.

    The number ends a block of equal confidence, so that a threshold accepts exactly these images.
    """
    starts = starting_ranks(ranking.n_images, risk, delta)
    if not starts:
        return None
    chances = _chances(_errors_first(ranking), risk)
    share = delta / len(starts)
    at_stake, largest = 0.0, 0
    for start, end in zip(starts, [*starts[1:], ranking.n_images], strict=True):
        if at_stake > 0:
            at_stake += share
        elif chances[start - 1] <= share:
            at_stake = share
        else:
            continue
        # The start itself is only the entrance: what passes are the ranks behind it.
        failures = np.flatnonzero(chances[start:end] > at_stake)
        passed = start + int(failures[0]) if len(failures) else end
        largest = max(largest, _last_block_end(ranking, start, passed))
        at_stake = 0.0 if len(failures) else at_stake
    return largest or None


def starting_ranks(n_images: int, risk: float, delta: float) -> list[int]:
    """Return the ranks at which testing starts, rising; they depend on nothing that was observed."""
    starts: list[int] = []
    for count in range(1, MOST_STARTS + 1):
        ranks = sorted({int(n_images / RATIO_OF_STARTS**step) for step in range(1, count + 1)})
        if ranks[0] >= images_without_errors(risk, delta / len(ranks)):
            starts = ranks
    fewest = images_without_errors(risk, delta)
    # Too few images to split delta: one start, as early as it can pass at all.
    return starts or ([fewest] if fewest < n_images else [])


def images_without_errors(risk: float, delta: float) -> int:
    """Return how many images without a single error show, with certainty 1 - delta, that the risk is lower."""
    # Where delta is (1 - risk)^n, the quotient may exceed n by rounding alone.
    return math.ceil(math.log(delta) / math.log1p(-risk) * (1 - 1e-12))


def _errors_first(ranking: Ranking) -> IntArray:
    """Count errors among the n surest images, n = 1 .. N, the errors of each tied block coming first. int64 [N]"""
    sizes, errors = ranking.block_sizes, ranking.block_errors
    block = np.repeat(np.arange(len(sizes)), sizes)
    into_block = np.arange(1, ranking.n_images + 1) - (ranking.accepted - sizes)[block]
    return (ranking.errors - errors)[block] + np.minimum(into_block, errors[block])


def _chances(errors: IntArray, risk: float) -> Float64Array:
    """Chance of at most so many errors among n images, n = 1 .. N, were the error rate `risk`. [N] -> [N]"""
    from scipy.special import bdtr

    return np.asarray(bdtr(errors.astype(np.float64), np.arange(1, len(errors) + 1), risk), dtype=np.float64)


def _last_block_end(ranking: Ranking, start: int, passed: int) -> int:
    """Return the last end of a tied block behind `start` and not behind `passed`, or 0."""
    block = int(np.searchsorted(ranking.accepted, passed, side="right")) - 1
    end = int(ranking.accepted[block]) if block >= 0 else 0
    return end if end > start else 0
