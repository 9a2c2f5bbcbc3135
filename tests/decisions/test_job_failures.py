"""A scoring job whose disk fails: one error that says where, nothing half-written, and the same bytes afterwards."""

import builtins
import errno
import io
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import Review
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from secondlook.predictions import Execution
from tests.policy_maker import attach, score

STRIDE = 7
"""One of so many calls fails; 1 takes 20 seconds."""

IMAGES = 24

FSYNC = os.fsync

CALLS = (
    *((os, name) for name in ("open", "replace", "fsync", "unlink", "mkdir", "rmdir", "listdir", "scandir")),
    (io, "open"),
    (builtins, "open"),
)

ScoreInto = Callable[[Path], None]


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
def score_into(
    bright_or_dark: tuple[Array, Array], classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ScoreInto:
    """Return a function that scores a few images, two of them broken, and writes everything into a folder."""
    monkeypatch.setattr(os, "sync", lambda: None)
    (tmp_path / "new").mkdir()
    for number, image in enumerate(bright_or_dark[0][:IMAGES]):
        Image.fromarray(image).save(tmp_path / "new" / f"{number:03d}.png")
    for broken in (3, 20):
        (tmp_path / "new" / f"{broken:03d}.png").write_bytes(b"")
    policy = attach(
        Policy(threshold=0.75, method="mean"), classifier=classifier, views=("identity", "hflip"), made="then"
    )

    def run(folder: Path) -> None:
        score(
            policy,
            f"folder:{tmp_path / 'new'}",
            folder / "scores.csv",
            classifier=classifier,
            review=Review(
                rejected=folder / "rejected", exports=[f"label-studio:{folder / 'tasks.json'}"], export_all=True
            ),
            execution=Execution(on_error="skip", part_size=16),
        )

    return run


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def expected(score_into: ScoreInto, tmp_path: Path) -> dict[str, bytes]:
    (tmp_path / "whole").mkdir()
    score_into(tmp_path / "whole")
    files = read_files(tmp_path / "whole")
    assert set(files) > {"scores.csv", "rejected/rejected.csv", "tasks.json", "tasks-config.xml"}
    assert len(files) > 5
    return files


def check_nothing_half_written(folder: Path, expected: dict[str, bytes]) -> None:
    for name, content in read_files(folder).items():
        if not name.startswith("scores.csv.parts/") and not name.endswith(".tmp"):
            assert content == expected[name], name


def find_message(score_into: ScoreInto, folder: Path) -> str | None:
    """Return the error, or the warning that chunks of the finished job stay; None if the failure did not matter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            score_into(folder)
        except DecisionError as error:
            return str(error)
    return str(caught[0].message) if caught else None


def test_every_failing_call_is_an_error_and_the_job_resumes(
    score_into: ScoreInto, expected: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "counted").mkdir()
    disk = FailingDisk(tmp_path / "counted", None)
    with disk.use():
        score_into(tmp_path / "counted")
    assert disk.calls > 50
    failed = 0
    for number in range(1, disk.calls + 1, STRIDE):
        folder = tmp_path / f"failing-{number}"
        folder.mkdir()
        with FailingDisk(folder, number).use():
            message = find_message(score_into, folder)
        if message is not None:
            failed += 1
            assert str(folder) in message
            assert os.strerror(errno.EIO) in message
            check_nothing_half_written(folder, expected)
            score_into(folder)
        assert set(read_files(folder)) <= {*expected, "scores.csv.parts/_lock"}, number
        for name, content in expected.items():
            assert (folder / name).read_bytes() == content, (number, name)
    assert failed > 0.8 * disk.calls / STRIDE


@pytest.mark.posix
@pytest.mark.parametrize("size", [100, 3000, 6000])
def test_full_disk_is_an_error_and_the_job_resumes(
    score_into: ScoreInto, expected: dict[str, bytes], tmp_path: Path, size: int
) -> None:
    """A limit on the size of files stands for a disk without room."""
    import resource

    (tmp_path / "again").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(DecisionError, match=os.strerror(errno.EFBIG)):
            score_into(tmp_path / "again")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_nothing_half_written(tmp_path / "again", expected)
    score_into(tmp_path / "again")
    assert read_files(tmp_path / "again") == expected


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "below a loop", "read-only", "too long"])
@pytest.mark.parametrize("target", ["a/scores.csv", "b/tasks.json", "b/tasks-config.xml"])
def test_target_that_cannot_be_written_is_an_error_before_the_job_starts(
    review_policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, kind: str
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
        score(review_policy, f"folder:{tmp_path / 'none'}", out, review=Review(exports=[f"label-studio:{tasks}"]))
    assert sorted(tmp_path.rglob("*")) == before


def make_unwritable(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put something at a path that is not a file that can be written; returns the path, which may be another one."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "below a loop":
        path.with_name("loop").symlink_to("loop")
        return path.with_name("loop") / path.name
    elif kind == "read-only":  # permissions do not bind the administrator, who may run the tests
        monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path.parent)
    else:
        return path.with_name("x" * 300 + path.name)
    return path


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["pipe", "loop", "below a loop", "read-only"])
def test_folder_of_rejected_images_that_cannot_be_written(
    review_policy: Policy,
    classifier: Classifier,
    image_files: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    rejected = make_unwritable(tmp_path / "rejected", kind, monkeypatch)
    with pytest.raises(DecisionError, match="rejected"):
        score(review_policy, image_files, out / "scores.csv", classifier=classifier, review=Review(rejected=rejected))
    assert not list(out.iterdir())


@pytest.mark.posix
@pytest.mark.parametrize("name", ["scores.csv.parts", "scores.csv.parts/_lock", "scores.csv.parts/_job.json"])
@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "loop"])
def test_chunks_that_cannot_be_written_are_an_error(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, name: str, kind: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if kind == "file":
        path.touch()
    else:
        make_unwritable(path, kind, pytest.MonkeyPatch())
    if kind == ("folder" if path.suffix == ".parts" else "file") and path.name != "_job.json":
        return  # what belongs there
    with pytest.raises(DecisionError, match=r"scores\.csv\.parts"):
        score(review_policy, images, tmp_path / "scores.csv", classifier=classifier)
    assert not (tmp_path / "scores.csv").exists()
