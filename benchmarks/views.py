"""How fast views are made: copies against copying the bytes, warps against the bare OpenCV calls, and two peers.

Run: python benchmarks/views.py
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image

from circumstances import write_results
from secondlook.arrays import Array
from secondlook.views import View, apply_view
from secondlook.views.engine import plan_operations
from secondlook.views.operations import Frame, Warp

COPIES = ["hflip", "vflip", "shift:2,-1", "hflip+shift:-2,1", "channels:bgr"]
WARPS = ["rotate:7", "hflip+rotate:-10", "zoom:1.1", "zoom:0.9", "shift:0.5,0.5"]
OTHERS = ["vflip+shift:1,2", "vflip+hflip", "channels:gbr", "gamma:0.8", "contrast:1.2"]
BORDERS = {"black": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE, "mirror": cv2.BORDER_REFLECT}
ROUNDS = 15


def seconds(*jobs: Callable[[], object]) -> list[float]:
    """Return the median time of each job, the jobs taking turns so that a busy moment hits all of them."""
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(ROUNDS + 1):
        for job, kept in zip(jobs, times, strict=True):
            started = time.perf_counter()
            job()
            kept.append(time.perf_counter() - started)
    return [statistics.median(kept[1:]) for kept in times]  # the first round warms up


def warp_of(text: str, images: Array) -> Warp:
    """Return the one warp that the engine makes of a view."""
    (operation,) = plan_operations(View.parse(text), Frame(*images.shape[1:]))
    assert isinstance(operation, Warp)
    return operation


def bare_opencv(images: Array, warp: Warp) -> Array:
    """Warp every image by nothing but the OpenCV call. [N, H, W, C] -> [N, H, W, C]"""
    result = np.empty_like(images)
    size = (images.shape[2], images.shape[1])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    for image, target in zip(images, result, strict=True):
        cv2.warpAffine(image, warp.inverse_map, size, dst=target, flags=flags, borderMode=BORDERS[warp.border])
    return result


def through_pillow(images: Array, warp: Warp) -> Array:
    """Warp every image by Pillow. [N, H, W, C] -> [N, H, W, C]"""
    size = (images.shape[2], images.shape[1])
    (a, b, c), (d, e, f) = warp.matrix
    # Pillow's pixel i is centerd at i + 0.5.
    data = (a, b, c + 0.5 - 0.5 * (a + b), d, e, f + 0.5 - 0.5 * (d + e))
    turned = [
        Image.fromarray(image).transform(size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
        for image in images
    ]
    return np.stack([np.asarray(image) for image in turned])


def through_torch(images: Array, warp: Warp) -> Array:
    """Warp the batch by PyTorch's grid_sample, from uint8 and back. [N, H, W, C] -> [N, H, W, C]"""
    count, height, width, channels = images.shape
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    to_pixels = np.array([[width / 2, 0, (width - 1) / 2], [0, height / 2, (height - 1) / 2], [0, 0, 1]])
    matrix = (np.linalg.inv(to_pixels) @ np.vstack([warp.inverse_map, [0, 0, 1]]) @ to_pixels)[:2]
    theta = torch.from_numpy(matrix).float().expand(count, 2, 3)
    grid = torch.nn.functional.affine_grid(theta, [count, channels, height, width], align_corners=False)
    turned = torch.nn.functional.grid_sample(pixels, grid, mode="bilinear", align_corners=False)
    result: Array = turned.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return result


def copy_rows(images: Array) -> list[dict[str, object]]:
    """Measure the views that only move pixels, and the tone curves, against a copy of the same bytes."""
    rows: list[dict[str, object]] = []
    for text in COPIES + OTHERS:
        view = View.parse(text)
        copying, taken = seconds(images.copy, partial(apply_view, images, view))
        rows.append(
            row(images, text, "secondlook", taken, "copying the bytes", copying, 3.0 if text in COPIES else None)
        )
    flip_left_right = Image.Transpose.FLIP_LEFT_RIGHT
    peers: dict[str, Callable[[], object]] = {
        "Pillow": lambda: np.stack([np.asarray(Image.fromarray(image).transpose(flip_left_right)) for image in images]),
        "PyTorch": lambda: torch.from_numpy(images).flip(2).contiguous().numpy(),
        "NumPy": lambda: images[:, :, ::-1].copy(),
    }
    for peer, job in peers.items():
        copying, taken = seconds(images.copy, job)
        rows.append(row(images, "hflip", peer, taken, "copying the bytes", copying, None))
    return rows


def warp_rows(images: Array) -> list[dict[str, object]]:
    """Measure the warps against the bare calls, Pillow and PyTorch."""
    rows: list[dict[str, object]] = []
    for text in WARPS:
        view, warp = View.parse(text), warp_of(text, images)
        bare, ours, pillow, pytorch = seconds(
            partial(bare_opencv, images, warp),
            partial(apply_view, images, view),
            partial(through_pillow, images, warp),
            partial(through_torch, images, warp),
        )
        for name, taken, bound in (("secondlook", ours, 1.2), ("Pillow", pillow, None), ("PyTorch", pytorch, None)):
            rows.append(row(images, text, name, taken, "bare cv2.warpAffine", bare, bound))
    return rows


def row(
    images: Array, view: str, predict_from: str, taken: float, floor: str, floor_taken: float, bound: float | None
) -> dict[str, object]:
    """Return one line of the results."""
    return {
        "images": "x".join(map(str, images.shape)),
        "view": view,
        "predict_from": predict_from,
        "milliseconds": round(1000 * taken, 2),
        "floor": floor,
        "floor_milliseconds": round(1000 * floor_taken, 2),
        "ratio": round(taken / floor_taken, 3),
        "at_most": bound,
    }


def main() -> None:
    """Measure, print and keep the results."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (10_000, 32, 32, 3), dtype=np.uint8)
    large = rng.integers(0, 256, (256, 224, 224, 3), dtype=np.uint8)
    rows = copy_rows(small) + warp_rows(large)
    columns = ("images", "view", "predict_from", "milliseconds", "floor", "ratio", "at_most")
    for row_ in rows:
        print("".join(f"{row_[name]!s:<20}" for name in columns))
    write_results(Path(__file__).parent / "results" / "views.csv", rows)


if __name__ == "__main__":
    main()
