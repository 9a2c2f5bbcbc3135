"""The leading classes of scores, with ties going to the lower class."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray


def top_classes(scores: Float64Array, top_k: int) -> IntArray:
    """Return the k best classes of scores [N, C], best first, int64 [N, k].

    k passes of `argmax` instead of a sort: k is small, and `argmax` gives the first, so the lower class, of equals.
    """
    remaining = scores if top_k == 1 else scores.copy()
    leading = np.empty((len(scores), top_k), dtype=np.int64)
    for place in range(top_k):
        best = remaining.argmax(axis=1)
        leading[:, place] = best
        if place < top_k - 1:
            np.put_along_axis(remaining, best[:, None], -np.inf, axis=1)
    return leading
