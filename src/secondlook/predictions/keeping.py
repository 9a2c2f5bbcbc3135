"""Where answers are kept while they are collected: in memory, or in the parts of a run on disk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from secondlook.arrays import Float32Array, IntArray
from secondlook.errors import PredictionsError
from secondlook.predictions.part import Chunk
from secondlook.predictions.store import StoreEntry

WRITES_WAITING = 2


class Keeper(Protocol):
    """Takes the answers part by part and view by view."""

    def lacks(self, view: int, number: int) -> bool:
        """Whether the part of that view, given by its place, is still to be computed."""

    def keep(self, view: int, number: int, part: Chunk) -> None:
        """Keep a part."""


class InMemory:
    """Answers kept in one array [N, V, C], made when the number of classes is known."""

    def __init__(self, images: int, views: int) -> None:
        self._images = images
        self._views = views
        self._answers: Float32Array | None = None
        self._read = np.zeros(images, dtype=np.bool_)

    def lacks(self, view: int, number: int) -> bool:
        """Return True: every part is asked for once."""
        return True

    def keep(self, view: int, number: int, part: Chunk) -> None:
        """Put the answers in their place."""
        if len(part.indices) == 0:
            return
        if self._answers is None:
            self._answers = np.empty((self._images, self._views, part.answers.shape[1]), dtype=np.float32)
        self._answers[part.indices, view] = part.answers
        self._read[part.indices] = True

    def finished(self) -> tuple[IntArray, Float32Array]:
        """Return the indices int64 [N] of the images that could be read, and their answers [N, V, C]."""
        if self._answers is None:
            raise PredictionsError(
                f"none of the {self._images} images could be read; see the source's list of skipped ones."
            )
        indices = np.flatnonzero(self._read)
        return indices, self._answers if len(indices) == self._images else self._answers[indices]


class OnDisk:
    """Answers kept in the parts of a run, written by a thread of its own while the classifier goes on."""

    def __init__(self, run: StoreEntry, views: tuple[str, ...]) -> None:
        self._run = run
        self._views = views
        self._writing: list[Future[None]] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="secondlook-write")

    def lacks(self, view: int, number: int) -> bool:
        """Whether the part is not there; another process may write it meanwhile."""
        return not self._run.has(self._views[view], number)

    def keep(self, view: int, number: int, part: Chunk) -> None:
        """Have a part written; waits where the disk is behind, so that memory stays bounded."""
        self._wait_until_at_most(WRITES_WAITING - 1)
        self._writing.append(self._writer.submit(self._run.keep, self._views[view], number, part))

    def _wait_until_at_most(self, waiting: int) -> None:
        while len(self._writing) > waiting:
            self._writing.pop(0).result()

    @contextmanager
    def writing(self) -> Iterator[OnDisk]:
        """Write in the background; at the end everything is on disk, or the error of a write is raised."""
        try:
            yield self
            self._wait_until_at_most(0)
        finally:
            self._writer.shutdown(cancel_futures=True)
