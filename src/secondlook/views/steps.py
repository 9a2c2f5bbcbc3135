"""Steps of views: their arguments, the registry, and the built-in steps."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import ViewError
from secondlook.operations import (
    Axis,
    Blur,
    Border,
    Copy,
    Filter,
    Frame,
    Luminance,
    Operation,
    Reorder,
    Tone,
    Warp,
)
from secondlook.registry import Registry


@dataclass(frozen=True)
class Amount:
    """A length in pixels or in percent of a side."""

    value: float
    percent: bool = False

    def to_pixels(self, side: int) -> float:
        """Return the length in pixels for a side of `side` pixels."""
        return self.value * side / 100 if self.percent else self.value

    def __str__(self) -> str:
        return format_number(self.value) + ("%" if self.percent else "")


Argument = float | str | Amount
"""The value of a parameter: a number, a string like a channel order, or a length."""
Arguments = tuple[Argument, ...]
Parameter = tuple[str, Callable[[str], Argument]]
"""Name and parser; the parser raises `ValueError` with the end of a sentence, like "is 0, expected ..."."""


def _bounded(name: str, lowest: float, highest: float, unit: str = "") -> Parameter:
    """Return a parameter for a number from `lowest` to `highest`, inclusive, with or without its unit."""

    def parse(text: str) -> float:
        value = parse_number(text.removesuffix(unit))
        if not lowest <= value <= highest:
            raise ValueError(f"is {text}, expected {format_number(lowest)} to {format_number(highest)}")
        return value

    return name, parse


def _parse_amount(text: str) -> Amount:
    value = parse_number(text.removesuffix("%"))
    return Amount(value, percent=text.endswith("%") and value != 0)


def _parse_channel_order(text: str) -> str:
    orders = ["".join(order) for order in itertools.permutations("rgb")]
    if text.lower() not in orders:
        raise ValueError(f"is {shorten(text)!r}, expected one of {', '.join(orders)}")
    return text.lower()


def parse_number(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"is {shorten(text)!r}, expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"is {text!r}, expected a finite number")
    return value + 0.0  # -0 becomes 0, for equal text of equal views


def format_number(value: float) -> str:
    """Format a number in its shortest form, without a plus sign: '+' joins the steps of a view."""
    return repr(value + 0.0).removesuffix(".0").replace("e+", "e")


def _round(value: float) -> str:
    """Format a number with at most three digits, for descriptions."""
    return format_number(float(f"{value:.3g}"))


def shorten(text: str, length: int = 60) -> str:
    """Return the text, truncated if it is too long for a message."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"


Function = TypeVar("Function", bound=Callable[..., Array])
OperationFactory = Callable[..., Operation]
"""(frame, *arguments) -> the operation of the engine."""


@dataclass(frozen=True)
class Step:
    """A kind of step, for example `shift:DX,DY`."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    operation: OperationFactory
    neutral: Arguments | None = None
    """Arguments for which the step changes nothing, if any."""
    check: Callable[..., str | None] = lambda *_: None
    """(*arguments) -> the contradiction between arguments, as the end of a sentence, or None."""
    words: Callable[..., str] | None = None
    """(*arguments) -> a description for readers unfamiliar with the notation, like 'mirrored'."""

    @property
    def form(self) -> str:
        """The syntax of the step, for example 'shift:DX,DY'."""
        return self.name + (":" + ",".join(name for name, _ in self.parameters) if self.parameters else "")


STEPS: Registry[Step] = Registry("step", ViewError)


def view_step(form: str, *, onnx: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Register the decorated function as a step, for example `@view_step("posterize:BITS")`.

    The function takes float32 [N, H, W, C] in [0, 1] and one finite number per name after the colon. It returns an
    array of the same shape, which is clipped to [0, 1]. The first line of its docstring is the summary of the step.

    `onnx` implements the step for `export_onnx` with ONNX operators. It is a function of the graph, the images as a
    tensor of the graph, and the numbers: `lambda graph, images, bits: graph.op("Floor", images * 2**bits) / 2**bits`.
    Tensors have the Python operators `+ - * / **`; `graph.op` adds any other operator of ONNX.
    """
    name, _, rest = form.partition(":")
    if not (name.isascii() and name.isidentifier() and name == name.lower()):
        raise ViewError(f"step name {name!r} is invalid; expected lower-case ASCII letters, digits and underscores.")

    def decorate(function: Function) -> Function:
        def make_filter(_frame: Frame, *arguments: float) -> Filter:
            onnx_form = None if onnx is None else lambda graph, images: onnx(graph, images, *arguments)
            return Filter(lambda images: function(images, *arguments), onnx_form)

        summary = (function.__doc__ or f"user function {function.__name__}").strip().splitlines()[0]
        parameters = tuple((each.strip(), parse_number) for each in rest.split(",") if each.strip())
        STEPS.add(Step(name, summary, parameters, make_filter))
        return function

    return decorate


def _built_in(
    name: str, summary: str, *parameters: Parameter, **options: Any
) -> Callable[[OperationFactory], OperationFactory]:
    def decorate(operation: OperationFactory) -> OperationFactory:
        STEPS.add(Step(name, summary, parameters, operation, **options))
        return operation

    return decorate


_built_in("identity", "the image itself", neutral=())(
    lambda frame: Copy(Axis.shift(0, frame.height), Axis.shift(0, frame.width))
)
_built_in("hflip", "flip left-right", words=lambda: "mirrored")(
    lambda frame: Copy(Axis.shift(0, frame.height), Axis.flip(frame.width))
)
_built_in("vflip", "flip top-bottom", words=lambda: "mirrored top to bottom")(
    lambda frame: Copy(Axis.flip(frame.height), Axis.shift(0, frame.width))
)


def _word_shift(dx: Amount, dy: Amount) -> str:
    """Describe a shift: 'shifted by 1 pixel right', or 'shifted by 5 % right and down' if both lengths are equal."""
    moves: dict[str, list[str]] = {}
    for one, directions in ((dx, ("left", "right")), (dy, ("up", "down"))):
        if one.value:
            size = _round(abs(one.value))
            unit = "%" if one.percent else "pixel" if size == "1" else "pixels"
            moves.setdefault(f"{size} {unit}", []).append(directions[one.value > 0])
    return "shifted by " + " and ".join(f"{size} {' and '.join(sides)}" for size, sides in moves.items())


@_built_in(
    "shift",
    "move the content right and down, in pixels or percent of the side (5%); fills with black",
    ("DX", _parse_amount),
    ("DY", _parse_amount),
    neutral=(Amount(0.0), Amount(0.0)),
    words=_word_shift,
)
def _shift(frame: Frame, dx: Amount, dy: Amount) -> Operation:
    # Longer shifts are equivalent: everything is black.
    right = max(-frame.width - 1.0, min(frame.width + 1.0, dx.to_pixels(frame.width)))
    down = max(-frame.height - 1.0, min(frame.height + 1.0, dy.to_pixels(frame.height)))
    if all(abs(distance - round(distance)) < 1e-9 for distance in (right, down)):
        return Copy(Axis.shift(round(down), frame.height), Axis.shift(round(right), frame.width))
    return Warp(((1.0, 0.0, -right), (0.0, 1.0, -down)), "black")


@_built_in(
    "rotate",
    "rotate clockwise about the center, zoomed in just enough to hide the outside of the image",
    ("DEG", parse_number),
    neutral=(0.0,),
    words=lambda degrees: (
        f"turned by {_round(abs(degrees))} degree{'s' * (abs(degrees) != 1)} {'counter' * (degrees < 0)}clockwise"
    ),
)
def _rotate(frame: Frame, degrees: float) -> Operation:
    angle = math.radians(math.fmod(degrees, 360.0))
    cosine, sine = math.cos(angle), math.sin(angle)
    ratio = max(frame.width / frame.height, frame.height / frame.width)
    enlargement = abs(cosine) + ratio * abs(sine)
    return _warp_about_center(frame, cosine / enlargement, sine / enlargement, border="edge")


_ZOOM = "enlarge about the center; below 1, shrink and mirror the edges"
_built_in("zoom", _ZOOM, _bounded("F", 0.05, 20.0), neutral=(1.0,), words=lambda factor: f"zoomed {_round(factor)}x")(
    lambda frame, factor: _warp_about_center(frame, 1.0 / factor, 0.0, border="mirror")
)
_built_in(
    "gamma",
    "raise pixels in [0, 1] to the power G",
    _bounded("G", 0.01, 100.0),
    neutral=(1.0,),
    words=lambda exponent: f"{'darker' if exponent > 1 else 'brighter'} (gamma {_round(exponent)})",
)(lambda _frame, exponent: Tone((lambda values, _mean: values**exponent,)))
_built_in(
    "contrast",
    "scale about the image mean",
    _bounded("F", 0.0, 100.0),
    neutral=(1.0,),
    words=lambda factor: f"with {'more' if factor > 1 else 'less'} contrast ({_round(factor)}x)",
)(lambda _frame, factor: Tone((lambda values, mean: mean + factor * (values - mean),), uses_mean=True))
_built_in(
    "brightness",
    "scale from black",
    _bounded("F", 0.0, 100.0),
    neutral=(1.0,),
    words=lambda factor: f"{'brighter' if factor > 1 else 'darker'} ({_round(factor)}x)",
)(lambda _frame, factor: Tone((lambda values, _mean: values * factor,)))
_built_in("gray", "luminance (0.299 R + 0.587 G + 0.114 B) in every channel", words=lambda: "in gray")(
    lambda _frame: Luminance((0.299, 0.587, 0.114))
)


@_built_in(
    "channels",
    "reorder the color channels, for example bgr",
    ("ORDER", _parse_channel_order),
    neutral=("rgb",),
    words=lambda order: f"with color channels in the order {order}",
)
def _channels(frame: Frame, order: str) -> Operation:
    if frame.channels != 3:
        fault = f"step 'channels:{order}' needs images with 3 channels, got {frame.channels}"
        raise ViewError(fault, repair="remove views with this step")
    return Reorder(tuple("rgb".index(letter) for letter in order))


_built_in(
    "blur",
    "Gaussian blur with a standard deviation of R pixels",
    _bounded("R", 0.01, 100.0),
    words=lambda sigma: f"blurred (by {_round(sigma)} pixels)",
)(lambda _frame, sigma: Blur(sigma))


@_built_in(
    "noise",
    "add Gaussian noise with a standard deviation of S gray levels of 255, the same for every image",
    _bounded("S", 0.0, 255.0),
    neutral=(0.0,),
    words=lambda sigma: f"with noise ({_round(sigma)} gray levels)",
)
def _noise(frame: Frame, sigma: float) -> Operation:
    # The stream of a RandomState is the same in all versions of NumPy, and so are the pixels of the view.
    pattern = np.random.RandomState(0).standard_normal((frame.height, frame.width, frame.channels))
    scaled = (pattern * (sigma / 255)).astype(np.float32)
    return Filter(lambda images: images + scaled, lambda _graph, images: images + scaled)


def _check_crop(x: float, y: float, width: float, height: float) -> str | None:
    if width == 0 or height == 0:
        return "has no area; expected W and H above 0"
    if x + width > 100 or y + height > 100:
        return "exceeds the image; expected X + W and Y + H of at most 100"
    return None


@_built_in(
    "crop",
    "crop (left, top, width, height in percent) and resize back",
    *(_bounded(name, 0.0, 100.0, "%") for name in "XYWH"),
    neutral=(0.0, 0.0, 100.0, 100.0),
    check=_check_crop,
    words=lambda _x, _y, width, height: f"cropped to {_round(width)} x {_round(height)} %",
)
def _crop(frame: Frame, x: float, y: float, width: float, height: float) -> Operation:
    def compute_sampling(start: float, extent: float, side: int) -> tuple[float, float]:
        # Pixel i covers [i, i + 1), so the center of output pixel 0 is half a scaled pixel inside the crop.
        return extent / 100, start / 100 * side + 0.5 * extent / 100 - 0.5

    across, left = compute_sampling(x, width, frame.width)
    along, top = compute_sampling(y, height, frame.height)
    return Warp(((across, 0.0, left), (0.0, along, top)), "edge")


def _warp_about_center(frame: Frame, cosine: float, sine: float, border: Border) -> Warp:
    """Return the warp that samples at output positions rotated back and scaled about the image center."""
    x, y = (frame.width - 1) / 2, (frame.height - 1) / 2
    return Warp(((cosine, sine, x - cosine * x - sine * y), (-sine, cosine, y + sine * x - cosine * y)), border)
