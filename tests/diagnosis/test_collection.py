"""Images set apart to choose views are never copies of others, and nothing is collected twice."""

import numpy as np

import secondlook as sl
from secondlook.diagnosis.choice import choose_tuning_images


def test_tuning_images_of_a_source_are_never_copies_of_others() -> None:
    images = np.random.default_rng(0).integers(0, 256, (400, 4, 4, 1), dtype=np.uint8)
    images[200:] = images[:200]
    chosen = choose_tuning_images(sl.open_source(images))
    assert len(chosen) == 50
    assert chosen.max() < 200
    assert (np.diff(chosen) > 0).all()
