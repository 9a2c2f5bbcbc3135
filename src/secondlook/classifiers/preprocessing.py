"""Preprocessing: the explicit, printable and comparable steps from an image to the input of a classifier."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from PIL import Image

from secondlook.arrays import Array, Float32Array, as_pixels
from secondlook.errors import ANY, ClassifierError, Repair
from secondlook.registry import did_you_mean

Size = tuple[int, int]
"""Height and width."""

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
CropRounding = Literal["even", "down"]
"""Rounding of half an odd margin: to even (torchvision and timm), or down (transformers)."""
Gray = Literal["repeat", "luminance"]
Color = Literal["RGB", "BGR"]
Layout = Literal["NCHW", "NHWC"]
InputType = Literal["float32", "float16", "uint8"]

CHANNELS = (1, 3)
CHOICES: dict[str, tuple[object, ...]] = {
    "interpolation": get_args(Interpolation),
    "crop_rounding": get_args(CropRounding),
    "channels": (None, *CHANNELS),
    "gray": (None, *get_args(Gray)),
    "color": get_args(Color),
    "layout": get_args(Layout),
    "input_dtype": get_args(InputType),
}
GEOMETRY = ("resize", "crop", "interpolation", "crop_rounding", "channels", "gray")
"""Settings applied before the views."""

_STORED_NAMES = {"color": "colour", "gray": "grey"}
"""Names in files, in the original spelling, because digests of stored predictions depend on them."""


class ImageShapeError(ClassifierError):
    """Images with a size or channels that the classifier does not accept."""


@dataclass(frozen=True)
class Preprocessing:
    """Steps from an image to the model's input: resize, crop, [views], scale, color order, mean and std, layout.

    `resize` is the shorter side or (height, width) in pixels; `crop` is the side or size of the center crop after it.
    `size` and `channels` are requirements of the model, or None. `gray` is 'repeat' to expand gray images to three
    channels, 'luminance' to make color images gray, or None. The input is (x * scale - mean) / std for pixels x from 0
    to 255, as `input_dtype`; 'uint8' means raw pixels. There is one mean and std, or one per channel in `color` order.
    """

    resize: int | Size | None = None
    crop: int | Size | None = None
    interpolation: Interpolation = "bilinear"
    crop_rounding: CropRounding = "even"
    size: int | Size | None = None
    channels: int | None = None
    gray: Gray | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    color: Color = "RGB"
    layout: Layout = "NCHW"
    input_dtype: InputType = "float32"

    MAX_RESIZED_PIXELS: ClassVar[int] = 2**26
    """Resizing the shorter side of a very long image could otherwise exhaust the memory."""
    LUMINANCE_WEIGHTS: ClassVar[tuple[int, int, int]] = (19595, 38470, 7471)
    """ITU-R 601 weights of red, green and blue in units of 1/65536, rounded like in Pillow."""

    def __post_init__(self) -> None:
        normalized: dict[str, Any] = {
            "resize": self.resize if _is_positive_integer(self.resize) else _parse_size("resize", self.resize),
            "crop": _parse_size("crop", self.crop),
            "size": _parse_size("size", self.size),
            "scale": _parse_numbers("scale", self.scale)[0],
            "mean": _parse_numbers("mean", self.mean),
            "std": _parse_numbers("std", self.std),
        }
        for name, value in normalized.items():
            object.__setattr__(self, name, value)
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                hint = did_you_mean(str(value), [str(choice) for choice in allowed])
                fault = f"is unknown; expected one of {', '.join(map(repr, allowed))}.{hint}"
                raise ClassifierError(fault, argument=name, value=value)
        self._check_numbers()
        fitted, required = self.fitted_size, normalized["size"]
        if fitted is not None and required not in (None, fitted):
            sizes = f"{_format_size(required)} pixels, but resizing and cropping produce {_format_size(fitted)}"
            raise ClassifierError(f"the model requires images of {sizes}", repair=Repair("pass {crop}", crop=required))

    def _check_numbers(self) -> None:
        for name, numbers in (("std", self.std), ("scale", (self.scale,))):
            if min(numbers) <= 0:
                raise ClassifierError("must be positive", argument=name, value=getattr(self, name))
        if self.input_dtype == "uint8" and (self.scale, self.mean, self.std) != (1 / 255, (0.0,), (1.0,)):
            repair = Repair("remove {scale}, {mean} and {std}", scale=ANY, mean=ANY, std=ANY)
            raise ClassifierError("the model takes raw uint8 pixels", repair=repair)
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if self.channels == 1 and len(numbers) > 1:
                fault = "is for color, but the model takes gray images; pass one number"
                raise ClassifierError(fault, argument=name, value=numbers)
        largest = 255 * self.scale
        if max(self.mean) > largest * (1 + 1e-6):
            mean, std = (_round_numbers(numbers, self.scale) for numbers in (self.mean, self.std))
            is_std_too = self.std == (1.0,) or max(self.std) > largest
            text = "if it refers to pixels from 0 to 255, pass {mean}" + " and {std} in the same units" * is_std_too
            repair = Repair(text, mean=mean, std=std if max(self.std) > largest else ANY)
            fault = f"is above {largest:g}, the largest value of scaled pixels"
            raise ClassifierError(fault, argument="mean", value=_round_numbers(self.mean), repair=repair)

    @cached_property
    def fitted_size(self) -> Size | None:
        """Height and width after resizing and cropping, or None if they depend on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)  # type: ignore[return-value]

    @cached_property
    def input_size(self) -> Size | None:
        """Height and width of the input, or None if any size is accepted."""
        return self.fitted_size or self.size  # type: ignore[return-value]

    @property
    def geometry(self) -> dict[str, object]:
        """The settings applied before the views; members of an ensemble share them."""
        return {name: getattr(self, name) for name in GEOMETRY}

    def fit(self, images: Sequence[Array] | Array) -> Array:
        """Resize, crop and stack images of any size. uint8|float32 [H, W, C] each -> [N, height, width, channels]"""
        if isinstance(images, np.ndarray) and images.ndim == 4 and self.keeps_size(images.shape[1:3]):
            batch = images
        else:
            batch = _stack_images([self._fit_image(image) for image in images])
        batch = self.convert_channels(batch)
        self.check_size(batch.shape[1], batch.shape[2])
        return batch

    def find_crop(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Return the part of an image of this size that `fit` keeps: left, top, width and height in [0, 1]."""
        size = (height, width) if self.resize is None else _compute_resized_size(height, width, self.resize)
        crop: Size = self.crop or size  # type: ignore[assignment]
        starts = [max(0, _find_margin(*sides, self.crop_rounding)) for sides in zip(size, crop, strict=True)]
        top, left = (start / side for start, side in zip(starts, size, strict=True))
        shown_height, shown_width = (min(1, part / side) for part, side in zip(crop, size, strict=True))
        return left, top, shown_width, shown_height

    def keeps(self, shape: tuple[int, ...]) -> bool:
        """Whether `fit` returns images of this shape [H, W, C] unchanged."""
        return self.input_size in (None, shape[:2]) and self.keeps_size(shape[:2]) and self._keeps_channels(shape[2])

    def _keeps_channels(self, channels: int) -> bool:
        return channels == self._n_channels or (self.channels is None and self._n_channels == 1)

    @cached_property
    def _n_channels(self) -> int:
        return self.channels or max(len(self.mean), len(self.std))

    def keeps_size(self, size: tuple[int, ...]) -> bool:
        """Whether `fit` neither resizes nor crops images of this height and width."""
        resized = size if self.resize is None else _compute_resized_size(size[0], size[1], self.resize)
        return resized == size and self.crop in (None, size)

    def _fit_image(self, image: Array) -> Array:
        if self.resize is not None:
            size = _compute_resized_size(image.shape[0], image.shape[1], self.resize)
            image = _resize_image(image, size, self.interpolation)
        return image if self.crop is None else _center_crop(image, self.crop, self.crop_rounding)  # type: ignore[arg-type]

    def check_size(self, height: int, width: int) -> None:
        """Raise if images of this size do not fit the model."""
        if self.input_size is not None and (height, width) != self.input_size:
            found, size = _format_size((height, width)), self.input_size
            fault = f"the images have {found} pixels, but the classifier takes {_format_size(size)}"
            text = "load the classifier with {resize}, or with the shorter side and {crop}"
            raise ImageShapeError(fault, repair=Repair(text, resize=size, crop=size))

    def normalize(self, images: Array) -> Array:
        """Return the model's input. uint8|float32 [N, H, W, C] -> [N, C, H, W] or [N, H, W, C], see `layout`"""
        if images.shape[-1] != self._n_channels:
            images = self.convert_channels(images)
        if self.color == "BGR":
            images = images[..., ::-1]
        if self.layout == "NCHW":
            images = images.transpose(0, 3, 1, 2)
        if self.input_dtype == "uint8":
            return as_pixels(images)
        factor, offset = self.factor_and_offset
        if images.dtype == np.float32:
            factor = factor * np.float32(255)
        inputs = np.empty(images.shape, dtype=np.float32)
        # Converting during the transpose and two passes in place are faster than one strided pass of NumPy.
        inputs[...] = images
        inputs *= factor
        inputs += offset
        return inputs if self.input_dtype == "float32" else inputs.astype(np.float16)

    @cached_property
    def factor_and_offset(self) -> tuple[Float32Array, Float32Array]:
        """(x * scale - mean) / std as x * factor + offset, in a shape that broadcasts over the layout."""
        mean, std = np.array(self.mean), np.array(self.std)
        shape = (-1, 1, 1) if self.layout == "NCHW" else (-1,)
        factor = np.broadcast_to(self.scale / std, np.broadcast_shapes(mean.shape, std.shape))
        return factor.astype(np.float32).reshape(shape), (-mean / std).astype(np.float32).reshape(shape)

    def convert_channels(self, images: Array) -> Array:
        """Convert between gray and color, if `gray` allows it. [N, H, W, 1 or 3] -> [N, H, W, channels]"""
        channels, required = images.shape[-1], self._n_channels
        if self._keeps_channels(channels):
            return images
        gray = {(1, 3): "repeat", (3, 1): "luminance"}.get((channels, required))
        if gray is not None and gray == self.gray:
            return np.repeat(images, 3, axis=-1) if gray == "repeat" else _compute_luminance(images)
        conversion = Repair("load the classifier with {gray}", gray=gray)
        repair = f"pass {required}-channel images" if gray is None else conversion
        fault = f"the images have {channels} channel(s), but the classifier takes {required}"
        raise ImageShapeError(fault, repair=repair)

    def with_settings(self, settings: Mapping[str, object]) -> Self:
        """Return a copy with some settings replaced; None keeps a setting."""
        for name in settings:
            if name not in SETTINGS:
                known = f"{', '.join(SETTINGS)}.{did_you_mean(name, SETTINGS)}"
                raise ClassifierError(f"unknown preprocessing setting {name!r}; known: {known}")
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        return dataclasses.replace(self, **given)

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON values, under the names used in stores and policies."""
        return {
            _STORED_NAMES.get(name, name): list(value) if isinstance(value, tuple) else value
            for name, value in ((name, getattr(self, name)) for name in SETTINGS)
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, object]) -> Self:
        """Return the preprocessing described by `to_dict`; missing settings have their default."""
        return cls().with_settings({cls.setting_name(stored): value for stored, value in settings.items()})

    @staticmethod
    def setting_name(stored: str) -> str:
        """Return the name of a setting from its name in files."""
        return next((name for name, kept in _STORED_NAMES.items() if kept == stored), stored)

    @property
    def digest(self) -> str:
        """Hex sha256 of all settings."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        changed = [f"{name}={_format_value(getattr(self, name))}" for name in self.list_changes()]
        return ", ".join(changed) or "pixels / 255, RGB, NCHW"

    def list_changes(self) -> list[str]:
        """Return the names of the settings that differ from the default."""
        default = Preprocessing()
        return [name for name in SETTINGS if getattr(self, name) != getattr(default, name)]


SETTINGS = tuple(field.name for field in dataclasses.fields(Preprocessing))


def _compute_resized_size(height: int, width: int, resize: int | Size) -> Size:
    """Return the size after resizing; a given shorter side keeps the aspect ratio, rounded down."""
    if not isinstance(resize, int):
        return resize
    return (resize, int(resize * width / height)) if height <= width else (int(resize * height / width), resize)


def _resize_image(image: Array, size: Size, interpolation: Interpolation) -> Array:
    """Resize an image with Pillow, like the reference pipelines of pretrained models. uint8|float32 [H, W, C]"""
    if image.shape[:2] == size:
        return image
    if size[0] * size[1] > Preprocessing.MAX_RESIZED_PIXELS:
        fault = f"an image of {_format_size(image.shape[:2])} pixels would be resized to {_format_size(size)}"
        repair = Repair("remove it, or pass height and width, for example {resize}", resize=(224, 224))
        raise ClassifierError(fault, repair=repair)
    method = Image.Resampling[interpolation.upper()]
    width_and_height = (size[1], size[0])
    if image.dtype == np.uint8:
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        return np.asarray(picture.resize(width_and_height, method)).reshape(*size, -1)
    planes = [Image.fromarray(np.ascontiguousarray(image[..., channel])) for channel in range(image.shape[2])]
    return np.stack([np.asarray(plane.resize(width_and_height, method)) for plane in planes], axis=-1)


def _center_crop(image: Array, size: Size, rounding: CropRounding) -> Array:
    """Return the center of an image; smaller images are padded with black. [H, W, C] -> [*size, C]"""
    missing = [max(0, side - got) for side, got in zip(size, image.shape[:2], strict=True)]
    if any(missing):
        image = np.pad(image, [(side // 2, (side + 1) // 2) for side in missing] + [(0, 0)])
    top, left = (_find_margin(side, part, rounding) for side, part in zip(image.shape[:2], size, strict=True))
    return image[top : top + size[0], left : left + size[1]]


def _find_margin(side: int, part: int, rounding: CropRounding) -> int:
    """Return where the center part of a side begins."""
    return round((side - part) / 2) if rounding == "even" else (side - part) // 2


def _compute_luminance(images: Array) -> Array:
    """Convert color images to gray. uint8|float32 [..., 3] -> the same dtype [..., 1]"""
    if images.dtype == np.uint8:
        weighted = images.astype(np.uint32) @ np.array(Preprocessing.LUMINANCE_WEIGHTS, dtype=np.uint32)
        return ((weighted + 32768) >> 16).astype(np.uint8)[..., None]
    return (images @ (np.array(Preprocessing.LUMINANCE_WEIGHTS, dtype=np.float32) / 65536))[..., None]


def _stack_images(images: Sequence[Array]) -> Array:
    """Stack images of the same shape. N arrays [H, W, C] -> [N, H, W, C]"""
    shapes = sorted({image.shape for image in images})
    if len(shapes) == 1:
        return np.stack(images)
    if not shapes:
        raise ClassifierError("there are no images to preprocess; pass at least one.")
    text = "pass {resize} with height and width, or with the shorter side and {crop} with a side"
    fault = f"the images have different shapes, {list(shapes[0])} and {list(shapes[1])}"
    raise ClassifierError(fault, repair=Repair(text, resize=ANY, crop=ANY))


def _parse_size(name: str, size: object) -> Size | None:
    """Parse a side or a pair as (height, width); None stays None."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else size
    if isinstance(pair, Sequence) and len(pair) == 2 and all(_is_positive_integer(side) for side in pair):
        return int(pair[0]), int(pair[1])
    fault = "is not a size; expected a positive number of pixels or (height, width)"
    raise ClassifierError(fault, argument=name, value=size)


def _is_positive_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _parse_numbers(name: str, value: object) -> tuple[float, ...]:
    """Parse one or three numbers as a tuple of floats."""
    values: Iterable[Any] = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    try:
        numbers = tuple(float(number) for number in values)
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        fault = "is invalid; expected one finite number, or one per RGB channel"
        raise ClassifierError(fault, argument=name, value=value)
    return numbers


def _format_size(size: tuple[int, ...]) -> str:
    return f"{size[0]} x {size[1]}"


def _round_numbers(numbers: Sequence[float], factor: float = 1.0) -> float | tuple[float, ...]:
    """Round numbers to four significant digits for a message; a single number is not a tuple."""
    rounded = tuple(float(f"{number * factor:.4g}") for number in numbers)
    return rounded[0] if len(rounded) == 1 else rounded


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{number:.6g}" for number in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- Inputs described by a model file or a server ---


@dataclass(frozen=True)
class ModelInput:
    """An image input with four axes."""

    name: str
    shape: tuple[int | None, ...]
    """Sizes of the four axes; None for a dynamic axis."""
    dtype: InputType

    @classmethod
    def parse(
        cls, inputs: Sequence[tuple[str, Sequence[object], str]], dtypes: Mapping[str, InputType], spec: str
    ) -> "ModelInput":
        """Parse the only input of a model: its name, shape and number type, mapped by `dtypes`."""
        if len(inputs) != 1:
            names = ", ".join(repr(name) for name, _, _ in inputs) or "none described"
            fault = f"{spec!r} has {len(inputs)} inputs ({names}); expected one batch of images"
            raise ClassifierError(fault, repair="export the model, or describe it on the server, with a single input")
        [(name, shape, dtype)] = inputs
        if dtype not in dtypes:
            fault = f"input {name!r} of {spec!r} takes {dtype}; expected one of {', '.join(dtypes)}"
            raise ClassifierError(fault, repair="export the model with an input of this type")
        sizes = tuple(size if isinstance(size, int) and size > 0 else None for size in shape)
        if len(sizes) != 4:
            fault = f"input {name!r} of {spec!r} has shape {_format_shape(sizes)}"
            raise ClassifierError(f"{fault}; expected four axes: batch, channels, height and width.")
        return cls(name, sizes, dtypes[dtype])

    @property
    def batch_size(self) -> int | None:
        """The fixed number of images per batch, or None if any number is accepted."""
        return self.shape[0]

    def make_preprocessing(self, given_layout: object, spec: str) -> Preprocessing:
        """Return the preprocessing for this input; by default, the layout is inferred from the shape."""
        layout = given_layout or self._infer_layout(spec)
        channels, height, width = self.shape[1:] if layout == "NCHW" else (self.shape[3], *self.shape[1:3])
        if channels not in (None, *CHANNELS):
            fault = f"input {self.name!r} of {spec!r} has {channels} channels in the layout {layout!r}, expected 1 or 3"
            raise ClassifierError(fault, repair=Repair("correct or remove {layout}", layout=ANY))
        return Preprocessing(
            layout="NCHW" if layout == "NCHW" else "NHWC",
            channels=channels,
            size=None if height is None or width is None else (height, width),
            input_dtype=self.dtype,
        )

    def _infer_layout(self, spec: str) -> Layout:
        first, last = self.shape[1] in CHANNELS, self.shape[3] in CHANNELS
        if first == last:
            fault = f"cannot infer the layout of input {self.name!r} of {spec!r} from shape {_format_shape(self.shape)}"
            raise ClassifierError(fault, repair=Repair("pass {layout} or 'NHWC'", layout="NCHW"))
        return "NCHW" if first else "NHWC"


def _format_shape(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def choose_output_name(names: Sequence[str], given: str | None, spec: str) -> str:
    """Return the given output name, or by default the only one."""
    if given in names or (given is None and len(names) == 1):
        return given or names[0]
    problem = f"has no output {given!r}" if given is not None else f"has {len(names)} outputs"
    known = ", ".join(map(repr, names)) or "(none)"
    repair = Repair(f"pass {{output_name}} with one of: {known}", output_name=ANY)
    raise ClassifierError(f"{spec!r} {problem}", repair=repair)
