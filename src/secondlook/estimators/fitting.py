"""Fitted methods: images are set apart to fit options to their labels, and only the other images are judged."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from secondlook.arrays import Float64Array, IntArray, resolve_positions
from secondlook.errors import ANY, ConfidenceError, MetricError, PredictionsError, Repair
from secondlook.estimators.methods import compile_for, compile_method, find_method, split_method
from secondlook.estimators.probability_mass import TO_FIT, fit_temperature
from secondlook.predictions import PredictFrom, Predictions

MULTI_VIEW_METHODS = ("msr", "mean", "bootstrap", "blend")
MIN_IMAGES, MIN_PER_OUTCOME = 200, 20
"""Smallest number of images for fitting `learned`, and of errors and of correct predictions among them."""
MAX_TUNING_IMAGES = 1000


@dataclass(frozen=True, eq=False)
class FittedMethods:
    """Methods with their fitted options, and the split of the images into those set apart and those judged."""

    options: Mapping[str, dict[str, object]]
    """All options of each method, given and fitted, by its text."""
    tuning: IntArray
    """Positions of the images that are set apart. int64 [n]"""
    fitting: IntArray
    """Positions of the images that methods are fitted to, without copies of others. int64 [m]"""
    judged: IntArray
    """Positions of all other images. int64 [n]"""
    predict_from: PredictFrom
    top_k: int
    notes: tuple[str, ...] = ()
    """Reasons for missing default methods."""

    @classmethod
    def fit(
        cls,
        preds: Predictions,
        methods: Iterable[str] | None,
        *,
        added: Iterable[str] = (),
        tuning: object = None,
        predict_from: PredictFrom = "image",
        top_k: int = 1,
        duplicates: Collection[str] = (),
        options: Mapping[str, object] | None = None,
    ) -> Self:
        """Set images of labeled predictions apart, and fit the methods that need it on them.

        `methods` and `added` are texts of methods; None means the defaults, with 'learned' if it can be fitted on
        images already set apart. `tuning` are these images, positions or a mask bool [N], possibly empty; None sets
        images apart only if a method needs fitting. No method is fitted to `duplicates`, the ids of copies of others.
        `options` apply to all methods, in addition to those in their texts.
        """
        n_images, copies = preds.n_images, frozenset(duplicates)
        candidates = tuning_positions(n_images) if tuning is None else resolve_tuning(tuning, n_images)
        fitting = candidates[[preds.ids[place] not in copies for place in candidates]] if copies else candidates
        apart = preds.select(images=fitting) if len(fitting) else None
        shared = options or {}
        notes: tuple[str, ...] = ()
        if methods is None:
            # Do not spend labels on 'learned' by default, except on images already set apart.
            methods, notes = _choose_defaults(preds, None if tuning is None else apart, predict_from, top_k)
        names = (methods,) if isinstance(methods, str) else methods
        fitted = {text: _fit(text, shared, apart, predict_from, top_k) for text in (*names, *added)}
        used = tuning is not None or any(needs_fitting(text, shared) for text in fitted)
        positions = candidates if used else candidates[:0]
        judged = np.delete(np.arange(preds.n_images), positions)
        return cls(fitted, positions, fitting if used else positions, judged, predict_from, top_k, notes)

    def select_judged(self, preds: Predictions) -> Predictions:
        """Return the predictions for the judged images; `preds` are the predictions used for fitting."""
        return preds.select(images=self.judged) if len(self.tuning) else preds

    def compute(self, preds: Predictions, text: str, **defaults: object) -> Float64Array:
        """Compute a confidence with the fitted options; `defaults` are options that the text may replace. [N]"""
        known = find_method(text).options
        options = {name: value for name, value in defaults.items() if name in known} | self.options[text]
        return compile_for(preds, split_method(text)[0], options, self.predict_from, self.top_k).confidence(preds)

    def compute_together(
        self, preds: Predictions, unknown: Predictions | None, text: str, **defaults: object
    ) -> Float64Array:
        """Compute a confidence of images, followed by unknown images; ranks are among all of them. [N + M]"""
        if unknown is None:
            return self.compute(preds, text, **defaults)
        try:
            together = preds.concatenate(unknown)
        except PredictionsError as error:
            raise MetricError(f"does not match the predictions: {error}", argument="unknown") from None
        parts = (together,) if find_method(text).is_rank else (preds, unknown)
        return np.concatenate([self.compute(part, text, **defaults) for part in parts])


def fit_method(
    preds: Predictions, method: str, *, predict_from: PredictFrom = "image", top_k: int = 1, **options: object
) -> dict[str, Any]:
    """Fit a method to labeled images, and return all its options.

    This fits the weights of `learned`, `p` of `max-logit-pnorm` and `temperature="fit"`, unless they are given. The
    result includes the options in the text: call `confidence(other_preds, name, **fitted)`. Evaluate and certify on
    other images.

    Parameters
    ----------
    preds
        Labeled predictions: the tuning images.
    method
        Name of a method in `METHODS`, optionally with options, like 'max-logit-pnorm?on=views'.
    predict_from, top_k, **options
        As in `confidence`.

    Returns
    -------
    dict
        Options of the method; fitted values are plain numbers or strings.
    """
    compiled = compile_for(preds, method, options, predict_from, top_k)
    found, merged = compiled.method, dict(compiled.options)
    if not needs_fitting(compiled.name, merged):
        return merged
    compiled.check(preds)
    if not preds.has_labels:
        raise ConfidenceError(f"method {method!r} is fitted to labeled images; pass labeled predictions.")
    if merged.get("temperature") == TO_FIT:
        merged["temperature"] = fit_temperature(preds)
    if found.fit is not None and needs_fitting(compiled.name, merged):
        merged |= found.fit(preds, predict_from=predict_from, top_k=top_k, **merged)
    return merged


def needs_fitting(method: str, options: Mapping[str, object] | None = None) -> bool:
    """Return whether an option of a method must still be fitted to labeled images."""
    compiled = compile_method(method, options)
    is_incomplete = any(compiled.options.get(name) is None for name in compiled.method.fitted)
    return is_incomplete or compiled.options.get("temperature") == TO_FIT


def tuning_positions(n_images: int, seed: int = 0) -> IntArray:
    """Return the positions of the tuning images: a random quarter of all images, at most 1,000. int64 [n], sorted"""
    n_tuning = min(MAX_TUNING_IMAGES, n_images // 4)
    return np.sort(np.random.default_rng(seed).permutation(n_images)[:n_tuning])


def resolve_tuning(tuning: object, n_images: int) -> IntArray:
    """Return the positions selected by `tuning`, ascending; at least one image must remain. int64 [n]"""
    positions = np.sort(resolve_positions(tuning, n_images, "tuning", MetricError, allow_none=True))
    if len(positions) == n_images:
        fault = f"sets all {n_images:,} images apart"
        raise MetricError(fault, argument="tuning", repair="leave some of them to be judged")
    return positions


def _choose_defaults(
    preds: Predictions, apart: Predictions | None, predict_from: PredictFrom, top_k: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the default methods, and reasons for missing ones; `apart` are images for fitting 'learned'."""
    if preds.n_outputs < 2 or apart is None:
        return (("msr",) if preds.n_outputs < 2 else MULTI_VIEW_METHODS), ()
    shortage = describe_shortage(apart, predict_from, top_k)
    if shortage is None:
        return (*MULTI_VIEW_METHODS, "learned"), ()
    # Omit the repair, since the evaluation already has the other method.
    return MULTI_VIEW_METHODS, (f"Left out: {shortage.partition(';')[0]}.",)


def describe_shortage(preds: Predictions, predict_from: PredictFrom, top_k: int) -> str | None:
    """Return why `learned` cannot be fitted to these images, or None."""
    needed = (
        f"method 'learned' is fitted to at least {MIN_IMAGES} labeled images with {MIN_PER_OUTCOME} errors and "
        f"{MIN_PER_OUTCOME} correct predictions"
    )
    if not preds.has_labels:
        return f"{needed}, got none with a label; pass labeled predictions, or use 'blend'."
    n_correct = int(preds.correct(predict_from=predict_from, top_k=top_k).sum())
    n_errors = preds.n_images - n_correct
    if preds.n_images >= MIN_IMAGES and min(n_errors, n_correct) >= MIN_PER_OUTCOME:
        return None
    return f"{needed}, got {preds.n_images} images with {n_errors} errors; pass more, or use 'blend'."


def _fit(
    text: str, options: Mapping[str, object], tuning: Predictions | None, predict_from: PredictFrom, top_k: int
) -> dict[str, object]:
    name, given = split_method(text, options)
    if not needs_fitting(name, given):
        return given
    if tuning is None:
        repair = Repair("pass {tuning} with some of them", tuning=ANY)
        raise MetricError(f"method {text!r} has to be fitted, but no images are set apart for it", repair=repair)
    return fit_method(tuning, name, predict_from=predict_from, top_k=top_k, **given)
