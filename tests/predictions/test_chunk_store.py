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
from secondlook.predictions import BrokenChunkError, ChunkStore, LocalStorage, Storage, encode_chunk

JOB = "0123456789abcdef"


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path)
    make_bucket: Callable[[str], Any] = request.getfixturevalue("s3")
    make_bucket("chunks")
    return open_location("s3://chunks/some/where", DecisionError)


def encode(number: int, *values: int, job: str = JOB) -> bytes:
    return encode_chunk(job, number, pa.table({"value": pa.array(values, pa.int64())}), {"unit": "apples"})


def read(chunks: ChunkStore, number: int) -> list[int]:
    table = chunks.read(number)
    assert table.schema.metadata == {b"unit": b"apples"}
    values: list[int] = table["value"].to_pylist()
    return values


def test_chunks_are_found_again(storage: Storage) -> None:
    contents = {3: [3, 4], 0: [], 1_234_567: [0] * 1000}
    chunks = ChunkStore(storage, JOB)
    for number, values in contents.items():
        assert number not in chunks
        chunks.write(number, encode(number, *values))
    storage.write_bytes("_job.json", b"{}")
    again = ChunkStore(storage, JOB)
    for found in (chunks, again):
        assert found.numbers == [0, 3, 1_234_567]
        assert {number: read(found, number) for number in found.numbers} == contents
    again.delete(3)
    assert 3 not in again
    assert ChunkStore(storage, JOB).numbers == [0, 1_234_567]


def test_a_chunk_replaces_another_of_its_number(storage: Storage) -> None:
    chunks = ChunkStore(storage, JOB)
    chunks.write(5, encode(5, 1))
    chunks.write(5, encode(5, 2))
    chunks.write(5, encode(5, 2))
    assert [name[:11] for name in storage.list_names()] == ["part-000005"]
    assert read(ChunkStore(storage, JOB), 5) == [2]


def test_two_files_of_one_number_become_one(storage: Storage) -> None:
    ChunkStore(storage, JOB).write(5, encode(5, 1))
    (one,) = storage.list_names()
    storage.delete(one)
    ChunkStore(storage, JOB).write(5, encode(5, 2))
    storage.write_bytes(one, encode(5, 1))
    assert len(storage.list_names()) == 2
    assert ChunkStore(storage, JOB).numbers == [5]
    assert len(storage.list_names()) == 1


@given(data=st.data(), bit=st.integers(0, 7))
def test_a_changed_bit_is_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, bit: int) -> None:
    chunks = ChunkStore(LocalStorage(tmp_path_factory.mktemp("chunks")), JOB)
    changed = bytearray(encode(0, 1, 2, 3))
    chunks.write(0, bytes(changed))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << bit
    Path(chunks.locate(0)).write_bytes(changed)
    with pytest.raises(BrokenChunkError):
        chunks.read(0)


@pytest.mark.parametrize("content", [encode(4, 1), encode(5, 1, job="another job")])
def test_a_chunk_of_another_place_or_job_is_damage(tmp_path: Path, content: bytes) -> None:
    chunks = ChunkStore(LocalStorage(tmp_path), JOB)
    chunks.write(5, content)
    with pytest.raises(BrokenChunkError):
        chunks.read(5)


@pytest.mark.posix
def test_a_pipe_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part-000001-0123456789abcdef.parquet")
    chunks = ChunkStore(LocalStorage(tmp_path), JOB)
    with pytest.raises(OSError, match="not a regular file"):
        chunks.read(1)


def test_missing_bucket_is_one_sentence(s3: Callable[[str], Any]) -> None:
    with pytest.raises(DecisionError, match="nowhere"):
        ChunkStore(open_location("s3://nowhere/scores", DecisionError), JOB)
