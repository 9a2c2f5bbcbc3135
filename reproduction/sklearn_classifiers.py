"""Small deterministic classifiers for data of scikit-learn: digits, signs made from them, patches of photographs.

Nothing is downloaded: every network but the demo's is trained here, in seconds, on images that are not classified.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import numpy as np

import secondlook as sl
from secondlook.arrays import Array, IntArray, Output

SIDE = 16
"""Height and width of a digit, enlarged from 8 as the demo does."""
TRAINING_IMAGES, FEW_TRAINING_IMAGES, TRAINING_PATCHES = 200, 80, 2_500
MIRRORABLE = (2, 3, 4, 5, 6, 7, 9)
"""Digits that differ from their mirror images: the classes of the signs, each also mirrored."""
PATCH, BANDS = 32, 3
"""Side of a patch, and how many horizontal bands of a photograph are classes."""
LABEL_SMOOTHING = 0.2


@dataclass(frozen=True)
class LabeledImages:
    """Images uint8 [N, H, W, C] and their classes int64 [N]."""

    images: Array
    labels: IntArray

    def __getitem__(self, positions: Any) -> "LabeledImages":
        """Return some of the images."""
        return LabeledImages(self.images[positions], self.labels[positions])


@dataclass(frozen=True)
class TrainedSet:
    """A classifier and images outside its training set."""

    name: str
    classifier: sl.Classifier
    unseen: LabeledImages
    preset: str
    """The preset of views for these images."""


def train_all() -> Iterator[TrainedSet]:
    """Yield every classifier with its images; the one with label smoothing only if PyTorch is installed."""
    digits = load_digit_images()
    order = np.random.default_rng(0).permutation(len(digits.labels))
    training, unseen = digits[order[:TRAINING_IMAGES]], digits[np.sort(order[TRAINING_IMAGES:])]
    demo = files("secondlook").joinpath("cli", "demo_data", "digits.onnx")
    yield TrainedSet("digits, network of the demo", sl.load_classifier(f"onnx:{demo}"), unseen, "digits")
    weak = fit_network(training[:FEW_TRAINING_IMAGES], hidden=32)
    yield TrainedSet("digits, weak network", weak, unseen, "digits")
    augmented = augment(training, shift=1, copies=8)
    yield TrainedSet("digits, better network", fit_network(augmented, hidden=64), unseen, "digits")
    if find_spec("torch"):
        smoothed = fit_smoothed_network(augmented, hidden=64)
        yield TrainedSet("digits, label smoothing", smoothed, unseen, "digits")
    training, unseen = split_signs(digits)
    signs = fit_network(augment(training, shift=1, copies=8), hidden=128)
    yield TrainedSet("signs", signs, unseen, "digits")
    training, unseen = cut_patches(even=True, count=TRAINING_PATCHES), cut_patches(even=False, count=2_000)
    patches = fit_network(augment(training, shift=2, copies=2, mirror=True), hidden=64, output="probabilities")
    yield TrainedSet("patches of photographs", patches, unseen, "natural")


def load_digit_images() -> LabeledImages:
    """Return the digits of scikit-learn enlarged to 16x16, like in the demo. uint8 [1797, 16, 16, 1]"""
    import cv2
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    large = [cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for image in small]
    return LabeledImages(np.stack(large)[..., None], digits.target.astype(np.int64))


def split_signs(digits: LabeledImages) -> tuple[LabeledImages, LabeledImages]:
    """Return training and other images of 14 classes: seven digits and their mirror images, so that flips mislead.

    A digit and its mirror image are in the same part.
    """
    kept = digits[np.isin(digits.labels, MIRRORABLE)]
    codes = np.searchsorted(MIRRORABLE, kept.labels)
    order = np.random.default_rng(0).permutation(len(codes))
    parts = [LabeledImages(kept.images[part], codes[part]) for part in np.split(order, [TRAINING_IMAGES])]
    training, unseen = (
        LabeledImages(
            np.concatenate([part.images, part.images[:, :, ::-1]]),
            np.concatenate([part.labels, part.labels + len(MIRRORABLE)]),
        )
        for part in parts
    )
    return training, unseen


def cut_patches(*, even: bool, count: int) -> LabeledImages:
    """Return patches of the two sample photographs; the class is the photograph and the third of its height.

    Training and other patches come from alternating vertical stripes, 64 pixels wide, so that they do not overlap.
    """
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    random = np.random.default_rng(0 if even else 1)
    third = photographs[0].shape[0] // BANDS
    images, labels = [], []
    for _ in range(count):
        photograph, band, stripe = int(random.integers(2)), int(random.integers(BANDS)), int(random.integers(5))
        left = 64 * (2 * stripe + (0 if even else 1)) + int(random.integers(64 - PATCH + 1))
        top = third * band + int(random.integers(third - PATCH + 1))
        images.append(photographs[photograph][top : top + PATCH, left : left + PATCH])
        labels.append(BANDS * photograph + band)
    return LabeledImages(np.stack(images), np.array(labels, dtype=np.int64))


def augment(training: LabeledImages, *, shift: int, copies: int, mirror: bool = False) -> LabeledImages:
    """Return randomly shifted copies of the images, optionally also mirrored ones."""
    random = np.random.default_rng(0)
    images = []
    for image in np.concatenate([training.images] * copies):
        dx, dy = random.integers(-shift, shift + 1, 2)
        moved = np.roll(image, (dy, dx), (0, 1))
        images.append(moved[:, ::-1] if mirror and random.random() < 0.5 else moved)
    return LabeledImages(np.stack(images), np.tile(training.labels, copies))


def fit_network(training: LabeledImages, *, hidden: int, output: Output = "logits") -> sl.Classifier:
    """Train a network with one hidden layer; it outputs logits, or the probabilities of scikit-learn."""
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier((hidden,), alpha=1e-3, max_iter=60, random_state=0)
    network.fit(_flatten(training.images), training.labels)

    def compute_logits(images: Array) -> Array:
        activations = _flatten(images)
        for layer, (weights, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
            activations = (np.maximum(activations, 0) if layer else activations) @ weights + bias
        return activations.astype(np.float32)

    def compute_probabilities(images: Array) -> Array:
        probabilities: Array = network.predict_proba(_flatten(images)).astype(np.float32)
        return probabilities

    return sl.load_classifier(compute_logits if output == "logits" else compute_probabilities, output=output)


def fit_smoothed_network(training: LabeledImages, *, hidden: int) -> sl.Classifier:
    """Train a network with one hidden layer and label smoothing, which makes its largest probabilities similar."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs, labels = torch.from_numpy(_flatten(training.images)).float(), torch.from_numpy(training.labels)
        network = torch.nn.Sequential(
            torch.nn.Linear(inputs.shape[1], hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, int(labels.max()) + 1)
        )
        loss = torch.nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
        for _ in range(60):
            for batch in torch.split(torch.randperm(len(labels)), 200):
                optimizer.zero_grad()
                loss(network(inputs[batch]), labels[batch]).backward()
                optimizer.step()

    def compute_logits(images: Array) -> Array:
        with torch.no_grad():
            logits: Array = network(torch.from_numpy(_flatten(images)).float()).numpy()
        return logits

    return sl.load_classifier(compute_logits, output="logits")


def _flatten(images: Array) -> Array:
    """Return pixels between 0 and 1, float64 [N, H * W * C]."""
    return images.reshape(len(images), -1) / 255.0
