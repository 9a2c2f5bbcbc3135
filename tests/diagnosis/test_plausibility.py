"""Warnings about labeled predictions that look like a wrong setup, from the predictions alone."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.diagnosis import SetupWarning, warn_about_setup
from secondlook.policies import threshold_for

pytestmark = pytest.mark.filterwarnings("error")
CLASSES = 10
NAMES = [f"class {number}" for number in range(CLASSES)]


def make(labels: Array, *, accuracy: float, confidence: float, seed: int = 0, **given: Any) -> sl.Predictions:
    """Return predictions of one view that are right about each label with a probability, all equally confident."""
    rng = np.random.default_rng(seed)
    wrong = (labels + rng.integers(1, CLASSES, len(labels))) % CLASSES
    predicted = np.where(rng.random(len(labels)) < accuracy, labels, wrong)
    outputs = np.full((len(labels), 1, CLASSES), (1 - confidence) / (CLASSES - 1))
    outputs[np.arange(len(labels)), 0, predicted] = confidence
    return sl.Predictions(probabilities=outputs, views="identity", labels=labels, class_names=NAMES, **given)


def relabel(preds: sl.Predictions, labels: Array) -> sl.Predictions:
    return sl.Predictions(probabilities=preds.probabilities, views="identity", labels=labels, class_names=NAMES)


RNG = np.random.default_rng(1)
LABELS = RNG.integers(0, CLASSES, 300)
GOOD = make(LABELS, accuracy=0.92, confidence=0.97)
DOUBTFUL = {
    "wrong scaling": (make(LABELS, accuracy=0.186, confidence=0.9), "90.0 %"),
    "labels off by one": (relabel(GOOD, (LABELS + 1) % CLASSES), "97.0 %"),
    "shuffled labels": (relabel(GOOD, RNG.permutation(LABELS)), "97.0 %"),
    "two classes": (make(LABELS % 2, accuracy=0.92, confidence=0.97), "8 of the 10 classes"),
}


@pytest.mark.parametrize(("preds", "value"), DOUBTFUL.values(), ids=list(DOUBTFUL))
def test_labels_are_checked_once_at_first_use(preds: sl.Predictions, value: str) -> None:
    copies = [preds.select(images=np.arange(len(preds))) for _ in range(3)]
    uses: tuple[Callable[[sl.Predictions], object], ...] = (
        partial(sl.certify, risk=0.1),
        partial(sl.evaluate, resamples=5),
        partial(threshold_for, coverage=0.5),
    )
    for use, copy in zip(uses, copies, strict=True):
        with pytest.warns(SetupWarning, match=value):
            use(copy)
        threshold_for(copy, coverage=0.5)  # has no news: every warning is an error here


@pytest.mark.parametrize("count", [50, 100, 300])
@pytest.mark.parametrize("accuracy", [0.6, 0.75, 0.9])
def test_samples_of_usual_classifiers_give_no_warning(count: int, accuracy: float) -> None:
    for seed in range(50):
        labels = np.random.default_rng(seed).integers(0, CLASSES, count)
        assert not warn_about_setup(make(labels, accuracy=accuracy, confidence=accuracy + 0.08, seed=seed))


def test_few_images_of_many_classes_and_honest_guesses_give_no_warning() -> None:
    many = sl.Predictions(
        probabilities=np.eye(500)[RNG.integers(0, 500, 300)][:, None],
        views="identity",
        labels=RNG.integers(0, 500, 300),
        class_names=[str(number) for number in range(500)],
    )
    with pytest.warns(SetupWarning, match="guessing") as found:
        assert warn_about_setup(many) == tuple(str(one.message) for one in found)
    assert len(found) == 1, "no class is reported as missing"
    assert not warn_about_setup(make(LABELS, accuracy=0.1, confidence=0.12))
    assert not warn_about_setup(relabel(GOOD, (LABELS + 1) % CLASSES).select(images=np.arange(49)))


def test_run_keeps_the_warning(tmp_path: Path) -> None:
    """Labels that were shuffled: no other reading of the classifier is better."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 4, 4, 3), dtype=np.uint8)

    def classify(batch: Array) -> Array:
        scores = batch.mean(axis=(1, 2)).astype(np.float64)
        exp = np.exp((scores - scores.max(axis=1, keepdims=True)) / 2)
        outputs: Array = exp / exp.sum(axis=1, keepdims=True)
        return outputs

    model = sl.load_classifier(classify, name="v1")
    options: dict[str, Any] = {"labels": rng.integers(0, 3, 200), "execution": sl.Execution(progress=False)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = sl.create_run(model, images, "identity hflip", out=tmp_path / "run", resamples=5, **options)
    given = [str(one.message) for one in caught if issubclass(one.category, SetupWarning)]
    assert len(given) == 1
    assert given[0] in run.record.warnings
