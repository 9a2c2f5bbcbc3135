"""Some images of a source, and the outputs of a classifier for them under any preprocessing."""

import warnings
from collections.abc import Iterable

import numpy as np

from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.classifiers import Classifier, Preprocessing
from secondlook.diagnosis.readings import describe_input, propose_readings, read_as
from secondlook.predictions import BatchSize, Predictions, collect, read_first_image
from secondlook.sources import ArraySource, Source

IMAGES_AT_ONCE = 16
"""Number of images held at their original size."""

MAX_BYTES = 2**27
"""Size of the resized images that are held at once; of very large images, fewer are taken."""


class Sample:
    """At most `count` images of a source, the same ones each time, in random order.

    Attributes
    ----------
    given
        The preprocessing as the model meets it.
    predictions
        Those of the classifier as given, for the image itself.
    labels
        int64 [N], or None.
    classified
        Number of images that were classified so far, under any preprocessing.
    """

    def __init__(
        self, classifier: Classifier, source: Source, count: int, *, batch_size: BatchSize, progress: bool
    ) -> None:
        first = read_first_image(classifier, source)
        self._classifier = classifier
        self._batch_size = batch_size
        self._source = source.spread(min(count, max(IMAGES_AT_ONCE, MAX_BYTES // first.nbytes)))
        self._sizes: set[tuple[int, ...]] = set()
        self._fitted: dict[tuple[object, ...], Array] = {}
        self.given = describe_input(classifier)
        self.predictions: Predictions = collect(
            classifier, self._source, "identity", batch_size=batch_size, progress=progress
        )
        self.labels: IntArray | None = self.predictions.labels if self.predictions.has_labels else None
        self.classified = len(self.predictions)

    def __len__(self) -> int:
        return len(self.predictions)

    def propose_readings(self, given: Preprocessing) -> dict[str, Preprocessing]:
        """Return preprocessings that differ from a given one in one respect, by name."""
        self._fit([given])
        proposed = propose_readings(given, self._fitted[_geometry_of(given)].shape[3], self._sizes)
        self._fit(proposed.values())
        return proposed

    def classify(self, preprocessing: Preprocessing, count: int) -> Float64Array | None:
        """Return the probabilities of the first images under a proposed preprocessing, or None if the model fails.

        float64 [count, C]
        """
        images = self._fitted[_geometry_of(preprocessing)][:count]
        self.classified += len(images)
        try:
            # A model may do anything with an input that it was not made for.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                classifier = read_as(self._classifier, preprocessing)
                preds = collect(
                    classifier, ArraySource(images), "identity", batch_size=self._batch_size, progress=False
                )
        except Exception:  # noqa: BLE001
            return None
        probabilities = preds.probabilities[:, 0].astype(np.float64)
        return probabilities if probabilities.shape[1] == self.predictions.n_classes else None

    def _fit(self, preprocessings: Iterable[Preprocessing]) -> None:
        """Read, resize and crop the images for each geometry that is new, in one pass over the source."""
        new = {_geometry_of(each): each for each in preprocessings if _geometry_of(each) not in self._fitted}
        if not new:
            return
        parts: dict[tuple[object, ...], list[Array]] = {geometry: [] for geometry in new}
        for batch in self._source.batches(IMAGES_AT_ONCE):
            self._sizes |= {image.shape[:2] for image in batch.images}
            for geometry, preprocessing in new.items():
                parts[geometry].append(preprocessing.fit(batch.images))
        self._fitted |= {geometry: np.concatenate(arrays) for geometry, arrays in parts.items()}


def _geometry_of(preprocessing: Preprocessing) -> tuple[object, ...]:
    return tuple(preprocessing.geometry.values())
