"""The loop that looks at images until they are decided: all views at once, or one after another by a schedule.

Used for single images, scoring jobs, workers on a cluster, `SelectiveClassifier`, `verify` and the service.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Fetch
from secondlook.decisions.decision import FileOutputs
from secondlook.predictions import DecodedChunk, Predictions, read_ahead

if TYPE_CHECKING:
    from secondlook.decisions.plan import Plan

_BATCHES_AHEAD = 3


class LookedGroup(NamedTuple):
    """Images with an equal number of looks."""

    positions: IntArray
    """Positions among all images, int64 [n]."""
    preds: Predictions
    """Predictions for the views that were classified."""
    decided: FileOutputs | None = None
    """Outputs of an exported file; None if the library decides."""


class LookedChunk(NamedTuple):
    """The decided images of one chunk, and its skipped images."""

    read: DecodedChunk
    """Number, source indices and skipped images; without pixels."""
    groups: Iterable[LookedGroup]
    """Groups by number of looks; can be iterated once."""


class _Batch(NamedTuple):
    """Inputs of one call of the classifier; each is one look at one image."""

    positions: IntArray
    """Positions of the images, int64 [m]."""
    looks: IntArray
    """Number of each look at its image, ascending per image, int64 [m]."""
    inputs: Any


class Looking:
    """A set of images to look at until they are decided.

    A step classifies all views of every open image, or with a schedule the next view of each: the first of one image,
    perhaps, and the fifth of another. The next view depends only on the outputs so far.

    Images are at the input size of the classifier, [n, H, W, C]; the plan chooses the batch size by default. `earlier`
    has the outputs of earlier looks at each image, float32 [looks, outputs per look].
    """

    def __init__(
        self, plan: "Plan", images: Any, batch_size: int | None = None, earlier: Sequence[Float32Array | None] = ()
    ) -> None:
        self._plan, self._schedule = plan, plan.policy.schedule
        self._inference = plan.find_inference(images, batch_size)
        self._images = self._inference.place(images)
        self._looks = np.zeros(len(images), dtype=np.int64)
        self._is_open = np.ones(len(images), dtype=np.bool_)
        self._outputs: Float32Array | None = None
        """Outputs of the looks so far. float32 [n, V, outputs per look]"""
        for place, outputs in enumerate(earlier):
            if outputs is not None:
                self._store(np.full(len(outputs), place), np.arange(len(outputs)), outputs)

    def __len__(self) -> int:
        """Return the number of open images."""
        return int(self._is_open.sum())

    def run(self) -> Iterator[int]:
        """Look until all images are decided; after each batch, yield the number of looks just taken.

        With GPUs it also yields while they work, so that the caller can continue.
        """
        while self._is_open.any():
            yield from self.step()

    def step(self) -> Iterator[int]:
        """Look once at every open image, or without a schedule at all its views; yields like `run`."""
        is_adaptive, outstanding = self._schedule is not None, self._inference.outstanding
        views = self._plan.views.views
        n_inputs = int(self._is_open.sum()) * (1 if is_adaptive else len(views))
        is_one_batch = not outstanding and n_inputs <= self._inference.batch_size
        if is_one_batch and not is_adaptive:
            outputs = self._inference.start(self._inference.prepare(self._images, views))()
            by_view = outputs.reshape(len(views), len(self._looks), -1)
            self._outputs = np.ascontiguousarray(by_view.swapaxes(0, 1))
            self._looks[:], self._is_open[:] = len(views), False
            yield n_inputs
            return
        batches = self._prepare_next_views() if is_adaptive else self._prepare_all_views()
        if not outstanding and not is_one_batch:
            # If the host makes the views, it prepares the next batches ahead.
            prepared = batches
            batches = read_ahead(lambda: prepared, _BATCHES_AHEAD)
        started: deque[tuple[_Batch, Fetch]] = deque()
        with closing(batches):
            for batch in batches:
                started.append((batch, self._inference.start(batch.inputs)))
                # A schedule needs all outputs of a round together, so wait for the GPUs only at its end.
                if len(started) > outstanding and not (is_adaptive and outstanding):
                    yield self._fetch(*started.popleft())
        if started:
            yield 0
        while started:
            yield self._fetch(*started.popleft())
        if is_adaptive:
            self._close_decided()
        else:
            self._is_open[:] = False

    def finish(self) -> Float32Array:
        """Look until all images are decided; return the outputs, float32 [n, V, outputs per look]."""
        while self._is_open.any():
            for _ in self.step():
                pass
        assert self._outputs is not None, "there is at least one image"
        return self._outputs

    def groups(
        self, ids: Sequence[str] | None = None, class_names: tuple[str, ...] | None = None
    ) -> Iterator[LookedGroup]:
        """Look until all images are decided, and yield them by the number of looks; by default, ids are positions."""
        if len(self._looks):
            yield from self._plan.group_by_looks(self.finish(), self._looks, ids, class_names)

    def list_states(self) -> list[tuple[Float32Array, bool]]:
        """Return the outputs of each image, float32 [looks, outputs per look], and whether it is still open."""
        assert self._outputs is not None, "at least one step was run"
        states = zip(self._outputs, self._looks.tolist(), self._is_open.tolist(), strict=True)
        return [(outputs[:looks].copy(), is_open) for outputs, looks, is_open in states]

    def _prepare_all_views(self) -> Generator[_Batch, None, None]:
        """Yield several views of few images, or one view of many, like `collect`, for bitwise equal outputs."""
        n_images, size = len(self._looks), self._inference.batch_size
        for looks in self._inference.group_views(len(self._plan.views), n_images):
            views = self._plan.views.views[looks.start : looks.stop]
            for start in range(0, n_images, size):
                chosen = np.arange(start, min(start + size, n_images))
                inputs = self._inference.prepare(self._images[start : start + size], views)
                yield _Batch(np.tile(chosen, len(views)), np.repeat(np.array(looks), len(chosen)), inputs)

    def _prepare_next_views(self) -> Generator[_Batch, None, None]:
        """Yield the next view of each open image, in as few batches as possible."""
        positions, size = np.flatnonzero(self._is_open), self._inference.batch_size
        looks = self._looks[positions]
        different = np.unique(looks).tolist()
        if len(different) == 1:
            view = self._plan.views.views[different[0]]
            for start in range(0, len(positions), size):
                chosen = positions[start : start + size]
                yield _Batch(chosen, looks[: len(chosen)], self._inference.prepare(self._images[chosen], [view]))
            return
        order = np.argsort(looks, kind="stable")
        parts = [order[looks[order] == look] for look in different]
        prepared = [
            self._inference.prepare(self._images[positions[part]], [self._plan.views.views[look]])
            for part, look in zip(parts, different, strict=True)
        ]
        joined = self._inference.join(prepared)
        for part, inputs in zip([order] if len(joined) == 1 else parts, joined, strict=True):
            yield _Batch(positions[part], looks[part], inputs)

    def _fetch(self, batch: _Batch, fetch: Fetch) -> int:
        """Wait for the outputs of a batch and store them; return its number of looks."""
        outputs = fetch()
        self._store(batch.positions, batch.looks, outputs)
        return len(outputs)

    def _store(self, positions: IntArray, looks: IntArray, outputs: Float32Array) -> None:
        if self._outputs is None:
            self._outputs = np.empty((len(self._looks), len(self._plan.views), outputs.shape[1]), dtype=np.float32)
        self._outputs[positions, looks] = outputs
        self._looks[positions] = looks + 1  # for repeated positions, the last assignment counts

    def _close_decided(self) -> None:
        """Close the images that need no other look by the schedule.

        The running confidence does not depend on later looks, so it is computed for all images at once, as if all had
        the same number of looks.
        """
        positions = np.flatnonzero(self._is_open)
        assert self._schedule is not None, "without a schedule, all looks are taken at once"
        assert self._outputs is not None, "at least one step was run"
        looks = self._looks[positions]
        if looks.min() == self._schedule.max_looks:
            self._is_open[positions] = False
            return
        most = int(looks.max())
        outputs = self._outputs[positions, :most]
        if looks.min() < most:  # fill missing looks with the first one, so that all outputs are valid
            taken = np.arange(most) < looks[:, None]
            outputs = np.where(taken[:, :, None], outputs, outputs[:, :1])
        policy, preds = self._plan.policy, self._plan.make_predictions(outputs)
        running = policy.compiled.running(preds)[np.arange(len(positions)), looks - 1]
        is_open = self._schedule.is_open(looks, running, policy.threshold)
        familiar = policy.is_familiar(policy.compute_familiarity(preds)) if looks.min() == 1 else None
        if familiar is not None:  # only the first look counts
            is_open &= familiar
        self._is_open[positions] = is_open


Key = TypeVar("Key")


class LookedImage(NamedTuple, Generic[Key]):
    """A decided image of a stream."""

    key: Key
    outputs: Float32Array
    """Outputs of the looks in order, float32 [looks, outputs per look]."""


class LookStep(NamedTuple, Generic[Key]):
    """Result of one step of a stream."""

    looked: list[LookedImage[Key]]
    failed: list[tuple[Key, Exception]]
    """The images on which the classifier failed, with the exceptions."""


class LookStream(Generic[Key]):
    """Images of any shapes, decided in shared batches: decided images leave, and new ones join the next step.

    Batches stay full although most images are decided after the first look, and no image waits for the last look of
    another. The decision about an image does not depend on the other images.
    """

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        self._images: list[tuple[Key, Array, Float32Array | None]] = []
        """Key, pixels and outputs so far of each open image."""

    def __len__(self) -> int:
        """Return the number of open images."""
        return len(self._images)

    @property
    def keys(self) -> list[Key]:
        """The keys of the open images."""
        return [key for key, _, _ in self._images]

    def add(self, new: Sequence[tuple[Key, Array]]) -> None:
        """Add images at the input size, [1, H, W, C] each, to the next step."""
        self._images += [(key, pixels, None) for key, pixels in new]

    def look(self) -> LookStep[Key]:
        """Look at all images and return the decided ones; the failure of an image does not affect the others."""
        step: LookStep[Key] = LookStep([], [])
        due, self._images = self._images, []
        for places in group_by_shape([pixels for _, pixels, _ in due]):
            self._look_together([due[place] for place in places], step)
        return step

    def _look_together(self, images: list[tuple[Key, Array, Float32Array | None]], step: LookStep[Key]) -> None:
        """Look at images of equal shape; if the batch fails, look at each image alone until it is decided."""
        keys, pixels, earlier = zip(*images, strict=True)
        try:
            looking = Looking(self._plan, np.concatenate(pixels), earlier=earlier)
            for _ in looking.step():
                pass
        except Exception as error:  # noqa: BLE001 - a classifier may raise anything
            if len(images) == 1:
                step.failed.append((keys[0], error))
                return
            for image in images:
                self._look_together([image], step)
            return
        for key, own_pixels, (outputs, is_open) in zip(keys, pixels, looking.list_states(), strict=True):
            if is_open:
                self._images.append((key, own_pixels, outputs))
            else:
                step.looked.append(LookedImage(key, outputs))


def group_by_shape(images: Sequence[Array]) -> list[list[int]]:
    """Group the positions of images that can be stacked: equal shape and number type."""
    groups: dict[object, list[int]] = {}
    for position, image in enumerate(images):
        groups.setdefault((image.shape, image.dtype), []).append(position)
    return list(groups.values())
