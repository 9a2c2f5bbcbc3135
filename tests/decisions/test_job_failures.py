"""Scoring jobs whose disk fails, or whose chunks are damaged: nothing half-written, and the same bytes afterwards."""

import builtins
import errno
import io
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Review
from secondlook.decisions.chunks import Destination, JobRecord, ScoreChunks
from secondlook.errors import DecisionError
from secondlook.policies import Ledger, Policy
from secondlook.predictions import DamagedChunkWarning, Execution, LocalStorage
from tests.decisions.conftest import Counting, Score, brightness, make_policy, read_files, save_images
from tests.policy_maker import score

# --- Disks that fail ---

STRIDE = 7
"""One of so many calls fails; 1 takes 20 seconds."""
FSYNC = os.fsync
CALLS = (
    *((os, name) for name in ("open", "replace", "fsync", "unlink", "mkdir", "rmdir", "listdir", "scandir")),
    (io, "open"),
    (builtins, "open"),
)

ScoreFolder = Callable[[Path], None]


class FailingDisk:
    """Counts the calls that concern a folder, and lets one of them fail."""

    def __init__(self, folder: Path, fails_at: int | None) -> None:
        self.folder, self.fails_at, self.calls = str(folder), fails_at, 0

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        target = arguments[0] if arguments else None
        # Only what is written is synced; an image that cannot be read is skipped.
        concerned = function is FSYNC or str(target).startswith(self.folder)
        self.calls += concerned
        if concerned and self.calls == self.fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        return function(*arguments, **options)

    @contextmanager
    def use(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name in CALLS:
                patch.setattr(module, name, partial(self.call, getattr(module, name)))
            yield


@pytest.fixture
def score_folder(
    bright_or_dark: tuple[Array, Array], classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ScoreFolder:
    """Return a function that scores a few images, two of them broken, and writes everything into a folder."""
    monkeypatch.setattr(os, "sync", lambda: None)
    source = save_images(tmp_path / "new", bright_or_dark[0][:24], broken=[3, 20])
    policy = make_policy(classifier, "identity hflip", threshold=0.75)

    def run(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        exports = [f"label-studio:{folder / 'tasks.json'}"]
        review = Review(rejected=folder / "rejected", exports=exports, export_all=True)
        execution = Execution(on_error="skip", part_size=16)
        score(policy, source, folder / "scores.csv", classifier=classifier, review=review, execution=execution)

    return run


@pytest.fixture
def expected(score_folder: ScoreFolder, tmp_path: Path) -> dict[str, bytes]:
    score_folder(tmp_path / "whole")
    files = read_files(tmp_path / "whole")
    assert set(files) > {"scores.csv", "rejected/rejected.csv", "tasks.json", "tasks-config.xml"}
    assert len(files) > 5
    return files


def check_nothing_half_written(folder: Path, expected: dict[str, bytes]) -> None:
    for name, content in read_files(folder).items():
        if not name.startswith("scores.csv.parts/") and not name.endswith(".tmp"):
            assert content == expected[name], name


def find_message(score_folder: ScoreFolder, folder: Path) -> str | None:
    """Return the error, or the warning that chunks of the finished job stay; None if the failure did not matter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            score_folder(folder)
        except DecisionError as error:
            return str(error)
    return str(caught[0].message) if caught else None


def test_every_failing_call_is_an_error(score_folder: ScoreFolder, expected: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "counted").mkdir()
    disk = FailingDisk(tmp_path / "counted", None)
    with disk.use():
        score_folder(tmp_path / "counted")
    assert disk.calls > 50
    failed = 0
    for number in range(2, disk.calls + 1, STRIDE):
        folder = tmp_path / f"failing-{number}"
        folder.mkdir()
        with FailingDisk(folder, number).use():
            message = find_message(score_folder, folder)
        if message is not None:
            failed += 1
            assert str(folder) in message
            assert os.strerror(errno.EIO) in message
            check_nothing_half_written(folder, expected)
            score_folder(folder)
        assert read_files(folder) == expected, number
    assert failed > 0.8 * disk.calls / STRIDE


@pytest.mark.posix
@pytest.mark.parametrize("size", [100, 3000, 6000])
def test_full_disk_is_an_error(
    score_folder: ScoreFolder, expected: dict[str, bytes], tmp_path: Path, size: int
) -> None:
    """A limit on the size of files stands for a disk without room."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(DecisionError, match=os.strerror(errno.EFBIG)):
            score_folder(tmp_path / "again")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_nothing_half_written(tmp_path / "again", expected)
    score_folder(tmp_path / "again")
    assert read_files(tmp_path / "again") == expected


# --- Places that cannot be written ---


def make_unwritable(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put something at a path that is not a file that can be written; returns the path, which may be another one."""
    if kind == "file":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "below a loop":
        path = make_unwritable(path.with_name("loop"), "loop", monkeypatch) / path.name
    elif kind == "read-only":  # permissions do not bind the administrator, who may run the tests
        monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path.parent)
    else:
        path = path.with_name("x" * 300 + path.name)
    return path


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "below a loop", "read-only", "too long"])
@pytest.mark.parametrize("target", ["a/scores.csv", "b/tasks.json", "b/tasks-config.xml"])
def test_target_that_cannot_be_written_is_an_error_before_the_job_starts(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, kind: str
) -> None:
    out, tasks = tmp_path / "a" / "scores.csv", tmp_path / "b" / "tasks.json"
    for path in (out, tasks):
        path.parent.mkdir()
    unwritable = make_unwritable(tmp_path / target, kind, monkeypatch)
    if target == "a/scores.csv":
        out = unwritable
    else:
        tasks = unwritable.with_name(unwritable.name.replace("-config.xml", ".json"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DecisionError, match="scores to '" if out == unwritable else "export 'label-studio"):
        score(policy, f"folder:{tmp_path / 'none'}", out, exports=[f"label-studio:{tasks}"])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["pipe", "loop", "below a loop", "read-only"])
def test_folder_of_rejected_images_that_cannot_be_written(
    image_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, score_into: Score
) -> None:
    rejected, before = make_unwritable(tmp_path / "rejected", kind, monkeypatch), sorted(tmp_path.rglob("*"))
    with pytest.raises(DecisionError, match="rejected"):
        score_into("scores.csv", image_files, rejected=rejected)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.posix
def test_unwritable_chunks_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score_into: Score) -> None:
    parts = "scores.csv.parts"
    for name, kinds in {parts: "file", f"{parts}/_lock": "folder", f"{parts}/_job.json": "file folder"}.items():
        for kind in (*kinds.split(), "pipe", "loop"):
            folder = tmp_path / f"{kind} {Path(name).name}"
            (folder / name).parent.mkdir(parents=True)
            make_unwritable(folder / name, kind, monkeypatch)
            with pytest.raises(DecisionError, match=r"scores\.csv\.parts"):
                score_into(str(folder / "scores.csv"))
            assert not (folder / "scores.csv").exists()


# --- Chunks that are damaged, misplaced or of another job are never used ---

CHUNKS = 7
IMAGES = CHUNKS * 16 - 3


class Job:
    """A job that was stopped in its last chunk, and what it has to write."""

    def __init__(self, images: Array, folder: Path, threshold: float) -> None:
        self.counting = Counting(brightness)
        classifier = load_classifier(self.counting, name="brightness")
        self.policy = make_policy(classifier, "identity hflip", threshold=threshold)
        self.arguments: dict[str, Any] = {"classifier": classifier, "on_error": "skip", "part_size": 16}
        self.source, self.out = save_images(folder / "new", images, broken=[5, 40, 41]), folder / "scores.csv"
        self.folder = folder / "scores.csv.parts"
        self.resume()
        self.expected, n_calls = self.out.read_bytes(), len(self.counting.batches)
        self.out.unlink()
        self.counting.restart(fails_at=n_calls)
        with pytest.raises(KeyboardInterrupt):
            self.resume()
        self.counting.restart()
        self.files = {path: path.read_bytes() for path in sorted(self.folder.iterdir())}
        self.chunks = [path for path in self.files if "-0" in path.name]
        assert len(self.chunks) == CHUNKS - 1

    def resume(self) -> None:
        score(self.policy, self.source, self.out, **self.arguments)

    def restore(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.out.unlink(missing_ok=True)
        for path, content in self.files.items():
            path.write_bytes(content)

    def check_recomputed(self, changed: dict[Path, bytes]) -> None:
        """Check that the job replaces exactly these chunks, with a warning for each, and ends with the same bytes."""
        self.restore()
        for path, content in changed.items():
            path.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.resume()
        assert [warning.category for warning in caught] == [DamagedChunkWarning] * len(changed)
        for warning, path in zip(caught, sorted(changed), strict=True):
            assert repr(str(path)) in str(warning.message)
        assert self.out.read_bytes() == self.expected
        assert not self.folder.exists()


@pytest.fixture(scope="module")
def make_job(bright_or_dark: tuple[Array, Array], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    return lambda threshold: Job(bright_or_dark[0][:IMAGES], tmp_path_factory.mktemp("job"), threshold)


@pytest.fixture(scope="module")
def stopped(make_job: Callable[..., Job]) -> Job:
    return make_job(0.9)


def test_finished_chunks_are_used_unless_misplaced_or_truncated(stopped: Job, make_job: Callable[..., Job]) -> None:
    for one, other in combinations(stopped.chunks, 2):
        stopped.check_recomputed({one: stopped.files[other], other: stopped.files[one]})
    another = make_job(0.6)  # with the same images and only another threshold
    for path, misplaced in zip(stopped.chunks, another.chunks, strict=True):
        stopped.check_recomputed({path: another.files[misplaced]})
    path, content = stopped.chunks[3], stopped.files[stopped.chunks[3]]
    for share in (0, 0.01, 0.3, 0.99):
        stopped.check_recomputed({path: content[: int(share * len(content))]})
    stopped.counting.restart()
    stopped.check_recomputed({})
    assert sum(stopped.counting.sizes) == 1 + 2 * (IMAGES - 16 * (CHUNKS - 1))


def test_flipped_bit_is_detected_anywhere(stopped: Job) -> None:
    stopped.restore()
    record = JobRecord.model_validate_json((stopped.folder / "_job.json").read_bytes())
    chunks = ScoreChunks(Destination.parse(stopped.out), record, {})
    path = stopped.chunks[0]
    content = stopped.files[path]
    next(chunks.read())
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(DecisionError, match=path.name):
            next(chunks.read())
    stopped.check_recomputed({path: path.read_bytes()})


def test_damage_while_joining_is_an_error(stopped: Job) -> None:
    """A chunk is damaged while the last one is computed."""
    path = stopped.chunks[2]
    stopped.restore()

    def damage(batch: Any) -> Any:
        if len(batch) > 1:  # not the image at the start
            path.write_bytes(stopped.files[path][:-1])
        return brightness(batch)

    classifier = load_classifier(damage, name="brightness")
    with pytest.raises(DecisionError, match=path.name):
        score(stopped.policy, stopped.source, stopped.out, **{**stopped.arguments, "classifier": classifier})
    assert not stopped.out.exists()
    stopped.check_recomputed({path: path.read_bytes()})


def test_reading_ends_in_the_thread_that_reads(stopped: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow that still releases the content when Python shuts down would abort the process."""
    releases: list[int] = []

    class Content(bytes):
        def __del__(self) -> None:
            releases.append(threading.get_ident())

    read_bytes, rounds = LocalStorage.read_bytes, 20
    monkeypatch.setattr(LocalStorage, "read_bytes", lambda storage, name: Content(read_bytes(storage, name)))
    for _ in range(rounds):
        stopped.check_recomputed({})
    assert set(releases) == {threading.get_ident()}
    assert len(releases) >= len(stopped.chunks) * rounds


def test_files_of_users_are_not_touched(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    names = ["sub/.notes.tmp", "sub/deep/.part-000000.0123456789abcdef0123456789abcdef.tmp", ".notes.tmp", "notes.txt"]
    names += ["part-000000.parquet", ".part-000000-0123456789abcdef.parquet.0123456789abcdef0123456789abcdef.tmp"]
    mine = dict.fromkeys(names, b"mine")

    def write() -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"mine")

    write()
    for overwrite in (False, True):
        with pytest.raises(DecisionError, match="not a scoring job"):
            score(policy, images, folder, classifier=classifier, overwrite=overwrite)
        assert read_files(folder) == mine
    # In a folder of scores that the user keeps notes in, only files of the job are removed.
    shutil.rmtree(folder)
    score(policy, images, folder, classifier=classifier)
    write()
    score(policy, images[:9], folder, classifier=classifier, overwrite=True)
    assert read_files(folder).items() >= mine.items()


def test_ledger_of_scores_outlives_their_job(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    ledger = tmp_path / "scores" / Ledger.OF_SCORES
    ledger.parent.mkdir()
    ledger.write_bytes(b"kept")  # all that is left where a job was killed while it was replaced
    for count in (9, 20):
        score(policy, images[:count], ledger.parent, classifier=classifier, overwrite=True)
    assert ledger.read_bytes() == b"kept"


def test_another_process_may_remove_the_folder(
    images: Array, monkeypatch: pytest.MonkeyPatch, score_into: Score
) -> None:
    """The folder is removed between the moment it is made and the moment its lock is opened."""
    mkdir, remaining = Path.mkdir, [3]

    def make_and_remove(path: Path, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path.suffix == ".parts" and remaining[0]:
            remaining[0] -= 1
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", make_and_remove)
    assert score_into("scores.csv")[0].images == len(images)
    assert remaining == [0]
