"""`DecisionWorker`: decodes, batches, classifies and stores the images of all requests.

Each stage has its own threads, so the classifier never waits for the disk: decoding to the input size, looking in
batches, and storing the decisions (one thread, one transaction for all waiting images).
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
from dataclasses import dataclass
from threading import Condition, Thread

import numpy as np

from secondlook import Decision
from secondlook.extension import Array, LookedImage, LookStream, Plan, RowOptions, SecondLookError, encode_png
from secondlook.serving.database import StorageError, StorageUnavailableError
from secondlook.serving.options import ServiceOptions
from secondlook.serving.request_images import DecodedImage, ImageDecoder, SubmittedImage, find_media_type
from secondlook.serving.responses import RequestError
from secondlook.serving.service_metrics import ServiceMetrics
from secondlook.serving.store import DecisionStore, Deployment, NewDecision, StoredImage, StoredOutcome
from secondlook.serving.tokens import TokenFileError
from secondlook.serving.trail import is_drawn

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

    def decide(self, images: Sequence[LookedImage[DecodedImage]]) -> list[Decision]:
        """Decide about images with the same number of looks."""
        outputs = np.stack([image.outputs for image in images])
        preds = self.plan.make_predictions(outputs, [image.key.id for image in images])
        return self.options.detail(preds, audit_seed=self.audit_seed)


_Result = StoredOutcome | Exception


class DecisionWorker:
    """Decides about the images of all requests. `decide` runs on the event loop, everything else in threads.

    `live` returns the policy in force; it is called for each batch.
    """

    def __init__(
        self, live: Callable[[], LiveDeployment], store: DecisionStore, options: ServiceOptions, metrics: ServiceMetrics
    ) -> None:
        self._live, self._store, self._options, self._metrics = live, store, options, metrics
        self.waiting = 0
        """Number of admitted images without a result."""
        self._recent_seconds, self._recent_images = 0.01, 1.0
        """Moving averages over batches: seconds per batch, and images decided per batch."""
        self._decoder = ImageDecoder(lambda: live().plan, options.max_pixels)
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="secondlook-decode")
        self._changed = Condition()
        """Guards `_in_work`, `_queue` and `_is_queue_closed`."""
        self._in_work: dict[str, DecodedImage] = {}
        """Decoded images without a result, by id."""
        self._queue: deque[DecodedImage] = deque()
        self._is_queue_closed = False
        self._looker = Thread(target=self._look_at_images, name="secondlook-look", daemon=True)
        self._looked: deque[tuple[LiveDeployment, list[LookedImage[DecodedImage]]]] = deque()
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="secondlook-finish")

    def start(self) -> None:
        """Warm up, and start looking at images."""
        self._warm_up()
        self._looker.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread that looks at images is running."""
        return self._looker.is_alive()

    def stop(self) -> None:
        """Finish pending images, and stop the threads, stage by stage."""
        self._decoders.shutdown()
        with self._changed:
            self._is_queue_closed = True
            self._changed.notify_all()
        self._looker.join()
        self._finisher.shutdown()

    async def decide(self, images: Sequence[SubmittedImage]) -> list[StoredOutcome]:
        """Decide about the images of one request, and return the stored decisions.

        After an error, some decisions may be stored: send the images again with the same ids.
        """
        most, waiting = self._options.max_request_images, self.waiting
        if len(images) > most:
            raise make_image_count_error(most)
        if waiting + len(images) > self._options.max_waiting:
            self._metrics.overloads.inc()
            seconds = str(max(1, math.ceil(waiting * self._recent_seconds / self._recent_images)))
            message = f"the queue is full ({waiting} images are waiting); send the request again in {seconds} s."
            raise RequestError(429, "busy", message, headers={"Retry-After": seconds})
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[_Result]] = [loop.create_future() for _ in images]
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

    def _warm_up(self) -> None:
        """Decide about a black image without storing it, since first uses import packages, compile and allocate."""
        live = self._live()
        image, stream = live.plan.make_black_image(), LookStream[DecodedImage](live.plan)
        if image is not None:
            decoder = ImageDecoder(lambda: live.plan, image.size)  # whatever the limit for clients
            stream.add([(job, job.inputs) for job in decoder.decode([SubmittedImage(encode_png(image))])])
        while len(stream):
            if looked := stream.look().looked:
                live.decide(looked)

    def _admit(self, images: Sequence[SubmittedImage], futures: Sequence[asyncio.Future[_Result]]) -> None:
        """Decode the images of a request, and enqueue all or none; a repeated id waits for the pending decision."""
        try:
            jobs = self._decoder.decode(images)
            given = [job.id for job in jobs if job.image.id is not None]
            # A single id is checked later, in one query with those of other requests.
            stored = self._store.find(given) if len(given) > 1 else {}
            with self._changed:
                for job in jobs:  # before any of them is enqueued
                    earlier = self._in_work.get(job.id) or stored.get(job.id)
                    if earlier is not None and earlier.digest != job.digest:
                        raise make_conflict_error(job.id)
                for job, future in zip(jobs, futures, strict=True):
                    in_work = self._in_work.setdefault(job.id, job)
                    in_work.waiting.append(future)
                    if in_work is job:
                        self._queue.append(job)
                self._changed.notify()
        except Exception as error:  # noqa: BLE001 - the next request may still succeed
            _deliver([(future, error) for future in futures])

    def _look_at_images(self) -> None:
        """Look at images in batches until the worker stops."""
        live = self._live()
        stream: LookStream[DecodedImage] = LookStream(live.plan)
        while True:
            # After a policy change, the old policy finishes its images before the new one takes any.
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
            except Exception as error:  # noqa: BLE001 - the next batch may still succeed
                self._fail(in_work, error)
                stream = LookStream(live.plan)

    def _look_at(self, live: LiveDeployment, stream: LookStream[DecodedImage], jobs: Sequence[DecodedImage]) -> None:
        """Look once at all undecided images, including new ones, and pass on the decided ones."""
        stream.add([(job, job.inputs) for job in jobs])
        if not len(stream):
            return
        n_images, started = len(stream), time.monotonic()
        step = stream.look()
        seconds = time.monotonic() - started
        # Averaged separately, since a batch may decide no image and a later one more.
        self._recent_seconds += SMOOTHING * (seconds - self._recent_seconds)
        self._recent_images += SMOOTHING * (len(step.looked) + len(step.failed) - self._recent_images)
        self._metrics.count_look(n_images, seconds)
        for job, error in step.failed:
            self._fail([job], error)
        if step.looked:
            self._looked.append((live, step.looked))
            self._finisher.submit(self._finish_waiting)

    def _take(self, room: int, *, wait: bool) -> list[DecodedImage]:
        """Return the next images, at most `room`.

        With `wait`, wait first until the batch is full, its oldest image has waited `max_wait`, or the queue is closed.
        """
        with self._changed:
            while wait and not self._is_queue_closed:
                left = self._queue[0].arrived + self._options.max_wait - time.monotonic() if self._queue else None
                if left is not None and (left <= 0 or len(self._queue) >= self._options.batch_size):
                    break
                self._changed.wait(left)
            return [self._queue.popleft() for _ in range(min(room, len(self._queue)))]

    def _find_new(self, jobs: Sequence[DecodedImage]) -> list[DecodedImage]:
        """Return the images without a stored decision; resolve the others. If the lookup fails, all of them fail."""
        given = [job.id for job in jobs if job.image.id is not None]
        try:
            known = self._store.find(given, urgent=True) if given else {}
        except Exception as error:  # noqa: BLE001 - undecided images of earlier batches do not need the lookup
            self._fail(jobs, error)
            return []
        replayed = [job for job in jobs if job.id in known]
        self._resolve(replayed, [StoredOutcome(known[job.id], replayed=True) for job in replayed])
        return [job for job in jobs if job.id not in known]

    def _finish_waiting(self) -> None:
        """Decide about all classified images, store the decisions and resolve the requests."""
        waiting: dict[LiveDeployment, list[LookedImage[DecodedImage]]] = {}
        while self._looked:
            live, images = self._looked.popleft()
            waiting.setdefault(live, []).extend(images)
        for live, images in waiting.items():
            try:
                self._finish(live, images)
            except Exception as error:  # noqa: BLE001 - e.g. a full disk: fail the requests, keep the service running
                self._fail([image.key for image in images], error)

    def _finish(self, live: LiveDeployment, images: Sequence[LookedImage[DecodedImage]]) -> None:
        by_looks: dict[int, list[LookedImage[DecodedImage]]] = {}
        for image in images:
            by_looks.setdefault(len(image.outputs), []).append(image)
        jobs = [image.key for group in by_looks.values() for image in group]
        decisions = [decision for group in by_looks.values() for decision in live.decide(group)]
        new, share = [], live.deployment.double_review
        for job, decision in zip(jobs, decisions, strict=True):
            stored = self._choose_image(job.image.content, decision)
            double = is_drawn(decision.id, live.audit_seed, share)
            new.append(NewDecision(decision, job.digest, job.image.name, stored, double=double))
        self._resolve(jobs, self._store.add(new, live.deployment.number))
        self._metrics.count_decisions(decisions)

    def _choose_image(self, content: bytes | Array, decision: Decision) -> StoredImage | None:
        """Return the image if it must be stored for a review; None otherwise."""
        if not self._options.store_images or (decision.accept and not decision.audit):
            return None
        if isinstance(content, bytes):
            return StoredImage(find_media_type(content, "the image"), content)
        return StoredImage("image/png", encode_png(content))

    def _resolve(self, jobs: Sequence[DecodedImage], outcomes: Sequence[StoredOutcome]) -> None:
        """Resolve the requests for stored images; an id of another image is a conflict."""
        results = [
            outcome if outcome.decision.digest == job.digest else make_conflict_error(job.id)
            for job, outcome in zip(jobs, outcomes, strict=True)
        ]
        self._set_results(jobs, results)

    def _fail(self, jobs: Sequence[DecodedImage], error: Exception) -> None:
        self._set_results(jobs, [make_request_error(error)] * len(jobs))

    def _set_results(self, jobs: Sequence[DecodedImage], results: Sequence[_Result]) -> None:
        """Pass the results of images to the waiting requests; only the first result of an image counts."""
        pairs: list[tuple[asyncio.Future[_Result], _Result]] = []
        with self._changed:
            for job, result in zip(jobs, results, strict=True):
                if self._in_work.get(job.id) is not job:
                    continue
                del self._in_work[job.id]
                for future in job.waiting:
                    pairs.append((future, result))
                    if isinstance(result, StoredOutcome):
                        result = result._replace(replayed=True)  # for further requests with the same id
        _deliver(pairs)


def _deliver(pairs: Sequence[tuple[asyncio.Future[_Result], _Result]]) -> None:
    def set_result(future: asyncio.Future[_Result], result: _Result) -> None:
        if not future.done():  # otherwise the request was canceled
            future.set_result(result)

    for future, result in pairs:
        with suppress(RuntimeError):  # the loop is closed: the server dropped the request
            future.get_loop().call_soon_threadsafe(set_result, future, result)


def make_request_error(error: Exception) -> RequestError:
    """Return the HTTP error for an exception; unexpected errors and file locations are logged, not sent."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TokenFileError):
        logger.error("tokens", extra={"reason": str(error)})
        return RequestError(503, "tokens", "the service cannot read its tokens; contact its operator.")
    if isinstance(error, StorageError):
        logger.error("storage failed", extra={"reason": str(error)})
        if isinstance(error, StorageUnavailableError):
            message = "the service cannot reach its database; try again in a few seconds."
            return RequestError(503, "storage_unavailable", message, headers={"Retry-After": "5"})
        return RequestError(507, "storage_failed", "the service cannot write to its database; contact its operator.")
    if isinstance(error, SecondLookError):
        return RequestError(422, "invalid", str(error))
    logger.error("deciding failed", exc_info=error)
    return RequestError(500, "internal", "the service failed to decide about the image; see its log.")


def make_image_count_error(most: int) -> RequestError:
    """Return the error for a request with too many images."""
    return RequestError(413, "too_many_images", f"a request may have at most {most} images; send several requests.")


def make_conflict_error(id_: str) -> RequestError:
    """Return the error for an id that belongs to another image."""
    return RequestError(409, "id_conflict", f"the id {id_!r} belongs to another image; choose a new id.")
