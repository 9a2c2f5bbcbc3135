"""The reference of a policy: histograms of what its calibration images look like."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from secondlook import Predictions, certify
from secondlook.estimators import compute_look_statistics
from secondlook.policies import Reference, threshold_for
from secondlook.policies.reference import BinCounts


@given(values=st.lists(st.floats(-5, 5), min_size=10, max_size=300))
@settings(max_examples=50)
def test_every_value_is_counted_in_its_bin_once(values: list[float]) -> None:
    given = np.array(values)
    histogram = BinCounts.count(given)
    counted = [value for place, value in enumerate(values) if place % 5]
    inside = [
        sum(low <= value < high for value in counted)
        for low, high in zip([-np.inf, *histogram.edges], [*histogram.edges, np.inf], strict=True)
    ]
    assert list(histogram.counts) == inside
    assert histogram.find_bins(np.array(histogram.edges)).tolist() == list(range(1, len(histogram.edges) + 1))


def test_edges_are_quantiles_of_the_images_that_are_not_counted() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    histogram = BinCounts.count(values)
    changed = values.copy()
    changed[np.arange(5000) % 5 != 0] += 100
    assert BinCounts.count(changed).edges == histogram.edges
    assert len(histogram.edges) == 99
    assert np.std(histogram.counts) < 0.5 * np.mean(histogram.counts)


def test_values_near_one_are_told_apart() -> None:
    values = 1 - 10 ** -np.random.default_rng(0).uniform(0, 12, 5000)
    histogram = BinCounts.count(values)
    assert max(histogram.counts) < 3 * np.mean(histogram.counts)
    assert len(histogram.model_dump_json()) < 2000


def make_labeled(n_images: int = 500) -> Predictions:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, n_images)
    logits = rng.normal(size=(n_images, 4, 3)) + 3 * np.eye(3)[labels][:, None]
    return Predictions(logits=logits.astype(np.float32), labels=labels, views=["identity", "hflip", "vflip", "gamma:2"])


def test_certified_rule_knows_its_images() -> None:
    preds = make_labeled()
    rule = certify(preds, ["mean", "msr"], risk=0.2, delta=0.1)
    reference = rule.reference
    assert reference is not None
    assert (reference.images, reference.methods) == (400, 2)
    order = np.random.default_rng(0).permutation(500)
    counted = order[np.arange(500) % 5 != 0]
    wrong = ~preds.correct()[counted]
    confidence, disagreement = rule.confidence(preds)[counted], compute_look_statistics(preds).disagreement[counted]
    assert reference.errors is not None
    assert sum(reference.errors) == wrong.sum()
    assert np.bincount(reference.confidence.find_bins(confidence[wrong]), minlength=len(reference.errors)).tolist() == (
        list(reference.errors)
    )
    assert reference.disagreement is not None
    bins = reference.disagreement.find_bins(disagreement)
    assert np.bincount(bins, minlength=len(reference.disagreement.counts)).tolist() == list(
        reference.disagreement.counts
    )


def test_images_set_apart_and_duplicates_are_not_in_the_reference() -> None:
    preds = make_labeled()
    rule = certify(preds, "mean", risk=0.2, delta=0.1, tuning=np.arange(100), duplicates=preds.ids[100:200])
    assert rule.reference is not None
    assert rule.reference.images == 240


def test_one_view_has_no_disagreement() -> None:
    rule = threshold_for(make_labeled().select(views="identity"), "msr", coverage=0.5)
    assert rule.reference is not None
    assert rule.reference.disagreement is None
    assert rule.reference.first_look == rule.reference.confidence


def test_adaptive_rule_has_the_confidence_of_its_rows_and_no_disagreement() -> None:
    preds = make_labeled(1200)
    rule = certify(preds, "mean", risk=0.2, delta=0.1, adaptive=True)
    assert rule.reference is not None
    assert rule.reference.disagreement is None
    rows = rule.confidence(preds)
    accepted = sum(
        count
        for low, count in zip(
            [-np.inf, *rule.reference.confidence.edges], rule.reference.confidence.counts, strict=True
        )
        if low >= rule.threshold
    )
    assert accepted / rule.reference.images == pytest.approx((rows >= rule.threshold).mean(), abs=0.05)


def test_unlabeled_images_have_no_errors() -> None:
    logits = np.random.default_rng(2).normal(size=(50, 2, 3))
    rule = threshold_for(Predictions(logits=logits, views=["identity", "hflip"]), "mean", coverage=0.5)
    assert rule.reference is not None
    assert rule.reference.errors is None


def test_too_few_images_have_no_reference() -> None:
    rule = threshold_for(make_labeled(9), "mean", coverage=0.5)
    assert rule.reference is None


@pytest.mark.parametrize(
    "change",
    [
        {"images": 41},
        {"errors": (0,)},
        {"errors": "one more than images"},
        {"confidence": {"edges": (0.5, 0.4), "counts": (20, 10, 10)}},
        {"confidence": {"edges": (0.5,), "counts": (40,)}},
    ],
)
def test_inconsistent_reference_is_rejected(change: dict[str, object]) -> None:
    values = np.linspace(0, 1, 50)
    reference = Reference.make(values, values, None, values <= 0.3)
    content = reference.model_dump()
    if change.get("errors") == "one more than images":
        change = {"errors": tuple(count + 1 for count in reference.confidence.counts)}
    with pytest.raises(ValidationError):
        Reference.model_validate({**content, **change})
