"""Speed of the views: copies compared with copying bytes, warps with plain OpenCV calls, Pillow, PyTorch and NumPy.

Run: python benchmarks/views.py [--rounds 15]
"""

import statistics
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import torch
from PIL import Image

from measurement import Row, create_parser, time_rounds, write_results
from secondlook.arrays import Array
from secondlook.operations import Frame, Warp
from secondlook.views import View, apply_view

COPIES = ["hflip", "vflip", "shift:2,-1", "hflip+shift:-2,1", "channels:bgr"]
WARPS = ["rotate:7", "hflip+rotate:-10", "zoom:1.1", "zoom:0.9", "shift:0.5,0.5"]
OTHERS = ["vflip+shift:1,2", "vflip+hflip", "channels:gbr", "gamma:0.8", "contrast:1.2"]
BORDERS = {"black": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE, "mirror": cv2.BORDER_REFLECT}


def time_medians(*jobs: Callable[[], object], rounds: int) -> list[float]:
    """Return the median seconds of each job over the rounds after a warm-up round."""
    return [statistics.median(times[1:]) for times in time_rounds(*jobs, rounds=rounds + 1)]


def plan_warp(text: str, images: Array) -> Warp:
    """Return the single warp planned by the engine for a view."""
    (operation,) = View.parse(text).plan(Frame(*images.shape[1:]))
    assert isinstance(operation, Warp)
    return operation


def warp_with_opencv(images: Array, warp: Warp) -> Array:
    """Warp every image by one OpenCV call. [N, H, W, C] -> [N, H, W, C]"""
    result = np.empty_like(images)
    size = (images.shape[2], images.shape[1])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    for image, target in zip(images, result, strict=True):
        cv2.warpAffine(image, np.array(warp.matrix), size, dst=target, flags=flags, borderMode=BORDERS[warp.border])
    return result


def warp_with_pillow(images: Array, warp: Warp) -> Array:
    """Warp every image with Pillow. [N, H, W, C] -> [N, H, W, C]"""
    size = (images.shape[2], images.shape[1])
    (a, b, c), (d, e, f) = warp.matrix
    # In Pillow the center of pixel i is at i + 0.5.
    data = (a, b, c + 0.5 - 0.5 * (a + b), d, e, f + 0.5 - 0.5 * (d + e))
    warped = [
        Image.fromarray(image).transform(size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
        for image in images
    ]
    return np.stack([np.asarray(image) for image in warped])


def warp_with_torch(images: Array, warp: Warp) -> Array:
    """Warp the batch with PyTorch's grid_sample, from uint8 to uint8. [N, H, W, C] -> [N, H, W, C]"""
    count, height, width, channels = images.shape
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    to_pixels = np.array([[width / 2, 0, (width - 1) / 2], [0, height / 2, (height - 1) / 2], [0, 0, 1]])
    matrix = (np.linalg.inv(to_pixels) @ np.vstack([np.array(warp.matrix), [0, 0, 1]]) @ to_pixels)[:2]
    theta = torch.from_numpy(matrix).float().expand(count, 2, 3)
    grid = torch.nn.functional.affine_grid(theta, [count, channels, height, width], align_corners=False)
    warped = torch.nn.functional.grid_sample(pixels, grid, mode="bilinear", align_corners=False)
    result: Array = warped.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return result


def measure_copies(images: Array, rounds: int) -> list[Row]:
    """Time the views that only move pixels, and the tone curves, compared with a copy of the same bytes."""
    rows: list[Row] = []
    for text in COPIES + OTHERS:
        view = View.parse(text)
        copying, seconds = time_medians(images.copy, partial(apply_view, images, view), rounds=rounds)
        limit = 3.0 if text in COPIES else None
        rows.append(make_row(images, text, "secondlook", seconds, "copying the bytes", copying, limit))
    flip_left_right = Image.Transpose.FLIP_LEFT_RIGHT
    libraries: dict[str, Callable[[], object]] = {
        "Pillow": lambda: np.stack([np.asarray(Image.fromarray(image).transpose(flip_left_right)) for image in images]),
        "PyTorch": lambda: torch.from_numpy(images).flip(2).contiguous().numpy(),
        "NumPy": lambda: images[:, :, ::-1].copy(),
    }
    for library, job in libraries.items():
        copying, seconds = time_medians(images.copy, job, rounds=rounds)
        rows.append(make_row(images, "hflip", library, seconds, "copying the bytes", copying, None))
    return rows


def measure_warps(images: Array, rounds: int) -> list[Row]:
    """Time the warps compared with plain OpenCV calls, Pillow and PyTorch."""
    rows: list[Row] = []
    for text in WARPS:
        view, warp = View.parse(text), plan_warp(text, images)
        opencv, ours, pillow, pytorch = time_medians(
            partial(warp_with_opencv, images, warp),
            partial(apply_view, images, view),
            partial(warp_with_pillow, images, warp),
            partial(warp_with_torch, images, warp),
            rounds=rounds,
        )
        results = (("secondlook", ours, 1.2), ("Pillow", pillow, None), ("PyTorch", pytorch, None))
        for library, seconds, limit in results:
            rows.append(make_row(images, text, library, seconds, "bare cv2.warpAffine", opencv, limit))
    return rows


def make_row(
    images: Array, view: str, library: str, seconds: float, floor: str, floor_seconds: float, limit: float | None
) -> Row:
    """Return one row of the results: a view made by a library, and the reference time."""
    return {
        "images": "x".join(map(str, images.shape)),
        "view": view,
        "by": library,
        "milliseconds": round(1000 * seconds, 2),
        "floor": floor,
        "floor_milliseconds": round(1000 * floor_seconds, 2),
        "ratio": round(seconds / floor_seconds, 3),
        "at_most": limit,
    }


def main() -> None:
    """Time the views, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--small-images", type=int, default=10_000, help="32x32 images (default: %(default)s)")
    parser.add_argument("--large-images", type=int, default=256, help="224x224 images (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each job (default: %(default)s)")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (options.small_images, 32, 32, 3), dtype=np.uint8)
    large = rng.integers(0, 256, (options.large_images, 224, 224, 3), dtype=np.uint8)
    rows = measure_copies(small, options.rounds) + measure_warps(large, options.rounds)
    columns = ("images", "view", "by", "milliseconds", "floor", "ratio", "at_most")
    print("".join(f"{name:<20}" for name in columns))
    for row in rows:
        print("".join(f"{row[name]!s:<20}" for name in columns))
    write_results(options.out / "views.csv", rows)


if __name__ == "__main__":
    main()
