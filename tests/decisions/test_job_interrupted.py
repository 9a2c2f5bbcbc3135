"""Ctrl-C in a scoring job: at most 30 seconds of work are lost, and the files are the same however it was cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.decisions import job, score
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from secondlook.predictions import DamagedChunkWarning, SaveTimer

BATCH = 8
VIEWS = 3


class Interrupted:
    """A classifier that takes ten seconds of a clock for a batch, and is interrupted at one of them."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.now, self.calls, self.images = function, 0.0, 0, 0
        self.at: int | None = None

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        self.now += 10
        self.images += len(batch)
        return self.function(batch)


@pytest.fixture
def slow(brightness: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """A slow classifier, and chunks of all 30 images: four batches for each of three views."""
    slow = Interrupted(brightness)
    monkeypatch.setattr(job, "SaveTimer", lambda: SaveTimer(lambda: slow.now))
    return slow


@pytest.fixture
def run(review_policy: Policy, slow: Interrupted, images: Array, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that scores the images, interrupted at a call, and returns the file."""
    classifier = load_classifier(slow, name="brightness")

    def run_job(name: str = "scores.parquet", *, at: int | None = None, batch_size: int = BATCH) -> Path:
        slow.calls, slow.at = 0, at
        out = tmp_path / name
        score(review_policy, images, out, classifier=classifier, batch_size=batch_size, progress=False)
        return out

    return run_job


@pytest.mark.parametrize("at", [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13])
def test_interrupted_job_loses_at_most_30_seconds(
    run: Callable[..., Path], slow: Interrupted, images: Array, tmp_path: Path, at: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(at=at)
    assert not (tmp_path / "scores.parquet").exists()
    resumed = run()
    lost = slow.images - len(images) * VIEWS - 2  # one image is classified at the start of each job
    assert 0 <= lost <= 3 * BATCH
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.parquet"]
    assert resumed.read_bytes() == run("whole.parquet").read_bytes()


def test_job_interrupted_again_and_again_makes_progress(run: Callable[..., Path], slow: Interrupted) -> None:
    """Every attempt is interrupted after 40 seconds of work, long before the only chunk is complete."""
    attempts = 0
    while attempts < 10:
        attempts += 1
        try:
            resumed = run(at=5)
            break
        except KeyboardInterrupt:
            continue
    assert attempts == 4, "three batches of twelve are kept each time"
    assert resumed.read_bytes() == run("whole.parquet").read_bytes()


def test_job_interrupted_before_anything_is_saved_leaves_nothing(run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(at=3)
    assert list(tmp_path.iterdir()) == []


def test_damaged_progress_is_recomputed(run: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(at=9)
    first, second = sorted((tmp_path / "scores.parquet.parts").glob("_partial-*"))
    content = first.read_bytes()
    first.write_bytes(content[: len(content) // 2])
    with pytest.warns(DamagedChunkWarning, match=first.name):
        resumed = run()
    assert not second.exists()
    assert resumed.read_bytes() == run("whole.parquet").read_bytes()


def test_progress_of_another_job_is_not_used(
    run: Callable[..., Path], review_policy: Policy, slow: Interrupted, images: Array, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(at=9)
    classifier = load_classifier(slow, name="brightness")
    with pytest.raises(DecisionError, match="different data"):
        score(review_policy, images[::-1].copy(), tmp_path / "scores.parquet", classifier=classifier, progress=False)
