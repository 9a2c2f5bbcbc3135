"""Views of uint8 images on an NVIDIA GPU, written as normalized inputs in one pass over the pixels.

The PyTorch engine needs a pass per operation and one for the normalization. Triton comes with torch for CUDA.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from secondlook.operations import Axis, Copy, Frame, Tone, Warp, rounds_at_most_once
from secondlook.views.torch_engine import make_table
from secondlook.views.view import View

_BORDERS = {"black": 0, "edge": 1, "mirror": 2}
_BLOCK = 1024
_MAX_ELEMENTS = 2**31 - _BLOCK
"""Positions are counted in 32 bits."""


def write_view(images: Tensor, view: View, factor: Tensor, offset: Tensor, target: Tensor) -> bool:
    """Write `view * factor + offset` to the target, or return False for a view that needs more than one pass.

    Images are uint8 [N, H, W, C] and contiguous; the target has the same shape, in any dtype and memory format; factor
    and offset are float32 [C] each.
    """
    _, height, width, channels = images.shape
    operations = view.plan(Frame(height, width, channels))
    moves = [operation for operation in operations if isinstance(operation, Copy | Warp)]
    tones = [operation for operation in operations if isinstance(operation, Tone) and not operation.uses_mean]
    is_simple = max(len(moves), len(tones)) <= 1 and len(moves) + len(tones) == len(operations)
    n_values = images.numel()
    if not is_simple or not rounds_at_most_once(operations) or n_values > _MAX_ELEMENTS:
        return False
    move = moves[0] if moves else Copy(Axis.shift(0, height), Axis.shift(0, width))
    arguments = (images, target, factor, offset, n_values, *target.stride())
    sizes = {
        "is_contiguous": target.is_contiguous(),
        "height": height,
        "width": width,
        "channels": channels,
        "block": _BLOCK,
    }
    grid = (triton.cdiv(n_values, _BLOCK),)
    with torch.cuda.device(images.device):
        if isinstance(move, Warp):
            matrix = [value for row in move.matrix for value in row]
            _write_warped[grid](*arguments, *matrix, border=_BORDERS[move.border], **sizes)
        else:
            tone = tones[0] if tones else None
            # The outside of the image is black, and a tone applies to it, too.
            fill = int(tone.table[0]) if tone is not None and operations[-1] is tone else 0
            axes = (value for axis in (move.y, move.x) for value in (axis.sign, axis.offset, axis.start, axis.stop))
            table = images if tone is None else make_table(tone, images.device)  # not read without a tone
            _write_copied[grid](*arguments, *axes, table, fill, has_table=tone is not None, **sizes)
    return True


@triton.jit
def _locate(place, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr):
    """Return the image, row, column and channel of a flat position."""
    channel = place % channels
    x = place // channels % width
    y = place // (channels * width) % height
    return place // (channels * width * height), y, x, channel


# Avoid a separate kernel for every distance that is 1 or a multiple of 16.
@triton.jit(
    do_not_specialize=["y_sign", "y_offset", "y_start", "y_stop", "x_sign", "x_offset", "x_start", "x_stop", "fill"]
)
def _write_copied(
    images, target, factor, offset, n_values, stride_n, stride_y, stride_x, stride_c,
    y_sign, y_offset, y_start, y_stop, x_sign, x_offset, x_start, x_stop, table, fill,
    has_table: tl.constexpr, is_contiguous: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * block + tl.arange(0, block)
    is_used = place < n_values
    image, y, x, channel = _locate(place, height, width, channels)
    is_inside = is_used & (x >= x_start) & (x < x_stop) & (y >= y_start) & (y < y_stop)
    source = ((image * height + y_sign * y + y_offset) * width + x_sign * x + x_offset) * channels + channel
    value = tl.load(images + source, mask=is_inside, other=0).to(tl.int32)
    if has_table:
        value = tl.load(table + value, mask=is_inside, other=0).to(tl.int32)
    value = tl.where(is_inside, value, fill).to(tl.float32)
    normalized = value * tl.load(factor + channel) + tl.load(offset + channel)
    strided = image.to(tl.int64) * stride_n + y * stride_y + x * stride_x + channel * stride_c
    tl.store(target + (place if is_contiguous else strided), normalized, mask=is_used)


@triton.jit
def _find_inside(position, size: tl.constexpr, border: tl.constexpr):
    """Return the pixel for a position outside the image, by the kind of border."""
    if border == 1:
        found = tl.minimum(tl.maximum(position, 0), size - 1)
    elif border == 2:
        period: tl.constexpr = 2 * size
        remainder = ((position % period) + period) % period
        found = tl.where(remainder < size, remainder, period - 1 - remainder)
    else:
        found = position
    return found


@triton.jit
def _load_pixel(
    images, image, y, x, channel, is_used,
    border: tl.constexpr, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    y = _find_inside(y, height, border)
    x = _find_inside(x, width, border)
    is_inside = is_used & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    value = tl.load(images + ((image * height + y) * width + x) * channels + channel, mask=is_inside, other=0)
    return value.to(tl.float32)


@triton.jit
def _write_warped(
    images, target, factor, offset, n_values, stride_n, stride_y, stride_x, stride_c,
    x_by_x, x_by_y, x_at_0, y_by_x, y_by_y, y_at_0,
    border: tl.constexpr, is_contiguous: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * block + tl.arange(0, block)
    is_used = place < n_values
    image, y, x, channel = _locate(place, height, width, channels)
    from_x = x_by_x * x + x_by_y * y + x_at_0
    from_y = y_by_x * x + y_by_y * y + y_at_0
    left = tl.floor(from_x)
    top = tl.floor(from_y)
    to_right = from_x - left
    to_bottom = from_y - top
    x0 = left.to(tl.int32)
    y0 = top.to(tl.int32)
    a = _load_pixel(images, image, y0, x0, channel, is_used, border, height, width, channels)
    b = _load_pixel(images, image, y0, x0 + 1, channel, is_used, border, height, width, channels)
    c = _load_pixel(images, image, y0 + 1, x0, channel, is_used, border, height, width, channels)
    d = _load_pixel(images, image, y0 + 1, x0 + 1, channel, is_used, border, height, width, channels)
    upper = a + (b - a) * to_right
    lower = c + (d - c) * to_right
    value = tl.floor(upper + (lower - upper) * to_bottom + 0.5)
    normalized = value * tl.load(factor + channel) + tl.load(offset + channel)
    strided = image.to(tl.int64) * stride_n + y * stride_y + x * stride_x + channel * stride_c
    tl.store(target + (place if is_contiguous else strided), normalized, mask=is_used)
