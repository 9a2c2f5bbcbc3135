"""Deciding while looking: takes the answers view by view, and has each part decided and kept once it is complete."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from secondlook.arrays import Float32Array
from secondlook.predictions import Chunk, Predictions
from secondlook.scoring.asked_classifier import MemberOutputs
from secondlook.scoring.score_parts import ScoredPart, ScoreParts
from secondlook.scoring.score_rows import Question, rows_of, schema_of
from secondlook.sources import Source
from secondlook.views import ViewSet

Look = Callable[[Predictions], None]
"""Is shown the predictions of the first part that is looked at."""


class Deciding:
    """Holds the answers of one part, and decides in a thread of its own while the classifier looks at the next."""

    def __init__(
        self,
        parts: ScoreParts,
        question: Question,
        asked: MemberOutputs,
        source: Source,
        views: ViewSet,
        class_names: tuple[str, ...] | None,
        look: Look | None,
    ) -> None:
        self._parts = parts
        self._question = question
        self._asked = asked
        self._source = source
        self._views = views
        self._class_names = class_names
        self._look = look
        self._answers: Float32Array = np.empty((0, len(views), 1), dtype=np.float32)
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="secondlook-decide")

    def lacks(self, view: int, number: int) -> bool:
        """Whether a part is still to be looked at; it is kept with all its views."""
        return not self._parts.has(number)

    def keep(self, view: int, number: int, part: Chunk) -> None:
        """Take the answers to one view; the last one completes the part."""
        if view == 0:
            self._answers = np.empty((len(part.indices), len(self._views), part.answers.shape[1]), dtype=np.float32)
        self._answers[:, view] = part.answers
        if view < len(self._views) - 1:
            return
        preds = self._predictions(part, self._answers)
        if self._look is not None and preds is not None:
            self._look(preds)
            self._look = None
        self._wait()
        self._pending = self._thread.submit(self._decide, number, part, preds)

    def _predictions(self, part: Chunk, answers: Float32Array) -> Predictions | None:
        if len(part.indices) == 0:
            return None
        ids = [self._source.ids[index] for index in part.indices]
        return self._asked.predictions(answers, self._views, ids, self._class_names)

    def _decide(self, number: int, part: Chunk, preds: Predictions | None) -> None:
        empty = schema_of(self._question).empty_table()
        rows = empty if preds is None else rows_of(self._question, preds, part.indices)
        self._parts.write(number, ScoredPart(rows, [(image.id, image.reason) for image in part.skipped]))

    def _wait(self) -> None:
        """One part is decided at a time, so that memory stays bounded."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    @contextmanager
    def deciding(self) -> Iterator["Deciding"]:
        """Decide in the background; at the end everything is kept, or the error is raised."""
        try:
            yield self
            self._wait()
        finally:
            self._thread.shutdown()
