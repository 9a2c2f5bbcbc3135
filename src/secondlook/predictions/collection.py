"""`collect`: classify every view of every image once, in this process or others, in memory or into a store."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import PredictionsError, SourceError
from secondlook.predictions.batching import BatchSize, Chunking, choose_batch_size, chunk_rows
from secondlook.predictions.execution import Engine
from secondlook.predictions.manifest import (
    ENSEMBLE_FILE,
    EnsembleManifest,
    Manifest,
    Origin,
    SkippedImage,
    entry_key,
    write_manifest,
)
from secondlook.predictions.pipeline import CollectJob, Sink, read_first_image, run_pipeline
from secondlook.predictions.predictions import ArrayTable, Predictions, open_entry
from secondlook.predictions.store import Chunk, StoreEntry, translate_store_errors
from secondlook.predictions.validation import check_class_names_match, check_classes
from secondlook.progress import IMAGES_X_VIEWS, ignore_progress, progress_bar
from secondlook.sources import OnError, Source, open_labeled
from secondlook.specs import parse_spec, short_name
from secondlook.views import ViewSet, ViewsLike, as_view_set

_MAX_PENDING_WRITES = 2

Summarize = Callable[[int, Predictions | None, Sequence[tuple[str, str]]], bytes]
"""Summarizes a chunk from its number, its predictions (None if no image could be read), and id and reason of others."""


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


def collect(
    classifier: Any,
    data: Any,
    views: ViewsLike,
    *,
    store: str | Path | None = None,
    labels: Any = None,
    batch_size: BatchSize = "auto",
    progress: bool = True,
    on_error: OnError | None = None,
    device: str = "auto",
    engine: Engine | None = None,
) -> Predictions:
    """Return the outputs of a classifier for all views of all images.

    Parameters
    ----------
    classifier
        Anything that `load_classifier` accepts: a spec, a model, or a function from images to probabilities.
    data
        Anything that `open_source` accepts: the spec of a source, an array uint8 or float32 [N, H, W, C], a tensor, an
        image, a list of images or paths, a data set.
    views
        A view set, the name of a preset, or views as text.
    store
        Folder to store the outputs in. Outputs that it already has are not computed again, so that an interrupted job
        resumes where it stopped. By default outputs are kept in memory only.
    labels
        True class of each image, int [N], or its name, [N], if the images have no labels of their own. Names are those
        of the classifier where it has class names.
    batch_size
        Number of images per call of the classifier; halved whenever memory runs out.
    progress
        Whether to show a progress bar, if standard error is a terminal.
    on_error
        How to handle an image that cannot be read: "fail", or "skip" to exclude it and list it in
        `Predictions.skipped`. The default is the setting of the source; with an engine, "skip" unless that is given.
    device
        Where to classify: "auto", "cpu", "cuda" (all GPUs) or "cuda:N". "auto" leaves a model where it was put
        explicitly, and otherwise uses the GPUs that torch sees, if the model can run there.
    engine
        Where chunks of the images are classified, such as `RayEngine()`: in other processes or on other machines, by
        workers that load the classifier themselves. By default in this process. What is stored is the same.
    """
    loaded = load_classifier(classifier)
    # The workers of an engine put their classifiers on devices of their own.
    loaded = loaded.on_device(device) if engine is None else loaded
    source = open_labeled(data, labels, loaded.class_names, on_error)
    if engine is not None and on_error is None:
        source = skip_by_default(source, data)
    check_class_names_match(loaded.members or (loaded,), source)
    collector = _Collector(source, as_view_set(views), batch_size, progress, device, engine)
    return collector.collect_in_memory(loaded) if store is None else collector.collect_on_disk(loaded, Path(store))


def skip_by_default(source: Source, data: object) -> Source:
    """Return a source that skips images that cannot be read, unless the `data` it was opened from says what to do.

    One image of millions must not end a job on a cluster.
    """
    is_set = isinstance(data, Source)
    if isinstance(data, str) and ":" in data:
        is_set = "on_error" in parse_spec(data, SourceError).options
    return source if is_set else source.with_on_error("skip")


def collect_summaries(
    classifier: Classifier,
    source: Source,
    views: ViewSet,
    summaries: Summaries,
    engine: Engine,
    *,
    store: Path | None,
    batch_size: BatchSize = "auto",
    device: str = "auto",
    progress: bool = True,
) -> Chunking:
    """Let an engine classify all views of all images and summarize each chunk, and return the chunks.

    Outputs are kept in `store` if it is given. Chunks whose outputs are stored already are not summarized.
    """
    collector = _Collector(source, views, batch_size, progress, device, engine)
    return collector.summarize(classifier, summaries, store)


@dataclass(frozen=True)
class _Collector:
    """The settings that all members of an ensemble share."""

    source: Source
    views: ViewSet
    batch_size: BatchSize
    progress: bool
    device: str
    engine: Engine | None

    def collect_in_memory(self, classifier: Classifier) -> Predictions:
        if classifier.members:
            members = [self.collect_in_memory(member) for member in classifier.members]
            return Predictions(members=members, views=self.views, origin=Origin.describe(classifier, self.source))
        sink = InMemory(len(self.source), len(self.views))
        self._run(self._plan(classifier, is_stored=False), sink)
        indices, outputs = sink.result()
        is_complete = len(indices) == len(self.source)
        labels = None if self.source.labels is None else np.array(self.source.labels[indices], dtype=np.int64)
        return Predictions.from_table(  # the classifier has validated its outputs, and labels were checked with them
            ArrayTable(outputs, classifier.output),
            self.views,
            labels=labels,
            ids=self.source.ids if is_complete else [self.source.ids[index] for index in indices.tolist()],
            class_names=self.source.class_names,
            skipped=[(image.id, image.reason) for _, image in sorted(sink.skipped.items())],
            origin=Origin.describe(classifier, self.source),
        )

    def collect_on_disk(self, classifier: Classifier, store: Path) -> Predictions:
        if classifier.members:
            members = [self.collect_on_disk(member, store) for member in classifier.members]
            self._write_ensemble(classifier, store)
            return Predictions(members=members, views=self.views, origin=Origin.describe(classifier, self.source))
        job = self._plan(classifier, is_stored=True)
        entry = self._open_entry(job, store)
        with entry.lock_for_writing():
            self._clean(entry)
            with OnDisk(entry, self.views.texts).open() as sink:
                # An existing entry may have been divided by other rules.
                self._run(replace(job, chunking=entry.chunking), sink)
            self._finish(entry)
        return open_entry(entry, self.views)

    def summarize(self, classifier: Classifier, summaries: Summaries, store: Path | None) -> Chunking:
        """Classify and summarize all chunks of a classifier or an ensemble with the engine."""
        members = classifier.members or (classifier,)
        for member in members:
            self._entry_name(member)  # summaries without outputs have to be identified, too
        plans = [self._plan(member, is_stored=True) for member in members]
        if store is None:
            summaries.remove_outdated(plans[0].chunking)
            self._run_on_engine(classifier, plans[0].chunking, [], summaries)
            return plans[0].chunking
        entries = [self._open_entry(plan, store) for plan in plans]
        summaries.remove_outdated(entries[0].chunking)
        if len({entry.chunking for entry in entries}) > 1:  # of members with different input sizes
            self.collect_on_disk(classifier, store)
            return entries[0].chunking
        with ExitStack() as held:
            for entry in entries:
                held.enter_context(entry.lock_for_writing())
                self._clean(entry)
            with ExitStack() as opened:
                sinks = [OnDisk(entry, self.views.texts) for entry in entries]
                self._run_on_engine(
                    classifier, entries[0].chunking, [opened.enter_context(sink.open()) for sink in sinks], summaries
                )
            for entry in entries:
                self._finish(entry)
        if classifier.members:
            self._write_ensemble(classifier, store)
        return entries[0].chunking

    def _finish(self, entry: StoreEntry) -> None:
        entry.finalize()
        if self.source.on_error == "fail":
            entry.check_none_skipped()

    def _open_entry(self, job: CollectJob, store: Path) -> StoreEntry:
        manifest = Manifest.create(job.classifier, self.source, self.views, job.chunking.rows)
        return StoreEntry.open_or_create(store / self._entry_name(job.classifier), manifest)

    def _plan(self, classifier: Classifier, *, is_stored: bool) -> CollectJob:
        image = read_first_image(classifier, self.source)
        batch_size = choose_batch_size(self.batch_size, image, classifier)
        # The batches of GPUs may be larger than the chunks of a store.
        rows = chunk_rows(image) if is_stored else max(chunk_rows(image), chunk_rows(image, batch_size))
        return CollectJob(classifier, self.source, self.views, batch_size, Chunking(len(self.source), rows))

    def _clean(self, entry: StoreEntry) -> None:
        """Remove what has to be computed again."""
        repaired = [image.index for image in entry.manifest.skipped if self.source.is_readable(image.index)]
        with translate_store_errors(entry.folder):
            entry.ensure_images(self.source.ids, self.source.labels)
            entry.remove_chunks_with(repaired)
            entry.remove_damaged_chunks(self.views.texts)

    def _run(self, job: CollectJob, sink: Sink) -> None:
        if self.engine is not None:
            self._run_on_engine(job.classifier, job.chunking, [sink], None)
            return
        total = sum(
            len(job.chunking.indices_of(number))
            for number in job.chunking.numbers
            for place in range(len(job.views))
            if sink.needs(place, number)
        )
        with progress_bar(short_name(job.classifier.name), total, IMAGES_X_VIEWS, enabled=self.progress) as advance:
            run_pipeline(job, sink, advance)

    def _run_on_engine(
        self, classifier: Classifier, chunking: Chunking, sinks: Sequence[Sink], summaries: Summaries | None
    ) -> None:
        """Let the engine compute what is missing, and write each chunk as it comes.

        There is a sink for each member, or none if outputs are not kept.
        """
        assert self.engine is not None, "called with an engine only"
        every = range(len(self.views))
        missing: dict[frozenset[int], list[int]] = {}
        for number in chunking.numbers:
            needed = frozenset(view for view in every if any(sink.needs(view, number) for sink in sinks))
            # A summary is about all views. Where all outputs are stored, it can be made from them.
            if summaries is not None and (needed or not (sinks or summaries.has(number))):
                needed = frozenset(every)
            if needed:
                missing.setdefault(needed, []).append(number)
        image = read_first_image(classifier, self.source)
        n_classes: int | None = None
        total = sum(len(views) * len(chunking.indices_of(number)) for views in missing for number in missing[views])
        with progress_bar(short_name(classifier.name), total, IMAGES_X_VIEWS, enabled=self.progress) as advance:
            for views, numbers in missing.items():
                summarize = None if summaries is None or len(views) < len(every) else summaries.summarize
                load = LoadCollector(
                    classifier, self.device, self.views, views, self.batch_size, image, summarize, bool(sinks)
                )
                source = self.source.without_labels()
                with closing(self.engine.compute_chunks(load, source, chunking, numbers)) as computed:
                    for one in computed:
                        found: CollectedChunk = pickle.loads(one.content)
                        if found.n_classes is not None and n_classes is None:
                            n_classes = found.n_classes
                            check_classes(classifier.name, self.source, n_classes)
                        found.write(one.number, chunking.indices_of(one.number).start, sinks, summaries)
                        advance(len(chunking.indices_of(one.number)) * len(views))

    def _entry_name(self, classifier: Classifier) -> str:
        if not classifier.digest:
            raise PredictionsError(
                f"classifier {classifier.name!r} has no name to store its outputs under; pass one that changes "
                "whenever the function does, load_classifier(..., name='v1') or ?name=v1 in its spec, or omit store=."
            )
        return entry_key(classifier, self.source)

    def _write_ensemble(self, ensemble: Classifier, store: Path) -> None:
        members = tuple(entry_key(member, self.source) for member in ensemble.members)
        folder = store / entry_key(ensemble, self.source)
        with translate_store_errors(folder):
            folder.mkdir(exist_ok=True)
            write_manifest(folder / ENSEMBLE_FILE, EnsembleManifest(members=members))


class InMemory(Sink):
    """A sink that keeps outputs in one array [N, V, C], allocated when the number of classes is known."""

    def __init__(self, images: int, views: int) -> None:
        self._images = images
        self._views = views
        self._outputs: Float32Array | None = None
        self._is_read = np.zeros(images, dtype=np.bool_)
        self.skipped: dict[int, SkippedImage] = {}
        """Images that could not be read, by their index."""

    def needs(self, view: int, number: int) -> bool:
        """Return True: each chunk is requested once."""
        return True

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        """Copy the outputs of a chunk."""
        self.skipped |= {image.index: image for image in chunk.skipped}
        if len(chunk.indices) == 0:
            return
        if self._outputs is None:
            self._outputs = np.empty((self._images, self._views, chunk.outputs.shape[1]), dtype=np.float32)
        self._outputs[chunk.indices, view] = chunk.outputs
        self._is_read[chunk.indices] = True

    def result(self) -> tuple[IntArray, Float32Array]:
        """Return the source indices int64 [N] and the outputs float32 [N, V, C] of the readable images."""
        if self._outputs is None:
            raise PredictionsError(f"none of the {self._images} images could be read; see `skipped` of the source.")
        indices = np.flatnonzero(self._is_read)
        return indices, self._outputs if len(indices) == self._images else self._outputs[indices]


class OnDisk(Sink):
    """A sink that writes chunks to a store entry, in a thread of its own while the classifier continues."""

    def __init__(self, entry: StoreEntry, views: tuple[str, ...]) -> None:
        self._entry = entry
        self._views = views
        self._pending: list[Future[None]] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="secondlook-write")

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Accept chunks; at the end all are on disk, or the error of a failed write is raised."""
        try:
            yield self
            self._wait(0)
        finally:
            self._writer.shutdown()  # also after an interruption: what is computed is written

    def needs(self, view: int, number: int) -> bool:
        """Whether the chunk does not exist; another process may be writing it."""
        return number not in self._entry.chunks_of(self._views[view])

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        """Schedule the write of a chunk; wait if the disk is slow, to bound memory."""
        self._wait(_MAX_PENDING_WRITES - 1)
        self._pending.append(self._writer.submit(self._entry.write_chunk, self._views[view], number, chunk))

    def _wait(self, max_pending: int) -> None:
        while len(self._pending) > max_pending:
            self._pending.pop(0).result()


# --- In other processes: what an engine sends there, and what comes back ---


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

    def write(self, number: int, first: int, sinks: Sequence[Sink], summaries: Summaries | None) -> None:
        """Write a chunk to the sink of each member, if outputs are kept; `first` is the index of its first image."""
        skipped = tuple(image.model_copy(update={"index": first + image.index}) for image in self.skipped)
        for sink, outputs in zip(sinks, self.outputs, strict=False):
            for view, values in outputs.items():
                sink.write(view, number, Chunk(first + self.indices, values, skipped))
        if self.summary is not None and summaries is not None:
            summaries.write(number, self.summary)


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
            summary = settings.summarize(number, preds, [(image.id, image.reason) for image in chunk.skipped])
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
