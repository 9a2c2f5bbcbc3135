"""Score files: Parquet, CSV or JSON lines, chosen by the suffix and written atomically."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from secondlook.errors import DecisionError
from secondlook.files import TEMPORARY_SUFFIX, write_atomically
from secondlook.registry import NamedRecord, Registry

if TYPE_CHECKING:
    import pyarrow as pa

WriteTables = Callable[[BinaryIO, "pa.Schema", Iterable["pa.Table"]], None]
"""Writes tables of the given columns to an open file, one at a time."""


@dataclass(frozen=True)
class ScoreFormat(NamedRecord):
    """A format of score files; its name is the suffix of the files, such as '.csv'."""

    write: WriteTables


SCORE_FORMATS: Registry[ScoreFormat] = Registry("score format", DecisionError)
"""Every format of score files by its suffix."""


def find_format(path: Path) -> ScoreFormat:
    """Return the format of a score file."""
    return SCORE_FORMATS.find(path.suffix.lower(), where=f" of {str(path)!r}")


def write_scores(path: Path, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    """Write tables as one file, atomically."""
    with translate_write_errors("scores", path):
        replace_file(path, lambda file: find_format(path).write(file, schema, tables))


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically, and remove the temporary files that killed processes left for it."""
    for left in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 32}{TEMPORARY_SUFFIX}"):
        left.unlink(missing_ok=True)
    write_atomically(path, write)


@contextmanager
def translate_write_errors(what: str, path: Path) -> Iterator[None]:
    """Raise a `DecisionError` for an error of the disk while something is written."""
    try:
        yield
    except OSError as error:
        # Arrow has messages of its own, and an error number only sometimes.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DecisionError(
            f"cannot write {what} to {str(path)!r}: {reason}; free some space or choose another path, then run again "
            "to resume: progress is saved."
        ) from error


def check_output_path(path: Path, what: str) -> None:
    """Raise an error, before hours of work, if a file cannot be written to a path."""
    folder = path.parent
    if path.is_dir():
        raise DecisionError(f"cannot write {what} to {str(path)!r}: it is a folder; pass the path of a file.")
    if not folder.is_dir():
        raise DecisionError(
            f"cannot write {what} to {str(path)!r}: there is no folder {str(folder)!r}; create it or change the path."
        )
    if not os.access(folder, os.W_OK):
        raise DecisionError(
            f"cannot write {what} to {str(path)!r}: no permission to write in {str(folder)!r}; choose another path."
        )


def _write_parquet(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            if len(table):
                writer.write_table(table)


def _write_csv(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    with _open_text(file) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(schema.names)
        for table in tables:
            writer.writerows([_format_cell(value) for value in row.values()] for row in table.to_pylist())


def _write_json_lines(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    with _open_text(file) as text:
        for table in tables:
            text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())


@contextmanager
def _open_text(file: BinaryIO) -> Iterator[io.TextIOWrapper]:
    """Yield a text file on top of a binary one that stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


def _format_cell(value: Any) -> Any:
    if isinstance(value, bool | list):
        return json.dumps(value)
    return "" if value is None else value


SCORE_FORMATS.add(
    ScoreFormat(
        ".parquet", "for pandas, polars, DuckDB and Spark; stores the policy in its metadata", write=_write_parquet
    )
)
SCORE_FORMATS.add(ScoreFormat(".csv", "for spreadsheets; lists are JSON in their cells", write=_write_csv))
SCORE_FORMATS.add(ScoreFormat(".jsonl", "one JSON object per line, for streaming", write=_write_json_lines))
