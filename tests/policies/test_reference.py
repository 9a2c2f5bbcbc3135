"""What policies tell monitoring: histograms of their calibration images, and with which probability to audit."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from secondlook.errors import DecisionError
from secondlook.estimators import compute_look_statistics
from secondlook.policies import AuditPlan, Reference, certify, threshold_for
from secondlook.predictions import Predictions
from tests.policies.conftest import known


def count(values: np.ndarray) -> Any:
    """Return a histogram of values, of which every fifth one chooses the edges and the others are counted."""
    order = np.random.default_rng(0).permutation(len(values))
    given = np.empty(len(values))
    given[order] = values  # references draw which values choose the edges
    return Reference.make(given, given, None, None).confidence


@given(values=st.lists(st.floats(-5, 5), min_size=10, max_size=300))
@settings(max_examples=50)
def test_every_value_is_counted_in_its_bin_once(values: list[float]) -> None:
    histogram = count(np.array(values))
    counted = [value for place, value in enumerate(values) if place % 5]
    inside = [
        sum(low <= value < high for value in counted)
        for low, high in zip([-np.inf, *histogram.edges], [*histogram.edges, np.inf], strict=True)
    ]
    assert list(histogram.counts) == inside
    assert histogram.find_bins(np.array(histogram.edges)).tolist() == list(range(1, len(histogram.edges) + 1))


def test_edges_are_quantiles_of_the_images_that_are_not_counted() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    histogram = count(values)
    changed = values.copy()
    changed[np.arange(5000) % 5 != 0] += 100
    assert count(changed).edges == histogram.edges
    assert len(histogram.edges) == 99
    assert np.std(histogram.counts) < 0.5 * np.mean(histogram.counts)


def test_values_near_one_are_distinguished() -> None:
    values = 1 - 10 ** -np.random.default_rng(0).uniform(0, 12, 5000)
    histogram = count(values)
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
    reference = known(rule.reference)
    assert (reference.images, reference.methods) == (400, 2)
    order = np.random.default_rng(0).permutation(500)
    counted = order[np.arange(500) % 5 != 0]
    wrong = ~preds.correct()[counted]
    confidence, disagreement = rule.confidence(preds)[counted], compute_look_statistics(preds).disagreement[counted]
    errors, differing = known(reference.errors), known(reference.disagreement)
    bins = reference.confidence.find_bins(confidence[wrong])
    assert np.bincount(bins, minlength=len(errors)).tolist() == list(errors)
    bins = differing.find_bins(disagreement)
    assert np.bincount(bins, minlength=len(differing.counts)).tolist() == list(differing.counts)


def test_reference_counts_draws_without_those_set_apart_and_with_copies() -> None:
    """Copies that occur in the distribution occur in the stream, too."""
    preds = make_labeled()
    rule = certify(preds, "mean", risk=0.2, delta=0.1, tuning=np.arange(100), duplicates=preds.ids[100:200])
    assert known(rule.reference).images == 320, "0.8 of 400"


def test_one_view_has_no_disagreement() -> None:
    reference = known(threshold_for(make_labeled().select(views="identity"), "msr", coverage=0.5).reference)
    assert reference.disagreement is None
    assert reference.first_look == reference.confidence


def test_adaptive_rule_has_the_confidence_of_its_rows_and_no_disagreement() -> None:
    preds = make_labeled(1200)
    rule = certify(preds, "mean", risk=0.2, delta=0.1, adaptive=True)
    reference = known(rule.reference)
    assert reference.disagreement is None
    lows = [-np.inf, *reference.confidence.edges]
    accepted = sum(n for low, n in zip(lows, reference.confidence.counts, strict=True) if low >= rule.threshold)
    rows = rule.confidence(preds)
    assert accepted / reference.images == pytest.approx((rows >= rule.threshold).mean(), abs=0.05)


def test_unlabeled_images_have_no_errors_and_too_few_no_reference() -> None:
    logits = np.random.default_rng(2).normal(size=(50, 2, 3))
    rule = threshold_for(Predictions(logits=logits, views=["identity", "hflip"]), "mean", coverage=0.5)
    assert known(rule.reference).errors is None
    assert threshold_for(make_labeled(9), "mean", coverage=0.5).reference is None


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


# -------------------------------------------------------------------------------------------------------------- audits

EDGES = (0.2, 0.4, 0.6, 0.8)
CENTERS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def make_reference_of_bins(images: list[int], errors: list[int] | None) -> Reference:
    histogram = {"edges": EDGES, "counts": images}
    content = {"images": sum(images), "confidence": histogram, "first_look": histogram, "disagreement": None}
    return Reference.model_validate({**content, "errors": errors})


bins = st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1)), min_size=5, max_size=5).filter(
    lambda drawn: sum(images for images, _ in drawn) > 0
)


@given(drawn=bins, rate=st.floats(1e-4, 1), threshold=st.sampled_from([0.0, 0.2, 0.45, 0.9]))
def test_probabilities_fall_with_confidence_and_keep_their_mean(
    drawn: list[tuple[int, float]], rate: float, threshold: float
) -> None:
    images = [count for count, _ in drawn]
    plan = AuditPlan(make_reference_of_bins(images, [int(n * share) for n, share in drawn]), threshold, rate)
    first = int(np.searchsorted(EDGES, threshold, side="right"))
    probabilities = plan.probabilities(CENTERS[first:])
    assert np.all(np.diff(probabilities) <= 1e-12)
    assert np.all((probabilities > 0) & (probabilities <= 1))
    assert np.all(probabilities >= 0.2 * rate * (1 - 1e-9))
    assert plan.smallest == probabilities.min()
    if sum(images[first:]):
        assert np.average(probabilities, weights=images[first:]) == pytest.approx(rate, rel=1e-9)


def test_doubtful_images_are_audited_more_often() -> None:
    plan = AuditPlan(make_reference_of_bins([100] * 5, [50, 20, 5, 1, 0]), 0.4, 0.01)
    doubtful, middle, confident = plan.probabilities(CENTERS[2:])
    # The powers 3/4 of the error rates 0.05, 0.01 and 0, around their mean, and an even share.
    powers = np.array([0.05, 0.01, 0.0]) ** 0.75
    expected = 0.01 * (0.2 + 0.8 * powers / powers.mean())
    np.testing.assert_allclose([doubtful, middle, confident], expected)


def test_more_errors_at_higher_confidence_are_averaged() -> None:
    plan = AuditPlan(make_reference_of_bins([100] * 5, [0, 0, 1, 5, 0]), 0.4, 0.01)
    first, second, confident = plan.probabilities(CENTERS[2:])
    assert first == second > confident


def test_probabilities_are_at_most_one() -> None:
    plan = AuditPlan(make_reference_of_bins([10, 1000, 1000, 1000, 1000], [10, 0, 0, 0, 0]), 0.0, 0.1)
    probabilities = plan.probabilities(CENTERS)
    assert probabilities[0] == 1.0
    assert np.average(probabilities, weights=[10, 1000, 1000, 1000, 1000]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "reference",
    [None, make_reference_of_bins([10] * 5, None), make_reference_of_bins([10] * 5, [5, 5, 0, 0, 0])],
    ids=["no reference", "no labels", "no errors among accepted"],
)
def test_audits_are_even_where_nothing_is_known(reference: Reference | None) -> None:
    plan = AuditPlan(reference, 0.5, 0.02)
    assert plan.probabilities(np.array([0.5, 0.7, 0.99])).tolist() == [0.02] * 3
    assert plan.smallest == 0.02


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_rate_must_be_a_fraction(rate: float) -> None:
    with pytest.raises(DecisionError, match=str(rate)):
        AuditPlan(None, 0.5, rate)


def test_draws_depend_on_seed_and_id_alone() -> None:
    ids = [f"image {i}" for i in range(1000)]
    draws = AuditPlan.draw(ids, 0)
    parts = [AuditPlan.draw(part, 0) for part in (ids[500:], [], ids[:500])]
    assert np.concatenate(parts).tolist() == [*draws[500:], *draws[:500]]
    assert not np.any(AuditPlan.draw(ids, 1) == draws)
    # A change of the hash would mark other images when a job is resumed.
    bits = int.from_bytes(hashlib.blake2b(b"0:image 7", digest_size=8).digest(), "little") >> 11
    assert draws[7] == bits / 2**53


def test_draws_are_uniform() -> None:
    draws = AuditPlan.draw([str(i) for i in range(20_000)], 0)
    assert np.all((draws >= 0) & (draws < 1))
    counts = np.histogram(draws, 20, (0, 1))[0]
    # Chi-squared with 19 degrees of freedom is above 54 once in 30,000 cases.
    assert np.sum((counts - 1000) ** 2 / 1000) < 54
