"""Deciding about images as they come: decoded at once, looked at in batches, stored, and then answered.

An image goes through three stages with threads of their own, so that the classifier never waits for the disk: decoding
to the input size, looking in batches, and deciding and storing (one thread, one transaction for all that wait).
"""

import asyncio
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import NamedTuple

import numpy as np

from secondlook.arrays import Array
from secondlook.decisions import (
    Decider,
    DetailedDecision,
    LookedImage,
    LookStream,
    RowOptions,
    detail_decisions,
    encode_png,
    take_first_views,
)
from secondlook.errors import SecondLookError
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
from secondlook.serving.request_images import ImageDecoder, PreparedImage, SubmittedImage, list_given_ids

SMOOTHING = 0.1
"""Weight of the latest images in the average time per image."""

logger = logging.getLogger("secondlook.serving")


@dataclass(frozen=True, eq=False)
class LiveDeployment:
    """The policy in force, with its classifier."""

    deployment: Deployment
    decider: Decider
    options: RowOptions
    audit_seed: int

    def decide(self, images: "Sequence[LookedImage[_Job]]") -> list[DetailedDecision]:
        """Decide about images that were looked at equally often."""
        views = take_first_views(self.decider.views.texts, len(images[0].outputs))
        outputs = np.stack([image.outputs for image in images])
        preds = self.decider.make_predictions(outputs, views, [image.key.id for image in images])
        return detail_decisions(self.options, preds, audit_seed=self.audit_seed)


@dataclass(eq=False)
class _Request:
    """The images of one request, and what became of them."""

    images: Sequence[SubmittedImage]
    future: "asyncio.Future[list[StoredOutcome | RequestError]]"
    results: list[StoredOutcome | RequestError | None] = field(init=False)
    n_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_left = len(self.images)
        self.results = [None] * self.n_left

    def add(self, place: int, result: StoredOutcome | RequestError) -> bool:
        """Add the result of an image, and return whether it was the last one."""
        self.results[place] = result
        self.n_left -= 1
        return self.n_left == 0


@dataclass(frozen=True, eq=False)
class _Job:
    """A decoded image on its way."""

    id: str
    digest: str
    image: SubmittedImage
    inputs: Array
    """Pixels at the input size. [1, H, W, C]"""
    waiting: list[tuple[_Request, int]]
    """The requests for it, with its place in each: the one that it came with, then others of the same id."""
    arrived: float = field(default_factory=time.monotonic)


class _LookedBatch(NamedTuple):
    """Images that were looked at by one policy."""

    live: LiveDeployment
    images: list[LookedImage[_Job]]


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
    on_look
        Called after each batch with the number of its images and the seconds that looking took.
    on_decisions
        Called with decisions that were stored.
    on_overload
        Called when a request is refused since too many images are waiting.
    """

    def __init__(
        self,
        live: Callable[[], LiveDeployment],
        store: DecisionStore,
        options: ServiceOptions,
        *,
        on_look: Callable[[int, float], None] = lambda n_images, seconds: None,
        on_decisions: Callable[[Sequence[DetailedDecision]], None] = lambda decisions: None,
        on_overload: Callable[[], None] = lambda: None,
    ) -> None:
        self._live, self._store, self._options = live, store, options
        self._on_look, self._on_decisions, self._on_overload = on_look, on_decisions, on_overload
        self.waiting = 0
        """Number of images that are admitted and not answered."""
        self._recent_seconds, self._recent_images = 0.01, 1.0
        """What looking took of late, and how many images it decided; averages over batches."""
        self._decoder = ImageDecoder(lambda: live().decider, options.max_pixels)
        self._undecoded: SimpleQueue[_Request | None] = SimpleQueue()
        self._changed = Condition()
        """Guards what is in work, the queue and whether it is closed."""
        self._in_work: dict[str, _Job] = {}
        """The images that are decoded and not answered, by their ids."""
        self._queue: deque[_Job] = deque()
        self._is_queue_closed = False
        self._is_stopping = False
        self._looked: SimpleQueue[_LookedBatch | None] = SimpleQueue()
        self._decoders = [
            Thread(target=self._decode_requests, name=f"secondlook-decode-{number}", daemon=True)
            for number in range(os.cpu_count() or 1)
        ]
        self._looker = Thread(target=self._look_at_images, name="secondlook-look", daemon=True)
        self._finisher = Thread(target=self._finish_batches, name="secondlook-finish", daemon=True)

    @property
    def _threads(self) -> list[Thread]:
        return [*self._decoders, self._looker, self._finisher]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether all threads run, without which no image is decided."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Finish what is in work, and end the threads, one stage after another."""
        self._is_stopping = True
        for _ in self._decoders:
            self._undecoded.put(None)
        join_threads(self._decoders)
        with suppress(Empty):
            while True:  # those that came at the last moment
                left = self._undecoded.get_nowait()
                if left is not None:
                    refuse(left, stopping())
        with self._changed:
            self._is_queue_closed = True
            self._changed.notify_all()
        join_threads([self._looker])
        self._looked.put(None)
        join_threads([self._finisher])

    async def decide(self, images: Sequence[SubmittedImage]) -> list[StoredOutcome]:
        """Decide about the images of one request, and return the decisions, which are on disk.

        After an error, those that could be decided may be stored: send the images again with the same ids.
        """
        self._check_room(len(images))
        request = _Request(images, asyncio.get_running_loop().create_future())
        self.waiting += len(images)
        try:
            self._undecoded.put(request)
            results = await request.future
        finally:
            self.waiting -= len(images)
        for result in results:
            if isinstance(result, RequestError):
                raise result
        return [result for result in results if isinstance(result, StoredOutcome)]

    def _check_room(self, n_images: int) -> None:
        if self._is_stopping:
            raise stopping()
        if n_images > self._options.max_request_images:
            raise too_many_images(self._options.max_request_images)
        if self.waiting + n_images > self._options.max_waiting:
            self._on_overload()
            seconds = max(1, math.ceil(self.waiting * self._recent_seconds / self._recent_images))
            raise RequestError(
                429,
                "busy",
                f"{self.waiting} images are waiting, as many as allowed; send the request again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )

    def _decode_requests(self) -> None:
        """Decode requests and hand their images to the next stage, until the worker stops."""
        while (request := self._undecoded.get()) is not None:
            try:
                prepared = self._decoder.prepare(request.images)
                self._check_stored(prepared, request.images)
                self._submit(request, prepared)
            except Exception as error:  # noqa: BLE001 - whatever fails, the next request may not
                refuse(request, error)

    def _check_stored(self, prepared: Sequence[PreparedImage], images: Sequence[SubmittedImage]) -> None:
        """Refuse a request with an id of another image before any image of it is decided."""
        given = list_given_ids(images)
        if len(given) < 2:  # one of its own is checked with those of other requests
            return
        known = self._store.find(given)
        for one in prepared:
            if one.id in known:
                check_same_image(one.id, one.digest, known[one.id].digest)

    def _submit(self, request: _Request, prepared: Sequence[PreparedImage]) -> None:
        """Hand decoded images to the next stage; one whose id is in work already waits for the same decision."""
        with self._changed:
            for one in prepared:  # before any of them is handed on
                if one.id in self._in_work:
                    check_same_image(one.id, one.digest, self._in_work[one.id].digest)
            for place, (image, one) in enumerate(zip(request.images, prepared, strict=True)):
                if one.id in self._in_work:
                    self._in_work[one.id].waiting.append((request, place))
                    continue
                job = _Job(one.id, one.digest, image, one.inputs, [(request, place)])
                self._in_work[one.id] = job
                self._queue.append(job)
            self._changed.notify()

    def _look_at_images(self) -> None:
        """Look at images batch by batch, until the worker stops."""
        live = self._live()
        stream: LookStream[_Job] = LookStream(live.decider)
        while True:
            # Those that a policy has looked at are decided by it, before others come to one that replaced it.
            room = self._options.batch_size - len(stream) if live is self._live() or not len(stream) else 0
            jobs = self._take(room, wait=not len(stream))
            if not len(stream):
                if not jobs:
                    return
                live = self._live()
                stream = LookStream(live.decider)
            in_work = [*stream.keys, *jobs]
            try:
                self._look_at(live, stream, self._find_new(jobs))
            except Exception as error:  # noqa: BLE001 - whatever fails, the next batch may not
                self._fail(in_work, make_request_error(error))
                stream = LookStream(live.decider)

    def _look_at(self, live: LiveDeployment, stream: LookStream[_Job], jobs: Sequence[_Job]) -> None:
        """Look at some new images and at those that are still open, and hand on those that are decided."""
        for job in jobs:
            stream.add(job, job.id, job.inputs)
        if not len(stream):
            return
        n_images, started = len(stream), time.monotonic()
        step = stream.look()
        seconds = time.monotonic() - started
        self._note_speed(seconds, len(step.looked) + len(step.failed))
        self._on_look(n_images, seconds)
        for job, error in step.failed:
            self._fail([job], make_request_error(error))
        if step.looked:
            self._looked.put(_LookedBatch(live, step.looked))

    def _note_speed(self, seconds: float, n_decided: int) -> None:
        """Average the time per image; a batch may decide none, and then those after it decide more."""
        self._recent_seconds += SMOOTHING * (seconds - self._recent_seconds)
        self._recent_images += SMOOTHING * (n_decided - self._recent_images)

    def _take(self, room: int, *, wait: bool) -> list[_Job]:
        """Return the next images, as many as there is room for; with `wait`, none only when the worker stops."""
        with self._changed:
            if wait:
                self._wait_for_images()
            return [self._queue.popleft() for _ in range(min(room, len(self._queue)))]

    def _wait_for_images(self) -> None:
        """Wait until there is a full batch, or the first image of one has waited, or no more will come."""
        while not self._is_queue_closed:
            if not self._queue:
                self._changed.wait()
                continue
            left = self._queue[0].arrived + self._options.max_wait - time.monotonic()
            if left <= 0 or len(self._queue) >= self._options.batch_size:
                return
            self._changed.wait(left)

    def _find_new(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Return images that were not decided before; all of them fail if that cannot be found out."""
        try:
            return self._answer_known(jobs)
        except Exception as error:  # noqa: BLE001 - images that are open do not need what failed
            self._fail(jobs, make_request_error(error))
            return []

    def _answer_known(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Answer requests that were decided before, and return the others."""
        given = [job.id for job in jobs if job.image.id is not None]
        known = self._store.find(given, urgent=True) if given else {}
        replayed = [job for job in jobs if job.id in known]
        if replayed:
            self._resolve(replayed, [StoredOutcome(known[job.id], replayed=True) for job in replayed])
        return [job for job in jobs if job.id not in known]

    def _finish_batches(self) -> None:
        """Decide about images that were looked at, store the decisions and answer the requests."""
        while (first := self._looked.get()) is not None:
            waiting: dict[LiveDeployment, list[LookedImage[_Job]]] = {first.live: first.images}
            with suppress(Empty):
                while (batch := self._looked.get_nowait()) is not None:
                    waiting.setdefault(batch.live, []).extend(batch.images)
                self._looked.put(None)  # for this loop to end
            for live, images in waiting.items():
                try:
                    self._finish(live, images)
                except Exception as error:  # noqa: BLE001 - a full disk: the requests fail, the service goes on
                    self._fail([image.key for image in images], make_request_error(error))

    def _finish(self, live: LiveDeployment, images: Sequence[LookedImage[_Job]]) -> None:
        by_looks: dict[int, list[LookedImage[_Job]]] = {}
        for image in images:
            by_looks.setdefault(len(image.outputs), []).append(image)
        jobs = [image.key for group in by_looks.values() for image in group]
        decisions = [decision for group in by_looks.values() for decision in live.decide(group)]
        new = [self._make_new(job, decision) for job, decision in zip(jobs, decisions, strict=True)]
        self._resolve(jobs, self._store.add(new, live.deployment.number))
        self._on_decisions(decisions)

    def _make_new(self, job: _Job, decision: DetailedDecision) -> NewDecision:
        image = None
        if self._options.store_images and (decision.audit or not decision.accept):
            image = make_stored_image(job.image.content)
        return NewDecision(decision, job.digest, job.image.name, image)

    def _resolve(self, jobs: Sequence[_Job], outcomes: Sequence[StoredOutcome]) -> None:
        """Answer the requests for images that are stored; each id may have been that of another image."""
        self._answer(jobs, [check_outcome(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])

    def _fail(self, jobs: Sequence[_Job], error: RequestError) -> None:
        self._answer(jobs, [error] * len(jobs))

    def _answer(self, jobs: Sequence[_Job], results: Sequence[StoredOutcome | RequestError]) -> None:
        """Note the results of images, and answer the requests that have all of theirs; later results do not count."""
        complete: list[_Request] = []
        with self._changed:
            for job, result in zip(jobs, results, strict=True):
                if self._in_work.get(job.id) is not job:
                    continue
                del self._in_work[job.id]
                for request, place in job.waiting:
                    if request.add(place, result):
                        complete.append(request)
                    if isinstance(result, StoredOutcome):
                        result = result._replace(replayed=True)  # for the others, it is there already
        send_results(complete)


def join_threads(threads: Sequence[Thread]) -> None:
    """Wait for threads to end, if they were started."""
    for thread in threads:
        if thread.is_alive():
            thread.join()


def send_results(requests: Sequence[_Request]) -> None:
    """Answer requests whose images all have results, in one call on their event loop."""

    def set_results(ready: Sequence[_Request]) -> None:
        for request in ready:
            if not request.future.done():  # else the request was canceled
                request.future.set_result([result for result in request.results if result is not None])

    by_loop: dict[asyncio.AbstractEventLoop, list[_Request]] = {}
    for request in requests:
        by_loop.setdefault(request.future.get_loop(), []).append(request)
    for loop, ready in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: the server gave the requests up
            loop.call_soon_threadsafe(set_results, ready)


def refuse(request: _Request, error: Exception) -> None:
    """Answer a request of which no image is decided."""

    def set_error() -> None:
        if not request.future.done():
            request.future.set_exception(error)

    with suppress(RuntimeError):
        request.future.get_loop().call_soon_threadsafe(set_error)


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


def stopping() -> RequestError:
    """Return the error of a request that comes when the service stops."""
    return RequestError(
        503,
        "stopping",
        "the service is stopping; send the request again in a moment.",
        headers={"Retry-After": "5"},
    )


def too_many_images(most: int) -> RequestError:
    """Return the error of a request with more images than allowed."""
    return RequestError(413, "too_many_images", f"a request may have at most {most} images; send several requests.")


def check_same_image(id_: str, digest: str, known: str) -> None:
    """Raise an error if an id was given to another image before."""
    if digest != known:
        raise RequestError(
            409, "id_conflict", f"the id {id_!r} belongs to another image that was sent before; choose a new id."
        )


def make_stored_image(content: bytes | Array) -> StoredImage:
    """Return an image as a file: as it came, or pixels as PNG."""
    if isinstance(content, bytes):
        return StoredImage(find_media_type(content, "the image"), content)
    return StoredImage("image/png", encode_png(content))
