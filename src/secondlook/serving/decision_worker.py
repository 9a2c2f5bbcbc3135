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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Condition, Thread

import numpy as np

from secondlook import Decision
from secondlook.extension import (
    Array,
    LookedImage,
    LookStream,
    Plan,
    RowOptions,
    SecondLookError,
    encode_png,
)
from secondlook.serving.database import DatabaseReadError, StorageError
from secondlook.serving.decision_store import DecisionStore, Deployment, NewDecision, StoredImage, StoredOutcome
from secondlook.serving.options import ServiceOptions
from secondlook.serving.request_images import (
    ImageDecoder,
    PreparedImage,
    SubmittedImage,
    find_media_type,
    list_given_ids,
)
from secondlook.serving.responses import RequestError
from secondlook.serving.service_metrics import ServiceMetrics

SMOOTHING = 0.1
"""Weight of the latest images in the average time per image."""

logger = logging.getLogger("secondlook.serving")


@dataclass(frozen=True, eq=False)
class LiveDeployment:
    """The policy in force, with its classifier."""

    deployment: Deployment
    plan: Plan
    options: RowOptions
    audit_seed: int

    def decide(self, images: "Sequence[LookedImage[_Job]]") -> list[Decision]:
        """Decide about images that were looked at equally often."""
        outputs = np.stack([image.outputs for image in images])
        preds = self.plan.make_predictions(outputs, [image.key.id for image in images])
        return self.options.detail(preds, audit_seed=self.audit_seed)


_Result = StoredOutcome | Exception
_Future = asyncio.Future[_Result]


@dataclass(frozen=True, eq=False)
class _Job:
    """A decoded image on its way."""

    id: str
    digest: str
    image: SubmittedImage
    inputs: Array
    """Pixels at the input size. [1, H, W, C]"""
    waiting: list[_Future]
    """Who waits for the result: the request that it came with, then others of the same id."""
    arrived: float = field(default_factory=time.monotonic)


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
    metrics
        Counts batches, stored decisions and refused requests.
    """

    def __init__(
        self,
        live: Callable[[], LiveDeployment],
        store: DecisionStore,
        options: ServiceOptions,
        metrics: ServiceMetrics,
    ) -> None:
        self._live, self._store, self._options, self._metrics = live, store, options, metrics
        self.waiting = 0
        """Number of images that are admitted and not answered."""
        self._recent_seconds, self._recent_images = 0.01, 1.0
        """What looking took of late, and how many images it decided; averages over batches."""
        self._decoder = ImageDecoder(lambda: live().plan, options.max_pixels)
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="secondlook-decode")
        self._changed = Condition()
        """Guards what is in work, the queue and whether it is closed."""
        self._in_work: dict[str, _Job] = {}
        """The images that are decoded and not answered, by their ids."""
        self._queue: deque[_Job] = deque()
        self._is_queue_closed = False
        self._looked: SimpleQueue[tuple[LiveDeployment, list[LookedImage[_Job]]] | None] = SimpleQueue()
        self._looker = Thread(target=self._look_at_images, name="secondlook-look", daemon=True)
        self._finisher = Thread(target=self._finish_batches, name="secondlook-finish", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._looker.start()
        self._finisher.start()

    @property
    def is_alive(self) -> bool:
        """Whether the threads run, without which no image is decided."""
        return self._looker.is_alive() and self._finisher.is_alive()

    def stop(self) -> None:
        """Finish what is in work, and end the threads, one stage after another."""
        self._decoders.shutdown()
        with self._changed:
            self._is_queue_closed = True
            self._changed.notify_all()
        self._looker.join()
        self._looked.put(None)
        self._finisher.join()

    async def decide(self, images: Sequence[SubmittedImage]) -> list[StoredOutcome]:
        """Decide about the images of one request, and return the decisions, which are on disk.

        After an error, those that could be decided may be stored: send the images again with the same ids.
        """
        self._check_room(len(images))
        loop = asyncio.get_running_loop()
        futures: list[_Future] = [loop.create_future() for _ in images]
        try:
            self._decoders.submit(self._admit, images, futures)
        except RuntimeError:  # after `stop`
            message = "the service is stopping; send the request again in a moment."
            raise RequestError(503, "stopping", message, headers={"Retry-After": "5"}) from None
        self.waiting += len(images)
        try:
            results = [await future for future in futures]
        finally:
            self.waiting -= len(images)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return [result for result in results if isinstance(result, StoredOutcome)]

    def _check_room(self, n_images: int) -> None:
        if n_images > self._options.max_request_images:
            raise too_many_images(self._options.max_request_images)
        if self.waiting + n_images > self._options.max_waiting:
            self._metrics.overloads.inc()
            seconds = max(1, math.ceil(self.waiting * self._recent_seconds / self._recent_images))
            raise RequestError(
                429,
                "busy",
                f"{self.waiting} images are waiting, as many as allowed; send the request again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )

    def _admit(self, images: Sequence[SubmittedImage], futures: Sequence[_Future]) -> None:
        """Decode the images of a request and hand them to the next stage, all of them or none."""
        try:
            prepared = self._decoder.prepare(images)
            self._check_stored(prepared, images)
            self._submit(images, prepared, futures)
        except Exception as error:  # noqa: BLE001 - whatever fails, the next request may not
            _deliver([(future, error) for future in futures])

    def _submit(
        self, images: Sequence[SubmittedImage], prepared: Sequence[PreparedImage], futures: Sequence[_Future]
    ) -> None:
        """Hand decoded images to the next stage; one whose id is in work already waits for the same decision."""
        with self._changed:
            for one in prepared:  # before any of them is handed on
                if one.id in self._in_work:
                    check_same_image(one.id, one.digest, self._in_work[one.id].digest)
            for image, one, future in zip(images, prepared, futures, strict=True):
                if one.id in self._in_work:
                    self._in_work[one.id].waiting.append(future)
                    continue
                job = _Job(one.id, one.digest, image, one.inputs, [future])
                self._in_work[one.id] = job
                self._queue.append(job)
            self._changed.notify()

    def _check_stored(self, prepared: Sequence[PreparedImage], images: Sequence[SubmittedImage]) -> None:
        """Refuse a request with an id of another image before any image of it is decided."""
        given = list_given_ids(images)
        if len(given) < 2:  # one of its own is checked with those of other requests
            return
        known = self._store.find(given)
        for one in prepared:
            if one.id in known:
                check_same_image(one.id, one.digest, known[one.id].digest)

    def _look_at_images(self) -> None:
        """Look at images batch by batch, until the worker stops."""
        live = self._live()
        stream: LookStream[_Job] = LookStream(live.plan)
        while True:
            # Those that a policy has looked at are decided by it, before others come to one that replaced it.
            room = self._options.batch_size - len(stream) if live is self._live() or not len(stream) else 0
            jobs = self._take(room, wait=not len(stream))
            if not len(stream):
                if not jobs:
                    return
                live = self._live()
                stream = LookStream(live.plan)
            in_work = [*stream.keys, *jobs]
            try:
                self._look_at(live, stream, self._find_new(jobs))
            except Exception as error:  # noqa: BLE001 - whatever fails, the next batch may not
                self._fail(in_work, error)
                stream = LookStream(live.plan)

    def _look_at(self, live: LiveDeployment, stream: LookStream[_Job], jobs: Sequence[_Job]) -> None:
        """Look at some new images and at those that are still open, and hand on those that are decided."""
        stream.add([(job, job.inputs) for job in jobs])
        if not len(stream):
            return
        n_images, started = len(stream), time.monotonic()
        step = stream.look()
        seconds = time.monotonic() - started
        # A batch may decide none, and then those after it decide more.
        self._recent_seconds += SMOOTHING * (seconds - self._recent_seconds)
        self._recent_images += SMOOTHING * (len(step.looked) + len(step.failed) - self._recent_images)
        self._metrics.count_look(n_images, seconds)
        for job, error in step.failed:
            self._fail([job], error)
        if step.looked:
            self._looked.put((live, step.looked))

    def _take(self, room: int, *, wait: bool) -> list[_Job]:
        """Return the next images, as many as there is room for.

        With `wait`, there is a full batch, or the first image of one has waited, or no more will come.
        """
        with self._changed:
            while wait and not self._is_queue_closed:
                left = self._queue[0].arrived + self._options.max_wait - time.monotonic() if self._queue else None
                if left is not None and (left <= 0 or len(self._queue) >= self._options.batch_size):
                    break
                self._changed.wait(left)
            return [self._queue.popleft() for _ in range(min(room, len(self._queue)))]

    def _find_new(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Answer requests that were decided before, and return the others; all fail if that cannot be found out."""
        given = [job.id for job in jobs if job.image.id is not None]
        try:
            known = self._store.find(given, urgent=True) if given else {}
        except Exception as error:  # noqa: BLE001 - images that are open do not need what failed
            self._fail(jobs, error)
            return []
        replayed = [job for job in jobs if job.id in known]
        self._resolve(replayed, [StoredOutcome(known[job.id], replayed=True) for job in replayed])
        return [job for job in jobs if job.id not in known]

    def _finish_batches(self) -> None:
        """Decide about images that were looked at, store the decisions and answer the requests."""
        while (batch := self._looked.get()) is not None:
            waiting: dict[LiveDeployment, list[LookedImage[_Job]]] = {}
            with suppress(Empty):
                while batch is not None:
                    waiting.setdefault(batch[0], []).extend(batch[1])
                    batch = self._looked.get_nowait()
                self._looked.put(None)  # for this loop to end
            for live, images in waiting.items():
                try:
                    self._finish(live, images)
                except Exception as error:  # noqa: BLE001 - a full disk: the requests fail, the service goes on
                    self._fail([image.key for image in images], error)

    def _finish(self, live: LiveDeployment, images: Sequence[LookedImage[_Job]]) -> None:
        by_looks: dict[int, list[LookedImage[_Job]]] = {}
        for image in images:
            by_looks.setdefault(len(image.outputs), []).append(image)
        jobs = [image.key for group in by_looks.values() for image in group]
        decisions = [decision for group in by_looks.values() for decision in live.decide(group)]
        new = [self._make_new(job, decision) for job, decision in zip(jobs, decisions, strict=True)]
        self._resolve(jobs, self._store.add(new, live.deployment.number))
        self._metrics.count_decisions(decisions)

    def _make_new(self, job: _Job, decision: Decision) -> NewDecision:
        image, content = None, job.image.content
        if self._options.store_images and (decision.audit or not decision.accept):
            if isinstance(content, bytes):
                image = StoredImage(find_media_type(content, "the image"), content)
            else:
                image = StoredImage("image/png", encode_png(content))
        return NewDecision(decision, job.digest, job.image.name, image)

    def _resolve(self, jobs: Sequence[_Job], outcomes: Sequence[StoredOutcome]) -> None:
        """Answer the requests for images that are stored; each id may have been that of another image."""
        results: list[_Result] = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            try:
                check_same_image(job.id, job.digest, outcome.decision.digest)
                results.append(outcome)
            except RequestError as error:
                results.append(error)
        self._answer(jobs, results)

    def _fail(self, jobs: Sequence[_Job], error: Exception) -> None:
        self._answer(jobs, [make_request_error(error)] * len(jobs))

    def _answer(self, jobs: Sequence[_Job], results: Sequence[_Result]) -> None:
        """Give the results of images to who waits for them; later results do not count."""
        answers: list[tuple[_Future, _Result]] = []
        with self._changed:
            for job, result in zip(jobs, results, strict=True):
                if self._in_work.get(job.id) is not job:
                    continue
                del self._in_work[job.id]
                for future in job.waiting:
                    answers.append((future, result))
                    if isinstance(result, StoredOutcome):
                        result = result._replace(replayed=True)  # for the others, it is there already
        _deliver(answers)


def _deliver(answers: Sequence[tuple[_Future, _Result]]) -> None:
    """Set the results of futures in one call per event loop, which is woken up once."""

    def set_results(ready: Sequence[tuple[_Future, _Result]]) -> None:
        for future, result in ready:
            if not future.done():  # else the request was canceled
                future.set_result(result)

    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Future, _Result]]] = {}
    for future, result in answers:
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, ready in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: the server gave the requests up
            loop.call_soon_threadsafe(set_results, ready)


def make_request_error(error: Exception) -> RequestError:
    """Return the answer to a request that failed for a reason; unexpected ones, and places, are logged and not told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, StorageError):
        logger.error("storage failed", extra={"reason": str(error)})
        if isinstance(error, DatabaseReadError):
            message = "the database of the service cannot be read; try again in some seconds."
            return RequestError(503, "storage_unavailable", message, headers={"Retry-After": "5"})
        message = "the database of the service cannot be written; tell whoever runs the service."
        return RequestError(507, "storage_failed", message)
    if isinstance(error, SecondLookError):
        return RequestError(422, "invalid", str(error))
    logger.error("deciding failed", exc_info=error)
    return RequestError(500, "internal", "the service failed to decide about the image; the reason is in its log.")


def too_many_images(most: int) -> RequestError:
    """Return the error of a request with more images than allowed."""
    return RequestError(413, "too_many_images", f"a request may have at most {most} images; send several requests.")


def check_same_image(id_: str, digest: str, known: str) -> None:
    """Raise an error if an id was given to another image before."""
    if digest != known:
        raise RequestError(
            409, "id_conflict", f"the id {id_!r} belongs to another image that was sent before; choose a new id."
        )
