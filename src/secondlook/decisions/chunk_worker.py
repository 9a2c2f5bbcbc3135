"""Scoring chunks in other processes: what an engine sends there, and what comes back."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions.chunk_scorers import ChunkScoring, RowWriter
from secondlook.decisions.chunks import ChunkSink, JobRecord, ScoreChunks, encode_chunk
from secondlook.decisions.policy_classifier import MemberOutputs
from secondlook.decisions.rows import RowOptions
from secondlook.policies import Policy
from secondlook.predictions import (
    BatchSize,
    Chunk,
    Chunking,
    CollectJob,
    ComputedChunk,
    Engine,
    SaveTimer,
    choose_batch_size,
)
from secondlook.progress import ignore_progress, progress_bar
from secondlook.sources import Source
from secondlook.views import ViewSet

if TYPE_CHECKING:
    import pyarrow as pa


LISTED_WORKERS = 16
"""Number of workers that the text of a summary lists."""


@dataclass(frozen=True, eq=False)
class LoadScorer:
    """Loads a scorer in another process; everything that it needs can be pickled."""

    policy: str
    """The policy as JSON."""
    classifier: Classifier
    device: str
    batch_size: BatchSize
    image: Array
    """An image at the input size, from which the batch size is chosen. [H, W, C]"""
    record: JobRecord
    metadata: Mapping[str, str]

    def __call__(self) -> "ChunkScorer":
        """Put the classifier on the device of this process."""
        return ChunkScorer(self, Policy.model_validate_json(self.policy), self.classifier.on_device(self.device))


class ChunkScorer:
    """Scores the images of one chunk after another."""

    def __init__(self, settings: LoadScorer, policy: Policy, classifier: Classifier) -> None:
        self._settings = settings
        self._policy = policy
        self._views = ViewSet(list(policy.views))
        self.classifier = MemberOutputs(classifier)
        self._batch_size = choose_batch_size(settings.batch_size, settings.image, self.classifier)

    def __call__(self, number: int, images: Source) -> bytes:
        """Return the rows of a chunk as `encode_chunk` does; `images` are those of the chunk only."""
        settings = self._settings
        return encode_chunk(settings.record, number, self._score(images), settings.metadata)

    def _score(self, images: Source) -> "pa.Table":
        record = self._settings.record
        options = RowOptions(self._policy.rule, record.level, record.seed, record.per_view, record.audit)
        job = CollectJob(self.classifier, images, self._views, self._batch_size, Chunking(len(images), len(images)))
        make_predictions = partial(self.classifier.as_predictions, class_names=record.class_names)
        chunks = _OnlyChunk()
        # Nothing is saved before the chunk is complete.
        with RowWriter(chunks, options, SaveTimer(lambda: 0.0)).run() as writer:
            scoring = ChunkScoring(job, chunks, writer, options.rule, make_predictions)
            if self._policy.schedule is None:
                scoring.compute_all_looks(None, ignore_progress)
            else:
                scoring.compute_adaptively(ignore_progress)
        assert chunks.rows is not None, "the chunk is complete"
        return chunks.rows


@dataclass
class WorkerUse:
    """What one worker did."""

    images: int = 0
    chunks: int = 0
    seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Images per second of work."""
        return self.images / self.seconds if self.seconds else 0.0


@dataclass
class EngineUse:
    """What the workers of an engine did, by their names, and how long it took in all."""

    seconds: float = 0.0
    workers: dict[str, WorkerUse] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Number of images that were scored now, and not by an interrupted job before."""
        return sum(worker.images for worker in self.workers.values())

    @property
    def images_per_second(self) -> float:
        """Images per second of all workers together."""
        return self.images / self.seconds if self.seconds else 0.0

    def add(self, chunk: ComputedChunk, n_images: int) -> None:
        """Count a chunk."""
        worker = self.workers.setdefault(chunk.worker, WorkerUse())
        worker.images += n_images
        worker.chunks += 1
        worker.seconds += chunk.seconds

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        workers = [
            {"name": name, **asdict(worker), "images_per_second": worker.images_per_second}
            for name, worker in sorted(self.workers.items())
        ]
        return {
            "computed": self.images,
            "seconds": self.seconds,
            "images_per_second": self.images_per_second,
            "workers": workers,
        }

    def describe(self) -> Iterator[str]:
        """Yield a line about all workers, and one about each."""
        if not self.workers:
            yield "computed: nothing, since all chunks were finished before"
            return
        speed = self.images_per_second
        count = f"{len(self.workers)} worker{'s' * (len(self.workers) != 1)}"
        yield f"computed: {self.images:,} images in {self.seconds:,.1f} s by {count}, {speed:,.0f} images/s"
        for name, worker in sorted(self.workers.items())[:LISTED_WORKERS]:
            yield f"  {name}: {worker.images:,} images, {worker.images_per_second:,.0f} images/s of work"
        if len(self.workers) > LISTED_WORKERS:
            yield f"  {len(self.workers) - LISTED_WORKERS:,} more workers"


def compute_on_engine(
    engine: Engine, load_worker: LoadScorer, chunks: ScoreChunks, source: Source, *, progress: bool
) -> EngineUse:
    """Compute every chunk that is missing with an engine, and write each as it comes."""
    use, start = EngineUse(), time.monotonic()
    missing = chunks.missing
    with (
        progress_bar("scoring", chunks.missing_images, "images", enabled=progress) as advance,
        closing(engine.compute_chunks(load_worker, source, chunks.chunking, missing)) as computed,
    ):
        for chunk in computed if missing else ():
            chunks.write_encoded(chunk.number, chunk.content)
            n_images = len(chunks.chunking.indices_of(chunk.number))
            use.add(chunk, n_images)
            advance(n_images)
    return replace(use, seconds=time.monotonic() - start)


class _OnlyChunk(ChunkSink):
    """Keeps the rows of a single chunk in memory."""

    def __init__(self) -> None:
        self.rows: pa.Table | None = None

    def has(self, number: int) -> bool:
        return False

    def write(self, number: int, rows: "pa.Table") -> None:
        self.rows = rows

    def read_partial(self, part: str, number: int) -> Chunk | None:
        return None

    def write_partial(self, part: str, number: int, chunk: Chunk) -> None:
        raise AssertionError("a chunk that is computed elsewhere is never saved incomplete")
