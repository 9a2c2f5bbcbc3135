"""Working ahead: an iterator that runs in a thread of its own while its items are used."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
_CHECK_SECONDS = 0.1


class _End:
    """The end of the items, with the error that ended them if there was one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Callable[[], Iterable[Item]], depth: int) -> Generator[Item, None, None]:
    """Yield what `items()` yields, computed in a thread that is at most `depth` items ahead.

    An error in the thread is raised here. Closing the generator ends the thread before it returns.
    """
    waiting: queue.Queue[Item | _End] = queue.Queue(depth)
    stopping = threading.Event()
    thread = threading.Thread(target=_produce, args=(items, waiting, stopping), daemon=True, name="secondlook-ahead")
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopping.set()
        thread.join()


def _produce(
    items: Callable[[], Iterable[Item]], waiting: "queue.Queue[Item | _End]", stopping: threading.Event
) -> None:
    error: BaseException | None = None
    try:
        with _closed_at_the_end(items()) as produced:
            for item in produced:
                if not _put(item, waiting, stopping):
                    break
    except BaseException as caught:  # noqa: BLE001 - it is raised where the items are used
        error = caught
    _put(_End(error), waiting, stopping)


@contextmanager
def _closed_at_the_end(items: Iterable[Item]) -> Iterator[Iterable[Item]]:
    try:
        yield items
    finally:
        if isinstance(items, Generator):
            items.close()


def _put(item: Item | _End, waiting: "queue.Queue[Item | _End]", stopping: threading.Event) -> bool:
    """Wait for room; give up when nobody uses the items any more."""
    while not stopping.is_set():
        try:
            waiting.put(item, timeout=_CHECK_SECONDS)
        except queue.Full:
            continue
        return True
    return False
