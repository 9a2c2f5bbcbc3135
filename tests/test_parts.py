"""Numbered parts named by their content: complete and unchanged, or not there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secondlook.parts import DamagedPartError, LocalStorage, Parts, PartStorage

from secondlook.errors import DecisionError
from secondlook.file_systems import open_location


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> PartStorage:
    if request.param == "local":
        return LocalStorage(tmp_path)
    make_bucket: Callable[[str], Any] = request.getfixturevalue("s3")
    make_bucket("parts")
    return open_location("s3://parts/some/where", DecisionError)


def test_parts_are_found_again(storage: PartStorage) -> None:
    contents = {3: b"three", 0: b"", 1_234_567: b"\x00" * 1000}
    parts = Parts(storage)
    for number, content in contents.items():
        assert number not in parts
        parts.write(number, content)
    storage.write_bytes("_job.json", b"{}")
    again = Parts(storage)
    for found in (parts, again):
        assert found.numbers == [0, 3, 1_234_567]
        assert {number: found.read(number) for number in found.numbers} == contents
    again.delete(3)
    assert 3 not in again
    assert Parts(storage).numbers == [0, 1_234_567]


def test_a_part_replaces_another_of_its_number(storage: PartStorage) -> None:
    parts = Parts(storage)
    parts.write(5, b"before")
    parts.write(5, b"after")
    parts.write(5, b"after")
    assert [name[:11] for name in storage.list_names()] == ["part-000005"]
    assert Parts(storage).read(5) == b"after"


def test_two_files_of_one_number_become_one(storage: PartStorage, tmp_path: Path) -> None:
    Parts(storage).write(5, b"one")
    (one,) = storage.list_names()
    storage.delete(one)
    Parts(storage).write(5, b"other")
    storage.write_bytes(one, b"one")
    assert len(storage.list_names()) == 2
    assert Parts(storage).numbers == [5]
    assert len(storage.list_names()) == 1


@given(content=st.binary(min_size=1, max_size=60), position=st.integers(0, 59), bit=st.integers(0, 7))
def test_a_changed_bit_is_damage(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, position: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    parts = Parts(LocalStorage(folder))
    parts.write(0, content)
    changed = bytearray(content)
    changed[position % len(content)] ^= 1 << bit
    Path(parts.locate(0)).write_bytes(changed)
    with pytest.raises(DamagedPartError):
        parts.read(0)


@pytest.mark.posix
def test_a_pipe_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part-000001-0123456789abcdef.parquet")
    parts = Parts(LocalStorage(tmp_path))
    with pytest.raises(OSError, match="not a regular file"):
        parts.read(1)


def test_missing_bucket_is_one_sentence(s3: Callable[[str], Any]) -> None:
    with pytest.raises(DecisionError, match="nowhere"):
        Parts(open_location("s3://nowhere/scores", DecisionError))
