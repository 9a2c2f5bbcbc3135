"""Statistics of images kept in parts, as Parquet files: one for each chunk, computed where its outputs are."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import MetricError
from secondlook.estimators import FittedMethods
from secondlook.evaluation.image_statistics import ImageStatistics, compute_statistics
from secondlook.predictions import (
    BrokenChunkError,
    Chunking,
    ChunkStore,
    DamagedChunkWarning,
    LocalStorage,
    Predictions,
    encode_chunk,
)
from secondlook.sources import Source

SKIPPED = "secondlook.skipped"
JOB = "statistics"


@dataclass(frozen=True, eq=False)
class SummarizeImages:
    """Computes the statistics of a chunk, in another process; everything that it needs can be pickled."""

    fitted: FittedMethods
    views: tuple[str, ...]
    """Views that the evaluation is about; the predictions may have more."""
    is_judged: bool
    """Whether the images are labeled."""

    def __call__(self, number: int, preds: Predictions | None, skipped: Sequence[tuple[str, str]]) -> bytes:
        """Return a chunk with the statistics of all readable images, and the id and reason of each other."""
        import pyarrow as pa

        table = pa.table({})
        if preds is not None:
            selected = preds.select(views=list(self.views))
            table = compute_statistics(selected, self.fitted, is_judged=self.is_judged).to_arrow()
        return encode_chunk(JOB, number, table, {**(table.schema.metadata or {}), SKIPPED: json.dumps(skipped)})


class AllStatistics(NamedTuple):
    """The statistics of all readable images of a source."""

    statistics: ImageStatistics
    indices: IntArray
    """Source indices of these images, int64 [N]."""
    skipped: list[tuple[str, str]]
    """Id and reason of every other image."""


class StatisticsParts:
    """A folder of statistics, with a part for each chunk of a source; a `Summaries`."""

    def __init__(self, folder: Path, source: Source, summarize: SummarizeImages) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MetricError(
                f"statistics cannot be kept in {str(folder)!r}: {error.strerror}; make the folder writable, or choose "
                "another one."
            ) from None
        self.folder = folder
        self.summarize = summarize
        self._source = source
        self._parts = ChunkStore(LocalStorage(folder), JOB)

    def has(self, number: int) -> bool:
        """Whether the part of a chunk exists."""
        return number in self._parts

    def write(self, number: int, content: bytes) -> None:
        """Write the part of a chunk."""
        try:
            self._parts.write(number, content)
        except OSError as error:
            raise MetricError(
                f"statistics cannot be kept in {str(self.folder)!r}: {error.strerror}; free space or make the folder "
                "writable, and evaluate again: finished parts are reused."
            ) from None

    def remove_outdated(self, chunking: Chunking) -> None:
        """Remove parts with images that can be read now, and, with a warning, parts that are damaged."""
        for number in self._parts.numbers:
            try:
                _, skipped = self._read(chunking, number)
            except BrokenChunkError as error:
                where = self._parts.locate(number)
                warnings.warn(f"computing {where!r} again: {error}", DamagedChunkWarning, stacklevel=2)
                self._parts.delete(number)
                continue
            unreadable = {id_ for id_, _ in skipped}
            indices = [index for index in chunking.indices_of(number) if self._source.ids[index] in unreadable]
            if any(map(self._source.is_readable, indices)):
                self._parts.delete(number)

    def complete(self, chunking: Chunking, preds: Predictions) -> None:
        """Compute the parts that are missing from stored predictions."""
        place_of = {id_: place for place, id_ in enumerate(preds.ids)}
        reasons = dict(preds.skipped)
        for number in chunking.numbers:
            if self.has(number):
                continue
            ids = [self._source.ids[index] for index in chunking.indices_of(number)]
            places = [place_of[id_] for id_ in ids if id_ in place_of]
            skipped = [(id_, reasons[id_]) for id_ in ids if id_ in reasons]
            self.write(number, self.summarize(number, preds.select(images=places) if places else None, skipped))

    def read(self, chunking: Chunking) -> AllStatistics:
        """Return the statistics of all parts, which must exist."""
        statistics, indices, skipped = [], [], []
        for number in chunking.numbers:
            try:
                part, broken = self._read(chunking, number)
            except BrokenChunkError as error:
                where = self._parts.locate(number)
                raise MetricError(
                    f"the statistics {where!r} are damaged ({error}); evaluate again to replace them."
                ) from None
            skipped += broken
            if part is not None:
                unreadable = {id_ for id_, _ in broken}
                statistics.append(part)
                indices += [index for index in chunking.indices_of(number) if self._source.ids[index] not in unreadable]
        return AllStatistics(ImageStatistics.join(statistics), np.array(indices, dtype=np.int64), skipped)

    def _read(self, chunking: Chunking, number: int) -> tuple[ImageStatistics | None, list[tuple[str, str]]]:
        import pyarrow as pa

        try:
            table = self._parts.read(number)
            skipped = [(id_, reason) for id_, reason in json.loads(table.schema.metadata[SKIPPED.encode()])]
            part = ImageStatistics.from_arrow(table) if table.num_columns else None
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise BrokenChunkError(str(error)) from None
        found = [*(() if part is None else part.ids), *(id_ for id_, _ in skipped)]
        expected = chunking.indices_of(number) if number in chunking.numbers else ()
        if sorted(found) != sorted(self._source.ids[index] for index in expected):
            raise BrokenChunkError("it has other images")
        return part, skipped
