"""Ctrl-C in a scoring job: at most one chunk of work is lost, and the files are the same however it was cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.policies import Policy
from secondlook.predictions import Execution
from tests.policy_maker import score

BATCH = 8
VIEWS = 3


class Interrupted:
    """A classifier that is interrupted at one of its batches."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.calls, self.images = function, 0, 0
        self.at: int | None = None

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        self.images += len(batch)
        return self.function(batch)


@pytest.fixture
def slow(brightness: Callable[[Any], Any]) -> Interrupted:
    """A classifier whose 30 images are in four chunks: three views of a chunk are three batches."""
    return Interrupted(brightness)


@pytest.fixture
def run(review_policy: Policy, slow: Interrupted, images: Array, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that scores the images, interrupted at a call, and returns the file."""
    classifier = load_classifier(slow, name="brightness")

    def run_job(name: str = "scores.parquet", *, at: int | None = None) -> Path:
        slow.calls, slow.at = 0, at
        out = tmp_path / name
        score(
            review_policy,
            images,
            out,
            classifier=classifier,
            execution=Execution(batch_size=BATCH, part_size=BATCH, progress=False),
        )
        return out

    return run_job


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13])
def test_interrupted_job_loses_at_most_one_chunk(
    run: Callable[..., Path], slow: Interrupted, images: Array, tmp_path: Path, at: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(at=at)
    assert not (tmp_path / "scores.parquet").exists()
    resumed = run()
    lost = slow.images - len(images) * VIEWS - 2  # one image is classified at the start of each job
    assert 0 <= lost < VIEWS * BATCH
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.parquet"]
    assert resumed.read_bytes() == run("whole.parquet").read_bytes()


def test_job_interrupted_again_and_again_makes_progress(run: Callable[..., Path]) -> None:
    """Every attempt is interrupted after one chunk."""
    attempts = 0
    while attempts < 10:
        attempts += 1
        try:
            resumed = run(at=6)  # one image at the start, and one chunk
            break
        except KeyboardInterrupt:
            continue
    assert attempts == 4, "one chunk of four is kept each time"
    assert resumed.read_bytes() == run("whole.parquet").read_bytes()


def test_job_interrupted_before_anything_is_saved_leaves_nothing(run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(at=3)
    assert list(tmp_path.iterdir()) == []
