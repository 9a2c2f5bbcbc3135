"""`webdataset:LOCATION`: tar files in which the files of a sample share their name up to the first dot."""

import io
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from secondlook.errors import SourceError, reject_failures
from secondlook.file_systems import LOCATION_OPTIONS, FileEntry, Location, open_location
from secondlook.sources.encoded_sources import REMOTE_THREADS, Labeling, ShardedSource, find_shards, open_shard
from secondlook.sources.image_files import SUFFIXES
from secondlook.sources.labels import parse_labels, read_class_names
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
    options={
        "image": "suffix of the images, such as 'jpg'; required if samples have several",
        "label": "suffix of the labels, 'cls' by default",
        "classes": "text file with one class name per line, in the order of the classifier's outputs",
        **LOCATION_OPTIONS,
    },
)
def open_webdataset(spec: Spec, read_options: ReadOptions) -> "WebDatasetSource":
    """Open tar files; their headers are read once, and images by their offsets."""
    location, shards = find_shards(open_location(spec.location, SourceError, spec.options), ".tar", "webdataset:")
    with ThreadPoolExecutor(min(REMOTE_THREADS, len(shards))) as pool:
        indexes = list(pool.map(lambda shard: _index_shard(location, shard, spec), shards))
    samples = [sample for index in indexes for sample in index]
    if not samples:
        listed = ", ".join(f".{suffix}" for suffix in _list_image_suffixes(spec))
        raise SourceError(f"no images ({listed}) in the tar files of {spec.location!r}; expected one per sample.")
    ids = [f"{shard.name}/{sample.key}" for shard, index in zip(shards, indexes, strict=True) for sample in index]
    numbers = np.repeat(np.arange(len(shards)), [len(index) for index in indexes])
    places = np.column_stack([numbers, np.array([(sample.start, sample.length) for sample in samples], dtype=np.int64)])
    texts, names = [sample.label for sample in samples], read_class_names(spec)
    labels, names = parse_labels(texts, names, lambda index: f"sample {ids[index]!r}", spec.location)
    return WebDatasetSource(str(spec), location, shards, places, ids, read_options, Labeling(labels, names))


class WebDatasetSource(ShardedSource):
    """Images in tar files; a place is the number of the tar file, the offset of the image there, and its length."""

    def read_encoded(self, index: int) -> bytes:
        """Read one image from its tar file."""
        number, start, length = self.places[index].tolist()
        self.check_encoded_size(index, length)
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
        return SharedCache(MAX_OPEN_FILES, _count_one)


def _count_one(_file: Any) -> int:
    return 1


class _Sample(NamedTuple):
    """An image in a tar file: its key, offset and length, and its label as text ('' where it has none)."""

    key: str
    start: int
    length: int
    label: str


@dataclass
class _Members:
    """The members of a sample that are read: images by suffix, with offset and length, and the label."""

    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    label: str | None = None


def _index_shard(location: Location, shard: FileEntry, spec: Spec) -> list[_Sample]:
    """Read the headers of a tar file, and the labels."""
    where = location.locate(shard.name)
    with (
        reject_failures(f"{where!r} cannot be read as a tar file", "write it again, without compression", SourceError),
        location.open(shard.name) as file,
        location.translate_errors(shard.name, only_server=True),
    ):
        members = _collect_members(_BoundedFile(io.BufferedReader(file, BYTES_READ_AHEAD)), spec)
    return [
        _Sample(key, *_choose_image(key, found.images, shard, spec), found.label or "")
        for key, found in members.items()
        if found.images
    ]


def _collect_members(file: "_BoundedFile", spec: Spec) -> Mapping[str, _Members]:
    image_suffixes = _list_image_suffixes(spec)
    label_suffix = spec.options.get("label", "cls").lower().removeprefix(".")
    samples: dict[str, _Members] = {}
    for member in _read_headers(file):
        key, suffix = _split_name(member.name)
        if suffix in image_suffixes:
            images = samples.setdefault(key, _Members()).images
            if suffix in images:
                raise ValueError(f"duplicate member {member.name!r}")
            images[suffix] = (member.offset_data, member.size)
        elif suffix == label_suffix:
            sample = samples.setdefault(key, _Members())
            if sample.label is not None:
                raise ValueError(f"duplicate member {member.name!r}")
            sample.label = _read_label(file, member)
    return samples


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


def _read_label(file: "_BoundedFile", member: tarfile.TarInfo) -> str:
    if member.size > MAX_LABEL_BYTES:
        raise ValueError(f"the label {member.name!r} has {member.size} bytes, above the limit of {MAX_LABEL_BYTES}")
    file.seek(member.offset_data)
    return file.read(member.size).decode("utf-8").strip()


def _choose_image(key: str, images: Mapping[str, tuple[int, int]], shard: FileEntry, spec: Spec) -> tuple[int, int]:
    if len(images) > 1:
        raise SourceError(
            f"sample {key!r} of {shard.name!r} in {spec.location!r} has several images ({', '.join(images)}); choose"
            " one with ?image=SUFFIX."
        )
    return next(iter(images.values()))


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
