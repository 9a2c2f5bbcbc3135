"""The metrics of error detection, selective prediction and calibration, and their registry `METRICS`.

Risk is the error rate among accepted images, coverage the fraction accepted. Selective risk divides the errors among
accepted images by the accepted images, joint risk by all images. The metrics on joint risk, named `*_joint`, reproduce
the tables of the paper.
"""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Concatenate, Literal, ParamSpec, Protocol

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import is_number
from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, harmonic_sums, rank
from secondlook.registry import Registry

P = ParamSpec("P")


@dataclass(frozen=True)
class Metric:
    """A registered metric, or a metric with its parameter, parsed from a text such as 'risk_at:0.8'."""

    name: str
    summary: str
    better: Literal["higher", "lower"]
    bounds: tuple[float, float]
    reads: Literal["order", "values"]
    """'order' if only the order of the confidences matters, 'values' if they must be probabilities."""
    parameter: str | None
    """Name of the required parameter, given after a colon as in 'risk_at:0.8'; None for most metrics."""
    function: Callable[..., float]
    """`function(correct, confidence, ...)` with bool [N] and float [N]."""
    ranked: Callable[..., float]
    """`ranked(ranking, ...)`, the same number for ranked images."""
    text: str
    arguments: tuple[float, ...] = ()

    def __call__(self, correct: ArrayLike, confidence: ArrayLike) -> float:
        """Return the metric for images in any order. bool [N], float [N]"""
        return self.compute(rank(correct, confidence))

    def compute(self, ranking: Ranking) -> float:
        """Return the metric for ranked images."""
        return self.ranked(ranking, *self.arguments)

    def try_compute(self, ranking: Ranking, score: str | None = None) -> tuple[float, str | None]:
        """Return the metric and None, or NaN and the reason; `score` is the name of a confidence on another scale."""
        if self.reads == "values" and score is not None:
            return math.nan, f"{self.text} is undefined for {score!r}, which is a score, not a probability."
        try:
            return self.compute(ranking), None
        except MetricError as error:
            return math.nan, str(error)

    @property
    def form(self) -> str:
        """The name with a placeholder for the parameter, such as 'risk_at:COVERAGE'."""
        return f"{self.name}:{self.parameter.upper()}" if self.parameter else self.name


METRICS: Registry[Metric] = Registry("metric", MetricError)
"""All metrics by name."""


class MetricFunction(Protocol[P]):
    """A metric as a function of bool [N] and float [N]."""

    def __call__(self, correct: ArrayLike, confidence: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> float:
        """Return the metric for images in any order."""


def metric(
    name: str,
    *,
    summary: str,
    better: Literal["higher", "lower"],
    bounds: tuple[float, float] = (0.0, 1.0),
    reads: Literal["order", "values"] = "order",
    parameter: str | None = None,
) -> Callable[[Callable[Concatenate[Ranking, P], float]], MetricFunction[P]]:
    """Register the decorated function of a `Ranking` as a metric, and make it a function of correct and confidence."""

    def register(ranked: Callable[Concatenate[Ranking, P], float]) -> MetricFunction[P]:
        def function(correct: ArrayLike, confidence: ArrayLike, *args: P.args, **kwargs: P.kwargs) -> float:
            return ranked(rank(correct, confidence), *args, **kwargs)

        signature = inspect.signature(function)
        images, options = list(signature.parameters.values())[:2], inspect.signature(ranked).parameters.values()
        functools.update_wrapper(function, ranked)
        vars(function)["__signature__"] = signature.replace(parameters=[*images, *list(options)[1:]])
        METRICS.add(Metric(name, summary, better, bounds, reads, parameter, function, ranked, name))
        return function

    return register


_BOTH_OUTCOMES = rank([True, False], [0.75, 0.25])
"""Two images for which every metric is defined."""


def parse_metric(text: str) -> Metric:
    """Parse a metric such as 'auroc' or 'risk_at:0.8'."""
    name, colon, argument = text.partition(":")
    record = METRICS.find(name)
    if record.parameter is None:
        if colon:
            raise MetricError(f"metric {name!r} has no parameter, got {text!r}; write {name!r}.")
        return record
    try:
        number = float(argument)
    except ValueError:
        fault = f"metric {text!r} needs a number as its {record.parameter}, got {argument!r}"
        raise MetricError(fault, repair=f"write {record.form!r}, such as '{record.name}:0.8'") from None
    bound = replace(record, text=text, arguments=(number,))
    bound.compute(_BOTH_OUTCOMES)  # raises if the parameter is out of range
    return bound


def parse_metrics(texts: str | Iterable[str]) -> tuple[Metric, ...]:
    """Parse one or more metrics; duplicates are an error."""
    parsed = tuple(parse_metric(text) for text in ([texts] if isinstance(texts, str) else texts))
    for index, one in enumerate(parsed):
        if one in parsed[:index]:
            raise MetricError(f"duplicate metric {one.text!r}; list each metric once.")
    return parsed


@metric("accuracy", better="higher", summary="fraction of correct predictions")
def accuracy(ranking: Ranking) -> float:
    """Compute the fraction of correct predictions: n_correct / N. The confidence does not matter."""
    return ranking.n_correct / ranking.n_images


@metric("auroc", better="higher", summary="probability that a correct prediction has a higher confidence than an error")
def auroc(ranking: Ranking) -> float:
    """Compute the area under the ROC curve of error detection; 0.5 for random confidences, 1 for a perfect order.

    The probability that a random correct prediction has a higher confidence than a random error, over all pairs of the
    two: (ordered pairs + tied pairs / 2) / (n_correct * n_errors). Pairs are counted in integers and divided once, so
    the value is exact. Raises `MetricError` if all predictions are correct or all are wrong.
    """
    ranking.check_outcomes("auroc")
    correct_in_tie = ranking.tie_sizes - ranking.tie_errors
    correct_above = ranking.accepted - ranking.errors - correct_in_tie
    twice_ordered_pairs = int(np.sum(ranking.tie_errors * (2 * correct_above + correct_in_tie)))
    return twice_ordered_pairs / (2 * ranking.n_errors * ranking.n_correct)


@metric("fpr95", better="lower", summary="share of errors accepted if 95 % of correct predictions are")
def fpr95(ranking: Ranking) -> float:
    """Compute the false positive rate at 95 % true positive rate; accepted errors are the false positives.

    The share of the errors that rank above the n-th correct prediction, with n = ceil(0.95 * n_correct), in expectation
    over the order of ties. If the errors are the unknown images, this is the FPR95 of out-of-distribution detection.
    Raises `MetricError` if all predictions are correct or all are wrong.
    """
    ranking.check_outcomes("fpr95")
    needed = -(-95 * ranking.n_correct // 100)
    correct = ranking.accepted - ranking.errors
    tie = int(np.searchsorted(correct, needed))
    errors_in_tie, correct_in_tie = int(ranking.tie_errors[tie]), int(ranking.tie_sizes[tie] - ranking.tie_errors[tie])
    # In random order, each error of a tie lies before its r-th of c correct predictions with probability r / (c + 1).
    before = (needed - int(correct[tie]) + correct_in_tie) / (correct_in_tie + 1)
    return (int(ranking.errors[tie]) - errors_in_tie + before * errors_in_tie) / ranking.n_errors


@metric("aupr", better="higher", summary="average precision of error detection, in ascending order of confidence")
def aupr(ranking: Ranking, *, ties: Literal["expected", "threshold"] = "expected") -> float:
    """Compute the average precision with errors as positives, in ascending order of confidence.

    The mean over all errors of the precision at that error: errors found so far / images flagged so far. Raises
    `MetricError` if all predictions are correct.

    Parameters
    ----------
    correct, confidence
        bool [N] and float [N].
    ties
        'expected' is the expected value over random orders of equal confidences; 'threshold' flags equal confidences
        at once, as scikit-learn does. Without ties the two are equal.
    """
    ranking.check_outcomes("aupr", needs_correct=False)
    if ties not in ("expected", "threshold"):
        raise MetricError("is unknown; expected 'expected' or 'threshold'", argument="ties", value=ties)
    # Only ties with errors contribute. The order is ascending: the prediction accepted last is flagged first.
    with_errors = np.flatnonzero(ranking.tie_errors)
    sizes, errors = ranking.tie_sizes[with_errors], ranking.tie_errors[with_errors]
    flagged_before = ranking.n_images - ranking.accepted[with_errors]
    found_before = ranking.n_errors - ranking.errors[with_errors]
    if ties == "threshold":
        precision = (found_before + errors) / (flagged_before + sizes)
        return float(np.sum(errors * precision) / ranking.n_errors)
    # The i-th of a tie is an error with probability j/m, and (i - 1)(j - 1)/(m - 1) others are expected before it.
    others = (errors - 1) / np.maximum(sizes - 1, 1)
    constant = found_before + 1 - others * (1 + flagged_before)
    contributions = errors / sizes * (others * sizes + constant * harmonic_sums(flagged_before, sizes))
    return float(np.sum(contributions) / ranking.n_errors)


@metric("aurc", better="lower", summary="mean selective risk over all coverages")
def aurc(ranking: Ranking) -> float:
    """Compute the area under the risk-coverage curve: (1/N) * sum over n of e(n) / n.

    e(n) is the number of errors among the n most confident images, in expectation over the order of ties.
    """
    return ranking.mean_selective_risk


@metric("eaurc", better="lower", summary="AURC in excess of the perfect order (Geifman's E-AURC)")
def eaurc(ranking: Ranking) -> float:
    """Compute the excess AURC of Geifman et al.: `aurc` minus the `aurc` of the perfect order of the same images."""
    # The value of a perfect order may differ from zero by a rounding error of either sign.
    return max(0.0, ranking.mean_selective_risk - ranking.perfect().mean_selective_risk)


@metric("aorc", better="higher", summary="AORC on selective risk, as defined in the text of the paper")
def aorc(ranking: Ranking) -> float:
    """Compute AORC on selective risk: (worst - given) / (worst - perfect), each term an `aurc` of the same images.

    Raises `MetricError` if all predictions are correct or all are wrong.
    """
    ranking.check_outcomes("aorc")
    worst, perfect = ranking.worst().mean_selective_risk, ranking.perfect().mean_selective_risk
    return min(1.0, max(0.0, (worst - ranking.mean_selective_risk) / (worst - perfect)))


@metric(
    "risk_at", better="lower", parameter="coverage", summary="error rate among the most confident images at a coverage"
)
def risk_at(ranking: Ranking, coverage: float) -> float:
    """Compute the selective risk at a coverage in (0, 1]: e(n) / n with n = ceil(coverage * N).

    e(n) is the number of errors among the n most confident images, in expectation over the order of ties.
    """
    if not is_number(coverage) or not 0 < coverage <= 1:
        raise MetricError("is out of range; expected a fraction in (0, 1]", argument="coverage", value=coverage)
    accepted = ranking.count_for_coverage(coverage)
    tie = int(np.searchsorted(ranking.accepted, accepted))
    size, errors = int(ranking.tie_sizes[tie]), int(ranking.tie_errors[tie])
    accepted_in_tie = accepted - (int(ranking.accepted[tie]) - size)
    return (int(ranking.errors[tie]) - errors + accepted_in_tie * errors / size) / accepted


@metric("coverage_at", better="higher", parameter="risk", summary="largest coverage with at most this selective risk")
def coverage_at(ranking: Ranking, risk: float) -> float:
    """Compute the largest coverage n / N with a selective risk e(n) / n of at most `risk` in [0, 1]; 0 if none.

    This describes the given images only; for a guarantee, see `secondlook.certify`.
    """
    if not is_number(risk) or not 0 <= risk <= 1:
        raise MetricError("is out of range; expected an error rate in [0, 1]", argument="risk", value=risk)
    # Ignores an excess from rounding alone (0.29 * 100 is 28.999999999999996).
    risk *= 1 + 1e-12
    within = np.flatnonzero(ranking.errors <= risk * ranking.accepted)
    whole_ties = int(within[-1]) + 1 if len(within) else 0
    if whole_ties == len(ranking.accepted):
        return 1.0
    accepted, errors = (int(ranking.accepted[within[-1]]), int(ranking.errors[within[-1]])) if len(within) else (0, 0)
    # In the tie that exceeds the risk, the expected errors grow linearly with the number of accepted images.
    growth = int(ranking.tie_errors[whole_ties]) / int(ranking.tie_sizes[whole_ties])
    return (accepted + int((risk * accepted - errors) / (growth - risk))) / ranking.n_images


@metric("augrc", better="lower", bounds=(0.0, 0.5), summary="area under the joint risk-coverage curve")
def augrc(ranking: Ranking) -> float:
    """Compute the area under the generalized (joint) risk-coverage curve e(n) / N, by trapezoids; exact in integers.

    With the error rate r = n_errors / N it equals r^2 / 2 + r * (1 - r) * (1 - auroc).
    """
    return (_compute_twice_joint_area(ranking) - ranking.n_errors) / (2 * ranking.n_images**2)


@metric(
    "eaurc_joint",
    better="lower",
    summary="joint-risk area in excess of the perfect order, as in the tables of the paper",
)
def eaurc_joint(ranking: Ranking) -> float:
    """Compute the area under the joint risk e(n) / N minus that of the perfect order.

    It equals (1 - auroc) * accuracy * (1 - accuracy).
    """
    excess = _compute_twice_joint_area(ranking) - _compute_twice_joint_area(ranking.perfect())
    return excess / (2 * ranking.n_images**2)


@metric("aorc_joint", better="higher", summary="AORC on joint risk, as in the tables of the paper; equals auroc")
def aorc_joint(ranking: Ranking) -> float:
    """Compute AORC on joint risk: (worst - given) / (worst - perfect), each term an area under e(n) / N.

    It equals `auroc` exactly. Raises `MetricError` if all predictions are correct or all are wrong.
    """
    ranking.check_outcomes("aorc_joint")
    worst = _compute_twice_joint_area(ranking.worst())
    return (worst - _compute_twice_joint_area(ranking)) / (worst - _compute_twice_joint_area(ranking.perfect()))


@metric("ece", better="lower", reads="values", summary="expected calibration error, 15 bins of equal width")
def ece(ranking: Ranking, *, bins: int = 15) -> float:
    """Compute the expected calibration error: sum over bins of (images / N) * |accuracy - mean confidence|.

    The bins divide [0, 1] into equal widths. Raises `MetricError` if a confidence is outside [0, 1].
    """
    curve = ranking.reliability(bins)
    return float(np.sum(curve.images * np.abs(curve.accuracy - curve.confidence)) / ranking.n_images)


@metric("brier", better="lower", reads="values", summary="mean squared difference between confidence and correctness")
def brier(ranking: Ranking) -> float:
    """Compute the Brier score: mean of (confidence - correct)^2.

    Raises `MetricError` if a confidence is outside [0, 1].
    """
    ranking.check_probabilities("brier")
    probability = ranking.confidences
    correct = ranking.tie_sizes - ranking.tie_errors
    return float(np.sum(correct * (probability - 1) ** 2 + ranking.tie_errors * probability**2) / ranking.n_images)


@metric(
    "nll",
    better="lower",
    reads="values",
    bounds=(0.0, np.inf),
    summary="mean negative log-likelihood of correctness given the confidence",
)
def nll(ranking: Ranking) -> float:
    """Compute the mean of -log(confidence) if correct and -log(1 - confidence) if wrong, in nats.

    Probabilities are clipped to [eps, 1 - eps] with the float64 eps = 2.2e-16, so that a fully confident error costs 36
    nats, not infinity. Raises `MetricError` if a confidence is outside [0, 1].
    """
    ranking.check_probabilities("nll")
    epsilon = np.finfo(np.float64).eps
    probability = np.clip(ranking.confidences, epsilon, 1 - epsilon)
    correct = ranking.tie_sizes - ranking.tie_errors
    log_likelihood = np.sum(correct * np.log(probability) + ranking.tie_errors * np.log1p(-probability))
    return float(-log_likelihood / ranking.n_images)


def _compute_twice_joint_area(ranking: Ranking) -> int:
    """Return twice the sum over n of the expected errors among the n most confident images, an integer."""
    sizes, errors_above = ranking.tie_sizes, ranking.errors - ranking.tie_errors
    return int(np.sum(2 * sizes * errors_above + ranking.tie_errors * (sizes + 1)))
