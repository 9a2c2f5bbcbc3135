"""Collecting chunks in other processes: what an engine sends there, what comes back, and where it is written."""

import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier
from secondlook.predictions.batching import BatchSize, Chunking, choose_batch_size
from secondlook.predictions.chunks import Chunk
from secondlook.predictions.engine import Engine
from secondlook.predictions.manifest import SkippedImage
from secondlook.predictions.pipeline import CollectJob, Sink, run_pipeline
from secondlook.predictions.predictions import ArrayTable, Predictions
from secondlook.predictions.validation import check_classes
from secondlook.progress import Advance, ignore_progress
from secondlook.sources import Source
from secondlook.views import ViewSet

Summarize = Callable[[Predictions | None, Sequence[SkippedImage]], bytes]
"""Returns what is to be known about a chunk: from its predictions, None if no image could be read, and the others."""


class Summaries(Protocol):
    """Where summaries of chunks are kept, and how they are made."""

    @property
    def summarize(self) -> Summarize:
        """What makes a summary in other processes, where it is sent by pickle."""

    def remove_outdated(self, chunking: Chunking) -> None:
        """Remove summaries that have to be made again."""

    def has(self, number: int) -> bool:
        """Whether the summary of a chunk exists."""

    def write(self, number: int, content: bytes) -> None:
        """Write the summary of a chunk."""


class CollectedChunk(NamedTuple):
    """What a worker returns; images are counted from the first of the chunk."""

    indices: IntArray
    """Positions of the readable images, int64 [n]."""
    skipped: tuple[SkippedImage, ...]
    n_classes: int | None
    """None if no image could be read."""
    outputs: list[dict[int, Float32Array]]
    """For each member, the outputs of each view that was needed, float32 [n, classes]; none if they are not kept."""
    summary: bytes | None


@dataclass(frozen=True, eq=False)
class LoadCollector:
    """Loads a collector in another process; everything that it needs can be pickled."""

    classifier: Classifier
    """A classifier or an ensemble."""
    device: str
    views: ViewSet
    needed: frozenset[int]
    """Positions of the views to classify."""
    batch_size: BatchSize
    image: Array
    """An image at the input size, from which the batch size is chosen. [H, W, C]"""
    summarize: Summarize | None
    keeps_outputs: bool

    def __call__(self) -> "ChunkCollector":
        """Put the classifier on the device of this process."""
        return ChunkCollector(replace(self, classifier=self.classifier.on_device(self.device)))


class ChunkCollector:
    """Classifies views of the images of one chunk after another."""

    def __init__(self, settings: LoadCollector) -> None:
        self._settings = settings

    def __call__(self, number: int, images: Source) -> bytes:
        """Return a pickled `CollectedChunk`; `images` are those of the chunk only."""
        settings = self._settings
        members = settings.classifier.members or (settings.classifier,)
        sinks = [self._classify(member, images) for member in members]
        chunk = next(iter(sinks[0].chunks.values()))
        summary = None
        if settings.summarize is not None:
            preds = None
            if len(chunk.indices):
                tables = [self._make_predictions(*pair, images) for pair in zip(members, sinks, strict=True)]
                preds = Predictions(members=tables, views=settings.views) if settings.classifier.members else tables[0]
            summary = settings.summarize(preds, chunk.skipped)
        outputs = [{view: one.outputs for view, one in sink.chunks.items()} for sink in sinks]
        kept = outputs if settings.keeps_outputs else [{} for _ in sinks]
        n_classes = chunk.outputs.shape[1] if len(chunk.indices) else None
        return pickle.dumps(CollectedChunk(chunk.indices, chunk.skipped, n_classes, kept, summary), protocol=5)

    def _classify(self, member: Classifier, images: Source) -> "_OneChunk":
        settings, sink = self._settings, _OneChunk(self._settings.needed)
        batch_size = choose_batch_size(settings.batch_size, settings.image, member)
        job = CollectJob(member, images, settings.views, batch_size, Chunking(len(images), len(images)))
        run_pipeline(job, sink, ignore_progress)
        return sink

    def _make_predictions(self, member: Classifier, sink: "_OneChunk", images: Source) -> Predictions:
        chunks = [sink.chunks[view] for view in range(len(self._settings.views))]
        outputs = np.stack([chunk.outputs for chunk in chunks], axis=1)
        ids = [images.ids[index] for index in chunks[0].indices.tolist()]
        return Predictions.from_table(ArrayTable(outputs, member.output), self._settings.views, ids=ids)


class _OneChunk(Sink):
    """Keeps the outputs of a single chunk in memory."""

    def __init__(self, needed: frozenset[int]) -> None:
        self._needed = needed
        self.chunks: dict[int, Chunk] = {}

    def needs(self, view: int, number: int) -> bool:
        return view in self._needed

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        self.chunks[view] = chunk


@dataclass(frozen=True, eq=False)
class EngineJob:
    """What to collect with an engine, and where to write it."""

    engine: Engine
    load: LoadCollector
    source: Source
    chunking: Chunking
    sinks: Sequence[Sink]
    """One for each member; none if outputs are not kept."""
    summaries: Summaries | None

    def list_missing(self) -> dict[frozenset[int], list[int]]:
        """Return the numbers of the chunks that have to be computed, by the views that they need."""
        missing: dict[frozenset[int], list[int]] = {}
        every = range(len(self.load.views))
        for number in self.chunking.numbers:
            views = frozenset(view for view in every if any(sink.needs(view, number) for sink in self.sinks))
            # A summary is about all views. Where all outputs are stored, it can be made from them.
            if self.summaries is not None and (views or not (self.sinks or self.summaries.has(number))):
                views = frozenset(every)
            if views:
                missing.setdefault(views, []).append(number)
        return missing

    def run(self, missing: dict[frozenset[int], list[int]], advance: Advance) -> None:
        """Compute chunks and write each as it comes; `advance` is called with the number of images x views."""
        summarize = None if self.summaries is None else self.summaries.summarize
        is_checked = False
        for views, numbers in missing.items():
            is_whole = len(views) == len(self.load.views)
            load = replace(self.load, needed=views, summarize=summarize if is_whole else None)
            source = self.source.without_labels()
            with closing(self.engine.compute_chunks(load, source, self.chunking, numbers)) as computed:
                for one in computed:
                    found: CollectedChunk = pickle.loads(one.content)
                    if found.n_classes is not None and not is_checked:
                        check_classes(self.load.classifier.name, self.source, found.n_classes)
                        is_checked = True
                    self._write(one.number, found)
                    advance(len(self.chunking.indices_of(one.number)) * len(views))

    def _write(self, number: int, found: CollectedChunk) -> None:
        first = self.chunking.indices_of(number).start
        skipped = tuple(image.model_copy(update={"index": first + image.index}) for image in found.skipped)
        for sink, outputs in zip(self.sinks, found.outputs, strict=False):  # no sinks where outputs are not kept
            for view, values in outputs.items():
                sink.write(view, number, Chunk(first + found.indices, values, skipped))
        if found.summary is not None and self.summaries is not None:
            self.summaries.write(number, found.summary)
