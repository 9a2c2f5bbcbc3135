"""Interrupted collecting: at most one chunk of each view is lost, and the finished store has the same bytes."""

from pathlib import Path

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.predictions import Execution, collect
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
        collect(
            Interrupted(counting, at).load(),
            images,
            VIEWS,
            store=tmp_path / "interrupted",
            execution=Execution(batch_size=BATCH),
        )
    done, counting.images = counting.images, 0
    resumed = collect(
        counting.load(), images, VIEWS, store=tmp_path / "interrupted", execution=Execution(batch_size=BATCH)
    )
    assert 0 <= done + counting.images - 2 * len(images) < 16
    whole = collect(counting.load(), images, VIEWS, store=tmp_path / "whole", execution=Execution(batch_size=BATCH))
    np.testing.assert_array_equal(resumed.logits, whole.logits)
    assert read_files(tmp_path / "interrupted") == read_files(tmp_path / "whole")
