"""How many errors are left among the accepted: areas and points of the curve of selective risk."""

import numpy as np

from secondlook.errors import MetricError
from secondlook.metrics.ranking import Ranking
from secondlook.metrics.registry import metric


@metric("aurc", better="lower", says="mean selective risk over all coverages")
def aurc(ranking: Ranking) -> float:
    """Mean over n of the error rate among the n surest images, expected over the order of equal confidences."""
    return ranking.mean_selective_risk


@metric("eaurc", better="lower", says="selective-risk area above the perfect one (Geifman's E-AURC)")
def eaurc(ranking: Ranking) -> float:
    """`aurc` less that of the perfect order of the same images."""
    # A perfect order may miss zero by a rounding error on either side.
    return max(0.0, aurc.of(ranking) - aurc.of(ranking.perfect()))


@metric("aorc", better="higher", says="AORC on selective risk, as the paper's text defines it")
def aorc(ranking: Ranking) -> float:
    """Area from the worst curve of selective risk down to this one, over the area down to the perfect one."""
    ranking.need_right_and_wrong("aorc")
    worst, perfect = aurc.of(ranking.worst()), aurc.of(ranking.perfect())
    return min(1.0, max(0.0, (worst - aurc.of(ranking)) / (worst - perfect)))


@metric("risk_at", better="lower", says="error rate among the surest share of images", parameter="coverage")
def risk_at(ranking: Ranking, coverage: float) -> float:
    """Error rate among the surest images, as many as reach the coverage, expected over the order of ties."""
    if not 0 < coverage <= 1:
        raise MetricError(f"risk_at got coverage {coverage}, expected a share in (0, 1] such as 0.8.")
    accepted = count_for_coverage(coverage, ranking.n_images)
    block = int(np.searchsorted(ranking.accepted, accepted))
    size, errors = int(ranking.block_sizes[block]), int(ranking.block_errors[block])
    taken = accepted - (int(ranking.accepted[block]) - size)
    return (int(ranking.errors[block]) - errors + taken * errors / size) / accepted


@metric("coverage_at", better="higher", says="largest coverage with at most this selective risk", parameter="risk")
def coverage_at(ranking: Ranking, risk: float) -> float:
    """Largest coverage at which the expected error rate among the accepted is at most `risk`; 0 where none is."""
    if not 0 <= risk <= 1:
        raise MetricError(f"coverage_at got risk {risk}, expected a share in [0, 1] such as 0.01.")
    # What exceeds the risk by rounding alone (0.29 * 100 is 28.999999999999996) does not exceed it.
    risk *= 1 + 1e-12
    kept = np.flatnonzero(ranking.errors <= risk * ranking.accepted)
    whole_blocks = int(kept[-1]) + 1 if len(kept) else 0
    if whole_blocks == len(ranking.accepted):
        return 1.0
    accepted, errors = (int(ranking.accepted[kept[-1]]), int(ranking.errors[kept[-1]])) if len(kept) else (0, 0)
    # In the block that leads above the risk, expected errors grow by a constant for each image.
    growth = int(ranking.block_errors[whole_blocks]) / int(ranking.block_sizes[whole_blocks])
    return (accepted + int((risk * accepted - errors) / (growth - risk))) / ranking.n_images


def count_for_coverage(coverage: float, n_images: int) -> int:
    """Return the smallest number of images whose share of all is at least the coverage."""
    # 0.07 * 100 is 7.000000000000001: what differs from an integer by rounding alone is that integer.
    return max(1, min(n_images, int(np.ceil(coverage * n_images * (1 - 1e-12)))))
