"""Choosing a threshold: for a guaranteed risk, or for a share of accepted images."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from secondlook.errors import DecisionError, MetricError
from secondlook.estimators import METHODS
from secondlook.estimators import confidence as confidence_of
from secondlook.metrics import Ranking, check_confidence, count_for_coverage, rank
from secondlook.predictions import PredictFrom, Predictions
from secondlook.selective.fallback_test import largest_certified_count
from secondlook.selective.rule import Calibration, Guarantee, Rule, Shortfall
from secondlook.selective.shortfall import further_images, smallest_certifiable_risk


def certify(
    preds: Predictions,
    method: str = "mean",
    *,
    risk: float,
    delta: float,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    **options: object,
) -> Rule:
    """Return the rule with the largest coverage whose error rate among the accepted is at most `risk`.

    The guarantee holds with probability 1 - `delta` over the draw of the labeled images, whatever the classifier and the
    distribution. Where nothing can be guaranteed, `certified` is False and the rule accepts nothing.
    """
    check_risk_and_delta(risk, delta)
    if not preds.has_labels:
        raise DecisionError("a guarantee needs labeled images, and these predictions have no labels; give labels=.")
    check_threshold_transfers(method, options)
    sure = confidence_of(preds, method, predict_from=predict_from, top_k=top_k, **options)
    rule = certify_confidence(preds.correct(predict_from=predict_from, top_k=top_k), sure, risk=risk, delta=delta)
    return replace(rule, method=method, predict_from=predict_from, top_k=top_k, options=dict(options))


def certify_confidence(correct: ArrayLike, confidence: ArrayLike, *, risk: float, delta: float) -> Rule:
    """`certify` for a confidence computed elsewhere. bool [N], float64 [N]"""
    check_risk_and_delta(risk, delta)
    ranking = _ranked(correct, confidence)
    asked = Guarantee(risk, delta)
    accepted = largest_certified_count(ranking, risk, delta)
    if accepted is None:
        shortfall = Shortfall(
            asked, smallest_certifiable_risk(ranking, risk, delta), further_images(ranking, risk, delta)
        )
        return Rule(math.inf, calibration=Calibration(ranking.n_images, 0, 0), shortfall=shortfall)
    block = int(np.searchsorted(ranking.accepted, accepted))
    seen = Calibration(ranking.n_images, accepted, int(ranking.errors[block]))
    return Rule(float(ranking.confidences[block]), guarantee=asked, calibration=seen)


def threshold_for(
    preds: Predictions,
    method: str = "mean",
    *,
    coverage: float,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    **options: object,
) -> Rule:
    """Return the rule that accepts at least this share of the images, without a guarantee about errors.

    Equal confidences are accepted together, so the share may be larger. Labels are not needed.
    """
    if not 0 < coverage <= 1:
        raise DecisionError(f"coverage is {coverage}, expected a share of images in (0, 1] such as 0.8.")
    check_threshold_transfers(method, options)
    sure = confidence_of(preds, method, predict_from=predict_from, top_k=top_k, **options)
    threshold = float(np.sort(sure)[::-1][count_for_coverage(coverage, len(sure)) - 1])
    accepted = sure >= threshold
    errors = (
        int(np.sum(accepted & ~preds.correct(predict_from=predict_from, top_k=top_k))) if preds.has_labels else None
    )
    seen = Calibration(len(sure), int(np.sum(accepted)), errors)
    return Rule(threshold, method, predict_from, top_k, dict(options), calibration=seen)


def check_risk_and_delta(risk: float, delta: float) -> None:
    """Refuse shares that are no shares."""
    for name, value, example in (("risk", risk, "0.01 for 1 % errors"), ("delta", delta, "0.001 for 99.9 % certainty")):
        if not 0 < value < 1:
            raise DecisionError(f"{name} is {value}, expected a number between 0 and 1, such as {example}.")


def check_threshold_transfers(method: str, options: dict[str, object]) -> None:
    """Refuse a confidence that changes with the other images: a threshold on it means nothing for new ones."""
    name = method.partition(":")[0]
    if name in METHODS and METHODS[name].is_rank:
        raise DecisionError(
            f"confidence {name!r} is a place among the images at hand, so no threshold carries over to others; "
            "use 'bootstrap-lower' or 'mean'."
        )
    if name == "max-logit-pnorm" and options.get("p") is None:
        raise DecisionError("'max-logit-pnorm' chooses p on the images at hand; choose it on others and give p=.")
    if options.get("temperature") == "fit":
        raise DecisionError(
            "temperature='fit' fits to the images at hand; fit it on others with fit_temperature and give the number."
        )


def _ranked(correct: ArrayLike, confidence: ArrayLike) -> Ranking:
    try:
        return rank(*check_confidence(correct, confidence))
    except MetricError as error:
        raise DecisionError(str(error)) from None
