"""Adaptive looking: one look at every image, then further looks at those whose decision is still open."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray
from secondlook.classifiers import Classifier, Fetch
from secondlook.policies import Rule
from secondlook.predictions import Inference, Predictions, chunk_rows, read_ahead
from secondlook.views import View, ViewSet

ADAPTIVE_CHUNK_ROWS = 4096
"""Largest number of images that are looked at together: so many that the few open ones still fill a batch."""

CHUNK_ROWS_ON_GPU = 16_384
CHUNK_BYTES_ON_GPU = 512 * 2**20
"""Approximate size of the decoded images of a chunk for GPUs, whose batches are larger."""

_BATCHES_AHEAD = 3

MakePredictions = Callable[[Float32Array, ViewSet, Sequence[str]], Predictions]
"""From outputs float32 [n, V, outputs per look], their views and the ids of the images to predictions."""


def choose_chunk_rows(image: Array, classifier: Classifier) -> int:
    """Return the number of images [H, W, C] that are looked at together."""
    if classifier.is_accelerated:
        return chunk_rows(image, CHUNK_ROWS_ON_GPU, CHUNK_BYTES_ON_GPU)
    return chunk_rows(image, ADAPTIVE_CHUNK_ROWS)


class LookedGroup(NamedTuple):
    """The images that were looked at equally often."""

    positions: IntArray
    """Their positions among all images, int64 [n]."""
    preds: Predictions
    """Their predictions, for the views that were looked at."""


class _Round(NamedTuple):
    """One look at some of the images: their positions int64 [n], ascending, and the outputs float32 [n, C]."""

    positions: IntArray
    outputs: Float32Array


class AdaptiveLooks:
    """The looks at some images by the schedule of a rule, round by round.

    In the first round every image is looked at, in the next ones those whose decision is still open. What is due next
    depends on nothing but the outputs so far, so that a job which resumes from saved outputs takes the same looks.
    Outputs are kept only for the looks that were taken.
    """

    def __init__(self, rule: Rule, ids: Sequence[str], make_predictions: MakePredictions) -> None:
        assert rule.schedule is not None, "a rule without a schedule has all looks"
        self._rule, self._schedule = rule, rule.schedule
        self._ids = ids
        self._make_predictions = make_predictions
        self._rounds: list[_Round] = []
        self._open: IntArray = np.arange(len(ids))
        self._taken: list[Float32Array] = []
        """Outputs of the present round, batch by batch."""
        self._n_taken = 0

    @property
    def due(self) -> IntArray:
        """Positions of the images that are still to be looked at in this round, int64 [n]; none at the end."""
        return self._open[self._n_taken :]

    @property
    def view(self) -> View:
        """The view that they are to be looked at."""
        return take_first_views(self._schedule.views, len(self._rounds) + 1).views[-1]

    @property
    def n_decided(self) -> int:
        """Number of images that need no further look."""
        return len(self._ids) - len(self._open)

    def add(self, outputs: Float32Array) -> None:
        """Add the outputs for the first of the images that are due; the last of them ends the round. float32 [n, C]"""
        self._taken.append(outputs)
        self._n_taken += len(outputs)
        if self._n_taken < len(self._open):
            return
        self._rounds.append(_Round(self._open, np.concatenate(self._taken)))
        self._open, self._taken, self._n_taken = self._find_open(), [], 0

    def add_saved(self, positions: IntArray, outputs: Float32Array) -> None:
        """Add the `taken` outputs of an interrupted job, as far as they are those that are due here."""
        while len(positions):
            due = self.due[: len(positions)]
            if len(due) == 0 or not np.array_equal(positions[: len(due)], due):
                return
            self.add(outputs[: len(due)])
            positions, outputs = positions[len(due) :], outputs[len(due) :]

    @property
    def has_taken(self) -> bool:
        """Whether any look was taken so far."""
        return bool(self._rounds or self._taken)

    @property
    def taken(self) -> tuple[IntArray, Float32Array]:
        """Positions and outputs of all looks so far, in the order taken: int64 [n], float32 [n, C]"""
        positions = [*(one.positions for one in self._rounds), self._open[: self._n_taken]]
        return np.concatenate(positions), np.concatenate([*(one.outputs for one in self._rounds), *self._taken])

    def groups(self) -> Iterator[LookedGroup]:
        """Yield the images by the number of looks at them, when nothing is due any more."""
        assert len(self._open) == 0, "some images are still to be looked at"
        for looks, last in enumerate(self._rounds, start=1):
            later = self._rounds[looks].positions if looks < len(self._rounds) else self._open
            positions = np.setdiff1d(last.positions, later, assume_unique=True)
            if len(positions):
                yield LookedGroup(positions, self._predict(positions, looks))

    def _find_open(self) -> IntArray:
        """Return which images of the last round need another look."""
        positions, looks = self._rounds[-1].positions, len(self._rounds)
        if looks == self._schedule.max_looks:
            return positions[:0]
        running = self._rule.compute_running(self._predict(positions, looks))[:, -1]
        return positions[self._schedule.is_open(looks, running, self._rule.threshold)]

    def _predict(self, positions: IntArray, looks: int) -> Predictions:
        """Return the predictions of images for their first looks."""
        taken = [one.outputs[np.searchsorted(one.positions, positions)] for one in self._rounds[:looks]]
        outputs = np.stack(taken, axis=1)
        views = take_first_views(self._schedule.views, looks)
        return self._make_predictions(outputs, views, [self._ids[index] for index in positions])


def take_looks(looks: AdaptiveLooks, placed: Any, inference: Inference) -> Generator[None, None, None]:
    """Take all looks at images that inference has placed. Pause after each batch on the host, or when GPUs have work.

    The images of a round are gathered into full batches where they are, so that images that are decided take no room.
    """
    while len(due := looks.due):
        started: deque[Fetch] = deque()
        with closing(_iter_inputs(placed, due, looks.view, inference)) as batches:
            for inputs in batches:
                started.append(inference.start(inputs))
                if not inference.outstanding:
                    looks.add(started.popleft()())
                    yield
        if started:
            yield
        while started:
            looks.add(started.popleft()())


def take_all_looks(looks: AdaptiveLooks, images: Any, inference: Inference) -> list[LookedGroup]:
    """Take all looks at images [N, H, W, C], and return them by the number of looks."""
    for _ in take_looks(looks, inference.place(images), inference):
        pass
    return list(looks.groups())


def _iter_inputs(images: Any, positions: IntArray, view: View, inference: Inference) -> Generator[Any, None, None]:
    """Yield the inputs of a round; where the host makes the views of several batches, it does so ahead of them."""
    size = inference.batch_size
    batches = (
        inference.prepare(images[positions[start : start + size]], [view]) for start in range(0, len(positions), size)
    )
    if inference.outstanding or len(positions) <= size:
        return batches
    return read_ahead(lambda: batches, _BATCHES_AHEAD)


@lru_cache(maxsize=1024)
def take_first_views(views: tuple[str, ...], looks: int) -> ViewSet:
    """Return the views of the first looks. All sets of hundreds of views would take seconds, so none is made ahead."""
    return ViewSet(list(views[:looks]))
