"""Views as a caller asks for them, and where they stand among those that are there."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import PredictionsError
from secondlook.registry import did_you_mean
from secondlook.views import View, ViewSet

AskedViews = ViewSet | str | Path | Iterable[View | str]
"""A set, text, a preset's name, a file, or any views and texts."""


def as_view_set(views: AskedViews) -> ViewSet:
    """Return `views` as a set."""
    return views if isinstance(views, ViewSet) else ViewSet(views)


def as_view_set_with_identity(views: AskedViews) -> ViewSet:
    """Return `views` as a set; a plain list of views may leave the identity out."""
    if isinstance(views, ViewSet | str | Path):
        return as_view_set(views)
    return ViewSet([View(), *(view for view in views if str(view) != str(View()))])


def positions_of(asked: ViewSet, known: Sequence[str]) -> IntArray:
    """Return where each asked view stands among the texts of the known ones, int64 [len(asked)]."""
    place = {text: number for number, text in enumerate(known)}
    for text in asked.texts:
        if text not in place:
            raise PredictionsError(
                f"view {text!r} is not among the predictions; there are: {', '.join(known)}.{did_you_mean(text, known)}"
            )
    return np.array([place[text] for text in asked.texts], dtype=np.int64)
