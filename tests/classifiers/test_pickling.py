"""Classifiers in other processes: loaded again from their spec and compared there, or pickled themselves."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError
from secondlook.threads import limit_threads
from tests.classifiers.conftest import write_graph

IMAGES: Array = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)


def compute_probabilities(batch: Any) -> Any:
    bright = batch.mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - bright, bright], axis=1)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ONNX file in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model.onnx", seed=0)
    return tmp_path / "model.onnx"


def write_model(path: Path, seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=(3 * 8 * 8, 4)).astype(np.float32)
    graph = "(float[n, 3, 8, 8] x) => (float[n, 4] logits) { flat = Flatten(x) logits = MatMul(flat, weights) }"
    write_graph(path, graph, weights=weights)


def test_model_of_a_spec_is_loaded_again(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    classifier = load_classifier("onnx:model.onnx?std=.5", mean=0.5)
    pickled = pickle.dumps(classifier)
    assert len(pickled) < 1000 < model.stat().st_size
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for again in (pickle.loads(pickled), pickle.loads(pickle.dumps(pickle.loads(pickled)))):
        assert (again.name, again.digest) == (classifier.name, classifier.digest)
        assert again.preprocessing == classifier.preprocessing
        np.testing.assert_array_equal(again(IMAGES), classifier(IMAGES))


def test_another_file_on_the_other_machine_is_an_error_and_a_copy_loads_nothing(model: Path) -> None:
    classifier = load_classifier("onnx:model.onnx")
    pickled = pickle.dumps(classifier)
    write_model(model, seed=1)
    with pytest.raises(ClassifierError, match=r"onnx:model\.onnx"):
        pickle.loads(pickled)
    model.unlink()
    with pytest.raises(ClassifierError, match=r"model\.onnx"):
        pickle.loads(pickled)
    np.testing.assert_array_equal(copy.copy(classifier)(IMAGES), classifier(IMAGES))


@pytest.mark.usefixtures("model")
def test_functions_and_ensembles_are_pickled() -> None:
    function = load_classifier(compute_probabilities, name="brightness")
    ensemble = load_classifier(["onnx:model.onnx", "onnx:model.onnx?mean=.5&std=.2"], name="both")
    for classifier in (function, ensemble):
        again = pickle.loads(pickle.dumps(classifier))
        assert (again.name, again.digest) == (classifier.name, classifier.digest)
        assert len(again.members) == len(classifier.members)
        np.testing.assert_array_equal(again.probabilities(IMAGES), classifier.probabilities(IMAGES))


@pytest.mark.usefixtures("model")
def test_threads_of_a_process_are_limited(set_threads: Any) -> None:
    import cv2

    set_threads(3)
    models = [load_classifier(f"onnx:model.onnx{options}") for options in ("", "?threads=2")]
    assert cv2.getNumThreads() == 3
    limit_threads(None)
    models.append(load_classifier("onnx:model.onnx"))
    threads = [model.session.get_session_options().intra_op_num_threads for model in models]  # type: ignore[attr-defined]
    assert threads == [3, 2, 0]
