"""AUROC, AUPR and their curves against scikit-learn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError

Images = Callable[..., tuple[Any, Any]]


@pytest.mark.parametrize("decimals", [1, 15])
def test_areas_agree_with_scikit_learn(decimals: int, images: Images) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    correct, confidence = images(2, decimals=decimals)
    assert metrics.auroc(correct, confidence) == pytest.approx(roc_auc_score(correct, confidence), abs=1e-12)
    assert metrics.aupr(correct, confidence, ties="threshold") == pytest.approx(
        average_precision_score(~correct, -confidence), abs=1e-12
    )


def test_both_average_precisions_are_equal_without_ties(images: Images) -> None:
    correct, confidence = images(3, decimals=15)
    expected = metrics.aupr(correct, confidence, ties="threshold")
    assert metrics.aupr(correct, confidence) == pytest.approx(expected, abs=1e-12)


def test_curves_agree_with_scikit_learn(images: Images) -> None:
    from sklearn.metrics import precision_recall_curve, roc_curve

    correct, confidence = images(3, n=500, decimals=1)
    false_alarms, errors_found, _ = roc_curve(~correct, -confidence, drop_intermediate=False)
    curve = metrics.roc(correct, confidence)
    assert curve.false_alarms == pytest.approx(false_alarms)
    assert curve.errors_found == pytest.approx(errors_found)
    assert np.trapezoid(curve.errors_found, curve.false_alarms) == pytest.approx(metrics.auroc(correct, confidence))
    precision, recall, _ = precision_recall_curve(~correct, -confidence)
    points = metrics.precision_recall(correct, confidence)
    assert points.precision[::-1] == pytest.approx(precision[:-1])
    assert points.recall[::-1] == pytest.approx(recall[:-1])


def test_undefined_curves_and_unknown_ties_are_rejected() -> None:
    with pytest.raises(MetricError, match=r"roc.* 2 "):
        metrics.roc([True, True], [0.1, 0.2])
    with pytest.raises(MetricError, match=r"precision_recall.* 2 "):
        metrics.precision_recall([True, True], [0.1, 0.2])
    with pytest.raises(MetricError, match="'random'"):
        metrics.aupr([False], [0.5], ties="random")  # type: ignore[arg-type]
