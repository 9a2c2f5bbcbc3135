"""`METHODS`: the registry of methods, and `confidence`, which computes one by its name."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import ConfidenceError
from secondlook.estimators.probability_mass import list_members
from secondlook.predictions import PredictFrom, Predictions, check_predict_from, check_top_k
from secondlook.registry import Registry, did_you_mean
from secondlook.specs import split_options

Need = Literal["logits", "members", "two views", "passes", "embeddings"]
"""What a method may need beyond the probabilities of one classifier."""

Compute = TypeVar("Compute", bound=Callable[..., Float64Array])

COMMON_ARGUMENTS = ("preds", "predict_from", "top_k")

TO_FIT = "fit"
"""The value of an option that is fitted to labeled images, such as temperature='fit'."""


class Resampling(NamedTuple):
    """How a plurality ranking resamples the outputs of an image."""

    counts: IntArray
    """How often each resampling draws each output, int64 [members * V, B]."""
    window: int | None
    """Entries in the window; None for as many as resamplings."""


class ViewMeans(NamedTuple):
    """A block of n images whose confidence is a function of S means over members x views."""

    rows: slice
    values: Float64Array
    """What is averaged, float64 [S, n, members, V]."""
    combine: Callable[[Float64Array], Float64Array]
    """From B means for each image to B confidences. [S, n, B] -> [n, B]"""


@dataclass(frozen=True)
class Method:
    """A registered method that computes a confidence.

    `compute(preds, *, predict_from, top_k, ...)` returns float64 [N]; its other keyword arguments are the options of
    the method. A method with a `parameter` is written 'name:PARAMETER' and takes that text as its second argument.
    """

    name: str
    symbol: str
    """The symbol of the paper, such as 'MSR(D)'."""
    summary: str
    compute: Callable[..., Float64Array]
    needs: tuple[Need, ...] = ()
    parameter: str | None = None
    is_probability: bool = False
    """Whether the values are probabilities of a correct prediction, as calibration metrics require."""
    is_rank: bool = False
    """Whether the values are ranks among the given images, so that a threshold does not transfer to others."""
    resampling: Callable[..., Resampling] | None = None
    """For a rank that follows from the other-class mass of all images: how the outputs are resampled; called with the
    numbers of members and views, and the options."""
    view_means: Callable[..., Iterator[ViewMeans]] | None = None
    """For a function of means over the views: what is averaged, block by block; called with the same arguments."""
    fitted: tuple[str, ...] = ()
    """Options that `fit` chooses on labeled images."""
    fit: Callable[..., dict[str, Any]] | None = None
    """Return the `fitted` options for labeled predictions; called with the same arguments as `compute`."""

    @property
    def is_mean_over_views(self) -> bool:
        """Whether the values are a function of means over the views, so that the views can be resampled."""
        return self.view_means is not None

    @property
    def form(self) -> str:
        """The name with a placeholder for the parameter, such as 'view:TEXT'."""
        return f"{self.name}:{self.parameter}" if self.parameter else self.name

    @cached_property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `confidence` passes on."""
        parameters = inspect.signature(self.compute).parameters.values()
        return tuple(
            one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in COMMON_ARGUMENTS
        )


METHODS: Registry[Method] = Registry("method", ConfidenceError)
"""All methods by name."""


def method(
    name: str,
    *,
    symbol: str,
    summary: str,
    needs: tuple[Need, ...] = (),
    parameter: str | None = None,
    is_probability: bool = False,
    is_rank: bool = False,
    resampling: Callable[..., Resampling] | None = None,
    view_means: Callable[..., Iterator[ViewMeans]] | None = None,
    fitted: tuple[str, ...] = (),
    fit: Callable[..., dict[str, Any]] | None = None,
) -> Callable[[Compute], Compute]:
    """Register the decorated function as a method."""

    def register(compute: Compute) -> Compute:
        METHODS.add(
            Method(
                name,
                symbol,
                summary,
                compute,
                needs=needs,
                parameter=parameter,
                is_probability=is_probability,
                is_rank=is_rank,
                resampling=resampling,
                view_means=view_means,
                fitted=fitted,
                fit=fit,
            )
        )
        return compute

    return register


def split_method(text: str, options: Mapping[str, object] | None = None) -> tuple[str, dict[str, Any]]:
    """Split 'name:PARAMETER?option=value&option=value' into the text before the options, and the options.

    Values are read as an integer, a number, true or false where they are one, and else as text. `options` are added to
    those of the text; an option in both must have the same value, except that it replaces a value to be fitted.
    """
    plain, texts = split_options(text, ConfidenceError)
    merged: dict[str, Any] = {name: _parse_value(value) for name, value in texts.items()}
    for name in COMMON_ARGUMENTS:
        if name in merged:
            raise ConfidenceError(f"{name!r} in {text!r} is no option of the method, but an argument; pass {name}=.")
    for name, value in (options or {}).items():
        if name in merged and merged[name] not in (value, TO_FIT):
            raise ConfidenceError(
                f"option {name!r} is given twice: as {merged[name]!r} in method {text!r} and as {value!r} beside it; "
                "give it once."
            )
        merged[name] = value
    return plain, merged


def find_method(text: str) -> Method:
    """Return the method of a text such as 'mean', 'view:hflip' or 'entropy?on=views', or raise `ConfidenceError`."""
    plain, options = split_method(text)
    name, colon, parameter = plain.partition(":")
    found = METHODS.find(name)
    is_valid = bool(parameter) if found.parameter else not colon
    if not is_valid:
        raise ConfidenceError(f"invalid method {text!r}; expected {found.form!r}.")
    check_options(found, options)
    return found


def resolve_method(text: str, options: Mapping[str, object]) -> tuple[Method, str, dict[str, Any]]:
    """Return a method, its text before the options, and all options, which it must have."""
    plain, merged = split_method(text, options)
    found = find_method(plain)
    check_options(found, merged)
    return found, plain, merged


def confidence(
    preds: Predictions, method: str = "mean", *, predict_from: PredictFrom = "image", top_k: int = 1, **options: object
) -> Float64Array:
    """Compute the confidence of the predicted class of each image. float64 [N]

    Parameters
    ----------
    preds
        Predictions for N images.
    method
        Name of a method in `METHODS`, such as 'msr', 'mean', 'bootstrap' or 'view:hflip'; options may follow it, as in
        'entropy?on=views&temperature=2'.
    predict_from
        Take the predicted class from the image itself ('image') or from the mean over all views ('views').
    top_k
        Number of top classes that count as the prediction.
    **options
        Options of the method, such as `seed` or `temperature`; see `METHODS[name].options`.

    Returns
    -------
    float64 [N]
        Higher is surer; never NaN or infinite.
    """
    check_arguments(preds, predict_from, top_k)
    found, plain, merged = resolve_method(method, options)
    check_needs(found, preds, merged)
    parameter = (plain.partition(":")[2],) if found.parameter else ()
    values = found.compute(preds, *parameter, predict_from=predict_from, top_k=top_k, **merged)
    return _check_values(values, found, preds.n_images)


def check_arguments(preds: object, predict_from: str, top_k: int) -> None:
    """Raise an error unless `preds` are predictions and `predict_from` and `top_k` are valid for them."""
    if not isinstance(preds, Predictions):
        raise ConfidenceError(
            f"a confidence is computed from Predictions, got {type(preds).__name__}; "
            "wrap arrays [images, views, classes] as Predictions(probabilities=..., views=...)."
        )
    check_predict_from(predict_from)
    check_top_k(top_k, preds.n_classes)


def check_options(found: Method, options: Mapping[str, object]) -> None:
    """Raise an error unless the method has all of these options."""
    for option in options:
        if option not in found.options:
            known = ", ".join((*found.options, *COMMON_ARGUMENTS[1:]))
            raise ConfidenceError(
                f"method {found.form!r} has no option {option!r}; expected one of: {known}."
                f"{did_you_mean(option, found.options)}"
            )


def check_needs(found: Method, preds: Predictions, options: Mapping[str, object]) -> None:
    """Raise an error unless the predictions and the options have what the method needs."""
    missing: dict[Need, str] = {}
    if not all(member.has_logits for member in list_members(preds)):
        missing["logits"] = "logits; collect from a classifier with output='logits'"
    if not preds.members:
        missing["members"] = "the members of an ensemble; collect from Ensemble([...]) or pass Predictions(members=...)"
    if preds.n_outputs < 2:
        missing["two views"] = "at least two views, got one; collect with more views"
    if options.get("passes") is None:
        missing["passes"] = "passes=; compute them with compute_mc_dropout_passes(classifier, images)"
    if any(options.get(name) is None for name in ("embeddings", "train_embeddings", "train_labels")):
        missing["embeddings"] = (
            "embeddings=, train_embeddings= and train_labels=; "
            "compute them with compute_embeddings(classifier, images, layer=...)"
        )
    for need in found.needs:
        if need in missing:
            raise ConfidenceError(f"method {found.form!r} needs {missing[need]}.")


def _check_values(values: Float64Array, found: Method, n_images: int) -> Float64Array:
    if values.shape != (n_images,) or values.dtype != np.float64:
        raise ConfidenceError(
            f"method {found.form!r} returned {values.dtype} {list(values.shape)}, expected float64 [{n_images}]; "
            "fix the registered function."
        )
    invalid = np.flatnonzero(~np.isfinite(values))
    if len(invalid):
        raise ConfidenceError(
            f"method {found.form!r} returned {values[invalid[0]]} for image {invalid[0]}, expected a finite number; "
            "check the predictions and options."
        )
    # A sum over k classes, or of probabilities in half precision, may exceed 1 by rounding.
    return np.clip(values, 0.0, 1.0) if found.is_probability else values


def _parse_value(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
