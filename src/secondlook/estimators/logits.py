"""Logits of one classifier, or of an ensemble as the mean over its members."""

from collections.abc import Iterator

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.predictions import Predictions, block_rows


def lone_tables(preds: Predictions) -> tuple[Predictions, ...]:
    """Return the members of an ensemble, or the one classifier's predictions."""
    return preds.members or (preds,)


def has_logits(preds: Predictions) -> bool:
    """Say whether every classifier behind the predictions gave logits."""
    return all(table.has_logits for table in lone_tables(preds))


def mean_logit_blocks(preds: Predictions) -> Iterator[tuple[slice, Float64Array]]:
    """Yield (images, float64 [n, C]): the mean of the logits over members and views."""
    tables = lone_tables(preds)
    rows = block_rows(preds.n_views, preds.n_classes)
    for pieces in zip(*(table.logit_blocks(rows) for table in tables), strict=True):
        yield pieces[0][0], np.mean([block.mean(axis=1) for _, block in pieces], axis=0)
