"""Compiled loops of the bootstrap and of the plurality ranking. Importing this module loads numba."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array, IntArray

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compile_kernel(function: Kernel) -> Kernel:
    """Compile a function with numba on its first call, cached on disk and without the global interpreter lock."""
    return cast(Kernel, numba.njit(cache=True, nogil=True)(function))


# ---- Resampling

LOW_BITS = 14
"""Bits of a float32 key that are sorted inside its bin; the bits above them are the number of the bin."""
N_BINS = 1 << (31 - LOW_BITS)
"""Bins of non-negative float32 keys, whose sign bit is 0."""


@compile_kernel
def add_views(values: Float64Array, counts: Float64Array, sums: Float64Array) -> None:
    """Fill `sums` [B] with values [V] @ counts [V, B].

    The views are added one by one, so that a sum does not depend on blocks, threads or the BLAS library: images with
    equal values get equal sums, bit for bit.
    """
    sums[:] = 0.0
    n_views, fours = values.shape[0], values.shape[0] // 4 * 4
    # Four views at a time save three of four passes over `sums`; the order of the additions stays the same.
    for v in range(0, fours, 4):
        v0, v1, v2, v3 = values[v], values[v + 1], values[v + 2], values[v + 3]
        for b in range(sums.shape[0]):
            two = sums[b] + v0 * counts[v, b] + v1 * counts[v + 1, b]
            sums[b] = two + v2 * counts[v + 2, b] + v3 * counts[v + 3, b]
    for v in range(fours, n_views):
        for b in range(sums.shape[0]):
            sums[b] += values[v] * counts[v, b]


@compile_kernel
def resample_means(values: Float64Array, counts: Float64Array, means: Float64Array) -> None:
    """Fill `means` [n, B] with the mean of values [n, V] over the views drawn by each resampling. counts [V, B]"""
    for image in range(values.shape[0]):
        add_views(values[image], counts, means[image])
        for b in range(means.shape[1]):
            means[image, b] /= values.shape[1]


@compile_kernel
def resample_image(other_mass: Float64Array, counts: Float64Array, sums: Float64Array, keys: Float32Array) -> None:
    """Fill `keys` [B] with the float32 of other_mass [V] @ counts [V, B]; `sums` [B] is scratch space."""
    add_views(other_mass, counts, sums)
    for b in range(sums.shape[0]):
        keys[b] = sums[b]


# ---- Sorting N x B entries by bins

_DIGIT_BITS = LOW_BITS // 2
_N_DIGITS = 1 << _DIGIT_BITS
_DIGIT_MASK = np.uint64(_N_DIGITS - 1)
_LOW_DIGIT_SHIFT = np.uint64(32)
_HIGH_DIGIT_SHIFT = np.uint64(32 + _DIGIT_BITS)
_MAX_INSERTION_SORT = 48


@compile_kernel
def count_bins(
    other_mass: Float64Array, counts: Float64Array, bin_sizes: Array, first_bin: Array, last_bin: Array
) -> None:
    """Count the keys of some images in each bin [N_BINS], and find the first and last bin of each image [n]."""
    sums = np.empty(counts.shape[1])
    resampled = np.empty(counts.shape[1], dtype=np.float32)
    keys = resampled.view(np.uint32)
    for image in range(other_mass.shape[0]):
        resample_image(other_mass[image], counts, sums, resampled)
        first, last = np.int64(N_BINS), np.int64(-1)
        for b in range(keys.shape[0]):
            key_bin = np.int64(keys[b] >> LOW_BITS)
            bin_sizes[key_bin] += 1
            if key_bin < first:
                first = key_bin
            if key_bin > last:
                last = key_bin
        first_bin[image] = first
        last_bin[image] = last


@compile_kernel
def scatter_entries(
    other_mass: Float64Array,
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

    `next_free` [high - low] is the next place in each bin; images without a key in these bins are skipped.
    """
    sums = np.empty(counts.shape[1])
    resampled = np.empty(counts.shape[1], dtype=np.float32)
    keys = resampled.view(np.uint32)
    for image in range(other_mass.shape[0]):
        if last_bin[image] < low or first_bin[image] >= high:
            continue
        resample_image(other_mass[image], counts, sums, resampled)
        for b in range(keys.shape[0]):
            key_bin = np.int64(keys[b] >> LOW_BITS)
            if low <= key_bin < high:
                place = next_free[key_bin - low]
                entries[place] = (np.uint64(keys[b]) << np.uint64(32)) | np.uint64(first_image + image)
                next_free[key_bin - low] = place + 1


@compile_kernel
def sort_bins(entries: Array, starts: Array) -> None:
    """Sort each bin entries[starts[i]:starts[i+1]] by key, stably, so that equal keys stay in the order of images."""
    spare = np.empty(np.diff(starts).max(), dtype=np.uint64)
    for i in range(starts.shape[0] - 1):
        one_bin = entries[starts[i] : starts[i + 1]]
        if one_bin.shape[0] <= _MAX_INSERTION_SORT:
            sort_by_insertion(one_bin)
        elif not is_sorted(one_bin):
            sort_by_digit(one_bin, spare, _LOW_DIGIT_SHIFT)
            sort_by_digit(spare[: one_bin.shape[0]], one_bin, _HIGH_DIGIT_SHIFT)


@compile_kernel
def is_sorted(values: Array) -> bool:
    """Return whether the values [n] ascend, as those of a bin of equal keys do."""
    place = 1
    while place < values.shape[0] and values[place] >= values[place - 1]:
        place += 1
    return bool(place >= values.shape[0])


@compile_kernel
def sort_by_insertion(values: Array) -> None:
    """Sort a few values [n] in place."""
    for i in range(1, values.shape[0]):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


@compile_kernel
def sort_by_digit(values: Array, target: Array, shift: np.uint64) -> None:
    """Write the values [n] to `target`, stably sorted by one digit of their key."""
    places = np.zeros(_N_DIGITS + 1, dtype=np.int64)
    for i in range(values.shape[0]):
        places[((values[i] >> shift) & _DIGIT_MASK) + np.uint64(1)] += 1
    for digit in range(_N_DIGITS):
        places[digit + 1] += places[digit]
    for i in range(values.shape[0]):
        digit_of_value = (values[i] >> shift) & _DIGIT_MASK
        target[places[digit_of_value]] = values[i]
        places[digit_of_value] += 1


# ---- The sliding window

_IMAGE_MASK = np.uint64(0xFFFFFFFF)
_UNSEEN = -1
_RANKED = -2
# Indices into `totals`.
_IN_WINDOW, _SEEN, _DONE, _FIRST_LIVE_BLOCK = range(4)


class Window(NamedTuple):
    """State of the window. Images take slots in the order of their first entry; slots are divided into blocks.

    An entry leaves the window only with all other entries of its image, when the image is ranked. So the number of
    entries of each image is the whole state, and the largest number in each block finds the next image in about
    sqrt(N) steps, whatever the length of the window.
    """

    length: int
    block_size: int
    slot_of: IntArray
    """Slot of each image, or _UNSEEN or _RANKED. [N]"""
    image_in: IntArray
    """Image in each slot. [N]"""
    count_in: IntArray
    """Entries in the window, for each slot. [N, rounded up to whole blocks]"""
    largest_in: IntArray
    """Largest count in each block. [blocks]"""
    order: IntArray
    """Images in the order of their ranks, filled from the front. [N]"""
    totals: IntArray
    """Entries in the window, slots taken, images ranked, first block with a count. [4]"""


def create_window(n_images: int, length: int) -> Window:
    """Return an empty window for at least one image."""
    block_size = math.isqrt(n_images - 1) + 1
    n_blocks = -(-n_images // block_size)
    return Window(
        length=length,
        block_size=block_size,
        slot_of=np.full(n_images, _UNSEEN, dtype=np.int64),
        image_in=np.zeros(n_images, dtype=np.int64),
        count_in=np.zeros(n_blocks * block_size, dtype=np.int64),
        largest_in=np.zeros(n_blocks, dtype=np.int64),
        order=np.zeros(n_images, dtype=np.int64),
        totals=np.zeros(4, dtype=np.int64),
    )


@compile_kernel
def slide_window(window: Window, entries: Array) -> None:
    """Add sorted entries uint64 [n] (image in the low 32 bits), ranking one image whenever the window is full."""
    for i in range(entries.shape[0]):
        image = np.int64(entries[i] & _IMAGE_MASK)
        slot = window.slot_of[image]
        if slot == _RANKED:
            continue
        if slot == _UNSEEN:
            slot = window.totals[_SEEN]
            window.slot_of[image] = slot
            window.image_in[slot] = image
            window.totals[_SEEN] += 1
        window.count_in[slot] += 1
        block = slot // window.block_size
        window.largest_in[block] = max(window.largest_in[block], window.count_in[slot])
        window.totals[_IN_WINDOW] += 1
        if window.totals[_IN_WINDOW] == window.length:
            rank_most_frequent(window)


@compile_kernel
def rank_most_frequent(window: Window) -> None:
    """Give the next rank to the image with most entries in the window, of several to the one that entered first."""
    largest_in, count_in, totals = window.largest_in, window.count_in, window.totals
    # Slots are taken in order, so a block before the first with a count will never have a count again.
    while largest_in[totals[_FIRST_LIVE_BLOCK]] == 0:
        totals[_FIRST_LIVE_BLOCK] += 1
    best = totals[_FIRST_LIVE_BLOCK]
    for block in range(best + 1, (totals[_SEEN] - 1) // window.block_size + 1):
        if largest_in[block] > largest_in[best]:
            best = block
    slot = best * window.block_size
    while count_in[slot] != largest_in[best]:
        slot += 1
    window.order[totals[_DONE]] = window.image_in[slot]
    window.slot_of[window.image_in[slot]] = _RANKED
    totals[_DONE] += 1
    totals[_IN_WINDOW] -= count_in[slot]
    count_in[slot] = 0
    largest_in[best] = count_in[best * window.block_size : (best + 1) * window.block_size].max()


@compile_kernel
def rank_remaining(window: Window) -> None:
    """Rank the images that are still in the window after the last entry."""
    while window.totals[_DONE] < window.order.shape[0]:
        rank_most_frequent(window)
