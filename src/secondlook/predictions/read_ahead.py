"""`read_ahead`: compute items in a thread while earlier ones are used."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

_POLL_SECONDS = 0.1
Item = TypeVar("Item")


class _End:
    """Marks the end of the items, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(make_items: Callable[[], Iterable[Item]], depth: int) -> Generator[Item, None, None]:
    """Yield the items of `make_items()`, computed in a thread that is at most `depth` items ahead.

    Errors in the thread are raised here. Closing the generator stops the thread.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_produce, args=(make_items, ready, stopped), daemon=True, name="secondlook-read-ahead"
    )
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        thread.join()


def _produce(
    make_items: Callable[[], Iterable[Item]], ready: "queue.Queue[Item | _End]", stopped: threading.Event
) -> None:
    error: BaseException | None = None
    try:
        items = make_items()
        try:
            for item in items:
                if not _put(item, ready, stopped):
                    break
        finally:
            if isinstance(items, Generator):
                items.close()
    except BaseException as caught:  # noqa: BLE001 - raised in the consuming thread
        error = caught
    _put(_End(error), ready, stopped)


def _put(item: Item | _End, ready: "queue.Queue[Item | _End]", stopped: threading.Event) -> bool:
    """Wait until the queue has room; return False if the consumer stopped."""
    while not stopped.is_set():
        try:
            ready.put(item, timeout=_POLL_SECONDS)
        except queue.Full:
            continue
        return True
    return False
