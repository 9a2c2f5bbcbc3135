"""Compiled loops of the sliding window: which image is ranked next; importing this loads numba."""

import math
from typing import NamedTuple

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.estimators.compiled import compiled

_IMAGE_MASK = np.uint64(0xFFFFFFFF)
_NOT_SEEN = -1
_RANKED = -2
# Places in `totals`.
_IN_WINDOW, _SEEN, _DONE, _FIRST_LIVE_BLOCK = range(4)


class Window(NamedTuple):
    """What the window knows; images take slots in the order of their first entry, slots come in blocks.

    An entry leaves the window only when its image is ranked, and then all entries of that image leave. So the number
    of entries of each image is all there is to know, and the largest number per block finds the next image in
    about sqrt(N) steps, however long the window is.
    """

    length: int
    block_size: int
    slot_of: IntArray
    """Slot of each image [N], or one of the marks above."""
    image_in: IntArray
    """Image in each slot [N]."""
    count_in: IntArray
    """Entries in the window, for each slot [N, rounded up to whole blocks]."""
    most_in: IntArray
    """Largest count of each block [blocks]."""
    order: IntArray
    """Images in the order of their ranks [N], filled from the front."""
    totals: IntArray
    """Entries in the window, slots taken, images ranked, first block with a count [4]."""


def open_window(n_images: int, length: int) -> Window:
    """Return an empty window for `n_images` images, at least one."""
    block_size = math.isqrt(n_images - 1) + 1
    n_blocks = -(-n_images // block_size)
    return Window(
        length=length,
        block_size=block_size,
        slot_of=np.full(n_images, _NOT_SEEN, dtype=np.int64),
        image_in=np.zeros(n_images, dtype=np.int64),
        count_in=np.zeros(n_blocks * block_size, dtype=np.int64),
        most_in=np.zeros(n_blocks, dtype=np.int64),
        order=np.zeros(n_images, dtype=np.int64),
        totals=np.zeros(4, dtype=np.int64),
    )


@compiled
def slide(window: Window, entries: Array) -> None:
    """Let sorted entries uint64 [n] (image in the low 32 bits) in; whenever the window is full an image is ranked."""
    for i in range(entries.shape[0]):
        image = np.int64(entries[i] & _IMAGE_MASK)
        slot = window.slot_of[image]
        if slot == _RANKED:
            continue
        if slot == _NOT_SEEN:
            slot = window.totals[_SEEN]
            window.slot_of[image] = slot
            window.image_in[slot] = image
            window.totals[_SEEN] += 1
        window.count_in[slot] += 1
        block = slot // window.block_size
        window.most_in[block] = max(window.most_in[block], window.count_in[slot])
        window.totals[_IN_WINDOW] += 1
        if window.totals[_IN_WINDOW] == window.length:
            rank_most_frequent(window)


@compiled
def rank_most_frequent(window: Window) -> None:
    """Give the next rank to the image with most entries in the window, of several to the one that entered first."""
    most_in, count_in, totals = window.most_in, window.count_in, window.totals
    # Slots fill in order, so a block before one with a count will never have a count again.
    while most_in[totals[_FIRST_LIVE_BLOCK]] == 0:
        totals[_FIRST_LIVE_BLOCK] += 1
    best = totals[_FIRST_LIVE_BLOCK]
    for block in range(best + 1, (totals[_SEEN] - 1) // window.block_size + 1):
        if most_in[block] > most_in[best]:
            best = block
    slot = best * window.block_size
    while count_in[slot] != most_in[best]:
        slot += 1
    window.order[totals[_DONE]] = window.image_in[slot]
    window.slot_of[window.image_in[slot]] = _RANKED
    totals[_DONE] += 1
    totals[_IN_WINDOW] -= count_in[slot]
    count_in[slot] = 0
    most_in[best] = count_in[best * window.block_size : (best + 1) * window.block_size].max()


@compiled
def rank_the_rest(window: Window) -> None:
    """Rank what is still in the window when the last entry is in."""
    while window.totals[_DONE] < window.order.shape[0]:
        rank_most_frequent(window)
