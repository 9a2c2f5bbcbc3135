"""Images that are set apart to fit methods, and the methods fitted on them; only the other images are judged."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MetricError, PredictionsError
from secondlook.estimators.methods import Resampling, confidence, find_method, split_method
from secondlook.estimators.tuning import fit_method, needs_fitting, tuning_positions
from secondlook.estimators.view_means import describe_shortage
from secondlook.predictions import PredictFrom, Predictions, resolve_positions

SINGLE_VIEW_METHODS = ("msr",)
MULTI_VIEW_METHODS = ("msr", "mean", "bootstrap", "blend")
LEARNED = "learned"


@dataclass(frozen=True, eq=False)
class FittedMethods:
    """Methods with their fitted options, and the split of the images into those set apart and those judged."""

    options: Mapping[str, dict[str, object]]
    """All options of each method, given and fitted, by its text."""
    tuning: IntArray
    """Positions of the images that are set apart. int64 [n]"""
    judged: IntArray
    """Positions of all other images. int64 [n]"""
    predict_from: PredictFrom
    top_k: int
    notes: tuple[str, ...] = ()
    """Why a default method is left out."""

    def select_judged(self, preds: Predictions) -> Predictions:
        """Return the predictions for the judged images; `preds` are those that the methods were fitted with."""
        return preds.select(images=self.judged) if len(self.tuning) else preds

    def compute(self, preds: Predictions, text: str, **defaults: object) -> Float64Array:
        """Compute a confidence with the fitted options; `defaults` are options that the text may replace. [N]"""
        known = find_method(text).options
        used = {name: value for name, value in defaults.items() if name in known}
        options = {**used, **self.options[text]}
        return confidence(preds, split_method(text)[0], predict_from=self.predict_from, top_k=self.top_k, **options)

    def resample(self, text: str, n_members: int, n_views: int) -> Resampling:
        """Return how a method that ranks images by their other-class mass resamples the outputs of each image."""
        resampling = find_method(text).resampling
        assert resampling is not None, "the method is such a ranking"
        return resampling(n_members, n_views, **self.options[text])


def fit_methods(
    preds: Predictions,
    methods: Iterable[str] | None,
    *,
    added: Iterable[str] = (),
    tuning: object = None,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    duplicates: Collection[str] = (),
    options: Mapping[str, object] | None = None,
) -> FittedMethods:
    """Fit the methods that need it on images set apart.

    Parameters
    ----------
    preds
        Labeled predictions for N images.
    methods
        Texts of methods; None for the defaults, with 'learned' if it can be fitted on images set apart already.
    added
        Texts of further methods.
    tuning
        Positions or a mask bool [N] of the images that are set apart already, maybe none. None sets images apart only
        where a method is fitted.
    predict_from, top_k
        Which classes count as the prediction.
    duplicates
        Ids of images that are copies of others, which are not set apart by choice.
    options
        Options of all of the methods, besides those in their texts.
    """
    given = None if tuning is None else resolve_tuning(tuning, preds.n_images)
    candidates = choose_positions(preds, duplicates) if given is None else given
    apart = preds.select(images=candidates) if len(candidates) else None
    shared = options or {}
    names, notes = choose_methods(preds.n_outputs, methods, None if given is None else apart, predict_from, top_k)
    fitted = {text: _fit(text, shared, apart, predict_from, top_k) for text in (*names, *added)}
    used = given is not None or any(needs_fitting(text, shared) for text in fitted)
    positions = candidates if used else candidates[:0]
    judged = np.delete(np.arange(preds.n_images), positions)
    return FittedMethods(fitted, positions, judged, predict_from, top_k, notes)


def fit_on_images(
    tuning: Predictions | None, methods: Iterable[str] | None, n_outputs: int, predict_from: PredictFrom, top_k: int
) -> FittedMethods:
    """Fit methods as `fit_methods` does, to predictions for the images that are set apart only, None if there are none.

    The result knows no positions. `n_outputs` is the number of views times that of members.
    """
    names, notes = choose_methods(n_outputs, methods, tuning, predict_from, top_k)
    fitted = {text: _fit(text, {}, tuning, predict_from, top_k) for text in names}
    none = np.array([], dtype=np.int64)
    return FittedMethods(fitted, none, none, predict_from, top_k, notes)


def choose_methods(
    n_outputs: int, methods: Iterable[str] | None, tuning: Predictions | None, predict_from: PredictFrom, top_k: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts of the given methods or of the defaults, and why a default method is left out.

    `tuning` are the predictions for images that are set apart already.
    """
    if methods is not None:
        return ((methods,) if isinstance(methods, str) else tuple(methods)), ()
    if n_outputs < 2:
        return SINGLE_VIEW_METHODS, ()
    # Labels are not spent on it unasked, but those that are set apart already are free.
    if tuning is None:
        return MULTI_VIEW_METHODS, ()
    shortage = describe_shortage(tuning, predict_from, top_k)
    return ((*MULTI_VIEW_METHODS, LEARNED), ()) if shortage is None else (MULTI_VIEW_METHODS, (_shorten(shortage),))


def choose_positions(preds: Predictions, duplicates: Collection[str] = ()) -> IntArray:
    """Return the positions of images to set apart, ascending, none of them a copy of another. int64 [n]"""
    copies = frozenset(duplicates)
    distinct = np.array([place for place, id_ in enumerate(preds.ids) if id_ not in copies], dtype=np.int64)
    return distinct[tuning_positions(len(distinct))]


def resolve_tuning(tuning: object, n_images: int) -> IntArray:
    """Return the positions that `tuning` selects, ascending; at least one image must remain to be judged. int64 [n]"""
    values = np.asarray(tuning)
    if values.size == 0 or (values.dtype == np.bool_ and values.shape == (n_images,) and not values.any()):
        return np.array([], dtype=np.int64)
    try:
        positions = np.sort(resolve_positions(tuning, n_images))
    except PredictionsError as error:
        raise MetricError(f"tuning= is invalid: {error}") from None
    if len(positions) == n_images:
        raise MetricError(f"tuning= sets all {n_images:,} images apart; leave some of them to be judged.")
    return positions


def _fit(
    text: str, options: Mapping[str, object], tuning: Predictions | None, predict_from: PredictFrom, top_k: int
) -> dict[str, object]:
    name, given = split_method(text, options)
    if not needs_fitting(name, given):
        return given
    if tuning is None:
        raise MetricError(
            f"method {text!r} has to be fitted, but no images are set apart for that; pass tuning= with some of them."
        )
    return fit_method(tuning, name, predict_from=predict_from, top_k=top_k, **given)


def _shorten(shortage: str) -> str:
    """Return why a default method is left out, without the repair: the evaluation has the other method already."""
    return f"Left out: {shortage.partition(';')[0]}."
