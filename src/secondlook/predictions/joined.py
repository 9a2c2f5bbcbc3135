"""Two sets of predictions as one, read lazily: images the classifier was made for, and others."""

import numpy as np

from secondlook.arrays import Array, IntArray, Output
from secondlook.errors import MetricError
from secondlook.predictions.predictions import Predictions


class ConcatenatedTable:
    """The answers to one set of images, followed by those to another; a `Table` of predictions."""

    def __init__(self, first: Predictions, second: Predictions) -> None:
        self._parts = (first, second)
        self.kind: Output = "logits" if first.has_logits else "probabilities"
        self.shape = (first.n_images + second.n_images, first.n_views, first.n_classes)
        self.rows_read_together = 1

    def read(self, images: IntArray, views: IntArray) -> Array:
        """Read some answers. int [n], int [v] -> float [n, v, C]"""
        answers = np.empty((len(images), len(views), self.shape[2]))
        texts = [self._parts[0].views.texts[view] for view in views]
        start = 0
        for part in self._parts:
            here = np.flatnonzero((images >= start) & (images < start + part.n_images))
            if len(here):
                answers[here] = self._read_part(part, images[here] - start, texts)
            start += part.n_images
        return answers

    def _read_part(self, part: Predictions, images: IntArray, texts: list[str]) -> Array:
        chosen = part.select(images=images, views=texts)
        blocks = chosen.logit_blocks() if self.kind == "logits" else chosen.blocks()
        return np.concatenate([block for _, block in blocks])


def concatenate(first: Predictions, second: Predictions) -> Predictions:
    """Return the images of both, without labels; views, classes and members must agree."""
    for name, mine, theirs in (
        ("views", first.views.texts, second.views.texts),
        ("classes", first.n_classes, second.n_classes),
        ("ensemble members", len(first.members), len(second.members)),
        ("logits", first.has_logits, second.has_logits),
    ):
        if mine != theirs:
            raise MetricError(
                f"the predictions given as ood= differ in their {name}: {theirs} instead of {mine}; "
                "collect both with the same classifier and views."
            )
    if first.members:
        members = [concatenate(mine, theirs) for mine, theirs in zip(first.members, second.members, strict=True)]
        return Predictions(members=members, views=first.views)
    return Predictions.from_table(ConcatenatedTable(first, second), first.views)
