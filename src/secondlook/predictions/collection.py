"""`collect`: classify all views of all images once, in this process or others, in memory or into a store.

The stages of the pipeline (decode, make views, classify, write) run in separate threads, or on a GPU.
"""

import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import Classifier, Fetch, load_classifier
from secondlook.errors import PredictionsError, SourceError
from secondlook.predictions.batching import Chunking, choose_batch_size, chunk_rows
from secondlook.predictions.decoding import DecodedChunk, read_ahead, read_first_image
from secondlook.predictions.execution import DEFAULT_EXECUTION, Engine, Execution, Worker
from secondlook.predictions.inference import Inference
from secondlook.predictions.predictions import Predictions, open_entry
from secondlook.predictions.store import (
    ENSEMBLE_FILE,
    Chunk,
    EnsembleManifest,
    Manifest,
    Origin,
    SkippedImage,
    StoreEntry,
    entry_key,
    translate_store_errors,
    write_manifest,
)
from secondlook.predictions.validation import check_class_names_match, check_classes
from secondlook.progress import IMAGES_X_VIEWS, Advance, ignore_progress, progress_bar
from secondlook.sources import Source
from secondlook.specs import parse_spec, short_name
from secondlook.views import ViewSet, ViewsLike

_CHUNKS_AHEAD = 1
_VIEW_BATCHES_AHEAD = 3
_MAX_PENDING_WRITES = 2
_NO_OUTPUTS = np.empty((0, 1), dtype=np.float32)

Needs = Callable[[int, int], bool]
"""Whether to compute a chunk, given the position of its view and its number."""
ComputedViews = Generator[tuple[int, int, Chunk], None, None]
"""Computed chunks, each with the position of its view and its number."""


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
        Folder for the outputs. Stored outputs are not computed again, so an interrupted job resumes where it stopped.
        By default, outputs are kept in memory only.
    labels
        True class of each image, int [N], or its name, [N], if the source has no labels. Names must be among the
        classifier's class names, if it has any.
    execution
        Where and how to classify, and how to handle unreadable images: by default like the source; with an engine they
        are skipped. `Predictions.skipped` lists skipped images.
    """
    loaded = load_classifier(classifier)
    # The workers of an engine put their classifiers on their own devices.
    loaded = loaded.on_device(execution.device) if execution.engine is None else loaded
    source = loaded.open_labeled(data, labels, execution.on_error)
    if execution.engine is not None and execution.on_error is None:
        source = skip_by_default(source, data)
    check_class_names_match(loaded.members or (loaded,), source)
    return _collect(loaded, source, ViewSet(views), execution, None if store is None else Path(store))


def skip_by_default(source: Source, data: object) -> Source:
    """Return a source that skips unreadable images, unless `data` specifies `on_error`.

    One image of millions must not end a job on a cluster.
    """
    is_set = isinstance(data, Source)
    if isinstance(data, str) and ":" in data:
        is_set = "on_error" in parse_spec(data, SourceError).options
    return source if is_set else source.with_on_error("skip")


def _collect(
    classifier: Classifier, source: Source, views: ViewSet, execution: Execution, store: Path | None
) -> Predictions:
    if classifier.members:
        members = [_collect(member, source, views, execution, store) for member in classifier.members]
        if store is not None:
            folder, keys = store / entry_key(classifier, source), [entry_key(one, source) for one in classifier.members]
            with translate_store_errors(folder):
                folder.mkdir(exist_ok=True)
                write_manifest(folder / ENSEMBLE_FILE, EnsembleManifest(members=tuple(keys)))
        return Predictions(members=members, views=views, origin=Origin.describe(classifier, source))
    image = read_first_image(classifier, source)
    batch_size = choose_batch_size(execution.batch_size, image, classifier)
    # The batches of GPUs may be larger than the chunks of a store.
    rows = chunk_rows(image) if store is not None else max(chunk_rows(image), chunk_rows(image, batch_size))
    job = _Job(classifier, source, views, batch_size, Chunking(len(source), rows))
    return _collect_in_memory(job, execution) if store is None else _collect_on_disk(job, execution, store)


@dataclass(frozen=True)
class _Job:
    """A classifier, the images and views to classify, and how to divide the images."""

    classifier: Classifier
    source: Source
    views: ViewSet
    batch_size: int
    chunking: Chunking


def _collect_in_memory(job: _Job, execution: Execution) -> Predictions:
    source, outputs = job.source, np.empty((0, 0, 0), dtype=np.float32)
    is_read, skipped = np.zeros(len(source), dtype=np.bool_), dict[int, SkippedImage]()
    with closing(_compute(job, execution, lambda view, number: True)) as computed:
        for view, _, chunk in computed:
            skipped |= {image.index: image for image in chunk.skipped}
            if len(chunk.indices):
                if not len(outputs):
                    outputs = np.empty((len(source), len(job.views), chunk.outputs.shape[1]), dtype=np.float32)
                outputs[chunk.indices, view] = chunk.outputs
                is_read[chunk.indices] = True
    if not is_read.any():
        raise PredictionsError(f"none of the {len(source)} images could be read; see `skipped` of the source.")
    indices, is_complete = np.flatnonzero(is_read), bool(is_read.all())
    return Predictions.from_outputs(  # outputs and labels are validated already
        outputs if is_complete else outputs[indices],
        job.classifier.output,
        job.views,
        labels=None if source.labels is None else np.array(source.labels[indices], dtype=np.int64),
        ids=source.ids if is_complete else [source.ids[index] for index in indices.tolist()],
        class_names=source.class_names,
        skipped=[(image.id, image.reason) for _, image in sorted(skipped.items())],
        origin=Origin.describe(job.classifier, source),
    )


def _collect_on_disk(job: _Job, execution: Execution, store: Path) -> Predictions:
    classifier, source, views = job.classifier, job.source, job.views.texts
    key = entry_key(classifier, source)
    manifest = Manifest.create(classifier, source, job.views, job.chunking.rows)
    entry = StoreEntry.open_or_create(store / key, manifest)
    with entry.lock_for_writing():
        repaired = [image.index for image in entry.manifest.skipped if source.is_readable(image.index)]
        with translate_store_errors(entry.folder):
            entry.ensure_images(source.ids, source.labels)
            entry.remove_chunks_with(repaired)
            entry.remove_damaged_chunks(views)
        # An existing entry may have another chunk size.
        _write_chunks(replace(job, chunking=entry.chunking), execution, entry)
        entry.finalize()
        if source.on_error == "fail":
            entry.check_none_skipped()
    return open_entry(entry, job.views)


def _write_chunks(job: _Job, execution: Execution, entry: StoreEntry) -> None:
    """Write all missing chunks, in a separate thread while the classifier continues."""
    views, pending = job.views.texts, deque[Future[None]]()

    def needs(view: int, number: int) -> bool:  # another process may write it
        return number not in entry.chunks_of(views[view])

    # After an interruption, the thread still writes the computed chunks.
    with (
        ThreadPoolExecutor(1, thread_name_prefix="secondlook-write") as writer,
        closing(_compute(job, execution, needs)) as computed,
    ):
        for view, number, chunk in computed:
            while len(pending) >= _MAX_PENDING_WRITES:  # on a slow disk, bounds the memory
                pending.popleft().result()
            pending.append(writer.submit(entry.write_chunk, views[view], number, chunk))
        while pending:
            pending.popleft().result()


# --- Computing chunks ---


def _compute(job: _Job, execution: Execution, needs: Needs) -> ComputedViews:
    """Compute the needed chunks, here or on an engine."""
    chunking, missing = job.chunking, dict[frozenset[int], list[int]]()
    for number in chunking.numbers:
        needed = frozenset(view for view in range(len(job.views)) if needs(view, number))
        if needed:
            missing.setdefault(needed, []).append(number)
    total = sum(len(views) * len(chunking.indices_of(number)) for views in missing for number in missing[views])
    with progress_bar(short_name(job.classifier.name), total, IMAGES_X_VIEWS, enabled=execution.progress) as advance:
        if execution.engine is None:
            yield from _run_pipeline(job, needs, advance)
        else:
            yield from _run_on_engine(execution.engine, job, execution, missing, advance)


def _run_on_engine(
    engine: Engine, job: _Job, execution: Execution, missing: dict[frozenset[int], list[int]], advance: Advance
) -> ComputedViews:
    image, source, is_checked = read_first_image(job.classifier, job.source), job.source.without_labels(), False
    for views, numbers in missing.items():
        alone = replace(execution, engine=None)
        load = partial(_load_collector, job.classifier, job.views, image, alone, needed=views)
        with closing(engine.compute_chunks(load, source, job.chunking, numbers)) as computed:
            for one in computed:
                indices = job.chunking.indices_of(one.number)
                for view, chunk in pickle.loads(one.content).items():
                    if len(chunk.indices) and not is_checked:
                        check_classes(job.classifier.name, job.source, chunk.outputs.shape[1])
                        is_checked = True
                    yield view, one.number, chunk.shift(indices.start)
                advance(len(indices) * len(views))


def _load_collector(
    classifier: Classifier, views: ViewSet, image: Array, execution: Execution, *, needed: frozenset[int]
) -> Worker:
    """Return a function that classifies a chunk in a worker process, from its images only.

    `needed` are the positions of the views to classify; an image at the input size determines the batch size.
    """
    classifier = classifier.on_device(execution.device)
    batch_size = choose_batch_size(execution.batch_size, image, classifier)

    def collect_chunk(number: int, images: Source) -> bytes:
        job = _Job(classifier, images, views, batch_size, Chunking(len(images), len(images)))
        chunks = _run_pipeline(job, lambda view, _: view in needed, ignore_progress)
        return pickle.dumps({view: chunk for view, _, chunk in chunks}, protocol=5)

    return collect_chunk


@dataclass(frozen=True)
class _ViewBatch:
    """Inputs to classify, grouped by view; None for a chunk without readable images.

    There are several views only if they fit in one batch.
    """

    chunk: DecodedChunk
    views: tuple[int, ...]
    n_images: int
    is_last: bool
    inputs: Any


def _run_pipeline(job: _Job, needs: Needs, advance: Advance) -> ComputedViews:
    """Compute chunks in this process; calls `advance` with the number of images after each batch."""
    inference = Inference.create(job.classifier, job.batch_size)
    started: deque[tuple[_ViewBatch, Fetch]] = deque()
    outputs: list[Float32Array] = []  # one for each batch of a chunk
    is_checked = False

    def finish_first() -> Iterator[tuple[int, int, Chunk]]:
        nonlocal is_checked
        batch, fetch = started.popleft()
        outputs.append(fetch())
        if batch.inputs is not None and not is_checked:
            check_classes(job.classifier.name, job.source, outputs[0].shape[1])
            is_checked = True
        advance(batch.n_images * len(batch.views))
        if batch.is_last:
            chunk, joined = batch.chunk, np.concatenate(outputs)
            outputs.clear()
            per_view = joined.reshape(len(batch.views), len(chunk.indices), joined.shape[1])
            for view, view_outputs in zip(batch.views, per_view, strict=True):
                yield view, chunk.number, Chunk(chunk.indices, view_outputs, chunk.skipped)

    with closing(read_ahead(lambda: _iter_view_batches(job, needs, inference), _VIEW_BATCHES_AHEAD)) as batches:
        for batch in batches:
            fetch = (lambda: _NO_OUTPUTS) if batch.inputs is None else inference.start(batch.inputs)
            started.append((batch, fetch))
            while len(started) > inference.outstanding:
                yield from finish_first()
        while started:
            yield from finish_first()


def _iter_view_batches(job: _Job, needs: Needs, inference: Inference) -> Iterator[_ViewBatch]:
    def decode_needed() -> Iterator[DecodedChunk]:
        for number in job.chunking.numbers:
            if any(needs(view, number) for view in range(len(job.views))):
                yield DecodedChunk.decode(job.classifier, job.source, number, job.chunking.indices_of(number))

    with closing(read_ahead(decode_needed, _CHUNKS_AHEAD)) as chunks:
        for chunk in chunks:
            n_images, placed = len(chunk.indices), inference.place(chunk.images)
            for group in inference.group_views(len(job.views), n_images):
                # Another process may have written the chunk in the meantime.
                views = tuple(view for view in group if needs(view, chunk.number))
                if views and n_images == 0:
                    yield _ViewBatch(chunk, views, 0, is_last=True, inputs=None)
                for start in range(0, n_images if views else 0, job.batch_size):
                    stop = min(start + job.batch_size, n_images)
                    inputs = inference.prepare(placed[start:stop], [job.views.views[view] for view in views])
                    yield _ViewBatch(chunk, views, stop - start, stop == n_images, inputs)
