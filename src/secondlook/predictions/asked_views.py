"""Views as a caller asks for them, and where they stand among those that are there."""

from collections.abc import Sequence

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import PredictionsError
from secondlook.registry import did_you_mean
from secondlook.views import ViewSet


def positions_of(asked: ViewSet, known: Sequence[str]) -> IntArray:
    """Return where each asked view stands among the texts of the known ones, int64 [len(asked)]."""
    place = {text: number for number, text in enumerate(known)}
    for text in asked.texts:
        if text not in place:
            raise PredictionsError(
                f"view {text!r} is not among the predictions; there are: {', '.join(known)}.{did_you_mean(text, known)}"
            )
    return np.array([place[text] for text in asked.texts], dtype=np.int64)
