"""Schedules decide as a plain loop over the looks, nested in the threshold, and are fitted as a slow reference fits."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import secondlook as sl
from secondlook.arrays import Float64Array
from secondlook.errors import DecisionError
from secondlook.estimators import METHODS, compile_method
from secondlook.policies import Policy, Schedule, fit_schedule, threshold_for
from secondlook.predictions import Predictions
from tests.policies.conftest import VIEWS, make_schedule, make_world


def look_slowly(schedule: Schedule, confidences: list[float], threshold: float) -> tuple[int, bool]:
    """Look at one image, in plain Python."""
    target = math.log(threshold / (1 - threshold))
    for looks, (confidence, change, spread) in enumerate(
        zip(confidences, schedule.changes, schedule.spreads, strict=True), start=1
    ):
        estimate = math.log(confidence / (1 - confidence)) + change
        if looks == schedule.max_looks or abs(estimate - target) > schedule.margin * spread:
            return looks, estimate >= target
    raise AssertionError


number = st.floats(-3, 3, allow_nan=False)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(1, 5))
    changes = tuple(draw(st.lists(number, min_size=count, max_size=count)))
    spreads = tuple(abs(value) for value in draw(st.lists(number, min_size=count, max_size=count)))
    return make_schedule(changes, spreads, draw(st.floats(0, 3)), count + draw(st.integers(0, 2)))


def draw_running(seed: int, looks: int, n_images: int = 60) -> Float64Array:
    generator = np.random.default_rng(seed)
    log_odds = generator.normal(1, 3, (n_images, 1)) + generator.normal(0, 1.5, (n_images, looks)).cumsum(axis=1)
    running: Float64Array = 1 / (1 + np.exp(-log_odds))
    return running


drawn = given(schedules(), st.integers(0, 10_000))


@given(schedules(), st.integers(0, 10_000), st.floats(0.02, 0.98))
@settings(max_examples=80)
def test_looks_and_decisions_are_those_of_a_plain_loop(schedule: Schedule, seed: int, threshold: float) -> None:
    running = draw_running(seed, schedule.max_looks)
    looks, confidence = schedule.look(running, threshold)
    expected = [look_slowly(schedule, row, threshold) for row in running.tolist()]
    assert looks.tolist() == [count for count, _ in expected]
    assert (confidence >= threshold).tolist() == [accept for _, accept in expected]


@drawn
@example(make_schedule((-1e-277, 0.0), (1e-277, 0.0), 1.0, 2), 0)  # one bound is exact, the other is not
@settings(max_examples=80)
def test_a_threshold_on_the_confidence_decides_as_looking_does(schedule: Schedule, seed: int) -> None:
    running = draw_running(seed, schedule.max_looks)
    nested = schedule.confidence(running)
    # Thresholds that a certification may choose are confidences of images: ties count.
    for threshold in [*nested[:20].tolist(), 0.001, 0.5, 0.999]:
        _, confidence = schedule.look(running, threshold)
        np.testing.assert_array_equal(confidence >= threshold, nested >= threshold)
    accepted = [schedule.look(running, threshold)[1] >= threshold for threshold in (0.2, 0.5, 0.8, 0.9, 0.99)]
    for lower, higher in itertools.pairwise(accepted):
        assert not (higher & ~lower).any(), "accepted images are accepted at every lower threshold"


@drawn
@settings(max_examples=40)
def test_accepting_looks_are_those_at_some_threshold(schedule: Schedule, seed: int) -> None:
    running = draw_running(seed, schedule.max_looks, n_images=8)
    accepting = schedule.find_accepting_looks(running)
    seen = np.zeros_like(accepting)
    for threshold in np.concatenate([np.linspace(0.001, 0.999, 300), schedule.confidence(running)]).tolist():
        looks, confidence = schedule.look(running, threshold)
        for image in np.flatnonzero(confidence >= threshold):
            seen[image, looks[image] - 1] = True
    assert not (seen & ~accepting).any()


@drawn
@settings(max_examples=40)
def test_mean_looks_are_those_at_each_threshold(schedule: Schedule, seed: int) -> None:
    running = draw_running(seed, schedule.max_looks)
    # Thresholds at which something changes count, too.
    thresholds = np.unique([0.2, 0.5, 0.9, *schedule.confidence(running)[:9]])
    expected = np.mean([schedule.look(running, threshold)[0].mean() for threshold in thresholds.tolist()])
    assert schedule.count_mean_looks(running, thresholds) == pytest.approx(expected, rel=1e-12)


def test_limits_are_where_looking_stops() -> None:
    schedule = make_schedule()
    lower, upper = schedule.limits(0.9)
    for looks in (1, 2):
        for distance, is_open in ((1e-9, True), (-1e-9, False)):
            estimates = np.array([lower[looks - 1] + distance, upper[looks - 1] - distance])
            running = 1 / (1 + (1 / estimates - 1) * np.exp(schedule.changes[looks - 1]))
            np.testing.assert_allclose(schedule.estimate(looks, running), estimates, rtol=1e-12)
            assert (schedule.is_open(looks, running, 0.9) == is_open).all()
    running = np.array([0.95, 0.7, 0.9, 0.95, 0.7])
    looks_of_each = np.array([1, 2, 3, 2, 1])
    alone = [schedule.is_open(int(looks), running[[place]], 0.9)[0] for place, looks in enumerate(looks_of_each)]
    assert schedule.is_open(looks_of_each, running, 0.9).tolist() == alone
    assert set(alone) == {True, False}
    assert lower[2] == upper[2] == 0.9
    assert not schedule.is_open(3, np.array([0.9, 0.1, 0.99]), 0.9).any()


def test_no_margin_is_one_look_and_a_large_one_is_all() -> None:
    running = draw_running(0, 3)
    assert (make_schedule(margin=0.0).look(running, 0.9)[0] == 1).all()
    large = make_schedule(margin=1e6)
    looks, confidence = large.look(running, 0.9)
    assert (looks == 3).all()
    np.testing.assert_array_equal(confidence, running[:, -1])
    np.testing.assert_array_equal(large.confidence(running), running[:, -1])


def test_confidences_of_exactly_0_and_1_are_decided_at_once() -> None:
    running = np.array([[0.0, 0.5, 0.5], [1.0, 0.5, 0.5]])
    looks, confidence = make_schedule().look(running, 0.9)
    assert looks.tolist() == [1, 1]
    assert confidence.tolist() == [0.0, 1.0]
    assert make_schedule().confidence(running).tolist() == [0.0, 1.0]


def test_a_schedule_with_few_looks_ignores_later_ones() -> None:
    running = draw_running(2, 5)
    schedule = make_schedule(full_looks=5)
    np.testing.assert_array_equal(schedule.confidence(running), schedule.confidence(running[:, :3]))


def test_too_few_running_confidences_are_refused() -> None:
    with pytest.raises(DecisionError, match=r"\[4, 2\]"):
        make_schedule().confidence(np.full((4, 2), 0.5))


@pytest.mark.parametrize(
    "change",
    [
        {"changes": (0.1,)},
        {"spreads": (0.1, 0.2)},
        {"spreads": (0.1, -0.2, 0.0)},
        {"views": ("identity", "hflip", "hflip")},
        {"views": ()},
        {"full_looks": 2},
        {"margin": -1.0},
        {"margin": math.inf},
        {"tolerance": 1.0},
    ],
)
def test_invalid_schedule_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Schedule.model_validate({**make_schedule().model_dump(), **change})


def test_text_is_a_table_of_the_limits() -> None:
    frontier = ({"margin": 1.0, "looks": 1.8, "differing": 0.01},)
    schedule = Schedule.model_validate({**make_schedule().model_dump(), "frontier": frontier})
    first, header, *rows = str(schedule).splitlines()
    assert "1.80 looks" in first
    assert "1.0 %" in first
    assert header.split("  ")[0] == "look"
    assert [row.split()[1] for row in rows] == list(schedule.views)
    assert rows[-1].split()[2:] == ["0.9000", "0.9000"]
    assert schedule._repr_html_().count("<tr>") == 4


# ------------------------------------------------------------------------------------------------------------- fitting


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


def test_labels_and_the_order_of_images_do_not_matter(preds: Predictions, rule: Policy, schedule: Schedule) -> None:
    unlabeled = make_world(600, labels=False)
    assert not unlabeled.has_labels
    assert fit_schedule(unlabeled, rule, tolerance=0.02) == schedule
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


@pytest.mark.parametrize(
    "option",
    [
        *({"tolerance": value} for value in (0, 1, -0.1, 1.5, float("nan"), "0.1", None, True)),
        *({"max_looks": value} for value in (0, 1, -3, 2.5, True, "3")),
    ],
)
def test_invalid_option_is_refused(preds: Predictions, rule: Policy, option: dict[str, float]) -> None:
    with pytest.raises(DecisionError, match=f"{next(iter(option))}="):
        fit_schedule(preds, rule, **option)  # type: ignore[arg-type]


def test_too_few_images_or_views_are_refused(preds: Predictions, rule: Policy) -> None:
    with pytest.raises(DecisionError, match=r"at least 100 .* got 99"):
        fit_schedule(preds.select(images=np.arange(99)), rule)
    fit_schedule(preds.select(images=np.arange(100)), rule)
    with pytest.raises(DecisionError, match="two views"):
        fit_schedule(preds.select(views="identity"), rule)


@pytest.mark.parametrize("method", ["msr", "zero", "bootstrap", "view:hflip"])
def test_method_that_is_not_a_mean_over_views_is_rejected(preds: Predictions, method: str) -> None:
    with pytest.raises(DecisionError) as error:
        fit_schedule(preds, Policy(threshold=0.9, method=method))
    assert all(repr(name) in str(error.value) for name in METHODS if METHODS[name].is_mean_over_views)


def test_an_infinite_threshold_is_refused(preds: Predictions) -> None:
    with pytest.raises(DecisionError, match="inf"):
        fit_schedule(preds, Policy(threshold=float("inf"), method="blend"))
