"""Other readings of a classifier: the preprocessing that people usually mean, and a classifier that uses it."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from secondlook.classifiers import Classifier, FunctionClassifier, Preprocessing, load_classifier

Settings = Mapping[str, Any]
"""Preprocessing settings by name."""

NORMALIZATION = ("scale", "mean", "std")
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
"""The side of the crop as a part of the shorter side: 224 of 256 pixels."""


def describe_input(classifier: Classifier) -> Preprocessing:
    """Return the preprocessing of a classifier as its model meets it: a function gets pixels from 0 to 255."""
    if isinstance(classifier, FunctionClassifier):
        return dataclasses.replace(classifier.preprocessing, scale=1.0)
    return classifier.preprocessing


def read_as(classifier: Classifier, preprocessing: Preprocessing) -> Classifier:
    """Return the same model with another preprocessing, for images that are already resized and cropped."""
    fitted = dataclasses.replace(preprocessing, resize=None, crop=None)
    if isinstance(classifier, FunctionClassifier):
        return load_classifier(lambda images: classifier.forward(fitted.normalize(images)), output=classifier.output)
    changed = copy.copy(classifier)
    changed.preprocessing = fitted
    return changed


def propose_readings(given: Preprocessing, channels: int, sizes: Iterable[tuple[int, ...]]) -> dict[str, Preprocessing]:
    """Return preprocessings that differ from the given one in normalization, color order, layout or geometry, by name.

    `channels` is the number of channels that the model gets, `sizes` are the heights and widths of the images.
    """
    proposed: dict[str, Settings] = {}
    if given.input_dtype != "uint8":
        proposed |= {**NORMALIZATIONS, **(COLOR_NORMALIZATIONS if channels == 3 else GRAY_NORMALIZATIONS)}
    if channels == 3:
        other = "BGR" if given.color == "RGB" else "RGB"
        proposed[f"{other} channels"] = {"color": other}
    if given.channels is None:  # otherwise the model says which layout it takes
        layout = "NHWC" if given.layout == "NCHW" else "NCHW"
        proposed[f"{layout} layout"] = {"layout": layout}
    if given.input_size is not None and any(size != given.input_size for size in sizes):
        proposed |= _propose_geometries(given)
    readings = {name: dataclasses.replace(given, **_order_channels(given, each)) for name, each in proposed.items()}
    return {name: reading for name, reading in readings.items() if reading != given}


def _order_channels(given: Preprocessing, settings: Settings) -> Settings:
    """Return settings with mean and std, which are written in the order of RGB, in the color order of the model."""
    if "color" in settings or given.color == "RGB" or "mean" not in settings:
        return settings
    return {**settings, "mean": settings["mean"][::-1], "std": settings["std"][::-1]}


def _propose_geometries(given: Preprocessing) -> dict[str, Settings]:
    size = given.input_size or (0, 0)
    side = min(size)
    # A crop that was given is repeated, so that the settings can be added to those that were given.
    return {
        "resized to the input": {"resize": size, "crop": given.crop and size},
        "resized and cropped": {"resize": side, "crop": size},
        f"{CROP_FRACTION:.1%} crop": {"resize": round(side / CROP_FRACTION), "crop": size},
    }


def find_changes(reading: Preprocessing, given: Preprocessing) -> dict[str, Any]:
    """Return the settings in which a reading differs from what was given, under the names of the arguments.

    Mean and std belong together, so both are returned if one of them differs; and one that is back at its default too.
    """
    names = [field.name for field in dataclasses.fields(Preprocessing)]
    changed = {name: getattr(reading, name) for name in names if getattr(reading, name) != getattr(given, name)}
    if "mean" in changed or "std" in changed:
        changed |= {"mean": reading.mean, "std": reading.std}
    return {name: changed[name] for name in names if name in changed}


def format_changes(changes: Settings) -> str:
    """Return settings as arguments to paste: 'mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)'."""
    return ", ".join(f"{name}={_format_value(value)}" for name, value in changes.items())


def _format_value(value: object) -> str:
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{number:.6g}" for number in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
