"""The flow of collecting: decode, look, classify, keep, each going on while the next is at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.errors import PredictionsError
from secondlook.predictions.ahead import ahead
from secondlook.predictions.batching import HalvingBatches
from secondlook.predictions.checks import check_labels, check_number_of_classes
from secondlook.predictions.division import Chunking
from secondlook.predictions.manifest import SkippedImage
from secondlook.predictions.part import Chunk
from secondlook.views import ViewSet

if TYPE_CHECKING:
    from secondlook.classifiers import Classifier
    from secondlook.predictions.keeping import Keeper
    from secondlook.sources import Source

PARTS_AHEAD = 1
LOOKS_AHEAD = 3
DECODED_AT_ONCE = 16
"""Images at their own size that are held before they are fitted to the input: photographs of 12 megapixels add up."""


@dataclass(frozen=True)
class CollectJob:
    """What is to be collected."""

    classifier: Classifier
    source: Source
    views: ViewSet
    batch_size: int
    division: Chunking


@dataclass(frozen=True)
class DecodedPart:
    """The images of one part at the input size, in batches [n, H, W, C], with their indices in the source."""

    number: int
    indices: IntArray
    batches: list[Array]
    skipped: tuple[SkippedImage, ...]


@dataclass(frozen=True)
class Look:
    """One view of one batch, [n, H, W, C]; the last one of its part completes it."""

    part: DecodedPart
    view: int
    images: Array | None
    is_last: bool


def read_first_image(classifier: Classifier, source: Source) -> Array:
    """Return the first image that can be read, at the input size [H, W, C]; its size decides what fits in memory."""
    for batch in source.batches(1):
        image: Array = classifier.preprocessing.fit(batch.images)[0]
        return image
    raise PredictionsError(
        f"none of the {len(source)} images of {source.spec!r} could be read; "
        f"the first, {source.skipped[0].id!r}: {source.skipped[0].reason}"
    )


def run_pipeline(job: CollectJob, keeper: Keeper, advance: Callable[[int], None]) -> None:
    """Collect whatever the keeper lacks; `advance` is told how many images were classified."""
    classify = HalvingBatches(job.classifier, job.batch_size)
    answers: list[Float32Array] = []
    checked = False
    with closing(ahead(lambda: _looks(job, keeper), LOOKS_AHEAD)) as looks:
        for look in looks:
            if look.images is not None:
                answers.append(classify(look.images))
                if not checked:
                    _check_classes(job, answers[-1].shape[1])
                    checked = True
                advance(len(look.images))
            if look.is_last:
                keeper.keep(look.view, look.part.number, Chunk(look.part.indices, _joined(answers), look.part.skipped))
                answers = []


def _joined(answers: list[Float32Array]) -> Float32Array:
    return np.concatenate(answers) if answers else np.empty((0, 1), dtype=np.float32)


def _check_classes(job: CollectJob, classes: int) -> None:
    """Say at the first answer, not after hours, that labels or class names do not go with the classifier."""
    check_number_of_classes(job.classifier.name, job.source, classes)
    if job.source.labels is not None:
        check_labels(job.source.labels, len(job.source), classes)


def _looks(job: CollectJob, keeper: Keeper) -> Iterator[Look]:
    from secondlook.views import apply_view

    with closing(ahead(lambda: _decoded_parts(job, keeper), PARTS_AHEAD)) as parts:
        for part in parts:
            for place, view in enumerate(job.views):
                # Asked again: another process may have computed it since the part was decoded.
                if not keeper.lacks(place, part.number):
                    continue
                if not part.batches:
                    yield Look(part, place, None, is_last=True)
                for number, batch in enumerate(part.batches, start=1):
                    yield Look(part, place, apply_view(batch, view), is_last=number == len(part.batches))


def _decoded_parts(job: CollectJob, keeper: Keeper) -> Iterator[DecodedPart]:
    for number in job.division.numbers:
        if any(keeper.lacks(place, number) for place in range(len(job.views))):
            yield _decoded_part(job, number)


def _decoded_part(job: CollectJob, number: int) -> DecodedPart:
    wanted = job.division.indices_of(number)
    read, fitted = [], []
    for batch in job.source.batches(DECODED_AT_ONCE, wanted.start, wanted.stop):
        read.append(batch.indices)
        fitted.append(job.classifier.preprocessing.fit(batch.images))
    indices = np.concatenate(read) if read else np.empty(0, dtype=np.int64)
    batches = _in_batches(np.concatenate(fitted), job.batch_size) if fitted else []
    return DecodedPart(number, indices, batches, _skipped(job.source, wanted, indices))


def _in_batches(images: Array, batch_size: int) -> list[Array]:
    return [images[start : start + batch_size] for start in range(0, len(images), batch_size)]


def _skipped(source: Source, wanted: range, read: IntArray) -> tuple[SkippedImage, ...]:
    missing = np.setdiff1d(np.array(wanted), read).tolist()
    if not missing:
        return ()
    reasons = {image.id: image.reason for image in source.skipped}
    return tuple(
        SkippedImage(index=index, id=source.ids[index], reason=reasons[source.ids[index]]) for index in missing
    )
