"""Interrupted collecting: at most one chunk of each view is lost, and the finished store has the same bytes."""

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
from secondlook.predictions import collect
from tests.predictions.conftest import CountingFunction as Counting

VIEWS = "identity hflip"
BATCH = 4
"""Chunks have 16 images, so each is four batches."""


class Interrupted:
    """A classifier that is interrupted at one of its batches."""

    def __init__(self, counting: Counting, at: int) -> None:
        self.counting, self.at, self.calls = counting, at, 0

    def __call__(self, batch: Array) -> Array:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return self.counting(batch)

    def load(self) -> Classifier:
        return load_classifier(self, name="counting", output="logits")


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.parametrize("at", [*range(1, 12), 25])
def test_interrupted_collecting_loses_at_most_one_chunk(
    counting: Counting, images: Array, tmp_path: Path, at: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(Interrupted(counting, at).load(), images, VIEWS, store=tmp_path / "interrupted", batch_size=BATCH)
    done, counting.images = counting.images, 0
    resumed = collect(counting.load(), images, VIEWS, store=tmp_path / "interrupted", batch_size=BATCH)
    assert 0 <= done + counting.images - 2 * len(images) < 16
    whole = collect(counting.load(), images, VIEWS, store=tmp_path / "whole", batch_size=BATCH)
    np.testing.assert_array_equal(resumed.logits, whole.logits)
    assert read_files(tmp_path / "interrupted") == read_files(tmp_path / "whole")


@pytest.mark.parametrize("fails", ["open", "write"])
def test_full_disk_while_saving_names_the_path(
    counting: Counting, images: Array, store: Path, monkeypatch: pytest.MonkeyPatch, fails: str
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
        if mode != "xb" or "part-000001" not in path.name:
            return opened(path, mode, **options)
        if fails == "open":
            raise OSError(errno.ENOSPC, "No space left on device")
        return FullDisk(opened(path, mode, **options))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "open", open_or_fail)
        with pytest.raises(PredictionsError, match=rf"{re.escape(str(store))}.*No space left"):
            collect(counting.load(), images, VIEWS, store=store, batch_size=BATCH)
    assert collect(counting.load(), images, VIEWS, store=store).n_images == 50
