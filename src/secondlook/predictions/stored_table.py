"""A table of answers that stays on disk: what is asked for is read, checked and nothing more."""

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray, Output
from secondlook.predictions.part import DamagedChunkError, rows_per_group
from secondlook.predictions.store import StoreEntry


class StoredTable:
    """Answers [N, V, C] of a run whose parts are all there, for the views with those texts."""

    def __init__(self, run: StoreEntry, views: tuple[str, ...], classes: int) -> None:
        self._run = run
        self._views = views
        self._classes = classes
        self._indices = run.read_indices()
        self._part_of = self._indices // run.manifest.rows_per_part
        # Skipped images leave no gap in a part: the row is the place among those that were read.
        self._row_of = np.arange(len(self._indices)) - np.searchsorted(self._part_of, self._part_of)

    @property
    def kind(self) -> Output:
        """What the numbers are."""
        return self._run.manifest.classifier.output

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, views, classes."""
        return len(self._part_of), len(self._views), self._classes

    @property
    def rows_read_together(self) -> int:
        """How many neighboring images it costs no more to read than one of them."""
        return rows_per_group(self._classes)

    def read(self, images: IntArray, views: IntArray) -> Float32Array:
        """Return the answers float32 [len(images), len(views), C]."""
        answers = np.empty((len(images), len(views), self._classes), dtype=np.float32)
        parts = self._part_of[images]
        for number in np.unique(parts):
            here = np.flatnonzero(parts == number)
            for place, view in enumerate(views):
                answers[here, place] = self._rows(self._views[view], int(number), images[here])
        return answers

    def _rows(self, view: str, number: int, images: IntArray) -> Array:
        rows = self._row_of[images]
        groups, group_of_row = np.unique(rows // self.rows_read_together, return_inverse=True)
        part = self._run.part_file(view, number).read_groups(groups.tolist())
        # All groups but the last of a part are full, so a group starts where the full ones before it end.
        places = group_of_row * self.rows_read_together + rows % self.rows_read_together
        if len(part.indices) <= places.max() or not np.array_equal(part.indices[places], self._indices[images]):
            raise DamagedChunkError(
                f"part {number} of view {view!r} in run {self._run.folder.name!r} is about other images than that of "
                f"view {self._run.manifest.views[0]!r}; collect into the same store again to recompute it."
            )
        found: Array = part.answers[places]
        return found
