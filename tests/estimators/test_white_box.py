"""Monte Carlo dropout and distance to training embeddings."""

import re
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ConfidenceError, PredictionsError
from secondlook.estimators import compute_embeddings, compute_mc_dropout_passes, confidence
from secondlook.estimators.white_box import compute_density_score
from tests.estimators.conftest import make_predictions

torch = pytest.importorskip("torch")


@pytest.fixture
def images() -> Array:
    return np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)


def make_network(rate: float = 0.5) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Dropout(rate), torch.nn.Linear(16, 5))


def load(module: Any) -> Classifier:
    return load_classifier(module, output="logits")


def uniform(batch: Array) -> Array:
    return np.full((len(batch), 2), 0.5)


def test_passes_are_seeded_around_the_network_and_do_not_change_it(images: Array) -> None:
    module = make_network()
    module[1].eval()
    module[4].eval()
    training = [layer.training for layer in module.modules()]
    averages = module[1].running_mean.clone()
    generator_state = torch.get_rng_state()
    classifier = load(module)
    passes = compute_mc_dropout_passes(classifier, images, passes=4, seed=1, batch_size=3)
    assert passes.shape == (4, 10, 5)
    assert passes.dtype == np.float32
    np.testing.assert_allclose(passes.sum(axis=2), 1, rtol=1e-5)
    assert all(not np.array_equal(passes[0], one) for one in passes[1:])
    np.testing.assert_array_equal(passes, compute_mc_dropout_passes(classifier, images, passes=4, seed=1, batch_size=3))
    assert not np.array_equal(passes, compute_mc_dropout_passes(classifier, images, passes=4, seed=2, batch_size=3))
    assert [layer.training for layer in module.modules()] == training
    assert torch.equal(module[1].running_mean, averages)
    assert torch.equal(torch.get_rng_state(), generator_state)
    assert not module[4]._forward_hooks
    assert not module[4]._forward_pre_hooks
    classifier = load(make_network(rate=0.05))
    many = compute_mc_dropout_passes(classifier, images, passes=200)
    np.testing.assert_allclose(many.mean(axis=0), classifier.probabilities(images), atol=0.02)


def test_variance_and_mean_over_passes_which_must_be_valid(images: Array) -> None:
    preds = make_predictions()
    passes = np.random.default_rng(0).dirichlet(np.ones(6), size=(7, 40))
    for top_k in (1, 3):
        classes = preds.predicted(predict_from="views", top_k=top_k).reshape(40, top_k)
        mass = np.array([[one[image, classes[image]].sum() for image in range(40)] for one in passes])
        variance = confidence(preds, "mc-dropout", passes=passes, predict_from="views", top_k=top_k)
        np.testing.assert_allclose(variance, -mass.var(axis=0))
        mean = confidence(preds, "mc-dropout", passes=passes, statistic="mean", predict_from="views", top_k=top_k)
        np.testing.assert_allclose(mean, mass.mean(axis=0))
    valid = np.full((3, 40, 6), 1 / 6)
    with pytest.raises(ConfidenceError, match="Sequential"):
        compute_mc_dropout_passes(load(make_network(rate=0.0)), images)
    with pytest.raises(ConfidenceError, match="passes=1"):
        compute_mc_dropout_passes(load(make_network()), images, passes=1)
    with pytest.raises(ConfidenceError, match="uniform"):
        compute_mc_dropout_passes(uniform, images)
    with pytest.raises(ConfidenceError, match=r"\[3, 39, 6\].*40 images"):
        confidence(preds, "mc-dropout", passes=valid[:, :39])
    with pytest.raises(PredictionsError, match="pass 0"):
        confidence(preds, "mc-dropout", passes=valid * 2)
    with pytest.raises(ConfidenceError, match="'median'"):
        confidence(preds, "mc-dropout", passes=valid, statistic="median")


def test_embeddings_are_the_outputs_of_a_layer_that_exists(images: Array) -> None:
    module = make_network().eval()
    classifier = load(module)
    inputs = torch.from_numpy(classifier.preprocessing.normalize(images))
    with torch.no_grad():
        expected = module[:3](inputs).flatten(start_dim=1).numpy()
    found = compute_embeddings(classifier, images, layer="2", batch_size=3)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not module[2]._forward_hooks
    with pytest.raises(ConfidenceError, match=r"'conv'.*0, 1, 2, 3, 4, 5"):
        compute_embeddings(load(make_network()), images, layer="conv")


def test_distance_is_a_density_score_and_matches_a_search_over_all_pairs() -> None:
    distances = np.array([[0.0, 1.0, 2.0], [800.0, 801.0, 900.0]])
    labels = np.array([[1, 0, 1], [2, 1, 2]])
    near, middle, far = np.exp([0.0, -1.0, -2.0])
    scores = compute_density_score(distances, labels, np.array([[1], [1]]))
    np.testing.assert_allclose(scores, [(near + far) / (near + middle + far), middle / (near + middle)])
    np.testing.assert_allclose(compute_density_score(distances, labels, np.array([[0, 1], [0, 2]]))[0], 1)
    preds = make_predictions()
    generator = np.random.default_rng(0)
    own, train, given = generator.normal(size=(40, 3)), generator.normal(size=(90, 3)), generator.integers(0, 6, 90)
    expected = []
    for row, predicted in zip(own, preds.predicted(predict_from="views"), strict=True):
        all_distances = np.sqrt(((train - row) ** 2).sum(axis=1))
        nearest = np.argsort(all_distances)[:11]
        weights = np.exp(-all_distances[nearest])
        expected.append(weights[given[nearest] == predicted].sum() / weights.sum())
    options: dict[str, Any] = {"embeddings": own, "train_embeddings": train, "train_labels": given}
    np.testing.assert_allclose(confidence(preds, "distance", predict_from="views", neighbors=11, **options), expected)


def test_invalid_embeddings_are_rejected() -> None:
    valid: dict[str, Any] = {"embeddings": np.ones((40, 2)), "train_embeddings": np.ones((60, 2))}
    valid["train_labels"] = np.zeros(60, dtype=int)
    for name, value, offending in (
        ("embeddings", np.ones((39, 2)), "[39, 2]"),
        ("embeddings", np.full((40, 2), np.nan), "row 0"),
        ("train_embeddings", np.ones((60, 3)), "[60, 3]"),
        ("train_labels", np.zeros(60), "float64 [60]"),
        ("neighbors", 61, "61"),
    ):
        with pytest.raises(ConfidenceError, match=re.escape(offending)):
            confidence(make_predictions(), "distance", **{**valid, name: value})
