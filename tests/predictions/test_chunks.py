"""Files of an entry: Parquet that other tools can read, the same bytes every time, and detection of damage."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.predictions.chunks import Chunk, ChunkFile, ChunkKey, DamagedChunkError, group_rows, write_chunk
from secondlook.predictions.manifest import SkippedImage

KEY = ChunkKey("entry", "hflip", 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Chunk]:
    path = tmp_path_factory.mktemp("chunk") / "chunk.parquet"
    outputs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    chunk = Chunk(np.array([0, 1, 3, 4, 5]), outputs, (SkippedImage(index=2, id="two", reason="truncated"),))
    write_chunk(path, KEY, "logits", chunk)
    return path, chunk


def test_chunk_is_read_as_written_and_always_has_the_same_bytes(written: tuple[Path, Chunk], tmp_path: Path) -> None:
    path, chunk = written
    read = ChunkFile(path, KEY, "logits").read()
    np.testing.assert_array_equal(read.indices, chunk.indices)
    np.testing.assert_array_equal(read.outputs, chunk.outputs)
    assert read.skipped == chunk.skipped
    write_chunk(tmp_path / "again", KEY, "logits", chunk)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_chunk_is_parquet_with_the_stored_names(written: tuple[Path, Chunk]) -> None:
    path, chunk = written
    table = pq.read_table(path)
    assert table.column_names == ["index", "logits"]
    assert table["index"].to_pylist() == chunk.indices.tolist()
    np.testing.assert_array_equal(np.array(table["logits"].to_pylist(), dtype=np.float32), chunk.outputs)
    names = ["run", "view", "part", "skipped", "checksums"]
    assert set(table.schema.metadata) == {f"secondlook.{name}".encode() for name in names}


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_any_flipped_bit_is_detected_or_harmless(written: tuple[Path, Chunk], data: st.DataObject) -> None:
    path, chunk = written
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = path.with_name("damaged.parquet")
    damaged.write_bytes(content)
    try:
        read = ChunkFile(damaged, KEY, "logits").read()
    except DamagedChunkError:
        return
    np.testing.assert_array_equal(read.outputs, chunk.outputs)
    np.testing.assert_array_equal(read.indices, chunk.indices)


def test_row_groups_are_bounded_powers_of_two() -> None:
    assert [group_rows(classes) for classes in (1, 10, 100, 1000, 21_000, 10**6)] == [1024, 1024, 512, 64, 16, 16]
