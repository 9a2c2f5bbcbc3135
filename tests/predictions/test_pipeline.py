"""Reading ahead in a thread, and what the pipeline decodes and checks."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import load_classifier
from secondlook.errors import PredictionsError
from secondlook.predictions import Execution, batching, collect, read_ahead, validation
from secondlook.sources import ArraySource, open_source


def running_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("secondlook-read-ahead")]


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_are_yielded_in_order(depth: int) -> None:
    assert list(read_ahead(lambda: range(50), depth)) == list(range(50))
    assert running_threads() == []


def test_error_is_raised_in_the_consumer() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("on purpose")

    items = read_ahead(failing, 2)
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        next(items)
    assert running_threads() == []


def test_error_before_the_first_item_is_raised() -> None:
    def failing() -> Iterator[int]:
        raise ZeroDivisionError("at once")

    with pytest.raises(ZeroDivisionError, match="at once"):
        list(read_ahead(failing, 1))


def test_thread_is_at_most_depth_items_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            made.append(item)
            yield item

    used = read_ahead(items, 2)
    next(used)
    time.sleep(0.2)
    assert len(made) == 3, "one consumed, two ahead"
    used.close()


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
    assert running_threads() == []


def test_batches_do_not_cross_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CHUNK_BYTES", 16 * 8 * 8 * 3)
    sizes: list[int] = []

    def classify(batch: Array) -> Array:
        sizes.append(len(batch))
        return np.full((len(batch), 2), 0.5)

    images = np.zeros((70, 40, 40, 3), dtype=np.uint8)
    collect(load_classifier(classify, resize=(8, 8)), images, "identity", execution=Execution(batch_size=32))
    assert sizes == [16, 16, 16, 16, 6]


def test_few_large_images_are_decoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that decode to 12 MB each: without a limit, 16 of them were held together."""
    for number in range(18):
        Image.new("1", (2000, 2000)).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "18.png").write_bytes((tmp_path / "00.png").read_bytes()[:100])
    Image.new("1", (4200, 2000)).save(tmp_path / "19.png")
    classifier = load_classifier(lambda batch: np.full((len(batch), 2), 0.5), resize=(8, 8))
    source = open_source(f"folder:{tmp_path}", max_bytes=25_000_000, on_error="skip")
    monkeypatch.setattr("secondlook.sources.image_files.STRIP_PIXELS", 2**16)
    collect(classifier, open_source(f"folder:{tmp_path}", limit=1), "identity")  # loads libraries
    tracemalloc.start()
    predictions = collect(classifier, source, "identity")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(predictions.ids) == 18
    skipped = dict(predictions.skipped)
    assert list(skipped) == ["18.png", "19.png"]
    assert "above the limit of 25000000" in skipped["19.png"]
    assert peak < 30_000_000


def test_labels_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(validation, "as_labels", lambda labels, images, classes: checked.append(images))
    collect(
        lambda batch: np.full((len(batch), 2), 0.5),
        np.zeros((50, 4, 4, 3), np.uint8),
        "identity hflip",
        labels=np.zeros(50, int),
        execution=Execution(batch_size=7),
    )
    assert checked == [50]


def write_pictures(folder: Path, sides: list[int]) -> str:
    for number, side in enumerate(sides):
        Image.new("RGB", (side, side)).save(folder / f"{number:02d}.png")
    return f"folder:{folder}"


@pytest.mark.parametrize("place", [1, 18])
def test_images_of_mixed_sizes_are_rejected_by_name(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image 18 is in another group of decoded images than image 0, but in the same chunk."""
    monkeypatch.setattr(batching, "CHUNK_BYTES", 32 * 4 * 4 * 3)
    sides = [4] * 20
    sides[place] = 5
    model = load_classifier(lambda batch: np.full((len(batch), 2), 0.5))
    with pytest.raises(PredictionsError, match=rf"'{place:02d}.png' .*5 x 5 x 3.*'00.png' has 4 x 4 x 3.*resize="):
        collect(model, write_pictures(tmp_path, sides), "identity")


def test_huge_images_are_held_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk used to hold at least 16 inputs, whatever their size."""
    monkeypatch.setattr(batching, "CHUNK_BYTES", 1_500_000)
    images = np.zeros((40, 600, 600, 3), dtype=np.uint8)  # 1.08 MB each
    model = load_classifier(lambda batch: np.full((len(batch), 2), 0.5))
    collect(model, images[:1], "identity", execution=Execution(progress=False))
    tracemalloc.start()
    preds = collect(model, images, "identity", execution=Execution(progress=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert preds.n_images == 40
    assert peak < 20_000_000, "a few images in each stage, not all of them"


def test_store_of_other_chunks_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry keeps the division into chunks that it was created with."""
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)
    sizes: list[int] = []

    def classify(batch: Array) -> Array:
        sizes.append(len(batch))
        return np.stack([batch.mean(axis=(1, 2, 3)) / 255, 1 - batch.mean(axis=(1, 2, 3)) / 255], axis=1)

    model = load_classifier(classify, name="brightness")
    monkeypatch.setattr(batching, "CHUNK_BYTES", 16 * 4 * 4 * 3)
    collect(model, images, "identity", store=tmp_path)
    monkeypatch.setattr(batching, "CHUNK_BYTES", 4 * 4 * 4 * 3)
    for chunk in sorted(tmp_path.glob("*/*/part-000001-*.parquet")):
        chunk.unlink()
    resumed = collect(model, images, "identity hflip", store=tmp_path)
    assert sum(sizes) == 20 + 4 + 20
    np.testing.assert_array_equal(resumed.probabilities, collect(model, images, "identity hflip").probabilities)


def test_only_needed_chunks_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorded(ArraySource):
        def read_block(self, positions: range | IntArray) -> Any:
            read.append(positions)
            return super().read_block(positions)

    read: list[range | IntArray] = []
    monkeypatch.setattr(batching, "CHUNK_BYTES", 4 * 4 * 4 * 3)
    source = Recorded(np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8))
    model = load_classifier(lambda batch: np.full((len(batch), 2), 0.5), name="constant")
    collect(model, source, "identity", store=tmp_path)
    for chunk in tmp_path.glob("*/*/part-000001-*.parquet"):
        chunk.unlink()
    read.clear()
    collect(model, source, "identity", store=tmp_path)
    assert {index for indices in read for index in indices if len(indices) > 1} == {4, 5, 6, 7}
    assert running_threads() == []
