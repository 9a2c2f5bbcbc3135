"""`blend`, `learned` and `gen`: against loops over images and views, and the interval of the same confidence."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from secondlook.arrays import Array, softmax
from secondlook.errors import ConfidenceError
from secondlook.estimators import METHODS, confidence, confidence_interval, fit_method
from secondlook.estimators import bootstrap as bootstrap_module
from secondlook.estimators.bootstrap import default_resamples, view_resampling_counts
from secondlook.predictions import Predictions, batching
from secondlook.views import ViewSet
from tests.estimators.conftest import LEARNED_WEIGHTS, make_predictions

KINDS: list[dict[str, Any]] = [{}, {"members": 3}, {"logits": False}, {"logits": False, "members": 2}, {"c": 130}]
MEANS: list[tuple[str, dict[str, Any]]] = [("mean", {}), ("blend", {}), ("learned", LEARNED_WEIGHTS), ("gen", {})]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def compute_features(outputs: Array, classes: list[int], drawn: list[int], n_views: int) -> dict[str, float]:
    """Return the features of one image from its outputs [members * V, C], of which only the `drawn` are averaged."""
    masses, others, log_margins, margins, normalized, gens = [], [], [], [], [], []
    for output in outputs:
        rest = np.delete(output, classes)
        own = sum(output[c] for c in classes)
        logs = np.log(output) - np.log(output).mean()
        masses.append(own)
        others.append(rest.sum())
        log_margins.append(math.log(own) - math.log(rest.max()))
        margins.append(own - rest.max())
        normalized.append(sum(logs[c] for c in classes) / np.linalg.norm(logs))
        gens.append(1 - np.mean([(p * (1 - p)) ** 0.1 for p in sorted(output, reverse=True)[:100]]))

    def mean(values: list[float], over: list[int]) -> float:
        return sum(values[index] for index in over) / len(over)

    image_itself = list(range(0, len(outputs), n_views))
    return {
        "log_odds": math.log(mean(masses, drawn) / mean(others, drawn)),
        "log_margin": mean(log_margins, drawn),
        "margin": mean(margins, drawn),
        "logit_norm": mean(normalized, drawn),
        "gen": mean(gens, drawn),
        "image_log_odds": math.log(mean(masses, image_itself) / mean(others, image_itself)),
    }


def combine(method: str, features: dict[str, float]) -> float:
    if method == "mean":
        return sigmoid(features["log_odds"])
    if method == "blend":
        return sigmoid((features["log_odds"] + features["log_margin"]) / 2)
    if method == "gen":
        return features["gen"]
    weighted = (weight * features.get(name, 1.0) for name, weight in LEARNED_WEIGHTS.items())  # 1 is the intercept's
    return sigmoid(sum(weighted))


def list_outputs(preds: Predictions) -> Array:
    """Return the outputs of all members and views, member by member. [N, members * V, C]"""
    members = preds.members or (preds,)
    return np.concatenate([np.concatenate([block for _, block in one.blocks(rows=7)]) for one in members], axis=1)


def list_features(preds: Predictions, predict_from: Any, top_k: int) -> list[dict[str, float]]:
    outputs = list_outputs(preds)
    classes = preds.predicted(predict_from, top_k).reshape(-1, top_k).tolist()
    everything = list(range(outputs.shape[1]))
    return [
        compute_features(image, chosen, everything, preds.n_views)
        for image, chosen in zip(outputs, classes, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("top_k", [1, 2])
def test_confidences_are_those_of_a_loop_over_images_and_views(
    kind: dict[str, Any], predict_from: Any, top_k: int
) -> None:
    preds = make_predictions(**kind)
    features = list_features(preds, predict_from, top_k)
    for method, options in MEANS:
        found = confidence(preds, method, predict_from=predict_from, top_k=top_k, **options)
        np.testing.assert_allclose(found, [combine(method, one) for one in features], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("predict_from", "top_k"), [("image", 1), ("views", 2)])
@pytest.mark.parametrize(("method", "options"), MEANS)
def test_intervals_are_percentiles_of_the_same_confidence_of_resampled_views(
    kind: dict[str, Any], predict_from: Any, top_k: int, method: str, options: dict[str, Any]
) -> None:
    preds = make_predictions(n=6, **kind)
    outputs = list_outputs(preds)
    counts = view_resampling_counts(preds.n_outputs, 50, seed=4)
    draws = [np.repeat(np.arange(preds.n_outputs), counts[:, b]).tolist() for b in range(50)]
    classes = preds.predicted(predict_from, top_k).reshape(-1, top_k).tolist()
    expected = [
        [combine(method, compute_features(image, chosen, drawn, preds.n_views)) for drawn in draws]
        for image, chosen in zip(outputs, classes, strict=True)
    ]
    given = {**options, "predict_from": predict_from, "top_k": top_k}
    ends = confidence_interval(preds, 0.8, method, seed=4, resamples=50, **given)
    np.testing.assert_allclose(ends, np.percentile(expected, [10, 90], axis=1), rtol=1e-6)


def test_the_interval_of_the_mean_is_that_of_its_options_and_of_any_other_method() -> None:
    preds = make_predictions(n=8, v=6)
    scaled = Predictions(logits=preds.logits / np.float32(2), views=preds.views)
    softened = confidence_interval(preds, method="mean?temperature=2")
    np.testing.assert_allclose(softened, confidence_interval(scaled, method="mean"), rtol=1e-5)
    three = ["identity", "hflip", "shift:1,0"]
    selected = confidence_interval(preds.select(views=three), method="mean")
    np.testing.assert_array_equal(confidence_interval(preds, method="mean", views=three), selected)
    ensemble = make_predictions(n=8, v=6, members=2)
    averaged = Predictions(probabilities=ensemble.probabilities.astype(np.float64), views=ensemble.views)
    found, expected = (confidence_interval(one, method="mean", temperature=2.0) for one in (ensemble, averaged))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert default_resamples(6, 2) != default_resamples(6)
    for method in ("msr", "bootstrap", "max-logit-pnorm?p=2", "zero?share=0.5"):
        found = confidence_interval(preds, 0.9, method)
        np.testing.assert_array_equal(found, confidence_interval(preds, 0.9, "mean"))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 8), top_k=st.sampled_from([1, 2]))
def test_with_one_view_blend_rises_with_the_logit_of_the_class(seed: int, scale: float, top_k: int) -> None:
    logits = scale * np.random.default_rng(seed).normal(size=5)
    logits[2] = logits.max() + 0.01
    rising = np.tile(logits, (8, 1, 1))
    rising[:, 0, 2] += np.linspace(0, 10, 8)
    values = confidence(Predictions(logits=rising, views="identity"), "blend", top_k=top_k)
    assert (np.diff(values) > 0).all()
    assert ((values > 0) & (values < 1)).all()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 12))
def test_logits_and_their_float32_probabilities_have_the_same_confidence(seed: int, scale: float) -> None:
    logits = (scale * np.random.default_rng(seed).normal(size=(10, 4, 5))).astype(np.float32)
    views = "identity hflip shift:1,0 shift:0,1"
    from_logits = Predictions(logits=logits, views=views)
    stored = Predictions(probabilities=softmax(logits).astype(np.float32), views=views)
    for method, options in MEANS[:3]:  # what float32 rounds near 1 matters to 'gen'
        found, expected = (confidence(one, method, **options) for one in (stored, from_logits))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_other_views_does_not_matter(seed: int) -> None:
    generator = np.random.default_rng(seed)
    preds = Predictions(logits=3 * generator.normal(size=(10, 13, 4)), views=ViewSet("cifar10"))
    texts = preds.views.texts
    shuffled = preds.select(views=["identity", *generator.permutation(np.array(texts[1:])).tolist()])
    for method, options in MEANS:
        np.testing.assert_allclose(confidence(shuffled, method, **options), confidence(preds, method, **options))


@pytest.mark.parametrize(("method", "options"), MEANS)
@pytest.mark.parametrize("n_members", [1, 9])
@pytest.mark.parametrize("n_views", [1, 5, 13])
def test_an_image_has_the_same_bits_alone_and_among_others(
    method: str, options: dict[str, Any], n_members: int, n_views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    views = ["identity", *(f"shift:{step},0" for step in range(1, n_views))]
    tables = [Predictions(logits=4 * generator.normal(size=(30, n_views, 7)), views=views) for _ in range(n_members)]
    preds = tables[0] if n_members == 1 else Predictions(members=tables, views=tables[0].views)

    def compute(one: Predictions) -> list[Array]:
        values = [confidence(one, method, **options)]
        return values if one.n_outputs < 2 else [*values, *confidence_interval(one, 0.9, method, **options)]

    together = compute(preds)
    alone = [np.array(compute(preds.select(images=[image])))[:, 0] for image in range(30)]
    np.testing.assert_array_equal(np.transpose(together), alone)
    monkeypatch.setattr(bootstrap_module, "BLOCK_BYTES", 8 * 6 * 1000 * n_members * 7)  # seven images at a time
    monkeypatch.setattr(batching, "_BLOCK_BYTES", 8 * n_views * 7 * 16)  # blocks of sixteen images
    assert len(list(preds.blocks())) == 2
    np.testing.assert_array_equal(compute(preds), together)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_certain_and_impossible_classes_have_finite_confidences(dtype: Any, top_k: int) -> None:
    outputs = np.zeros((3, 2, 3), dtype=dtype)
    outputs[:, :, 0] = 1.0
    outputs[1, 1] = [0, 1, 0]  # the predicted class is impossible in this view
    outputs[2] = 1 / 3
    views = ["identity", "hflip"]
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(outputs.astype(np.float64)), -1e5)
    for preds in (Predictions(probabilities=outputs, views=views), Predictions(logits=logits, views=views)):
        for method, options in MEANS[1:]:
            values = confidence(preds, method, top_k=top_k, **options)
            low, high = confidence_interval(preds, 0.9, method, top_k=top_k, **options)
            assert np.isfinite([values, low, high]).all()
            if top_k == 1 and method == "blend":
                np.testing.assert_allclose(values, [1, 0.5, math.sqrt(2) - 1], rtol=1e-6)
                assert low[1] < 0.01 < 0.99 < high[1]


def test_log_odds_are_precise_where_the_probability_is_one() -> None:
    leads = np.linspace(20, 300, 15)
    logits = np.zeros((15, 2, 3))
    logits[:, :, 0] = leads[:, None]
    weights: dict[str, Any] = {**dict.fromkeys(LEARNED_WEIGHTS, 0.0), "log_odds": 0.01}
    values = confidence(Predictions(logits=logits, views=["identity", "hflip"]), "learned", **weights)
    np.testing.assert_allclose(values, [sigmoid(0.01 * (lead - math.log(2))) for lead in leads])


def make_labeled(n: int = 1500, seed: int = 0, classes: int = 6) -> Predictions:
    """Return predictions whose labels are drawn from the probabilities of the first view."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, 4, classes)) + 2 * generator.normal(size=(n, 1, classes))
    labels = (generator.random((n, 1)) > softmax(logits[:, 0]).cumsum(axis=1)).sum(axis=1).clip(0, classes - 1)
    return Predictions(logits=logits, views="identity hflip shift:1,0 shift:0,1", labels=labels)


@pytest.mark.parametrize(("predict_from", "top_k"), [("image", 1), ("views", 1), ("image", 2)])
def test_learned_weights_are_those_of_scikit_learn(predict_from: Any, top_k: int) -> None:
    preds = make_labeled()
    names = METHODS["learned"].fitted[1:]
    features = np.array([[one[name] for name in names] for one in list_features(preds, predict_from, top_k)])
    correct = preds.correct(predict_from, top_k)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000))
    pipeline.fit(features, correct)
    weights = fit_method(preds, "learned", predict_from=predict_from, top_k=top_k)
    assert tuple(weights) == METHODS["learned"].options == METHODS["learned"].fitted
    assert all(type(weight) is float for weight in weights.values())
    found = confidence(preds, "learned", predict_from=predict_from, top_k=top_k, **weights)
    np.testing.assert_allclose(found, pipeline.predict_proba(features)[:, 1], rtol=1e-4)


def test_learned_confidences_are_about_the_accuracy_on_other_images() -> None:
    weights = fit_method(make_labeled(seed=1), "learned")
    judged = make_labeled(n=6000, seed=2)
    values, correct = confidence(judged, "learned", **weights), judged.correct()
    assert abs(values.mean() - correct.mean()) < 0.03
    single = judged.select(views="identity")
    assert np.isfinite(confidence(single, "learned", **fit_method(single, "learned"))).all()
    fifths = np.array_split(np.argsort(values), 5)
    accuracy = np.array([correct[part].mean() for part in fifths])
    assert (np.diff(accuracy) > 0).all()
    np.testing.assert_allclose([values[part].mean() for part in fifths], accuracy, atol=0.1)


@pytest.mark.parametrize(
    ("n_images", "n_errors", "is_enough"),
    [(200, 20, True), (199, 50, False), (300, 19, False), (300, 281, False), (300, 280, True)],
)
def test_too_few_images_or_outcomes_are_refused(n_images: int, n_errors: int, is_enough: bool) -> None:
    logits = np.random.default_rng(0).normal(size=(n_images, 2, 3))
    labels = logits[:, 0].argmax(axis=1)
    labels[:n_errors] = (labels[:n_errors] + 1) % 3
    preds = Predictions(logits=logits, views="identity hflip", labels=labels)
    if is_enough:
        assert len(fit_method(preds, "learned")) == 6
        return
    with pytest.raises(ConfidenceError, match=rf"'learned'.*200.*{n_images} images with {n_errors} errors") as raised:
        fit_method(preds, "learned")
    assert "'blend'" in str(raised.value)
