"""The display of a schedule draws its frontier, and marks the margin that was chosen."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import secondlook as sl
from secondlook.classifiers import load_classifier
from secondlook.errors import DecisionError
from secondlook.policies import Schedule, fit_schedule
from secondlook.predictions import Predictions
from secondlook.report.displays import looks_ticks
from tests.policy_maker import attach


@pytest.fixture(scope="module")
def schedule(preds: Predictions) -> Schedule:
    usable = preds.select(views=["identity", "hflip", "shift:1,0"])
    return fit_schedule(usable, sl.Policy(threshold=0.8, method="mean"), tolerance=0.02)


def make_policy(schedule: Schedule | None) -> sl.Policy:
    classifier = load_classifier(lambda images: np.ones((len(images), 3)) / 3, output="probabilities", name="constant")
    views = ("identity", "hflip") if schedule is None else schedule.views
    return attach(sl.Policy(threshold=0.8, method="mean", schedule=schedule), classifier=classifier, views=views)


def test_line_is_the_frontier_and_the_margin_is_marked(schedule: Schedule) -> None:
    display = sl.ScheduleDisplay.from_schedule(schedule, lw=3)
    points = [(point.looks, 1 - point.differing) for point in schedule.frontier]
    np.testing.assert_allclose(np.asarray(display.line_.get_xydata()), points)
    assert display.line_.get_linewidth() == 3
    (chosen,) = (point for point in schedule.frontier if point.margin == schedule.margin)
    np.testing.assert_allclose(np.asarray(display.point_.get_xydata()), [(chosen.looks, 1 - chosen.differing)])
    assert 1 < chosen.looks < 3
    assert display.ax_.get_xlim() == (1, 3)
    assert display.ax_.get_xticks().tolist() == [1, 2, 3]
    legend = display.ax_.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert any(f"margin {schedule.margin:g}: {chosen.looks:.2f} looks" in text for text in texts)
    display.figure_.canvas.draw()
    assert "%" in display.ax_.get_yticklabels()[0].get_text(), "the agreement is in percent"


@pytest.mark.parametrize(
    ("full_looks", "ticks"),
    [(2, [1, 2]), (4, [1, 2, 3, 4]), (13, [1, 3, 5, 7, 9, 11, 13]), (31, [1, 6, 11, 16, 21, 26, 31])],
)
def test_axis_of_looks_has_one_look_and_all_looks(full_looks: int, ticks: list[int]) -> None:
    assert looks_ticks(full_looks) == ticks


def test_display_uses_the_given_axes(schedule: Schedule) -> None:
    figure, (first, second) = plt.subplots(1, 2)
    display = sl.ScheduleDisplay.from_schedule(schedule, ax=first)
    assert (display.ax_, display.figure_) == (first, figure)
    assert display.plot(second) is display
    assert display.ax_ is second
    assert sl.ScheduleDisplay(schedule).plot().figure_ is not figure, "a new figure"


def test_policy_and_policy_file_are_drawn(schedule: Schedule, tmp_path: Path) -> None:
    policy = make_policy(schedule)
    policy.save(tmp_path / "policy.json")
    for given in (policy, tmp_path / "policy.json", str(tmp_path / "policy.json")):
        assert sl.ScheduleDisplay.from_policy(given).schedule == schedule


def test_policy_that_looks_at_all_views_is_rejected() -> None:
    with pytest.raises(DecisionError, match=r"schedule.*adaptive=True"):
        sl.ScheduleDisplay.from_policy(make_policy(None))
    assert not plt.get_fignums(), "nothing is drawn"


@pytest.mark.parametrize("changed", [{"frontier": ()}, {"margin": 123.0}])
def test_schedule_that_was_not_fitted_is_rejected(schedule: Schedule, changed: dict[str, object]) -> None:
    with pytest.raises(DecisionError, match="frontier"):
        sl.ScheduleDisplay(schedule.model_copy(update=changed))
