"""`parquet:LOCATION`: Parquet files with encoded images in a column."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError, reject_failures
from secondlook.file_systems import LOCATION_OPTIONS, FileEntry, Location, open_location
from secondlook.sources.encoded_sources import REMOTE_THREADS, Labeling, ShardedSource, find_shards, open_shard
from secondlook.sources.labels import read_class_names
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.regular_files import MAX_LOADED_BYTES, MAX_LOADED_ROWS, find_name
from secondlook.sources.source import ReadOptions, UnreadableImageError, source_scheme
from secondlook.specs import Spec

LABEL_NAMES = ("label", "labels")
BYTES_FIELD = "bytes"
"""The field of a Hugging Face image column that holds encoded images; the other one is 'path'."""

MIN_ROW_GROUPS, MAX_CACHED_BYTES = 2, 256_000_000
"""Row groups that a source keeps in memory: at least this number, and more while they are small."""


@source_scheme(
    "parquet",
    form="parquet:LOCATION",
    summary="a Parquet file or a folder of them, local or a URL, with encoded images in a column",
    options={
        "image": "name of the column of images; required if several columns have bytes",
        "label": "name of the column of labels (class indices or class names), 'label' or 'labels' by default",
        "id": "name of the column of ids; 'FILE#ROW' by default",
        "classes": "text file with one class name per line, in the order of the classifier's outputs",
        **LOCATION_OPTIONS,
    },
)
def open_parquet(spec: Spec, read_options: ReadOptions) -> "ParquetSource":
    """Open Parquet files; their footers, ids and labels are read now, images when they are needed."""
    location, shards = find_shards(open_location(spec.location, SourceError, spec.options), ".parquet", "parquet:")
    with _open_parquet(location, shards[0]) as file:
        columns = _find_columns(file.schema_arrow, spec)
        class_names = read_class_names(spec) or _find_class_names(file.schema_arrow, columns.label)
    with ThreadPoolExecutor(min(REMOTE_THREADS, len(shards))) as pool:
        rows = list(pool.map(lambda shard: _read_rows(location, shard, columns, spec), shards))
    labels = _join_labels([labels for _, _, labels in rows], columns.label, spec)
    return ParquetSource(
        str(spec),
        location,
        shards,
        _list_places([sizes for sizes, _, _ in rows]),
        [id_ for _, ids, _ in rows for id_ in ids],
        read_options,
        Labeling(labels, class_names),
        columns.image,
    )


def _list_places(group_sizes: Sequence[Sequence[int]]) -> IntArray:
    """Return the number of the file, the row group and the row there, of each row. -> int64 [N, 3]"""
    groups = [(number, group, size) for number, sizes in enumerate(group_sizes) for group, size in enumerate(sizes)]
    parts = [
        np.column_stack([np.broadcast_to((number, group), (size, 2)), np.arange(size)])
        for number, group, size in groups
    ]
    return np.concatenate([np.empty((0, 3), dtype=np.int64), *parts])


class ParquetColumns(NamedTuple):
    """Names of the columns; those of ids and labels are None where there are none."""

    image: str
    label: str | None
    id: str | None


def _find_columns(schema: Any, spec: Spec) -> ParquetColumns:
    label = next((name for name in LABEL_NAMES if name in schema.names), None)
    return ParquetColumns(
        _find_images(schema, spec),
        _check_option(spec, "label", schema.names) if "label" in spec.options else label,
        _check_option(spec, "id", schema.names) if "id" in spec.options else None,
    )


def _find_images(schema: Any, spec: Spec) -> str:
    """Return the only column of images of Hugging Face, or else the only column of bytes."""
    if "image" in spec.options:
        name = _check_option(spec, "image", schema.names)
        if not _has_bytes(schema.field(name).type) and not _is_image_struct(schema.field(name).type):
            raise SourceError(
                f"column {name!r} of {spec.location!r} has the type {schema.field(name).type}; expected the bytes of"
                " encoded images."
            )
        return name
    structs = [field.name for field in schema if _is_image_struct(field.type)]
    found = structs or [field.name for field in schema if _has_bytes(field.type)]
    if len(found) != 1:
        listed = ", ".join(found or schema.names)
        raise SourceError(
            f"{spec.location!r} has {len(found)} columns of encoded images; choose one of {listed} with ?image=COLUMN."
        )
    return str(found[0])


def _has_bytes(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_image_struct(kind: Any) -> bool:
    from pyarrow import types

    if not types.is_struct(kind):
        return False
    position = kind.get_field_index(BYTES_FIELD)
    return position >= 0 and _has_bytes(kind.field(position).type)


def _check_option(spec: Spec, option: str, names: Sequence[str]) -> str:
    hint = f"; name the column with ?{option}=COLUMN"
    return find_name(spec.options[option], names, "column", spec.location, hint)


def _find_class_names(schema: Any, label: str | None) -> tuple[str, ...] | None:
    """Return the class names that the datasets library writes into its files, if any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


class _Rows(NamedTuple):
    """The number of rows of each row group of a file, the ids of the rows, and their labels, if any."""

    group_sizes: list[int]
    ids: list[str]
    labels: Array | None


def _read_rows(location: Location, shard: FileEntry, columns: ParquetColumns, spec: Spec) -> _Rows:
    with _open_parquet(location, shard) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        if min(sizes, default=0) < 0 or sum(sizes) > MAX_LOADED_ROWS:
            raise ValueError(f"it has {sum(sizes)} rows, expected 0 to {MAX_LOADED_ROWS}")
        missing = [name for name in columns if name is not None and name not in file.schema_arrow.names]
        if missing:
            raise SourceError(
                f"{shard.name!r} has no column {missing[0]!r}, but other files of {spec.location!r} do; write it again."
            )
        table = file.read(columns=[name for name in columns[1:] if name is not None])
        if table.num_columns and table.num_rows != sum(sizes):
            raise ValueError(f"it has {table.num_rows} rows, but its row groups have {sum(sizes)}")
    ids = [f"{shard.name}#{row}" for row in range(sum(sizes))]
    if columns.id is not None:
        ids = [str(value) for value in _read_values(table, columns.id, shard, spec)]
    return _Rows(sizes, ids, None if columns.label is None else _read_values(table, columns.label, shard, spec))


def _read_values(table: Any, name: str, shard: FileEntry, spec: Spec) -> Array:
    """Return the values of a column of integers or texts. -> int64 or object [N]"""
    from pyarrow import types

    column = table[name]
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = column.is_null().to_numpy().argmax()
        raise SourceError(
            f"row {row} of {shard.name!r} in {spec.location!r} has no value in column {name!r}; every row needs one."
        )
    is_text = types.is_string(column.type) or types.is_large_string(column.type) or types.is_string_view(column.type)
    if not is_text and not types.is_integer(column.type):
        raise SourceError(
            f"column {name!r} of {spec.location!r} has the type {column.type}; expected integers or texts."
        )
    return np.asarray(column.to_pylist(), dtype=object if is_text else np.int64)


def _join_labels(labels: Sequence[Array | None], name: str | None, spec: Spec) -> Array | None:
    """Return the labels of all files, or None where all are -1, as in test splits whose labels are not published."""
    found = [part for part in labels if part is not None]
    if not found:
        return None
    if len({part.dtype for part in found}) > 1:
        raise SourceError(
            f"column {name!r} has integers in some files of {spec.location!r} and texts in others; use one of them."
        )
    joined = np.concatenate(found)
    return None if joined.size and bool((joined == -1).all()) else joined


class ParquetSource(ShardedSource):
    """Images in Parquet files; a place is the number of the file, the row group, and the row there.

    Row groups are read whole, when the first of their images is needed, and a few of them are kept.
    """

    def __init__(
        self,
        spec: str,
        location: Location,
        shards: Sequence[FileEntry],
        places: IntArray,
        ids: Sequence[str],
        read_options: ReadOptions,
        labeling: Labeling,
        image: str,
    ) -> None:
        super().__init__(spec, location, shards, places, ids, read_options, labeling)
        self.image = image
        self._row_groups = SharedCache(MAX_CACHED_BYTES, _count_bytes, MIN_ROW_GROUPS)

    def read_encoded(self, index: int) -> bytes:
        """Read one image from its row group."""
        number, group, row = self.places[index].tolist()
        shard = self.shards[number]
        images = self._row_groups.get((shard, group), lambda: self._read_row_group(shard, group))
        content: bytes | None = images[row].as_py()
        if content is None:
            raise UnreadableImageError(self.name_image(index), "its row is empty")
        return content

    def name_image(self, index: int) -> str:
        """Return the id of an image, and where it is."""
        return f"{self.ids[index]} of {self.location.url}"

    def _read_row_group(self, shard: FileEntry, group: int) -> Any:
        """Return the encoded images of a row group, a chunked array of bytes [rows]."""
        from pyarrow import compute, types

        with _open_parquet(self.location, shard) as file:
            parts = file.metadata.row_group(group)
            # All columns together: asking for the size of one ends the process on some damaged files.
            n_bytes = parts.total_byte_size
            if n_bytes > MAX_LOADED_BYTES:
                raise SourceError(
                    f"row group {group} of {shard.name!r} takes {n_bytes} bytes in memory, above the limit of"
                    f" {MAX_LOADED_BYTES}; write the file again with fewer rows per row group."
                )
            is_struct = types.is_struct(file.schema_arrow.field(self.image).type)
            name = f"{self.image}.{BYTES_FIELD}" if is_struct else self.image
            images = file.read_row_group(group, columns=[name])[self.image]
            images.validate(full=True)
            if len(images) != parts.num_rows:
                raise ValueError(f"row group {group} has {len(images)} images, expected {parts.num_rows}")
        return compute.struct_field(images, BYTES_FIELD) if is_struct else images


def _count_bytes(images: Any) -> int:
    return int(images.nbytes)


@contextmanager
def _open_parquet(location: Location, shard: FileEntry) -> Iterator[Any]:
    """Open a Parquet file that has not changed since it was listed."""
    from pyarrow.parquet import ParquetFile

    where = location.locate(shard.name)
    with (
        reject_failures(f"{where!r} cannot be read as a Parquet file", "write it again", SourceError),
        open_shard(location, shard) as file,
        location.translate_errors(shard.name, only_server=True),
        ParquetFile(file, pre_buffer=location.local_path is None, page_checksum_verification=True) as opened,
    ):
        yield opened
