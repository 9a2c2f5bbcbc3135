"""One image of any kind as an array: a path, an encoded file, a PIL image, an array or a tensor."""

import io
import os
import sys
from typing import Any, Literal

import numpy as np

from secondlook.arrays import Array, describe_single_image_fault
from secondlook.errors import SourceError
from secondlook.sources.image_files import convert_pillow_image, decode_file, decode_image
from secondlook.sources.source import MAX_BYTES, ReadOptions
from secondlook.specs import expand_path

Kind = Literal["path", "bytes", "PIL image", "array", "tensor"]
KINDS = "a path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C, H, W]"


def read_image(
    image: object, where: str | None = None, *, max_pixels: int = ReadOptions.max_pixels, max_bytes: int = MAX_BYTES
) -> Array:
    """Return one image of any kind as an array. -> uint8, or float32 in [0, 1], [H, W, 1 or 3]

    Parameters
    ----------
    image
        A path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C, H, W]. An
        array or a tensor may have another axis of length 1 in front. Arrays are not copied.
    where
        The name of the image in errors; the path, or the type of the image, by default.
    max_pixels, max_bytes
        Maximum number of pixels and decoded bytes of an image file or a PIL image.
    """
    kind = find_kind(image)
    if kind is None:
        raise SourceError(
            f"{f'image {where}' if where else 'the image'} is of type {type(image).__name__}; expected {KINDS}."
        )
    value: Any = image
    if kind == "path":
        path = os.fsdecode(value)
        return decode_file(expand_path(path), where or path, max_pixels, max_bytes)
    if kind == "bytes":
        return decode_image(io.BytesIO(value), where or "in memory", max_pixels, max_bytes)
    if kind == "PIL image":
        return convert_pillow_image(value, where or "in memory", max_pixels, max_bytes)
    name = f"image {where}" if where else f"the {kind}"
    pixels = convert_tensor(value, name) if kind == "tensor" else value
    pixels = pixels[0] if pixels.ndim == 4 and len(pixels) == 1 else pixels
    fault = describe_single_image_fault(pixels)
    if fault is not None:
        raise SourceError(f"the pixels of {name} {fault}.")
    return np.ascontiguousarray(pixels)


def find_kind(image: object) -> Kind | None:
    """Return the kind of an image, or None for anything else; no package is imported."""
    if isinstance(image, str | os.PathLike):
        return "path"
    if isinstance(image, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(image, np.ndarray):
        return "array"
    if is_instance(image, "PIL.Image", "Image"):
        return "PIL image"
    return "tensor" if is_instance(image, "torch", "Tensor") else None


def is_instance(value: object, module: str, name: str) -> bool:
    """Whether a value is an instance of a class of a module; if the module is not loaded, it cannot be."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def convert_tensor(tensor: Any, name: str) -> Array:
    """Return a torch tensor [..., C, H, W] as an array [..., H, W, C] that shares its memory where possible."""
    check_tensor_shape(tensor, name)
    values = tensor.detach().cpu()
    array: Array = (values.float() if values.is_floating_point() else values).numpy()
    return np.moveaxis(array, -3, -1)


def check_tensor_shape(tensor: Any, name: str) -> None:
    """Raise unless a torch tensor has the shape of an image or of images."""
    if tensor.ndim not in (3, 4) or tensor.shape[-3] not in (1, 3):
        axes = (2, 0, 1) if tensor.ndim == 3 else (0, 3, 1, 2)
        is_channels_last = tensor.ndim in (3, 4) and tensor.shape[-1] in (1, 3)
        hint = f"; the channels seem to come last: pass it with permute{axes}" if is_channels_last else ""
        raise SourceError(
            f"{name} has shape {list(tensor.shape)}; expected [C, H, W] or [N, C, H, W] with 1 or 3 channels{hint}."
        )
