"""Class mass, resampling, the ranking BS(D) against a plain reference, percentile intervals, and disagreement."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import ConfidenceError
from secondlook.estimators import bootstrap as bootstrap_module
from secondlook.estimators import (
    compile_method,
    compute_look_statistics,
    confidence,
    confidence_interval,
)
from secondlook.estimators.bootstrap import (
    BLOCK_BYTES,
    bootstrap_confidences,
    default_resamples,
    plurality_confidence,
    plurality_order,
    view_resampling_counts,
)
from secondlook.estimators.probability_mass import other_class_mass, predicted_class_mass
from secondlook.predictions import Predictions
from tests.estimators.conftest import make_predictions


def list_views(n_views: int) -> list[str]:
    return ["identity", *(f"shift:{step},0" for step in range(1, n_views))]


@pytest.mark.parametrize(
    ("views", "members", "expected"),
    [(2, 1, 100), (10, 1, 100), (11, 1, 352), (12, 1, 1000), (500, 1, 1000), (1, 5, 500), (6, 2, 1352), (34, 5, 5000)],
)
def test_the_default_number_of_resamples_follows_the_paper(views: int, members: int, expected: int) -> None:
    assert default_resamples(views, members) == expected


def test_counts_are_seeded_and_sum_to_the_number_of_outputs() -> None:
    counts = view_resampling_counts(13, 1000, seed=3)
    assert counts.shape == (13, 1000)
    assert (counts.sum(axis=0) == 13).all()
    np.testing.assert_array_equal(counts, view_resampling_counts(13, 1000, seed=3))
    assert not np.array_equal(counts, view_resampling_counts(13, 1000, seed=4))
    np.testing.assert_allclose(counts.mean(axis=1), 1, atol=0.2)


@pytest.mark.parametrize("kind", [{}, {"members": 3}, {"logits": False}])
@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("top_k", [1, 2])
def test_class_mass_of_views_and_members(kind: dict[str, Any], predict_from: Any, top_k: int) -> None:
    preds = make_predictions(**kind)
    members = preds.members or (preds,)
    outputs = np.concatenate([np.concatenate([b for _, b in member.blocks()]) for member in members], axis=1)
    classes = preds.predicted(predict_from=predict_from, top_k=top_k).reshape(-1, top_k)
    expected = [[row[chosen].sum() for row in image] for image, chosen in zip(outputs, classes, strict=True)]
    np.testing.assert_allclose(predicted_class_mass(preds, predict_from, top_k), expected, rtol=1e-12)
    np.testing.assert_allclose(other_class_mass(preds, predict_from, top_k), 1 - np.array(expected), atol=1e-12)


def test_blocks_of_bootstrapped_confidences_are_bounded_in_size() -> None:
    preds = make_predictions(n=300)
    sizes = [block.nbytes for _, block in bootstrap_confidences(preds, compile_method("mean"), 20_000)]
    assert len(sizes) > 1
    assert max(sizes) <= BLOCK_BYTES


@pytest.mark.parametrize("members", [0, 2])
def test_the_interval_holds_the_confidence(members: int) -> None:
    preds = make_predictions(members=members)
    options: dict[str, Any] = {"predict_from": "views", "top_k": 2}
    low, high = confidence_interval(preds, 0.8, "mean", seed=1, **options)
    assert (low < high).all()
    middle = confidence(preds, "mean", **options)
    assert ((low <= middle) & (middle <= high)).all()


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_bootstrap_ranks_by_the_other_class_mass(members: int, predict_from: Any) -> None:
    preds = make_predictions(members=members)
    counts = view_resampling_counts(4 * max(members, 1), default_resamples(4, max(members, 1)), seed=2)
    order = plurality_order(other_class_mass(preds, predict_from, 1), counts)
    values = confidence(preds, "bootstrap", seed=2, predict_from=predict_from)
    np.testing.assert_array_equal(np.argsort(-values), order)
    np.testing.assert_allclose(np.sort(values), np.linspace(0, 1, preds.n_images))


def test_bootstrap_ranks_like_the_mean_if_views_agree_and_a_single_image_at_the_top() -> None:
    generator = np.random.default_rng(0)
    confidences = generator.uniform(0.6, 1, 50)
    views = confidences[:, None] + generator.normal(scale=1e-6, size=(50, 5))
    preds = Predictions(probabilities=np.stack([views, 1 - views], axis=2).clip(0, 1), views=list_views(5))
    order = np.argsort(confidence(preds, "mean"))
    assert np.array_equal(np.argsort(confidence(preds, "bootstrap")), order)
    one = make_predictions(n=1)
    assert confidence(one, "bootstrap").tolist() == [1.0]


DISTRIBUTIONS: dict[str, tuple[Callable[..., Array], float]] = {
    "uniform": (lambda g, shape: g.uniform(0.5, 1, shape), 0.75),
    "beta(2, 5)": (lambda g, shape: 0.5 + 0.5 * g.beta(2, 5, shape), 0.5 + 0.5 * 2 / 7),
    "beta(5, 2)": (lambda g, shape: 0.5 + 0.5 * g.beta(5, 2, shape), 0.5 + 0.5 * 5 / 7),
    "two values": (lambda g, shape: g.choice([0.6, 0.9], shape), 0.75),
}


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@pytest.mark.parametrize(("n_views", "at_least"), [(20, 0.90), (40, 0.93)])
def test_the_interval_covers_the_true_mean_of_independent_views(name: str, n_views: int, at_least: float) -> None:
    draw, true_mean = DISTRIBUTIONS[name]
    mass = draw(np.random.default_rng(0), (3000, n_views))
    preds = Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views=list_views(n_views))
    low, high = confidence_interval(preds, 0.95, "mean")
    assert ((low <= true_mean) & (true_mean <= high)).mean() >= at_least


@pytest.mark.parametrize("n_views", [2, 7, 13, 17, 24, 35, 40, 44])
def test_the_interval_of_equal_views_is_a_point_and_exactly_one_if_certain(n_views: int) -> None:
    views = list_views(n_views)
    for n_images in (1, 5, 2098):
        certain = np.zeros((n_images, n_views, 2), dtype=np.float32)
        certain[..., 0] = 1
        low, high = confidence_interval(Predictions(probabilities=certain, views=views), method="mean")
        assert (low == 1).all()
        assert (high == 1).all()
    equal = Predictions(probabilities=np.tile([0.7, 0.3], (2, n_views, 1)), views=views)
    np.testing.assert_allclose(confidence_interval(equal, method="mean"), 0.7)


def test_images_with_equal_outputs_share_their_rank() -> None:
    outputs = np.random.default_rng(0).dirichlet(np.ones(3), size=(20, 4))
    outputs[[3, 7, 8]] = outputs[3]
    outputs[[11, 12]] = outputs[11]
    views = "identity hflip shift:1,0 shift:0,1"
    ranks = confidence(Predictions(probabilities=outputs, views=views), "bootstrap")
    assert len(set(ranks[[3, 7, 8]])) == 1
    assert len(set(ranks[[11, 12]])) == 1
    assert len(set(ranks)) == 17
    order = np.random.default_rng(1).permutation(20)
    reordered = Predictions(probabilities=outputs[order], views=views)
    np.testing.assert_allclose(confidence(reordered, "bootstrap"), ranks[order], atol=1e-12)
    same = Predictions(probabilities=np.full((6, 4, 3), 1 / 3), views=views)
    assert confidence(same, "bootstrap").tolist() == [0.5] * 6


def reference_order(resampled: Array, window: int) -> list[int]:
    """Follow the steps of the paper. [N, B] -> images, the most confident first"""
    entries = [(value, image) for image, row in enumerate(resampled.tolist()) for value in row]
    images = [image for _, image in sorted(entries)]
    order = []
    while images:
        in_window = images[:window]
        most_frequent = max(dict.fromkeys(in_window), key=in_window.count)
        order.append(most_frequent)
        images = [image for image in images if image != most_frequent]
    return order


def resample(other_mass: Array, counts: Array) -> Array:
    sums = np.zeros((len(other_mass), counts.shape[1]))
    for view in range(len(counts)):
        sums += other_mass[:, view : view + 1] * counts[view]
    return sums.astype(np.float32)


@st.composite
def ranking_problems(draw: st.DrawFn) -> tuple[Array, int]:
    """Draw few distinct values, so that most entries tie, and windows below, at and above the resamples."""
    n, b = draw(st.integers(1, 25)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.integers(0, draw(st.sampled_from([1, 2, 4, 1000])), (n, b)).astype(float)
    window = draw(st.sampled_from([1, max(1, b // 2), b, b + 1, 3 * b, n * b, 2 * n * b]))
    return values, window


@settings(deadline=None, max_examples=300)
@given(ranking_problems())
def test_the_order_equals_the_reference(problem: tuple[Array, int]) -> None:
    other_mass, window = problem
    order = plurality_order(other_mass, np.eye(other_mass.shape[1]), window)
    assert order.tolist() == reference_order(other_mass, window)


@pytest.mark.parametrize("images_per_stage", [1, 7, 50, 1000])
@pytest.mark.parametrize("window", [1, 40, 200])
def test_order_is_that_of_any_stages(images_per_stage: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap_module, "MIN_IMAGES_PER_STAGE", images_per_stage)
    monkeypatch.setattr(bootstrap_module, "PRODUCT_SIZE", images_per_stage * 5 * 40)
    generator = np.random.default_rng(5)
    other_mass = generator.random((60, 5)) ** 8
    other_mass[10:20] = other_mass[30:40]
    counts = generator.multinomial(5, np.full(5, 0.2), size=40).T
    expected = reference_order(resample(other_mass, counts), window)
    assert plurality_order(other_mass, counts, window).tolist() == expected


RANDOM = np.random.default_rng(1)
HALFWAY = RANDOM.random((80, 6)).astype(np.float32).astype(np.float64)
HALFWAY[:, 5] = 2.0**-25 * (1 + 2.0**-20)


@pytest.mark.parametrize(
    ("other_mass", "counts"),
    [
        (np.zeros((5, 3)), np.ones((3, 7))),
        (np.array([[0.5, 0.2]]), np.ones((2, 10))),
        (np.array([[3.0], [1.0], [2.0]]), np.ones((1, 1))),
        (np.empty((0, 2)), np.ones((2, 3))),
        (np.array([[3e-30], [1e-30], [2e-30]]), np.ones((1, 4))),
        (1 + RANDOM.random((300, 20)) * 1e-3, np.eye(20)),  # values that differ in their last bits
        # Sums halfway between two float32: a matrix product may add in another order, and round to the other side.
        (HALFWAY, RANDOM.multinomial(6, np.full(6, 1 / 6), size=50).T),
    ],
)
def test_edge_cases_equal_the_reference(other_mass: Array, counts: Array) -> None:
    expected = reference_order(resample(other_mass, counts), counts.shape[1])
    assert plurality_order(other_mass, counts).tolist() == expected


def test_confidences_are_evenly_spaced_from_one_to_zero_and_invalid_arrays_rejected() -> None:
    order = np.array([[2.0], [3.0], [1.0]])
    assert plurality_confidence(order, np.ones((1, 4))).tolist() == [0.5, 0.0, 1.0]
    assert plurality_confidence(order[:1], np.ones((1, 4))).tolist() == [1.0]
    ones, one_draw = np.ones((2, 3)), np.ones((3, 1))
    for other_mass, counts, offending in (
        (ones, ones, "[2, 3]"),
        (np.ones(3), one_draw, "[3]"),
        (ones, np.ones((3, 0)), "[3, 0]"),
        *((ones * value, one_draw, told) for value, told in ((np.nan, "NaN"), (-1, "negative"), (np.inf, "infinite"))),
    ):
        with pytest.raises(ConfidenceError, match=re.escape(offending)):
            plurality_order(other_mass, counts)
    with pytest.raises(ConfidenceError, match="window=0"):
        plurality_order(ones, one_draw, 0)


@given(n_views=st.integers(2, 5), n_images=st.integers(1, 6), seed=st.integers(0, 1000), top_k=st.sampled_from([1, 2]))
@settings(max_examples=40)
def test_looks_disagree_by_the_distance_from_their_mean(n_views: int, n_images: int, seed: int, top_k: int) -> None:
    probabilities = np.random.default_rng(seed).dirichlet(np.full(4, 0.5), size=(n_images, n_views))
    probabilities[0] = probabilities[0, 0]  # equal views agree
    preds = Predictions(probabilities=probabilities, views=list_views(n_views))
    first_look, disagreement = compute_look_statistics(preds, top_k)
    assert first_look.tolist() == confidence(preds, "msr", top_k=top_k).tolist()
    assert disagreement[0] <= (0 if n_views == 2 else 1e-15)
    for found, outputs in zip(disagreement, preds.probabilities.astype(np.float64), strict=True):
        mean = [sum(output[label] for output in outputs) / n_views for label in range(4)]
        distances = [sum(max(output[label] - mean[label], 0) for label in range(4)) for output in outputs]
        assert found == pytest.approx(sum(distances) / n_views, abs=1e-6)
    assert np.isnan(compute_look_statistics(preds.select(views="identity")).disagreement).all()


def test_members_of_an_ensemble_disagree_too() -> None:
    members = [Predictions(probabilities=np.array([[row]]), views=["identity"]) for row in ([1.0, 0.0], [0.0, 1.0])]
    first_look, disagreement = compute_look_statistics(Predictions(members=members, views=["identity"]))
    assert (first_look.tolist(), disagreement.tolist()) == ([0.5], [0.5])
