"""Example images: which of them a page holds, and thumbnails of each with its views and their predictions.

The page itself sorts them into galleries, since these follow its sliders.
"""

import base64
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from secondlook.arrays import Array, IntArray, as_pixels
from secondlook.errors import ANY, Repair, ReportError
from secondlook.report.study import Study

MAX_IMAGES = 200
MAX_BYTES = 3_000_000
"""Characters of all pictures of a page together; fewer images are shown if theirs are large."""
IMAGE_SIDE, IMAGE_QUALITY = 160, 85
VIEW_SIDE, VIEW_QUALITY = 80, 75
SHEET_COLUMNS = 16

ImageReader = Callable[[int], Array]
"""From the index of an image, among all that were given, to its pixels at the classifier's input size.

uint8 [H, W, 1 or 3]
"""


Picture = dict[str, Any]
"""What the script of a page reads of an image.

`picture` and `sheet`, with all views from left to right, at most 16 in a row, are data URIs; `view_predicted` has the
class predicted from each view alone, and `view_probabilities` its probability.
"""


def choose_images(study: Study, method: str, most_looks: IntArray | None = None) -> IntArray:
    """Return the images of the galleries, the most interesting first; equal confidences keep the order of the images.

    Four of seven are errors, from both ends of the ranking, since wherever the threshold is, either end is of interest.
    The others are the correct predictions that are rejected first, the images whose rank the second look changes most,
    and those that need most looks, as far as these are known.
    """
    confidence = study.confidences[method]
    rising = np.argsort(confidence, kind="stable")
    falling = np.argsort(-confidence, kind="stable")
    changed = np.argsort(-np.abs(rank_changes(study)), kind="stable") if study.second_look else rising[:0]
    lists = [
        iter(chosen.tolist())
        for chosen in (falling[~study.correct[falling]], rising[~study.correct[rising]], rising[study.correct[rising]])
    ]
    looked_at = iter(() if most_looks is None else most_looks.tolist())
    errors_first = [*lists[:2], *lists, iter(changed.tolist()), looked_at]
    return np.array(list(itertools.islice(_take_in_turn(errors_first), MAX_IMAGES)), dtype=np.int64)


def rank_changes(study: Study) -> IntArray:
    """Return how many ranks each image gains by the second look (or loses, if negative). int64 [N]"""
    from scipy.stats import rankdata

    # From the most confident (1) down, the mean rank for ties.
    before, after = (rankdata(-study.confidences[name]) for name in (study.baseline, study.second_look or ""))
    return np.rint(before - after).astype(np.int64)


def read_images(study: Study, chosen: IntArray, image: ImageReader) -> dict[int, Picture]:
    """Return the pictures of the chosen images by their index among those judged, the first ones if not all fit."""
    images: dict[int, Picture] = {}
    if not len(chosen):
        return images
    outputs = study.preds.select(images=chosen).probabilities
    size = 0
    for row, index in enumerate(chosen.tolist()):
        given = int(study.fitted.judged[index])
        one = _draw_image(study, _check_pixels(image(given), given), outputs[row])
        size += len(one["picture"]) + len(one["sheet"])
        if size > MAX_BYTES and images:
            break
        images[index] = one
    return images


def encode_picture(pixels: Array, quality: int) -> str:
    """Return a picture as a data URI. uint8 [H, W, 1 or 3]"""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "WEBP", quality=quality)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def shrink(pixels: Array, side: int) -> Array:
    """Return the pixels with sides of at most this many. uint8 [H, W, C] -> [h, w, C]"""
    from PIL import Image

    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    shrunk: Array = np.asarray(picture)
    return shrunk.reshape(*shrunk.shape[:2], pixels.shape[2])


def _take_in_turn(lists: list[Iterator[int]]) -> Iterator[int]:
    """Yield one new number of each list in turn until all are exhausted."""
    seen: set[int] = set()
    while lists:
        for one in list(lists):
            number = next((number for number in one if number not in seen), None)
            if number is None:
                lists.remove(one)
            else:
                seen.add(number)
                yield number


def _draw_image(study: Study, pixels: Array, outputs: Array) -> Picture:
    from secondlook.views import apply_view

    leading = outputs.argmax(axis=1)
    blank = np.zeros_like(pixels)  # for a view that is only a name
    views = (blank if view.name else apply_view(pixels[None], view)[0] for view in study.preds.views)
    tiles = [shrink(transformed, VIEW_SIDE) for transformed in views]
    return {
        "picture": encode_picture(shrink(pixels, IMAGE_SIDE), IMAGE_QUALITY),
        "sheet": encode_picture(_join_tiles(tiles), VIEW_QUALITY),
        "view_predicted": leading.tolist(),
        "view_probabilities": [round(float(row[one]), 4) for row, one in zip(outputs, leading, strict=True)],
    }


def _join_tiles(tiles: list[Array]) -> Array:
    """Return one picture of all tiles, from left to right in rows. uint8 [h, w, C] each"""
    columns = min(len(tiles), SHEET_COLUMNS)
    blank = [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    filled = [*tiles, *blank]
    rows = [np.concatenate(filled[start : start + columns], axis=1) for start in range(0, len(filled), columns)]
    return np.concatenate(rows, axis=0)


def _check_pixels(pixels: object, index: int) -> Array:
    if not isinstance(pixels, np.ndarray):
        got = type(pixels).__name__
    elif pixels.dtype in (np.uint8, np.float32) and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
        return as_pixels(pixels)
    else:
        got = f"{pixels.dtype} {list(pixels.shape)}"
    raise ReportError(
        f"image({index}) returned {got}, expected uint8, or float32 in [0, 1], [height, width, 1 or 3]",
        repair=Repair("correct the function passed as {image}", image=ANY),
    )
