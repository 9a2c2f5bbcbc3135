"""Compiled loop of the shift alarm. Importing this module loads numba."""

import math
from collections.abc import Callable
from typing import TypeVar, cast

import numba

from secondlook.arrays import Float64Array, IntArray

_Kernel = TypeVar("_Kernel", bound=Callable[..., object])

_SCALE_BITS = 256
_SCALE = 2.0**_SCALE_BITS
_LARGEST_BELOW_ONE = 1 - 2.0**-53


def _compile(function: _Kernel) -> _Kernel:
    return cast(_Kernel, numba.njit(cache=True, nogil=True)(function))


@_compile
def rank_image(counts: IntArray, image_bin: int, n_counted: int, uniform: float) -> float:
    """Return the rank of a new image among the counted ones as a fraction, with ties broken by `uniform`.

    counts int64 [B] hold `n_counted` images; the new image is not among them. The result is inside (0, 1).
    """
    below = 0
    for other in range(image_bin):
        below += counts[other]
    p_value: float = (below + uniform * (counts[image_bin] + 1)) / (n_counted + 1)
    # Rounding must not reach 1, where some densities are infinite; they are at 0 as well, but `uniform` is positive.
    return min(p_value, _LARGEST_BELOW_ONE)


@_compile
def bet_on_p_values(
    bins: IntArray,
    uniforms: Float64Array,
    first_image: int,
    span: float,
    decay: float,
    powers: Float64Array,
    counts: IntArray,
    capital: Float64Array,
    scale: IntArray,
    evidence: Float64Array,
) -> None:
    """Bet on one statistic of n more images and fill `evidence` [n] with the log of the whole capital after each.

    bins int64 [n] are -1 where an image has no value; uniforms [n] break ties. `first_image` images came before. After
    t images, (1 + t / span) ** -decay of the initial capital still waits. The densities are a (1 - p) ** (a - 1) and
    a p ** (a - 1) for each of `powers` [K].

    Changed in place: counts int64 [B], the images of the reference and of the stream in each bin; capital [K, 2], what
    is at work on each density, in units of 2 ** scale, int64 [K, 2], so that it never overflows.
    """
    n_powers, n_counted = len(powers), counts.sum()
    waiting = (1 + first_image / span) ** -decay
    for i in range(len(bins)):
        waiting_before, waiting = waiting, (1 + (first_image + i + 1) / span) ** -decay
        entering = (waiting_before - waiting) / (2 * n_powers)
        for k in range(n_powers):
            for side in range(2):
                capital[k, side] += math.ldexp(entering, -scale[k, side])
        if bins[i] >= 0:
            p_value = rank_image(counts, bins[i], n_counted, uniforms[i])
            counts[bins[i]] += 1
            n_counted += 1
            for k in range(n_powers):
                capital[k, 0] *= powers[k] * (1 - p_value) ** (powers[k] - 1)
                capital[k, 1] *= powers[k] * p_value ** (powers[k] - 1)
        top = scale.max()
        total = math.ldexp(waiting, -top)
        for k in range(n_powers):
            for side in range(2):
                total += math.ldexp(capital[k, side], scale[k, side] - top)
                # Powers of two rescale without rounding.
                if capital[k, side] > _SCALE:
                    scale[k, side] += _SCALE_BITS
                    capital[k, side] /= _SCALE
                elif scale[k, side] > 0 and capital[k, side] < 1:
                    scale[k, side] -= _SCALE_BITS
                    capital[k, side] *= _SCALE
        evidence[i] = math.log(total) + top * math.log(2.0)
