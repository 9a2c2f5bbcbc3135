"""Estimates of accuracy and risk without labels, against transparent versions."""

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.monitoring import AccuracyEstimate, Monitor
from secondlook.monitoring.estimates import AccuracyEstimator, compute_expected_accuracy, compute_threshold_weights
from secondlook.policies import Policy, Reference, ShiftModel
from tests.monitoring import streams

THRESHOLD = 0.7


def draw_images(n_images: int, seed: int, *, skill: float = 3.0) -> tuple[Float64Array, BoolArray]:
    """Return confidences, and which images are correct: more often where the confidence is larger."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(skill, 1, n_images)
    return confidence, rng.random(n_images) < confidence


def make_policy(shifts: ShiftModel | None = None, *, labeled: bool = True) -> Policy:
    """Return what an estimator needs of a policy that was calibrated on 4,000 images."""
    confidence, correct = draw_images(4000, 0)
    reference = Reference.make(confidence, confidence, None, ~correct if labeled else None)
    calibration = SimpleNamespace(images=4000, accepted=int(np.sum(confidence >= THRESHOLD)))
    return cast(Policy, SimpleNamespace(reference=reference, shifts=shifts, calibration=calibration))


def make_shift_model(**changes: Any) -> ShiftModel:
    content = {
        "images": 500,
        "class_shares": [0.5, 0.3, 0.2],
        "accuracy": {"clean": 1.1, "constant": 0.1, "slope": 1.2, "class_weight": -2.0, "error": 0.2},
        "risk": {"constant": 1.0, "slope": 1.5, "error": 0.3},
        "shifts": [{"kind": "blur", "views": ["blur:1"], "accuracy": [0.8], "estimate": [0.7]}],
    }
    return ShiftModel.model_validate(content).model_copy(update=changes)


def estimate(policy: Policy, confidence: Float64Array, predicted: IntArray) -> AccuracyEstimate:
    estimator = AccuracyEstimator(policy)
    features, accept = estimator.features(confidence, predicted), confidence >= THRESHOLD
    return estimator.estimate(
        len(features), features.sum(axis=0), int(accept.sum()), features[accept].sum(axis=0).tolist()
    )


def bounds(found: AccuracyEstimate, name: str) -> tuple[float, float]:
    return getattr(found, f"{name}_low"), getattr(found, f"{name}_high")


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(lambda counts: sum(counts) > 0),
    rate=st.floats(0, 1),
)
def test_as_many_calibration_images_are_above_the_threshold_as_are_correct(counts: list[int], rate: float) -> None:
    errors = [int(rate * count) for count in counts]
    histogram = SimpleNamespace(counts=tuple(counts))
    weights = compute_threshold_weights(cast(Reference, SimpleNamespace(confidence=histogram, errors=tuple(errors))))
    assert np.dot(weights, counts) == pytest.approx(sum(counts) - sum(errors))
    filled = [weight for weight, count in zip(weights, counts, strict=True) if count]
    assert sorted(filled) == filled, "higher bins count first"
    assert sum(0 < weight < 1 for weight in filled) <= 1


def test_accuracy_without_shifts_is_that_of_a_threshold_on_confidence() -> None:
    policy = make_policy()
    clean, correct = draw_images(4000, 0)
    threshold = np.quantile(clean, 1 - correct.mean())
    for skill in (3.0, 1.5, 0.8):
        confidence, _ = draw_images(3000, 5, skill=skill)
        found = estimate(policy, confidence, np.zeros(3000, np.int64))
        # Bins hold 32 images each, and their edges come from other images than the counts.
        assert found.accuracy == pytest.approx(np.mean(confidence >= threshold), abs=0.02)


def test_risk_without_shifts_is_the_error_rate_of_calibration_images_of_equal_confidence() -> None:
    policy = make_policy()
    reference = policy.reference
    assert reference is not None
    assert reference.errors is not None
    confidence, _ = draw_images(500, 3, skill=1.5)
    overall = sum(reference.errors) / reference.images
    rates = []
    for value in confidence[confidence >= THRESHOLD]:
        place = sum(bool(value >= edge) for edge in reference.confidence.edges)
        rates.append((reference.errors[place] + overall) / (reference.confidence.counts[place] + 1))
    found = estimate(policy, confidence, np.zeros(500, np.int64))
    assert found.risk == pytest.approx(np.mean(rates))
    assert compute_expected_accuracy(reference).shape == (len(reference.confidence.counts),)


def test_intervals_without_shifts_hold_the_truth_of_like_images() -> None:
    policy, hits, risk_hits = make_policy(), 0, 0
    for seed in range(100, 300):
        confidence, correct = draw_images(300, seed)
        found, accept = estimate(policy, confidence, np.zeros(300, np.int64)), confidence >= THRESHOLD
        hits += bounds(found, "accuracy")[0] <= correct.mean() <= bounds(found, "accuracy")[1]
        risk_hits += bounds(found, "risk")[0] <= float(np.mean(~correct[accept])) <= bounds(found, "risk")[1]
    assert hits >= 0.85 * 200
    assert risk_hits >= 0.85 * 200


def test_estimate_with_shifts_follows_its_formula() -> None:
    policy = make_policy(make_shift_model())
    confidence, _ = draw_images(200, 7, skill=1.0)
    predicted = np.random.default_rng(1).choice(3, 200, p=[0.1, 0.1, 0.8])
    assert policy.reference is not None
    expected = np.mean(compute_expected_accuracy(policy.reference)[policy.reference.confidence.find_bins(confidence)])
    shares = [float(np.mean(predicted == one)) for one in range(3)]
    # Of two images of the sample, drawn without replacement, the share with equal classes is free of bias.
    agreeing = np.mean([predicted[i] == predicted[j] for i in range(200) for j in range(200) if i != j])
    squared = agreeing * 199 / 200 + 1 / 200 - (1 - sum(share**2 for share in shares)) / 200
    squared += sum(one**2 for one in (0.5, 0.3, 0.2)) - 2 * np.dot(shares, (0.5, 0.3, 0.2))
    odds = math.log(expected / (1 - expected))
    value = 0.1 + 1.2 * odds - 2.0 * math.sqrt(squared) * (1.1 - odds)
    error = 0.2 * (1 + max(0.1 + 1.2 * 1.1 - value, 0))
    accuracy, low = 1 / (1 + math.exp(-value)), 1 / (1 + math.exp(error - value))
    found = estimate(policy, confidence, predicted)
    assert found.accuracy == pytest.approx(accuracy)
    share = (200 * accuracy + 1) / 202
    sampling = 1.6448536 * math.sqrt(share * (1 - share) / 200)
    assert found.accuracy_low == pytest.approx(accuracy - math.sqrt((accuracy - low) ** 2 + sampling**2))
    right = 1.0 + 1.5 * value
    assert found.risk == pytest.approx(1 / (1 + math.exp(right)))
    assert bounds(found, "risk")[0] < 1 / (1 + math.exp(right)) < bounds(found, "risk")[1]


def test_of_several_predicted_classes_the_first_counts() -> None:
    policy = make_policy(make_shift_model())
    confidence, _ = draw_images(50, 1)
    first = np.random.default_rng(0).integers(0, 3, 50)
    pairs = np.stack([first, (first + 1) % 3], axis=1)
    assert estimate(policy, confidence, pairs) == estimate(policy, confidence, first)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(0, 10**6),
    st.floats(0.3, 10),
    st.sampled_from([None, make_shift_model(), make_shift_model(risk=None)]),
)
def test_intervals_hold_the_estimate_and_lie_within_0_and_1(
    n_images: int, seed: int, skill: float, shifts: ShiftModel | None
) -> None:
    confidence, _ = draw_images(n_images, seed, skill=skill)
    predicted = np.random.default_rng(seed).integers(0, 3, n_images)
    found = estimate(make_policy(shifts), confidence, predicted)
    low, high = bounds(found, "accuracy")
    assert 0 <= low <= (found.accuracy or 0) <= high <= 1
    has_risk = bool((confidence >= THRESHOLD).any()) and (shifts is None or shifts.risk is not None)
    assert (found.risk is not None) == has_risk
    if found.risk is not None:
        assert 0 <= bounds(found, "risk")[0] <= found.risk <= bounds(found, "risk")[1] <= 1


def test_more_images_make_the_interval_narrower() -> None:
    widths = []
    for n_images in (50, 500, 5000):
        confidence, _ = draw_images(n_images, 4)
        found = estimate(make_policy(), confidence, np.zeros(n_images, np.int64))
        assert not found.includes_shifts
        widths.append(np.ptp(bounds(found, "accuracy")))
    assert widths[0] > 2 * widths[1] > 2 * widths[2]


def test_nothing_is_estimated_without_labels_or_images() -> None:
    confidence, _ = draw_images(30, 0)
    assert estimate(make_policy(labeled=False), confidence, np.zeros(30, np.int64)) == AccuracyEstimate()
    assert estimate(make_policy(), confidence[:0], np.zeros(0, np.int64)) == AccuracyEstimate()


def test_monitor_says_what_the_interval_includes() -> None:
    plain, rows = streams.make_policy(), streams.make_rows(300)
    learned = plain.model_copy(update={"shifts": make_shift_model(class_shares=(0.25,) * 4)})
    before, after = (Monitor(policy).update(rows) for policy in (plain, learned))
    assert "sampling only" in str(before)
    assert "sampling only" not in str(after)
    assert before.to_dict()["estimate"]["includes_shifts"] is False
    assert after.to_dict()["estimate"]["includes_shifts"] is True
    for status in (before, after):
        assert "estimate, not guarantee" in str(status)


def test_features_of_an_image_do_not_depend_on_the_others() -> None:
    estimator = AccuracyEstimator(make_policy(make_shift_model()))
    confidence, _ = draw_images(20, 3)
    predicted = np.arange(20) % 7
    whole = estimator.features(confidence, predicted)
    parts = [estimator.features(confidence[place : place + 1], predicted[place : place + 1]) for place in range(20)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
