"""`METHODS`, the registry of methods, and `compile_method`, which prepares a method for computing confidences."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from secondlook.arrays import Float64Array, is_number
from secondlook.errors import ANY, ConfidenceError, Repair
from secondlook.estimators.probability_mass import TO_FIT, Block, fit_temperature, iter_blocks, list_members
from secondlook.predictions import PredictFrom, Predictions, check_prediction
from secondlook.registry import Registry, did_you_mean
from secondlook.specs import split_options

Need = Literal["logits", "two views"]
"""Requirements of methods beyond the probabilities of one classifier."""

Compute = TypeVar("Compute", bound=Callable[..., Float64Array])

Combine = Callable[[Float64Array], Float64Array]
"""Computes B confidences per image from B means. [S, n, B] -> [n, B]"""

COMMON_ARGUMENTS = ("preds", "predict_from", "top_k")


@dataclass(frozen=True)
class Method:
    """A registered method that computes a confidence.

    `compute(preds, *, predict_from, top_k, ...)` returns float64 [N]. `predict_from` and `top_k` are optional; its
    other keyword arguments are the options of the method. A method with a `parameter` is written 'name:PARAMETER' and
    takes that text as its second argument. If the confidence of an image does not depend on other images, set
    `takes_block`, and `compute(block, ...)` gets a `Block` instead.
    """

    name: str
    symbol: str
    """The symbol in the paper, for example 'MSR(D)'."""
    summary: str
    """What it computes, for researchers."""
    compute: Callable[..., Float64Array]
    words: str = ""
    """The name in words for any reader, for example 'mean confidence over views'."""
    needs: tuple[Need, ...] = ()
    parameter: str | None = None
    is_probability: bool = False
    """Whether the values are probabilities of a correct prediction, as calibration metrics require."""
    is_rank: bool = False
    """Whether the values are ranks among the given images, so thresholds do not transfer to others."""
    takes_block: bool = False
    view_means: Callable[..., tuple[Float64Array, Combine]] | None = None
    """From a block and options to the values to average over views, float64 [S, n, members, V], and a `Combine`."""
    fitted: tuple[str, ...] = ()
    """Options that `fit` sets from labeled images."""
    fit: Callable[..., dict[str, Any]] | None = None
    """Fits the `fitted` options; called with labeled predictions, `predict_from`, `top_k` and the options."""

    @property
    def is_mean_over_views(self) -> bool:
        """Whether the values are a function of means over the views, so the views can be resampled."""
        return self.view_means is not None

    def name_in_words(self, text: str) -> str:
        """Return the words for a text of this method, such as 'view:hflip', with its parameter and options."""
        given = text.removeprefix(self.name)[1:]
        return f"{self.words or self.name}{f' ({given})' if given else ''}"

    @property
    def form(self) -> str:
        """The name with a placeholder for the parameter, like 'view:TEXT'."""
        return f"{self.name}:{self.parameter}" if self.parameter else self.name

    @cached_property
    def keywords(self) -> tuple[str, ...]:
        """Names of the keyword arguments of `compute`, including those in `fitted`."""
        parameters = inspect.signature(self.compute).parameters.values()
        named = (one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        return tuple(dict.fromkeys((*named, *self.fitted)))

    @cached_property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `confidence` accepts."""
        return tuple(name for name in self.keywords if name not in COMMON_ARGUMENTS)


METHODS: Registry[Method] = Registry("method", ConfidenceError)
"""All methods by name."""


def method(name: str, *, symbol: str, summary: str, **fields: Any) -> Callable[[Compute], Compute]:
    """Register the decorated function as a method; `fields` are other fields of `Method`."""

    def register(compute: Compute) -> Compute:
        METHODS.add(Method(name, symbol, summary, compute, **fields))
        return compute

    return register


def default_method(preds: Predictions) -> str:
    """Return the default method: 'blend', or 'msr' if there is only one view.

    In certified coverage, 'blend' beats 'mean' and 'learned' on average (docs/results.md), and it needs no labels.
    """
    return "msr" if preds.n_outputs < 2 else "blend"


def split_method(text: str, options: Mapping[str, object] | None = None) -> tuple[str, dict[str, Any]]:
    """Split 'name:PARAMETER?option=value&option=value' into the text before the options, and the options.

    Values are parsed as an integer, a number, true or false if possible, otherwise as text. `options` are added to
    those in the text; an option in both must have the same value, or replace a value to be fitted.
    """
    plain, texts = split_options(text, ConfidenceError)
    merged: dict[str, Any] = {name: _parse_value(value) for name, value in texts.items()}
    for name in COMMON_ARGUMENTS:
        if name in merged:
            repair = Repair(f"pass {{{name}}}", **{name: ANY})
            raise ConfidenceError(f"{name!r} in {text!r} is an argument, not an option of the method", repair=repair)
    for name, value in (options or {}).items():
        if name in merged and merged[name] not in (value, TO_FIT):
            values = f"as {merged[name]!r} in method {text!r} and as {value!r} beside it"
            raise ConfidenceError(f"option {name!r} is given twice: {values}; give it once.")
        merged[name] = value
    return plain, merged


def find_method(text: str) -> Method:
    """Return the method for a text like 'mean', 'view:hflip' or 'zero?share=0.5', or raise `ConfidenceError`."""
    return compile_method(text).method


def confidence(
    preds: Predictions,
    method: str | None = None,
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    **options: object,
) -> Float64Array:
    """Compute the confidence of the predicted class of each image. float64 [N]

    Parameters
    ----------
    preds
        Predictions for N images.
    method
        Name of a method in `METHODS`, like 'msr', 'mean', 'bootstrap' or 'view:hflip', optionally with options, like
        'max-logit-pnorm?p=4&on=views'. By default `default_method(preds)`, as in `certify`.
    predict_from
        Whether the class is predicted from the image itself ('image') or from the mean over all views ('views').
    top_k
        Number of top classes that count as the prediction.
    **options
        Options of the method, like `seed` or `temperature`; see `METHODS[name].options`.

    Returns
    -------
    float64 [N]
        Higher means more confident; never NaN or infinite.
    """
    return compile_for(preds, method, options, predict_from, top_k).confidence(preds)


def compile_method(
    method: str,
    options: Mapping[str, object] | None = None,
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
) -> "CompiledMethod":
    """Parse and check a method with its options once, to compute the confidence of many predictions.

    `compile_method(method, options).confidence(preds)` is bitwise equal to `confidence(preds, method, **options)`.
    """
    check_prediction(predict_from, top_k)
    plain, merged = split_method(method, options)
    name, colon, parameter = plain.partition(":")
    found = METHODS.find(name)
    is_valid = bool(parameter) if found.parameter else not colon
    if not is_valid:
        raise ConfidenceError(f"invalid method {method!r}; expected {found.form!r}.")
    for option in merged:
        if option not in found.options:
            known = f"{', '.join((*found.options, *COMMON_ARGUMENTS[1:]))}.{did_you_mean(option, found.options)}"
            raise ConfidenceError(f"method {found.form!r} has no option {option!r}; expected one of: {known}")
    temperature = merged.get("temperature")
    if temperature not in (None, TO_FIT) and not (is_number(temperature) and temperature > 0):
        expected = "is invalid; expected a number above 0, or 'fit' to fit it to the labels"
        raise ConfidenceError(expected, argument="temperature", value=temperature)
    return CompiledMethod(found, plain, (parameter,) if found.parameter else (), merged, predict_from, top_k)


def compile_for(
    preds: object, method: str | None, options: Mapping[str, object], predict_from: PredictFrom, top_k: int
) -> "CompiledMethod":
    """Compile a method, by default the default method, for these predictions, or raise an error."""
    if not isinstance(preds, Predictions):
        fault = f"a confidence is computed from Predictions, got {type(preds).__name__}"
        raise ConfidenceError(fault, repair="wrap arrays as Predictions(probabilities=..., views=...)")
    check_prediction(predict_from, top_k, preds.n_classes)
    text = default_method(preds) if method is None else method
    return compile_method(text, options, predict_from=predict_from, top_k=top_k)


@dataclass(frozen=True)
class CompiledMethod:
    """A method with its options and the way to predict classes, parsed and checked."""

    method: Method
    name: str
    """Text of the method, without its options."""
    parameter: tuple[str, ...]
    """The parameter of a method like 'view:TEXT'."""
    options: Mapping[str, Any]
    predict_from: PredictFrom
    top_k: int

    def confidence(self, preds: Predictions) -> Float64Array:
        """Compute the confidence of each image. float64 [N]"""
        self.check(preds)
        compute = self.method.compute
        if not self.method.takes_block:
            common = {"predict_from": self.predict_from, "top_k": self.top_k}
            used = {name: value for name, value in common.items() if name in self.method.keywords}
            return self._check_values(compute(preds, *self.parameter, **used, **self.options), preds.n_images)
        values, options = np.empty(preds.n_images), self._fit_temperature(preds)
        for rows, block in self._iter_blocks(preds):
            values[rows] = compute(block, **options)
        return self._check_values(values, preds.n_images)

    @cached_property
    def takes_blocks(self) -> bool:
        """Whether `compute_block` can be called: no option needs other images or selects views."""
        has_all = self.options.get("views") is None and TO_FIT not in self.options.values()
        return self.method.takes_block and not self.method.needs and has_all

    def compute_block(self, block: Block) -> Float64Array:
        """Compute the confidence of each image of a block, bitwise equal to `confidence`. float64 [n]"""
        return self._check_values(self.method.compute(block, **self.options), len(block.classes))

    def _iter_blocks(self, preds: Predictions) -> Iterator[tuple[slice, Block]]:
        return iter_blocks(preds, self.predict_from, self.top_k, self.options.get("views"))

    def _fit_temperature(self, preds: Predictions) -> dict[str, Any]:
        """Return the options, after fitting the temperature if requested."""
        if self.options.get("temperature") != TO_FIT:
            return dict(self.options)
        return {**self.options, "temperature": fit_temperature(preds)}

    def _check_values(self, values: Float64Array, n_images: int) -> Float64Array:
        if values.shape != (n_images,) or values.dtype != np.float64:
            found = f"method {self.method.form!r} returned {values.dtype} {list(values.shape)}"
            raise ConfidenceError(f"{found}, expected float64 [{n_images}]; fix the registered function.")
        is_finite = np.isfinite(values)
        if not is_finite.all():
            image = int(np.argmin(is_finite))
            found = f"method {self.method.form!r} returned {values[image]} for image {image}"
            raise ConfidenceError(f"{found}, expected a finite number; check the predictions and options.")
        # A sum over k classes, or of probabilities in half precision, may exceed 1 by rounding.
        return np.clip(values, 0.0, 1.0) if self.method.is_probability else values

    def running(self, preds: Predictions) -> Float64Array:
        """Compute the confidence after 1, 2, ..., V views, in the order of `preds.views`. float64 [N, V]"""
        self.check_running()
        if self.predict_from == "image":
            return self._accumulate(preds)
        texts = preds.views.texts
        parts = (preds.select(views=list(texts[: count + 1])) for count in range(len(texts)))
        return np.stack([self._accumulate(part)[:, -1] for part in parts], axis=1)

    def view_statistics(self, preds: Predictions) -> tuple[Float64Array, Combine]:
        """Return the values to average over the views, float64 [S, N, V], for classes predicted from all views.

        Also return the function from means [S, N, B] to confidences [N, B].
        """
        self.check_running()
        blocks = list(self.iter_view_means(preds))
        return np.concatenate([values.mean(axis=2) for _, values, _ in blocks], axis=1), blocks[0][2]

    def iter_view_means(self, preds: Predictions) -> Iterator[tuple[slice, Float64Array, Combine]]:
        """Yield blocks of images, the values to average over members and views, and the function for their means."""
        assert self.method.view_means is not None, "the method is a function of means over the views"
        self.check(preds)
        options = self._fit_temperature(preds)
        for rows, block in self._iter_blocks(preds):
            yield rows, *self.method.view_means(block, **options)

    def check_running(self) -> None:
        """Raise an error unless the confidence can be computed look by look."""
        if not self.method.is_mean_over_views:
            known = ", ".join(repr(name) for name in METHODS if METHODS[name].is_mean_over_views)
            fault = f"method {self.name!r} is not a mean over views, so it cannot be computed look by look"
            raise ConfidenceError(fault, repair=f"use one of: {known}")
        if self.options.get("views") is not None:
            fault = f"option 'views' of method {self.name!r} fixes the views, so it cannot be computed look by look"
            raise ConfidenceError(fault, repair="select the views of the predictions instead")

    def check(self, preds: Predictions) -> None:
        """Raise an error unless the predictions and the options meet the requirements of the method."""
        if self.top_k > 1:
            check_prediction(self.predict_from, self.top_k, preds.n_classes)
        for need in self.method.needs:
            is_met, missing, repair = NEEDS[need]
            if not is_met(preds):
                raise ConfidenceError(f"method {self.method.form!r} needs {missing}", repair=repair)

    def _accumulate(self, preds: Predictions) -> Float64Array:
        """Return the confidence after each number of views, for fixed predicted classes. float64 [N, V]"""
        confidences = np.empty((preds.n_images, preds.n_views))
        counts = np.arange(1, preds.n_views + 1)
        for rows, values, combine in self.iter_view_means(preds):
            # Add view by view, so that later views do not change the last bit of earlier values.
            confidences[rows] = combine(values.mean(axis=2).cumsum(axis=2) / counts)
        return confidences


NEEDS: Mapping[Need, tuple[Callable[[Predictions], bool], str, str]] = {
    "logits": (
        lambda preds: all(member.has_logits for member in list_members(preds)),
        "logits",
        "collect from a classifier that outputs logits",
    ),
    "two views": (lambda preds: preds.n_outputs > 1, "at least two views, got one", "collect with more views"),
}
"""For each requirement: a check of predictions, a description of what is missing, and the repair."""


def _parse_value(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
