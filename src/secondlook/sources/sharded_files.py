"""Files with many images: `parquet:LOCATION` and the tar files of `webdataset:LOCATION`."""

import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic_core import from_json

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError, reject_failures
from secondlook.file_systems import LOCATION_OPTIONS, FileEntry, Location, open_location
from secondlook.sources.encoded_sources import REMOTE_THREADS, Labeling, ShardedSource
from secondlook.sources.image_files import SUFFIXES
from secondlook.sources.labels import hide_unpublished, parse_labels, read_class_names
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.regular_files import MAX_LOADED_BYTES, MAX_LOADED_ROWS, find_column, missing_root_error
from secondlook.sources.source import ReadOptions, UnreadableImageError, source_scheme
from secondlook.specs import Spec

T = TypeVar("T")

BYTES_FIELD = "bytes"
"""The field of a Hugging Face image column with the encoded images; the other field is 'path'."""

MIN_ROW_GROUPS, MAX_CACHED_BYTES = 2, 256_000_000
"""Row groups that a source caches: at least this number, and more up to this size."""

MAX_HEADER_BYTES = 2**20
"""Maximum size of the headers of one member; tar files can have headers of any size."""

MAX_LABEL_BYTES = 2**12
MAX_OPEN_FILES = 32
BYTES_READ_AHEAD = 2**20
"""Read ahead, so that the headers of small members need no separate requests."""


def _find_shards(spec: Spec, suffix: str) -> tuple[Location, list[FileEntry]]:
    """Return the folder and the files of a location: the file itself, or all files below it with the suffix."""
    location = open_location(spec.location, SourceError, spec.options)
    file = location.find()
    if file is not None:
        return location.parent, [file._replace(name=location.name)]
    shards = [file for file in location.list_files() if file.name.lower().endswith(suffix)]
    if not shards:
        found = f"has no {suffix} files" if location.exists() else "does not exist"
        raise SourceError(f"{location.url!r} {found}; {spec.scheme}: needs a {suffix} file, or a folder of them.")
    return location, shards


def _open_shard(location: Location, shard: FileEntry) -> Any:
    """Open a shard that has not changed since it was listed, as a `pyarrow.NativeFile`; it is thread-safe."""
    found, where = location.find(shard.name), location.locate(shard.name)
    if found is None:
        raise missing_root_error(where)
    if found != shard:
        raise SourceError(f"{where!r} has changed while it was in use; open it again.")
    return location.open(shard.name)


def _map_shards(function: Callable[[FileEntry], T], shards: Sequence[FileEntry]) -> list[T]:
    """Apply a function to all shards in parallel."""
    with ThreadPoolExecutor(min(REMOTE_THREADS, len(shards))) as pool:
        return list(pool.map(function, shards))


@source_scheme(
    "parquet",
    form="parquet:LOCATION",
    summary="a Parquet file or a folder of them, local or a URL, with encoded images in a column",
    options=("image", "label", "id", "classes", *LOCATION_OPTIONS),
)
def open_parquet(spec: Spec, read_options: ReadOptions) -> "ParquetSource":
    """Open Parquet files. Footers, ids and labels are read now, images when needed."""
    location, shards = _find_shards(spec, ".parquet")
    with _open_parquet(location, shards[0]) as file:
        schema = file.schema_arrow
    label = next((name for name in ("label", "labels") if name in schema.names), None)
    columns = ParquetColumns(
        _find_images(schema, spec),
        find_column(spec, "label", schema.names) if "label" in spec.options else label,
        find_column(spec, "id", schema.names) if "id" in spec.options else None,
    )
    class_names = read_class_names(spec) or _find_class_names(schema, columns.label)
    rows = _map_shards(lambda shard: _read_rows(location, shard, columns, spec), shards)
    labels = [labels for _, _, labels in rows if labels is not None]
    if len({part.dtype for part in labels}) > 1:
        fault = f"column {columns.label!r} has integers in some files of {spec.location!r} and texts in others"
        raise SourceError(fault, repair="use one of them")
    labeling = Labeling(hide_unpublished(np.concatenate(labels)) if labels else None, class_names)
    places = np.concatenate([np.insert(part, 0, number, axis=1) for number, (part, _, _) in enumerate(rows)])
    ids = [id_ for _, part, _ in rows for id_ in part]
    source = ParquetSource(str(spec), location, shards, places, ids, read_options, labeling)
    source.image = columns.image
    return source


class ParquetColumns(NamedTuple):
    """Names of the columns; None for missing labels or ids."""

    image: str
    label: str | None
    id: str | None


def _find_images(schema: Any, spec: Spec) -> str:
    """Return the only Hugging Face image column, or else the only column of bytes."""
    structs = [field.name for field in schema if _is_image_struct(field.type)]
    encoded = [field.name for field in schema if _has_bytes(field.type)]
    if "image" in spec.options:
        name = find_column(spec, "image", schema.names)
        if name not in structs + encoded:
            fault = f"column {name!r} of {spec.location!r} has the type {schema.field(name).type}"
            raise SourceError(f"{fault}; expected the bytes of encoded images.")
        return name
    found = structs or encoded
    if len(found) != 1:
        choice = f"choose one of {', '.join(found or schema.names)} with ?image=COLUMN"
        raise SourceError(f"{spec.location!r} has {len(found)} columns of encoded images; {choice}.")
    return str(found[0])


def _has_bytes(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_image_struct(kind: Any) -> bool:
    from pyarrow import types

    position = kind.get_field_index(BYTES_FIELD) if types.is_struct(kind) else -1
    return position >= 0 and _has_bytes(kind.field(position).type)


def _find_class_names(schema: Any, label: str | None) -> tuple[str, ...] | None:
    """Return the class names written by the datasets library, if any."""
    try:
        features = from_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _read_rows(
    location: Location, shard: FileEntry, columns: ParquetColumns, spec: Spec
) -> tuple[IntArray, list[str], Array | None]:
    """Return the row group and the row within it of each image, int64 [n, 2], its id, and its label, if any."""
    with _open_parquet(location, shard) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        if min(sizes, default=0) < 0 or sum(sizes) > MAX_LOADED_ROWS:
            raise ValueError(f"it has {sum(sizes)} rows, expected 0 to {MAX_LOADED_ROWS}")
        missing = [name for name in columns if name is not None and name not in file.schema_arrow.names]
        if missing:
            fault = f"{shard.name!r} has no column {missing[0]!r}, but other files of {spec.location!r} do"
            raise SourceError(f"{fault}; write it again.")
        table = file.read(columns=[name for name in columns[1:] if name is not None])
        if table.num_columns and table.num_rows != sum(sizes):
            raise ValueError(f"it has {table.num_rows} rows, but its row groups have {sum(sizes)}")
    ids = [f"{shard.name}#{row}" for row in range(sum(sizes))]
    if columns.id is not None:
        ids = [str(value) for value in _read_values(table, columns.id, shard, spec)]
    labels = None if columns.label is None else _read_values(table, columns.label, shard, spec)
    groups = np.repeat(np.arange(len(sizes)), np.array(sizes, dtype=np.int64))
    rows = np.concatenate([np.arange(0), *map(np.arange, sizes)])
    return np.column_stack([groups, rows]), ids, labels


def _read_values(table: Any, name: str, shard: FileEntry, spec: Spec) -> Array:
    """Return the values of a column of integers or texts. -> int64 or object [N]"""
    from pyarrow import types

    column = table[name]
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = f"row {column.is_null().to_numpy().argmax()} of {shard.name!r} in {spec.location!r}"
        raise SourceError(f"{row} has no value in column {name!r}; every row needs one.")
    is_text = types.is_string(column.type) or types.is_large_string(column.type) or types.is_string_view(column.type)
    if not is_text and not types.is_integer(column.type):
        fault = f"column {name!r} of {spec.location!r} has the type {column.type}"
        raise SourceError(f"{fault}; expected integers or texts.")
    return np.asarray(column.to_pylist(), dtype=object if is_text else np.int64)


class ParquetSource(ShardedSource):
    """Images in Parquet files; whole row groups are read. A place is the file, the row group and its row."""

    image: str
    """Name of the column of images."""

    @cached_property
    def _row_groups(self) -> SharedCache:
        return SharedCache(MAX_CACHED_BYTES, attrgetter("nbytes"), MIN_ROW_GROUPS)

    def _read_encoded(self, index: int) -> bytes:
        number, group, row = self.places[index].tolist()
        shard = self.shards[number]
        images = self._row_groups.get((shard, group), lambda: self._read_row_group(shard, group))
        content: bytes | None = images[row].as_py()
        if content is None:
            raise UnreadableImageError(self._name_image(index), "its row is empty")
        return content

    def _name_image(self, index: int) -> str:
        return f"{self.ids[index]} of {self.location.url}"

    def _read_row_group(self, shard: FileEntry, group: int) -> Any:
        """Return the encoded images of a row group, a chunked array of bytes [rows]."""
        from pyarrow import compute, types

        with _open_parquet(self.location, shard) as file:
            parts = file.metadata.row_group(group)
            # All columns together: on some damaged files, the size of a single column crashes the process.
            if parts.total_byte_size > MAX_LOADED_BYTES:
                size = f"{parts.total_byte_size} bytes in memory, above the limit of {MAX_LOADED_BYTES}"
                repair = "write the file again with fewer rows per row group"
                raise SourceError(f"row group {group} of {shard.name!r} takes {size}", repair=repair)
            is_struct = types.is_struct(file.schema_arrow.field(self.image).type)
            name = f"{self.image}.{BYTES_FIELD}" if is_struct else self.image
            images = file.read_row_group(group, columns=[name])[self.image]
            images.validate(full=True)
            if len(images) != parts.num_rows:
                raise ValueError(f"row group {group} has {len(images)} images, expected {parts.num_rows}")
        return compute.struct_field(images, BYTES_FIELD) if is_struct else images


@contextmanager
def _open_parquet(location: Location, shard: FileEntry) -> Iterator[Any]:
    """Open a Parquet file that has not changed since it was listed."""
    from pyarrow.parquet import ParquetFile

    where = location.locate(shard.name)
    with (
        reject_failures(f"{where!r} cannot be read as a Parquet file", "write it again", SourceError),
        _open_shard(location, shard) as file,
        location.translate_errors(shard.name, only_server=True),
        ParquetFile(file, pre_buffer=location.local_path is None, page_checksum_verification=True) as opened,
    ):
        yield opened


@source_scheme(
    "webdataset",
    form="webdataset:LOCATION",
    summary="WebDataset: a tar file or a folder of them, local or a URL, with an image and a .cls file per sample",
    options=("image", "label", "classes", *LOCATION_OPTIONS),
)
def open_webdataset(spec: Spec, read_options: ReadOptions) -> "WebDatasetSource":
    """Open tar files. Headers are read once; images are read by their offsets."""
    location, shards = _find_shards(spec, ".tar")
    indexes = _map_shards(lambda shard: _index_shard(location, shard, spec), shards)
    samples = [(number, *sample) for number, index in enumerate(indexes) for sample in index]
    if not samples:
        listed = ", ".join(f".{suffix}" for suffix in _list_image_suffixes(spec))
        raise SourceError(f"no images ({listed}) in the tar files of {spec.location!r}; expected one per sample.")
    ids = [f"{shards[number].name}/{key}" for number, key, *_ in samples]
    places = np.array([(number, start, length) for number, _, start, length, _ in samples], dtype=np.int64)
    labeling = Labeling(*parse_labels([row[-1] for row in samples], spec, lambda index: f"sample {ids[index]!r}"))
    return WebDatasetSource(str(spec), location, shards, places, ids, read_options, labeling)


class WebDatasetSource(ShardedSource):
    """Images in tar files; a place is the number of the tar file, and the offset and length of the image."""

    def _read_encoded(self, index: int) -> bytes:
        number, start, length = self.places[index].tolist()
        self._check_encoded_size(index, length)
        shard = self.shards[number]
        if self.is_remote:  # stays open: opening takes as long as reading an image
            opened = nullcontext(self._files.get(shard, lambda: _open_shard(self.location, shard)))
        else:
            opened = _open_shard(self.location, shard)
        with opened as file, self.location.translate_errors(shard.name, only_server=True):
            return bytes(file.read_at(length, start))

    @cached_property
    def _files(self) -> SharedCache:
        return SharedCache(MAX_OPEN_FILES)


def _index_shard(location: Location, shard: FileEntry, spec: Spec) -> list[tuple[str, int, int, str]]:
    """Return the key, offset, length and label ('' if missing) of each image of a tar file."""
    where = location.locate(shard.name)
    with (
        reject_failures(f"{where!r} cannot be read as a tar file", "write it again, without compression", SourceError),
        location.open(shard.name) as file,
        location.translate_errors(shard.name, only_server=True),
    ):
        images, labels = _read_members(_BoundedFile(io.BufferedReader(file, BYTES_READ_AHEAD)), spec)
    for key, found in images.items():
        if len(found) > 1:
            fault = f"sample {key!r} of {shard.name!r} in {spec.location!r} has several images ({', '.join(found)})"
            raise SourceError(f"{fault}; choose one with ?image=SUFFIX.")
    return [(key, *place, labels.get(key, "")) for key, found in images.items() for place in found.values()]


def _read_members(file: "_BoundedFile", spec: Spec) -> tuple[dict[str, dict[str, tuple[int, int]]], dict[str, str]]:
    """Return the images (suffix -> offset and length) and the label of each sample, in order."""
    image_suffixes = _list_image_suffixes(spec)
    label_suffix = spec.options.get("label", "cls").lower().removeprefix(".")
    images: dict[str, dict[str, tuple[int, int]]] = {}
    labels: dict[str, str] = {}
    for member in _read_headers(file):
        key, suffix = _split_name(member.name)
        if suffix not in (*image_suffixes, label_suffix):
            continue
        found = images.setdefault(key, {})  # also for a label, which may come first
        if suffix in found or (suffix not in image_suffixes and key in labels):
            raise ValueError(f"duplicate member {member.name!r}")
        if suffix in image_suffixes:
            found[suffix] = (member.offset_data, member.size)
        else:
            if member.size > MAX_LABEL_BYTES:
                raise ValueError(f"the label {member.name!r} has {member.size} bytes, more than {MAX_LABEL_BYTES}")
            file.seek(member.offset_data)
            labels[key] = file.read(member.size).decode("utf-8").strip()
    return images, labels


def _list_image_suffixes(spec: Spec) -> tuple[str, ...]:
    """Return the suffixes of images without their first dot."""
    if "image" in spec.options:
        return (spec.options["image"].lower().removeprefix("."),)
    return tuple(suffix.removeprefix(".") for suffix in SUFFIXES)


def _split_name(name: str) -> tuple[str, str]:
    """Return the key of a sample and the suffix of one of its files; the suffix of a hidden file is ''."""
    folder, _, base = name.removeprefix("./").rpartition("/")
    stem, _, suffix = base.partition(".")
    if not stem or any(part.startswith(".") for part in folder.split("/")):
        return name, ""
    return f"{folder}/{stem}" if folder else stem, suffix.lower()


def _read_headers(file: "_BoundedFile") -> Iterator[tarfile.TarInfo]:
    """Yield the regular members of a tar file; links, devices and sparse files are ignored.

    `tarfile` mistakes a damaged header, and a cut between two members, for the end of the archive.
    """
    with tarfile.open(fileobj=file, mode="r:") as archive:  # type: ignore[call-overload]
        last = -1
        while (member := archive.next()) is not None:
            archive.members.clear()  # frees the memory of the headers
            if member.offset <= last or member.size < 0:
                raise ValueError(f"the header of member {member.name!r} is damaged")
            last = member.offset
            if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None:
                yield member
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"it is damaged or cut short at byte {archive.offset}")


class _BoundedFile:
    """An open file that limits each read to `MAX_HEADER_BYTES`."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes, above the limit of {MAX_HEADER_BYTES}")
        return bytes(self._file.read(size))
