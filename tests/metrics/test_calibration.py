"""Calibration metrics against scikit-learn and small examples."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError

Images = Callable[..., tuple[Any, Any]]


@pytest.mark.parametrize("decimals", [1, 15])
def test_brier_and_nll_agree_with_scikit_learn(decimals: int, images: Images) -> None:
    from sklearn.metrics import brier_score_loss, log_loss

    correct, confidence = images(2, decimals=decimals)
    assert metrics.brier(correct, confidence) == pytest.approx(brier_score_loss(correct, confidence), abs=1e-12)
    assert metrics.nll(correct, confidence) == pytest.approx(log_loss(correct, confidence), abs=1e-12)


def test_calibration_error_of_two_bins() -> None:
    # Confidence 0.3 with none of two correct, confidence 0.9 with three of four correct.
    correct = np.array([False, False, True, True, True, False])
    confidence = np.array([0.3, 0.3, 0.9, 0.9, 0.9, 0.9])
    assert metrics.ece(correct, confidence, bins=2) == pytest.approx((2 * 0.3 + 4 * 0.15) / 6)


def test_a_fully_confident_error_costs_a_finite_number_of_nats() -> None:
    assert metrics.nll([False], [1.0]) == pytest.approx(-np.log(np.finfo(float).eps))


def test_each_image_is_in_one_bin_of_the_reliability_curve(images: Images) -> None:
    correct, confidence = images(4, n=500, decimals=3)
    confidence[:2] = 0.0, 1.0
    curve = metrics.rank(correct, confidence).reliability(10)
    edges = np.linspace(0, 1, 11)
    assert curve.images.sum() == len(correct)
    for low, high, mean, accuracy in zip(edges[:-1], edges[1:], curve.confidence, curve.accuracy, strict=True):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        assert mean == pytest.approx(confidence[inside].mean())
        assert accuracy == pytest.approx(correct[inside].mean())


@pytest.mark.parametrize("metric", [metrics.brier, metrics.nll, metrics.ece])
def test_a_confidence_that_is_no_probability_is_rejected(metric: Callable[..., float]) -> None:
    with pytest.raises(MetricError, match=r"1\.5"):
        metric([True, False], [0.5, 1.5])


def test_less_than_one_bin_is_rejected() -> None:
    with pytest.raises(MetricError, match="bins=0"):
        metrics.rank([True], [0.1]).reliability(0)
