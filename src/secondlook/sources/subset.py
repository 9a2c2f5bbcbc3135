"""Some images of another source: by hash of their ids, or by indices from a file."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from secondlook.arrays import Array, BoolArray, IntArray
from secondlook.errors import SourceError
from secondlook.sources.source import OnError, Source


class Subset(Source):
    """Some images of another source, in the order of the given positions."""

    def __init__(self, whole: Source, positions: IntArray, spec: str, on_error: OnError) -> None:
        super().__init__(
            spec,
            [whole.ids[position] for position in positions],
            labels=None if whole.labels is None else whole.labels[positions],
            class_names=whole.class_names,
            on_error=on_error,
        )
        self.whole = whole
        self.threads = whole.threads
        self.positions = positions

    def read(self, index: int) -> Array:
        """Read one image of the whole. -> uint8 [H, W, 1 or 3]"""
        return self.whole.read(int(self.positions[index]))

    def content(self, index: int) -> bytes:
        """Return the digest of one image's content in the whole."""
        return self.whole.content(int(self.positions[index]))


def experimental_positions(ids: Sequence[str], count: int, seed: int) -> BoolArray:
    """Mark the `count` images whose sha256 of 'seed:id' is smallest. -> bool [N]

    An image's rank depends on its id alone, so the order of the images does not matter, and an image more or less moves
    at most one other across the border.
    """
    keys = [hashlib.sha256(f"{seed}:{id_}".encode()).digest() for id_ in ids]
    ranked = sorted(range(len(ids)), key=keys.__getitem__)
    chosen = np.zeros(len(ids), dtype=np.bool_)
    chosen[ranked[:count]] = True
    return chosen


def read_indices(path: Path, total: int) -> IntArray:
    """Read indices from a .npy file, or from a text of whole numbers between white space. -> int64 [n]"""
    try:
        indices = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _read_numbers(path)
    except (OSError, ValueError, OverflowError) as error:
        raise SourceError(f"indices file {str(path)!r} cannot be read: {error}; whole numbers are needed.") from error
    if indices.ndim != 1 or not indices.size or not np.issubdtype(indices.dtype, np.integer):
        raise SourceError(
            f"indices file {str(path)!r} holds {indices.dtype} {list(indices.shape)}; whole numbers [n] were expected."
        )
    _check_indices(indices, path, total)
    return indices.astype(np.int64)


def _read_numbers(path: Path) -> IntArray:
    return np.array([int(number) for number in path.read_text(encoding="utf-8").split()], dtype=np.int64)


def _check_indices(indices: IntArray, path: Path, total: int) -> None:
    outside = np.flatnonzero((indices < 0) | (indices >= total))
    if outside.size:
        place = int(outside[0])
        raise SourceError(f"index {indices[place]} (number {place} in {str(path)!r}) is not from 0 to {total - 1}.")
    values, times = np.unique(indices, return_counts=True)
    if times.max() > 1:
        raise SourceError(f"index {values[times.argmax()]} stands {times.max()} times in {str(path)!r}; keep one.")
