"""Fixed-sequence testing: exact binomial tests of how many images may be accepted, for any distribution.

docs/background/proofs.md has the procedure and its proof. Every rank after a start is tested until the first failure.
`delta` is divided equally among starts that are fixed in advance; a sequence that reaches the next start adds its
share. Among copies of an image, only errors count.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.metrics import Ranking, rank
from secondlook.policies.guarantee import Calibration, Guarantee, Shortfall

MAX_STARTS = 10
START_RATIO = math.sqrt(2)

MAX_IMAGES = 10_000_000
"""Estimates above this number of images are not realistic."""
GROWTH_STEP = 1.02
"""Ratio of successive numbers of images in the search."""
USUAL_DELTAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Common failure probabilities, to propose instead of a smaller one."""
RISK_STEPS = 10_000
"""Resolution of the search for a risk that can be guaranteed: hundredths of a percent."""


@dataclass(frozen=True, eq=False)
class CountedImages:
    """Labeled images as counted by the tests: among copies of other images, only errors."""

    ranking: Ranking
    n_images: int
    """Number of all images, including uncounted copies."""
    copies: IntArray
    """Copies among the accepted images of each tie. int64 [T]"""

    @classmethod
    def count(cls, correct: ArrayLike, confidence: ArrayLike, is_copy: BoolArray | None = None) -> Self:
        """Rank the images that count; `is_copy` marks copies of others. bool [N], float64 [N], bool [N]"""
        ranking = rank(correct, confidence)
        if is_copy is None or not is_copy.any():
            return cls(ranking, ranking.n_images, np.zeros_like(ranking.accepted))
        correct, confidence = np.asarray(correct), np.asarray(confidence)
        counts = ~(is_copy & correct)
        counts[0] |= not counts.any()  # a single image certifies nothing
        ranking, copies = rank(correct[counts], confidence[counts]), np.sort(-confidence[is_copy & ~correct])
        return cls(ranking, len(correct), np.searchsorted(copies, -ranking.confidences, side="right"))


def largest_certified_count(images: CountedImages | Ranking, risk: float, delta: float) -> int | None:
    """Return the number of most confident images that may be accepted; None if nothing can be guaranteed.

    The count never splits images of equal confidence, so a threshold accepts exactly these images.
    """
    if isinstance(images, Ranking):
        images = CountedImages(images, images.n_images, np.zeros_like(images.accepted))
    return FixedSequence.plan(images, risk, delta).run(delta)[0]


def find_joint_counts(groups: Sequence[CountedImages | None], risks: Sequence[float], delta: float) -> list[int | None]:
    """Return the number of most confident images to accept in each group, jointly with probability 1 - delta.

    None if nothing can be guaranteed for a group. A group without images is None; the order of groups is irrelevant.
    """
    testable = _find_testable([0 if images is None else images.n_images for images in groups], risks, delta)
    level = delta / max(len(testable), 1)
    sequences = {
        index: FixedSequence.plan(images, risks[index], level)
        for index, images in enumerate(groups)
        if index in testable and images is not None
    }
    while True:
        results = {index: sequence.run(level) for index, sequence in sequences.items()}
        # Only the level that did not reach the last rank of its group can still certify falsely.
        needed = math.fsum(1 - finished for _, finished in results.values())
        if needed == 0 or delta / needed <= level:
            return [results[index][0] if index in results else None for index in range(len(groups))]
        level = delta / needed


def _find_testable(sizes: Sequence[int], risks: Sequence[float], delta: float) -> frozenset[int]:
    """Return the groups that can pass if they share `delta` equally; depends only on their sizes.

    A group that fails even without errors would only reduce the level of the others.
    """
    # Logarithm of the level at which all images but one pass without errors: a start, and then the last rank.
    levels = [(max(size, 1) - 1) * math.log1p(-risk) for size, risk in zip(sizes, risks, strict=True)]
    ordered = [*sorted(levels), math.inf]
    for count in range(len(levels), 0, -1):
        hardest = ordered[count - 1]
        # Test groups that need the same level together or not at all, so their order does not matter.
        if ordered[count] > hardest and hardest <= math.log(delta / count):
            return frozenset(index for index, level in enumerate(levels) if level <= hardest)
    return frozenset()


@dataclass(frozen=True, eq=False)
class FixedSequence:
    """The tests of a set of images; the starts are fixed in advance, and the tests can be run at several levels."""

    images: CountedImages
    starts: list[int]
    p_values: Float64Array
    """P-value of every rank, float64 [N]; empty without starts."""

    @classmethod
    def plan(cls, images: CountedImages, risk: float, delta: float) -> Self:
        """Choose the starts for a level of `delta`, and compute all p-values."""
        starts = compute_starts(images.n_images, risk, delta)
        return cls(images, starts, _compute_p_values(images.ranking, risk) if starts else np.empty(0))

    def run(self, delta: float) -> tuple[int | None, float]:
        """Test the ranks at a level of `delta`, shared by all starts; a larger level never certifies less.

        Return the number of most confident images that may be accepted, None if nothing can be guaranteed; and the
        fraction of the level that passes all ranks up to the last, 0 if the last rank is not certified.
        """
        certified, finished = self.find_certified(delta)
        return int(self.images.ranking.accepted[certified[-1]]) if len(certified) else None, finished

    def find_certified(self, delta: float) -> tuple[IntArray, float]:
        """Return all ties whose last rank is certified, ascending int64 [n], and the fraction as in `run`.

        A threshold accepts whole ties, so only their last ranks matter.
        """
        certified, level, n_shares, first = [np.empty(0, dtype=np.int64)], 0.0, 0, 0
        if not self.starts:
            return certified[0], 0.0
        accepted, n_counted = self.images.ranking.accepted, self.images.ranking.n_images
        fraction = delta / len(self.starts)
        for start, following in zip(self.starts, [*self.starts[1:], n_counted], strict=True):
            if start > n_counted:
                break
            if level > 0:
                level, n_shares = level + fraction, n_shares + 1
            elif self.p_values[start - 1] <= fraction:
                level, n_shares, first = fraction, 1, start
            else:
                continue
            # The start itself only opens the sequence; the ranks after it can be certified.
            end = min(following, n_counted)
            failures = np.flatnonzero(self.p_values[start:end] > level)
            passed = start + int(failures[0]) if len(failures) else end
            ties = np.arange(*np.searchsorted(accepted, [start, passed], side="right"))
            # A rank must also be after the start of its sequence if copies are not draws.
            certified.append(ties[accepted[ties] - self.images.copies[ties] > first])
            level = 0.0 if len(failures) else level
        return np.concatenate(certified), n_shares / len(self.starts) if level > 0 else 0.0


def _compute_p_values(ranking: Ranking, risk: float) -> Float64Array:
    """Return the probability of at most the observed errors among the first 1 .. N images; errors lead each tie."""
    from scipy.special import bdtr

    sizes, errors, ranks = ranking.tie_sizes, ranking.tie_errors, np.arange(1, ranking.n_images + 1)
    tie = np.repeat(np.arange(len(sizes)), sizes)
    rank_in_tie = ranks - (ranking.accepted - sizes)[tie]
    found = (ranking.errors - errors)[tie] + np.minimum(rank_in_tie, errors[tie])
    return np.asarray(bdtr(found.astype(np.float64), ranks, risk), dtype=np.float64)


def compute_starts(n_images: int, risk: float, delta: float) -> list[int]:
    """Return the ranks at which testing starts, in increasing order; they must not depend on observed errors.

    Each is the smallest rank that passes with as many errors as a given fraction of the images; several may be equal.
    """
    ranks = _plan_ranks(n_images, risk, delta)
    return _find_smallest_ranks(np.array(ranks), risk, delta / len(ranks)) if ranks else []


def _plan_ranks(n_images: int, risk: float, delta: float) -> list[int]:
    """Return the ranks, at fixed fractions of the images, that can pass with equal shares of delta."""
    planned: list[int] = []
    for count in range(1, MAX_STARTS + 1):
        ranks = sorted({int(n_images / START_RATIO**step) for step in range(1, count + 1)})
        if ranks[0] >= count_without_errors(risk, delta / len(ranks)):
            planned = ranks
    smallest = count_without_errors(risk, delta)
    # With too few images to divide delta, there is one start, at the first rank that can pass.
    return planned or ([smallest] if smallest < n_images else [])


def _find_smallest_ranks(ranks: IntArray, risk: float, level: float) -> list[int]:
    """Return the smallest ranks that pass a level with as many errors as the given passing ranks. int64 [J]"""
    from scipy.special import bdtr
    from scipy.stats import binom

    quantiles = np.asarray(binom.ppf(level, ranks, risk))
    allowed = quantiles - (bdtr(quantiles, ranks, risk) > level)  # the quantile itself passes only if it is exact
    low, high = np.zeros_like(ranks), ranks
    while np.any(high - low > 1):
        middle = np.where(high - low > 1, (low + high) // 2, high)
        # Fewer images than errors cannot pass.
        passes = bdtr(np.minimum(allowed, middle), middle, risk) <= level
        low, high = np.where(passes, low, middle), np.where(passes, middle, high)
    smallest: list[int] = high.tolist()
    return smallest


def count_without_errors(risk: float, delta: float) -> int:
    """Return how many images without an error show an error rate below `risk`, with probability 1 - delta."""
    # If delta is exactly (1 - risk)^n, the quotient may exceed n by rounding.
    return math.ceil(math.log(delta) / math.log1p(-risk) * (1 - 1e-12))


def find_cut(ranking: Ranking, accepted: int) -> tuple[float, int]:
    """Return the threshold that accepts this number of images, and the errors among them."""
    tie = int(np.searchsorted(ranking.accepted, accepted))
    return float(ranking.confidences[tie]), int(ranking.errors[tie])


# --- Requirements of a guarantee that failed ---


def describe_shortfall(
    requested: Guarantee,
    ranking: Ranking,
    risk: float,
    delta: float,
    can_certify: Callable[[float | None, float], bool],
    group: str | None = None,
) -> Shortfall:
    """Describe what the images of a ranking lack for a risk at a level of `delta`.

    `can_certify` returns whether all images certify a risk, None for the requested risks, with a delta. Risk and delta
    are found on these images, so they only help to plan the next calibration.
    """
    closest, additional = estimate_prospect(ranking, risk, delta)
    deltas = (usual for usual in USUAL_DELTAS if usual > requested.delta and can_certify(None, usual))
    return Shortfall(
        requested=requested,
        smallest_risk=_find_larger_risk(lambda other: can_certify(other, requested.delta), requested.risk),
        additional_images=additional,
        larger_delta=next(deltas, None),
        closest=closest,
        group=group,
    )


def _find_larger_risk(can_certify: Callable[[float], bool], risk: float) -> float | None:
    """Find a risk above `risk` that can be certified by bisection, to four decimals; None if there is none."""
    low, high = int(risk * RISK_STEPS), RISK_STEPS - 1
    if not can_certify(high / RISK_STEPS):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if can_certify(middle / RISK_STEPS) else (middle, high)
    return high / RISK_STEPS


def estimate_prospect(ranking: Ranking, risk: float, delta: float) -> tuple[Calibration, int | None]:
    """Estimate how many additional images would guarantee `risk` if all error rates stay as observed.

    A guarantee begins at a start, which must pass with its share of `delta`. Starts are at fixed fractions of the
    images. If the error rate is at least `risk` at all of them, no number of images is enough.

    Return the counts at the observed threshold closest to a guarantee, and the smallest sufficient number of additional
    images; None if there is none, or if it is too large.
    """

    def compute_error_rate(fraction: float) -> float:
        accepted, errors, _ = _observe(ranking, fraction)
        return errors / accepted

    lowest = min((START_RATIO**-step for step in range(1, MAX_STARTS + 1)), key=compute_error_rate)
    needed = _find_needed_images(ranking, risk, delta) if compute_error_rate(lowest) < risk else None
    passing = None if needed is None else _find_passing_fraction(ranking, needed, risk, delta)
    *_, tie = _observe(ranking, passing or lowest)
    closest = Calibration(images=ranking.n_images, accepted=int(ranking.accepted[tie]), errors=int(ranking.errors[tie]))
    return closest, None if needed is None else needed - ranking.n_images


def _observe(ranking: Ranking, fraction: float) -> tuple[float, float, int]:
    """Return the number of images in the most confident fraction, the errors among them, and the tie at its end.

    The errors of each tie come first. A sequence that starts before them must pass all of them, since a threshold
    accepts the whole tie. The numbers may be fractional.
    """
    accepted = fraction * ranking.n_images
    tie = min(int(np.searchsorted(ranking.accepted, accepted)), len(ranking.accepted) - 1)
    size, errors = int(ranking.tie_sizes[tie]), int(ranking.tie_errors[tie])
    before = int(ranking.accepted[tie]) - size
    if size == 1:
        # With more images, each image represents several with the same error rate.
        return accepted, int(ranking.errors[tie]) - errors + errors * (accepted - before), tie
    return max(accepted, before + errors), int(ranking.errors[tie]), tie


def _find_needed_images(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return the smallest larger number of images at which a start passes; None if it is too large."""

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
    """Return the fraction of `n_images` at the first start that passes and certifies a rank, or None."""
    from scipy.special import betainc

    # Use ranks at fixed fractions: the smaller ranks that are tested pass with barely low enough error rates.
    starts, growth = _plan_ranks(n_images, risk, delta), n_images / ranking.n_images
    for start in starts:
        # A start only opens the sequence: the next rank must pass, too.
        fraction = (start + 1) / n_images
        accepted, errors, _ = _observe(ranking, fraction)
        # The binomial distribution function, for a fractional number of errors.
        p_value = betainc(growth * (accepted - errors), growth * errors + 1, 1 - risk) if errors < accepted else 1.0
        if p_value <= delta / len(starts):
            return fraction
    return None
