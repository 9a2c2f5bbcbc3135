"""Only regular files of limited size are opened; a pipe or a device is an error, not a hang."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import UnreadableImageError, open_source, read_image
from secondlook.sources.regular_files import open_regular_file

IMAGES = np.zeros((2, 4, 4, 3), dtype=np.uint8)


def make_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


every_kind = pytest.mark.parametrize("place", [make_pipe, link_to_zeros, make_folder])


@pytest.mark.posix
@every_kind
@pytest.mark.parametrize(
    ("scheme", "file"),
    [
        ("npz", "a.npz"),
        ("csv", "list.csv"),
    ],
)
def test_file_of_a_source_must_be_regular(
    tmp_path: Path, samples: Callable[[str], str], place: Callable[[Path], None], scheme: str, file: str
) -> None:
    spec = samples(scheme)
    place(tmp_path / file)
    with pytest.raises(SourceError, match=file.partition("/")[0]):
        open_source(spec)


@pytest.mark.posix
@every_kind
@pytest.mark.parametrize(("option", "name"), [("indices", "i.npy"), ("indices", "i.txt"), ("classes", "c.txt")])
def test_file_named_by_an_option_must_be_regular(
    tmp_path: Path, samples: Callable[[str], str], place: Callable[[Path], None], option: str, name: str
) -> None:
    spec = samples("csv")
    place(tmp_path / name)
    with pytest.raises(SourceError, match=name):
        open_source(f"{spec}?{option}={tmp_path / name}")


@pytest.mark.posix
@every_kind
def test_image_must_be_a_regular_file(
    tmp_path: Path, samples: Callable[[str], str], place: Callable[[Path], None]
) -> None:
    spec = samples("csv")
    place(tmp_path / "3.png")
    with pytest.raises(UnreadableImageError, match=r"3\.png.*cannot be opened"):
        read_image(tmp_path / "3.png")
    source = open_source(spec, on_error="skip")
    assert [len(batch.images) for batch in source.batches(7)] == [6]
    assert [skipped.id for skipped in source.skipped] == ["3.png"]
    assert len(source.digest) == 64


@pytest.mark.posix
def test_pipe_in_a_folder_is_no_image(tmp_path: Path, samples: Callable[[str], str]) -> None:
    spec = samples("folder")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    assert len(open_source(spec)) == 7


def test_path_that_no_file_can_have_is_an_unreadable_image(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"path\na\0b.png\n{'c' * 5000}.png\n")
    source = open_source(f"csv:{tmp_path}/a.csv", on_error="skip")
    assert list(source.batches(2)) == []
    assert len(source.skipped) == 2
    assert len(source.digest) == 64


@pytest.mark.parametrize("option", ["", "?classes=classes.txt", "?indices=indices.txt", "?indices=indices.npy"])
def test_text_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv").write_text("path,label\na.png,cat\n")
    (tmp_path / "classes.txt").write_text("cat\n" + "\n" * 100)
    (tmp_path / "indices.txt").write_text("0" + " " * 100)
    np.save(tmp_path / "indices.npy", np.array([0]))
    assert len(open_source(f"csv:list.csv{option}")) == 1
    for name in ("regular_files", "encoded_sources", "loading"):
        monkeypatch.setattr(f"secondlook.sources.{name}.MAX_TEXT_BYTES", 50 if option else 10)
    with pytest.raises(SourceError, match=r"above the limit of [15]0"):
        open_source(f"csv:list.csv{option}")


def test_limit_of_a_file_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(10))
    with open_regular_file(path, 10) as file:
        assert file.read() == bytes(10)
    with pytest.raises(OSError, match="10 bytes, above the limit of 9"):
        open_regular_file(path, 9)
