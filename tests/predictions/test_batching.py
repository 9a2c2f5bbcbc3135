"""Batch, chunk and block sizes, and what happens when memory runs out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError
from secondlook.predictions import Inference, batching
from secondlook.predictions.batching import (
    Chunking,
    block_rows,
    choose_batch_size,
    chunk_rows,
    is_out_of_memory,
)


def make_image(side: int) -> Array:
    return np.zeros((side, side, 3), dtype=np.uint8)


def test_automatic_batch_size_depends_on_the_image_size() -> None:
    assert [choose_batch_size("auto", make_image(side)) for side in (1, 32, 224, 384, 5000)] == [256, 256, 64, 16, 8]


def test_chunks_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CHUNK_BYTES", 64 * 2**20)
    assert [chunk_rows(make_image(side)) for side in (1, 32, 224, 384, 5000)] == [1024, 1024, 256, 128, 1]
    assert chunk_rows(make_image(224).astype(np.float32)) == 64
    assert [chunk_rows(make_image(side), 4096) for side in (32, 64, 224)] == [4096, 4096, 256]


def test_blocks_are_bounded_powers_of_two() -> None:
    assert block_rows(24, 1000) == 128
    assert block_rows(10**6, 10**6) == 1
    assert block_rows(10**6, 10**6, rows_per_read=16) == 16


@pytest.mark.parametrize(("images", "rows"), [(1, 16), (16, 16), (17, 16), (50, 16)])
def test_chunks_cover_all_images_once(images: int, rows: int) -> None:
    chunking = Chunking(images, rows)
    assert [index for number in chunking.numbers for index in chunking.indices_of(number)] == list(range(images))
    assert all(0 < len(chunking.indices_of(number)) <= rows for number in chunking.numbers)


def test_cause_of_an_error_is_checked() -> None:
    wrapped = ClassifierError("the classifier failed")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ClassifierError("the classifier failed"))


def test_failed_allocation_in_onnxruntime_is_recognized() -> None:
    error = ClassifierError("classifier 'm' failed on an input")
    error.__cause__ = RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ClassifierError("classifier 'm' has no memory of that"))


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 64))
def test_groups_of_views_fill_a_batch(views: int, images: int, batch_size: int) -> None:
    groups = Inference.create(load_classifier(lambda batch: batch), batch_size).group_views(views, images)
    assert [view for group in groups for view in group] == list(range(views))
    assert all(len(group) == 1 or len(group) * images <= batch_size for group in groups)
    assert all((len(group) + 1) * max(1, images) > batch_size for group in groups[:-1]), "one more would not fit"
