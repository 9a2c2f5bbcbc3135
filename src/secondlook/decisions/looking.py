"""The loop that looks at images until they are decided: all views at once, or one after another by a schedule.

Single images, scoring jobs, workers on a cluster, `SelectiveClassifier`, `verify` and the service are its clients.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Fetch
from secondlook.predictions import Predictions, read_ahead

if TYPE_CHECKING:
    from secondlook.decisions.plan import Plan

_BATCHES_AHEAD = 3


class LookedGroup(NamedTuple):
    """The images that were looked at equally often."""

    positions: IntArray
    """Their positions among all images, int64 [n]."""
    preds: Predictions
    """Their predictions, for the views that were looked at."""


class _Batch(NamedTuple):
    """Inputs of one call of the classifier: each is one look at one image."""

    positions: IntArray
    """Positions of the images, int64 [m]."""
    looks: IntArray
    """Which look at the image each is, ascending for equal images, int64 [m]."""
    inputs: Any


class Looking:
    """Images that are looked at together until they are decided.

    A step looks at every open image: at all views, or with a schedule at its next view, which may be the first of one
    image and the fifth of another. Images may join between two steps, and those that are decided may leave. What is due
    next depends on nothing but the outputs so far.

    Parameters
    ----------
    plan
        The compiled policy.
    images
        Images at the input size of the classifier, [n, H, W, C].
    batch_size
        Number of images per call of the classifier; chosen by the plan by default.
    """

    def __init__(self, plan: "Plan", images: Any, batch_size: int | None = None) -> None:
        self._plan, self._schedule = plan, plan.policy.schedule
        self._inference = plan.find_inference(images, batch_size)
        self._images = self._inference.place(images)
        self._looks = np.zeros(len(images), dtype=np.int64)
        self._is_open = np.ones(len(images), dtype=np.bool_)
        self._outputs: Float32Array | None = None
        """Outputs of the looks so far; those to come are as the first. float32 [n, V, outputs per look]"""

    def __len__(self) -> int:
        """Return the number of images that are not decided."""
        return int(self._is_open.sum())

    def add(self, images: Any) -> None:
        """Add images of the same shape, for the next step. [n, H, W, C]"""
        self._images = np.concatenate([self._images, images])
        self._looks = np.concatenate([self._looks, np.zeros(len(images), dtype=np.int64)])
        self._is_open = np.concatenate([self._is_open, np.ones(len(images), dtype=np.bool_)])
        if self._outputs is not None:
            room = np.empty((len(images), *self._outputs.shape[1:]), dtype=np.float32)
            self._outputs = np.concatenate([self._outputs, room])

    def take_decided(self) -> list[tuple[int, Float32Array]]:
        """Remove decided images; return the position of each, and its outputs float32 [looks, outputs per look]."""
        decided = np.flatnonzero(~self._is_open)
        taken = [(place, self._outputs[place, : self._looks[place]]) for place in decided.tolist()]  # type: ignore[index]
        kept = self._is_open
        self._images, self._looks, self._is_open = self._images[kept], self._looks[kept], self._is_open[kept]
        self._outputs = None if self._outputs is None else self._outputs[kept]
        return taken

    def run(self) -> Iterator[int]:
        """Look until all images are decided; yield the number of looks just taken after each batch.

        On GPUs it yields when they have work, so that others can go on meanwhile.
        """
        while self._is_open.any():
            yield from self.step()

    def step(self) -> Iterator[int]:
        """Look once at every open image, or at all its views without a schedule; yield as `run` does."""
        is_adaptive, outstanding = self._schedule is not None, self._inference.outstanding
        views = self._plan.views.views
        n_inputs = int(self._is_open.sum()) * (1 if is_adaptive else len(views))
        is_one_batch = not outstanding and n_inputs <= self._inference.batch_size
        if is_one_batch and not is_adaptive and self._outputs is None:
            outputs = self._inference.start(self._inference.prepare(self._images, views))()
            by_view = outputs.reshape(len(views), len(self._looks), -1)
            self._outputs = np.ascontiguousarray(by_view.swapaxes(0, 1))
            self._looks[:], self._is_open[:] = len(views), False
            yield n_inputs
            return
        batches = self._prepare_next_views() if is_adaptive else self._prepare_all_views()
        if not outstanding and not is_one_batch:
            # Where the host makes the views of several batches, it does so ahead of them.
            prepared = batches
            batches = read_ahead(lambda: prepared, _BATCHES_AHEAD)
        started: deque[tuple[_Batch, Fetch]] = deque()
        with closing(batches):
            for batch in batches:
                started.append((batch, self._inference.start(batch.inputs)))
                # With a schedule, the outputs of a round are needed together: nothing waits for GPUs before its end.
                if len(started) > outstanding and not (is_adaptive and outstanding):
                    yield self._store(*started.popleft())
        if started:
            yield 0
        while started:
            yield self._store(*started.popleft())
        if is_adaptive:
            self._close_decided()
        else:
            self._is_open[:] = False

    def finish(self) -> Float32Array:
        """Look until all images are decided; return the outputs, float32 [n, V, outputs per look]."""
        for _ in self.run():
            pass
        assert self._outputs is not None, "there is at least one image"
        return self._outputs

    def groups(
        self, ids: Sequence[str] | None = None, class_names: tuple[str, ...] | None = None
    ) -> Iterator[LookedGroup]:
        """Look until all images are decided, and yield them by the number of looks; by default, ids are positions."""
        for _ in self.run():
            pass
        if self._outputs is None:
            return
        if self._schedule is None:
            preds = self._plan.make_predictions(self._outputs, ids, class_names)
            yield LookedGroup(np.arange(len(self._looks)), preds)
            return
        for looks in np.unique(self._looks).tolist():
            positions = np.flatnonzero(self._looks == looks)
            chosen = None if ids is None else [ids[place] for place in positions.tolist()]
            preds = self._plan.make_predictions(self._outputs[positions, :looks], chosen, class_names)
            yield LookedGroup(positions, preds)

    def _prepare_all_views(self) -> Generator[_Batch, None, None]:
        """Yield several views of few images, or one view of many, as `collect` does: outputs are equal to the bit."""
        positions, size = np.flatnonzero(self._is_open), self._inference.batch_size
        is_all = len(positions) == len(self._looks)
        for looks in self._inference.group_views(len(self._plan.views), len(positions)):
            views = self._plan.views.views[looks.start : looks.stop]
            for start in range(0, len(positions), size):
                chosen = positions[start : start + size]
                images = self._images[start : start + size] if is_all else self._images[chosen]
                inputs = self._inference.prepare(images, views)
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

    def _store(self, batch: _Batch, fetch: Fetch) -> int:
        """Wait for the outputs of a batch, and return how many looks it took."""
        outputs = fetch()
        if self._outputs is None:
            self._outputs = np.empty((len(self._looks), len(self._plan.views), outputs.shape[1]), dtype=np.float32)
        self._outputs[batch.positions, batch.looks] = outputs
        self._looks[batch.positions] = batch.looks + 1  # the last look counts
        return len(outputs)

    def _close_decided(self) -> None:
        """Close the images that need no other look by the schedule.

        The running confidence after some looks does not depend on later ones, so it is computed for all images at once,
        as if all had been looked at equally often.
        """
        positions = np.flatnonzero(self._is_open)
        if not len(positions):
            return
        assert self._schedule is not None, "others have all looks at once"
        assert self._outputs is not None, "they were looked at"
        looks = self._looks[positions]
        if looks.min() == self._schedule.max_looks:
            self._is_open[positions] = False
            return
        most = int(looks.max())
        outputs = self._outputs[positions, :most]
        if looks.min() < most:  # looks that were not taken yet are as the first, so that they are valid outputs
            taken = np.arange(most) < looks[:, None]
            outputs = np.where(taken[:, :, None], outputs, outputs[:, :1])
        policy = self._plan.policy
        running = policy.compute_running(self._plan.make_predictions(outputs))[np.arange(len(positions)), looks - 1]
        self._is_open[positions] = self._schedule.is_open(looks, running, policy.threshold)


Key = TypeVar("Key")


class LookedImage(NamedTuple, Generic[Key]):
    """An image of a stream that needs no further look."""

    key: Key
    outputs: Float32Array
    """Outputs of the looks in their order, float32 [looks, outputs per look]."""


class LookStep(NamedTuple, Generic[Key]):
    """What came of one step of a stream."""

    looked: list[LookedImage[Key]]
    failed: list[tuple[Key, Exception]]
    """The images on which the classifier failed, with what it raised."""


class LookStream(Generic[Key]):
    """Images of any shapes that join and leave: those that are decided leave, and new ones join the next step.

    So batches are full although most images are decided after the first look, and none waits for the last look of
    others. The decisions are those of images that are looked at alone.
    """

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        self._groups: dict[object, tuple[Looking, list[Key], list[Array]]] = {}

    def __len__(self) -> int:
        """Return the number of images that are not decided."""
        return sum(len(keys) for _, keys, _ in self._groups.values())

    @property
    def keys(self) -> list[Key]:
        """The keys of images that are not decided."""
        return [key for _, keys, _ in self._groups.values() for key in keys]

    def add(self, new: Sequence[tuple[Key, Array]]) -> None:
        """Add images at the input size, [1, H, W, C] each, for the next step."""
        by_shape: dict[object, list[tuple[Key, Array]]] = {}
        for key, pixels in new:
            by_shape.setdefault((pixels.shape, pixels.dtype), []).append((key, pixels))
        for shape, images in by_shape.items():
            stack = np.concatenate([pixels for _, pixels in images])
            if shape in self._groups:
                self._groups[shape][0].add(stack)
            else:
                self._groups[shape] = Looking(self._plan, stack), [], []
            _, keys, pixels_of = self._groups[shape]
            keys += [key for key, _ in images]
            pixels_of += [pixels for _, pixels in images]

    def look(self) -> LookStep[Key]:
        """Look at all images, and return those that are decided; one that fails does not spoil the others."""
        step: LookStep[Key] = LookStep([], [])
        for shape, (looking, keys, pixels_of) in list(self._groups.items()):
            try:
                for _ in looking.step():
                    pass
            except Exception:  # noqa: BLE001 - a classifier may raise anything
                del self._groups[shape]
                for key, pixels in zip(keys, pixels_of, strict=True):
                    self._look_alone(key, pixels, step)
                continue
            taken = looking.take_decided()
            step.looked.extend(LookedImage(keys[place], outputs) for place, outputs in taken)
            for place, _ in reversed(taken):
                del keys[place], pixels_of[place]
            if not keys:
                del self._groups[shape]
        return step

    def _look_alone(self, key: Key, pixels: Array, step: LookStep[Key]) -> None:
        try:
            looking = Looking(self._plan, pixels)
            for _ in looking.run():
                pass
        except Exception as error:  # noqa: BLE001 - a classifier may raise anything
            step.failed.append((key, error))
        else:
            step.looked.append(LookedImage(key, looking.take_decided()[0][1]))
