"""Files of a store entry: chunks of outputs and the list of images, as Parquet files that contain their checksums."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray, Output
from secondlook.errors import PredictionsError
from secondlook.files import write_atomically
from secondlook.predictions.manifest import SkippedImage

IMAGES_FILE = "images.parquet"
_GROUP_BYTES = 256 * 2**10
"""Approximate size of one row group, the smallest unit that is read."""

SAVE_SECONDS = 30.0
"""An incomplete chunk is saved at the latest after this many seconds of work, or after the batch that takes longer."""

# Stored names: the metadata of a file calls the entry "run" and the chunk "part".
_KEY_FIELDS = ("secondlook.run", "secondlook.view", "secondlook.part")
_SKIPPED_FIELD = "secondlook.skipped"
_CHECKSUMS_FIELD = "secondlook.checksums"
_IMAGES_CHECKSUM_FIELD = "secondlook.checksum"


class DamagedChunkError(PredictionsError):
    """A stored file whose content is not what was written."""


class DamagedChunkWarning(UserWarning):
    """A stored file is damaged and will be replaced."""


@dataclass(frozen=True)
class ChunkKey:
    """Identifies a chunk; written into its file, so that a misplaced file is detected."""

    entry: str
    view: str
    number: int


@dataclass(frozen=True)
class Chunk:
    """Outputs float32 [n, classes] of one view for the images with the given source indices, int64 [n].

    If no image of the chunk could be read, the outputs have shape [0, 1]: the number of classes may be unknown.
    """

    indices: IntArray
    outputs: Float32Array
    skipped: tuple[SkippedImage, ...] = ()


def group_rows(classes: int) -> int:
    """Return the number of rows that are read and verified together: a power of two from 16 to 1024."""
    rows = max(1, _GROUP_BYTES // (4 * classes))
    return min(1024, max(16, 1 << (rows.bit_length() - 1)))


def write_chunk(path: Path, key: ChunkKey, kind: Output, chunk: Chunk) -> None:
    """Write a chunk; equal chunks give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes = chunk.outputs.shape[1]
    rows = group_rows(classes)
    outputs = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(chunk.outputs, dtype="<f4").reshape(-1)),
        type=pa.list_(pa.field("element", pa.float32(), nullable=False), classes),
    )
    fields = [pa.field("index", pa.int64(), nullable=False), pa.field(kind, outputs.type, nullable=False)]
    schema = pa.schema(fields, metadata=_chunk_metadata(key, chunk, rows))
    table = pa.Table.from_arrays([pa.array(chunk.indices), outputs], schema=schema)
    # Floats hardly compress, and plain values are the fastest to read.
    write_atomically(
        path,
        lambda file: pq.write_table(
            table, file, row_group_size=rows, compression="none", use_dictionary=False, write_statistics=False
        ),
    )


def _chunk_metadata(key: ChunkKey, chunk: Chunk, rows: int) -> dict[str, str]:
    groups = [slice(start, start + rows) for start in range(0, len(chunk.indices), rows)]
    return {
        **dict(zip(_KEY_FIELDS, (key.entry, key.view, str(key.number)), strict=True)),
        _SKIPPED_FIELD: json.dumps([image.model_dump() for image in chunk.skipped]),
        _CHECKSUMS_FIELD: " ".join(_chunk_checksum(chunk.indices[g], chunk.outputs[g]) for g in groups),
    }


def _chunk_checksum(indices: Array, outputs: Array) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").data)
    digest.update(np.ascontiguousarray(outputs, dtype="<f4").data)
    return digest.hexdigest()[:32]


class ChunkFile:
    """A chunk opened for reading; everything that is read is compared with its checksum."""

    def __init__(self, path: Path, key: ChunkKey, kind: Output) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self._kind = kind
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
            metadata = self._file.schema_arrow.metadata
            found = [metadata[name.encode()].decode() for name in _KEY_FIELDS]
            self._checksums = metadata[_CHECKSUMS_FIELD.encode()].decode().split()
            self.skipped = tuple(SkippedImage(**image) for image in json.loads(metadata[_SKIPPED_FIELD.encode()]))
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from None
        if found != [key.entry, key.view, str(key.number)]:
            raise self._damaged(f"it belongs to entry {found[0]}, view {found[1]!r}, chunk {found[2]}")
        self.rows: int = self._file.metadata.num_rows

    @property
    def classes(self) -> int:
        """Number of classes."""
        schema = self._file.schema_arrow
        if self._kind not in schema.names:
            raise self._damaged(f"it has no {self._kind}")
        size: int = schema.field(self._kind).type.list_size
        return size

    def read(self) -> Chunk:
        """Read and verify all rows."""
        return self.read_groups(range(self._file.metadata.num_row_groups if self.rows else 0))

    def read_groups(self, groups: Sequence[int]) -> Chunk:
        """Read and verify some row groups of `group_rows(classes)` rows."""
        if not groups:
            return Chunk(np.empty(0, dtype=np.int64), np.empty((0, 1), dtype=np.float32), self.skipped)
        indices, outputs = zip(*map(self._read_group, groups), strict=True)
        return Chunk(np.concatenate(indices), np.concatenate(outputs), self.skipped)

    def _read_group(self, group: int) -> tuple[IntArray, Float32Array]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, columns=["index", self._kind], use_threads=False)
            indices: Any = table["index"].combine_chunks().to_numpy()
            column = table[self._kind].combine_chunks()
            outputs: Any = column.flatten().to_numpy().reshape(len(indices), column.type.list_size)
        except (OSError, pa.ArrowException, KeyError, ValueError, AttributeError) as error:
            raise self._unreadable(error) from None
        if group >= len(self._checksums) or _chunk_checksum(indices, outputs) != self._checksums[group]:
            raise self._damaged(f"wrong checksum of row group {group}")
        return indices, outputs

    def _unreadable(self, error: Exception) -> PredictionsError:
        """Distinguish temporary failures (a busy disk, too many open files) from damage."""
        if isinstance(error, OSError) and error.errno:
            return PredictionsError(
                f"cannot read the stored chunk {str(self.path)!r}: {os.strerror(error.errno)}; "
                "the file may be intact, so try again."
            )
        return self._damaged(str(error))

    def _damaged(self, reason: str) -> DamagedChunkError:
        return DamagedChunkError(
            f"the stored chunk {str(self.path)!r} is damaged ({reason}); collect into the same store to recompute it."
        )


def read_partial_chunk(path: Path, key: ChunkKey, kind: Output) -> Chunk | None:
    """Read the saved part of an incomplete chunk; None if there is none. A damaged file is removed with a warning."""
    try:
        return ChunkFile(path, key, kind).read() if path.is_file() else None
    except DamagedChunkError as error:
        warnings.warn(f"recomputing an incomplete chunk: {error}", DamagedChunkWarning, stacklevel=2)
        path.unlink(missing_ok=True)
        return None


class SaveTimer:
    """Tells when the work since the last save would exceed `SAVE_SECONDS` with another batch like the last one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Count from now on: everything is saved."""
        self._saved_at = self._checked_at = self._clock()

    def is_due(self) -> bool:
        """Whether to save now; to be asked after every batch."""
        now = self._clock()
        last_batch, self._checked_at = now - self._checked_at, now
        return now + last_batch - self._saved_at > SAVE_SECONDS


def ensure_images_file(folder: Path, ids: Sequence[str], labels: IntArray | None) -> None:
    """Write the list of images if it is missing or damaged."""
    if (folder / IMAGES_FILE).is_file():
        try:
            read_images_file(folder)
        except DamagedChunkError as error:
            warnings.warn(f"rewriting the list of images: {error}", DamagedChunkWarning, stacklevel=2)
        else:
            return
    _write_images_file(folder, ids, labels)


def _write_images_file(folder: Path, ids: Sequence[str], labels: IntArray | None) -> None:
    """Write the ids and labels, int64 [N], of all images of the source, including unreadable ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"id": pa.array(list(ids), pa.string())}
    if labels is not None:
        columns["label"] = pa.array(np.asarray(labels, dtype=np.int64))
    metadata = {_IMAGES_CHECKSUM_FIELD: _images_checksum(ids, labels)}
    table = pa.table(columns).replace_schema_metadata(metadata)
    write_atomically(folder / IMAGES_FILE, lambda file: pq.write_table(table, file, write_statistics=False))


def read_images_file(folder: Path) -> tuple[list[str], IntArray | None]:
    """Read the ids and, if known, labels of all images of the source."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / IMAGES_FILE
    try:
        table = pq.ParquetFile(path).read()
        ids: list[str] = table["id"].to_pylist()
        labels = table["label"].to_numpy() if "label" in table.column_names else None
        expected = table.schema.metadata[_IMAGES_CHECKSUM_FIELD.encode()].decode()
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise _damaged_images_file(path, str(error)) from None
    if _images_checksum(ids, labels) != expected:
        raise _damaged_images_file(path, "wrong checksum")
    return ids, labels


def _images_checksum(ids: Sequence[str], labels: IntArray | None) -> str:
    digest = hashlib.sha256()
    for name in ids:
        digest.update(f"{len(name)}:{name}".encode())
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


def _damaged_images_file(path: Path, reason: str) -> DamagedChunkError:
    return DamagedChunkError(f"{str(path)!r} is damaged ({reason}); collect into the same store to repair it.")
