"""Which views each resampling draws: one matrix of counts, shared by all images."""

import math

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import ConfidenceError

FEWEST, MOST = 100, 1000
SHARE_OF_ALL = 0.001


def default_resamplings(n_views: int, n_members: int = 1) -> int:
    """Return the paper's N_BS = min(1000, max(100, 0.001 g)), both bounds times the members of an ensemble.

    g = (2n - 1)! / (n! (n - 1)!) is the number of different samples of n = members * views outputs drawn from n.
    """
    drawn = n_members * n_views
    different = math.comb(2 * drawn - 1, drawn)
    # The comparison comes first: g of many views is too large for a float.
    if different >= n_members * MOST / SHARE_OF_ALL:
        return n_members * MOST
    return max(n_members * FEWEST, int(SHARE_OF_ALL * different))


def view_resampling_counts(n_outputs: int, resamplings: int, seed: int) -> IntArray:
    """Return how often each resampling draws each output, int64 [n_outputs, resamplings]; columns sum to n_outputs."""
    if seed < 0:
        raise ConfidenceError(f"seed is {seed}; expected a whole number of at least 0.")
    generator = np.random.default_rng(seed)
    return generator.multinomial(n_outputs, np.full(n_outputs, 1 / n_outputs), size=resamplings).T


def checked_resamplings(asked: int | None, n_views: int, n_members: int) -> int:
    """Return the number of resamplings: as asked for, or by the paper's rule."""
    if asked is None:
        return default_resamplings(n_views, n_members)
    if asked < 1:
        raise ConfidenceError(
            f"resamplings is {asked!r}; expected a whole number of at least 1, or None for the paper's rule."
        )
    return int(asked)
