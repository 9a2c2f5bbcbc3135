"""Activation distances: the score against a search over all pairs, and the layer that they are taken from."""

from typing import Any

import numpy as np
import pytest

from reproduction.distance import compute_distance_confidence, compute_embeddings
from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import ConfidenceError

torch = pytest.importorskip("torch")


@pytest.fixture
def images() -> Array:
    return np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)


def make_network() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 5)).eval()


def test_embeddings_are_the_outputs_of_a_layer_that_exists(images: Array) -> None:
    module = make_network()
    classifier = load_classifier(module, output="logits")
    with torch.no_grad():
        expected = module[:3](torch.from_numpy(classifier.preprocessing.normalize(images))).flatten(start_dim=1)
    found = compute_embeddings(classifier, images, "2", batch_size=3)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)
    assert not module[2]._forward_hooks
    with pytest.raises(ConfidenceError, match=r"'conv'.*0, 1, 2, 3, 4"):
        compute_embeddings(classifier, images, "conv")
    with pytest.raises(ConfidenceError, match="not accessible"):
        compute_embeddings(load_classifier(lambda batch: np.full((len(batch), 2), 0.5)), images, "2")


@pytest.mark.parametrize("offset", [0, 800])
def test_confidence_is_the_share_of_near_neighbors_of_the_class(offset: float) -> None:
    generator = np.random.default_rng(0)
    own, train = generator.normal(size=(40, 3)) + offset, generator.normal(size=(90, 3))
    labels, classes = generator.integers(0, 6, 90), generator.integers(0, 6, 40)
    expected = []
    for row, predicted in zip(own, classes, strict=True):
        distances = np.sqrt(((train - row) ** 2).sum(axis=1))
        nearest = np.argsort(distances)[:11]
        weights = np.exp(distances.min() - distances[nearest])
        expected.append(weights[labels[nearest] == predicted].sum() / weights.sum())
    np.testing.assert_allclose(compute_distance_confidence(own, train, labels, classes, neighbors=11), expected)
    few = compute_distance_confidence(own, train[:4], labels[:4], classes)
    assert ((few >= 0) & (few <= 1)).all(), "fewer training images than neighbors"
