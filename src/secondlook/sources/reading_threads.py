"""Threads that read images, with a shared memory budget and a shared cache."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, Self, TypeVar

T = TypeVar("T")

IMAGES_PER_TASK, TASKS_PER_THREAD, IMAGES_PER_BLOCK = 8, 8, 4096


class ReadingThreads:
    """A thread pool for a `with` statement; with a count of 1, the calling thread does the work."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)  # after an error, do not wait for pending reads

    def map(self, function: Callable[[int], T], positions: Sequence[int]) -> Iterator[T]:
        """Yield the results of a function in the order of the positions, reading one block ahead."""
        if self._pool is None:
            yield from map(function, positions)
            return
        for start in range(0, len(positions), IMAGES_PER_BLOCK):
            block = positions[start : start + IMAGES_PER_BLOCK]
            # Small images decode faster than a thread picks up a task. So a task reads several images, unless that
            # leaves too few tasks for all threads.
            size = max(1, min(IMAGES_PER_TASK, len(block) // (TASKS_PER_THREAD * self._count)))
            tasks = [block[first : first + size] for first in range(0, len(block), size)]
            yield from chain.from_iterable(self._pool.map(lambda task: [function(index) for index in task], tasks))


class SharedMemory:
    """A memory budget shared by threads."""

    def __init__(self, n_bytes: int, threads: int) -> None:
        self._size = self._free = n_bytes
        self._changed = threading.Condition()
        self.share = n_bytes // threads
        """The number of bytes that all threads can reserve at the same time."""

    @contextmanager
    def reserve(self, n_bytes: int) -> Iterator[None]:
        """Wait for `n_bytes`, at most the whole budget, and hold them."""
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


class SharedCache:
    """LRU cache of at least `min_items`, and of more up to a total weight (by default, their number).

    One thread reads an item while the others wait for it. A pickled copy is empty.
    """

    def __init__(self, max_weight: int, weigh: Callable[[Any], int] | None = None, min_items: int = 1) -> None:
        self._settings = max_weight, weigh, min_items
        self._items: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._weights: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["SharedCache"], tuple[Any, ...]]:
        return SharedCache, self._settings

    def get(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """Return the item of a key; `read` it if it is missing."""
        with self._lock:
            is_missing = key not in self._items
            item = self._items.setdefault(key, Future())
            self._items.move_to_end(key)
        if is_missing:
            try:
                item.set_result(read())
            except BaseException as error:  # noqa: BLE001  # raised below, here and in all threads that wait
                item.set_exception(error)
            self._make_room(key, item)
        return item.result()

    def _make_room(self, key: Hashable, item: "Future[Any]") -> None:
        max_weight, weigh, min_items = self._settings
        with self._lock:
            if item.exception() is not None:
                self._items.pop(key, None)
            elif key in self._items:  # otherwise it was removed during the read
                self._weights[key] = 1 if weigh is None else weigh(item.result())
            while sum(self._weights.values()) > max_weight and len(self._items) > min_items:
                self._weights.pop(self._items.popitem(last=False)[0], None)
