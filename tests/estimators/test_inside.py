"""The methods that look inside a torch network: Monte-Carlo dropout and distance to training embeddings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ConfidenceError, PredictionsError
from secondlook.estimators import confidence, embeddings, mc_dropout_passes
from secondlook.estimators.distance import density_share
from secondlook.predictions import Predictions

torch = pytest.importorskip("torch")
Maker = Callable[..., Predictions]


@pytest.fixture
def images() -> Array:
    return np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)


def network(rate: float = 0.5) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Dropout(rate), torch.nn.Linear(16, 5))


def classifier_of(module: Any) -> Classifier:
    return load_classifier(module, output="logits")


def test_passes_differ_are_seeded_and_leave_everything_as_it_was(images: Array) -> None:
    module = network()
    module[1].eval()
    module[4].eval()
    training = [part.training for part in module.modules()]
    averages = module[1].running_mean.clone()
    generator_state = torch.get_rng_state()
    classifier = classifier_of(module)
    passes = mc_dropout_passes(classifier, images, passes=4, seed=1, batch_size=3)
    assert passes.shape == (4, 10, 5)
    assert passes.dtype == np.float32
    np.testing.assert_allclose(passes.sum(axis=2), 1, rtol=1e-5)
    assert all(not np.array_equal(passes[0], one) for one in passes[1:])
    np.testing.assert_array_equal(passes, mc_dropout_passes(classifier, images, passes=4, seed=1, batch_size=3))
    assert not np.array_equal(passes, mc_dropout_passes(classifier, images, passes=4, seed=2, batch_size=3))
    assert [part.training for part in module.modules()] == training
    assert torch.equal(module[1].running_mean, averages)
    assert torch.equal(torch.get_rng_state(), generator_state)
    assert not module[4]._forward_hooks
    assert not module[4]._forward_pre_hooks


def test_the_mean_of_many_passes_is_near_the_network_itself(images: Array) -> None:
    classifier = classifier_of(network(rate=0.05))
    passes = mc_dropout_passes(classifier, images, passes=200)
    np.testing.assert_allclose(passes.mean(axis=0), classifier.probabilities(images), atol=0.02)


def test_variance_and_mean_of_the_predicted_classes(predictions: Maker) -> None:
    preds = predictions()
    passes = np.random.default_rng(0).dirichlet(np.ones(6), size=(7, 40))
    for top_k in (1, 3):
        classes = preds.predicted(predict_from="views", top_k=top_k).reshape(40, top_k)
        own = np.array([[one[image, classes[image]].sum() for image in range(40)] for one in passes])
        variance = confidence(preds, "mc-dropout", passes=passes, predict_from="views", top_k=top_k)
        np.testing.assert_allclose(variance, -own.var(axis=0))
        mean = confidence(preds, "mc-dropout", passes=passes, statistic="mean", predict_from="views", top_k=top_k)
        np.testing.assert_allclose(mean, own.mean(axis=0))


def test_dropout_mistakes(predictions: Maker, images: Array) -> None:
    preds = predictions()
    good = np.full((3, 40, 6), 1 / 6)
    with pytest.raises(ConfidenceError, match="has no dropout layer"):
        mc_dropout_passes(classifier_of(network(rate=0.0)), images)
    with pytest.raises(ConfidenceError, match="passes is 1; expected at least 2"):
        mc_dropout_passes(classifier_of(network()), images, passes=1)
    with pytest.raises(ConfidenceError, match=r"cannot be looked into; load a torch module"):
        mc_dropout_passes(lambda batch: np.full((len(batch), 2), 0.5), images)
    with pytest.raises(
        ConfidenceError, match=r"shape \[3, 39, 6\]; expected \[at least 2 passes, 40 images, 6 classes\]"
    ):
        confidence(preds, "mc-dropout", passes=good[:, :39])
    with pytest.raises(PredictionsError, match="do not sum to 1"):
        confidence(preds, "mc-dropout", passes=good * 2)
    with pytest.raises(ConfidenceError, match="statistic is 'median'"):
        confidence(preds, "mc-dropout", passes=good, statistic="median")


def test_embeddings_are_what_the_layer_gives(images: Array) -> None:
    module = network().eval()
    classifier = classifier_of(module)
    inputs = torch.from_numpy(classifier.preprocessing.normalize(images))
    with torch.no_grad():
        expected = module[:3](inputs).flatten(start_dim=1).numpy()
    got = embeddings(classifier, images, layer="2", batch_size=3)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert not module[2]._forward_hooks


def test_an_unknown_layer_is_named_with_those_there_are(images: Array) -> None:
    with pytest.raises(ConfidenceError, match="has no layer 'conv'; it has: 0, 1, 2, 3, 4, 5"):
        embeddings(classifier_of(network()), images, layer="conv")


def test_density_share_written_out() -> None:
    distances = np.array([[0.0, 1.0, 2.0], [800.0, 801.0, 900.0]])
    labels = np.array([[1, 0, 1], [2, 1, 2]])
    near, middle, far = np.exp([0.0, -1.0, -2.0])
    shares = density_share(distances, labels, np.array([[1], [1]]))
    np.testing.assert_allclose(shares, [(near + far) / (near + middle + far), middle / (near + middle)])
    np.testing.assert_allclose(density_share(distances, labels, np.array([[0, 1], [0, 2]]))[0], 1)


def test_distance_against_all_pairs(predictions: Maker) -> None:
    preds = predictions()
    generator = np.random.default_rng(0)
    here, there, labels = generator.normal(size=(40, 3)), generator.normal(size=(90, 3)), generator.integers(0, 6, 90)
    expected = []
    for row, predicted in zip(here, preds.predicted(predict_from="views"), strict=True):
        apart = np.sqrt(((there - row) ** 2).sum(axis=1))
        nearest = np.argsort(apart)[:11]
        weights = np.exp(-apart[nearest])
        expected.append(weights[labels[nearest] == predicted].sum() / weights.sum())
    options: dict[str, Any] = {"embeddings": here, "train_embeddings": there, "train_labels": labels}
    np.testing.assert_allclose(confidence(preds, "distance", predict_from="views", neighbors=11, **options), expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"embeddings": np.ones((39, 2))}, r"embeddings= is float64 \[39, 2\]; expected floating-point \[40, E\]"),
        ({"embeddings": np.full((40, 2), np.nan)}, "NaN or infinite values, first in row 0"),
        ({"train_embeddings": np.ones((60, 3))}, "do not fit"),
        ({"train_labels": np.zeros(60)}, "do not fit"),
        ({"neighbors": 61}, "neighbors is 61; expected 1 to 60"),
    ],
)
def test_distance_mistakes(predictions: Maker, change: dict[str, Any], says: str) -> None:
    good = {
        "embeddings": np.ones((40, 2)),
        "train_embeddings": np.ones((60, 2)),
        "train_labels": np.zeros(60, dtype=int),
    }
    with pytest.raises(ConfidenceError, match=says):
        confidence(predictions(), "distance", **{**good, **change})
