"""A scoring job with an exported file, which takes images as they are and decides about them by itself."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from secondlook.arrays import Array, round_down_to_power_of_two
from secondlook.decisions.adaptive_looks import LookedGroup
from secondlook.decisions.chunk_scorers import OnPredictions, RowWriter
from secondlook.decisions.chunks import ScoreChunks
from secondlook.decisions.loaded_policy import choose_class_names
from secondlook.decisions.onnx_decider import OnnxDecider
from secondlook.decisions.rows import FileDecisions, RowOptions
from secondlook.decisions.scoring_job import OUTPUT_BYTES, ScoringJob, make_job_record
from secondlook.errors import DecisionError
from secondlook.predictions import (
    BatchSize,
    DecodedChunk,
    SaveTimer,
    chunk_rows,
    find_first_image,
    list_skipped,
    read_ahead,
)
from secondlook.progress import Advance, progress_bar
from secondlook.sources import Batch, Source

MAX_CHUNK_ROWS, MIN_CHUNK_ROWS = 256, 16
PIXELS_PER_CHUNK = 2**27
"""Approximate number of pixels of all looks of a chunk. An incomplete chunk is lost, so that it must be small."""

_BLOCKS_AHEAD = 1
_NO_IMAGES = np.empty((0, 1, 1, 1), dtype=np.uint8)


@dataclass(frozen=True)
class DeciderJob(ScoringJob):
    """A scoring job with an exported file."""

    decider: OnnxDecider
    batch_size: BatchSize
    block_size: int
    """Number of images that are read together."""

    @classmethod
    def prepare(
        cls, decider: OnnxDecider, source: Source, options: RowOptions, batch_size: BatchSize, part_size: int | None
    ) -> "DeciderJob":
        """Read one image, to find whether it fits the file, and how many fit in memory."""
        policy, n_classes = decider.policy, decider.record.classes
        id_, image = find_first_image(source)
        fault = decider.describe_misfit(image.shape)
        if fault is not None:
            raise DecisionError(f"the pixels of {_name_image(source, id_)} {fault}.")
        class_names = choose_class_names((policy.class_names, source.class_names), n_classes)
        record = make_job_record(
            policy,
            source,
            options,
            class_names,
            classifier=decider.digest,
            output=policy.classifier.output,
            preprocessing=policy.classifier.preprocessing,
            rows=part_size or _choose_chunk_rows(decider, image),
        )
        known = (policy, decider.record.mismatch, source, options, class_names, n_classes, record)
        return cls(*known, decider, batch_size, max(source.threads, chunk_rows(image, MAX_CHUNK_ROWS)))

    @property
    def origin(self) -> dict[str, str]:
        """The file, by its digest."""
        return {"decider": self.decider.digest}

    def compute_chunks(
        self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None, *, progress: bool
    ) -> None:
        """Compute every chunk that is missing; images are read while the file decides about those before them."""
        missing = [(number, chunks.chunking.indices_of(number)) for number in chunks.missing]
        with (
            RowWriter(chunks, self.options, SaveTimer()).run() as writer,
            progress_bar("scoring", chunks.missing_images, "images", enabled=progress) as advance,
            closing(read_ahead(lambda: self._read_blocks([indices for _, indices in missing]), _BLOCKS_AHEAD)) as read,
        ):
            for number, requested in missing:
                chunk, decided = self._decide_chunk(iter(partial(next, read), None), number, requested, advance)
                groups = self._group(chunk, decided)
                if on_first_predictions is not None and not self.decider.record.adaptive and decided is not None:
                    groups = list(groups)
                    on_first_predictions(groups[0].preds)
                    on_first_predictions = None
                writer.finish(number, chunk, groups, decided)

    def _read_blocks(self, chunks: Sequence[range]) -> Iterator[Batch | None]:
        """Yield the readable images of each chunk, some at a time, and None at its end."""
        for requested in chunks:
            yield from self.source.batches(self.block_size, requested.start, requested.stop)
            yield None

    def _decide_chunk(
        self, batches: Iterator[Batch], number: int, requested: range, advance: Advance
    ) -> tuple[DecodedChunk, FileDecisions | None]:
        """Return which images of a chunk were read, and what the file decided about them, if there are any."""
        indices, decided = [np.empty(0, dtype=np.int64)], []
        for batch in batches:
            decided.append(self._decide_batch(batch, advance))
            indices.append(batch.indices)
        read = np.concatenate(indices)
        skipped = list_skipped(self.source, requested, read)
        advance(len(skipped))
        chunk = DecodedChunk(number, read, _NO_IMAGES, skipped)
        return chunk, FileDecisions.join(decided) if decided else None

    def _decide_batch(self, batch: Batch, advance: Advance) -> FileDecisions:
        return self.decider.decide_list(
            batch.images,
            batch_size=self.batch_size,
            advance=advance,
            name_image=lambda position: _name_image(self.source, batch.ids[position]),
        )

    def _group(self, chunk: DecodedChunk, decided: FileDecisions | None) -> Iterable[LookedGroup]:
        if decided is None:
            return ()
        ids = [self.source.ids[index] for index in chunk.indices.tolist()]
        return self.decider.group_by_looks(decided, ids, self.class_names)


def _choose_chunk_rows(decider: OnnxDecider, image: Array) -> int:
    """Return the number of images [H, W, C] per chunk, by the size of what the classifier gets and gives."""
    height, width = decider.compute_input_size(image.shape)
    n_views, output_bytes = len(decider.policy.views), 4 * decider.record.members * decider.record.classes
    rows = min(PIXELS_PER_CHUNK // (height * width * n_views), OUTPUT_BYTES // (output_bytes * n_views))
    return max(MIN_CHUNK_ROWS, min(MAX_CHUNK_ROWS, round_down_to_power_of_two(rows)))


def _name_image(source: Source, id_: str) -> str:
    return f"image {id_!r} of {source.spec!r}"
