"""Batch, chunk and block sizes, and what happens when memory runs out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import ClassifierError, PredictionsError
from secondlook.predictions import batching
from secondlook.predictions.batching import (
    Chunking,
    HalvingBatches,
    block_rows,
    choose_batch_size,
    chunk_rows,
    classify_views,
    group_views,
    is_out_of_memory,
)
from secondlook.views import ViewSet, apply_views


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


class OutOfMemoryError(RuntimeError):
    """Has the name of the error of PyTorch."""


ERRORS = [
    MemoryError(),
    OutOfMemoryError("CUDA out of memory"),
    RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 1"
    ),
    RuntimeError("BFCArena::AllocateRawInternal Available memory of 1 is smaller than requested bytes of 2"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[:40])
def test_batch_size_is_halved_for_good_when_memory_runs_out(error: Exception) -> None:
    sizes: list[int] = []

    def classify(batch: Array) -> Array:
        sizes.append(len(batch))
        if len(batch) > 3:
            raise error
        return batch.reshape(len(batch), -1)[:, :1].astype(np.float32)

    images = np.arange(13, dtype=np.uint8).reshape(13, 1, 1, 1)
    classifier = HalvingBatches(classify, 13)
    assert classifier(images)[:, 0].tolist() == list(range(13))
    assert sizes == [13, 6, 3, 3, 3, 3, 1]
    assert classifier(images[:4])[:, 0].tolist() == [0, 1, 2, 3]
    assert sizes[7:] == [3, 1]


def test_single_image_that_does_not_fit_in_memory_is_an_error() -> None:
    def classify(batch: Array) -> Array:
        raise MemoryError

    with pytest.raises(PredictionsError, match=r"single image .*MemoryError"):
        HalvingBatches(classify, 4)(np.zeros((4, 1, 1, 1), dtype=np.uint8))


def test_cause_of_an_error_is_checked_and_other_errors_are_not_retried() -> None:
    wrapped = ClassifierError("the classifier failed")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ClassifierError("the classifier failed"))
    calls: list[int] = []

    def classify(batch: Array) -> Array:
        calls.append(len(batch))
        raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        HalvingBatches(classify, 4)(np.zeros((4, 1, 1, 1), dtype=np.uint8))
    assert calls == [4]


def test_failed_allocation_in_onnxruntime_is_recognized() -> None:
    error = ClassifierError("classifier 'm' failed on an input")
    error.__cause__ = RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ClassifierError("classifier 'm' has no memory of that"))


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 64))
def test_groups_of_views_fill_a_batch(views: int, images: int, batch_size: int) -> None:
    groups = group_views(views, images, batch_size)
    assert [view for group in groups for view in group] == list(range(views))
    assert all(len(group) == 1 or len(group) * images <= batch_size for group in groups)
    assert all((len(group) + 1) * max(1, images) > batch_size for group in groups[:-1]), "one more would not fit"


@pytest.mark.parametrize(
    ("images", "batch_size", "sizes"),
    [(1, 256, [4]), (1, 4, [4]), (1, 3, [3, 1]), (3, 256, [12]), (3, 8, [6, 6]), (5, 4, [4, 1] * 4)],
)
def test_views_of_few_images_share_batches(images: int, batch_size: int, sizes: list[int]) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (images, 5, 4, 3), dtype=np.uint8)
    views = ViewSet("identity hflip shift:1,0 rotate:10")
    calls = []

    def classify(batch: Array) -> Array:
        calls.append(len(batch))
        return batch.reshape(len(batch), -1).astype(np.float32)

    outputs = classify_views(HalvingBatches(classify, batch_size), pixels, views.views)
    assert calls == sizes
    np.testing.assert_array_equal(outputs, apply_views(pixels, views).reshape(images, 4, -1))
