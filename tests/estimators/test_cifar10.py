"""From pixels to confidence with real images, a real classifier and the views of the paper, on a few images."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.estimators import confidence
from secondlook.predictions import Execution, Predictions, collect
from secondlook.views import ViewSet

SHARED = Path(__file__).resolve().parents[3] / "shared"
N_IMAGES = 600

pytestmark = pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")


@pytest.fixture(scope="module")
def preds() -> Predictions:
    with np.load(SHARED / "cifar10" / "test.npz") as test:
        images, labels = test["images"][:N_IMAGES], test["labels"][:N_IMAGES]
    path = SHARED / "cifar10" / "resnet20.onnx"
    model = load_classifier(f"onnx:{path}", output="logits", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    return collect(model, images, ViewSet("cifar10"), labels=labels, execution=Execution(progress=False))


def compute_metrics(correct: Array, values: Array) -> tuple[float, float, float]:
    errors = ~correct[np.argsort(-values, kind="stable")]
    risk = np.cumsum(errors) / np.arange(1, len(errors) + 1)
    return (
        100 * roc_auc_score(~correct, -values),
        100 * average_precision_score(~correct, -values),
        1000 * float(risk.mean()),
    )


# Computed without this library: NumPy slices as views, an ONNX Runtime session, softmax in float64, scikit-learn.
EXPECTED = {"msr": (92.770, 54.807, 10.211), "mean": (95.755, 76.071, 7.377)}


def test_metrics_match_an_independent_computation_and_the_bootstrap_is_close_to_the_mean(preds: Predictions) -> None:
    found = {name: compute_metrics(preds.correct(), confidence(preds, name)) for name in ("msr", "mean", "bootstrap")}
    for name, expected in EXPECTED.items():  # views help by three points
        np.testing.assert_allclose(found[name], expected, atol=0.05)
    assert abs(found["bootstrap"][0] - found["mean"][0]) < 1.0
