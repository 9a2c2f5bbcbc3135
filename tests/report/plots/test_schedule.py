"""The plot of a schedule draws its frontier, and marks the margin that was chosen."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import secondlook as sl
from secondlook.classifiers import load_classifier
from secondlook.errors import DecisionError
from secondlook.policies import Schedule, fit_schedule
from secondlook.predictions import Predictions
from secondlook.report import plots
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
    axes = plots.draw_schedule(schedule, lw=3)
    line, point = axes.lines[:2]
    points = [(point.looks, 1 - point.differing) for point in schedule.frontier]
    np.testing.assert_allclose(np.asarray(line.get_xydata()), points)
    assert line.get_linewidth() == 3
    (chosen,) = (point for point in schedule.frontier if point.margin == schedule.margin)
    np.testing.assert_allclose(np.asarray(point.get_xydata()), [(chosen.looks, 1 - chosen.differing)])
    assert 1 < chosen.looks < 3
    assert axes.get_xlim() == (1, 3)
    assert axes.get_xticks().tolist() == [1, 2, 3]
    legend = axes.get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    assert any(f"margin {schedule.margin:g}: {chosen.looks:.2f} looks" in text for text in texts)
    axes.figure.canvas.draw()
    assert "%" in axes.get_yticklabels()[0].get_text(), "the agreement is in percent"


def test_plot_uses_the_given_axes(schedule: Schedule) -> None:
    figure, (first, second) = plt.subplots(1, 2)
    assert plots.draw_schedule(schedule, ax=first) is first
    assert plots.draw_schedule(schedule, ax=second) is second
    assert plots.draw_schedule(schedule).figure is not figure, "a new figure"


def test_policy_and_policy_file_are_drawn(schedule: Schedule, tmp_path: Path) -> None:
    policy = make_policy(schedule)
    expected = np.asarray(plots.draw_schedule(schedule).lines[0].get_xydata())
    policy.save(tmp_path / "policy.json")
    for given in (policy, tmp_path / "policy.json", str(tmp_path / "policy.json")):
        line = np.asarray(plots.draw_schedule(given).lines[0].get_xydata())
        np.testing.assert_array_equal(line, expected)


def test_policy_that_looks_at_all_views_is_rejected() -> None:
    with pytest.raises(DecisionError, match=r"schedule.*adaptive=True"):
        plots.draw_schedule(make_policy(None))
    assert not plt.get_fignums(), "nothing is drawn"


@pytest.mark.parametrize("changed", [{"frontier": ()}, {"margin": 123.0}])
def test_schedule_that_was_not_fitted_is_rejected(schedule: Schedule, changed: dict[str, object]) -> None:
    with pytest.raises(DecisionError, match="frontier"):
        plots.draw_schedule(schedule.model_copy(update=changed))
