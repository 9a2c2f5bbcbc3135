"""Groups of images: classes, given groups, and out-of-distribution images."""

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.estimators import confidence
from secondlook.evaluation import evaluate
from secondlook.predictions import Predictions


def test_ood_images_count_as_errors_and_form_groups(preds: Predictions, ood: Predictions) -> None:
    result = evaluate(preds, metrics=["auroc", "accuracy"], ood=ood, resamples=20)
    assert result.groups == ("all images", "in distribution", "OOD detection")
    both = np.concatenate([confidence(preds, "mean"), confidence(ood, "mean")])
    correct = np.concatenate([preds.correct(), np.zeros(200, dtype=bool)])
    assert result["mean", "auroc"].value == pytest.approx(metrics.auroc(correct, both), abs=1e-12)
    alone = evaluate(preds, ["msr"], ["auroc"], resamples=20)
    assert result["msr", "auroc", "in distribution"].value == alone["msr", "auroc"].value
    own = np.arange(800) < 600
    assert result["mean", "auroc", "OOD detection"].value == pytest.approx(metrics.auroc(own, both), abs=1e-12)
    assert "200 of them out of distribution" in str(result)


def test_ood_images_are_ranked_together_with_the_others(preds: Predictions, ood: Predictions) -> None:
    together = Predictions(
        logits=np.concatenate([preds.logits, ood.logits]), views=preds.views, labels=np.zeros(800, dtype=int)
    )
    result = evaluate(preds, ["bootstrap"], ["auroc"], ood=ood, resamples=5)
    correct = np.concatenate([preds.correct(), np.zeros(200, dtype=bool)])
    assert result["bootstrap", "auroc"].value == metrics.auroc(correct, confidence(together, "bootstrap"))


def test_ood_with_other_views_is_rejected(preds: Predictions, ood: Predictions) -> None:
    with pytest.raises(MetricError, match="ood="):
        evaluate(preds, ood=ood.select(views="identity hflip"))


def test_given_groups_are_evaluated_separately(preds: Predictions) -> None:
    light = np.where(np.arange(600) < 200, "day", "night")
    result = evaluate(preds, ["mean"], ["auroc"], groups={"light": light, "half": np.arange(600) % 2}, resamples=20)
    assert result.groups == ("all images", "light day", "light night", "half 0", "half 1")
    day = light == "day"
    expected = metrics.auroc(preds.correct()[day], confidence(preds, "mean")[day])
    assert result["mean", "auroc", "light day"].value == expected


def test_classes_are_evaluated_separately(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["accuracy"], groups="class", resamples=5)
    assert result.groups[1:] == ("class ant", "class bee", "class cow", "class dog", "class elk")
    bees = preds.labels == 1
    assert result["mean", "accuracy", "class bee"].value == pytest.approx(preds.correct()[bees].mean())


def test_classes_with_the_same_name_stay_separate() -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), size=(60, 1))
    preds = Predictions(
        probabilities=probabilities, views="identity", labels=np.arange(60) % 3, class_names=["crane", "dog", "crane"]
    )
    result = evaluate(preds, "msr", "accuracy", groups="class", resamples=2)
    assert result.groups == ("all images", "class crane (0)", "class dog", "class crane (2)")
    assert [result["msr", "accuracy", group].images for group in result.groups] == [60, 20, 20, 20]


def test_duplicate_group_names_are_rejected(preds: Predictions) -> None:
    n = preds.n_images
    with pytest.raises(MetricError, match="'a b c'"):
        evaluate(preds, "msr", groups={"a": ["b c"] * n, "a b": ["c"] * n}, resamples=2)


def test_group_label_nan_is_rejected(preds: Predictions) -> None:
    with pytest.raises(MetricError, match=r"'site'.* 3;"):
        evaluate(preds, "msr", groups={"site": [1.0, 1.0, 1.0, np.nan, *[2.0] * (preds.n_images - 4)]}, resamples=2)


@pytest.mark.parametrize(("groups", "offending"), [(["a", "b"], r"\(2,\)"), ("kind", "'kind'")])
def test_invalid_groups_are_rejected(preds: Predictions, groups: object, offending: str) -> None:
    with pytest.raises(MetricError, match=offending):
        evaluate(preds, groups=groups)  # type: ignore[arg-type]
