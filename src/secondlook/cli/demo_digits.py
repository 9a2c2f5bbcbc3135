"""The digits of the demo: real handwriting that ships with scikit-learn, and which of it the demo's network saw."""

import numpy as np

from secondlook.arrays import Array, IntArray

SIDE = 16
TRAINING_IMAGES = 200
"""So few that the network errs often enough to be of interest."""


def digit_images() -> tuple[Array, IntArray]:
    """Return the 1,797 digits, enlarged from 8x8, and what they are. uint8 [1797, 16, 16, 1], int64 [1797]"""
    import cv2
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    large = [cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for image in small]
    return np.stack(large)[..., None], digits.target.astype(np.int64)


def seen_and_unseen() -> tuple[IntArray, IntArray]:
    """Return the places of the images that the network was trained on, and of the others. int64 [200], [1597]"""
    order = np.random.default_rng(0).permutation(1797)
    return order[:TRAINING_IMAGES], np.sort(order[TRAINING_IMAGES:])
