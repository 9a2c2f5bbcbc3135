"""Score files: Parquet, CSV or JSON lines, chosen by the suffix and written atomically."""

import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from secondlook.errors import DecisionError
from secondlook.files import write_atomically
from secondlook.registry import NamedRecord, Registry
from secondlook.tables import format_csv_row

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
        write_atomically(path, lambda file: find_format(path).write(file, schema, tables), clean=True)


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
    where = f"cannot write {what} to {str(path)!r}"
    if not folder.is_dir():
        raise DecisionError(f"{where}: there is no folder {str(folder)!r}; create it or change the path.")
    if not os.access(folder, os.W_OK):
        raise DecisionError(f"{where}: no permission to write in {str(folder)!r}; choose another path.")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:  # a loop of links, a name that is too long
        raise DecisionError(f"{where}: {os.strerror(error.errno or 0)}; choose another path.") from None
    if stat.S_ISDIR(mode):
        raise DecisionError(f"{where}: it is a folder; pass the path of a file.")
    if not stat.S_ISREG(mode):
        raise DecisionError(f"{where}: it is a pipe or a device; pass the path of a file.")


def _write_parquet(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            if len(table):
                writer.write_table(table)


def _write_csv(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    with open_text(file) as text:
        text.write(format_csv_row(schema.names))
        for table in tables:
            text.writelines(format_csv_row(map(_format_cell, row.values())) for row in table.to_pylist())


def _write_json_lines(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    with open_text(file) as text:
        for table in tables:
            text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())


@contextmanager
def open_text(file: BinaryIO) -> Iterator[io.TextIOWrapper]:
    """Yield a text file on top of a binary one that stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


def _format_cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, bool | list) else value


SCORE_FORMATS.add(
    ScoreFormat(
        ".parquet", "for pandas, polars, DuckDB and Spark; stores the policy in its metadata", write=_write_parquet
    )
)
SCORE_FORMATS.add(ScoreFormat(".csv", "for spreadsheets; lists are JSON in their cells", write=_write_csv))
SCORE_FORMATS.add(ScoreFormat(".jsonl", "one JSON object per line, for streaming", write=_write_json_lines))
