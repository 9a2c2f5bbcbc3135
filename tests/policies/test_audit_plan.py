"""Audit plans: probabilities that follow doubt, keep their mean, and never forget confident images."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.errors import DecisionError
from secondlook.policies import AuditPlan, Reference
from secondlook.policies.reference import UNIFORM_SHARE, BinCounts

EDGES = (0.2, 0.4, 0.6, 0.8)
CENTERS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def make_reference_of_bins(images: list[int], errors: list[int] | None) -> Reference:
    histogram = BinCounts(edges=EDGES, counts=tuple(images))
    return Reference(
        images=sum(images),
        confidence=histogram,
        errors=None if errors is None else tuple(errors),
        first_look=histogram,
        disagreement=None,
    )


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
    assert np.all(probabilities >= UNIFORM_SHARE * rate * (1 - 1e-9))
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
    assert np.concatenate([AuditPlan.draw(ids[500:], 0), AuditPlan.draw(ids[:500], 0)]).tolist() == [
        *draws[500:],
        *draws[:500],
    ]
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


def test_no_images_have_no_draws() -> None:
    assert AuditPlan.draw([], 0).shape == (0,)
