"""Decisions of a schedule are nested in the threshold, and equal to those of a plain loop over the looks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from secondlook.arrays import Float64Array
from secondlook.errors import DecisionError
from secondlook.policies import Schedule
from secondlook.policies.schedule import FrontierPoint

VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1", "shift:-1,0")


def make_schedule(
    changes: tuple[float, ...] = (-0.5, -0.2, 0.0),
    spreads: tuple[float, ...] = (1.5, 0.7, 0.0),
    margin: float = 1.0,
    full_looks: int | None = None,
) -> Schedule:
    return Schedule(
        views=VIEWS[: len(changes)],
        method="blend",
        changes=changes,
        spreads=spreads,
        margin=margin,
        tolerance=0.01,
        full_looks=full_looks or len(changes),
        images=1000,
        threshold=0.9,
    )


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


@given(schedules(), st.integers(0, 10_000), st.floats(0.02, 0.98))
@settings(max_examples=80, deadline=None)
def test_looks_and_decisions_are_those_of_a_plain_loop(schedule: Schedule, seed: int, threshold: float) -> None:
    running = draw_running(seed, schedule.max_looks)
    looks, confidence = schedule.look(running, threshold)
    expected = [look_slowly(schedule, row, threshold) for row in running.tolist()]
    assert looks.tolist() == [count for count, _ in expected]
    assert (confidence >= threshold).tolist() == [accept for _, accept in expected]


@given(schedules(), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_a_threshold_on_the_confidence_decides_as_looking_does(schedule: Schedule, seed: int) -> None:
    running = draw_running(seed, schedule.max_looks)
    nested = schedule.confidence(running)
    # Thresholds that a certification may choose are confidences of images: ties count.
    for threshold in [*nested[:20].tolist(), 0.001, 0.5, 0.999]:
        _, confidence = schedule.look(running, threshold)
        np.testing.assert_array_equal(confidence >= threshold, nested >= threshold)


@given(schedules(), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_accepting_looks_are_those_at_some_threshold(schedule: Schedule, seed: int) -> None:
    running = draw_running(seed, schedule.max_looks, n_images=8)
    accepting = schedule.find_accepting_looks(running)
    seen = np.zeros_like(accepting)
    for threshold in np.concatenate([np.linspace(0.001, 0.999, 300), schedule.confidence(running)]).tolist():
        looks, confidence = schedule.look(running, threshold)
        for image in np.flatnonzero(confidence >= threshold):
            seen[image, looks[image] - 1] = True
    assert not (seen & ~accepting).any()


@given(schedules(), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
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
    assert (make_schedule(margin=1e6).look(running, 0.9)[0] == 3).all()


def test_with_all_looks_the_confidence_is_exactly_the_last() -> None:
    running = draw_running(1, 3)
    schedule = make_schedule(margin=1e6)
    np.testing.assert_array_equal(schedule.look(running, 0.9)[1], running[:, -1])
    np.testing.assert_array_equal(schedule.confidence(running), running[:, -1])


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
    content = {**make_schedule().model_dump(), **change}
    with pytest.raises(ValidationError):
        Schedule.model_validate(content)


def test_text_is_a_table_of_the_limits() -> None:
    frontier = (FrontierPoint(margin=1.0, looks=1.8, differing=0.01),)
    schedule = make_schedule().model_copy(update={"frontier": frontier})
    first, header, *rows = str(schedule).splitlines()
    assert "1.80 looks" in first
    assert "1.0 %" in first
    assert header.split("  ")[0] == "look"
    assert [row.split()[1] for row in rows] == list(schedule.views)
    assert rows[-1].split()[2:] == ["0.9000", "0.9000"]
    assert schedule._repr_html_().count("<tr>") == 4


@given(schedules(), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_accepted_images_are_accepted_at_every_lower_threshold(schedule: Schedule, seed: int) -> None:
    running = draw_running(seed, schedule.max_looks)
    accepted = [schedule.look(running, threshold)[1] >= threshold for threshold in (0.2, 0.5, 0.8, 0.9, 0.99)]
    for lower, higher in itertools.pairwise(accepted):
        assert not (higher & ~lower).any()
