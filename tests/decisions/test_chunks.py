"""Chunks of a scoring job: a chunk that is damaged, misplaced or of another job is never used."""

import shutil
import threading
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions.chunks import Destination, JobRecord, ScoreChunks
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from secondlook.predictions import DamagedChunkWarning
from tests.policy_maker import attach, score

CHUNKS = 7
IMAGES = CHUNKS * 16 - 3


class StoppedError(Exception):
    """Ends a job between its chunks and its scores."""


class Job:
    """A job that was stopped when all its chunks were finished, and what it has to write."""

    def __init__(self, policy: Policy, classifier: Classifier, source: str, folder: Path) -> None:
        self.arguments: dict[str, Any] = {"classifier": classifier, "on_error": "skip", "part_size": 16}
        self.policy, self.source, self.out = policy, source, folder / "scores.csv"
        self.folder = folder / "scores.csv.parts"
        score(policy, source, folder / "expected.csv", **self.arguments)
        self.expected = (folder / "expected.csv").read_bytes()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Destination, "write", stop)
            with pytest.raises(StoppedError):
                self.resume()
        self.files = {path: path.read_bytes() for path in sorted(self.folder.iterdir())}
        self.chunks = [path for path in self.files if "-0" in path.name]
        assert len(self.chunks) == CHUNKS

    def resume(self) -> None:
        score(self.policy, self.source, self.out, **self.arguments)

    def restore(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.out.unlink(missing_ok=True)
        for path, content in self.files.items():
            path.write_bytes(content)

    def check_recomputed(self, *changed: Path) -> None:
        """Check that the job replaces exactly these chunks, with a warning for each, and ends with the same bytes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.resume()
        assert [warning.category for warning in caught] == [DamagedChunkWarning] * len(changed)
        for warning, path in zip(caught, sorted(changed), strict=True):
            assert repr(str(path)) in str(warning.message)
        assert self.out.read_bytes() == self.expected
        assert not self.folder.exists()


def stop(*_arguments: object, **_options: object) -> None:
    raise StoppedError


@pytest.fixture(scope="module")
def make_job(
    classifier: Classifier, bright_or_dark: tuple[Array, Array], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Job]:
    def make(threshold: float = 0.9) -> Job:
        from PIL import Image

        folder = tmp_path_factory.mktemp("job")
        (folder / "new").mkdir()
        for number, image in enumerate(bright_or_dark[0][:IMAGES]):
            Image.fromarray(image).save(folder / "new" / f"{number:03d}.png")
        for broken in (5, 40, 41):
            (folder / "new" / f"{broken:03d}.png").write_bytes(b"")
        policy = attach(
            Policy(threshold=threshold, method="mean"), classifier=classifier, views=("identity", "hflip"), made="then"
        )
        return Job(policy, classifier, f"folder:{folder / 'new'}", folder)

    return make


@pytest.fixture(scope="module")
def finished_job(make_job: Callable[..., Job]) -> Job:
    return make_job()


@pytest.fixture
def stopped(finished_job: Job) -> Job:
    finished_job.restore()
    return finished_job


def test_finished_chunks_are_used(stopped: Job) -> None:
    stopped.check_recomputed()


def test_swapped_chunks_are_recomputed(stopped: Job) -> None:
    for one, other in combinations(stopped.chunks, 2):
        stopped.restore()
        one.write_bytes(stopped.files[other])
        other.write_bytes(stopped.files[one])
        stopped.check_recomputed(one, other)


def test_chunks_of_another_job_are_recomputed(stopped: Job, make_job: Callable[..., Job]) -> None:
    """The other job has the same images and only another threshold."""
    other = make_job(threshold=0.6)
    for path, misplaced in zip(stopped.chunks, other.chunks, strict=True):
        stopped.restore()
        path.write_bytes(other.files[misplaced])
        stopped.check_recomputed(path)


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.99])
def test_truncated_chunk_is_recomputed(stopped: Job, share: float) -> None:
    path = stopped.chunks[3]
    path.write_bytes(stopped.files[path][: int(share * len(stopped.files[path]))])
    stopped.check_recomputed(path)


def test_flipped_bit_is_detected_anywhere(stopped: Job) -> None:
    record = next(content for path, content in stopped.files.items() if path.name == "_job.json")
    chunks = ScoreChunks(Destination.parse(stopped.out), JobRecord.model_validate_json(record), {})
    path = stopped.chunks[0]
    content = stopped.files[path]
    next(chunks.read())
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(DecisionError, match=path.name):
            next(chunks.read())
    stopped.check_recomputed(path)


def test_damage_while_joining_is_an_error(stopped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write_scores = stopped.chunks[2], Destination.write

    def damage(*arguments: Any, **options: Any) -> None:
        path.write_bytes(stopped.files[path][:-1])
        write_scores(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Destination, "write", damage)
        with pytest.raises(DecisionError, match=path.name):
            stopped.resume()
    assert not stopped.out.exists()
    stopped.check_recomputed(path)


def test_files_of_the_user_are_never_touched(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    names = ["sub/.notes.tmp", "sub/deep/.part-000000.0123456789abcdef0123456789abcdef.tmp", ".notes.tmp", "notes.txt"]
    names.append("part-000000.parquet")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")

    def check() -> None:
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert files >= set(names)
        assert all((folder / name).read_text() == "mine" for name in names)

    for overwrite in (False, True):
        with pytest.raises(DecisionError, match="not a scoring job"):
            score(review_policy, images, folder, classifier=classifier, overwrite=overwrite)
        check()
        assert len(list(folder.rglob("*"))) == len(names) + 2
    # In a folder of scores that the user keeps notes in, only files of the job are removed.
    (folder / "notes.txt").unlink()
    (folder / "part-000000.parquet").unlink()
    shutil.rmtree(folder / "sub")
    score(review_policy, images, folder, classifier=classifier)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    score(review_policy, images[:9], folder, classifier=classifier, overwrite=True)
    check()


def test_another_process_may_remove_the_folder_while_this_one_waits(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is removed between the moment it is made and the moment its lock is opened."""
    mkdir, remaining = Path.mkdir, [3]

    def make_and_remove(path: Path, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path.suffix == ".parts" and remaining[0]:
            remaining[0] -= 1
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", make_and_remove)
    summary = score(review_policy, images, tmp_path / "scores.csv", classifier=classifier)
    assert summary.images == len(images)
    assert remaining == [0]


def test_reading_ends_in_the_thread_that_reads(stopped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow that still releases the content when Python shuts down would abort the process."""
    releases: list[int] = []

    class Content(bytes):
        def __del__(self) -> None:
            releases.append(threading.get_ident())

    read_bytes, rounds = Path.read_bytes, 20
    record = JobRecord.model_validate_json((stopped.folder / "_job.json").read_bytes())
    chunks = ScoreChunks(Destination.parse(stopped.out), record, {})
    monkeypatch.setattr(Path, "read_bytes", lambda path: Content(read_bytes(path)))
    for _ in range(rounds):
        assert sum(len(rows) for rows in chunks.read()) == IMAGES
    assert releases == [threading.get_ident()] * (CHUNKS * rounds)
