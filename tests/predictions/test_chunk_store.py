"""Numbered chunks named by their content: complete and unchanged, or not there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.errors import DecisionError
from secondlook.file_systems import open_location
from secondlook.predictions import BrokenChunkError, ChunkStore, LocalStorage


def encode(number: int, value: object, job: str = "job") -> bytes:
    return ChunkStore.encode(job, number, pa.table({"value": [value]}), {"name": "test"})


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "local":
        return LocalStorage(tmp_path)
    make_bucket: Callable[[str], Any] = request.getfixturevalue("s3")
    make_bucket("parts")
    return open_location("s3://parts/some/where", DecisionError)


def test_chunks_are_found_again_and_replace_others_of_their_number(storage: Any) -> None:
    chunks = ChunkStore(storage, "job")
    for number in (3, 0, 1_234_567):
        assert number not in chunks
        chunks.write(number, encode(number, number))
    storage.write_bytes("_job.json", b"{}")
    again = ChunkStore(storage, "job")
    for found in (chunks, again):
        assert found.numbers == [0, 3, 1_234_567]
        for number in found.numbers:
            table = found.read(number)
            assert table["value"].to_pylist() == [number]
            assert table.schema.metadata == {b"name": b"test"}
    again.delete(3)
    assert 3 not in again
    assert ChunkStore(storage, "job").numbers == [0, 1_234_567]
    for value in ("before", "after", "after"):
        chunks.write(0, encode(0, value))
    assert [name[:11] for name in storage.list_names()].count("part-000000") == 1
    assert ChunkStore(storage, "job").read(0)["value"].to_pylist() == ["after"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_of_two_files_of_one_number_one_is_used_and_kept_unless_shared(storage: Any, is_shared: bool) -> None:
    ChunkStore(storage, "job").write(5, encode(5, "one"))
    (one,) = storage.list_names()
    storage.delete(one)
    ChunkStore(storage, "job").write(5, encode(5, "other"))
    storage.write_bytes(one, encode(5, "one"))
    assert len(storage.list_names()) == 2
    first = ChunkStore(storage, "job", is_shared=is_shared)
    assert first.numbers == [5]
    assert first.read(5).equals(ChunkStore(storage, "job", is_shared=is_shared).read(5))
    assert len(storage.list_names()) == (2 if is_shared else 1)


def test_chunks_of_other_processes_are_found_in_a_shared_store(storage: Any) -> None:
    one, other = (ChunkStore(storage, "job", is_shared=True) for _ in range(2))
    one.write(0, encode(0, "a"))
    assert other.read(0)["value"].to_pylist() == ["a"]
    assert 1 not in other
    one.write(1, encode(1, "b"))
    assert 1 in other


def check_broken(chunks: ChunkStore, fault: str | None) -> None:
    for read in (chunks.read, chunks.open):
        with pytest.raises(BrokenChunkError, match=fault):
            read(0)


def test_misplaced_and_other_files_are_broken(tmp_path: Path) -> None:
    chunks = ChunkStore(LocalStorage(tmp_path), "job")
    misplaced = {"another, chunk 0": encode(0, "value", "another"), "job, chunk 1": encode(1, "value")}
    for fault, content in (*misplaced.items(), (None, b""), (None, b"no Parquet")):
        chunks.write(0, content)
        check_broken(chunks, fault)


@given(position=st.integers(0), bit=st.integers(0, 7))
def test_a_changed_bit_is_damage(tmp_path_factory: pytest.TempPathFactory, position: int, bit: int) -> None:
    chunks = ChunkStore(LocalStorage(tmp_path_factory.mktemp("chunks")), "job")
    content = bytearray(encode(0, "value"))
    chunks.write(0, bytes(content))
    content[position % len(content)] ^= 1 << bit
    Path(chunks.locate(0)).write_bytes(content)
    check_broken(chunks, "checksum")


@pytest.mark.posix
def test_a_pipe_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part-000001-0123456789abcdef.parquet")
    chunks = ChunkStore(LocalStorage(tmp_path), "job")
    with pytest.raises(OSError, match="not a regular file"):
        chunks.read(1)
    with pytest.raises(BrokenChunkError, match="not a file"):
        chunks.open(1)


def test_missing_bucket_is_one_sentence(s3: Callable[[str], Any]) -> None:
    with pytest.raises(DecisionError, match="nowhere"):
        ChunkStore(open_location("s3://nowhere/scores", DecisionError), "job")
