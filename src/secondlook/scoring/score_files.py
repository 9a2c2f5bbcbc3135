"""The file that a scoring ends in: Parquet, CSV or JSON lines, by its suffix."""

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
from secondlook.registry import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

Write = Callable[[BinaryIO, "pa.Schema", Iterable["pa.Table"]], None]
"""(file, columns, tables with these columns) -> written one table at a time"""


@dataclass(frozen=True)
class ScoreFormat:
    """A kind of file: its suffix, what it is for, and how tables are written into it."""

    suffix: str
    summary: str
    write: Write


_formats: dict[str, ScoreFormat] = {}
"""Every format by its suffix."""


def score_format(suffix: str, summary: str) -> Callable[[Write], Write]:
    """Register the decorated function as the writer of files with this suffix."""

    def register(write: Write) -> Write:
        if suffix in _formats:
            raise DecisionError(f"the format {suffix!r} is registered already; choose another suffix.")
        _formats[suffix] = ScoreFormat(suffix, summary, write)
        return write

    return register


def format_of(path: Path) -> ScoreFormat:
    """Return the format that a file's suffix asks for."""
    suffix = path.suffix.lower()
    if suffix not in _formats:
        raise DecisionError(
            f"scores cannot be written as {str(path)!r}: its suffix {suffix!r} is none of {', '.join(_formats)}."
            + did_you_mean(suffix, _formats)
        )
    return _formats[suffix]


def write_scores(path: Path, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    """Write the tables as one file, whole or not at all."""
    with written("the scores", path):
        rewrite_file(path, lambda file: format_of(path).write(file, schema, tables))


def rewrite_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file, whole or not at all, and clear away what a killed process left aside when it tried."""
    for left in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 32}{TEMPORARY_SUFFIX}"):
        left.unlink(missing_ok=True)
    write_atomically(path, write)


@contextmanager
def written(what: str, path: Path) -> Iterator[None]:
    """Turn what the disk says while something is written into one sentence."""
    try:
        yield
    except OSError as error:
        # Arrow says it in words of its own, with the number of the error only sometimes.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DecisionError(
            f"{what} cannot be written to {str(path)!r}: {reason}; make room or choose another place, and start "
            "again: what is scored already is kept."
        ) from error


def check_place(path: Path, what: str) -> None:
    """Say before hours of work, not after, that a file cannot be put there."""
    if path.is_dir():
        raise DecisionError(f"{what} cannot be written to {str(path)!r}: it is a folder; give the name of a file.")
    folder = path.parent
    if not folder.is_dir():
        raise DecisionError(
            f"{what} cannot be written to {str(path)!r}: there is no folder {str(folder)!r}; make it or choose another."
        )
    if not os.access(folder, os.W_OK):
        raise DecisionError(
            f"{what} cannot be written to {str(path)!r}: the folder {str(folder)!r} may not be written in; "
            "choose another."
        )


@score_format(".parquet", "for pandas, polars, DuckDB and Spark; carries the policy in its metadata")
def _write_parquet(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            if len(table):
                writer.write_table(table)


@score_format(".csv", "for spreadsheets; lists are JSON in their cells")
def _write_csv(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    with _text(file) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(schema.names)
        for table in tables:
            writer.writerows([_cell(value) for value in row.values()] for row in table.to_pylist())


@score_format(".jsonl", "one JSON object per line, for anything that streams")
def _write_json_lines(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    with _text(file) as text:
        for table in tables:
            text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())


@contextmanager
def _text(file: BinaryIO) -> Iterator[io.TextIOWrapper]:
    """Give a text file over a binary one that stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


def _cell(value: Any) -> Any:
    if isinstance(value, bool | list):
        return json.dumps(value)
    return "" if value is None else value
