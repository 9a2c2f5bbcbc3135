"""The proposed readings, and the same model under another preprocessing."""

from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import FunctionClassifier, Preprocessing
from secondlook.diagnosis.readings import describe_input, find_changes, format_changes, propose_readings, read_as


def test_given_preprocessing_is_not_proposed_again() -> None:
    imagenet: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert "ImageNet normalization" in propose_readings(Preprocessing(), 3, [(8, 8)])
    assert "ImageNet normalization" not in propose_readings(Preprocessing(**imagenet), 3, [(8, 8)])
    assert "pixels in [0, 1]" in propose_readings(Preprocessing(**imagenet), 3, [(8, 8)])


@pytest.mark.parametrize("given", [Preprocessing(), Preprocessing(color="BGR", channels=3, size=8)])
def test_changes_added_to_the_given_settings_are_the_reading(given: Preprocessing) -> None:
    for reading in propose_readings(given, 3, [(16, 16)]).values():
        assert given.with_settings(find_changes(reading, given)) == reading


def test_only_readings_that_the_model_can_take_are_proposed() -> None:
    raw = propose_readings(Preprocessing(input_dtype="uint8", channels=3), 3, [(8, 8)])
    assert list(raw) == ["BGR channels"]
    gray = propose_readings(Preprocessing(channels=1), 1, [(8, 8)])
    assert "MNIST normalization" in gray
    assert not {"BGR channels", "ImageNet normalization"} & set(gray)
    assert not [name for name in propose_readings(Preprocessing(size=8), 3, [(8, 8)]) if "crop" in name]
    cropped = propose_readings(Preprocessing(size=224, resize=224, crop=224), 3, [(300, 400)])
    assert cropped["87.5% crop"].resize == 256
    assert cropped["resized to the input"].resize == (224, 224)


def test_mean_follows_the_color_order() -> None:
    reading = propose_readings(Preprocessing(color="BGR"), 3, [(8, 8)])["CIFAR-10 normalization"]
    assert reading.mean == (0.4465, 0.4822, 0.4914)


def test_same_model_is_used_and_not_changed() -> None:
    inputs: list[Array] = []

    def classify(batch: Array) -> Array:
        inputs.append(batch)
        return np.full((len(batch), 2), 0.5)

    function = sl.load_classifier(classify)
    assert isinstance(function, FunctionClassifier)
    assert describe_input(function).scale == 1.0
    images = np.full((2, 4, 4, 3), 255, dtype=np.uint8)
    read_as(function, Preprocessing(layout="NHWC", mean=(0.5,), std=(0.5,)))(images)
    function(images)
    assert inputs[0].dtype == np.float32
    assert inputs[0].max() == 1.0
    assert inputs[1] is images


def test_settings_are_written_as_arguments() -> None:
    changes = {"scale": 16 / 255, "mean": (0.5, 0.4, 0.3), "std": (1.0,), "color": "BGR", "resize": 8}
    expected = "scale=0.0627451, mean=(0.5, 0.4, 0.3), std=1, color='BGR', resize=8"
    assert format_changes(changes) == expected
