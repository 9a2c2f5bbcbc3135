"""Interrupted collecting: incomplete chunks are saved every 30 seconds, and the finished store has the same bytes."""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import PredictionsError
from secondlook.predictions import DamagedChunkWarning, Execution, chunks, collect, collection
from secondlook.predictions.chunks import SaveTimer
from tests.predictions.conftest import CountingFunction as Counting

VIEWS = "identity hflip"
BATCH = 4
"""Chunks have 16 images, so each is four batches."""


class Clock:
    """A clock that others move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Interrupted:
    """A classifier that takes ten seconds for a batch, and is interrupted at one of them."""

    def __init__(self, counting: Counting, clock: Clock, at: int | None = None) -> None:
        self.counting, self.clock, self.at, self.calls = counting, clock, at, 0

    def __call__(self, batch: Array) -> Array:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        self.clock.now += 10
        return self.counting(batch)

    def load(self) -> Classifier:
        return load_classifier(self, name="counting", output="logits")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(collection, "SaveTimer", lambda: SaveTimer(clock))
    return clock


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.parametrize(("seconds_per_batch", "batches"), [(1, 30), (9, 3), (10, 3), (16, 1), (100, 1)])
def test_work_is_saved_before_it_exceeds_30_seconds(seconds_per_batch: int, batches: int) -> None:
    clock = Clock()
    timer = SaveTimer(clock)
    for _ in range(3):
        for batch in range(1, batches + 1):
            clock.now += seconds_per_batch
            assert timer.is_due() == (batch == batches)
        timer.restart()


@pytest.mark.parametrize("at", [*range(1, 12), 25])
def test_interrupted_collecting_loses_at_most_30_seconds(
    counting: Counting, images: Array, tmp_path: Path, clock: Clock, at: int
) -> None:
    interrupted = Interrupted(counting, clock, at)
    with pytest.raises(KeyboardInterrupt):
        collect(
            interrupted.load(), images, VIEWS, store=tmp_path / "interrupted", execution=Execution(batch_size=BATCH)
        )
    done, counting.images = counting.images, 0
    resumed = collect(
        Interrupted(counting, clock).load(),
        images,
        VIEWS,
        store=tmp_path / "interrupted",
        execution=Execution(batch_size=4),
    )
    lost = done + counting.images - 2 * len(images)
    assert 0 <= lost <= 2 * BATCH, "two batches of ten seconds; three would be 30 seconds"
    whole = collect(counting.load(), images, VIEWS, store=tmp_path / "whole", execution=Execution(batch_size=BATCH))
    np.testing.assert_array_equal(resumed.logits, whole.logits)
    assert read_files(tmp_path / "interrupted") == read_files(tmp_path / "whole")


def interrupt(counting: Counting, images: Array, store: Path, clock: Clock) -> Path:
    """Collect until a part of the first chunk is saved; return its file."""
    with pytest.raises(KeyboardInterrupt):
        collect(
            Interrupted(counting, clock, at=4).load(), images, VIEWS, store=store, execution=Execution(batch_size=BATCH)
        )
    (saved,) = store.rglob("partial-000000.parquet")
    counting.images = 0
    return saved


def test_saved_part_is_used_with_another_batch_size(
    counting: Counting, images: Array, store: Path, clock: Clock
) -> None:
    interrupt(counting, images, store, clock)
    preds = collect(counting.load(), images, VIEWS, store=store, execution=Execution(batch_size=5))
    assert counting.images == 2 * len(images) - 10, "two of its batches are within the 12 images that were saved"
    np.testing.assert_array_equal(preds.logits, collect(counting.load(), images, VIEWS).logits)


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_damaged_part_is_recomputed(counting: Counting, images: Array, store: Path, clock: Clock, damage: str) -> None:
    saved = interrupt(counting, images, store, clock)
    content = bytearray(saved.read_bytes())
    content[content.index(counting(images[:1]).astype(np.float32).tobytes())] ^= 1
    counting.images = 0
    saved.write_bytes(content[:-20] if damage == "cut" else content)
    with pytest.warns(DamagedChunkWarning, match=re.escape(str(saved))):
        preds = collect(counting.load(), images, VIEWS, store=store)
    assert counting.images == 2 * len(images)
    np.testing.assert_array_equal(preds.logits, collect(counting.load(), images, VIEWS).logits)


def test_part_of_another_view_is_not_used(counting: Counting, images: Array, store: Path, clock: Clock) -> None:
    saved = interrupt(counting, images, store, clock)
    content = saved.read_bytes()
    preds = collect(counting.load(), images, VIEWS, store=store)
    (other,) = (path for path in store.rglob("part-000000.parquet") if path.parent != saved.parent)
    other.unlink()
    other.with_name(saved.name).write_bytes(content)
    with pytest.warns(DamagedChunkWarning, match="belongs to .* 'identity'"):
        again = collect(counting.load(), images, VIEWS, store=store)
    np.testing.assert_array_equal(again.logits, preds.logits)


def test_part_left_by_another_process_is_removed_when_all_chunks_are_complete(
    counting: Counting, images: Array, store: Path, clock: Clock
) -> None:
    saved = interrupt(counting, images, store, clock)
    content = saved.read_bytes()
    collect(counting.load(), images, VIEWS, store=store)
    saved.write_bytes(content)
    collect(counting.load(), images, VIEWS, store=store)
    assert not saved.exists()


@pytest.mark.parametrize("fails", ["open", "write"])
def test_full_disk_while_saving_names_the_path(
    counting: Counting, images: Array, store: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    opened: Callable[..., Any] = Path.open

    class FullDisk:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, content: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> "FullDisk":
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

    def open_or_fail(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode != "xb" or "partial-" not in path.name:
            return opened(path, mode, **options)
        if fails == "open":
            raise OSError(errno.ENOSPC, "No space left on device")
        return FullDisk(opened(path, mode, **options))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "open", open_or_fail)
        with pytest.raises(PredictionsError, match=rf"{re.escape(str(store))}.*No space left"):
            collect(
                Interrupted(counting, clock).load(), images, VIEWS, store=store, execution=Execution(batch_size=BATCH)
            )
    assert chunks.SAVE_SECONDS == 30
    assert collect(counting.load(), images, VIEWS, store=store).n_images == 50
