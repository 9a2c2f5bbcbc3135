"""The folder of one run: its manifest, its images, and its parts, one folder per view."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import PredictionsError
from secondlook.files import exclusive_lock, remove_temporary_files, shared_lock
from secondlook.predictions.division import Chunking
from secondlook.predictions.manifest import RUN_FILE, Manifest, SkippedImage, read_manifest, view_name, write_manifest
from secondlook.predictions.part import (
    Chunk,
    ChunkFile,
    ChunkPlace,
    DamagedChunkError,
    DamagedChunkWarning,
    write_chunk,
)
from secondlook.sources import HOW_TO_SKIP


class StoreEntry:
    """One run in a store. Its parts are its state: whatever the manifest does not say can be found in them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: Path) -> StoreEntry:
        """Open a run that is there."""
        return cls(folder, read_manifest(folder / RUN_FILE, Manifest))

    @classmethod
    def begin(cls, folder: Path, manifest: Manifest) -> StoreEntry:
        """Open the run of `manifest`, making it where it is not there yet, with the views of both."""
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / "manifest.lock"):
            known = folder / RUN_FILE
            merged = read_manifest(known, Manifest).with_views(manifest.views) if known.is_file() else manifest
            write_manifest(known, merged)
        return cls(folder, merged)

    @contextmanager
    def being_collected(self) -> Iterator[None]:
        """Hold the run while parts are written, and clear away first what killed processes left."""
        with shared_lock(self.folder / "collecting.lock") as nobody_else_writes:
            if nobody_else_writes:
                with exclusive_lock(
                    self.folder / "manifest.lock"
                ):  # another process may be writing its manifest just now
                    remove_temporary_files(self.folder)
            yield

    @property
    def division(self) -> Chunking:
        """Which images each part is about."""
        return Chunking(self.manifest.data.images, self.manifest.rows_per_part)

    def path_of(self, view: str, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / view_name(view) / f"part-{number:06d}.parquet"

    def has(self, view: str, number: int) -> bool:
        """Whether a part is there; it is there whole."""
        return self.path_of(view, number).is_file()

    def part_file(self, view: str, number: int) -> ChunkFile:
        """Open a part for reading."""
        place = ChunkPlace(self.folder.name, view, number)
        return ChunkFile(self.path_of(view, number), place, self.manifest.classifier.output)

    def keep(self, view: str, number: int, part: Chunk) -> None:
        """Write a part."""
        path = self.path_of(view, number)
        path.parent.mkdir(exist_ok=True)
        write_chunk(path, ChunkPlace(self.folder.name, view, number), self.manifest.classifier.output, part)

    def remove_damaged_parts(self, views: tuple[str, ...]) -> None:
        """Read all parts of the views that are there; say which are damaged, and remove them."""
        for number in self.division.numbers:
            present = [view for view in views if self.has(view, number)]
            read = {view: indices for view in present if (indices := self._indices_read(view, number)) is not None}
            if len({indices.tobytes() for indices in read.values()}) > 1:
                # An image that one view was made of could not be read for another: the views must be of the same.
                for view in read:
                    self.path_of(view, number).unlink(missing_ok=True)

    def remove_parts_about(self, images: Iterable[int]) -> None:
        """Remove the parts that images were left out of which can be read by now."""
        for number in {image // self.manifest.rows_per_part for image in images}:
            for view in self.manifest.views:
                self.path_of(view, number).unlink(missing_ok=True)

    def _indices_read(self, view: str, number: int) -> IntArray | None:
        """Return the images that a part has answers for, or remove it where it is damaged. int64 [n]"""
        try:
            part = self.part_file(view, number).read()
            self._check_indices(view, number, part)
        except DamagedChunkError as error:
            warnings.warn(f"computing again: {error}", DamagedChunkWarning, stacklevel=2)
            self.path_of(view, number).unlink(missing_ok=True)
            return None
        return part.indices

    def _check_indices(self, view: str, number: int, part: Chunk) -> None:
        skipped = np.array([image.index for image in part.skipped], dtype=np.int64)
        if not np.array_equal(np.union1d(part.indices, skipped), self.division.indices_of(number)):
            raise DamagedChunkError(
                f"the stored part {str(self.path_of(view, number))!r} holds other images than it should."
            )

    def finish(self) -> None:
        """Write into the manifest what is known only when all images have been read."""
        skipped: tuple[SkippedImage, ...] = ()
        classes = 0
        for number in self.division.numbers:  # one after the other: a process may hold only so many files open
            file = self.part_file(self.manifest.views[0], number)
            skipped += file.skipped
            classes = classes or (file.classes if file.rows else 0)
        if len(skipped) == self.manifest.data.images:
            raise PredictionsError(
                f"none of the {len(skipped)} images of {self.manifest.data.spec!r} could be read; "
                f"the first, {skipped[0].id!r}: {skipped[0].reason}"
            )
        with exclusive_lock(self.folder / "manifest.lock"):
            newest = read_manifest(self.folder / RUN_FILE, Manifest)
            self.manifest = newest.model_copy(update={"classes": classes, "skipped": skipped})
            write_manifest(self.folder / RUN_FILE, self.manifest)

    def skipped_sentence(self) -> str:
        """Say that images are missing from the run, and how to go on."""
        first = self.manifest.skipped[0]
        return (
            f"{len(self.manifest.skipped)} image(s) of {self.manifest.data.spec!r} could not be read; the first is "
            f"{first.id!r}: {first.reason}; repair or remove them, or {HOW_TO_SKIP}."
        )

    def missing_parts(self, views: tuple[str, ...]) -> list[tuple[str, int]]:
        """Return the parts of the views that are not there."""
        return [(view, number) for view in views for number in self.division.numbers if not self.has(view, number)]

    def read_indices(self) -> IntArray:
        """Return the indices in the source of the images that could be read, int64 [N]."""
        kept = np.ones(self.manifest.data.images, dtype=np.bool_)
        kept[[image.index for image in self.manifest.skipped]] = False
        return np.flatnonzero(kept)
