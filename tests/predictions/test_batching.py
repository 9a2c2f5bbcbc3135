"""Batch, chunk and block sizes, what happens when memory runs out, and reading ahead in a thread."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError
from secondlook.predictions import Inference, batching, read_ahead
from secondlook.predictions.batching import Chunking, block_rows, choose_batch_size, chunk_rows, is_out_of_memory
from tests.predictions.conftest import reading_threads


def make_image(side: int) -> Array:
    return np.zeros((side, side, 3), dtype=np.uint8)


def test_batches_chunks_and_blocks_depend_on_the_size_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [choose_batch_size("auto", make_image(side)) for side in (1, 32, 224, 384, 5000)] == [256, 256, 64, 16, 8]
    monkeypatch.setattr(batching, "CHUNK_BYTES", 64 * 2**20)
    assert [chunk_rows(make_image(side)) for side in (1, 32, 224, 384, 5000)] == [1024, 1024, 256, 128, 1]
    assert chunk_rows(make_image(224).astype(np.float32)) == 64
    assert [chunk_rows(make_image(side), 4096) for side in (32, 64, 224)] == [4096, 4096, 256]
    assert block_rows(24, 1000) == 128
    assert block_rows(10**6, 10**6) == 1
    assert block_rows(10**6, 10**6, rows_per_read=16) == 16


@given(st.integers(1, 200), st.integers(1, 64))
def test_chunks_cover_all_images_once(images: int, rows: int) -> None:
    chunking = Chunking(images, rows)
    assert [index for number in chunking.numbers for index in chunking.indices_of(number)] == list(range(images))
    assert all(0 < len(chunking.indices_of(number)) <= rows for number in chunking.numbers)


def test_cause_of_an_error_is_checked() -> None:
    error = ClassifierError("classifier 'm' has no memory of that")
    assert not is_out_of_memory(error)
    for cause in (MemoryError(), RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")):
        error.__cause__ = cause
        assert is_out_of_memory(error)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 64))
def test_groups_of_views_fill_a_batch(views: int, images: int, batch_size: int) -> None:
    groups = Inference.create(load_classifier(lambda batch: batch), batch_size).group_views(views, images)
    assert [view for group in groups for view in group] == list(range(views))
    assert all(len(group) == 1 or len(group) * images <= batch_size for group in groups)
    assert all((len(group) + 1) * max(1, images) > batch_size for group in groups[:-1]), "one more would not fit"


@pytest.mark.parametrize(("depth", "count"), [(1, 50), (2, 0), (2, 1), (3, 50), (100, 50)])
def test_items_come_in_order_and_an_error_is_raised_in_the_consumer(depth: int, count: int) -> None:
    def fail() -> Iterator[int]:
        yield from range(count)
        raise ZeroDivisionError("on purpose")

    assert list(read_ahead(lambda: range(count), depth)) == list(range(count))
    items = read_ahead(fail, depth)
    assert [next(items) for _ in range(count)] == list(range(count))
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        next(items)
    assert reading_threads() == []


def test_thread_is_at_most_depth_items_ahead() -> None:
    made: list[int] = []
    ahead: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            made.append(item)
            ahead.append(len(made) - requested)
            yield item

    used, deadline = read_ahead(items, 2), time.monotonic() + 300
    for requested in range(1, 11):
        next(used)
        while len(made) < requested + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    used.close()
    assert max(ahead) == 2


def test_closing_stops_the_thread_and_closes_the_items() -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.set()

    items = read_ahead(endless, 1)
    next(items)
    items.close()
    assert closed.is_set()
    assert reading_threads() == []
