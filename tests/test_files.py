"""Atomic files: temporary files of killed processes are removed, those of running processes are kept."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from secondlook import files
from secondlook.files import (
    TEMPORARY_SUFFIX,
    exclusive_lock,
    lock_folder,
    read_regular_file,
    shared_lock,
    write_atomically,
    write_bytes_atomically,
)

# Writes half of its content, and the other half when it is told to.
WRITER = """
import sys
from pathlib import Path
from secondlook.files import write_atomically

def write(file):
    file.write(b"first half, ")
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
    file.write(b"second half")

write_atomically(Path(sys.argv[1]), write)
"""

REPEATED_WRITER = """
import sys
from pathlib import Path
from secondlook.files import write_bytes_atomically

for _ in range(150):
    write_bytes_atomically(Path(sys.argv[1]), b"x" * 10_000)
"""


@contextmanager
def start_writer(path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process


def list_temporary(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(TEMPORARY_SUFFIX))


@pytest.mark.posix
def test_file_of_a_killed_writer_is_removed_by_the_next_one(tmp_path: Path) -> None:
    target = tmp_path / "policy.json"
    write_bytes_atomically(target, b"before")
    with start_writer(target) as writer:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    (left,) = list_temporary(tmp_path)
    assert left.read_bytes() == b"first half, "
    assert target.read_bytes() == b"before"
    write_bytes_atomically(tmp_path / "other.json", b"of another file")
    assert list_temporary(tmp_path) == [left]
    write_bytes_atomically(target, b"after")
    assert list_temporary(tmp_path) == []
    assert target.read_bytes() == b"after"


@pytest.mark.posix
def test_file_of_a_living_writer_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "policy.json"
    with start_writer(target) as writer:
        (kept,) = list_temporary(tmp_path)
        os.utime(kept, (0, 0))  # however old it is
        write_bytes_atomically(target, b"meanwhile")
        assert list_temporary(tmp_path) == [kept]
        writer.communicate("go on\n")
    assert writer.returncode == 0
    assert target.read_bytes() == b"first half, second half"
    assert list_temporary(tmp_path) == []


@pytest.mark.posix
def test_concurrent_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    target = tmp_path / "policy.json"
    command = [sys.executable, "-c", REPEATED_WRITER, str(target)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [writer.communicate()[1] for writer in writers] == [""] * 3
    assert target.read_bytes() == b"x" * 10_000
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.posix
def test_file_removed_before_it_is_locked_is_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, mark_alive = tmp_path / "policy.json", files._mark_alive
    removed: list[Path] = []

    def remove_and_mark(file: BinaryIO) -> None:
        if not removed:
            removed.extend(list_temporary(tmp_path))
            write_bytes_atomically(target, b"of another process")
            assert list_temporary(tmp_path) == []
        mark_alive(file)

    monkeypatch.setattr(files, "_mark_alive", remove_and_mark)
    write_bytes_atomically(target, b"content")
    assert len(removed) == 1
    assert target.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.posix
def test_file_system_without_locks_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> bool:
        raise OSError(95, "Operation not supported")

    left = tmp_path / f".policy.json.{'0f' * 16}.tmp"
    left.touch()
    monkeypatch.setattr(files, "_lock", fail)
    write_bytes_atomically(tmp_path / "policy.json", b"content")
    assert sorted(tmp_path.iterdir()) == [left, tmp_path / "policy.json"], "its writer may be alive"


@pytest.mark.posix
def test_pipe_instead_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    for lock in (exclusive_lock, shared_lock):
        with pytest.raises(OSError, match="lock"), lock(tmp_path / "lock"):
            pass
    os.mkfifo(tmp_path / f".policy.json.{'0f' * 16}.tmp")
    write_bytes_atomically(tmp_path / "policy.json", b"content")
    assert (tmp_path / "policy.json").read_bytes() == b"content"


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise RuntimeError

    write_bytes_atomically(tmp_path / "policy.json", b"before")
    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "policy.json", fail)
    assert list(tmp_path.iterdir()) == [tmp_path / "policy.json"]
    assert (tmp_path / "policy.json").read_bytes() == b"before"


@pytest.mark.parametrize("name", ["x" * 250, "ä" * 120, "[*].json"])
def test_any_valid_name_can_be_written(tmp_path: Path, name: str) -> None:
    write_bytes_atomically(tmp_path / name, b"content")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.posix
def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular_file(tmp_path / "file", max_bytes=5) == b"12345"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, limit in (("file", 4), ("pipe", 5), ("device", 5), (".", 5), ("absent", 5), ("a\0b", 5)):
        with pytest.raises(OSError, match=r".") as caught:
            read_regular_file(tmp_path / name, limit)
        assert name == "absent" or str(tmp_path) in str(caught.value.filename)


@pytest.mark.posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_mode_of_a_replaced_file_is_kept(tmp_path: Path, mode: int) -> None:
    path, modes = tmp_path / "policy.json", []
    path.touch()
    path.chmod(mode)

    def write(file: BinaryIO) -> None:
        modes.append(os.fstat(file.fileno()).st_mode & 0o777)
        file.write(b"new")

    write_atomically(path, write)
    assert [*modes, path.stat().st_mode & 0o777] == [mode, mode]
    assert path.read_bytes() == b"new"


@pytest.mark.posix
def test_only_own_temporary_files_are_removed(tmp_path: Path) -> None:
    """Not those of other programs, folders, links and their targets."""
    target, outside = tmp_path / "policy.json", tmp_path / "outside"
    outside.write_bytes(b"mine")
    prefix = f".{target.name}.{'0f' * 15}"
    (tmp_path / f"{prefix}00.secondlook.tmp").symlink_to(outside)
    (tmp_path / f"{prefix}01.secondlook.tmp").mkdir()
    (tmp_path / f"{prefix}02.tmp").write_bytes(b"mine")
    (tmp_path / f"x{prefix}03.secondlook.tmp").write_bytes(b"mine")
    kept = set(tmp_path.iterdir())
    (tmp_path / f"{prefix}04.secondlook.tmp").write_bytes(b"of a killed process")
    write_bytes_atomically(target, b"content")
    assert set(tmp_path.iterdir()) == {*kept, target}
    assert outside.read_bytes() == b"mine"


@pytest.mark.posix
def test_locked_folder_is_left_as_it_was(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "new"):
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["_lock"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "_lock").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="_lock"), lock_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["_lock"]
    (tmp_path / "_lock").unlink()
    (tmp_path / "_lock").write_bytes(b"mine")
    with lock_folder(tmp_path):
        pass
    assert (tmp_path / "_lock").read_bytes() == b"mine"
