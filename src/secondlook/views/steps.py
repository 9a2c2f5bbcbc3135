"""The steps a view is made of: one registry that the parser, the engine, the command line and the docs read."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import ViewError
from secondlook.views.arguments import (
    Amount,
    Argument,
    Parameter,
    amount,
    channel_order,
    number,
    number_between,
    percentage,
)
from secondlook.views.operations import Axis, Copy, Filter, Operation, Reorder, Tone, Warp

Arguments = tuple[Argument | Amount, ...]
Function = TypeVar("Function", bound=Callable[..., Array])


@dataclass(frozen=True)
class Frame:
    """The size of the images that a step will see."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class Step:
    """A kind of step: its name, its parameters, what it means and how it is done."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    operation: Callable[..., Operation]
    """(frame, *arguments) -> what the engine shall do"""
    neutral: Arguments | None = None
    """the arguments with which the step changes nothing, where there are such"""
    check: Callable[..., str | None] = lambda *_: None
    """(*arguments) -> what is wrong with them together, as the end of a sentence"""

    @property
    def form(self) -> str:
        """How the step is written, such as 'shift:DX,DY'."""
        return self.name + (":" + ",".join(parameter.name for parameter in self.parameters) if self.parameters else "")


STEPS: dict[str, Step] = {}
"""Every known step by its name, in the order of registration."""


def register(step: Step) -> None:
    """Add a step to the registry; a name is taken once only."""
    if step.name in STEPS:
        raise ViewError(f"step {step.name!r} is registered already; choose another name for {step.form!r}.")
    if not (step.name.isascii() and step.name.isidentifier() and step.name == step.name.lower()):
        raise ViewError(f"step name {step.name!r} must be lower-case ASCII letters, digits and underscores.")
    STEPS[step.name] = step


def view_step(form: str) -> Callable[[Function], Function]:
    """Make a function on images a step of its own, such as `@view_step("posterize:BITS")`.

    The function takes float32 [N, H, W, C] in [0, 1] and one finite number for each name after the colon, and returns
    an array of the same shape; what leaves [0, 1] is clipped. The first line of its docstring is the step's summary.
    """
    name, _, names = form.partition(":")

    def decorate(function: Function) -> Function:
        register(
            Step(
                name=name,
                summary=(function.__doc__ or f"the user's function {function.__name__}").strip().splitlines()[0],
                parameters=tuple(number(parameter.strip()) for parameter in names.split(",") if parameter.strip()),
                operation=lambda _frame, *arguments: Filter(lambda images: function(images, *arguments)),
            )
        )
        return function

    return decorate


def _built_in(
    name: str, summary: str, *parameters: Parameter, **options: Any
) -> Callable[[Callable[..., Operation]], Callable[..., Operation]]:
    def decorate(operation: Callable[..., Operation]) -> Callable[..., Operation]:
        register(Step(name, summary, parameters, operation, **options))
        return operation

    return decorate


@_built_in("identity", "the image itself", neutral=())
def _identity(frame: Frame) -> Operation:
    return Copy(Axis.shift(0, frame.height), Axis.shift(0, frame.width))


@_built_in("hflip", "mirror left-right")
def _hflip(frame: Frame) -> Operation:
    return Copy(Axis.shift(0, frame.height), Axis.flip(frame.width))


@_built_in("vflip", "mirror top-bottom")
def _vflip(frame: Frame) -> Operation:
    return Copy(Axis.flip(frame.height), Axis.shift(0, frame.width))


@_built_in(
    "shift",
    "move the content right and down, in pixels or per cent of the side (5%); black fills",
    amount("DX"),
    amount("DY"),
    neutral=(Amount(0.0), Amount(0.0)),
)
def _shift(frame: Frame, dx: Amount, dy: Amount) -> Operation:
    # One pixel beyond the image all is black, however far the shift goes.
    right = max(-frame.width - 1.0, min(frame.width + 1.0, dx.pixels(frame.width)))
    down = max(-frame.height - 1.0, min(frame.height + 1.0, dy.pixels(frame.height)))
    if all(abs(distance - round(distance)) < 1e-9 for distance in (right, down)):
        return Copy(Axis.shift(round(down), frame.height), Axis.shift(round(right), frame.width))
    return Warp(((1.0, 0.0, -right), (0.0, 1.0, -down)), "black")


@_built_in(
    "rotate",
    "turn clockwise about the center, zoomed in just enough that nothing from outside shows",
    number("DEG"),
    neutral=(0.0,),
)
def _rotate(frame: Frame, degrees: float) -> Operation:
    angle = math.radians(math.fmod(degrees, 360.0))
    cosine, sine = math.cos(angle), math.sin(angle)
    ratio = max(frame.width / frame.height, frame.height / frame.width)
    enlargement = abs(cosine) + ratio * abs(sine)
    return _about_center(frame, cosine / enlargement, sine / enlargement, border="edge")


@_built_in(
    "zoom",
    "enlarge about the center; below 1 it shrinks and the edges are mirrored",
    number_between("F", 0.05, 20.0),
    neutral=(1.0,),
)
def _zoom(frame: Frame, factor: float) -> Operation:
    return _about_center(frame, 1.0 / factor, 0.0, border="mirror")


@_built_in("gamma", "raise pixels in [0, 1] to the power G", number_between("G", 0.01, 100.0), neutral=(1.0,))
def _gamma(_frame: Frame, exponent: float) -> Operation:
    return Tone((lambda values, _mean: np.power(values, exponent),))


@_built_in("contrast", "scale about the image mean", number_between("F", 0.0, 100.0), neutral=(1.0,))
def _contrast(_frame: Frame, factor: float) -> Operation:
    return Tone((lambda values, mean: mean + factor * (values - mean),), about_mean=True)


@_built_in("brightness", "scale from black", number_between("F", 0.0, 100.0), neutral=(1.0,))
def _brightness(_frame: Frame, factor: float) -> Operation:
    return Tone((lambda values, _mean: values * factor,))


@_built_in("gray", "luminance (0.299 R + 0.587 G + 0.114 B) in every channel")
def _gray(_frame: Frame) -> Operation:
    def luminance(images: Array) -> Array:
        if images.shape[3] == 1:
            return images
        gray = images @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
        return np.repeat(gray[..., None], 3, axis=3)

    return Filter(luminance)


@_built_in("channels", "the color channels in that order, such as bgr", channel_order("ORDER"), neutral=("rgb",))
def _channels(frame: Frame, order: str) -> Operation:
    if frame.channels != 3:
        raise ViewError(
            f"step 'channels:{order}' needs images of 3 channels, got {frame.channels}; leave that view out."
        )
    return Reorder(tuple("rgb".index(letter) for letter in order))


@_built_in("blur", "Gaussian blur with a standard deviation of R pixels", number_between("R", 0.01, 100.0))
def _blur(_frame: Frame, sigma: float) -> Operation:
    def blurred(images: Array) -> Array:
        import cv2

        side = 2 * math.ceil(3 * sigma) + 1
        result = np.empty_like(images)
        for image, target in zip(images, result, strict=True):
            smooth = cv2.GaussianBlur(image, (side, side), sigma, borderType=cv2.BORDER_REFLECT)
            target[...] = smooth.reshape(image.shape)
        return result

    return Filter(blurred)


def _beyond_the_image(x: float, y: float, width: float, height: float) -> str | None:
    if width == 0 or height == 0:
        return "has no area; W and H must be above 0"
    if x + width > 100 or y + height > 100:
        return "leaves the image; X + W and Y + H must be at most 100"
    return None


@_built_in(
    "crop",
    "cut out (left, top, width, height in per cent) and resize back",
    percentage("X"),
    percentage("Y"),
    percentage("W"),
    percentage("H"),
    neutral=(0.0, 0.0, 100.0, 100.0),
    check=_beyond_the_image,
)
def _crop(frame: Frame, x: float, y: float, width: float, height: float) -> Operation:
    def sampled(start: float, share: float, side: int) -> tuple[float, float]:
        # Pixel i covers [i, i + 1), so the middle of output pixel 0 lies half of a scaled pixel inside the cut.
        return share / 100, start / 100 * side + 0.5 * share / 100 - 0.5

    across, left = sampled(x, width, frame.width)
    along, top = sampled(y, height, frame.height)
    return Warp(((across, 0.0, left), (0.0, along, top)), "edge")


def _about_center(frame: Frame, cosine: float, sine: float, border: Any) -> Warp:
    """Sample at the output position turned back and scaled about the middle of the image."""
    x, y = (frame.width - 1) / 2, (frame.height - 1) / 2
    return Warp(((cosine, sine, x - cosine * x - sine * y), (-sine, cosine, y + sine * x - cosine * y)), border)
