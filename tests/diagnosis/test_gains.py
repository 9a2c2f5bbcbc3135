"""Gains: intervals, signs and the suggested stop."""

import numpy as np
import pytest

from secondlook.diagnosis.search import Gain, compute_gain, first_within_standard_error, measure_performances
from secondlook.metrics import Interval, auroc, parse_metric


@pytest.mark.parametrize(("worse_by", "first"), [(0.0, 0), (0.5, 1)])
def test_first_position_within_one_standard_error_of_the_best(worse_by: float, first: int) -> None:
    generator = np.random.default_rng(0)
    correct = generator.random(500) < 0.8
    good = 0.4 + 0.2 * correct + generator.normal(0, 0.1, 500)
    worse = good - worse_by * 0.2 * correct
    metric = parse_metric("auroc")
    assert first_within_standard_error(metric, measure_performances(metric, correct, [worse, good], seed=0)) == first


@pytest.mark.parametrize("text", ["auroc", "aurc"])
def test_better_confidence_gains_whichever_way_the_metric_goes(text: str) -> None:
    generator = np.random.default_rng(0)
    correct = generator.random(400) < 0.8
    good, noise = 0.3 + 0.4 * correct + generator.normal(0, 0.05, 400), generator.random(400)
    metric = parse_metric(text)
    better, worse = measure_performances(metric, correct, [good, noise], seed=0)
    gain = compute_gain(metric, better, worse, "noise")
    assert gain.verdict == "better"
    assert gain.gain == pytest.approx(abs(better.value - worse.value))
    assert compute_gain(metric, worse, better, "good").verdict == "worse"


def test_interval_is_that_of_resampled_images() -> None:
    generator = np.random.default_rng(3)
    correct, confidence = generator.random(80) < 0.7, generator.random(80)
    (performance,) = measure_performances(parse_metric("auroc"), correct, [confidence], seed=5)
    rng = np.random.default_rng(5)
    for value in performance.resampled[:20]:
        images = rng.integers(80, size=80)
        assert value == pytest.approx(auroc(correct[images], confidence[images]), abs=1e-12)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (None, "unclear"),
        (Interval(-0.1, 0.2), "unclear"),
        (Interval(0.1, 0.2), "better"),
        (Interval(-0.2, -0.1), "worse"),
    ],
)
def test_verdict_follows_the_interval(interval: Interval | None, verdict: str) -> None:
    assert Gain("the image alone", 0.9, 0.05, interval).verdict == verdict
