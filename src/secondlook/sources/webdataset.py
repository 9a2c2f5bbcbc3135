"""`webdataset:LOCATION`: tar files in which the files of a sample share their name up to the first dot."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from secondlook.errors import SourceError, reject_failures
from secondlook.file_systems import LOCATION_OPTIONS, FileEntry, Location
from secondlook.sources.encoded_sources import Labeling, ShardedSource, find_shards, map_shards, open_shard
from secondlook.sources.image_files import SUFFIXES
from secondlook.sources.labels import parse_labels
from secondlook.sources.reading_threads import SharedCache
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec

MAX_HEADER_BYTES = 2**20
"""Maximum size of the headers of one member; tar files can have headers of any size."""

MAX_LABEL_BYTES = 2**12
MAX_OPEN_FILES = 32
BYTES_READ_AHEAD = 2**20
"""Headers of small members are found in what was read with the one before, instead of by a request for each."""


@source_scheme(
    "webdataset",
    form="webdataset:LOCATION",
    summary="WebDataset: a tar file or a folder of them, local or a URL, with an image and a .cls file per sample",
    options=("image", "label", "classes", *LOCATION_OPTIONS),
)
def open_webdataset(spec: Spec, read_options: ReadOptions) -> "WebDatasetSource":
    """Open tar files; their headers are read once, and images by their offsets."""
    location, shards = find_shards(spec, ".tar")
    indexes = map_shards(lambda shard: _index_shard(location, shard, spec), shards)
    samples = [(number, sample) for number, index in enumerate(indexes) for sample in index]
    if not samples:
        listed = ", ".join(f".{suffix}" for suffix in _list_image_suffixes(spec))
        raise SourceError(f"no images ({listed}) in the tar files of {spec.location!r}; expected one per sample.")
    ids = [f"{shards[number].name}/{sample.key}" for number, sample in samples]
    places = np.array([(number, sample.start, sample.length) for number, sample in samples], dtype=np.int64)
    texts = [sample.label for _, sample in samples]
    labeling = Labeling(*parse_labels(texts, spec, lambda index: f"sample {ids[index]!r}"))
    return WebDatasetSource(str(spec), location, shards, places, ids, read_options, labeling)


class WebDatasetSource(ShardedSource):
    """Images in tar files; a place is the number of the tar file, the offset of the image there, and its length."""

    def _read_encoded(self, index: int) -> bytes:
        number, start, length = self.places[index].tolist()
        self._check_encoded_size(index, length)
        shard = self.shards[number]
        if self.is_remote:  # stays open, because to open it takes as long as to read an image
            opened = nullcontext(self._files.get(shard, lambda: open_shard(self.location, shard)))
        else:
            opened = open_shard(self.location, shard)
        with opened as file, self.location.translate_errors(shard.name, only_server=True):
            content: bytes = file.read_at(length, start)
        return content

    @cached_property
    def _files(self) -> SharedCache:
        return SharedCache(MAX_OPEN_FILES)


class TarSample(NamedTuple):
    """An image in a tar file: its key, offset and length, and its label as text ('' where it has none)."""

    key: str
    start: int
    length: int
    label: str


def _index_shard(location: Location, shard: FileEntry, spec: Spec) -> list[TarSample]:
    """Read the headers of a tar file, and the labels."""
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
    return [TarSample(key, *place, labels.get(key, "")) for key, found in images.items() for place in found.values()]


def _read_members(file: "_BoundedFile", spec: Spec) -> tuple[dict[str, dict[str, tuple[int, int]]], dict[str, str]]:
    """Return the images of each sample by suffix, with offset and length, in the order of samples, and its label."""
    image_suffixes = _list_image_suffixes(spec)
    label_suffix = spec.options.get("label", "cls").lower().removeprefix(".")
    images: dict[str, dict[str, tuple[int, int]]] = {}
    labels: dict[str, str] = {}
    for member in _read_headers(file):
        key, suffix = _split_name(member.name)
        if suffix not in (*image_suffixes, label_suffix):
            continue
        found = images.setdefault(key, {})  # also for a label, whose sample comes first if its label does
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

    `tarfile` takes a damaged header, and a file that is cut between two members, for the end of the archive.
    """
    with tarfile.open(fileobj=file, mode="r:") as archive:  # type: ignore[call-overload]
        last = -1
        while (member := archive.next()) is not None:
            archive.members.clear()  # which would keep all headers in memory
            if member.offset <= last or member.size < 0:
                raise ValueError(f"the header of member {member.name!r} is damaged")
            last = member.offset
            if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.sparse is None:
                yield member
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(f"it is damaged or cut short at byte {archive.offset}")


class _BoundedFile:
    """An open file from which at most `MAX_HEADER_BYTES` are read at once, whatever a header says."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes, above the limit of {MAX_HEADER_BYTES}")
        content: bytes = self._file.read(size)
        return content
