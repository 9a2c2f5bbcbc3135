"""A fitted schedule equals a slow transparent fit, and needs no labels."""

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Float64Array
from secondlook.errors import DecisionError
from secondlook.estimators import METHODS, compile_method
from secondlook.policies import Policy, Schedule, fit_schedule, threshold_for
from secondlook.predictions import Predictions
from tests.policies.adaptive_world import VIEWS, make_world


def log_odds(confidence: Float64Array) -> Float64Array:
    values: Float64Array = np.log(confidence / (1 - confidence))
    return values


@pytest.fixture(scope="module")
def preds() -> Predictions:
    return make_world(600)


@pytest.fixture(scope="module")
def rule(preds: Predictions) -> Policy:
    return threshold_for(preds, "blend", coverage=0.7)


@pytest.fixture(scope="module")
def schedule(preds: Predictions, rule: Policy) -> Schedule:
    return fit_schedule(preds, rule, tolerance=0.02)


def test_each_next_view_leaves_the_least_spread(preds: Predictions, schedule: Schedule) -> None:
    final = log_odds(sl.confidence(preds, "blend"))
    order, rest = [VIEWS[0]], list(VIEWS[1:])
    while rest:
        spreads = [
            np.std(final - log_odds(sl.confidence(preds.select(views=[*order, view]), "blend"))) for view in rest
        ]
        order.append(rest.pop(int(np.argmin(spreads))))
    assert schedule.views == tuple(order)
    assert order != list(VIEWS)


def test_changes_and_spreads_are_those_of_the_log_odds(preds: Predictions, schedule: Schedule) -> None:
    final = log_odds(sl.confidence(preds, "blend"))
    for count, (change, spread) in enumerate(zip(schedule.changes, schedule.spreads, strict=True), start=1):
        part = preds.select(views=list(schedule.views[:count]))
        difference = final - log_odds(sl.confidence(part, "blend"))
        assert change == pytest.approx(difference.mean(), abs=1e-9)
        assert spread == pytest.approx(difference.std(), abs=1e-9)


def test_margin_is_the_smallest_within_the_tolerance(preds: Predictions, rule: Policy, schedule: Schedule) -> None:
    running = compile_method("blend").running(preds.select(views=list(schedule.views)))
    ranked = np.sort(running[:, -1])
    place = int(np.searchsorted(ranked, rule.threshold))
    thresholds = ranked[np.linspace(place - 30, place + 30, 21).round().astype(int)]

    def differing(margin: float) -> float:
        tried = schedule.model_copy(update={"margin": margin})
        shares = [np.mean((tried.look(running, float(one))[1] >= one) != (running[:, -1] >= one)) for one in thresholds]
        return float(np.mean(shares))

    assert 0.5 < schedule.margin < 4
    assert differing(schedule.margin) <= 0.02
    assert differing(schedule.margin - 0.05) > 0.02
    points = {point.margin: point for point in schedule.frontier}
    assert points[schedule.margin].differing == pytest.approx(differing(schedule.margin))
    assert points[0.0].looks == 1.0
    assert schedule.frontier[-1].looks > 5.5
    assert [point.looks for point in schedule.frontier] == sorted(point.looks for point in schedule.frontier)


def test_a_larger_tolerance_looks_less(preds: Predictions, rule: Policy) -> None:
    margins = [fit_schedule(preds, rule, tolerance=tolerance).margin for tolerance in (0.001, 0.01, 0.05, 0.2)]
    assert margins == sorted(margins, reverse=True)
    assert margins[0] > margins[-1]


def test_labels_are_not_needed(preds: Predictions, rule: Policy, schedule: Schedule) -> None:
    unlabeled = make_world(600, labels=False)
    assert not unlabeled.has_labels
    assert fit_schedule(unlabeled, rule, tolerance=0.02) == schedule


def test_the_order_of_images_does_not_matter(preds: Predictions, rule: Policy, schedule: Schedule) -> None:
    shuffled = preds.select(images=np.random.default_rng(1).permutation(preds.n_images))
    other = fit_schedule(shuffled, rule, tolerance=0.02)
    assert (other.views, other.margin) == (schedule.views, schedule.margin)
    np.testing.assert_allclose(other.spreads, schedule.spreads, atol=1e-9)


def test_the_order_of_views_matters_only_for_ties(preds: Predictions, rule: Policy, schedule: Schedule) -> None:
    other = fit_schedule(preds.select(views=["identity", *reversed(VIEWS[1:])]), rule, tolerance=0.02)
    assert other.views == schedule.views


def test_largest_number_of_looks(preds: Predictions, rule: Policy, schedule: Schedule) -> None:
    short = fit_schedule(preds, rule, tolerance=0.02, max_looks=2)
    assert short.views == schedule.views[:2]
    assert (short.max_looks, short.full_looks) == (2, 6)
    # Two looks are too few for the tolerance: the margin is where a larger one changes no more decisions.
    differing = [point.differing for point in short.frontier if point.margin >= short.margin]
    assert min(differing) > 0.02
    assert differing[0] == min(differing)
    assert fit_schedule(preds, rule, tolerance=0.02, max_looks=99) == schedule


def test_confidences_of_exactly_1_are_no_obstacle() -> None:
    logits = np.zeros((200, 3, 4), dtype=np.float32)
    logits[:, :, 0] = np.linspace(1, 120, 200)[:, None] * np.array([1.0, 0.9, 1.1])
    preds = Predictions(logits=logits, views=VIEWS[:3])
    for method in ("mean", "blend"):
        rule = threshold_for(preds, method, coverage=0.5)
        assert (sl.confidence(preds, method) == 1.0).any()
        fitted = fit_schedule(preds, rule, tolerance=0.05)
        assert np.isfinite([*fitted.changes, *fitted.spreads]).all()


@pytest.mark.parametrize("tolerance", [0, 1, -0.1, 1.5, float("nan"), "0.1", None, True])
def test_tolerance_outside_0_and_1_is_refused(preds: Predictions, rule: Policy, tolerance: float) -> None:
    with pytest.raises(DecisionError, match="tolerance="):
        fit_schedule(preds, rule, tolerance=tolerance)


@pytest.mark.parametrize("max_looks", [0, 1, -3, 2.5, True, "3"])
def test_invalid_largest_number_of_looks_is_refused(preds: Predictions, rule: Policy, max_looks: int) -> None:
    with pytest.raises(DecisionError, match="max_looks="):
        fit_schedule(preds, rule, max_looks=max_looks)


def test_too_few_images_are_refused_with_their_number(preds: Predictions, rule: Policy) -> None:
    with pytest.raises(DecisionError, match=r"at least 100 .* got 99"):
        fit_schedule(preds.select(images=np.arange(99)), rule)
    fit_schedule(preds.select(images=np.arange(100)), rule)


def test_one_view_is_refused(preds: Predictions, rule: Policy) -> None:
    with pytest.raises(DecisionError, match="two views"):
        fit_schedule(preds.select(views="identity"), rule)


@pytest.mark.parametrize("method", ["msr", "entropy", "bootstrap-lower", "view:hflip"])
def test_a_method_that_is_no_mean_over_views_is_refused(preds: Predictions, method: str) -> None:
    with pytest.raises(DecisionError) as error:
        fit_schedule(preds, Policy(threshold=0.9, method=method))
    assert all(repr(name) in str(error.value) for name in METHODS if METHODS[name].is_mean_over_views)


def test_an_infinite_threshold_is_refused(preds: Predictions) -> None:
    with pytest.raises(DecisionError, match="inf"):
        fit_schedule(preds, Policy(threshold=float("inf"), method="blend"))
