"""The curves agree with the numbers and with scikit-learn."""

from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.metrics.curves import Order


def random_images(seed: int, decimals: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    confidence = rng.random(500).round(decimals)
    return rng.random(500) < 0.2 + 0.7 * confidence, confidence


def test_areas_are_means_of_their_curves() -> None:
    correct, confidence = random_images(0)
    assert np.mean(metrics.risk_coverage(correct, confidence).risk) == pytest.approx(metrics.aurc(correct, confidence))
    joint = metrics.joint_risk_coverage(correct, confidence)
    error = 1 - metrics.accuracy(correct, confidence)
    assert np.trapezoid([0, *joint.risk], [0, *joint.coverage]) == pytest.approx(metrics.augrc(correct, confidence))
    assert joint.risk[-1] == pytest.approx(error)


def test_the_given_curve_lies_between_the_perfect_and_the_worst() -> None:
    correct, confidence = random_images(1)
    for curve in (metrics.risk_coverage, metrics.joint_risk_coverage):
        given, perfect, worst = (
            curve(correct, confidence, order=order).risk for order in ("given", "perfect", "worst")
        )
        assert np.all(perfect <= given + 1e-12)
        assert np.all(given <= worst + 1e-12)
        assert perfect[-1] == pytest.approx(given[-1])


@pytest.mark.parametrize("order", ["perfect", "worst"])
def test_the_extreme_curves_are_those_of_an_extreme_confidence(order: Order) -> None:
    correct, confidence = random_images(2)
    extreme = correct if order == "perfect" else ~correct
    found = metrics.risk_coverage(correct, confidence, order=order).risk
    assert found == pytest.approx(metrics.risk_coverage(correct, extreme.astype(float)).risk)


def test_roc_and_precision_recall_agree_with_scikit_learn() -> None:
    from sklearn.metrics import precision_recall_curve, roc_curve

    correct, confidence = random_images(3)
    false_alarms, found, _ = roc_curve(~correct, -confidence, drop_intermediate=False)
    curve = metrics.roc(correct, confidence)
    assert curve.false_alarms == pytest.approx(false_alarms)
    assert curve.errors_found == pytest.approx(found)
    assert np.trapezoid(curve.errors_found, curve.false_alarms) == pytest.approx(metrics.auroc(correct, confidence))
    precision, recall, _ = precision_recall_curve(~correct, -confidence)
    points = metrics.precision_recall(correct, confidence)
    assert points.precision[::-1] == pytest.approx(precision[:-1])
    assert points.recall[::-1] == pytest.approx(recall[:-1])


def test_reliability_bins_hold_every_image_once() -> None:
    correct, confidence = random_images(4, decimals=3)
    confidence[:2] = 0.0, 1.0
    curve = metrics.reliability(correct, confidence, bins=10)
    edges = np.linspace(0, 1, 11)
    assert curve.images.sum() == len(correct)
    for low, high, mean, share in zip(edges[:-1], edges[1:], curve.confidence, curve.accuracy, strict=True):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        assert mean == pytest.approx(confidence[inside].mean())
        assert share == pytest.approx(correct[inside].mean())


def test_curves_without_meaning_say_so() -> None:
    with pytest.raises(MetricError, match="roc has no meaning for these 2 images: none of them is wrong"):
        metrics.roc([True, True], [0.1, 0.2])
    with pytest.raises(MetricError, match="none of the images is wrong"):
        metrics.precision_recall([True, True], [0.1, 0.2])
    with pytest.raises(MetricError, match="unknown order 'best'"):
        metrics.risk_coverage([True], [0.1], order="best")  # type: ignore[arg-type]
    with pytest.raises(MetricError, match="at least 1"):
        metrics.reliability([True], [0.1], bins=0)
