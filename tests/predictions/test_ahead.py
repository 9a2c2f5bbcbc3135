"""Working ahead in a thread: same items, same errors, nothing left running."""

import threading
import time
from collections.abc import Iterator

import pytest

from secondlook.predictions.ahead import ahead


def threads_ahead() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "secondlook-ahead"]


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_the_items_come_in_order(depth: int) -> None:
    assert list(ahead(lambda: range(50), depth)) == list(range(50))
    assert threads_ahead() == []


def test_an_error_is_raised_where_the_items_are_used() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("on purpose")

    items = ahead(failing, 2)
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        next(items)
    assert threads_ahead() == []


def test_an_error_before_the_first_item() -> None:
    def refusing() -> Iterator[int]:
        raise ZeroDivisionError("at once")

    with pytest.raises(ZeroDivisionError, match="at once"):
        list(ahead(refusing, 1))


def test_it_is_never_more_than_its_depth_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            made.append(item)
            yield item

    used = ahead(items, 2)
    next(used)
    time.sleep(0.2)
    assert len(made) == 4, "one is used, two wait, one waits for room"
    used.close()


def test_closing_ends_the_thread_and_the_iterator() -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.set()

    items = ahead(endless, 1)
    next(items)
    items.close()
    assert closed.is_set()
    assert threads_ahead() == []
