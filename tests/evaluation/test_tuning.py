"""Images set apart: methods are fitted on them, and every number is about the other images."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.arrays import Array
from secondlook.errors import MetricError
from secondlook.estimators import confidence, fit_method, tuning_positions
from secondlook.evaluation import compare, evaluate
from secondlook.predictions import Predictions

PNORM = "max-logit-pnorm?on=views"


@pytest.fixture(scope="module")
def many() -> Predictions:
    """1,200 images x 3 views x 4 classes, of which 300 suffice to fit 'learned'."""
    rng = np.random.default_rng(3)
    labels = rng.integers(4, size=1200)
    logits = 1.5 * rng.normal(size=(1200, 3, 4)) + rng.normal(size=(1200, 1, 4))
    logits[np.arange(1200), :, labels] += rng.gamma(2.0, 2.0, size=1200)[:, None]
    return Predictions(logits=logits, views="identity hflip shift:1,0", labels=labels)


def split(preds: Predictions, tuning: Array) -> tuple[Predictions, Predictions]:
    """Return the predictions for the tuning images and for the judged ones."""
    apart = np.zeros(preds.n_images, dtype=np.bool_)
    apart[tuning] = True
    return preds.select(images=apart), preds.select(images=~apart)


def fit(tuning: Predictions, text: str) -> dict[str, Any]:
    return fit_method(tuning, text)


def test_methods_are_fitted_on_images_that_are_not_judged(many: Predictions) -> None:
    result = evaluate(many, ["msr", PNORM, "learned"], ["auroc", "aurc"], resamples=5, seed=2)
    tuning, judged = split(many, tuning_positions(1200))
    assert result.tuning_images == tuning.n_images == 300
    assert {(one.images, one.errors) for one in result.rows} == {(900, int((~judged.correct()).sum()))}
    for text, name in (("msr", "msr"), (PNORM, "max-logit-pnorm"), ("learned", "learned")):
        values = confidence(judged, name, **fit(tuning, text))
        assert result[text, "auroc"].value == metrics.auroc(judged.correct(), values)
    assert result.accuracy_from_image == judged.correct().mean()
    assert result.accuracy_from_views == judged.correct(predict_from="views").mean()
    assert "300 images set apart for tuning, 900 judged" in str(result)


def test_labels_of_judged_images_do_not_change_what_is_fitted(many: Predictions) -> None:
    """Whatever the other labels are, every judged image keeps its confidence."""
    tuning, judged = split(many, tuning_positions(1200))
    labels = np.array(many.labels)
    labels[np.isin(np.arange(1200), tuning_positions(1200), invert=True)] = 0
    relabeled = Predictions(logits=many.logits, views=many.views, labels=labels)
    expected = confidence(judged, "learned", **fit(tuning, "learned"))
    result = evaluate(relabeled, "learned", "brier", resamples=2)
    correct = judged.predicted() == 0
    assert result["learned", "brier"].value == pytest.approx(metrics.brier(correct, expected), abs=1e-6)


def test_everything_is_judged_if_nothing_is_fitted(many: Predictions) -> None:
    result = evaluate(many, ["msr", "max-logit-pnorm?p=3"], ["auroc"], resamples=2)
    assert (result.tuning_images, result.rows[0].images) == (0, 1200)
    assert "set apart" not in str(result)


def test_defaults_include_the_learned_method_if_it_can_be_fitted(many: Predictions, preds: Predictions) -> None:
    apart = tuning_positions(1200)
    result = evaluate(many, metrics="auroc", tuning=apart, resamples=2)
    assert result.methods == ("msr", "mean", "bootstrap", "blend", "learned")
    assert (result.tuning_images, result.notes) == (300, ())
    unasked = evaluate(many, metrics="auroc", resamples=2)
    assert unasked.methods == ("msr", "mean", "bootstrap", "blend"), "no labels are spent unasked"
    assert (unasked.tuning_images, unasked.notes) == (0, ())
    few = evaluate(preds, metrics="auroc", tuning=range(150), resamples=2)
    assert few.methods == ("msr", "mean", "bootstrap", "blend")
    assert (few.tuning_images, few.rows[0].images) == (150, 450)
    (note,) = few.notes
    assert "learned" in note
    assert "150" in note, "how many images there are"
    assert "Left out: " in str(few)


def test_one_view_has_one_default_method(many: Predictions) -> None:
    result = evaluate(many.select(views="identity"), metrics="auroc", resamples=2)
    assert (result.methods, result.tuning_images, result.notes) == (("msr",), 0, ())


@pytest.mark.parametrize("as_mask", [False, True])
def test_images_set_apart_before_are_not_judged(many: Predictions, as_mask: bool) -> None:
    positions = np.arange(1199, 799, -1)
    tuning = np.isin(np.arange(1200), positions) if as_mask else positions
    result = evaluate(many, ["mean", "learned"], ["aurc"], tuning=tuning, resamples=2)
    fitted_on, judged = many.select(images=np.arange(800, 1200)), many.select(images=np.arange(800))
    assert (result.tuning_images, result.rows[0].images) == (400, 800)
    assert result["mean", "aurc"].value == metrics.aurc(judged.correct(), confidence(judged, "mean"))
    learned = confidence(judged, "learned", **fit(fitted_on, "learned"))
    assert result["learned", "aurc"].value == metrics.aurc(judged.correct(), learned)


def test_no_images_set_apart_means_that_all_are_judged(many: Predictions) -> None:
    cases: tuple[object, ...] = ([], np.zeros(1200, dtype=np.bool_))
    for tuning in cases:
        result = evaluate(many, metrics="auroc", tuning=tuning, resamples=2)
        assert (result.tuning_images, result.rows[0].images) == (0, 1200)
        assert "learned" not in result.methods
        with pytest.raises(MetricError, match=r"'learned'.*tuning="):
            evaluate(many, "learned", tuning=tuning)


def test_groups_and_unknown_images_are_those_of_judged_images(preds: Predictions, unknown: Predictions) -> None:
    half = np.arange(600) % 2
    options: dict[str, Any] = {"metrics": ["auroc"], "unknown": unknown, "resamples": 2}
    result = evaluate(preds, ["mean"], groups={"half": half}, tuning=np.arange(100), **options)
    expected = evaluate(preds.select(images=np.arange(100, 600)), ["mean"], groups={"half": half[100:]}, **options)
    assert result.rows == expected.rows
    assert result.groups == ("all images", "known images", "half 0", "half 1", "unknown detection")
    assert "100 images set apart for tuning, 500 judged" in str(result)
    own = np.append(confidence(preds, "mean"), confidence(unknown, "mean"))
    given = evaluate(preds, {"mean": own}, tuning=np.arange(100), **options)
    assert given["mean", "auroc", "unknown detection"] == result["mean", "auroc", "unknown detection"]
    with pytest.raises(MetricError, match="500"):
        evaluate(preds, ["mean"], groups=half[100:], tuning=np.arange(100))


@pytest.mark.parametrize("tuning", [[1200], [3, 3], np.ones(1200, dtype=bool), [0.5], np.zeros(3, dtype=bool) == 0])
def test_invalid_tuning_images_are_rejected(many: Predictions, tuning: object) -> None:
    with pytest.raises(MetricError, match="tuning="):
        evaluate(many, "mean", tuning=tuning)


def test_options_of_methods_are_part_of_their_names(many: Predictions) -> None:
    texts = ["max-logit-pnorm?p=3&on=views", "max-logit-pnorm?p=4", "zero?share=0.5"]
    result = evaluate(many, texts, ["auroc", "ece"], resamples=2)
    assert result.methods == tuple(texts)
    expected = metrics.auroc(many.correct(), confidence(many, "max-logit-pnorm", p=3, on="views"))
    assert result[texts[0], "auroc"].value == expected
    assert texts[2] in (result[texts[2], "ece"].reason or ""), "a score, not a probability"


def run_of(preds: Predictions, tuning: Array) -> SimpleNamespace:
    return SimpleNamespace(predictions=preds, tuning_positions=tuning)


def test_comparison_judges_images_that_no_run_set_apart(many: Predictions) -> None:
    first, second = run_of(many, np.arange(250)), run_of(many.select(images=np.arange(100, 1200)), np.arange(50, 200))
    result = compare({"a": first, "b": second}, ["mean", "learned"], ["auroc"], resamples=2)
    tuning, judged = many.select(images=np.arange(100, 300)), many.select(images=np.arange(300, 1200))
    assert (result.tuning_images, result.n_images) == (200, 900)
    learned = metrics.auroc(judged.correct(), confidence(judged, "learned", **fit(tuning, "learned")))
    values = {row.method: row.value for row in result.rows}
    assert values["a mean"] == values["b mean"] == metrics.auroc(judged.correct(), confidence(judged, "mean"))
    assert values["a learned"] == values["b learned"] == learned
    assert "200 images set apart for tuning, 900 judged" in str(result)
    assert result.to_dict()["tuning_images"] == 200


def test_comparison_sets_images_apart_only_to_fit_methods(many: Predictions) -> None:
    assert compare({"a": many}, resamples=2).tuning_images == 0
    result = compare({"a": many, "b": run_of(many, np.array([], dtype=int))}, ["msr", "learned"], resamples=2, seed=2)
    assert (result.tuning_images, result.n_images) == (300, 900)
    evaluated = evaluate(many, ["msr", "learned"], ["accuracy", "auroc", "aurc", "risk_at:0.8"], resamples=2, seed=2)
    assert [row.value for row in result.rows[:8]] == [row.value for row in evaluated.rows]


def test_comparison_of_runs_without_images_to_judge_is_rejected(many: Predictions) -> None:
    runs = {"a": run_of(many, np.arange(300)), "b": run_of(many.select(images=np.arange(300)), np.arange(0))}
    with pytest.raises(MetricError, match="300 images"):
        compare(runs)
