"""`confidence`: one number per image, by the name of a method, from predictions alone."""

from collections.abc import Mapping

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError
from secondlook.estimators import black_box, bootstrap, distance, dropout, responses  # noqa: F401 -- they register
from secondlook.estimators.logits import has_logits
from secondlook.estimators.registry import METHODS, Method, Need, check_options, find_method
from secondlook.predictions import PredictFrom, Predictions, check_top_k

__all__ = ["METHODS", "check_question", "confidence"]


def confidence(
    preds: Predictions, name: str = "mean", *, predict_from: PredictFrom = "image", top_k: int = 1, **options: object
) -> Float64Array:
    """Return how sure each predicted class is, float64 [N]; higher is surer, never NaN.

    `predict_from="image"` is about the class predicted from the image itself, `predict_from="views"` about that from the mean over all views;
    with k > 1 the answer is the k leading classes. `METHODS` holds the names, docs/estimators.md the formulas.
    """
    check_question(preds, predict_from, top_k)
    found, parameter = find_method(name)
    check_options(found, options)
    _check_needs(preds, found, options)
    return _checked_values(
        found.compute(preds, *parameter, predict_from=predict_from, top_k=top_k, **options), found, preds.n_images
    )


def check_question(preds: Predictions, predict_from: PredictFrom, top_k: int) -> None:
    """Refuse what is no predictions, and a `by` or a `k` that does not exist."""
    if not isinstance(preds, Predictions):
        raise ConfidenceError(
            f"a confidence is computed from Predictions, got {type(preds).__name__}; "
            "wrap arrays [images, views, classes] as Predictions(probabilities=..., views=...)."
        )
    if predict_from not in ("image", "views"):
        raise ConfidenceError(
            f"predict_from is {predict_from!r}; expected 'image' or 'views' (the mean over all views)."
        )
    check_top_k(top_k, preds.n_classes)


def _check_needs(preds: Predictions, found: Method, options: Mapping[str, object]) -> None:
    missing: dict[Need, str] = {}
    if not has_logits(preds):
        missing["logits"] = "logits; collect from a classifier that gives them, with output='logits'"
    if not preds.members:
        missing["members"] = "the members of an ensemble; collect with Ensemble([...]) or give Predictions(members=...)"
    if preds.n_outputs < 2:
        missing["two views"] = (
            "at least two views to draw from, and these predictions have one; collect with more views"
        )
    if options.get("passes") is None:
        missing["passes"] = "passes=, which mc_dropout_passes(classifier, images) makes"
    if any(options.get(name) is None for name in ("embeddings", "train_embeddings", "train_labels")):
        missing["embeddings"] = (
            "embeddings=, train_embeddings= and train_labels=; embeddings(classifier, images, layer=...) makes them"
        )
    for need in found.needs:
        if need in missing:
            raise ConfidenceError(f"confidence {found.form!r} needs {missing[need]}.")


def _checked_values(values: Float64Array, found: Method, n_images: int) -> Float64Array:
    if values.shape != (n_images,) or values.dtype != np.float64:
        raise ConfidenceError(
            f"confidence {found.form!r} computed {values.dtype} {list(values.shape)}, expected float64 [{n_images}]; "
            "repair the method."
        )
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ConfidenceError(
            f"confidence {found.form!r} of image {wrong[0]} is {values[wrong[0]]}; look at what was given to it."
        )
    # A sum over k classes, and probabilities of a classifier in half precision, may exceed 1 by rounding.
    return np.clip(values, 0.0, 1.0) if found.is_probability else values
