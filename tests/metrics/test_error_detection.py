"""AUROC and AUPR against scikit-learn."""

from collections.abc import Callable
from typing import Any

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


def test_unknown_ties_are_rejected() -> None:
    with pytest.raises(MetricError, match="'random'"):
        metrics.aupr([False], [0.5], ties="random")  # type: ignore[arg-type]
