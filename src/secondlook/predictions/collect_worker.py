"""Collecting chunks in other processes: what an engine sends there, what comes back, and where it is written."""

import pickle
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier
from secondlook.predictions.batching import BatchSize, Chunking, choose_batch_size
from secondlook.predictions.chunks import Chunk
from secondlook.predictions.engine import Engine
from secondlook.predictions.manifest import SkippedImage
from secondlook.predictions.pipeline import CollectJob, Sink, run_pipeline
from secondlook.predictions.validation import check_classes
from secondlook.progress import Advance, ignore_progress
from secondlook.sources import Source
from secondlook.views import ViewSet


class CollectedChunk(NamedTuple):
    """What a worker returns; images are counted from the first of the chunk."""

    indices: IntArray
    """Positions of the readable images, int64 [n]."""
    skipped: tuple[SkippedImage, ...]
    n_classes: int | None
    """None if no image could be read."""
    outputs: dict[int, Float32Array]
    """The outputs of each view that was needed, float32 [n, classes]."""


@dataclass(frozen=True, eq=False)
class LoadCollector:
    """Loads a collector in another process; everything that it needs can be pickled."""

    classifier: Classifier
    device: str
    views: ViewSet
    needed: frozenset[int]
    """Positions of the views to classify."""
    batch_size: BatchSize
    image: Array
    """An image at the input size, from which the batch size is chosen. [H, W, C]"""

    def __call__(self) -> "ChunkCollector":
        """Put the classifier on the device of this process."""
        return ChunkCollector(replace(self, classifier=self.classifier.on_device(self.device)))


class ChunkCollector:
    """Classifies views of the images of one chunk after another."""

    def __init__(self, settings: LoadCollector) -> None:
        self._settings = settings

    def __call__(self, number: int, images: Source) -> bytes:
        """Return a pickled `CollectedChunk`; `images` are those of the chunk only."""
        settings, sink = self._settings, _OneChunk(self._settings.needed)
        batch_size = choose_batch_size(settings.batch_size, settings.image, settings.classifier)
        chunking = Chunking(len(images), len(images))
        run_pipeline(
            CollectJob(settings.classifier, images, settings.views, batch_size, chunking), sink, ignore_progress
        )
        chunk = next(iter(sink.chunks.values()))
        outputs = {view: one.outputs for view, one in sink.chunks.items()}
        n_classes = chunk.outputs.shape[1] if len(chunk.indices) else None
        return pickle.dumps(CollectedChunk(chunk.indices, chunk.skipped, n_classes, outputs), protocol=5)


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
    sink: Sink

    def list_missing(self) -> dict[frozenset[int], list[int]]:
        """Return the numbers of the chunks that have to be computed, by the views that they need."""
        missing: dict[frozenset[int], list[int]] = {}
        every = range(len(self.load.views))
        for number in self.chunking.numbers:
            views = frozenset(view for view in every if self.sink.needs(view, number))
            if views:
                missing.setdefault(views, []).append(number)
        return missing

    def run(self, missing: dict[frozenset[int], list[int]], advance: Advance) -> None:
        """Compute chunks and write each as it comes; `advance` is called with the number of images x views."""
        is_checked = False
        for views, numbers in missing.items():
            load = replace(self.load, needed=views)
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
        for view, values in found.outputs.items():
            self.sink.write(view, number, Chunk(first + found.indices, values, skipped))
