"""The contract of classifiers: every kind of model agrees, wrong outputs are rejected, ensembles average members."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array, Output, softmax
from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
from secondlook.errors import ClassifierError

PROBABILITIES = np.array([[0.2, 0.8], [0.5, 0.5]], dtype=np.float32)
LOGITS = np.array([[-1.0, 3.0], [2.0, 2.0]], dtype=np.float32)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
    "kind", ["onnx", "module", "program", "torchscript", pytest.param("remote", marks=pytest.mark.outside)]
)
def test_every_kind_of_model_has_the_probabilities_of_the_network(
    kind: str, load: Callable[..., Any], network: Any, images: Array, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def function(pixels: Array) -> Array:
        logits: Array = network.logits(((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32))
        return logits

    if kind == "onnx":
        model: object = f"onnx:{request.getfixturevalue('make_onnx')()}"
    elif kind == "remote":
        model = f"{request.getfixturevalue('server').address}/v2/models/tiny"
    else:
        torch = pytest.importorskip("torch")
        model = module = request.getfixturevalue("torch_module")
        if kind == "program":
            torch.export.save(torch.export.export(module.eval(), (torch.zeros(7, 3, 8, 8),)), tmp_path / "m.pt2")
            model = f"torch:{tmp_path / 'm.pt2'}"
        elif kind == "torchscript":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.jit.save(torch.jit.script(module), tmp_path / "m.pt")
            model = f"torch:{tmp_path / 'm.pt'}"
    expected = load(function).probabilities(images)
    np.testing.assert_allclose(load(model, mean=MEAN, std=STD).probabilities(images), expected, atol=1e-4)


def run(values: object, output: Output, n_images: int = 2) -> Array:
    """Classify with a function that returns some values."""
    return load_classifier(lambda _: values, output=output)(np.zeros((n_images, 8, 8, 3), np.uint8))


def test_valid_outputs_are_returned_as_float32() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int64):
        found = run(LOGITS.astype(dtype), "logits")
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, LOGITS)
    np.testing.assert_array_equal(run(PROBABILITIES, "probabilities"), PROBABILITIES)
    assert run(LOGITS.tolist(), "logits").dtype == np.float32
    assert run([[-1e-8, 1.0], [0.0, 1.0]], "probabilities").min() == 0, "a rounding error"
    # A single row that sums to one may be logits.
    np.testing.assert_array_equal(run(PROBABILITIES[:1], "logits", 1), PROBABILITIES[:1])


@pytest.mark.parametrize(
    ("values", "output", "offending"),
    [
        (LOGITS, "probabilities", "-1"),
        (np.abs(LOGITS), "probabilities", "sums to 4"),
        (PROBABILITIES * 1.002, "probabilities", "1.002"),
        (PROBABILITIES, "logits", "'probabilities'"),
        (PROBABILITIES * 1.0009, "logits", "'probabilities'"),
        (np.where(LOGITS == 3, np.nan, LOGITS), "logits", "nan for image 0 of the batch, class 1"),
        (np.where(LOGITS == 3, np.inf, LOGITS), "logits", "inf for image 0"),
        (np.full((2, 2), 1e300), "logits", "inf for image 0 of the batch, class 0"),
        (np.where(PROBABILITIES == 0.5, np.nan, PROBABILITIES), "probabilities", "nan for image 1"),
        (PROBABILITIES[:1], "probabilities", "[1, 2] for 2 images"),
        (np.array([0, 1]), "probabilities", "[2]"),
        (LOGITS[:, :, None, None], "logits", "[2, 2, 1, 1]"),
        (LOGITS[:, :1], "logits", "[2, 1] for 2 images"),
        (LOGITS[:, :0], "logits", "[2, 0] for 2 images"),
        (np.array([["a", "b"]] * 2), "logits", "<U1"),
        (None, "logits", "NoneType"),
    ],
)
def test_invalid_outputs_are_rejected(values: object, output: Output, offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        run(values, output)


def test_a_subclass_only_implements_forward(images: Array) -> None:
    class Halves(Classifier):
        def forward(self, images: Array) -> Array:
            return np.full((len(images), 2), 0.5)

    mine = Halves(name="halves", digest="0" * 64, output="probabilities", preprocessing=Preprocessing())
    assert load_classifier(mine)(images).shape == (7, 2)
    assert repr(mine).startswith("Halves('halves', output='probabilities'")
    for shape, dtype in (((2, 8, 8), "u1"), ((2, 8, 8, 4), "u1"), ((2, 8, 8, 3), "f8"), ((0, 8, 8, 3), "u1")):
        with pytest.raises(ClassifierError, match="'halves'"):
            mine(np.zeros(shape, dtype))
    with pytest.raises(ClassifierError, match=r"output='scores'.* 'halves'"):
        Halves(name="halves", digest="", output="scores", preprocessing=Preprocessing())  # type: ignore[arg-type]


def linear_classifier(seed: int, classes: int = 3, **options: Any) -> Classifier:
    matrix = np.random.default_rng(seed).normal(size=(192, classes))
    return load_classifier(lambda images: (images / 255).reshape(len(images), -1) @ matrix, output="logits", **options)


def test_an_ensemble_averages_probabilities_not_logits(images: Array) -> None:
    members = [linear_classifier(seed) for seed in range(3)]
    ensemble = Ensemble(members)
    expected = np.mean([softmax(member(images)) for member in members], axis=0)
    np.testing.assert_allclose(ensemble(images), expected, atol=1e-6)
    assert (ensemble.output, ensemble.n_classes) == ("probabilities", 3)
    assert (ensemble.members, members[0].members) == (tuple(members), ())
    a, b, nameless = linear_classifier(0, name="a"), linear_classifier(1, name="b"), members[2]
    assert Ensemble([a, b]).digest == Ensemble([a, b], name="other").digest
    assert Ensemble([a, b]).digest not in (Ensemble([a]).digest, a.digest, "")
    assert Ensemble([a, nameless]).digest == ""


@pytest.mark.parametrize(
    ("members", "offending"),
    [
        ([], "empty"),
        ([linear_classifier(0, resize=8), linear_classifier(1)], "resize is None"),
        ([linear_classifier(0, size=8), linear_classifier(1, size=9)], "(9, 9)"),
        ([Ensemble([linear_classifier(0)])], "'ensemble of"),
    ],
)
def test_members_that_do_not_match_are_rejected(members: list[Classifier], offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        Ensemble(members)


def test_members_with_other_classes_are_rejected_as_soon_as_known(images: Array) -> None:
    three, four = linear_classifier(0), linear_classifier(1, classes=4)
    late = Ensemble([three, four])
    for find in (lambda: late(images), lambda: Ensemble([three, four])):
        with pytest.raises(ClassifierError, match=r"n_classes is 4 .* 3"):
            find()
