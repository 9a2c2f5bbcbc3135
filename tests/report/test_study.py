"""The study of a report: which methods are compared, with which seed, and what it rejects."""

import numpy as np
import pytest

from secondlook.errors import ReportError
from secondlook.estimators import confidence
from secondlook.predictions import Predictions
from secondlook.report.study import build_study


@pytest.mark.parametrize(
    ("methods", "baseline", "second_look"),
    [
        (["mean", "msr"], "msr", "mean"),
        (["msr", "entropy", "bootstrap"], "msr", "bootstrap"),
        (["mean", "entropy"], "mean", "entropy"),
        (["msr", "mean", "blend"], "msr", "blend"),
        (["msr"], "msr", None),
    ],
)
def test_baseline_and_second_look_do_not_depend_on_the_results(
    preds: Predictions, methods: list[str], baseline: str, second_look: str | None
) -> None:
    study = build_study(preds, methods=methods)
    assert (study.baseline, study.second_look) == (baseline, second_look)


def test_seed_is_passed_to_the_bootstrap(preds: Predictions) -> None:
    study = build_study(preds, methods=["bootstrap"], seed=5)
    np.testing.assert_array_equal(study.confidences["bootstrap"], confidence(preds, "bootstrap", seed=5))


def test_classes_without_names_are_numbered(preds: Predictions) -> None:
    unnamed = Predictions(probabilities=preds.probabilities, views=preds.views, labels=preds.labels)
    assert build_study(unnamed, methods=["msr"]).class_names == ("class 0", "class 1", "class 2", "class 3")


def test_predictions_without_labels_are_rejected(preds: Predictions) -> None:
    unlabeled = Predictions(probabilities=preds.probabilities, views=preds.views)
    with pytest.raises(ReportError, match="labels="):
        build_study(unlabeled)


def test_empty_methods_are_rejected(preds: Predictions) -> None:
    with pytest.raises(ReportError, match="methods="):
        build_study(preds, methods=[])
