"""The PyTorch engine: applies views to batches of images on a GPU or any other device of torch.

It runs the operations of the CPU engine with torch only, without OpenCV. Copies, and tones of uint8 images, equal those
of the CPU engine; interpolated pixels differ by at most 1/255.
"""

from functools import cache, lru_cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from secondlook.operations import (
    Blur,
    Copy,
    Filter,
    Frame,
    Luminance,
    Operation,
    Reorder,
    Tone,
    Warp,
    rounds_at_most_once,
)
from secondlook.views.view import View

_BORDERS = {"black": "zeros", "edge": "border", "mirror": "reflection"}
_HISTOGRAM_PIXELS = 2**25
"""Number of pixel values to count at once, with an index of eight bytes each."""


def apply_view_to_tensor(images: Tensor, view: View) -> Tensor:
    """Return one view of every image on its device. uint8, or float32 in [0, 1]; [N, H, W, C] -> same shape and dtype

    A view that changes nothing returns the input itself.
    """
    _, height, width, channels = images.shape
    operations = view.plan(Frame(height, width, channels))
    # Like the CPU engine, round pixels only once, at the end.
    rounds_late = images.dtype == torch.uint8 and not rounds_at_most_once(operations)
    values = images.float() * (1 / 255) if rounds_late else images
    for operation in operations:
        values = _run(values, view, operation)
    return _to_pixels(values * 255) if rounds_late else values


def write_normalized_view(
    images: Tensor, view: View, factor: Tensor, offset: Tensor, target: Tensor, *, is_bgr: bool = False
) -> None:
    """Write one view of every image, times `factor` plus `offset`, to the target: the input of a network.

    Images are uint8, or float32 in [0, 1], [N, H, W, C]. The target has this shape, in any real dtype and memory
    format, or uint8 for raw pixels; factor and offset are float32 [C]. On NVIDIA GPUs, most views of uint8 images take
    one pass.
    """
    takes_pixels = target.dtype == torch.uint8
    if images.is_cuda and images.dtype == torch.uint8 and not takes_pixels and not is_bgr and _has_triton():
        from secondlook.views.triton_kernels import write_view

        if write_view(images, view, factor, offset, target):
            return
    pixels = apply_view_to_tensor(images, view)
    pixels = pixels.flip(3) if is_bgr else pixels
    if takes_pixels:
        target.copy_(pixels if pixels.dtype == torch.uint8 else (pixels.clamp(0, 1) * 255).round())
    else:
        torch.addcmul(offset, pixels, factor, out=target)


@cache
def _has_triton() -> bool:
    """Whether Triton is installed, as in builds of torch for CUDA on Linux."""
    return torch.version.cuda is not None and find_spec("triton") is not None


def _run(images: Tensor, view: View, operation: Operation) -> Tensor:
    match operation:
        case Copy():
            return _run_copy(images, operation)
        case Reorder():
            return torch.stack([images[..., channel] for channel in operation.order], dim=-1)
        case Tone():
            return _run_tone_table(images, operation) if images.dtype == torch.uint8 else _run_tone(images, operation)
        case Warp():
            return _run_warp(images, operation)
        case Luminance():
            return _run_luminance(images, operation)
        case Blur():
            return _run_blur(images, operation)
        case Filter():
            # A user function takes arrays, so these images are copied to the host.
            return torch.from_numpy(operation.run(images.cpu().numpy(), view)).to(images.device)


def _to_pixels(values: Tensor) -> Tensor:
    """Round values of 0 to 255 like the CPU engine, half to even. float [...] -> uint8 [...]"""
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _run_copy(images: Tensor, copy: Copy) -> Tensor:
    flipped = [axis for axis, along in ((1, copy.y), (2, copy.x)) if along.sign < 0]
    if copy.y.covers(images.shape[1]) and copy.x.covers(images.shape[2]):
        return images.flip(flipped)
    result = torch.zeros_like(images)
    if copy.y.start < copy.y.stop and copy.x.start < copy.x.stop:
        (top, bottom), (left, right) = copy.y.source, copy.x.source
        content = images[:, top:bottom, left:right]
        content = content.flip(flipped) if flipped else content
        result[:, copy.y.start : copy.y.stop, copy.x.start : copy.x.stop] = content
    return result


def _run_tone(images: Tensor, tone: Tone) -> Tensor:
    values: Tensor = images
    for curve in tone.curves:
        mean = values.mean(dim=(1, 2, 3), keepdim=True, dtype=torch.float64) if tone.uses_mean else 0.0
        values = curve(values, mean).clamp_(0.0, 1.0)
    return values.to(torch.float32)


def _run_tone_table(images: Tensor, tone: Tone) -> Tensor:
    """Apply tone curves to uint8 images through tables, computed like those of the CPU engine for equal pixels."""
    if not tone.uses_mean:
        return make_table(tone, images.device).index_select(0, images.reshape(-1).int()).view(images.shape)
    result = torch.empty_like(images)
    block_size = max(1, _HISTOGRAM_PIXELS // images[0].numel()) if len(images) else 1
    for start in range(0, len(images), block_size):
        block = images[start : start + block_size]
        first_of_image = 256 * torch.arange(len(block), device=images.device)[:, None]
        places = block.reshape(len(block), -1) + first_of_image
        histograms = torch.bincount(places.view(-1), minlength=256 * len(block)).view(-1, 256)
        tables = torch.from_numpy(tone.compute_tables(histograms.double().cpu().numpy())).to(images.device)
        result[start : start + block_size] = tables.view(-1).index_select(0, places.view(-1)).view(block.shape)
    return result


@lru_cache(maxsize=256)
def make_table(tone: Tone, device: torch.device) -> Tensor:
    """Return the table of a tone that does not depend on the image, on a device. uint8 [256]"""
    return torch.tensor(tone.table, device=device)


def _run_warp(images: Tensor, warp: Warp) -> Tensor:
    grid = _make_grid(warp, images.shape[1], images.shape[2], images.device).expand(len(images), -1, -1, -1)
    pixels = images.permute(0, 3, 1, 2).float()
    sampled = functional.grid_sample(pixels, grid, padding_mode=_BORDERS[warp.border], align_corners=False)
    sampled = sampled.permute(0, 2, 3, 1)
    return _to_pixels(sampled) if images.dtype == torch.uint8 else sampled


@lru_cache(maxsize=64)
def _make_grid(warp: Warp, height: int, width: int, device: torch.device) -> Tensor:
    """Return the position to sample for each output pixel, from -1 to 1 between edges. float32 [1, H, W, 2]"""
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    positions = np.stack([x, y, np.ones_like(x)], axis=-1) @ np.array(warp.matrix).T
    grid = (2 * positions + 1) / (width, height) - 1
    return torch.from_numpy(grid[None].astype(np.float32)).to(device)


def _run_luminance(images: Tensor, luminance: Luminance) -> Tensor:
    if images.shape[3] == 1:
        return images
    weights = torch.tensor(luminance.weights, device=images.device)
    return (images * weights).sum(dim=3, keepdim=True).clamp_(0.0, 1.0).expand(images.shape)


def _run_blur(images: Tensor, blur: Blur) -> Tensor:
    offsets = np.arange(-blur.radius, blur.radius + 1)
    weights = np.exp(-(offsets**2) / (2 * blur.sigma**2))
    weights /= weights.sum()
    for axis in (1, 2):
        size = images.shape[axis]
        mirrored = torch.from_numpy(np.pad(np.arange(size), blur.radius, mode="symmetric")).to(images.device)
        padded = images.index_select(axis, mirrored)
        images = torch.zeros_like(images)
        for start, weight in enumerate(weights.tolist()):
            images.add_(padded.narrow(axis, start, size), alpha=weight)
    return images.clamp_(0.0, 1.0)
