"""Audits: test on a few reviewed images whether the guarantee still holds."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_number, is_whole_number
from secondlook.errors import MonitoringError
from secondlook.files import Count, FrozenRecord

# Stakes and start times were chosen on CIFAR-10 and resnet20; validity does not depend on them.
BREAK_STAKES = (1.0, 5.0)
"""Stakes of the test for a broken guarantee, in units of the mean probability of the audits before."""
BREAK_SHARES = (6 / 7, 1 / 7)
"""Share of the capital on each: most on the smallest, since small excesses need the most labels."""
STAKES_ABOVE = tuple(2.0**power for power in range(-1, 7))
"""Stakes of the lower bound, in units of the smallest probability of an audit."""
STAKES_BELOW = tuple(2.0**-power for power in range(5))
"""Stakes of the upper bound and of *holds*, in the same units; above 1, capital could become negative."""
MAX_STAKE = 0.5
"""Largest fraction of the capital that one image without an error may cost."""
LATER_SHARE = 0.1
"""Share of the capital reserved for a risk that grows later in the stream."""
START_SPAN, START_DECAY = 30.0, 0.25
"""After j audits, (1 + j / START_SPAN) ** -START_DECAY of that share is still reserved."""
PATH_POINTS = 30
MOST_AGREEING = 3
"""Largest number of reviewers who must agree that a prediction is wrong."""


class AuditedImage(NamedTuple):
    """An accepted image that was marked for review."""

    accepted: int
    """Number of accepted images of the stream up to and including this one."""
    probability: float
    """Probability with which it was marked."""
    wrong: bool | None
    """Whether the prediction is wrong; None without a review, or for 'cannot tell'."""


class LabelErrors(NamedTuple):
    """Largest probabilities that reviewers' errors change whether an audit counts as wrong."""

    false: float = 0.0
    """Probability that a correct prediction counts as wrong."""
    missed: float = 0.0
    """Probability that a wrong prediction counts as correct."""

    @classmethod
    def bound(cls, reviewer_error: float, agreeing: int = 1) -> Self:
        """Return bounds for reviewers who each err with a probability of at most `reviewer_error`.

        A prediction counts as wrong once `agreeing` reviewers gave the same label that contradicts it. It counts as
        correct after a first label that confirms it, or once two reviewers gave such a label. After `agreeing` + 1
        labels without either, it counts as not reviewed. More reviews, such as blind double reviews, change nothing.
        """
        if not is_number(reviewer_error) or not 0 <= reviewer_error < 0.5:
            fault = "is invalid; expected a number from 0 to less than 0.5, such as 0.03 for 3 %"
            raise MonitoringError(fault, argument="reviewer_error", value=reviewer_error)
        if not is_whole_number(agreeing) or not 1 <= agreeing <= MOST_AGREEING:
            fault = f"is invalid; expected a whole number from 1 to {MOST_AGREEING}"
            raise MonitoringError(fault, argument="agreeing", value=agreeing)
        false = reviewer_error if agreeing == 1 else _compute_tail(agreeing + 1, agreeing, reviewer_error)
        # For any number of agreeing reviewers: the first errs, or two of the others do.
        missed = reviewer_error + (1 - reviewer_error) * _compute_tail(MOST_AGREEING, 2, reviewer_error)
        return cls(false, missed)

    def raise_risk(self, risk: float) -> float:
        """Return the largest probability that an image counts as wrong if it is wrong with probability `risk`."""
        return risk + (1 - risk) * self.false

    def lower_risk(self, risk: float) -> float:
        """Return the smallest probability that an image counts as wrong if it is wrong with probability `risk`."""
        return risk * (1 - self.missed)


NO_ERRORS = LabelErrors()


def _compute_tail(n: int, least: int, probability: float) -> float:
    """Return the probability of at least that many successes in n independent trials."""
    chances = (math.comb(n, k) * probability**k * (1 - probability) ** (n - k) for k in range(least, n + 1))
    return math.fsum(chances)


class AuditVerdict(FrozenRecord):
    """Verdict of the audits on the error rate among accepted images."""

    verdict: Literal["holds", "broken", "undecided"] = "undecided"
    """*broken* stays broken: the error rate was above the guaranteed risk at some time of the stream."""
    estimate: float | None = None
    """Error rate of the reviewed audits, weighted by their probabilities, as labeled; None without any."""
    low: float = 0.0
    high: float = 1.0
    """Bounds of the error rate over the stream so far, valid at every moment if it stays the same."""
    reviewer_error: float = Field(default=0.0, ge=0, lt=0.5)
    """Verdict and bounds are valid if each reviewer errs with a probability of at most this."""
    labels: Count = 0
    """Reviewed audits."""
    pending: Count
    """Audits without a review."""
    cannot_tell: Count = 0
    """Audits that reviewers marked 'cannot tell'; they count as not reviewed."""
    more_labels: Count | None = None
    """Approximate number of labels left until a decision at the present error rate; None if decided, or never."""
    broken_at: Count | None = None
    """Number of accepted images after which the guarantee was found broken."""
    path: tuple[tuple[Count, float, float], ...] = ()
    """Accepted images, low and high at several moments of the stream, from all present labels."""


def judge_audits(
    accepted: int,
    audited: Sequence[AuditedImage],
    *,
    risk: float,
    smallest: float,
    alpha: float = 0.05,
    errors: LabelErrors = NO_ERRORS,
) -> AuditVerdict:
    """Test whether the error rate among accepted images is at most `risk`, at any moment of a stream.

    An unreviewed audit counts as correct for the lower bound and as wrong for the upper one, so missing or late labels
    cannot cause a false verdict. If the error rate is never above `risk`, the verdict is *broken* with probability at
    most `alpha`, however often it is checked. If it is never below, the same holds for the verdict *holds*.

    `accepted` is the number of auditable images, `audited` is in the order of the stream, and `smallest` is the
    smallest audit probability by design. Do not pass the minimum over `audited`: rarely drawn images may hide the
    errors. `errors` bounds the errors of the labels.
    """
    labels = sum(image.wrong is not None for image in audited)
    if not labels:
        return AuditVerdict(pending=len(audited))
    positions = np.array([image.accepted for image in audited], dtype=np.int64)
    probabilities = np.array([image.probability for image in audited], dtype=np.float64)
    is_reviewed = np.array([image.wrong is not None for image in audited], dtype=np.bool_)
    is_wrong = np.array([bool(image.wrong) for image in audited], dtype=np.bool_)
    log_limit, moments = -math.log(alpha), np.unique(np.linspace(0, accepted, PATH_POINTS + 1).astype(np.int64)[1:])
    found = _count_errors(positions, probabilities, is_wrong, moments)
    possible = _count_errors(positions, probabilities, is_wrong | ~is_reviewed, moments)
    # The smallest and the largest risk that the bets do not reject, each at alpha / 2.
    limit = math.log(2 / alpha)
    low, _ = _bisect(lambda tried: _average(_bet_above(found, smallest, tried)) < limit, len(moments))
    _, high = _bisect(lambda tried: _average(_bet_below(possible, smallest, tried)) >= limit, len(moments))
    low, high = np.maximum(0, (low - errors.false) / (1 - errors.false)), np.minimum(1, high / (1 - errors.missed))
    raised, lowered = errors.raise_risk(risk), errors.lower_risk(risk)
    excess = log_capital_above(positions, probabilities, is_wrong, raised)
    reached = np.flatnonzero(excess >= log_limit)
    shortfall = log_capital_below(accepted, probabilities[is_wrong | ~is_reviewed], smallest, lowered)
    is_decided, more_labels = len(reached) > 0 or shortfall >= log_limit, None
    if not is_decided:
        # Assumes that the best bet so far keeps growing at the same rate.
        total = _count_errors(positions, probabilities, is_wrong, np.array([accepted]))
        above = float(_bet_above(total, smallest, np.array([raised])).max())
        below = float(_bet_below(total, smallest, np.array([lowered])).max())
        growth, log_capital = max((above, float(excess[-1])), (below, shortfall))
        more_labels = math.ceil(labels * (log_limit - log_capital) / growth) if growth > 0 else None
    return AuditVerdict(
        verdict="broken" if len(reached) else "holds" if is_decided else "undecided",
        estimate=float(np.average(is_wrong[is_reviewed], weights=1 / probabilities[is_reviewed])),
        low=low[-1],
        high=high[-1],
        labels=labels,
        pending=len(audited) - labels,
        more_labels=more_labels,
        broken_at=int(positions[reached[0]]) if len(reached) else None,
        path=tuple(zip(moments.tolist(), low.tolist(), high.tolist(), strict=True)),
    )


class _Errors(NamedTuple):
    """The errors found up to each of T moments of a stream, by audit probability."""

    accepted: IntArray
    """Accepted images up to each moment. [T]"""
    probabilities: Float64Array
    """[D]"""
    counts: IntArray
    """[T, D]"""


def _count_errors(positions: IntArray, probabilities: Float64Array, is_wrong: BoolArray, moments: IntArray) -> _Errors:
    """Count the errors among the first images. [n] each, int64 [T]"""
    distinct, which = np.unique(probabilities[is_wrong], return_inverse=True)
    is_past = positions[is_wrong] <= moments[:, None]
    return _Errors(moments, distinct, np.stack([np.bincount(which[past], minlength=len(distinct)) for past in is_past]))


def _grow(stakes: Float64Array, errors: _Errors, risk: Float64Array) -> Float64Array:
    """Return the log of the product of 1 + stake * (Z - risk) over all accepted images. [T, K], [T] -> [T, K]

    Z is 1 / probability for audited errors and 0 for all other images; negative stakes bet on a smaller risk.
    """
    gains = 1 / errors.probabilities - risk[:, None]
    on_errors = np.einsum("tkd,td->tk", np.log1p(stakes[:, :, None] * gains[:, None, :]), errors.counts)
    others = errors.accepted - errors.counts.sum(axis=1)
    growth: Float64Array = on_errors + others[:, None] * np.log1p(-stakes * risk[:, None])
    return growth


def _bet_above(errors: _Errors, smallest: float, risk: Float64Array) -> Float64Array:
    """Return the logs of the capital of bets that the risk is above `risk`. [T] -> [T, K]"""
    return _grow(np.minimum(smallest * np.array(STAKES_ABOVE), MAX_STAKE / risk[:, None]), errors, risk)


def _bet_below(errors: _Errors, smallest: float, risk: Float64Array) -> Float64Array:
    """Return the logs of the capital of bets that the risk is below `risk`. [T] -> [T, K]"""
    return _grow(np.tile(-smallest * np.array(STAKES_BELOW), (len(risk), 1)), errors, risk)


def _average(log_capital: Float64Array) -> Float64Array:
    """Return the log of the mean capital. [T, K] -> [T]"""
    average: Float64Array = np.logaddexp.reduce(log_capital, axis=1) - math.log(log_capital.shape[1])
    return average


def log_capital_below(accepted: int, errors: Float64Array, smallest: float, risk: float) -> float:
    """Return the log of the capital of bets that the risk among accepted images is below `risk`.

    `errors` are the audit probabilities of the errors found, float64 [n], and `smallest` is the smallest audit
    probability that any accepted image can have.
    """
    probabilities, counts = np.unique(errors, return_counts=True)
    found = _Errors(np.array([accepted]), probabilities, counts[None])
    return float(_average(_bet_below(found, smallest, np.array([risk])))[0])


def log_capital_above(
    positions: IntArray, probabilities: Float64Array, is_wrong: BoolArray, risk: float
) -> Float64Array:
    """Return the log of the capital of bets that the risk is above `risk` at some time, after each audit. [n]

    Part of the capital is bet only from later audits on, to detect a risk that grows late. Between audits capital can
    only fall, so the returned values include its maximum.
    """
    n = len(positions)
    # A stake must be fixed before its image: it depends on earlier audits only, and is 0 at first.
    means = np.cumsum(probabilities)[:-1] / np.arange(1, n)
    stakes = np.minimum(np.multiply.outer(np.append(0.0, means)[:n], BREAK_STAKES), MAX_STAKE / risk)
    gains = np.where(is_wrong, 1 / probabilities, 0.0) - risk
    others = np.diff(positions, prepend=0) - 1
    growth = np.log1p(stakes * gains[:, None]) + others[:, None] * np.log1p(-stakes * risk)
    grown = np.cumsum(growth, axis=0)
    waiting = LATER_SHARE * (1 + np.arange(n + 1) / START_SPAN) ** -START_DECAY
    # Capital that enters before an audit grows like the rest from there on.
    entering = np.log(-np.diff(waiting))[:, None] - (grown - growth)
    at_work = grown + np.logaddexp(math.log(1 - LATER_SHARE), np.logaddexp.accumulate(entering, axis=0))
    capital: Float64Array = np.logaddexp.reduce(at_work + np.log(BREAK_SHARES), axis=1)
    return np.logaddexp(capital, np.log(waiting[1:]))


def _bisect(is_above: Callable[[Float64Array], BoolArray], n: int) -> tuple[Float64Array, Float64Array]:
    """Return neighboring values of [0, 1] between which each of n conditions starts to be true. [n], [n]"""
    low, high = np.zeros(n), np.ones(n)
    for _ in range(30):
        middle = (low + high) / 2
        above = is_above(middle)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low, high
