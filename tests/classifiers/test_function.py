"""Functions as classifiers, as objects and by name."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError

Array = np.ndarray[Any, Any]


def halves(images: Array) -> Array:
    return np.full((len(images), 2), 0.5)


def test_a_function_outputs_probabilities_by_default(images: Array) -> None:
    classifier = load_classifier(halves)
    assert classifier.output == "probabilities"
    assert classifier.n_classes is None
    assert classifier(images).dtype == np.float32
    assert classifier.n_classes == 2
    assert classifier.name == "function halves"


def test_a_function_gets_the_pixels_unchanged(images: Array) -> None:
    batches = []

    def record(batch: Array) -> Array:
        batches.append(batch)
        return halves(batch)

    load_classifier(record)(images)
    assert batches[0] is images


def test_a_function_is_identified_by_its_name_only() -> None:
    assert load_classifier(halves).digest == ""
    named = load_classifier(halves, name="halves of v1")
    assert len(named.digest) == 64
    assert named.digest != load_classifier(halves, name="halves of v2").digest


def test_a_function_may_return_a_tensor(images: Array) -> None:
    torch = pytest.importorskip("torch")
    classifier = load_classifier(lambda batch: torch.full((len(batch), 2), 0.5, requires_grad=True))
    assert classifier(images).tolist() == [[0.5, 0.5]] * len(images)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = "def predict(images):\n    return [[0.25, 0.75]] * len(images)\nnumber = 1\n"
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    return "my_model"


def test_a_function_is_loaded_by_name(module: str, images: Array) -> None:
    classifier = load_classifier(f"function:{module}:predict?name=mine")
    assert classifier(images)[0].tolist() == [0.25, 0.75]
    assert classifier.name == "function:my_model:predict?name=mine"
    assert load_classifier(classifier.name).digest == classifier.digest != ""
    renamed = load_classifier("function:my_model:predict", name="mine")
    assert (renamed.name, renamed.digest) == ("mine", classifier.digest)
    assert str(Path.cwd()) not in sys.path


@pytest.mark.parametrize(
    ("spec", "offending"),
    [
        ("function:my_model:number", "1"),
        ("function:my_model:predct", "'predct'"),
        ("function:no_such_module_here:predict", "'no_such_module_here'"),
        ("function:my_model", "'function:my_model'"),
    ],
)
def test_names_of_no_function_are_rejected(module: str, spec: str, offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        load_classifier(spec)


def test_normalization_settings_are_rejected() -> None:
    with pytest.raises(ClassifierError, match="mean="):
        load_classifier(halves, mean=(0.5,))
    assert load_classifier(halves, resize=8, crop=8).preprocessing.input_size == (8, 8)


def test_a_changing_number_of_classes_is_rejected(images: Array) -> None:
    classifier = load_classifier(lambda batch: np.full((len(batch), len(batch)), 1 / len(batch)))
    classifier(images)
    with pytest.raises(ClassifierError, match=r"2 classes.* 7"):
        classifier(images[:2])
