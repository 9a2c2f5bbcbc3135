"""Stores: folders of predictions. Each entry is one classifier on one source: a manifest, and chunks for each view."""

import hashlib
import json
import platform
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field, ValidationError, model_validator
from pydantic_core import from_json

import secondlook
from secondlook.arrays import Array, Float32Array, Float64Array, IntArray, Output, round_down_to_power_of_two, softmax
from secondlook.classifiers import Classifier
from secondlook.errors import ANY, PredictionsError, Repair
from secondlook.files import (
    Count,
    FrozenRecord,
    PositiveCount,
    SealedRecord,
    describe_invalid,
    exclusive_lock,
    read_regular_file,
    remove_temporary_files,
    shared_lock,
    write_bytes_atomically,
)
from secondlook.predictions.batching import Chunking
from secondlook.predictions.chunk_store import BrokenChunkError, ChunkStore, LocalStorage
from secondlook.sources import Source
from secondlook.views import ViewSet

FORMAT_VERSION: Literal[1] = 1
ENTRY_FILE = "manifest.json"
ENSEMBLE_FILE = "ensemble.json"
_IMAGES_FOLDER = "images"
_MANIFEST_LOCK = "manifest.lock"
_WRITERS_LOCK = "collecting.lock"
_VIEW = "secondlook.view"
_SKIPPED = "secondlook.skipped"
_RECOMPUTE = "collect into the same store to recompute it"
_GROUP_BYTES = 256 * 2**10
"""Approximate size of one row group, the smallest unit that is read."""

# --- Manifests: the classifier, data and views of an entry, validated at every read ---

EntryName = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
"""The name of an entry and of its folder: a digest, so that it cannot be a path to another folder."""


class ClassifierRecord(FrozenRecord):
    """The classifier and its preprocessing."""

    name: str
    digest: str
    output: Output
    preprocessing: dict[str, object]

    @classmethod
    def describe(cls, classifier: "Classifier | ClassifierRecord") -> "ClassifierRecord":
        """Return the record of a classifier."""
        if isinstance(classifier, ClassifierRecord):
            return classifier
        return cls(
            name=classifier.name,
            digest=classifier.digest,
            output=classifier.output,
            preprocessing=classifier.preprocessing.to_dict(),
        )


class Origin(NamedTuple):
    """The origin of predictions."""

    classifier: ClassifierRecord
    data: str
    """Spec of the images."""
    digest: str
    """Digest of the images."""
    versions: Mapping[str, str]
    """Versions of the packages used to collect the outputs."""

    @classmethod
    def describe(cls, classifier: Classifier, source: Source) -> "Origin":
        """Return the origin of predictions collected now."""
        return cls(ClassifierRecord.describe(classifier), source.spec, source.digest, _package_versions())


class DataRecord(FrozenRecord):
    """The images; the spec includes the subset, its fraction and the random seed."""

    spec: str
    digest: str
    images: PositiveCount
    labeled: bool
    class_names: tuple[str, ...] | None


class SkippedImage(FrozenRecord):
    """An image that could not be read, and the reason."""

    index: Count
    id: str
    reason: str


class Manifest(SealedRecord):
    """One entry: a classifier, its data and the views collected so far.

    It has no timestamps, so collecting the same outputs again writes the same bytes.
    """

    version: Literal[1] = FORMAT_VERSION
    classifier: ClassifierRecord
    data: DataRecord
    views: tuple[str, ...]
    rows_per_chunk: PositiveCount
    classes: PositiveCount | None = None
    skipped: tuple[SkippedImage, ...] = ()
    versions: dict[str, str]

    @model_validator(mode="after")
    def _check_skipped(self) -> Self:
        skipped = {image.index for image in self.skipped}
        if max(skipped, default=0) >= self.data.images:
            raise ValueError(f"skipped image {max(skipped)} is not among the {self.data.images} images")
        if len(skipped) == self.data.images:
            raise ValueError(f"all of the {self.data.images} images were skipped")
        return self

    @classmethod
    def create(cls, classifier: Classifier, source: Source, views: ViewSet, rows_per_chunk: int) -> Self:
        """Return the manifest of a new entry."""
        return cls(
            classifier=ClassifierRecord.describe(classifier),
            data=DataRecord(
                spec=source.spec,
                digest=source.digest,
                images=len(source),
                labeled=source.labels is not None,
                class_names=source.class_names,
            ),
            views=views.texts,
            rows_per_chunk=rows_per_chunk,
            versions=_package_versions(),
        )


class EnsembleManifest(SealedRecord):
    """An ensemble: the entry names of its members, in order."""

    version: Literal[1] = FORMAT_VERSION
    members: tuple[EntryName, ...] = Field(min_length=1)


def _package_versions() -> dict[str, str]:
    return {
        "secondlook": secondlook.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": version("pyarrow"),
    }


def entry_key(classifier: Classifier, source: Source) -> str:
    """Return the name of an entry: a digest of the classifier, its preprocessing and output, and the data.

    The name of an ensemble is a digest of the entry names of its members.
    """
    if classifier.members:
        return _digest(["ensemble", *(entry_key(member, source) for member in classifier.members), FORMAT_VERSION])
    if not classifier.digest:
        fault = f"classifier {classifier.name!r} has no name to store its outputs under"
        repair = "use {name}, and change the name when the function changes"
        raise PredictionsError(fault, repair=Repair(repair, of="load_classifier(function, ", name="v1"))
    settings = classifier.output, classifier.preprocessing.to_dict()
    return _digest([classifier.digest, *settings, source.digest, FORMAT_VERSION])


def view_key(view: str) -> str:
    """Return the folder name of a view: a digest, because view text may contain characters not allowed in paths."""
    return _digest(["view", view])


def _digest(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


AnyManifest = TypeVar("AnyManifest", Manifest, EnsembleManifest)


def write_manifest(path: Path, manifest: Manifest | EnsembleManifest) -> None:
    """Write a manifest atomically; a file with the same content is left alone."""
    content = manifest.model_dump_json(indent=2).encode() + b"\n"
    if not path.is_file() or path.read_bytes() != content:
        write_bytes_atomically(path, content)


def read_manifest(path: Path, kind: type[AnyManifest]) -> AnyManifest:
    """Read and validate a manifest."""
    try:
        return kind.model_validate_json(read_regular_file(path))
    except (OSError, ValidationError) as error:
        reason = describe_invalid(error) if isinstance(error, ValidationError) else str(error)
        repair = "delete its folder and collect again, or open it with the version of secondlook that wrote it"
        raise PredictionsError(f"the manifest {str(path)!r} is invalid ({reason})", repair=repair) from None


# --- Entries ---


class DamagedChunkError(PredictionsError):
    """A stored file is damaged."""


class DamagedChunkWarning(UserWarning):
    """A damaged file of a store is replaced."""


@dataclass(frozen=True)
class Chunk:
    """Outputs float32 [n, classes] of one view for the images with the given source indices, int64 [n].

    If no image of the chunk could be read, the outputs have shape [0, 1]: the number of classes may be unknown.
    """

    indices: IntArray
    outputs: Float32Array
    skipped: tuple[SkippedImage, ...] = ()

    def shift(self, first: int) -> "Chunk":
        """Return the chunk with source indices, if its first image is the image `first` of the source."""
        skipped = tuple(image.model_copy(update={"index": first + image.index}) for image in self.skipped)
        return Chunk(first + self.indices, self.outputs, skipped)


def group_rows(classes: int) -> int:
    """Return the number of rows per row group: a power of two from 16 to 1024."""
    return min(1024, max(16, round_down_to_power_of_two(_GROUP_BYTES // (4 * classes))))


@contextmanager
def translate_store_errors(folder: Path) -> Iterator[None]:
    """Raise `PredictionsError` if the store cannot be written: a full disk, missing permissions."""
    try:
        yield
    except OSError as error:
        fault = f"predictions cannot be stored in {str(folder)!r}: {error.strerror or error}"
        repair = "free space, make the folder writable or choose another {store}, and collect again to resume"
        raise PredictionsError(fault, repair=Repair(repair, store=ANY)) from error


@contextmanager
def _translate_read_errors(chunks: ChunkStore, number: int) -> Iterator[None]:
    """Distinguish damage from temporary failures: a busy disk, too many open files."""
    try:
        yield
    except BrokenChunkError as error:
        fault = f"the stored chunk {chunks.locate(number)!r} is damaged ({error})"
        raise DamagedChunkError(fault, repair=_RECOMPUTE) from None
    except OSError as error:
        raise PredictionsError(chunks.describe_read_error(number, error)) from None


class StoreEntry:
    """One entry of a store. Chunks are the source of truth; the manifest holds settings and derived values."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._chunks: dict[str, ChunkStore] = {}

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an existing entry."""
        return cls(folder, read_manifest(folder / ENTRY_FILE, Manifest))

    @classmethod
    def open_or_create(cls, folder: Path, manifest: Manifest) -> Self:
        """Open the entry and add the views of `manifest` to it, or create it with `manifest`."""
        path = folder / ENTRY_FILE
        with translate_store_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(folder / _MANIFEST_LOCK):
                merged = read_manifest(path, Manifest) if path.is_file() else manifest
                merged = merged.model_copy(update={"views": tuple(dict.fromkeys(merged.views + manifest.views))})
                if merged.data.images != manifest.data.images:
                    raise _contradiction(path, f"{merged.data.images} images, but there are {manifest.data.images}")
                write_manifest(path, merged)
        return cls(folder, merged)

    @contextmanager
    def lock_for_writing(self) -> Iterator[None]:
        """Lock the entry while writing chunks; first remove the temporary files of killed processes."""
        with ExitStack() as held:
            with translate_store_errors(self.folder):
                if held.enter_context(shared_lock(self.folder / _WRITERS_LOCK)):  # the only writer
                    # A process opening the entry writes the manifest without the writers' lock.
                    with exclusive_lock(self.folder / _MANIFEST_LOCK):
                        remove_temporary_files(self.folder, ENTRY_FILE)
                        for name in (_IMAGES_FOLDER, *map(view_key, self.manifest.views)):
                            if not (self.folder / name).is_symlink():
                                remove_temporary_files(self.folder / name, "part-*")
            yield

    @property
    def chunking(self) -> Chunking:
        """Division of the images into chunks."""
        return Chunking(self.manifest.data.images, self.manifest.rows_per_chunk)

    def chunks_of(self, view: str) -> ChunkStore:
        """Return the chunks of a view."""
        return self._open_chunks(view_key(view))

    def _open_chunks(self, name: str) -> ChunkStore:
        if name not in self._chunks:
            storage, job = LocalStorage(self.folder / name), f"{self.folder.name}/{name}"
            self._chunks[name] = ChunkStore(storage, job, is_shared=True)
        return self._chunks[name]

    def _write(self, name: str, number: int, table: Any, metadata: dict[str, str] | None, **options: Any) -> None:
        content = ChunkStore.encode(f"{self.folder.name}/{name}", number, table, metadata, **options)
        with translate_store_errors(self.folder):
            (self.folder / name).mkdir(exist_ok=True)
            self._open_chunks(name).write(number, content)

    def write_chunk(self, view: str, number: int, chunk: Chunk) -> None:
        """Write a chunk; equal chunks give equal bytes."""
        import pyarrow as pa

        classes = chunk.outputs.shape[1]
        outputs = pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(chunk.outputs, dtype=np.float32).reshape(-1)),
            type=pa.list_(pa.field("element", pa.float32(), nullable=False), classes),
        )
        kind = self.manifest.classifier.output
        fields = [pa.field("index", pa.int64(), nullable=False), pa.field(kind, outputs.type, nullable=False)]
        table = pa.Table.from_arrays([pa.array(chunk.indices), outputs], schema=pa.schema(fields))
        skipped = json.dumps([image.model_dump() for image in chunk.skipped])
        # Floats hardly compress, and plain values are fastest to read.
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        metadata = {_VIEW: view, _SKIPPED: skipped}
        self._write(view_key(view), number, table, metadata, row_group_size=group_rows(classes), **options)

    def read_rows(self, view: str, number: int, groups: Sequence[int]) -> tuple[IntArray, Float32Array]:
        """Read row groups of a chunk: source indices, int64 [n], and outputs, float32 [n, classes]."""
        kind, chunks = self.manifest.classifier.output, self.chunks_of(view)
        with _translate_read_errors(chunks, number):
            file = chunks.open(number)
            if groups and groups[-1] >= file.num_row_groups:
                raise BrokenChunkError("it has too few images")
            table = file.read_row_groups(groups, columns=["index", kind], use_threads=False)
            column = table[kind].combine_chunks()
            outputs: Float32Array = column.flatten().to_numpy().reshape(len(table), column.type.list_size)
            return table["index"].to_numpy(), outputs

    def _inspect(self, view: str, number: int) -> tuple[int | None, tuple[SkippedImage, ...]]:
        """Return the number of classes of a chunk, None if it has no rows, and its unreadable images."""
        chunks = self.chunks_of(view)
        with _translate_read_errors(chunks, number):
            file = chunks.open(number)
            kind, schema = self.manifest.classifier.output, file.schema_arrow
            if kind not in schema.names:
                raise BrokenChunkError(f"it has no {kind}")
            skipped = tuple(SkippedImage(**image) for image in from_json(schema.metadata[_SKIPPED.encode()]))
            return schema.field(kind).type.list_size if file.metadata.num_rows else None, skipped

    def remove_damaged_chunks(self, views: Sequence[str]) -> None:
        """Verify all existing chunks of the views; remove damaged chunks with a warning."""
        for number in self.chunking.numbers:
            existing = [view for view in views if number in self.chunks_of(view)]
            indices = {view: found for view in existing if (found := self._verify_chunk(view, number)) is not None}
            if len({found.tobytes() for found in indices.values()}) > 1:
                # An image was readable for only some views, but all views must have the same images.
                for view in indices:
                    self.chunks_of(view).delete(number)

    def remove_chunks_with(self, images: Iterable[int]) -> None:
        """Remove all chunks that contain any of the images, for all views."""
        for number in {image // self.manifest.rows_per_chunk for image in images}:
            for view in self.manifest.views:
                if number in self.chunks_of(view):
                    self.chunks_of(view).delete(number)

    def _verify_chunk(self, view: str, number: int) -> IntArray | None:
        """Return the image indices of a chunk, int64 [n]; None if it is damaged, after removing it."""
        chunks = self.chunks_of(view)
        try:
            _, skipped = self._inspect(view, number)
            with _translate_read_errors(chunks, number):
                indices: IntArray = chunks.open(number).read(columns=["index"], use_threads=False)["index"].to_numpy()
                found = np.union1d(indices, [image.index for image in skipped])
                if not np.array_equal(found, self.chunking.indices_of(number)):
                    raise BrokenChunkError("it does not contain the images it should")
        except DamagedChunkError as error:
            warnings.warn(f"recomputing a chunk: {error}", DamagedChunkWarning, stacklevel=2)
            chunks.delete(number)
            return None
        return indices

    def finalize(self) -> None:
        """Write the number of classes and the skipped images to the manifest, once all chunks exist."""
        found = [self._inspect(self.manifest.views[0], number) for number in self.chunking.numbers]
        classes = next((n_classes for n_classes, _ in found if n_classes), None)
        skipped = tuple(image for _, unreadable in found for image in unreadable)
        if len(skipped) == self.manifest.data.images:
            first = f"the first is {skipped[0].id!r}: {skipped[0].reason}"
            raise PredictionsError(f"none of the images of {self.manifest.data.spec!r} could be read; {first}")
        with translate_store_errors(self.folder), exclusive_lock(self.folder / _MANIFEST_LOCK):
            latest = read_manifest(self.folder / ENTRY_FILE, Manifest)
            self.manifest = latest.model_copy(update={"classes": classes, "skipped": skipped})
            write_manifest(self.folder / ENTRY_FILE, self.manifest)

    def check_complete(self, views: Sequence[str], n_images: int) -> None:
        """Raise an error if chunks are missing, or if the manifest contradicts the files with `n_images` images."""
        path = self.folder / ENTRY_FILE
        if self.manifest.data.images != n_images:  # a huge number would take forever
            raise _contradiction(path, f"{self.manifest.data.images} images, but {n_images} are listed")
        numbers = self.chunking.numbers
        missing = [view for view in views for number in numbers if number not in self.chunks_of(view)]
        if missing or self.manifest.classes is None:
            total, where = len(views) * len(numbers), f"{len(set(missing))} of {len(views)} views"
            found = f"{len(missing)} of {total} chunks are missing, in {where}"
            repair = Repair("collect into the same store to resume, or open other views with {views}", views=ANY)
            raise PredictionsError(f"the store entry {str(self.folder)!r} is incomplete: {found}", repair=repair)
        with_rows = int(self.readable_indices()[0]) // self.manifest.rows_per_chunk
        n_classes, _ = self._inspect(views[0], with_rows)
        if self.manifest.classes != n_classes:
            raise _contradiction(path, f"{self.manifest.classes} classes, but the outputs have {n_classes}")

    def check_none_skipped(self) -> None:
        """Raise an error if the entry has skipped images."""
        if self.manifest.skipped:
            first = self.manifest.skipped[0]
            fault = f"{len(self.manifest.skipped)} image(s) of {self.manifest.data.spec!r} could not be read"
            repair = Repair("repair or remove them, or pass {on_error}", on_error="skip")
            raise PredictionsError(f"{fault}; the first is {first.id!r}: {first.reason}", repair=repair)

    def ensure_images(self, ids: Sequence[str], labels: IntArray | None) -> None:
        """Write the ids and labels, int64 [N], of all images of the source, if missing or damaged."""
        import pyarrow as pa

        try:
            if 0 in self._open_chunks(_IMAGES_FOLDER):
                self.read_images()
                return
        except DamagedChunkError as error:
            warnings.warn(f"rewriting the list of images: {error}", DamagedChunkWarning, stacklevel=2)
            self._open_chunks(_IMAGES_FOLDER).delete(0)
        columns: dict[str, Any] = {"id": pa.array(list(ids), pa.string())}
        if labels is not None:
            columns["label"] = pa.array(np.asarray(labels, dtype=np.int64))
        self._write(_IMAGES_FOLDER, 0, pa.table(columns), None)

    def read_images(self) -> tuple[list[str], IntArray | None]:
        """Read the ids and, if known, labels of all images of the source, including unreadable ones."""
        chunks = self._open_chunks(_IMAGES_FOLDER)
        with _translate_read_errors(chunks, 0):
            table = chunks.read(0)
        return table["id"].to_pylist(), table["label"].to_numpy() if "label" in table.column_names else None

    def readable_indices(self) -> IntArray:
        """Return the source indices of the readable images, int64 [N]."""
        readable = np.ones(self.manifest.data.images, dtype=np.bool_)
        readable[[image.index for image in self.manifest.skipped]] = False
        return np.flatnonzero(readable)


def _contradiction(manifest: Path, claim: str) -> PredictionsError:
    return PredictionsError(f"the manifest {str(manifest)!r} claims {claim}; delete its folder and collect again.")


class Table(ABC):
    """Outputs [N, V, C] in memory or on disk, read in blocks."""

    kind: Output
    shape: tuple[int, int, int]
    """Number of images, views and classes."""
    rows_per_read: int = 1
    """Number of consecutive images that are read together."""

    @abstractmethod
    def read(self, images: IntArray, views: IntArray | None = None) -> Array:
        """Read outputs, float32 or float64 [len(images), len(views), C], into a new array; by default all views."""

    def read_probabilities(self, images: IntArray, views: IntArray | None = None) -> Float64Array:
        """Read probabilities, float64 [len(images), len(views), C], into a new array."""
        outputs = self.read(images, views)
        return softmax(outputs) if self.kind == "logits" else outputs.astype(np.float64, copy=False)


class StoredTable(Table):
    """Outputs of a complete entry for some views, read and verified on demand."""

    def __init__(self, entry: StoreEntry, views: tuple[str, ...]) -> None:
        assert entry.manifest.classes is not None, "the entry is complete"
        self._entry = entry
        self._views = views
        self._indices = entry.readable_indices()
        self._chunk_of = self._indices // entry.manifest.rows_per_chunk
        # Skipped images leave no gap: the row is the rank among the readable images of the chunk.
        self._row_of = np.arange(len(self._indices)) - np.searchsorted(self._chunk_of, self._chunk_of)
        self.kind = entry.manifest.classifier.output
        self.shape = len(self._indices), len(views), entry.manifest.classes
        self.rows_per_read = group_rows(entry.manifest.classes)

    def read(self, images: IntArray, views: IntArray | None = None) -> Float32Array:
        """Read outputs, float32 [len(images), len(views), C]."""
        chosen = self._views if views is None else [self._views[view] for view in views]
        outputs = np.empty((len(images), len(chosen), self.shape[2]), dtype=np.float32)
        chunks = self._chunk_of[images]
        for number in np.unique(chunks):
            places = np.flatnonzero(chunks == number)
            for column, view in enumerate(chosen):
                outputs[places, column] = self._read_chunk(view, int(number), images[places])
        return outputs

    def _read_chunk(self, view: str, number: int, images: IntArray) -> Array:
        rows = self._row_of[images]
        groups, group_of_row = np.unique(rows // self.rows_per_read, return_inverse=True)
        indices, outputs = self._entry.read_rows(view, number, groups.tolist())
        # All row groups of a chunk but the last are full.
        places = group_of_row * self.rows_per_read + rows % self.rows_per_read
        if len(indices) <= places.max() or not np.array_equal(indices[places], self._indices[images]):
            where = f"chunk {number} of view {view!r} in the store entry {self._entry.folder.name!r}"
            first = self._entry.manifest.views[0]
            raise DamagedChunkError(f"{where} has different images than view {first!r}", repair=_RECOMPUTE)
        chosen: Array = outputs[places]
        return chosen


def find_entry(store: Path, name: str | None) -> Path:
    """Return the folder of the only entry or ensemble of a store, or of the one with a name that starts with `name`.

    If `store` is itself the folder of an entry, it is returned.
    """
    if _is_entry(store):
        return store
    if not store.is_dir():
        raise PredictionsError(f"store {str(store)!r} does not exist; expected a folder written by `collect`.")
    folders = sorted(folder for folder in store.iterdir() if folder.is_dir() and _is_entry(folder))
    matches = [folder for folder in folders if folder.name.startswith(name or "")]
    if name is None:
        # Omit the members of ensembles in the same store.
        members = {member for folder in folders for member in read_member_names(folder)}
        matches = [folder for folder in matches if folder.name not in members]
    if len(matches) == 1:
        return matches[0]
    if not folders:
        raise PredictionsError(f"store {str(store)!r} is empty; expected a folder written by `collect`.")
    problem = f"has {len(matches)} entries" if name is None else f"has no unique entry starting with {name!r}"
    listed = "; ".join(map(_describe_entry, matches or folders))
    repair = Repair("choose one with {entry}", entry=ANY)
    raise PredictionsError(f"store {str(store)!r} {problem}: {listed}", repair=repair)


def _is_entry(folder: Path) -> bool:
    return (folder / ENTRY_FILE).is_file() or (folder / ENSEMBLE_FILE).is_file()


def read_member_names(folder: Path) -> tuple[str, ...]:
    """Return the entry names of an ensemble's members; empty for any other folder."""
    path = folder / ENSEMBLE_FILE
    return read_manifest(path, EnsembleManifest).members if path.is_file() else ()


def _describe_entry(folder: Path) -> str:
    if members := read_member_names(folder):
        return f"{folder.name} (ensemble of {len(members)})"
    manifest = read_manifest(folder / ENTRY_FILE, Manifest)
    data, views = manifest.data, len(manifest.views)
    return f"{folder.name} ({manifest.classifier.name} on {data.spec}: {data.images} images, {views} views)"
