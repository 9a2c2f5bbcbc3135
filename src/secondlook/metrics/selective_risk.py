"""Selective prediction: risk (the error rate among accepted images) against coverage (the fraction accepted).

Selective risk divides the errors among accepted images by the accepted images, joint risk by all images. The metrics on
joint risk, named `*_joint`, reproduce the tables of the paper.
"""

from __future__ import annotations  # help() then shows 'ArrayLike' instead of a long union

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Float64Array, is_number
from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking, rank
from secondlook.metrics.registry import metric

Order = Literal["given", "perfect", "worst"]
"""The given order of the images, or the best or worst possible one."""


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
        raise MetricError(f"risk_at got coverage {coverage!r}, expected a fraction in (0, 1] such as 0.8.")
    accepted = count_for_coverage(coverage, ranking.n_images)
    tie = int(np.searchsorted(ranking.accepted, accepted))
    size, errors = int(ranking.tie_sizes[tie]), int(ranking.tie_errors[tie])
    accepted_in_tie = accepted - (int(ranking.accepted[tie]) - size)
    return (int(ranking.errors[tie]) - errors + accepted_in_tie * errors / size) / accepted


@metric("coverage_at", better="higher", parameter="risk", summary="largest coverage with at most this selective risk")
def coverage_at(ranking: Ranking, risk: float) -> float:
    """Compute the largest coverage n / N with a selective risk e(n) / n of at most `risk` in [0, 1]; 0 if none.

    This describes the given images and guarantees nothing about others; see `secondlook.certify`.
    """
    if not is_number(risk) or not 0 <= risk <= 1:
        raise MetricError(f"coverage_at got risk {risk!r}, expected an error rate in [0, 1] such as 0.01.")
    # An excess by rounding alone (0.29 * 100 is 28.999999999999996) does not count.
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


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """Risk against coverage, one point for each number of accepted images from 1 to N."""

    coverage: Float64Array
    risk: Float64Array


def risk_coverage(
    correct: ArrayLike, confidence: ArrayLike, *, order: Order = "given", joint: bool = False
) -> RiskCurve:
    """Return selective, or joint, risk against coverage. bool [N], float [N] -> N points

    `order` may also be the "perfect" or the "worst" order of the same images.
    """
    if order not in ("given", "perfect", "worst"):
        raise MetricError(f"unknown order {order!r} of a risk curve; expected 'given', 'perfect' or 'worst'.")
    ranking = rank(correct, confidence)
    if order != "given":
        ranking = ranking.perfect() if order == "perfect" else ranking.worst()
    accepted = np.arange(1, ranking.n_images + 1)
    return RiskCurve(accepted / ranking.n_images, ranking.expected_errors() / (ranking.n_images if joint else accepted))


def count_for_coverage(coverage: float, n_images: int) -> int:
    """Return the smallest number of images that reaches the coverage, at least 1."""
    # 0.07 * 100 is 7.000000000000001: a number that differs from an integer by rounding alone is that integer.
    return max(1, min(n_images, int(np.ceil(coverage * n_images * (1 - 1e-12)))))


def _compute_twice_joint_area(ranking: Ranking) -> int:
    """Return twice the sum over n of the expected errors among the n most confident images, an integer."""
    errors_above = ranking.errors - ranking.tie_errors
    sizes = ranking.tie_sizes
    return int(np.sum(2 * sizes * errors_above + ranking.tie_errors * (sizes + 1)))
