"""Predicting from the image or from the views: both are shown, and one sentence recommends."""

import numpy as np
import pytest

from secondlook import metrics
from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.estimators import confidence
from secondlook.evaluation import Evaluation, evaluate
from secondlook.predictions import PredictFrom, Predictions


def make_predictions(first: BoolArray, other: BoolArray, certainty: Float64Array) -> Predictions:
    """Predictions of two views, of which the second decides; which of them are correct is given. bool [N] each"""
    top = np.stack([np.full(len(first), 0.6), certainty], axis=1)
    correct = np.stack([first, other], axis=1)
    mass = np.where(correct, top, 1 - top)
    labels = np.zeros(len(first), dtype=int)
    return Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views="identity hflip", labels=labels)


N = 1000
CERTAIN = np.full(N, 0.9)
EVERY_TENTH, EVERY_FIFTH, EVERY_HALF = (np.arange(N) % one != 0 for one in (10, 5, 2))


def test_views_are_recommended_where_they_are_more_accurate() -> None:
    preds = make_predictions(EVERY_HALF, EVERY_TENTH, CERTAIN)
    result = evaluate(preds, ["mean"], ["aurc"], resamples=100)
    compared = result.image_or_views
    assert compared is not None
    assert compared.recommended == "views"
    values = {(one.method, one.metric): one.value for one in compared.rows}
    for origin in ("image", "views"):
        correct = preds.correct(predict_from=origin)
        assert values[origin, "accuracy"] == correct.mean()
        expected = metrics.aurc(correct, confidence(preds, "mean", predict_from=origin))
        assert values[origin, "aurc"] == expected
    sentence = result.recommendation
    assert sentence is not None
    assert sentence.startswith("Predict from the views: accuracy 90.0 % instead of 50.0 % (+40.0 [")
    assert result.verdict["Advice"].endswith(sentence)
    assert " ".join(result.details().split()).endswith(sentence)
    kept = evaluate(preds, ["mean"], ["aurc"], predict_from="views", resamples=100)
    assert kept.image_or_views == compared, "both are shown whatever is predicted from"
    assert kept.recommendation is not None
    assert kept.recommendation.startswith("Keep predicting from the views: accuracy 90.0 %")


@pytest.mark.parametrize(("predict_from", "start"), [("image", "Keep predicting"), ("views", "Predict")])
def test_image_is_recommended_where_views_are_less_accurate(predict_from: PredictFrom, start: str) -> None:
    preds = make_predictions(EVERY_TENTH, EVERY_HALF, CERTAIN)
    result = evaluate(preds, ["mean"], ["aurc"], predict_from=predict_from, resamples=100)
    assert result.image_or_views is not None
    assert result.image_or_views.recommended == "image"
    assert result.recommendation is not None
    assert result.recommendation.startswith(f"{start} from the image: from the views, accuracy 50.0 %")


def test_views_are_not_recommended_where_the_aurc_is_worse() -> None:
    """The views are more accurate, and most certain where they are wrong."""
    image, wrong = np.arange(N) >= 250, (np.arange(N) >= 300) & (np.arange(N) < 400)
    preds = make_predictions(image, ~wrong, np.where(wrong, 0.99, 0.7))
    result = evaluate(preds, ["mean"], ["aurc"], resamples=200)
    assert result.image_or_views is not None
    accuracy, aurc = result.image_or_views.rows[2:]
    assert (accuracy.verdict, aurc.verdict) == ("better", "worse")
    assert result.image_or_views.recommended == "image"


def test_unclear_difference_is_stated() -> None:
    preds = make_predictions(EVERY_FIFTH, np.roll(EVERY_FIFTH, 1), CERTAIN)
    result = evaluate(preds, ["mean"], ["aurc"], resamples=100)
    assert result.image_or_views is not None
    assert result.image_or_views.recommended is None
    assert result.recommendation is not None
    assert "no clear difference" in result.recommendation
    assert "80.0 %" in result.recommendation


def test_nothing_is_recommended_from_one_view_or_few_errors() -> None:
    preds = make_predictions(EVERY_HALF, EVERY_TENTH, CERTAIN)
    alone = evaluate(preds.select(views="identity"), ["mean"], ["aurc"], resamples=2)
    assert (alone.image_or_views, alone.recommendation) == (None, None)
    few = make_predictions(np.arange(N) > 2, np.arange(N) > 1, CERTAIN)
    result = evaluate(few, ["mean"], ["aurc"], resamples=20)
    assert result.image_or_views is not None
    assert (result.image_or_views.recommended, result.recommendation) == (None, None)


def test_only_judged_images_count() -> None:
    preds = make_predictions(EVERY_HALF, EVERY_TENTH, CERTAIN)
    part = evaluate(preds.select(images=np.arange(100, N)), ["mean"], ["aurc"], resamples=20)
    whole = evaluate(preds, ["mean"], ["aurc"], tuning=np.arange(100), resamples=20)
    assert whole.image_or_views == part.image_or_views


def test_comparison_is_stored(preds: Predictions) -> None:
    thrice = Predictions(logits=np.tile(preds.logits, (3, 1, 1)), views=preds.views, labels=np.tile(preds.labels, 3))
    result = evaluate(thrice, ["mean"], ["auroc"], top_k=2, resamples=20)
    assert "top-2 accuracy" in (result.recommendation or "")
    stored = result.to_dict()
    assert stored["recommendation"] == result.recommendation
    assert Evaluation.from_dict(stored) == result
    without = Evaluation.from_dict({key: stored[key] for key in stored if key != "image_or_views"})
    assert (without.image_or_views, without.recommendation) == (None, None)
    assert isinstance(stored["image_or_views"], dict)
    rows = stored["image_or_views"]["rows"]
    for invalid in (rows[:3], rows[::-1]):
        with pytest.raises(MetricError, match=r"image_or_views"):
            Evaluation.from_dict({**stored, "image_or_views": {"method": "mean", "rows": invalid}})
