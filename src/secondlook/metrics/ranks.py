"""How well the confidence tells right from wrong: ROC, precision-recall, and the paper's areas on joint risk.

All but `aupr` are exact: pairs are counted in integers and divided once.
"""

from typing import Literal

import numpy as np

from secondlook.errors import MetricError
from secondlook.metrics.harmonic import harmonic_sums
from secondlook.metrics.ranking import Ranking
from secondlook.metrics.registry import metric


@metric("accuracy", better="higher", says="share of right images")
def accuracy(ranking: Ranking) -> float:
    """Share of right images, whatever the confidence."""
    return ranking.n_correct / ranking.n_images


@metric("auroc", better="higher", says="chance that a right image is surer than a wrong one")
def auroc(ranking: Ranking) -> float:
    """Chance that a random right image is surer than a random wrong one; a tie counts one half."""
    ranking.need_right_and_wrong("auroc")
    return _twice_pairs_in_order(ranking) / (2 * ranking.n_errors * ranking.n_correct)


@metric("aupr", better="higher", says="average precision in finding errors, least sure first")
def aupr(ranking: Ranking, *, ties: Literal["expected", "threshold"] = "expected") -> float:
    """Average precision with errors as positives, from the least sure image up.

    ties="expected" is its expected value when equal confidences are put in random order; ties="threshold" takes equal
    confidences at once, as scikit-learn does. Without ties the two are the same.
    """
    if ranking.n_errors == 0:
        raise MetricError("aupr has no meaning without errors: none of the images is wrong.")
    if ties not in ("expected", "threshold"):
        raise MetricError(f"aupr got ties={ties!r}, expected 'expected' or 'threshold'.")
    # Only blocks with errors count. From the least sure up, what was accepted last is flagged first.
    held = np.flatnonzero(ranking.block_errors)
    sizes, errors = ranking.block_sizes[held], ranking.block_errors[held]
    flagged_before, found_before = ranking.n_images - ranking.accepted[held], ranking.n_errors - ranking.errors[held]
    if ties == "threshold":
        precision = (found_before + errors) / (flagged_before + sizes)
        return float(np.sum(errors * precision) / ranking.n_errors)
    # The i-th of a block is an error with chance j/m, and then (i - 1)(j - 1)/(m - 1) others are expected before it.
    others = (errors - 1) / np.maximum(sizes - 1, 1)
    constant = found_before + 1 - others * (1 + flagged_before)
    gained = errors / sizes * (others * sizes + constant * harmonic_sums(flagged_before, sizes))
    return float(np.sum(gained) / ranking.n_errors)


@metric("augrc", better="lower", says="area under the curve of joint risk", bounds=(0.0, 0.5))
def augrc(ranking: Ranking) -> float:
    """Area under errors accepted over all images, by trapezoids: chance that an image is wrong and accepted."""
    return (_twice_area(ranking) - ranking.n_errors) / (2 * ranking.n_images**2)


@metric("eaurc_joint", better="lower", says="joint-risk area above the perfect one, as in the paper's tables")
def eaurc_joint(ranking: Ranking) -> float:
    """Area between the curve of joint risk and the perfect one; (1 - auroc) * accuracy * (1 - accuracy)."""
    return (_twice_area(ranking) - _twice_area(ranking.perfect())) / (2 * ranking.n_images**2)


@metric("aorc_joint", better="higher", says="AORC on joint risk, as in the paper's tables; equals auroc")
def aorc_joint(ranking: Ranking) -> float:
    """Area from the worst curve of joint risk down to this one, over the area down to the perfect one."""
    ranking.need_right_and_wrong("aorc_joint")
    worst = _twice_area(ranking.worst())
    return (worst - _twice_area(ranking)) / (worst - _twice_area(ranking.perfect()))


def _twice_pairs_in_order(ranking: Ranking) -> int:
    """Twice the number of (right, wrong) pairs in which the right image is surer, a tie counting one half."""
    right_in_block = ranking.block_sizes - ranking.block_errors
    right_above = ranking.accepted - ranking.errors - right_in_block
    return int(np.sum(ranking.block_errors * (2 * right_above + right_in_block)))


def _twice_area(ranking: Ranking) -> int:
    """Twice the sum over n of the expected errors among the n surest images, an integer."""
    errors_above = ranking.errors - ranking.block_errors
    sizes = ranking.block_sizes
    return int(np.sum(2 * sizes * errors_above + ranking.block_errors * (sizes + 1)))
