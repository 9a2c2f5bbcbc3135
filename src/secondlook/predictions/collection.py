"""`collect`: classify every view of every image once, in this process or others, in memory or into a store."""

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ANY, PredictionsError, Repair, SourceError
from secondlook.predictions.batching import Chunking, choose_batch_size, chunk_rows
from secondlook.predictions.execution import DEFAULT_EXECUTION, Engine, Execution
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
from secondlook.sources import Source, open_labeled
from secondlook.specs import parse_spec, short_name
from secondlook.views import ViewSet, ViewsLike

_MAX_PENDING_WRITES = 2


def collect(
    classifier: Any,
    data: Any,
    views: ViewsLike,
    *,
    store: str | Path | None = None,
    labels: Any = None,
    execution: Execution = DEFAULT_EXECUTION,
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
    execution
        Where and how to classify, and how to handle images that cannot be read: by default as the source does, and with
        an engine they are skipped. Skipped images are listed in `Predictions.skipped`.
    """
    loaded = load_classifier(classifier)
    # The workers of an engine put their classifiers on devices of their own.
    loaded = loaded.on_device(execution.device) if execution.engine is None else loaded
    source = open_labeled(data, labels, loaded.class_names, execution.on_error)
    if execution.engine is not None and execution.on_error is None:
        source = skip_by_default(source, data)
    check_class_names_match(loaded.members or (loaded,), source)
    collector = _Collector(source, ViewSet(views), execution)
    return collector.collect_in_memory(loaded) if store is None else collector.collect_on_disk(loaded, Path(store))


def skip_by_default(source: Source, data: object) -> Source:
    """Return a source that skips images that cannot be read, unless the `data` it was opened from says what to do.

    One image of millions must not end a job on a cluster.
    """
    is_set = isinstance(data, Source)
    if isinstance(data, str) and ":" in data:
        is_set = "on_error" in parse_spec(data, SourceError).options
    return source if is_set else source.with_on_error("skip")


@dataclass(frozen=True)
class _Collector:
    """The settings that all members of an ensemble share."""

    source: Source
    views: ViewSet
    execution: Execution

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

    def _finish(self, entry: StoreEntry) -> None:
        entry.finalize()
        if self.source.on_error == "fail":
            entry.check_none_skipped()

    def _open_entry(self, job: CollectJob, store: Path) -> StoreEntry:
        manifest = Manifest.create(job.classifier, self.source, self.views, job.chunking.rows)
        return StoreEntry.open_or_create(store / self._entry_name(job.classifier), manifest)

    def _plan(self, classifier: Classifier, *, is_stored: bool) -> CollectJob:
        image = read_first_image(classifier, self.source)
        batch_size = choose_batch_size(self.execution.batch_size, image, classifier)
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
        if self.execution.engine is not None:
            self._run_on_engine(self.execution.engine, job, sink)
            return
        total = sum(
            len(job.chunking.indices_of(number))
            for number in job.chunking.numbers
            for place in range(len(job.views))
            if sink.needs(place, number)
        )
        name, progress = short_name(job.classifier.name), self.execution.progress
        with progress_bar(name, total, IMAGES_X_VIEWS, enabled=progress) as advance:
            run_pipeline(job, sink, advance)

    def _run_on_engine(self, engine: Engine, job: CollectJob, sink: Sink) -> None:
        """Let the engine compute what is missing, and write each chunk as it comes."""
        chunking, missing = job.chunking, dict[frozenset[int], list[int]]()
        for number in chunking.numbers:
            needed = frozenset(view for view in range(len(self.views)) if sink.needs(view, number))
            if needed:
                missing.setdefault(needed, []).append(number)
        image = read_first_image(job.classifier, self.source)
        is_checked = False
        total = sum(len(views) * len(chunking.indices_of(number)) for views in missing for number in missing[views])
        name, progress = short_name(job.classifier.name), self.execution.progress
        with progress_bar(name, total, IMAGES_X_VIEWS, enabled=progress) as advance:
            for views, numbers in missing.items():
                load = LoadCollector(job.classifier, self.views, views, image, replace(self.execution, engine=None))
                source = self.source.without_labels()
                with closing(engine.compute_chunks(load, source, chunking, numbers)) as computed:
                    for one in computed:
                        indices = chunking.indices_of(one.number)
                        for view, chunk in pickle.loads(one.content).items():
                            if len(chunk.indices) and not is_checked:
                                check_classes(job.classifier.name, self.source, chunk.outputs.shape[1])
                                is_checked = True
                            sink.write(view, one.number, chunk.shift(indices.start))
                        advance(len(indices) * len(views))

    def _entry_name(self, classifier: Classifier) -> str:
        if not classifier.digest:
            raise PredictionsError(
                f"classifier {classifier.name!r} has no name to store its outputs under, one that changes whenever the "
                "function does",
                repair=Repair("load it with {name}, or omit {store}", name="v1", store=ANY),
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


# --- In other processes: what an engine sends there; a `Chunk` of each view comes back ---


@dataclass(frozen=True, eq=False)
class LoadCollector:
    """Loads what collects chunks in another process; everything that it needs can be pickled."""

    classifier: Classifier
    views: ViewSet
    needed: frozenset[int]
    """Positions of the views to classify."""
    image: Array
    """An image at the input size, from which the batch size is chosen. [H, W, C]"""
    execution: Execution

    def __call__(self) -> Callable[[int, Source], bytes]:
        """Put the classifier on the device of this process; return what classifies a chunk, given its images only."""
        classifier = self.classifier.on_device(self.execution.device)
        batch_size = choose_batch_size(self.execution.batch_size, self.image, classifier)

        def collect_chunk(number: int, images: Source) -> bytes:
            sink = _OneChunk(self.needed)
            job = CollectJob(classifier, images, self.views, batch_size, Chunking(len(images), len(images)))
            run_pipeline(job, sink, ignore_progress)
            return pickle.dumps(sink.chunks, protocol=5)

        return collect_chunk


class _OneChunk(Sink):
    """Keeps the outputs of a single chunk in memory."""

    def __init__(self, needed: frozenset[int]) -> None:
        self._needed = needed
        self.chunks: dict[int, Chunk] = {}

    def needs(self, view: int, number: int) -> bool:
        return view in self._needed

    def write(self, view: int, number: int, chunk: Chunk) -> None:
        self.chunks[view] = chunk
