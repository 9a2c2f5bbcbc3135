"""Diagnosis of real classifiers: harmful views of photographs, and flips of digits."""

from pathlib import Path

import numpy as np
import pytest

import secondlook.cli
from secondlook.classifiers import load_classifier
from secondlook.cli.demo import digit_images, split_digits
from secondlook.diagnosis import candidate_views, diagnose_views, harmful_view_warnings, search_views
from secondlook.predictions import Predictions, collect
from secondlook.views import ViewSet

SHARED = Path(__file__).resolve().parents[3] / "shared"
IMAGES = 200
HARMFUL = ("vflip", "channels:brg", "rotate:90", "shift:14,-14")


@pytest.fixture(scope="module")
def photographs() -> Predictions:
    """Outputs of a real classifier for a preset and for harmful views, without labels."""
    images = np.load(SHARED / "cifar10" / "test.npz")["images"][:IMAGES]
    model = load_classifier(
        f"onnx:{SHARED / 'cifar10' / 'resnet20.onnx'}",
        output="logits",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        threads=1,
    )
    return collect(model, images, [*ViewSet("cifar10"), *HARMFUL], progress=False)


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_harmful_views_are_detected_and_the_preset_is_not(photographs: Predictions) -> None:
    assert harmful_view_warnings(photographs.select(views="cifar10")) == []
    sentences = harmful_view_warnings(photographs)
    assert [sentence.split("'")[1] for sentence in sentences] == list(HARMFUL)


@pytest.fixture(scope="module")
def digits() -> Predictions:
    """Outputs of the demo network for natural candidates, on digits it was not trained on."""
    images, labels = digit_images()
    unseen = split_digits()[1]
    network = Path(secondlook.cli.__file__).parent / "demo_data" / "digits.onnx"
    views = [view for view in candidate_views("natural", 16, 60) if "channels" not in str(view)]
    model = load_classifier(f"onnx:{network}", output="logits", threads=1)
    return collect(model, images[unseen], views, labels=labels[unseen], progress=False)


def test_flips_of_digits_are_harmful(digits: Predictions) -> None:
    diagnosis = diagnose_views(digits)
    flipped = [view for view in digits.views.texts if "flip" in view]
    assert len(flipped) > 20
    assert set(flipped) <= set(diagnosis.harmful)
    assert {"shift:1,0", "rotate:2", "zoom:1.04"}.isdisjoint(diagnosis.harmful)


@pytest.mark.parametrize("seed", [0, 1])
def test_flips_of_digits_are_never_chosen(digits: Predictions, seed: int) -> None:
    result = search_views(digits, 8, seed=seed)
    assert not any("flip" in view for view in result.found.texts)
    assert result.gains[-1].verdict != "worse"
