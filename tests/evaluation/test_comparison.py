"""`compare`: images paired by id, and differences to the first classifier."""

import json
from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.estimators import confidence
from secondlook.evaluation import Comparison, compare, evaluate
from secondlook.predictions import Predictions


def make_predictions(seed: int, ids: list[str], labels: list[int]) -> Predictions:
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(len(ids), 2, 3))
    logits[np.arange(len(ids)), :, labels] += 2.0
    return Predictions(logits=logits, views="identity hflip", labels=labels, ids=ids)


IDS = [f"image-{index}" for index in range(120)]
LABELS = [index % 3 for index in range(120)]


@pytest.fixture
def first() -> Predictions:
    return make_predictions(0, IDS[:100], LABELS[:100])


@pytest.fixture
def second() -> Predictions:
    """Other images and another order."""
    return make_predictions(1, IDS[:19:-1], LABELS[:19:-1])


def test_images_are_paired_by_id(first: Predictions, second: Predictions) -> None:
    result = compare({"a": first, "b": second}, "mean", ["accuracy", "auroc"], resamples=20)
    assert result.n_images == 80
    assert result.baseline == "a mean"
    assert (result.predict_from, result.top_k, result.level) == ("image", 1, 0.95)
    shared = IDS[20:100]
    values = {}
    for name, preds in (("a", first), ("b", second)):
        paired = preds.select(images=np.array([preds.ids.index(image) for image in shared]))
        values[name] = metrics.auroc(paired.correct(), confidence(paired, "mean"))
    rows = {(row.method, row.metric): row for row in result.rows}
    assert rows["a mean", "auroc"].value == values["a"]
    assert rows["b mean", "auroc"].value == values["b"]
    assert rows["b mean", "auroc"].difference == values["b"] - values["a"]
    assert {row.group for row in result.rows} == {"all images"}


def test_defaults_compare_msr_and_mean(first: Predictions) -> None:
    result = compare({"a": first}, resamples=5)
    assert list(dict.fromkeys(row.method for row in result.rows)) == ["a msr", "a mean"]
    assert list(dict.fromkeys(row.metric for row in result.rows)) == ["accuracy", "auroc", "aurc", "risk_at:0.8"]


def test_methods_of_one_classifier_compare_as_in_evaluate(preds: Predictions) -> None:
    compared = compare({"a": preds}, ["msr", "mean", "bootstrap"], ["auroc", "ece"], resamples=30, seed=4).rows
    evaluated = evaluate(preds, ["msr", "mean", "bootstrap"], ["auroc", "ece"], resamples=30, seed=4).rows
    for ours, theirs in zip(compared, evaluated, strict=True):
        assert ours.method == f"a {theirs.method}"
        assert (ours.value, ours.interval, ours.difference) == (theirs.value, theirs.interval, theirs.difference)


def test_class_from_views_and_top_k(first: Predictions, second: Predictions) -> None:
    result = compare({"a": first, "b": second}, "mean", "accuracy", predict_from="views", top_k=2, resamples=5)
    assert (result.predict_from, result.top_k) == ("views", 2)
    paired = first.select(images=np.arange(20, 100))
    assert result.rows[0].value == pytest.approx(paired.correct(predict_from="views", top_k=2).mean())
    assert "80 images, top-2 classes predicted from the views" in str(result)


def test_comparison_prints_and_converts(first: Predictions, second: Predictions) -> None:
    result = compare({"a": first, "b": second}, resamples=20)
    assert "Δ vs a msr" in str(result)
    values = json.loads(json.dumps(result.to_dict()))
    assert (values["baseline"], values["n_images"], len(values["rows"])) == ("a msr", 80, len(result.rows))
    assert result.to_arrow()["value"].to_pylist() == [row.value for row in result.rows]
    pytest.importorskip("pandas")
    assert result.to_frame()["method"].tolist() == [row.method for row in result.rows]


@pytest.mark.parametrize(
    ("other", "offending"),
    [
        (make_predictions(1, ["x", "y", "z"], [0, 1, 2]), "'a', 'b'"),
        (make_predictions(1, IDS[:100], [1, *LABELS[1:100]]), r"'a' and 'b'.* 1 of 100"),
        (Predictions(logits=np.zeros((200, 2, 3)), views="identity hflip"), "'b'"),
        (3, "'b' is a int"),
    ],
    ids=["no common images", "other labels", "no labels", "other type"],
)
def test_predictions_that_cannot_be_compared_are_rejected(first: Predictions, other: Any, offending: str) -> None:
    with pytest.raises(MetricError, match=offending):
        compare({"a": first, "b": other})


def test_empty_input_and_confidences_of_different_images_are_rejected(first: Predictions) -> None:
    with pytest.raises(MetricError, match="predictions"):
        compare({})
    with pytest.raises(MetricError, match="method"):
        compare({"a": first}, methods=[])
    correct, values = first.correct(), confidence(first, "msr")
    with pytest.raises(MetricError, match="'b': 7"):
        Comparison.from_confidences({"a": (correct, values), "b": (correct[:7], values[:7])}, ["auroc"])
