"""Preprocessing: how an image becomes the input of a classifier, explicit, printable and comparable."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import geometry
from secondlook.classifiers.geometry import CropRounding, Interpolation, Size
from secondlook.classifiers.settings import check_choice, checked_numbers, checked_resize, checked_size
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

Layout = Literal["NCHW", "NHWC"]
Color = Literal["RGB", "BGR"]
Gray = Literal["repeat", "luminance"]
InputType = Literal["float32", "float16", "uint8"]


@dataclass(frozen=True)
class Preprocessing:
    """What happens to an image: resize, crop, [views], scale, color order, mean and std, layout.

    Attributes
    ----------
    resize
        Shorter side in pixels, or (height, width), or None to leave the size alone.
    crop
        Side or (height, width) of the center crop that follows, or None.
    interpolation
        'nearest', 'box', 'bilinear', 'hamming', 'bicubic' or 'lanczos', with Pillow's smoothing.
    crop_rounding
        'even' (torchvision, timm) or 'down' (transformers): which pixel an odd margin goes to.
    size
        (height, width) the classifier insists on, or None where any will do.
    channels
        1 or 3 where the classifier insists, or None.
    gray
        'repeat' turns gray images into three equal channels, 'luminance' turns color images gray; None allows neither.
    scale
        Factor on pixels of 0 to 255; images in [0, 1] are multiplied by 255 * scale.
    mean, std
        Subtracted and divided by after scaling; one value, or one per channel in the order of `color`.
    color, layout, input_dtype
        What the classifier is fed: 'RGB' or 'BGR'; 'NCHW' or 'NHWC'; 'float32', 'float16', or 'uint8' (raw pixels).
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

    def __post_init__(self) -> None:
        tidy: dict[str, Any] = {
            "resize": checked_resize(self.resize),
            "crop": checked_size("crop", self.crop),
            "size": checked_size("size", self.size),
            "scale": checked_numbers("scale", self.scale)[0],
            "mean": checked_numbers("mean", self.mean),
            "std": checked_numbers("std", self.std),
        }
        for name, value in tidy.items():
            object.__setattr__(self, name, value)
        for name, allowed in CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        self._check_together()

    def _check_together(self) -> None:
        if min(self.std) <= 0 or self.scale <= 0:
            raise ClassifierError(
                f"std={self.std} and scale={self.scale:g} must be positive; got a value of 0 or less."
            )
        if self.input_dtype == "uint8" and (self.scale, self.mean, self.std) != (1 / 255, (0.0,), (1.0,)):
            raise ClassifierError("the classifier takes uint8 pixels as they are, so leave out scale=, mean= and std=.")
        made, wanted = self.fitted_size, checked_size("size", self.size)
        if made is not None and wanted is not None and made != wanted:
            raise ClassifierError(
                f"the classifier takes images of {_times(wanted)} pixels, but resize and crop make {_times(made)}; "
                f"set crop={wanted}."
            )

    @property
    def fitted_size(self) -> Size | None:
        """Height and width that resize and crop lead to, or None where they depend on the image."""
        return checked_size("crop", self.crop) or (self.resize if isinstance(self.resize, tuple) else None)

    @property
    def input_size(self) -> Size | None:
        """Height and width of the input, or None where any size goes through."""
        return self.fitted_size or checked_size("size", self.size)

    @property
    def geometry(self) -> dict[str, object]:
        """The settings that act before the views; members of an ensemble share them."""
        return {name: getattr(self, name) for name in GEOMETRY}

    def fit(self, images: Sequence[Array] | Array) -> Array:
        """Images at the input size, one batch. uint8|float32 [H, W, C] of any sizes -> [N, height, width, channels]"""
        if isinstance(images, np.ndarray) and images.ndim == 4 and self._leaves_alone(images.shape[1:3]):
            batch = images
        else:
            batch = geometry.stacked([self._fit_one(image) for image in images])
        batch = self._with_channels(batch)
        self.check_size(batch.shape[1], batch.shape[2])
        return batch

    def _leaves_alone(self, size: tuple[int, ...]) -> bool:
        wanted = size if self.resize is None else geometry.target_size(size[0], size[1], self.resize)
        return wanted == size and self.crop in (None, size)

    def _fit_one(self, image: Array) -> Array:
        if self.resize is not None:
            size = geometry.target_size(image.shape[0], image.shape[1], self.resize)
            image = geometry.resized(image, size, self.interpolation)
        crop = checked_size("crop", self.crop)
        return image if crop is None else geometry.center_cropped(image, crop, self.crop_rounding)

    def check_size(self, height: int, width: int) -> None:
        """Raise where images of this size cannot be fed to the classifier."""
        if self.input_size is not None and (height, width) != self.input_size:
            raise ClassifierError(
                f"the images are {_times((height, width))} pixels, but the classifier takes {_times(self.input_size)}; "
                f"set resize={self.input_size} (or resize= the shorter side and crop={self.input_size})."
            )

    def normalize(self, images: Array) -> Array:
        """Return the classifier's input. uint8|float32 [N, H, W, C] -> [N, C, H, W], or [N, H, W, C] by layout."""
        images = self._with_channels(images)
        if self.color == "BGR":
            images = images[..., ::-1]
        if self.layout == "NCHW":
            images = images.transpose(0, 3, 1, 2)
        if self.input_dtype == "uint8":
            return geometry.as_pixels(images)
        factor, offset = self._factor_and_offset
        if images.dtype == np.float32:
            factor = factor * np.float32(255)
        inputs = np.empty(images.shape, dtype=np.float32)
        # Converting while the axes move, then two passes in place, beat any single strided pass of numpy.
        inputs[...] = images
        inputs *= factor
        inputs += offset
        return inputs if self.input_dtype == "float32" else inputs.astype(np.float16)

    @cached_property
    def _factor_and_offset(self) -> tuple[Float32Array, Float32Array]:
        """(x * scale - mean) / std as x * factor + offset, ready to broadcast over the layout."""
        mean, std = np.array(self.mean), np.array(self.std)
        shape = (-1, 1, 1) if self.layout == "NCHW" else (-1,)
        factor = np.broadcast_to(self.scale / std, np.broadcast_shapes(mean.shape, std.shape))
        return factor.astype(np.float32).reshape(shape), (-mean / std).astype(np.float32).reshape(shape)

    def _with_channels(self, images: Array) -> Array:
        got = images.shape[-1]
        wanted = self.channels or max(len(self.mean), len(self.std))
        if self.channels is None and wanted == 1:
            return images
        if got == wanted:
            return images
        if (got, wanted, self.gray) == (1, 3, "repeat"):
            return np.repeat(images, 3, axis=-1)
        if (got, wanted, self.gray) == (3, 1, "luminance"):
            return geometry.luminance(images)
        conversion = {(1, 3): "repeat", (3, 1): "luminance"}.get((got, wanted))
        repair = (
            f"{wanted}-channel images" if conversion is None else f"gray={conversion!r}, in a text ?gray={conversion}"
        )
        raise ClassifierError(f"the images have {got} channel(s), but the classifier takes {wanted}; pass {repair}.")

    def with_settings(self, settings: Mapping[str, object]) -> Self:
        """Return the same preprocessing but for the given settings; a setting that is None changes nothing."""
        _check_names(settings)
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        return dataclasses.replace(self, **given)

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON can hold them, under the names that stores and policies keep them by."""
        values = {_STORED_NAMES.get(name, name): value for name, value in _items(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, object]) -> Self:
        """Return the preprocessing that `to_dict` described; missing settings keep their defaults."""
        given = {stored: name for name, stored in _STORED_NAMES.items()}
        return cls().with_settings({given.get(name, name): value for name, value in settings.items()})

    @property
    def digest(self) -> str:
        """Hex sha256 of all settings."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        default = Preprocessing()
        changed = [f"{name}={_text(value)}" for name, value in _items(self) if value != getattr(default, name)]
        return ", ".join(changed) or "pixels / 255, RGB, NCHW"


CHOICES: dict[str, tuple[object, ...]] = {
    "interpolation": geometry.INTERPOLATIONS,
    "crop_rounding": ("even", "down"),
    "channels": (None, 1, 3),
    "gray": (None, "repeat", "luminance"),
    "color": ("RGB", "BGR"),
    "layout": ("NCHW", "NHWC"),
    "input_dtype": ("float32", "float16", "uint8"),
}
GEOMETRY = ("resize", "crop", "interpolation", "crop_rounding", "channels", "gray")
_STORED_NAMES = {"color": "colour", "gray": "grey"}
"""Names in files: they are part of the identity of stored predictions, so the first spelling stays there."""
SETTINGS = tuple(field.name for field in dataclasses.fields(Preprocessing))


def _items(preprocessing: Preprocessing) -> list[tuple[str, Any]]:
    return [(name, getattr(preprocessing, name)) for name in SETTINGS]


def _check_names(settings: Mapping[str, object]) -> None:
    for name in settings:
        if name not in SETTINGS:
            raise ClassifierError(
                f"unknown preprocessing setting {name!r}; known: {', '.join(SETTINGS)}.{did_you_mean(name, SETTINGS)}"
            )


def _times(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{number:.6g}" for number in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
