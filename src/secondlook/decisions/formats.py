"""Score files: Parquet, CSV or JSON Lines, selected by suffix and written atomically."""

import csv
import datetime
import filecmp
import io
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pydantic_core import from_json

from secondlook.errors import DecisionError, Repair
from secondlook.files import write_atomically
from secondlook.registry import NamedRecord, Registry
from secondlook.tables import format_csv_row, unescape_formula

if TYPE_CHECKING:
    import pyarrow as pa

WriteTables = Callable[[BinaryIO, "pa.Schema", Iterable["pa.Table"]], None]
"""Writes tables of the given columns to an open file, one at a time."""
ReadTable = Callable[[bytes, Mapping[str, "pa.DataType"]], "pa.Table"]
"""Returns the given columns, if present, from the content of a score file; raises ValueError for other content."""
Peek = Callable[[Path], tuple[str | None, Mapping[str, str]]]
"""Returns the id of the first image of a score file, if any, and its metadata; raises ValueError for other files."""

SCORE_COLUMNS = {"id", "label", "confidence", "accept"}
"""Columns that identify a score file."""

REPLACE = Repair("pass {overwrite} to replace it, or choose another name", overwrite=True)


@dataclass(frozen=True)
class ScoreFormat(NamedRecord):
    """A format of score files; its name is the file suffix, like '.csv'.

    Without `peek`, an existing file is compared only after all scores are computed.
    """

    write: WriteTables
    peek: Peek | None = None
    read: ReadTable | None = None
    """None if `monitor` cannot read the format."""


SCORE_FORMATS: Registry[ScoreFormat] = Registry("score format", DecisionError)
"""Every format of score files by its suffix."""


def find_format(path: Path) -> ScoreFormat:
    """Return the format of a score file."""
    return SCORE_FORMATS.find(path.suffix.lower(), where=f" of {str(path)!r}")


def write_scores(path: Path, schema: "pa.Schema", tables: Iterable["pa.Table"], *, overwrite: bool) -> None:
    """Write tables as one file, atomically; replace a file with other content only if `overwrite` is set."""

    def write(file: BinaryIO) -> None:
        find_format(path).write(file, schema, tables)
        file.flush()
        if not overwrite and _has_content(path) and not filecmp.cmp(file.name, path, shallow=False):
            # The chunks of the job remain, so a repeated run computes nothing again.
            raise DecisionError(f"{_describe_existing(path)} holds other scores", repair=REPLACE)

    with translate_write_errors("scores", path):
        write_atomically(path, write, clean=True)


def check_replaceable(path: Path, metadata: Mapping[str, str], ids: Collection[str]) -> None:
    """Raise an error early if an existing file clearly differs from the scores that will be written.

    In a file without metadata, only the id of the first image is checked: it must be in `ids`.
    """
    peek = find_format(path).peek
    if peek is None or not _has_content(path):
        return
    try:
        first_id, stored = peek(path)
        found = {key: dict(from_json(stored[key])) for key in metadata if stored}
    except OSError:
        return  # writing will raise the reason
    except (ValueError, KeyError, TypeError, csv.Error):
        raise DecisionError(f"{_describe_existing(path)} is not a score file", repair=REPLACE) from None
    if first_id is not None and first_id not in ids:
        fault = f"{_describe_existing(path)} holds scores of other images, for example {first_id!r}"
        raise DecisionError(fault, repair=REPLACE)
    given = {key: from_json(metadata[key]) for key in found}
    different = [name for key in given for name in given[key] if given[key][name] != found[key].get(name)]
    if different:
        fault = f"{_describe_existing(path)} holds scores with another {', '.join(different)}"
        raise DecisionError(fault, repair=REPLACE)


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _describe_existing(path: Path) -> str:
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).astimezone()
    return f"the file {str(path)!r} of {written:%Y-%m-%d %H:%M}"


@contextmanager
def translate_write_errors(what: str, path: object) -> Iterator[None]:
    """Convert an `OSError` during writing to a `DecisionError`."""
    try:
        yield
    except OSError as error:
        # Errors of Arrow have their own message, and not always an error number.
        reason = os.strerror(error.errno) if error.errno else str(error)
        repair = "free some space or choose another path, then run again to resume: progress is saved"
        raise DecisionError(f"cannot write {what} to {str(path)!r}: {reason}", repair=repair) from error


def check_output_path(path: Path, what: str) -> None:
    """Raise an error early if a file cannot be written to a path."""
    where = f"cannot write {what} to {str(path)!r}"
    check_folder(path.parent, where)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:  # a loop of links, a name that is too long
        raise DecisionError(f"{where}: {os.strerror(error.errno or 0)}; choose another path.") from None
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
        raise DecisionError(f"{where}: it is a {kind}; pass the path of a file.")


def check_output_folder(path: Path, what: str) -> None:
    """Raise an error early if files cannot be written to a folder, which need not exist."""
    where = f"cannot write {what} to {str(path)!r}"
    if path.exists() and not path.is_dir():
        raise DecisionError(f"{where}: it is not a folder; pass one, or a file ending in {', '.join(SCORE_FORMATS)}.")
    check_folder(path if path.exists() else path.absolute().parent, where)


def check_folder(folder: Path, where: str) -> None:
    """Raise an error if files cannot be written to a folder; its message starts with `where`."""
    if not folder.is_dir():
        raise DecisionError(f"{where}: there is no folder {str(folder)!r}; create it or change the path.")
    if not os.access(folder, os.W_OK):
        raise DecisionError(f"{where}: no permission to write to {str(folder)!r}; choose another path.")


def _write_parquet(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            if len(table):
                writer.write_table(table)


def _write_csv(file: BinaryIO, schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    file.write(format_csv_row(schema.names).encode())
    for table in tables:
        for row in table.to_pylist():
            cells = (json.dumps(value) if isinstance(value, bool | list) else value for value in row.values())
            file.write(format_csv_row(cells).encode())


def _write_json_lines(file: BinaryIO, _schema: "pa.Schema", tables: Iterable["pa.Table"]) -> None:
    for table in tables:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in table.to_pylist())


def _peek_parquet(path: Path) -> tuple[str | None, Mapping[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            stored = {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
            if not set(file.schema_arrow.names) >= SCORE_COLUMNS or not stored:
                raise ValueError("other columns")
            rows = next(file.iter_batches(1, columns=["id"]), None)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None
    return None if rows is None else str(rows["id"][0]), stored


def _peek_csv(path: Path) -> tuple[str | None, Mapping[str, str]]:
    rows = csv.DictReader(io.StringIO(_read_beginning(path), newline=""))
    if not set(rows.fieldnames or ()) >= SCORE_COLUMNS:
        raise ValueError("other columns")
    first = next(rows, None)
    return None if first is None else unescape_formula(first["id"]), {}


def _peek_json_lines(path: Path) -> tuple[str | None, Mapping[str, str]]:
    first = from_json(_read_beginning(path).partition("\n")[0])
    if not set(first) >= SCORE_COLUMNS:
        raise ValueError("other columns")
    return str(first["id"]), {}


def _read_parquet(content: bytes, columns: Mapping[str, "pa.DataType"]) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(pa.BufferReader(content)) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        # A thread of Arrow could release the content during shutdown, which aborts the process.
        return file.read(columns=present, use_threads=False)


def _read_csv(content: bytes, columns: Mapping[str, "pa.DataType"]) -> "pa.Table":
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    lists = {name: kind for name, kind in columns.items() if pa.types.is_list(kind)}
    header = next(csv.reader(io.StringIO(content.decode(errors="replace"), newline="")), [])
    table = arrow_csv.read_csv(
        pa.BufferReader(content),
        arrow_csv.ReadOptions(use_threads=False),
        arrow_csv.ParseOptions(newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types={**columns, **dict.fromkeys(lists, pa.string())},
            include_columns=[name for name in columns if name in header],
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    for place, field in enumerate(table.schema):
        parse: Callable[[str], object] = from_json if field.name in lists else unescape_formula
        if pa.types.is_string(field.type):
            texts = (None if text is None else parse(text) for text in table[field.name].to_pylist())
            table = table.set_column(place, field.name, pa.array(texts, columns[field.name]))
    return table


def _read_json_lines(content: bytes, columns: Mapping[str, "pa.DataType"]) -> "pa.Table":
    import pyarrow as pa

    rows = [from_json(line) for line in content.splitlines()]
    present = [name for name in columns if all(name in row for row in rows)]
    return pa.table({name: pa.array([row[name] for row in rows], columns[name]) for name in present})


def _read_beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(2**20).decode(errors="replace")  # longer than any row


_PARQUET = "for pandas, polars, DuckDB and Spark; stores the policy in its metadata"
SCORE_FORMATS.add(ScoreFormat(".parquet", _PARQUET, _write_parquet, _peek_parquet, _read_parquet))
_CSV = "for spreadsheets; lists are stored as JSON"
SCORE_FORMATS.add(ScoreFormat(".csv", _CSV, _write_csv, _peek_csv, _read_csv))
_JSON_LINES = "one JSON object per line, for streaming"
SCORE_FORMATS.add(ScoreFormat(".jsonl", _JSON_LINES, _write_json_lines, _peek_json_lines, _read_json_lines))
