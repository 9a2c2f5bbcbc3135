"""Preprocessing: settings, `fit` and `normalize`, against slow reference implementations."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing
from secondlook.errors import ClassifierError


def random_image(height: int, width: int, channels: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def reference_input(image: Array, preprocessing: Preprocessing) -> Array:
    """Normalize one image, one channel at a time, in float64. [H, W, C] -> [C, H, W]"""
    pixels = image.astype(np.float64) * (255 if image.dtype == np.float32 else 1)
    order = [2, 1, 0] if preprocessing.color == "BGR" else [0, 1, 2]
    mean, std = (np.broadcast_to(np.array(each), 3) for each in (preprocessing.mean, preprocessing.std))
    planes = [(pixels[..., c] * preprocessing.scale - mean[i]) / std[i] for i, c in enumerate(order)]
    return np.stack(planes)


@settings(deadline=None, max_examples=40)
@given(
    mean=st.tuples(*[st.floats(-2, 1)] * 3) | st.floats(-2, 1).map(lambda value: (value,)),
    std=st.tuples(*[st.floats(0.1, 3)] * 3) | st.floats(0.1, 3).map(lambda value: (value,)),
    scale=st.sampled_from([1 / 255, 1.0, 1 / 127.5]),
    color=st.sampled_from(["RGB", "BGR"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    as_float=st.booleans(),
)
def test_normalize_equals_the_formula(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float, color: Any, layout: Any, as_float: bool
) -> None:
    preprocessing = Preprocessing(mean=mean, std=std, scale=scale, color=color, layout=layout)
    images = np.stack([random_image(4, 5), random_image(4, 5, seed=1)])
    if as_float:
        images = (images / 255).astype(np.float32)
    inputs = preprocessing.normalize(images)
    assert inputs.dtype == np.float32
    assert inputs.flags.c_contiguous
    planes = inputs if layout == "NCHW" else inputs.transpose(0, 3, 1, 2)
    for image, found in zip(images, planes, strict=True):
        np.testing.assert_allclose(found, reference_input(image, preprocessing), rtol=1e-4, atol=1e-3)
    raw = Preprocessing(input_dtype="uint8", layout="NHWC").normalize(images)
    np.testing.assert_array_equal(raw, (images * 255).round().astype(np.uint8) if as_float else images)
    assert Preprocessing(input_dtype="float16").normalize(images).dtype == np.float16


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (33, 33), (17, 90), (32, 32)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_fit_equals_a_resize_of_pillow_and_a_center_crop(height: int, width: int, interpolation: Any) -> None:
    image = random_image(height, width)
    short = 32 / min(height, width)
    size = (max(32, int(width * short + 1e-9)), max(32, int(height * short + 1e-9)))
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling[interpolation.upper()]))
    top, left = round((resized.shape[0] - 28) / 2), round((resized.shape[1] - 28) / 2)
    found = Preprocessing(resize=32, crop=28, interpolation=interpolation).fit([image])
    np.testing.assert_array_equal(found[0], resized[top : top + 28, left : left + 28])


@pytest.mark.parametrize("rounding", ["even", "down"])
@pytest.mark.parametrize(("height", "width"), [(40, 60), (61, 40), (33, 33), (28, 91), (10, 28), (5, 6)])
def test_part_of_an_image_that_is_kept(height: int, width: int, rounding: Any) -> None:
    """The rows and columns that survive a crop are those inside of the part; a resize does not move it."""
    places = np.arange(1, height * width + 1, dtype=np.float32).reshape(height, width, 1) / (height * width)
    kept = Preprocessing(crop=28, crop_rounding=rounding).fit([places])[0, ..., 0]
    rows, columns = np.nonzero(np.isin(places[..., 0], kept[kept > 0]))
    left, top, part_width, part_height = Preprocessing(crop=28, crop_rounding=rounding).find_crop(height, width)
    edges = left * width, top * height, (left + part_width) * width, (top + part_height) * height
    assert edges == pytest.approx((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    assert Preprocessing(resize=(30, 30), crop=15).find_crop(height, width) == pytest.approx((8 / 30, 8 / 30, 0.5, 0.5))
    assert Preprocessing(resize=20).find_crop(height, width) == (0, 0, 1, 1)


def test_fit_takes_images_of_any_size_dtype_and_color() -> None:
    gray, color = random_image(20, 10, 1), random_image(20, 10)
    as_float = (color / 255).astype(np.float32)
    preprocessing = Preprocessing(resize=(6, 9))
    assert preprocessing.fit([color, random_image(3, 4)]).shape == (2, 6, 9, 3)
    assert preprocessing.fit([gray]).shape == (1, 6, 9, 1)
    np.testing.assert_allclose(preprocessing.fit([as_float])[0] * 255, preprocessing.fit([color])[0], atol=1.01)
    np.testing.assert_array_equal(Preprocessing(channels=3, gray="repeat").fit([gray])[0], np.repeat(gray, 3, axis=2))
    with pytest.raises(ClassifierError, match="gray='repeat'"):
        Preprocessing(mean=(0, 0, 0)).normalize(gray[None])
    luminance = Preprocessing(channels=1, gray="luminance")
    found = luminance.fit([color])
    np.testing.assert_array_equal(found[0, ..., 0], np.asarray(Image.fromarray(color).convert("L")))
    np.testing.assert_allclose(luminance.fit([as_float]) * 255, found, atol=0.51)


def test_a_crop_rounds_odd_margins_and_pads_with_black() -> None:
    """Margins are rounded as in torchvision or as in transformers."""
    image = np.arange(5, dtype=np.uint8).reshape(1, 5, 1)
    assert Preprocessing(crop=(1, 2)).fit([image]).ravel().tolist() == [2, 3]
    assert Preprocessing(crop=(1, 2), crop_rounding="down").fit([image]).ravel().tolist() == [1, 2]
    cropped = Preprocessing(crop=5).fit([np.full((2, 3, 1), 9, dtype=np.uint8)])[0, ..., 0]
    assert cropped.tolist() == [[0] * 5, [0, 9, 9, 9, 0], [0, 9, 9, 9, 0], [0] * 5, [0] * 5]


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8, 1), (8, 6, 3), (6, 8, 3)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"resize": 8},
        {"resize": 8, "crop": 8},
        {"resize": (8, 6)},
        {"crop": 8},
        {"resize": 8, "crop": (8, 6)},
        {"resize": 6},
        {"size": 8},
        {"channels": 1},
        {"channels": 3},
        {"channels": 3, "gray": "repeat"},
        {"channels": 1, "gray": "luminance"},
        {"mean": (0.5, 0.4, 0.3)},
    ],
)
def test_images_are_kept_if_fit_returns_them(shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    preprocessing = Preprocessing(**settings)
    batch = np.zeros((2, *shape), dtype=np.uint8)
    try:
        is_kept = preprocessing.fit(batch) is batch
    except ClassifierError:
        is_kept = False
    assert preprocessing.keeps(shape) == is_kept
    assert is_kept or shape != (8, 8, 3) or preprocessing.input_size != (8, 8) or preprocessing.channels == 1


@pytest.mark.parametrize(
    ("settings", "shapes", "offending"),
    [
        ({}, [(3, 4, 3), (4, 3, 3)], r"\[3, 4, 3\] and \[4, 3, 3\]"),
        ({"size": 8}, [(3, 4, 3)], r"3 x 4 .* 8 x 8; .*resize=\(8, 8\)"),
        ({}, [], "no images"),
        ({"channels": 3}, [(4, 4, 1)], r"1 channel.* 3; .*gray='repeat'"),
        ({"channels": 1}, [(4, 4, 3)], "gray='luminance'"),
        ({"resize": 256, "crop": 224}, [(6000, 1, 3)], r"6000 x 1 .* 1536000 x 256"),  # would exhaust the memory
    ],
)
def test_images_that_do_not_fit_are_rejected(
    settings: dict[str, Any], shapes: list[tuple[int, ...]], offending: str
) -> None:
    with pytest.raises(ClassifierError, match=offending):
        Preprocessing(**settings).fit([np.zeros(shape, np.uint8) for shape in shapes])


@pytest.mark.parametrize(
    ("settings", "offending"),
    [
        ({"resize": 0}, "resize=0"),
        ({"crop": (1, 2, 3)}, "crop=(1, 2, 3)"),
        ({"crop": True}, "crop=True"),
        ({"interpolation": "bicubik"}, "Did you mean 'bicubic'?"),
        ({"mean": (1, 2)}, "mean=(1, 2)"),
        ({"mean": 10**400}, "mean=1000"),
        ({"mean": (0.1, 0.2, 0.3), "channels": 1}, "mean=(0.1, 0.2, 0.3)"),
        ({"std": "half"}, "std='half'"),
        ({"std": (1, 0, 1)}, "std=(1.0, 0.0, 1.0)"),
        ({"scale": float("nan")}, "scale=nan"),
        ({"layout": "CHW"}, "layout='CHW'"),
        ({"color": "rgb"}, "color='rgb'"),
        ({"channels": 4}, "channels=4"),
        ({"input_dtype": "uint8", "mean": (0.5,)}, "mean="),
        ({"size": 8, "crop": 9}, "crop=(8, 8)"),
        ({"reszie": 8}, "Did you mean 'resize'?"),
        # A mean of pixels of another scale
        ({"mean": (125, 123, 114)}, "mean=(0.4902, 0.4824, 0.4471)"),
        ({"mean": (125, 123, 114)}, "std="),
        ({"mean": (125, 123, 114), "std": (63, 62, 67)}, "(0.4902, 0.4824, 0.4471)"),
        ({"mean": (125, 123, 114), "std": (63, 62, 67)}, "std=(0.2471, 0.2431, 0.2627)"),
        ({"mean": 128, "std": 0.5}, "mean=0.502."),
        ({"mean": 20, "scale": 16 / 255}, "mean=20"),
        ({"mean": 20, "scale": 16 / 255}, "16"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], offending: str) -> None:
    makers: list[Callable[..., Preprocessing]] = [lambda **given: Preprocessing.from_dict(given), Preprocessing]
    for make in makers[: 1 if "reszie" in settings else 2]:
        with pytest.raises(ClassifierError, match=re.escape(offending)):
            make(**settings)
    # A mean up to the largest pixel is accepted.
    Preprocessing(mean=(1.0,), std=(1.0,))
    Preprocessing(mean=(103.939, 116.779, 123.68), scale=1.0)
    Preprocessing(mean=(1.485,), scale=1 / 127.5)


@settings(deadline=None, max_examples=30)
@given(
    resize=st.none() | st.integers(1, 500) | st.tuples(st.integers(1, 500), st.integers(1, 500)),
    mean=st.floats(-9, 1),
    color=st.sampled_from(["RGB", "BGR"]),
    gray=st.sampled_from([None, "repeat", "luminance"]),
)
def test_settings_round_trip_through_json(resize: Any, mean: float, color: Any, gray: Any) -> None:
    preprocessing = Preprocessing(resize=resize, crop=3, mean=(mean,), color=color, gray=gray)
    stored = json.loads(json.dumps(preprocessing.to_dict()))
    assert (stored["colour"], stored["grey"]) == (color, gray), "stored names keep their spelling"
    again = Preprocessing.from_dict(stored)
    assert again == preprocessing
    assert hash(again) == hash(preprocessing)
    assert again.digest == preprocessing.digest


def test_every_setting_changes_the_digest_and_is_printed() -> None:
    changes: list[dict[str, object]] = [
        {"resize": 9}, {"crop": 9}, {"interpolation": "box"}, {"crop_rounding": "down"}, {"size": 9}, {"channels": 3},
        {"gray": "repeat"}, {"scale": 1.0}, {"mean": 0.5}, {"std": 0.5}, {"color": "BGR"}, {"layout": "NHWC"},
        {"input_dtype": "uint8"},
    ]  # fmt: skip
    digests = {Preprocessing.from_dict(change).digest for change in [{}, *changes]}
    assert len(digests) == len(Preprocessing().to_dict()) + 1
    assert str(Preprocessing()) == "pixels / 255, RGB, NCHW"
    assert str(Preprocessing(resize=256, crop=224, std=(0.5,))) == "resize=256, crop=(224, 224), std=(0.5)"
    assert Preprocessing().digest == "b22021088cbcfb869fd88c0d3b6bbf1b8a3f529a67af830454155b91e3ae8c8b"
