"""Diagnosis of real classifiers: harmful views of photographs, and flips of digits."""

from pathlib import Path

import numpy as np
import pytest

import secondlook.cli
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.cli.demo import digit_images, split_digits
from secondlook.diagnosis import candidate_views, choose_views, diagnose_views
from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Execution, Predictions, collect
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
    return collect(model, images, [*ViewSet("cifar10"), *HARMFUL], execution=Execution(progress=False))


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_harmful_views_are_detected_and_the_preset_is_not(photographs: Predictions) -> None:
    assert diagnose_views(photographs.select(views="cifar10")).describe_harmful() is None
    assert list(diagnose_views(photographs).harmful) == list(HARMFUL)
    choice = choose_views(photographs, 16)
    assert set(HARMFUL) <= set(choice.set_aside)
    assert {"hflip+shift:0,1", "hflip+shift:0,-1", "shift:-1,0", "shift:0,1", "shift:1,0"} <= set(choice.views)


def load_digits() -> tuple[Classifier, Array, Array]:
    """Return the demo network, and images and labels that it was not trained on."""
    images, labels = digit_images()
    unseen = split_digits()[1]
    network = Path(secondlook.cli.__file__).parent / "demo_data" / "digits.onnx"
    return load_classifier(f"onnx:{network}", output="logits", threads=1), images[unseen], labels[unseen]


@pytest.fixture(scope="module")
def digits() -> Predictions:
    """Outputs of the demo network for natural candidates."""
    model, images, labels = load_digits()
    views = [view for view in candidate_views("natural", 16, 60) if "channels" not in str(view)]
    return collect(model, images, views, labels=labels, execution=Execution(progress=False))


def test_flips_of_digits_are_harmful_and_never_chosen(digits: Predictions) -> None:
    diagnosis = diagnose_views(digits)
    flipped = [view for view in digits.views.texts if "flip" in view]
    assert len(flipped) > 20
    assert set(flipped) <= set(diagnosis.harmful)
    assert {"shift:1,0", "rotate:2", "zoom:1.04"}.isdisjoint(diagnosis.harmful)
    choice = choose_views(digits, budget=8)
    assert len(choice.views) == 9
    assert not any("flip" in view for view in choice.views)


@pytest.mark.parametrize("labeled", [False, True])
def test_views_of_digits_are_chosen_without_flips_and_improve_the_confidence(labeled: bool) -> None:
    model, images, labels = load_digits()
    choice = choose_views(model, images, labels=labels if labeled else None)
    assert set(choice.set_aside) == {view for view in candidate_views("auto", n=None).texts if "hflip" in view}
    assert len(choice.views) == 13
    preds = collect(model, images, choice.views, labels=labels, execution=Execution(progress=False))
    assert auroc(preds.correct(), confidence(preds, "mean")) > auroc(preds.correct(), confidence(preds, "msr")) + 0.01
