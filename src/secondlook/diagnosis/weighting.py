"""Learned weighting of views: weights that add up to 1, shrunk towards counting all views the same."""

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray, softmax
from secondlook.diagnosis.expected_errors import fit_error_model, log_odds, logistic
from secondlook.diagnosis.pool import pool_of
from secondlook.diagnosis.strategies import Choice, Question, strategy
from secondlook.errors import DiagnosisError
from secondlook.predictions import Predictions

PULL = 0.03
"""How strongly weights are pulled to be equal, in nats of mean log-likelihood per nat of divergence."""


def learned_weights(shares: Float64Array, correct: BoolArray, pull: float = PULL) -> Float64Array:
    """Return the weights whose weighted mean explains best which images are wrong. [V, N], bool [N] -> [V]

    The chance of an error is a logistic function of the log odds of the confidence, fitted with equal weights. Then
    the mean negative log-likelihood plus `pull` times the Kullback-Leibler divergence from equal weights is made
    small; an infinite pull gives equal weights.
    """
    from scipy.optimize import minimize

    wrong = ~correct
    model = fit_error_model(shares.mean(axis=0), correct)
    n_views, n_images = shares.shape

    def loss_and_gradient(scores: Float64Array) -> tuple[float, Float64Array]:
        weights = softmax(scores)
        mean = np.clip(weights @ shares, 1e-9, 1 - 1e-9)
        odds = model.slope * log_odds(mean) + model.offset
        loss = np.mean(np.logaddexp(0, odds) - wrong * odds) + pull * np.sum(weights * np.log(weights * n_views))
        by_mean = (logistic(odds) - wrong) * model.slope / (mean * (1 - mean)) / n_images
        by_weight = shares @ by_mean + pull * (np.log(weights * n_views) + 1)
        return float(loss), weights * (by_weight - np.sum(weights * by_weight))

    found = minimize(loss_and_gradient, np.zeros(n_views), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return softmax(found.x)


@strategy(
    "weights",
    "learn a weight for each candidate, take the views that come nearest to the weighted mean, and weight those",
    by_objective=False,
)
def choose_by_weights(question: Question) -> Choice:
    """Choose the views whose plain mean is nearest to the weighted mean over the whole pool, and weight them anew."""
    target = learned_weights(question.shares, question.correct) @ question.shares
    places = _nearest_means(question, target)
    return Choice(places, learned_weights(question.shares[places], question.correct))


def _nearest_means(question: Question, target: Float64Array) -> IntArray:
    """Take one view after the other such that the mean over those taken stays nearest to the target. [N] -> [n]"""
    taken, total = [0], question.shares[0].copy()
    while len(taken) < question.budget:
        strayed = (total + question.shares) / (len(taken) + 1) - target
        distances = np.einsum("vn,vn->v", strayed, strayed)
        distances[taken] = np.inf
        taken.append(int(np.argmin(distances)))
        total += question.shares[taken[-1]]
        question.advance(1)
    return np.array(taken)


def weighted_confidence(
    preds: Predictions, weights: "tuple[float, ...] | Float64Array", *, top_k: int = 1
) -> Float64Array:
    """Return the weighted mean over the views of what the predicted classes hold. [V] -> float64 [N]

    The views are those of `preds`, in their order; the class is the one predicted from the image itself.
    """
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (preds.n_views,):
        raise DiagnosisError(
            f"there are {given.size} weights for {preds.n_views} views; select the found views first, "
            "as in preds.select(views=result.views)."
        )
    if not np.isfinite(given).all() or (given < 0).any() or abs(given.sum() - 1) > 1e-6:
        raise DiagnosisError(f"the weights add up to {given.sum():g}; expected numbers from 0 up that add up to 1.")
    return np.clip(given @ pool_of(preds, top_k).shares, 0.0, 1.0)
