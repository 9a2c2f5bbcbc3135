"""Deciding about images as they come: requests are decoded at once, decided in batches and answered when stored.

An image goes through three stages with threads of their own, so that the classifier never waits for the disk: decoding
to the input size, looking (one thread, in batches), and deciding and storing (one thread, one transaction per batch).
"""

import asyncio
import hashlib
import logging
import math
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition, Thread
from typing import NamedTuple

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import SecondLookError, ServingError, SourceError
from secondlook.predictions import Predictions
from secondlook.scoring import Decider, DetailedDecision, RowOptions, detail_decisions, encode_png, group_by_shape
from secondlook.serving.database import DatabaseReadError, StorageError
from secondlook.serving.decision_store import (
    DecisionStore,
    Deployment,
    NewDecision,
    StoredImage,
    StoredOutcome,
)
from secondlook.serving.faults import RequestError
from secondlook.serving.image_types import find_media_type
from secondlook.serving.options import ServiceOptions
from secondlook.serving.pixel_budget import PixelBudget
from secondlook.sources import LargeImageError, UnreadableImageError, read_image

LONGEST_ID = 200
REPLACEMENT = "\ufffd"
"""What bytes that are no text become, so that several ids would be one."""
LONGEST_NAME = 500
MAX_LARGEST = 2
"""Number of images of the largest size that are decoded at once; more of smaller ones."""
SMOOTHING = 0.1
"""Weight of the latest batch in the average time per image."""

logger = logging.getLogger("secondlook.serving")


@dataclass(frozen=True, eq=False)
class SubmittedImage:
    """An image of a request: the bytes of a file, or pixels uint8|float32 [H, W, 1 or 3]."""

    content: bytes | Array
    id: str | None = None
    """The id that the client gave, which makes the request safe to repeat; None to make one."""
    name: str | None = None
    """Its file name, for reviewers."""


@dataclass(frozen=True, eq=False)
class LiveDeployment:
    """The policy in force, with its classifier."""

    deployment: Deployment
    decider: Decider
    options: RowOptions
    audit_seed: int

    def decide(self, preds: Predictions) -> list[DetailedDecision]:
        """Decide about images that were looked at in all views of `preds`."""
        return detail_decisions(self.options, preds, audit_seed=self.audit_seed)


@dataclass(frozen=True, eq=False)
class _Job:
    """A decoded image on its way."""

    id: str
    digest: str
    image: SubmittedImage
    inputs: Array
    """Pixels at the input size. [1, H, W, C]"""
    future: "asyncio.Future[StoredOutcome]"
    arrived: float = field(default_factory=time.monotonic)


class _LookedBatch(NamedTuple):
    """Images that were looked at by one policy, in groups of equally many looks."""

    live: LiveDeployment
    groups: list[tuple[list[_Job], Predictions]]
    seconds: float
    """That looking took."""


class _Prepared(NamedTuple):
    """An image of a request after decoding."""

    id: str
    digest: str
    inputs: Array


class _TooLargeError(ServingError):
    """An image has more pixels than may be decoded now."""


class DecisionWorker:
    """Decides about the images of all requests. `decide` is called on the event loop, everything else has threads.

    Parameters
    ----------
    live
        Returns the policy in force; called for each batch.
    store
        Where decisions are written before requests are responded to.
    options
        Sizes and limits.
    on_batch
        Called after each batch with its decisions and the seconds that looking took.
    on_overload
        Called when a request is refused since too many images are waiting.
    """

    def __init__(
        self,
        live: Callable[[], LiveDeployment],
        store: DecisionStore,
        options: ServiceOptions,
        on_batch: Callable[[Sequence[DetailedDecision], float], None] = lambda decisions, seconds: None,
        on_overload: Callable[[], None] = lambda: None,
    ) -> None:
        self._live, self._store, self._options = live, store, options
        self._on_batch, self._on_overload = on_batch, on_overload
        self.waiting = 0
        """Number of images that are admitted and not answered."""
        self.seconds_per_image = 0.01
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="secondlook-decode")
        self._pixels = PixelBudget(MAX_LARGEST * options.max_pixels)
        self._in_work: dict[str, tuple[str, asyncio.Future[StoredOutcome]]] = {}
        """Digest and future of images with ids of clients; used by the event loop only."""
        self._queue: deque[_Job] = deque()
        self._changed = Condition()
        self._is_stopping = False
        self._looked: SimpleQueue[_LookedBatch | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._look_at_batches, name="secondlook-look", daemon=True),
            Thread(target=self._finish_batches, name="secondlook-finish", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether all threads run, without which no image is decided."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Finish what is in work, and end the threads."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._decoders.shutdown()

    async def decide(self, images: Sequence[SubmittedImage]) -> list[StoredOutcome]:
        """Decide about the images of one request, and return the decisions, which are on disk.

        After an error, those that could be decided may be stored: send the images again with the same ids.
        """
        self._check_room(len(images))
        self.waiting += len(images)
        try:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._decoders, self._prepare, images)
            for one in prepared:  # before any of them is handed on
                self._check_in_work(one)
            futures = [self._submit(image, one) for image, one in zip(images, prepared, strict=True)]
            results = await asyncio.gather(*futures, return_exceptions=True)
        finally:
            self.waiting -= len(images)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, StoredOutcome)]

    def _check_room(self, n_images: int) -> None:
        if self._is_stopping:
            raise RequestError(
                503,
                "stopping",
                "the service is stopping; send the request again in a moment.",
                headers={"Retry-After": "5"},
            )
        if n_images > self._options.max_request_images:
            raise too_many_images(self._options.max_request_images)
        if self.waiting + n_images > self._options.max_waiting:
            self._on_overload()
            seconds = max(1, math.ceil(self.waiting * self.seconds_per_image))
            raise RequestError(
                429,
                "busy",
                f"{self.waiting} images are waiting, as many as allowed; send the request again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )

    def _check_in_work(self, prepared: _Prepared) -> None:
        if prepared.id in self._in_work:
            check_same_image(prepared.id, prepared.digest, self._in_work[prepared.id][0])

    def _submit(self, image: SubmittedImage, prepared: _Prepared) -> "asyncio.Future[StoredOutcome]":
        """Hand a decoded image to the next stage; one whose id is in work already waits for the same decision."""
        if prepared.id in self._in_work:
            return asyncio.ensure_future(_replay(self._in_work[prepared.id][1]))
        future: asyncio.Future[StoredOutcome] = asyncio.get_running_loop().create_future()
        self._in_work[prepared.id] = prepared.digest, future
        future.add_done_callback(lambda _: self._in_work.pop(prepared.id, None))
        job = _Job(prepared.id, prepared.digest, image, prepared.inputs, future)
        with self._changed:
            self._queue.append(job)
            self._changed.notify()
        return future

    def _prepare(self, images: Sequence[SubmittedImage]) -> list[_Prepared]:
        """Decode the images of a request."""
        given = [image.id for image in images if image.id is not None]
        for id_ in given:
            check_id(id_)
        if len(set(given)) < len(given):
            raise RequestError(400, "id", "an id is given twice in one request; ids must be unique.")
        prepared = []
        for place, image in enumerate(images, start=1):
            place_and_name = f"{place}" + (f" ({image.name!r})" if image.name else "")
            inputs = self._decode(image.content, place_and_name)
            prepared.append(_Prepared(image.id or uuid.uuid4().hex, hash_image(image.content), inputs))
        if len(given) > 1:  # one of its own is checked with those of other requests
            self._check_stored(prepared, given)
        return prepared

    def _check_stored(self, prepared: Sequence[_Prepared], given: Sequence[str]) -> None:
        """Refuse a request with an id of another image before any image of it is decided."""
        known = self._store.find(given)
        for one in prepared:
            if one.id in known:
                check_same_image(one.id, one.digest, known[one.id].digest)

    def _decode(self, content: bytes | Array, place_and_name: str) -> Array:
        """Return an image at the input size of the classifier, after its limits were checked. [1, H, W, C]"""
        where = f"image {place_and_name}"
        if isinstance(content, bytes):
            if not content:
                raise RequestError(400, "no_image", f"{where} is empty; send the bytes of an image file.")
            find_media_type(content, where)
        most = self._options.max_pixels
        for limit in sorted({most // 64, most // 4, most}):  # most images are small, and found so by their headers
            with self._pixels.reserve(limit):
                try:
                    return self._read_and_fit(content, place_and_name, limit)
                except _TooLargeError:
                    continue
        raise RequestError(413, "image_too_large", f"{where} has more than {most:,} pixels; send a smaller one.")

    def _read_and_fit(self, content: bytes | Array, place_and_name: str, max_pixels: int) -> Array:
        where = f"image {place_and_name}"
        try:
            pixels = read_image(content, place_and_name, max_pixels=max_pixels)
        except UnreadableImageError as error:
            # The repair names the argument of Python that would raise the limit; names of files are not in it.
            if isinstance(error, LargeImageError) or "max_pixels" in error.repair:
                raise _TooLargeError from None
            raise RequestError(422, "unreadable_image", f"{where} cannot be read: {error.reason}.") from None
        except SourceError as error:
            raise RequestError(422, "unreadable_image", str(error)) from None
        try:
            return fit_image(self._live().decider, pixels)
        except SecondLookError as error:
            # What follows is the repair, in terms of Python.
            reason = str(error).partition(";")[0]
            raise RequestError(422, "image_size", f"{where} does not fit the classifier: {reason}.") from None

    def _look_at_batches(self) -> None:
        """Look at images batch by batch, until the worker stops."""
        while batch := self._take():
            try:
                self._looked.put(self._look_at(batch))
            except Exception as error:  # noqa: BLE001 - whatever fails, the next batch may not
                self._fail(batch, make_request_error(error))
        self._looked.put(None)

    def _look_at(self, batch: Sequence[_Job]) -> _LookedBatch:
        live, started = self._live(), time.monotonic()
        new = self._answer_known(batch)
        together = group_by_shape([job.inputs for job in new])
        groups = [group for places in together for group in self._look(live, [new[place] for place in places])]
        seconds = time.monotonic() - started
        self.seconds_per_image += SMOOTHING * (seconds / len(batch) - self.seconds_per_image)
        return _LookedBatch(live, groups, seconds)

    def _take(self) -> list[_Job]:
        """Return the next images, as soon as they are a full batch or the first has waited; none at the end."""
        size = self._options.batch_size
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_stopping)
            if self._queue:
                left = self._queue[0].arrived + self._options.max_wait - time.monotonic()
                self._changed.wait_for(lambda: len(self._queue) >= size or self._is_stopping, max(0.0, left))
            return [self._queue.popleft() for _ in range(min(size, len(self._queue)))]

    def _answer_known(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Answer requests that were decided before, and return the others."""
        given = [job.id for job in jobs if job.image.id is not None]
        known = self._store.find(given, urgent=True) if given else {}
        replayed = [job for job in jobs if job.id in known]
        if replayed:
            resolve(replayed, [check_outcome(job, StoredOutcome(known[job.id], replayed=True)) for job in replayed])
        return [job for job in jobs if job.id not in known]

    def _look(self, live: LiveDeployment, jobs: list[_Job]) -> list[tuple[list[_Job], Predictions]]:
        """Look at images of one shape; one that the classifier fails on does not spoil the others."""
        try:
            looked = live.decider.look(np.concatenate([job.inputs for job in jobs]), [job.id for job in jobs])
        except Exception as error:  # noqa: BLE001 - whatever a classifier raises, the service goes on
            if len(jobs) > 1:
                return [group for job in jobs for group in self._look(live, [job])]
            self._fail(jobs, make_request_error(error))
            return []
        return [([jobs[place] for place in positions], preds) for positions, preds in looked]

    def _finish_batches(self) -> None:
        """Decide about images that were looked at, store the decisions and answer the requests."""
        while (batch := self._looked.get()) is not None:
            jobs = [job for group, _ in batch.groups for job in group]
            try:
                if jobs:
                    self._finish(batch, jobs)
            except Exception as error:  # noqa: BLE001 - a full disk: the requests fail, the service goes on
                self._fail(jobs, make_request_error(error))

    def _finish(self, batch: _LookedBatch, jobs: Sequence[_Job]) -> None:
        decisions = [decision for _, preds in batch.groups for decision in batch.live.decide(preds)]
        new = [self._make_new(job, decision) for job, decision in zip(jobs, decisions, strict=True)]
        outcomes = self._store.add(new, batch.live.deployment.number)
        resolve(jobs, [check_outcome(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])
        self._on_batch(decisions, batch.seconds)

    def _make_new(self, job: _Job, decision: DetailedDecision) -> NewDecision:
        image = None
        if self._options.store_images and (decision.audit or not decision.accept):
            image = make_stored_image(job.image.content)
        return NewDecision(decision, job.digest, job.image.name, image)

    def _fail(self, jobs: Sequence[_Job], error: RequestError) -> None:
        resolve(jobs, [error] * len(jobs))


def fit_image(decider: Decider, pixels: Array) -> Array:
    """Return pixels at the input size of a classifier; a gray file, which is decoded to three equal channels, is gray.

    uint8|float32 [h, w, C] -> [1, H, W, C]
    """
    try:
        return decider.fit_image(pixels)
    except SecondLookError:
        # Row by row, since a comparison of all takes as much memory as the image.
        if pixels.shape[2] == 1 or any((row != row[:, :1]).any() for row in pixels):
            raise
    return decider.fit_image(pixels[:, :, :1])


async def _replay(running: "asyncio.Future[StoredOutcome]") -> StoredOutcome:
    return StoredOutcome((await asyncio.shield(running)).decision, replayed=True)


def resolve(jobs: Sequence[_Job], results: Sequence[StoredOutcome | RequestError]) -> None:
    """Answer the requests of some images, in one call on the event loop."""

    def set_results() -> None:
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():  # the request was canceled
                continue
            if isinstance(result, RequestError):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    with suppress(RuntimeError):  # the loop is closed: the server gave the requests up
        jobs[0].future.get_loop().call_soon_threadsafe(set_results)


def check_outcome(job: _Job, outcome: StoredOutcome) -> StoredOutcome | RequestError:
    """Return the outcome for an image, or the error if its id was that of another one."""
    try:
        check_same_image(job.id, job.digest, outcome.decision.digest)
    except RequestError as error:
        return error
    return outcome


def make_request_error(error: Exception) -> RequestError:
    """Return the answer to a request that failed for a reason; unexpected ones are logged and not told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, StorageError):
        logger.error("storage failed", extra={"reason": str(error)})
        return describe_storage_error(error)
    if isinstance(error, SecondLookError):
        return RequestError(422, "invalid", str(error))
    logger.error("deciding failed", exc_info=error)
    return RequestError(500, "internal", "the service failed to decide about the image; the reason is in its log.")


def describe_storage_error(error: StorageError) -> RequestError:
    """Return the answer to a request that needs a database that cannot be used; where it is is not told."""
    if isinstance(error, DatabaseReadError):
        return RequestError(
            503,
            "storage_unavailable",
            "the database of the service cannot be read; try again in some seconds.",
            headers={"Retry-After": "5"},
        )
    return RequestError(
        507, "storage_failed", "the database of the service cannot be written; tell whoever runs the service."
    )


def too_many_images(most: int) -> RequestError:
    """Return the error of a request with more images than allowed."""
    return RequestError(413, "too_many_images", f"a request may have at most {most} images; send several requests.")


def check_id(id_: str) -> None:
    """Raise an error for an id that is empty, too long or not printable, or was not text in UTF-8."""
    if not (1 <= len(id_) <= LONGEST_ID and id_.isprintable()) or REPLACEMENT in id_:
        raise RequestError(
            400, "id", f"the id {id_[:50]!r} is not valid; expected 1 to {LONGEST_ID} printable characters."
        )


def check_same_image(id_: str, digest: str, known: str) -> None:
    """Raise an error if an id was given to another image before."""
    if digest != known:
        raise RequestError(
            409, "id_conflict", f"the id {id_!r} belongs to another image that was sent before; choose a new id."
        )


def hash_image(content: bytes | Array) -> str:
    """Return the hex sha256 of an image as it came."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha256(f"{content.dtype}{content.shape}".encode() + content.tobytes()).hexdigest()


def make_stored_image(content: bytes | Array) -> StoredImage:
    """Return an image as a file: as it came, or pixels as PNG."""
    if isinstance(content, bytes):
        return StoredImage(find_media_type(content, "the image"), content)
    return StoredImage("image/png", encode_png(content))
