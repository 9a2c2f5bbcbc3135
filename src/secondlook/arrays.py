"""Array types shared by all packages, and validation of numbers, arrays, images and outputs."""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secondlook.errors import ANY, Repair, SecondLookError

Array = NDArray[Any]
"""Any array; the docstring of a function gives the shape and the dtype."""

Float64Array = NDArray[np.float64]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

Output = Literal["logits", "probabilities"]
"""Kind of classifier outputs."""
OUTPUTS: tuple[Output, ...] = ("logits", "probabilities")

SUM_TOLERANCE = 1e-3
"""Probabilities of classifiers in half precision can be this far from summing to 1."""

GEN_EXPONENT, GEN_CLASSES = 0.1, 100
"""Exponent of the generalized entropy of probabilities, and the largest number of leading classes that it counts."""

PROBABILITY_FLOORS: Mapping[Output, float] = {"logits": float(np.finfo(np.float64).tiny), "probabilities": 1e-45}
"""Lower bound of probabilities: about the smallest number of the format, float64 from logits, float32 if stored.

Keeps logarithms finite, and gives outputs that differ only below their precision the same confidence.
"""


def softmax(logits: Array) -> Float64Array:
    """Softmax over the last axis in float64: in float32 confident outputs tie at 1."""
    shifted = np.array(logits, dtype=np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    return shifted


def are_probabilities(outputs: Array) -> bool:
    """Return whether all rows are non-negative and sum to 1, up to the precision of a classifier. [..., C]"""
    if outputs.min() < 0:
        return False
    sums = outputs.sum(axis=-1, dtype=np.float64)
    return bool((np.abs(sums - 1) <= SUM_TOLERANCE).all())


def sigmoid(values: Float64Array) -> Float64Array:
    """Return 1 / (1 + exp(-v)) of each value. Same shape"""
    with np.errstate(over="ignore"):  # exp(-values) may become infinite, and the sigmoid 0
        return 1 / (1 + np.exp(-values))


def exact_interval(found: int, images: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a probability, from `found` of the images."""
    from scipy.special import betaincinv  # takes time to import

    tail, others = (1 - level) / 2, images - found
    low = float(betaincinv(found, others + 1, tail)) if found else 0.0
    return low, float(betaincinv(found + 1, others, 1 - tail)) if others else 1.0


def top_classes(values: Float64Array, top_k: int) -> IntArray:
    """Return the k classes with the largest values, best first; ties go to the lower class. [N, C] -> int64 [N, k]"""
    remaining = values if top_k == 1 else values.copy()
    classes = np.empty((len(values), top_k), dtype=np.int64)
    for place in range(top_k):  # faster than a sort for small k; `argmax` returns the first of equal values
        best = remaining.argmax(axis=1)
        classes[:, place] = best
        if place < top_k - 1:
            np.put_along_axis(remaining, best[:, None], -np.inf, axis=1)
    return classes


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite real number, not a string, a bool, None or NaN."""
    if isinstance(value, bool) or not isinstance(value, float | int | np.floating | np.integer):
        return False
    return bool(-math.inf < value < math.inf)


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, not a float, a string, a bool or None."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_array(values: object, name: str, error: type[Exception]) -> Array:
    """Return values as an array; raise `error` for ragged lists and for masked values, which NumPy unmasks."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as reason:
        first_sentence = str(reason).partition(".")[0]
        raise error(f"{name} cannot be converted to an array: {first_sentence}; pass a NumPy array.") from None
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        index = np.argwhere(np.ma.getmaskarray(values))[0].tolist()
        raise error(f"{name} is masked at index {index}; pass only images with known values.")
    return array


def resolve_positions(
    values: object, count: int, name: str, error: type[SecondLookError], *, allow_none: bool = False
) -> IntArray:
    """Return the non-negative positions, int64, selected by an index array or a mask bool [count], in its order."""
    selected = as_array(values, name, error)
    if selected.dtype.kind == "b":
        if selected.shape != (count,):
            raise error(f"is a mask of shape {list(selected.shape)}; expected [{count}]", argument=name)
        selected = np.flatnonzero(selected)
    elif selected.ndim != 1 or (selected.size and selected.dtype.kind not in "iu"):
        found = f"shape {list(selected.shape)} and dtype {selected.dtype}"
        raise error(f"has {found}; expected a list of positions or a mask", argument=name)
    if selected.size == 0 and not allow_none:
        raise error("selects no image; expected at least one", argument=name)
    positions = selected.astype(np.int64)
    outside = positions[(positions < -count) | (positions >= count)]
    if len(outside):
        raise error(f"contains position {outside[0]}; expected positions from 0 to {count - 1}", argument=name)
    positions[positions < 0] += count
    unique, counts = np.unique(positions, return_counts=True)
    if (counts > 1).any():
        raise error(f"contains duplicate position {unique[counts > 1][0]}; positions must be unique", argument=name)
    return positions


def is_text(labels: ArrayLike) -> bool:
    """Whether all labels are strings: class names. NumPy converts numbers in a list with strings to strings."""
    if to_host(labels).dtype.kind not in "OTUS":
        return False
    values = labels if isinstance(labels, list | tuple) else to_host(labels).flat
    return all(isinstance(value, str | bytes) for value in values)


def to_host(labels: Any) -> Array:
    """Return labels as an array; tensors on a GPU are copied to the host."""
    return np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels)


def round_down_to_power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number; 1 for 0."""
    return 1 << max(0, int(number).bit_length() - 1)


def default_ids(n_images: int) -> tuple[str, ...]:
    """Return default ids: the positions of the images, zero-padded for sorting ('000042')."""
    return tuple(f"{position:06d}" for position in range(n_images))


def as_pixels(images: Array) -> Array:
    """Return images as contiguous uint8 pixels. uint8, or float32 in [0, 1] -> uint8 of the same shape"""
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    pixels: Array = np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8)
    return pixels


def validate_pixels(images: object, name: str, error: type[SecondLookError], *, single: bool = False) -> Array:
    """Return images, uint8 or floating-point numbers in [0, 1], as uint8 or float32; raise `error` for any others.

    [N, H, W, 1 or 3], or a single image [H, W, 1 or 3]
    """
    shape = "[H, W, 1 or 3]" if single else "[N, H, W, 1 or 3]"
    if not isinstance(images, np.ndarray):
        raise error(f"{name} have type {type(images).__name__}, expected a NumPy array {shape}.")
    if images.ndim != (3 if single else 4) or images.shape[-1] not in (1, 3):
        fault = f"{name} have shape {list(images.shape)}, expected {shape}"
        raise error(fault, repair=_suggest_reshape(images, single))
    if 0 in images.shape[-3:]:
        raise error(f"{name} have shape {list(images.shape)}, expected a height and width of at least 1.")
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise error(f"{name} are {images.dtype}, expected uint8, or float32 in [0, 1]; convert them first.")
    pixels = to_float32(images)
    if pixels.size:
        low, high = float(pixels.min()), float(pixels.max())
        if math.isnan(low):
            place = "" if single else f", first in image {np.argwhere(np.isnan(pixels))[0, 0]}"
            raise error(f"{name} contain NaN{place}", repair="replace them, or remove the image")
        if not (low >= 0.0 and high <= 1.0):
            fault = f"{name} are {images.dtype} and run from {low:g} to {high:g}, expected [0, 1]"
            normalized = "they seem to be normalized: pass raw pixels, and give the classifier {mean} and {std}"
            advice = Repair(normalized, mean=ANY, std=ANY) if low < 0.0 else "divide by 255, or pass uint8"
            raise error(fault, repair=advice)
    return pixels


def to_float32(values: Array) -> Float32Array:
    """Return floating-point numbers as float32, without a copy if they already are; too large ones become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _suggest_reshape(images: Array, single: bool) -> Repair | str | None:
    name, axes = ("image", (1, 2, 0)) if single else ("images", (0, 2, 3, 1))
    if images.ndim == len(axes) and images.shape[-3] in (1, 3):
        return f"the channels seem to come first: pass {name}.transpose{axes}"
    if single and images.ndim == 3 and images.shape[2] == 4:
        return "to drop the alpha channel pass image[..., :3]"
    if single and images.ndim == 4:
        return Repair("pass a batch of images directly, not in a list, and its labels as {labels}", labels=ANY)
    if not single and images.ndim == 3 and images.shape[2] in (1, 3):
        return "for one image pass image[None]"
    return f"for gray images pass {name}[..., None]" if images.ndim == len(axes) - 1 else None
