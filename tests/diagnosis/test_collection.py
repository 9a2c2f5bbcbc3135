"""Images set apart to choose views are never copies of others."""

import numpy as np

import secondlook as sl
from secondlook.arrays import Array
from secondlook.diagnosis import collect_views


def test_tuning_images_of_a_source_are_never_copies_of_others() -> None:
    images = np.random.default_rng(0).integers(0, 256, (400, 4, 4, 1), dtype=np.uint8)
    images[200:] = images[:200]

    def classify(batch: Array) -> Array:
        return np.full((len(batch), 2), 0.5)

    classifier = sl.load_classifier(classify, output="probabilities")
    _, chosen, _ = collect_views(classifier, sl.open_source(images), "identity")
    assert len(chosen) == 50
    assert chosen.max() < 200
    assert (np.diff(chosen) > 0).all()
