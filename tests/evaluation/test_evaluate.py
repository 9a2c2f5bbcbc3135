"""Methods x metrics: the numbers, the intervals, the comparison, the parts."""

import json

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.estimators import confidence
from secondlook.evaluation import Evaluation, evaluate
from secondlook.evaluation.across import compare
from secondlook.predictions import Predictions


@pytest.fixture(scope="module")
def result(preds: Predictions) -> Evaluation:
    return evaluate(preds, resamples=200)


def test_numbers_are_those_of_the_metrics(preds: Predictions, result: Evaluation) -> None:
    assert result.methods == ("msr", "mean", "bootstrap")
    for method in result.methods:
        sure = confidence(preds, method)
        assert result[method, "auroc"].value == metrics.auroc(preds.correct(), sure)
        assert result[method, "risk_at:0.8"].value == metrics.risk_at(preds.correct(), sure, 0.8)
    difference = result["mean", "auroc"].difference
    assert difference == metrics.auroc(preds.correct(), confidence(preds, "mean")) - metrics.auroc(
        preds.correct(), confidence(preds, "msr")
    )
    assert result["msr", "auroc"].difference is None


def test_intervals_hold_the_value_and_better_means_something(result: Evaluation) -> None:
    for one in result.rows:
        assert one.value is not None
        assert one.interval is not None
        assert one.interval.low <= one.value <= one.interval.high
    assert result["mean", "auroc"].verdict == "better"
    assert result["mean", "aurc"].verdict == "better"
    assert result["msr", "auroc"].verdict is None
    flipped = {"msr": -np.arange(600.0), "same": -np.arange(600.0), "noise": np.random.default_rng(0).random(600)}
    assert evaluate(_some(600), flipped, ["auroc"], resamples=50)["same", "auroc"].verdict == "unclear"


def _some(n: int) -> Predictions:
    probabilities = np.full((n, 1, 2), 0.5)
    return Predictions(probabilities=probabilities, views="identity", labels=np.arange(n) % 2)


def test_a_worse_method_is_called_worse(preds: Predictions) -> None:
    result = evaluate(preds, ["mean", "msr"], ["auroc", "aurc"], baseline="mean", resamples=200)
    assert result.baseline == "mean"
    assert result["msr", "auroc"].verdict == "worse"
    assert result["msr", "aurc"].verdict == "worse"


def test_the_interval_is_that_of_drawing_images_again(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["auroc"], resamples=300, seed=5)
    correct, sure = preds.correct(), confidence(preds, "mean")
    rng = np.random.default_rng(5)
    drawn = [rng.integers(600, size=600) for _ in range(300)]
    values = [metrics.auroc(correct[chosen], sure[chosen]) for chosen in drawn]
    low, high = np.quantile(values, [0.025, 0.975])
    assert result["mean", "auroc"].interval is not None
    assert result["mean", "auroc"].interval.low == pytest.approx(low, abs=1e-12)
    assert result["mean", "auroc"].interval.high == pytest.approx(high, abs=1e-12)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, hits, rounds = np.random.default_rng(0), 0, 100
    for _ in range(rounds):
        right = rng.random(150) < 0.7
        sure = np.where(right, rng.normal(1.0, 1.0, 150), rng.normal(0.0, 1.0, 150))
        labels = np.where(right, 0, 1)
        preds = Predictions(probabilities=np.tile([0.9, 0.1], (150, 1, 1)), views="identity", labels=labels)
        ends = evaluate(preds, {"own": sure}, ["auroc"], resamples=100)["own", "auroc"].interval
        assert ends is not None
        hits += ends.low <= 0.7602499389 <= ends.high  # P(normal(1, 2) > 0)
    assert hits >= 86


def test_the_same_seed_gives_the_same_bytes(preds: Predictions) -> None:
    first, again, other = (
        json.dumps(evaluate(preds, ["mean"], ["aurc"], resamples=20, seed=seed).to_dict()) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_other_images_count_as_errors_and_are_reported_apart(preds: Predictions, others: Predictions) -> None:
    result = evaluate(preds, metrics=["auroc", "accuracy"], ood=others, resamples=20)
    assert result.parts == ("all images", "in distribution", "telling others apart")
    both = np.concatenate([confidence(preds, "mean"), confidence(others, "mean")])
    right = np.concatenate([preds.correct(), np.zeros(200, dtype=bool)])
    assert result["mean", "auroc"].value == pytest.approx(metrics.auroc(right, both), abs=1e-12)
    alone = evaluate(preds, ["msr"], ["auroc"], resamples=20)
    assert result["msr", "auroc", "in distribution"].value == alone["msr", "auroc"].value
    own = np.arange(800) < 600
    assert result["mean", "auroc", "telling others apart"].value == pytest.approx(metrics.auroc(own, both), abs=1e-12)
    assert "200 of them from elsewhere" in str(result)


def test_the_ranking_of_both_is_one_ranking(preds: Predictions, others: Predictions) -> None:
    joined = Predictions(
        logits=np.concatenate([preds.logits, others.logits]), views=preds.views, labels=np.zeros(800, dtype=int)
    )
    result = evaluate(preds, ["bootstrap"], ["auroc"], ood=others, resamples=5)
    right = np.concatenate([preds.correct(), np.zeros(200, dtype=bool)])
    assert result["bootstrap", "auroc"].value == metrics.auroc(right, confidence(joined, "bootstrap"))


def test_an_ensemble_is_joined_member_by_member(preds: Predictions, others: Predictions) -> None:
    pair, other_pair = (
        Predictions(members=[one, one.select(images=np.arange(one.n_images))], views=one.views)
        for one in (preds, others)
    )
    single = evaluate(preds, ["mean"], ["auroc"], ood=others, resamples=5)
    double = evaluate(pair, ["mean"], ["auroc"], ood=other_pair, resamples=5)
    assert double["mean", "auroc"].value == pytest.approx(single["mean", "auroc"].value, abs=1e-9)


def test_groups_and_classes_are_parts(preds: Predictions) -> None:
    light = np.where(np.arange(600) < 200, "day", "night")
    result = evaluate(preds, ["mean"], ["auroc"], groups={"light": light, "half": np.arange(600) % 2}, resamples=20)
    assert result.parts == ("all images", "light day", "light night", "half 0", "half 1")
    day = light == "day"
    expected = metrics.auroc(preds.correct()[day], confidence(preds, "mean")[day])
    assert result["mean", "auroc", "light day"].value == expected
    by_class = evaluate(preds, ["mean"], ["accuracy"], groups="class", resamples=5)
    assert by_class.parts[1:] == ("class ant", "class bee", "class cow", "class dog", "class elk")
    bees = preds.labels == 1
    assert by_class["mean", "accuracy", "class bee"].value == pytest.approx(preds.correct()[bees].mean())


def test_a_number_without_meaning_is_left_out_with_its_reason(preds: Predictions) -> None:
    right = preds.select(images=np.flatnonzero(preds.correct()))
    result = evaluate(right, ["msr", "mean"], ["auroc", "aurc"], resamples=20)
    assert result["mean", "auroc"].value is None
    assert result["mean", "auroc"].interval is None
    assert result["mean", "auroc"].verdict is None
    assert result["mean", "aurc"].value == 0.0
    assert "none of them is wrong" in str(result)


def test_a_value_that_few_resamplings_have_gets_no_interval() -> None:
    labels = np.array([1] + [0] * 29)
    preds = Predictions(probabilities=np.tile([0.9, 0.1], (30, 1, 1)), views="identity", labels=labels)
    one = evaluate(preds, {"own": np.arange(30.0)}, ["auroc"], resamples=50)["own", "auroc"]
    assert one.value == 1.0
    assert one.interval is None


def test_a_score_is_not_read_as_a_probability(preds: Predictions) -> None:
    result = evaluate(preds, ["mean", "bootstrap"], ["ece"], resamples=5)
    assert result["mean", "ece"].value is not None
    assert result["bootstrap", "ece"].value is None
    assert "not a probability of being right" in str(result)


def test_it_prints_well(result: Evaluation) -> None:
    text = str(result)
    assert "all images: 600 images" in text
    assert "4 views, class by x; 95 % intervals from 200 resamplings" in text
    assert "auroc ↑" in text
    assert "aurc ↓" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_class_by_all_views_and_leading_classes(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["accuracy"], predict_from="views", top_k=2, resamples=5)
    assert result["mean", "accuracy"].value == pytest.approx(preds.correct(predict_from="views", top_k=2).mean())
    assert "2 leading classes by D" in str(result)


def test_bad_input(preds: Predictions, others: Predictions) -> None:
    with pytest.raises(MetricError, match="these predictions have none"):
        evaluate(others)
    with pytest.raises(MetricError, match="baseline 'msr' is not among the methods mean"):
        evaluate(preds, ["mean"], baseline="msr")
    with pytest.raises(MetricError, match="has 3 values for 600 images"):
        evaluate(preds, {"own": [1.0, 2.0, 3.0]})
    with pytest.raises(MetricError, match="NaN at index 0"):
        evaluate(preds, {"own": np.full(600, np.nan)})
    with pytest.raises(MetricError, match="unknown metric 'aurok'"):
        evaluate(preds, metrics=["aurok"])
    with pytest.raises(MetricError, match="name at least one"):
        evaluate(preds, [])
    with pytest.raises(MetricError, match="differ in their views"):
        evaluate(preds, ood=others.select(views="identity hflip"))
    with pytest.raises(MetricError, match="one label per image"):
        evaluate(preds, groups=["a", "b"])
    with pytest.raises(MetricError, match="expected 'class'"):
        evaluate(preds, groups="kind")
    with pytest.raises(MetricError, match="level is 2"):
        evaluate(preds, level=2)
    with pytest.raises(MetricError, match=r"resamples 0, expected .* at least 1"):
        compare({"own": (preds.correct(), confidence(preds, "msr"))}, ["auroc"], resamples=0)
    with pytest.raises(MetricError, match="no number for 'mean, auc, all images'"):
        evaluate(preds, ["mean"], ["auroc"], resamples=2)["mean", "auc"]


def test_classes_with_the_same_name_stay_apart() -> None:
    answers = np.random.default_rng(0).dirichlet(np.ones(3), size=(60, 1))
    preds = Predictions(
        probabilities=answers, views="identity", labels=np.arange(60) % 3, class_names=["crane", "dog", "crane"]
    )
    result = evaluate(preds, "msr", "accuracy", groups="class", resamples=2)
    assert result.parts == ("all images", "class crane (0)", "class dog", "class crane (2)")
    assert [result["msr", "accuracy", part].images for part in result.parts] == [60, 20, 20, 20]


def test_groups_that_cannot_be_told_apart_are_refused(preds: Predictions) -> None:
    n = preds.n_images
    with pytest.raises(MetricError, match="two parts would both be called 'a b c'"):
        evaluate(preds, "msr", groups={"a": ["b c"] * n, "a b": ["c"] * n}, resamples=2)
    with pytest.raises(MetricError, match="groups 'site' has NaN for image 3"):
        evaluate(preds, "msr", groups={"site": [1.0, 1.0, 1.0, np.nan, *[2.0] * (n - 4)]}, resamples=2)


def test_one_name_is_not_taken_for_its_letters(preds: Predictions) -> None:
    assert evaluate(preds, "mean", "auroc", resamples=2).methods == ("mean",)


def test_a_parameter_or_a_seed_that_cannot_be_is_refused(preds: Predictions) -> None:
    with pytest.raises(MetricError, match=r"risk_at got coverage 2.0, expected a share in \(0, 1\]"):
        evaluate(preds, "mean", "risk_at:2", resamples=2)
    with pytest.raises(MetricError, match="seed is -1, expected a whole number of at least 0"):
        evaluate(preds, "mean", "auroc", resamples=2, seed=-1)
