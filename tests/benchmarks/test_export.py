"""The benchmark of exported files, on few images, and that it would find differences."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from export import (
    ADAPTIVE,
    ALL_LOOKS,
    POOLING,
    Case,
    PixelDifference,
    compare_fit,
    compare_views,
    cut_photographs,
    describe_verification,
    make_cifar10_case,
    measure,
    select_images,
    write_pooled_model,
)
from measurement import CIFAR10, CIFAR10_MEAN, CIFAR10_STD, Row
from secondlook.classifiers import load_classifier
from secondlook.views import ViewSet

needs_cifar10 = pytest.mark.skipif(not CIFAR10.is_dir(), reason="needs ../shared/cifar10")


def by_measure(rows: Iterable[Row], what: str) -> dict[str, float]:
    return {str(row["measure"]): float(str(row["value"])) for row in rows if row["what"] == what}


@needs_cifar10
def test_a_file_decides_as_the_library_does_and_is_timed(tmp_path: Path) -> None:
    case = replace(make_cifar10_case(CIFAR10 / "resnet20.onnx", 220), batches=(1, 4))
    rows = list(measure(case, tmp_path, rounds=3))
    assert all(math.isfinite(float(str(row["value"]))) for row in rows)
    pixels = {"pixels": 220 * 13 * 32 * 32 * 3, "differing pixels": 0, "largest difference in gray levels": 0}
    assert by_measure(rows, "resnet20: 13 views") == pixels
    for name in (ALL_LOOKS, ADAPTIVE):
        found = by_measure(rows, f"resnet20, {name}")
        assert found["images"] == 220
        assert found["differing classes"] == found["differing decisions"] == 0
        assert found["largest difference of the confidence"] <= 1e-5
        assert 0 < found["bytes more than the classifier"] <= 50_000
    for batch in case.batches:
        times = by_measure(rows, f"resnet20, batch of {batch}")
        assert times["milliseconds of the file"] > 0
        assert times["ratio of run time"] > 0
    assert 1 <= by_measure(rows, "resnet20, adaptive, batch of 4")["mean looks"] < 13


@needs_cifar10
def test_photographs_are_classified_by_blocks_of_pixels_and_differ_by_a_gray_level_at_most(tmp_path: Path) -> None:
    source, pooled = CIFAR10 / "resnet20.onnx", tmp_path / "pooled.onnx"
    write_pooled_model(source, pooled)
    inputs = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    large = inputs.repeat(POOLING, axis=2).repeat(POOLING, axis=3)
    outputs: list[Any] = []
    for path, given in ((pooled, large), (source, inputs)):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, {session.get_inputs()[0].name: given})[0])
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-4)
    sizes: dict[str, Any] = {"mean": CIFAR10_MEAN, "std": CIFAR10_STD, "resize": 256, "crop": 224}
    classifier = load_classifier(f"onnx:{pooled}", output="logits", **sizes)
    views, images = ViewSet("identity gamma:0.8 rotate:4 zoom:1.1"), cut_photographs(4, seed=1)
    same: dict[str, Any] = {"model": pooled, "policies": {}, "batches": (), "max_difference": 1e-3}
    case = Case(name="photographs", classifier=classifier, views=views, images=images, **same)
    for compare, what, count in ((compare_fit, "resized", 4), (compare_views, "4 views", 16)):
        found = by_measure(compare(case), f"photographs: {what}")
        assert found["pixels"] == count * 224 * 224 * 3
        assert found["differing pixels"] <= 0.02 * found["pixels"]
        assert found["largest difference in gray levels"] <= 1
    assert select_images(case, 6).shape == (6, 320, 427, 3)


def test_photographs_have_many_sizes_and_depend_on_the_seed() -> None:
    first, again, other = (cut_photographs(10, seed=seed) for seed in (0, 0, 1))
    assert len({image.shape for image in first}) == 10
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert {image.shape for image in first} != {image.shape for image in other}


def test_differing_pixels_are_counted_and_images_with_another_decision_listed() -> None:
    difference = PixelDifference()
    expected = np.full((1, 2, 2, 3), 255, dtype=np.uint8)
    difference.add(expected, expected)
    difference.add(np.where(np.arange(12).reshape(expected.shape) < 2, 0, expected).astype(np.uint8), expected)
    assert (difference.pixels, difference.differing, difference.largest) == (24, 2, 255)
    image = SimpleNamespace(id="image-7", cause="decision", distance=0.25)
    verified: Any = SimpleNamespace(images=10, differing_labels=0, differing_decisions=1, differing_looks=0)
    vars(verified).update(largest_difference=0.1, max_difference=1e-5, differing=[image])
    found = by_measure(describe_verification("what", verified), "what")
    assert found["differing decisions"] == 1
    assert [value for name, value in found.items() if "image-7" in name] == [0.25]
