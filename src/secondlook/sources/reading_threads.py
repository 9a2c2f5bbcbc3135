"""Threads that read images, and the memory that they share."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Self, TypeVar

T = TypeVar("T")

IMAGES_PER_TASK = 8
TASKS_PER_THREAD = 8


class ReadingThreads:
    """A number of threads, to be used in a `with` statement; a single one is the calling thread itself."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)  # after an error, nobody waits for what is not yet read

    def map(self, function: Callable[[int], T], positions: Sequence[int]) -> Iterator[T]:
        """Return the results of a function in the order of the positions."""
        if self._pool is None:
            return map(function, positions)
        # Small images decode faster than a thread picks up a task, so a task reads several images, unless there are too
        # few tasks to keep all threads busy to the end.
        size = max(1, min(IMAGES_PER_TASK, len(positions) // (TASKS_PER_THREAD * self._count)))
        tasks = [positions[first : first + size] for first in range(0, len(positions), size)]
        return chain.from_iterable(self._pool.map(lambda task: [function(index) for index in task], tasks))


class SharedMemory:
    """A number of bytes of which threads reserve parts."""

    def __init__(self, n_bytes: int, threads: int) -> None:
        self._size = self._free = n_bytes
        self._changed = threading.Condition()
        self.share = n_bytes // threads
        """What every thread can reserve at the same time."""

    @contextmanager
    def reserve(self, n_bytes: int) -> Iterator[None]:
        """Wait until a part is free, and hold it; a part above the size of the memory is all of it."""
        n_bytes = min(n_bytes, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= n_bytes)
            self._free -= n_bytes
        try:
            yield
        finally:
            with self._changed:
                self._free += n_bytes
                self._changed.notify_all()
