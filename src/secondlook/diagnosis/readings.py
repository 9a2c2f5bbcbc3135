"""Alternative readings of a classifier: common kinds of preprocessing, tried on a sample of the images."""

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.classifiers import Classifier, FunctionClassifier, Preprocessing, load_classifier

Settings = Mapping[str, Any]
"""Preprocessing settings by name."""

PIXELS = {"scale": 1 / 255, "mean": (0.0,), "std": (1.0,)}
NORMALIZATIONS: Mapping[str, Settings] = {
    "pixels in [0, 1]": PIXELS,
    "pixels in [-1, 1]": {**PIXELS, "mean": (0.5,), "std": (0.5,)},
    "pixels from 0 to 255": {**PIXELS, "scale": 1.0},
    "pixels from 0 to 16": {**PIXELS, "scale": 16 / 255},
}
COLOR_NORMALIZATIONS: Mapping[str, Settings] = {
    "ImageNet normalization": {**PIXELS, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "CIFAR-10 normalization": {**PIXELS, "mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616)},
    "CIFAR-100 normalization": {**PIXELS, "mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)},
    "Caffe normalization": {"color": "BGR", "scale": 1.0, "mean": (103.939, 116.779, 123.68), "std": (1.0,)},
}
GRAY_NORMALIZATIONS: Mapping[str, Settings] = {
    "MNIST normalization": {**PIXELS, "mean": (0.1307,), "std": (0.3081,)},
}
CROP_FRACTION = 0.875
"""The side of the crop as a fraction of the shorter side: 224 of 256 pixels."""
MIN_GAIN = 0.05
"""Smallest gain in accuracy, and in accuracy corrected for chance, to report."""
MIN_KAPPA, MIN_REORDERED_KAPPA = 0.2, 0.4
"""Smallest accuracy, corrected for chance, of a better reading, and of a better reading in another class order.

The outputs of an untrained network also depend on the image, hence on its class, so some class order and preprocessing
are always slightly better.
"""
ALPHA = 0.01
"""Largest probability of a false alarm, if all readings are equally good."""


def describe_input(classifier: Classifier) -> Preprocessing:
    """Return the preprocessing of a classifier as seen by its model: a function gets pixels from 0 to 255."""
    if isinstance(classifier, FunctionClassifier):
        return dataclasses.replace(classifier.preprocessing, scale=1.0)
    return classifier.preprocessing


def read_as(classifier: Classifier, preprocessing: Preprocessing) -> Classifier:
    """Return the model with another preprocessing, for images that are already resized and cropped."""
    fitted = dataclasses.replace(preprocessing, resize=None, crop=None)
    if isinstance(classifier, FunctionClassifier):
        return load_classifier(lambda images: classifier.forward(fitted.normalize(images)), output=classifier.output)
    changed = copy.copy(classifier)
    changed.preprocessing = fitted
    return changed


def propose_readings(given: Preprocessing, channels: int, sizes: Iterable[tuple[int, ...]]) -> dict[str, Preprocessing]:
    """Return alternatives to the given preprocessing in normalization, color order, layout or geometry, by name.

    `channels` is the number of input channels of the model, `sizes` are the heights and widths of the images.
    """
    proposed: dict[str, Settings] = {}
    if given.input_dtype != "uint8":
        proposed |= {**NORMALIZATIONS, **(COLOR_NORMALIZATIONS if channels == 3 else GRAY_NORMALIZATIONS)}
    if channels == 3:
        other = "BGR" if given.color == "RGB" else "RGB"
        proposed[f"{other} channels"] = {"color": other}
    if given.channels is None:  # otherwise the layout is known from the model
        layout = "NHWC" if given.layout == "NCHW" else "NCHW"
        proposed[f"{layout} layout"] = {"layout": layout}
    size = given.input_size
    if size is not None and any(each != size for each in sizes):
        # Repeat a given crop, so that the settings can be added to the given ones.
        proposed["resized to the input"] = {"resize": size, "crop": given.crop and size}
        proposed["resized and cropped"] = {"resize": min(size), "crop": size}
        proposed[f"{CROP_FRACTION:.1%} crop"] = {"resize": round(min(size) / CROP_FRACTION), "crop": size}
    readings = {}
    for name, settings in proposed.items():
        if "mean" in settings and "color" not in settings and given.color != "RGB":  # in RGB order
            settings = {**settings, "mean": settings["mean"][::-1], "std": settings["std"][::-1]}
        readings[name] = dataclasses.replace(given, **settings)
    return {name: reading for name, reading in readings.items() if reading != given}


def find_changes(reading: Preprocessing, given: Preprocessing) -> dict[str, Any]:
    """Return the settings of a reading that differ from the given ones, by argument name.

    Mean and std belong together, so both are returned if one of them differs, even if the other one is the default.
    """
    names = [field.name for field in dataclasses.fields(Preprocessing)]
    changed = {name for name in names if getattr(reading, name) != getattr(given, name)}
    if changed & {"mean", "std"}:
        changed |= {"mean", "std"}
    return {name: getattr(reading, name) for name in names if name in changed}


def format_changes(changes: Settings) -> str:
    """Return settings as arguments to paste: 'mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)'."""
    return ", ".join(f"{name}={_format_value(value)}" for name, value in changes.items())


def _format_value(value: object) -> str:
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{number:.6g}" for number in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A reading tried on N images: a whole sample, or its first images."""

    name: str
    preprocessing: Preprocessing
    probabilities: Float64Array
    """float64 [N, C], in the order of the outputs."""
    labels: IntArray
    """Labels of the data, int64 [N]; empty without labels."""
    order: IntArray | None
    """The output for each class of the data, int64 [C]; None for the order of the data."""
    correct: BoolArray
    """Whether predictions are correct, bool [N], under a class order fitted to the other half; empty without labels."""
    complexity: int = 0
    """Complexity of the class order; among equally good readings, the simplest is preferred."""
    equally_good: tuple[str, ...] = ()

    @classmethod
    def create(
        cls, name: str, preprocessing: Preprocessing, probabilities: Array, labels: IntArray, order: IntArray | None
    ) -> Self:
        """Return the trial of a reading in a known class order; `labels` may be empty, or cover more images."""
        labels = labels[: len(probabilities)]
        correct = probabilities[: len(labels)].argmax(axis=1) == (labels if order is None else order[labels])
        return cls(name, preprocessing, probabilities.astype(np.float64), labels, order, correct)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def predicted(self) -> IntArray:
        """The output with the largest probability. int64 [N]"""
        predicted: IntArray = self.probabilities.argmax(axis=1)
        return predicted

    @property
    def outputs(self) -> IntArray:
        """The output of the true class. int64 [N]"""
        return self.labels if self.order is None else self.order[self.labels]

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return float(self.correct.mean())

    @property
    def confidence(self) -> float:
        """Mean over images of the largest probability."""
        return float(self.probabilities.max(axis=1).mean())

    @property
    def contrast(self) -> float:
        """Factor of the differences between pixels."""
        return self.preprocessing.scale / min(self.preprocessing.std)

    @property
    def diversity(self) -> float:
        """Effective number of predicted classes: the exponential of the entropy of the mean output."""
        mean = self.probabilities.mean(axis=0)
        return math.exp(-float((mean * np.log(np.maximum(mean, 1e-12))).sum()))

    @property
    def log_loss(self) -> float:
        """Mean negative log probability of the true class."""
        return float(-np.log(np.maximum(self.probabilities[np.arange(len(self)), self.outputs], 1e-12)).mean())

    @property
    def kappa(self) -> float:
        """Cohen's kappa: accuracy corrected for chance, 0 if all predictions are the same class."""
        n_classes = self.probabilities.shape[1]
        true, predicted = (np.bincount(each, minlength=n_classes) for each in (self.outputs, self.predicted))
        by_chance = float((true / len(self)) @ (predicted / len(self)))
        return (self.accuracy - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0

    def compute_p_value(self, given: "Trial") -> float:
        """Return the p-value of McNemar's test that this reading is better than the given one."""
        gained = int((self.correct & ~given.correct).sum())
        changed = int((self.correct != given.correct).sum())
        return float(sum(math.comb(changed, count) for count in range(gained, changed + 1)) / 2**changed)

    def is_clearly_better(self, given: "Trial", comparisons: int) -> bool:
        """Whether this reading is significantly and noticeably better, corrected for the number of comparisons.

        Kappa must improve, too: if most images have one class, an output collapsed to this class has a high accuracy.
        """
        gain = min(self.accuracy - given.accuracy, self.kappa - given.kappa)
        needed = MIN_KAPPA if self.order is None else MIN_REORDERED_KAPPA
        return self.kappa >= needed and gain >= MIN_GAIN and self.compute_p_value(given) * comparisons <= ALPHA
