"""Where nothing can be guaranteed: what could be, and how many more labeled images it would take."""

import math

import numpy as np

from secondlook.metrics import Ranking
from secondlook.selective.fallback_test import images_without_errors, largest_certified_count, starting_ranks

MOST_TIMES = 100
"""A guess of more than so many times the images at hand says only that these do not tell."""
STEPS = 10_000
"""How finely risks are tried: in hundredths of a per cent."""


def smallest_certifiable_risk(ranking: Ranking, risk: float, delta: float) -> float | None:
    """Return a risk above `risk` that these images could have guaranteed, to four decimals, or None where none is.

    Found by bisection, so it is a guide for the next calibration: a guarantee is for a risk that was chosen beforehand.
    """
    low, high = int(risk * STEPS), STEPS - 1
    if largest_certified_count(ranking, high / STEPS, delta) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if largest_certified_count(ranking, middle / STEPS, delta) else (middle, high)
    return high / STEPS


def further_images(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return roughly how many more labeled images would allow the guarantee, or None where more do not seem to help.

    Supposes that errors stay where they are: at the best rank, the observed error rate has to fall short of `risk` by
    as many standard errors as the certainty asks for.
    """
    from scipy.special import ndtri

    # One error more than observed keeps a lucky start from looking like a certainty.
    error_rates = (ranking.errors + 1) / ranking.accepted
    helpful = error_rates < risk
    if not helpful.any():
        return _until_errors_may_occur(ranking, risk, delta)
    share = delta / max(1, len(starting_ranks(ranking.n_images, risk, delta)))
    accepted, gaps = ranking.accepted[helpful], risk - error_rates[helpful]
    growth = float(np.min(ndtri(share) ** 2 * risk * (1 - risk) / (accepted * gaps**2)))
    further = max(1, math.ceil(ranking.n_images * (growth - 1)))
    return further if further <= MOST_TIMES * ranking.n_images else None


def _until_errors_may_occur(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return what is missing to the fewest images that could guarantee anything, where too few is all that is wrong."""
    missing = 2 * images_without_errors(risk, delta) - ranking.n_images
    few_errors = float(np.min(ranking.errors / ranking.accepted)) < risk
    return missing if few_errors and missing > 0 else None
