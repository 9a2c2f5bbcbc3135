"""Stores: folders of predictions. Each entry is one classifier on one source, with a folder of chunks per view."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray, Output
from secondlook.errors import PredictionsError
from secondlook.files import exclusive_lock, remove_temporary_files, shared_lock
from secondlook.predictions.batching import Chunking
from secondlook.predictions.chunks import (
    Chunk,
    ChunkFile,
    ChunkKey,
    DamagedChunkError,
    DamagedChunkWarning,
    group_rows,
    read_partial_chunk,
    write_chunk,
)
from secondlook.predictions.manifest import (
    ENSEMBLE_FILE,
    ENTRY_FILE,
    EnsembleManifest,
    Manifest,
    SkippedImage,
    read_manifest,
    view_key,
    write_manifest,
)

_MANIFEST_LOCK = "manifest.lock"
_WRITERS_LOCK = "collecting.lock"


@contextmanager
def translate_store_errors(folder: Path) -> Iterator[None]:
    """Raise `PredictionsError` for a store that cannot be written: a full disk, missing permissions."""
    try:
        yield
    except OSError as error:
        raise PredictionsError(
            f"predictions cannot be stored in {str(folder)!r}: {error.strerror or error}; free space, make the folder "
            "writable or choose another store=, and collect again: what is stored is reused."
        ) from error


class StoreEntry:
    """One entry of a store. Its chunks are the ground truth: the manifest holds only what they imply, or settings."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

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
                merged = read_manifest(path, Manifest).with_views(manifest.views) if path.is_file() else manifest
                if merged.data.images != manifest.data.images:
                    raise _contradiction(path, f"{merged.data.images} images, but there are {manifest.data.images}")
                write_manifest(path, merged)
        return cls(folder, merged)

    @contextmanager
    def lock_for_writing(self) -> Iterator[None]:
        """Hold the entry while chunks are written, after removing the temporary files of killed processes."""
        with ExitStack() as held:
            with translate_store_errors(self.folder):
                if held.enter_context(shared_lock(self.folder / _WRITERS_LOCK)):  # the only writer
                    # A process that is just opening the entry writes the manifest without the writers' lock.
                    with exclusive_lock(self.folder / _MANIFEST_LOCK):
                        for folder in (self.folder, *(self.folder / view_key(view) for view in self.manifest.views)):
                            remove_temporary_files(folder)
            yield

    @property
    def chunking(self) -> Chunking:
        """Division of the images into chunks."""
        return Chunking(self.manifest.data.images, self.manifest.rows_per_chunk)

    def chunk_path(self, view: str, number: int) -> Path:
        """Return the path of a chunk."""
        return self.folder / view_key(view) / f"part-{number:06d}.parquet"  # stored name

    def has_chunk(self, view: str, number: int) -> bool:
        """Whether a chunk exists; chunks are written atomically."""
        return self.chunk_path(view, number).is_file()

    def open_chunk(self, view: str, number: int) -> ChunkFile:
        """Open a chunk for reading."""
        key = ChunkKey(self.folder.name, view, number)
        return ChunkFile(self.chunk_path(view, number), key, self.manifest.classifier.output)

    def write_chunk(self, view: str, number: int, chunk: Chunk) -> None:
        """Write a chunk, and remove its saved part."""
        self._write(self.chunk_path(view, number), view, number, chunk)
        with translate_store_errors(self.folder):
            self.partial_path(view, number).unlink(missing_ok=True)

    def partial_path(self, view: str, number: int) -> Path:
        """Return the path of the saved part of an incomplete chunk."""
        return self.folder / view_key(view) / f"partial-{number:06d}.parquet"

    def read_partial(self, view: str, number: int) -> Chunk | None:
        """Return the saved part of an incomplete chunk: the outputs for its first images; None if there is none."""
        key = ChunkKey(self.folder.name, view, number)
        return read_partial_chunk(self.partial_path(view, number), key, self.manifest.classifier.output)

    def write_partial(self, view: str, number: int, chunk: Chunk) -> None:
        """Save a part of an incomplete chunk."""
        self._write(self.partial_path(view, number), view, number, chunk)

    def _write(self, path: Path, view: str, number: int, chunk: Chunk) -> None:
        with translate_store_errors(self.folder):
            path.parent.mkdir(exist_ok=True)
            write_chunk(path, ChunkKey(self.folder.name, view, number), self.manifest.classifier.output, chunk)

    def missing_chunks(self, views: Sequence[str]) -> list[tuple[str, int]]:
        """Return the view and number of each chunk that does not exist."""
        return [
            (view, number) for view in views for number in self.chunking.numbers if not self.has_chunk(view, number)
        ]

    def remove_damaged_chunks(self, views: Sequence[str]) -> None:
        """Read all existing chunks of the views, and remove damaged ones with a warning."""
        for number in self.chunking.numbers:
            existing = [view for view in views if self.has_chunk(view, number)]
            indices = {view: found for view in existing if (found := self._verify_chunk(view, number)) is not None}
            if len({found.tobytes() for found in indices.values()}) > 1:
                # An image was readable for one view only, but all views must have the same images.
                for view in indices:
                    self.chunk_path(view, number).unlink(missing_ok=True)

    def remove_chunks_with(self, images: Iterable[int]) -> None:
        """Remove the chunks, of all views, that contain any of the images."""
        for number in {image // self.manifest.rows_per_chunk for image in images}:
            for view in self.manifest.views:
                self.chunk_path(view, number).unlink(missing_ok=True)

    def _verify_chunk(self, view: str, number: int) -> IntArray | None:
        """Return the image indices of a chunk, int64 [n]; None if it is damaged, after removing it."""
        path = self.chunk_path(view, number)
        try:
            chunk = self.open_chunk(view, number).read()
            self._check_indices(path, number, chunk)
        except DamagedChunkError as error:
            warnings.warn(f"recomputing a chunk: {error}", DamagedChunkWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None
        return chunk.indices

    def _check_indices(self, path: Path, number: int, chunk: Chunk) -> None:
        skipped = np.array([image.index for image in chunk.skipped], dtype=np.int64)
        if not np.array_equal(np.union1d(chunk.indices, skipped), self.chunking.indices_of(number)):
            raise DamagedChunkError(f"the stored chunk {str(path)!r} does not contain the images it should.")

    def finalize(self) -> None:
        """Write the number of classes and the skipped images, known once all chunks exist, to the manifest."""
        skipped: tuple[SkippedImage, ...] = ()
        classes = 0
        for number in self.chunking.numbers:  # one at a time: the number of open files is limited
            file = self.open_chunk(self.manifest.views[0], number)
            skipped += file.skipped
            classes = classes or (file.classes if file.rows else 0)
        if len(skipped) == self.manifest.data.images:
            raise PredictionsError(
                f"none of the {len(skipped)} images of {self.manifest.data.spec!r} could be read; "
                f"the first is {skipped[0].id!r}: {skipped[0].reason}"
            )
        with translate_store_errors(self.folder), exclusive_lock(self.folder / _MANIFEST_LOCK):
            self._remove_obsolete_partials()
            latest = read_manifest(self.folder / ENTRY_FILE, Manifest)
            self.manifest = latest.model_copy(update={"classes": classes, "skipped": skipped})
            write_manifest(self.folder / ENTRY_FILE, self.manifest)

    def _remove_obsolete_partials(self) -> None:
        """Remove saved parts of chunks that another process completed; a killed process may leave one."""
        for view, number in ((view, number) for view in self.manifest.views for number in self.chunking.numbers):
            if self.has_chunk(view, number):
                self.partial_path(view, number).unlink(missing_ok=True)

    def check_complete(self, views: Sequence[str], n_images: int) -> None:
        """Raise an error if chunks of the views are missing, or the manifest contradicts the files.

        `n_images` is the number of images that are listed.
        """
        path = self.folder / ENTRY_FILE
        if self.manifest.data.images != n_images:  # whose chunks could take forever to look for
            raise _contradiction(path, f"{self.manifest.data.images} images, but {n_images} are listed")
        missing = self.missing_chunks(views)
        if missing or self.manifest.classes is None:
            raise PredictionsError(
                f"the store entry {str(self.folder)!r} is incomplete: {len(missing)} of "
                f"{len(views) * len(self.chunking.numbers)} chunks are missing, in {len({view for view, _ in missing})}"
                f" of {len(views)} views; collect into the same store to resume, or open other views with views=."
            )
        with_rows = int(self.readable_indices()[0]) // self.manifest.rows_per_chunk
        n_classes = self.open_chunk(views[0], with_rows).classes
        if self.manifest.classes != n_classes:
            raise _contradiction(path, f"{self.manifest.classes} classes, but the outputs have {n_classes}")

    def check_none_skipped(self) -> None:
        """Raise an error if the entry has skipped images."""
        if self.manifest.skipped:
            first = self.manifest.skipped[0]
            raise PredictionsError(
                f"{len(self.manifest.skipped)} image(s) of {self.manifest.data.spec!r} could not be read; the first is "
                f"{first.id!r}: {first.reason}; repair or remove them, or pass on_error='skip'."
            )

    def readable_indices(self) -> IntArray:
        """Return the source indices of the images that could be read, int64 [N]."""
        readable = np.ones(self.manifest.data.images, dtype=np.bool_)
        readable[[image.index for image in self.manifest.skipped]] = False
        return np.flatnonzero(readable)


def _contradiction(manifest: Path, claim: str) -> PredictionsError:
    return PredictionsError(f"the manifest {str(manifest)!r} claims {claim}; delete its folder and collect again.")


class StoredTable:
    """Outputs [N, V, C] of a complete entry for some views, read from disk and verified on demand."""

    def __init__(self, entry: StoreEntry, views: tuple[str, ...]) -> None:
        assert entry.manifest.classes is not None, "the entry is complete"
        self._entry = entry
        self._views = views
        self._classes = entry.manifest.classes
        self._indices = entry.readable_indices()
        self._chunk_of = self._indices // entry.manifest.rows_per_chunk
        # Skipped images leave no gap in a chunk: the row is the rank among the readable images of the chunk.
        self._row_of = np.arange(len(self._indices)) - np.searchsorted(self._chunk_of, self._chunk_of)

    @property
    def kind(self) -> Output:
        """Whether the outputs are logits or probabilities."""
        return self._entry.manifest.classifier.output

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of images, views and classes."""
        return len(self._indices), len(self._views), self._classes

    @property
    def rows_per_read(self) -> int:
        """Number of consecutive images that are read as a unit."""
        return group_rows(self._classes)

    def read(self, images: IntArray, views: IntArray) -> Float32Array:
        """Read outputs, float32 [len(images), len(views), C]."""
        outputs = np.empty((len(images), len(views), self._classes), dtype=np.float32)
        chunks = self._chunk_of[images]
        for number in np.unique(chunks):
            places = np.flatnonzero(chunks == number)
            for column, view in enumerate(views):
                outputs[places, column] = self._read_chunk(self._views[view], int(number), images[places])
        return outputs

    def _read_chunk(self, view: str, number: int, images: IntArray) -> Array:
        rows = self._row_of[images]
        groups, group_of_row = np.unique(rows // self.rows_per_read, return_inverse=True)
        chunk = self._entry.open_chunk(view, number).read_groups(groups.tolist())
        # All row groups of a chunk but the last are full, so each starts where the full ones before it end.
        places = group_of_row * self.rows_per_read + rows % self.rows_per_read
        if len(chunk.indices) <= places.max() or not np.array_equal(chunk.indices[places], self._indices[images]):
            raise DamagedChunkError(
                f"chunk {number} of view {view!r} in the store entry {self._entry.folder.name!r} has other images than "
                f"that of view {self._entry.manifest.views[0]!r}; collect into the same store to recompute it."
            )
        outputs: Array = chunk.outputs[places]
        return outputs


def find_entry(store: Path, name: str | None) -> Path:
    """Return the folder of the only entry or ensemble of a store, or of the one whose name starts with `name`.

    If `store` is itself the folder of an entry, it is returned.
    """
    if _is_entry(store):
        return store
    if not store.is_dir():
        raise PredictionsError(f"store {str(store)!r} does not exist; expected a folder written by collect(store=...).")
    folders = sorted(folder for folder in store.iterdir() if folder.is_dir() and _is_entry(folder))
    matches = [folder for folder in folders if folder.name.startswith(name or "")]
    if name is None:
        matches = _exclude_members(matches)
    if len(matches) != 1:
        raise PredictionsError(_describe_ambiguity(store, name, matches or folders))
    return matches[0]


def open_members(folder: Path) -> list[StoreEntry]:
    """Open the entries of an ensemble's members; empty if the folder is not that of an ensemble."""
    if not (folder / ENSEMBLE_FILE).is_file():
        return []
    return [StoreEntry.open(folder.parent / name) for name in _read_member_names(folder)]


def _is_entry(folder: Path) -> bool:
    return (folder / ENTRY_FILE).is_file() or (folder / ENSEMBLE_FILE).is_file()


def _read_member_names(ensemble: Path) -> tuple[str, ...]:
    return read_manifest(ensemble / ENSEMBLE_FILE, EnsembleManifest).members


def _exclude_members(folders: Sequence[Path]) -> list[Path]:
    """Exclude the members of ensembles in the same store: the ensemble is what was collected."""
    ensembles = [folder for folder in folders if (folder / ENSEMBLE_FILE).is_file()]
    members = {name for ensemble in ensembles for name in _read_member_names(ensemble)}
    return [folder for folder in folders if folder.name not in members]


def _describe_ambiguity(store: Path, name: str | None, folders: Sequence[Path]) -> str:
    if not folders:
        return f"store {str(store)!r} is empty; expected a folder written by collect(store=...)."
    problem = f"has {len(folders)} entries" if name is None else f"has no unique entry starting with {name!r}"
    return f"store {str(store)!r} {problem}; choose one with entry=: {'; '.join(map(_describe_entry, folders))}."


def _describe_entry(folder: Path) -> str:
    if (folder / ENSEMBLE_FILE).is_file():
        return f"{folder.name} (ensemble of {len(_read_member_names(folder))})"
    manifest = read_manifest(folder / ENTRY_FILE, Manifest)
    return (
        f"{folder.name} ({manifest.classifier.name} on {manifest.data.spec}: "
        f"{manifest.data.images} images, {len(manifest.views)} views)"
    )
