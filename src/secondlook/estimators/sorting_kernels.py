"""Compiled loops that resample views, and bring N x B doubts into order, a part at a time; importing loads numba."""

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array
from secondlook.estimators.compiled import compiled

LOW_BITS = 14
"""Bits of a key that are sorted inside its bin; the bits above them number the bin."""
BINS = 1 << (31 - LOW_BITS)
"""Bins that a non-negative float32 can fall into: its sign bit is never set."""

_DIGIT_BITS = LOW_BITS // 2
_DIGITS = 1 << _DIGIT_BITS
_DIGIT_MASK = np.uint64(_DIGITS - 1)
_LOW_DIGIT_AT = np.uint64(32)
_HIGH_DIGIT_AT = np.uint64(32 + _DIGIT_BITS)
_SMALL_BIN = 48


@compiled
def add_views(values: Float64Array, counts: Float64Array, sums: Float64Array) -> None:
    """Fill `sums` [B] with values [V] @ counts [V, B].

    The views are added one after the other, so a sum does not depend on blocks, threads or the BLAS at hand: images
    with equal values get equal sums, to the last bit.
    """
    sums[:] = 0.0
    n_views, fours = values.shape[0], values.shape[0] // 4 * 4
    # Four views at a time spare three of four trips to `sums`; the order of the additions stays the same.
    for v in range(0, fours, 4):
        v0, v1, v2, v3 = values[v], values[v + 1], values[v + 2], values[v + 3]
        for b in range(sums.shape[0]):
            two = sums[b] + v0 * counts[v, b] + v1 * counts[v + 1, b]
            sums[b] = two + v2 * counts[v + 2, b] + v3 * counts[v + 3, b]
    for v in range(fours, n_views):
        for b in range(sums.shape[0]):
            sums[b] += values[v] * counts[v, b]


@compiled
def resample_means(values: Float64Array, counts: Float64Array, means: Float64Array) -> None:
    """Fill `means` [n, B] with the mean of values [n, V] over the views that each resampling draws. counts [V, B]"""
    for image in range(values.shape[0]):
        add_views(values[image], counts, means[image])
        for b in range(means.shape[1]):
            means[image, b] /= values.shape[1]


@compiled
def resample_image(doubts: Float64Array, counts: Float64Array, sums: Float64Array, resampled: Float32Array) -> None:
    """Fill `resampled` [B] with the float32 of doubts [V] @ counts [V, B]."""
    add_views(doubts, counts, sums)
    for b in range(sums.shape[0]):
        resampled[b] = sums[b]


@compiled
def count_bins(doubts: Float64Array, counts: Float64Array, in_bin: Array, first_bin: Array, last_bin: Array) -> None:
    """Count the resampled doubts of some images: in each bin [BINS], and the outermost bins of each image [n]."""
    sums = np.empty(counts.shape[1])
    resampled = np.empty(counts.shape[1], dtype=np.float32)
    keys = resampled.view(np.uint32)
    for image in range(doubts.shape[0]):
        resample_image(doubts[image], counts, sums, resampled)
        first, last = np.int64(BINS), np.int64(-1)
        for b in range(keys.shape[0]):
            key_bin = np.int64(keys[b] >> LOW_BITS)
            in_bin[key_bin] += 1
            if key_bin < first:
                first = key_bin
            if key_bin > last:
                last = key_bin
        first_bin[image] = first
        last_bin[image] = last


@compiled
def scatter_entries(
    doubts: Float64Array,
    counts: Float64Array,
    first_image: int,
    first_bin: Array,
    last_bin: Array,
    low: int,
    high: int,
    next_free: Array,
    entries: Array,
) -> None:
    """Write the entries (key << 32 | image) of bins low..high-1 to `entries`, in each bin in the order of the images.

    `next_free` [high - low] is where the next entry of each bin goes; images with nothing in these bins are left out.
    """
    sums = np.empty(counts.shape[1])
    resampled = np.empty(counts.shape[1], dtype=np.float32)
    keys = resampled.view(np.uint32)
    for image in range(doubts.shape[0]):
        if last_bin[image] < low or first_bin[image] >= high:
            continue
        resample_image(doubts[image], counts, sums, resampled)
        for b in range(keys.shape[0]):
            key_bin = np.int64(keys[b] >> LOW_BITS)
            if low <= key_bin < high:
                place = next_free[key_bin - low]
                entries[place] = (np.uint64(keys[b]) << np.uint64(32)) | np.uint64(first_image + image)
                next_free[key_bin - low] = place + 1


@compiled
def sort_bins(entries: Array, starts: Array) -> None:
    """Sort each bin entries[starts[i]:starts[i+1]] by key, keeping the order of the images where keys are equal."""
    spare = np.empty(np.diff(starts).max(), dtype=np.uint64)
    for i in range(starts.shape[0] - 1):
        one_bin = entries[starts[i] : starts[i + 1]]
        if one_bin.shape[0] <= _SMALL_BIN:
            sort_by_insertion(one_bin)
        elif not is_sorted(one_bin):
            sort_by_digit(one_bin, spare, _LOW_DIGIT_AT)
            sort_by_digit(spare[: one_bin.shape[0]], one_bin, _HIGH_DIGIT_AT)


@compiled
def is_sorted(values: Array) -> bool:
    """Say whether the values [n] ascend; a bin of equal keys does, and then needs no spare room."""
    place = 1
    while place < values.shape[0] and values[place] >= values[place - 1]:
        place += 1
    return bool(place >= values.shape[0])


@compiled
def sort_by_insertion(values: Array) -> None:
    """Sort a few values [n] in place."""
    for i in range(1, values.shape[0]):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


@compiled
def sort_by_digit(values: Array, target: Array, digit_at: np.uint64) -> None:
    """Write the values [n] to `target`, stably ordered by one digit of their key."""
    places = np.zeros(_DIGITS + 1, dtype=np.int64)
    for i in range(values.shape[0]):
        places[((values[i] >> digit_at) & _DIGIT_MASK) + np.uint64(1)] += 1
    for digit in range(_DIGITS):
        places[digit + 1] += places[digit]
    for i in range(values.shape[0]):
        digit_of_value = (values[i] >> digit_at) & _DIGIT_MASK
        target[places[digit_of_value]] = values[i]
        places[digit_of_value] += 1
