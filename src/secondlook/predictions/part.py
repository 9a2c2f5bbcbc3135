"""One part of a run: the answers to one view of a few images, in one Parquet file with its checksums inside."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray, Output
from secondlook.errors import PredictionsError
from secondlook.files import write_atomically
from secondlook.predictions.manifest import SkippedImage

GROUP_BYTES = 256 * 2**10
"""About how much of one view is read at once."""


class DamagedChunkError(PredictionsError):
    """A part that does not hold what was written."""


class DamagedChunkWarning(UserWarning):
    """Something stored was damaged and is made again."""


@dataclass(frozen=True)
class ChunkPlace:
    """Which part it is: written into the file, so that a file in the wrong place is noticed."""

    run: str
    view: str
    number: int


@dataclass(frozen=True)
class Chunk:
    """Answers float32 [n, C] to one view of the images with those indices in the source, int64 [n].

    Where no image could be read, n = 0 and C = 1 whatever the classifier is: the number of classes may not be known.
    """

    indices: IntArray
    answers: Float32Array
    skipped: tuple[SkippedImage, ...] = ()


def rows_per_group(classes: int) -> int:
    """Return how many rows are read and checked together: a power of two, from 16 to 1024."""
    fitting = max(1, GROUP_BYTES // (4 * classes))
    return min(1024, max(16, 1 << (fitting.bit_length() - 1)))


def write_chunk(path: Path, place: ChunkPlace, kind: Output, part: Chunk) -> None:
    """Write a part; the same part always gives the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes = part.answers.shape[1]
    rows = rows_per_group(classes)
    answers = pa.FixedSizeListArray.from_arrays(
        pa.array(np.ascontiguousarray(part.answers, dtype="<f4").reshape(-1)),
        type=pa.list_(pa.field("element", pa.float32(), nullable=False), classes),
    )
    fields = [pa.field("index", pa.int64(), nullable=False), pa.field(kind, answers.type, nullable=False)]
    schema = pa.schema(fields, metadata=_metadata(place, part, rows))
    table = pa.Table.from_arrays([pa.array(part.indices), answers], schema=schema)
    # Floats do not compress, and what is neither compressed nor coded is read fastest.
    write_atomically(
        path,
        lambda file: pq.write_table(
            table, file, row_group_size=rows, compression="none", use_dictionary=False, write_statistics=False
        ),
    )


def _metadata(place: ChunkPlace, part: Chunk, rows: int) -> dict[str, str]:
    groups = [slice(start, start + rows) for start in range(0, len(part.indices), rows)]
    return {
        "secondlook.run": place.run,
        "secondlook.view": place.view,
        "secondlook.part": str(place.number),
        "secondlook.skipped": json.dumps([image.model_dump() for image in part.skipped]),
        "secondlook.checksums": " ".join(_checksum(part.indices[g], part.answers[g]) for g in groups),
    }


def _checksum(indices: Array, answers: Array) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").data)
    digest.update(np.ascontiguousarray(answers, dtype="<f4").data)
    return digest.hexdigest()[:32]


class ChunkFile:
    """A part that is open for reading; whatever is read is compared with its checksum."""

    def __init__(self, path: Path, place: ChunkPlace, kind: Output) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self._kind = kind
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
            metadata = self._file.schema_arrow.metadata
            found = [metadata[f"secondlook.{name}".encode()].decode() for name in ("run", "view", "part")]
            self._checksums = metadata[b"secondlook.checksums"].decode().split()
            self.skipped = tuple(SkippedImage(**image) for image in json.loads(metadata[b"secondlook.skipped"]))
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from None
        if found != [place.run, place.view, str(place.number)]:
            raise self._damaged(f"it belongs to run {found[0]}, view {found[1]!r}, part {found[2]}")
        self.rows: int = self._file.metadata.num_rows

    @property
    def classes(self) -> int:
        """How many classes the answers are for."""
        size: int = self._file.schema_arrow.field(self._kind).type.list_size
        return size

    def read_groups(self, groups: Sequence[int]) -> Chunk:
        """Read and check some groups of `rows_per_group` rows."""
        if not groups:
            return Chunk(np.empty(0, dtype=np.int64), np.empty((0, 1), dtype=np.float32), self.skipped)
        pieces = [self._read_group(group) for group in groups]
        indices, answers = ([piece[i] for piece in pieces] for i in (0, 1))
        return Chunk(np.concatenate(indices), np.concatenate(answers), self.skipped)

    def read(self) -> Chunk:
        """Read and check all rows."""
        return self.read_groups(range(self._file.metadata.num_row_groups if self.rows else 0))

    def _read_group(self, group: int) -> tuple[IntArray, Float32Array]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, columns=["index", self._kind], use_threads=False)
            indices: Any = table["index"].combine_chunks().to_numpy()
            column = table[self._kind].combine_chunks()
            answers: Any = column.flatten().to_numpy().reshape(len(indices), column.type.list_size)
        except (OSError, pa.ArrowException, KeyError, ValueError, AttributeError) as error:
            raise self._unreadable(error) from None
        if group >= len(self._checksums) or _checksum(indices, answers) != self._checksums[group]:
            raise self._damaged(f"the checksum of row group {group} is wrong")
        return indices, answers

    def _unreadable(self, error: Exception) -> PredictionsError:
        """Tell what the system refuses for now (a busy disk, too many open files) from what is damaged."""
        if isinstance(error, OSError) and error.errno:
            return PredictionsError(
                f"the stored part {str(self.path)!r} cannot be read: {os.strerror(error.errno)}; nothing in it is "
                "known to be damaged: try again."
            )
        return self._damaged(str(error))

    def _damaged(self, why: str) -> DamagedChunkError:
        return DamagedChunkError(
            f"the stored part {str(self.path)!r} is damaged ({why}); collect into the same store again to recompute it."
        )
