"""The images of a run: the id and, where known, the label of each, in one Parquet file."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import IntArray
from secondlook.files import write_atomically
from secondlook.predictions.part import DamagedChunkError, DamagedChunkWarning

FILE_NAME = "images.parquet"


def keep_images(folder: Path, ids: Sequence[str], labels: IntArray | None) -> None:
    """Write the file unless it is there and whole."""
    if (folder / FILE_NAME).is_file():
        try:
            read_images(folder)
        except DamagedChunkError as error:
            warnings.warn(f"writing again: {error}", DamagedChunkWarning, stacklevel=2)
        else:
            return
    write_images(folder, ids, labels)


def write_images(folder: Path, ids: Sequence[str], labels: IntArray | None) -> None:
    """Write ids and labels int64 [N] of all images of the source, the unreadable ones included."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"id": pa.array(list(ids), pa.string())}
    if labels is not None:
        columns["label"] = pa.array(np.asarray(labels, dtype=np.int64))
    checksum = _checksum(ids, labels)
    table = pa.table(columns).replace_schema_metadata({"secondlook.checksum": checksum})
    write_atomically(folder / FILE_NAME, lambda file: pq.write_table(table, file, write_statistics=False))


def read_images(folder: Path) -> tuple[list[str], IntArray | None]:
    """Return ids and labels of all images of the source."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / FILE_NAME
    try:
        table = pq.ParquetFile(path).read()
        ids: list[str] = table["id"].to_pylist()
        labels = table["label"].to_numpy() if "label" in table.column_names else None
        expected = table.schema.metadata[b"secondlook.checksum"].decode()
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if _checksum(ids, labels) != expected:
        raise _damaged(path, "its checksum is wrong")
    return ids, labels


def _checksum(ids: Sequence[str], labels: IntArray | None) -> str:
    digest = hashlib.sha256()
    for name in ids:
        digest.update(f"{len(name)}:{name}".encode())
    if labels is not None:
        digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> DamagedChunkError:
    return DamagedChunkError(f"{str(path)!r} is damaged ({why}); collect into the same store again to repair it.")
