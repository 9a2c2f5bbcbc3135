"""The same network has the same probabilities with every kind of model."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Classifier, load_classifier

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Load = Callable[..., Classifier]


@pytest.fixture
def load() -> Iterator[Load]:
    """Load classifiers with the same settings, and close the remote ones."""
    loaded = []

    def with_settings(spec: object) -> Classifier:
        loaded.append(load_classifier(spec, output="logits", mean=MEAN, std=STD))
        return loaded[-1]

    yield with_settings
    for classifier in loaded:
        getattr(classifier, "close", lambda: None)()


@pytest.fixture
def expected(network: Any, images: Array) -> Array:
    def function(pixels: Array) -> Array:
        logits: Array = network.logits(((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32))
        return logits

    return load_classifier(function, output="logits").probabilities(images)


def test_an_onnx_file_has_the_same_probabilities(
    load: Load, make_onnx: Any, network: Any, expected: Array, images: Array, tmp_path: Path
) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    np.testing.assert_allclose(load(f"onnx:{file}").probabilities(images), expected, atol=1e-4)


def test_a_torch_module_has_the_same_probabilities(
    load: Load, torch_module: Any, expected: Array, images: Array
) -> None:
    np.testing.assert_allclose(load(torch_module).probabilities(images), expected, atol=1e-4)


def test_an_exported_program_has_the_same_probabilities(
    load: Load, torch_module: Any, expected: Array, images: Array, tmp_path: Path
) -> None:
    example = (torch.zeros(7, 3, 8, 8),)
    torch.export.save(torch.export.export(torch_module.eval(), example), tmp_path / "m.pt2")
    np.testing.assert_allclose(load(f"torch:{tmp_path / 'm.pt2'}").probabilities(images), expected, atol=1e-4)


def test_a_torchscript_file_has_the_same_probabilities(
    load: Load, torch_module: Any, expected: Array, images: Array, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch_module), tmp_path / "m.pt")
    np.testing.assert_allclose(load(f"torch:{tmp_path / 'm.pt'}").probabilities(images), expected, atol=1e-4)


@pytest.mark.outside
def test_a_remote_model_has_the_same_probabilities(load: Load, server: Any, expected: Array, images: Array) -> None:
    np.testing.assert_allclose(load(f"{server.address}/v2/models/tiny").probabilities(images), expected, atol=1e-4)
