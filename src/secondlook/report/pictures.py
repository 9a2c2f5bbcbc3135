"""The pictures of a gallery: every view of an image as a small picture inside the page, with the answer to it."""

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import as_pixels
from secondlook.errors import ReportError
from secondlook.report.galleries import Gallery
from secondlook.report.study import Study

LARGEST_SIDE = 96
QUALITY = 85

ImageReader = Callable[[int], Array]
"""From the place of an image to its pixels at the classifier's input size, uint8 [H, W, 1 or 3]."""


@dataclass(frozen=True)
class PicturedView:
    """One view of an image, and what the classifier answers to it."""

    text: str
    picture: str
    """A data URI."""
    answer: str
    probability: float
    agrees: bool
    """Whether the answer is the one that is reported for the image."""


@dataclass(frozen=True)
class PicturedImage:
    """One image of a gallery with all its views."""

    id: str
    truth: str
    answers: tuple[str, ...]
    right: bool
    confidences: dict[str, float]
    views: tuple[PicturedView, ...]


def pictured_images(study: Study, galleries: Iterable[Gallery], image: ImageReader) -> dict[int, PicturedImage]:
    """Return every image of the galleries once, by its place among the predictions."""
    chosen = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(gallery.images for gallery in galleries)]))
    return dict(zip(chosen.tolist(), _pictured(study, chosen, image), strict=True)) if len(chosen) else {}


def data_uri(pixels: Array) -> str:
    """Return a picture of at most 96 pixels a side as text. uint8 [H, W, 1 or 3]"""
    from PIL import Image

    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _pictured(study: Study, chosen: IntArray, image: ImageReader) -> list[PicturedImage]:
    outputs = study.preds.select(images=chosen).probabilities
    predicted = study.preds.predicted(study.predict_from, study.top_k).reshape(study.n_images, study.top_k)
    names = study.class_names
    return [
        PicturedImage(
            id=study.preds.ids[index],
            truth=names[study.preds.labels[index]],
            answers=tuple(names[one] for one in predicted[index]),
            right=bool(study.correct[index]),
            confidences={name: float(values[index]) for name, values in study.confidences.items()},
            views=_views(study, _checked(image(int(index)), int(index)), outputs[place], int(predicted[index, 0])),
        )
        for place, index in enumerate(chosen)
    ]


def _views(study: Study, pixels: Array, outputs: Array, predicted: int) -> tuple[PicturedView, ...]:
    from secondlook.views import iter_views

    views = iter_views(pixels[None], study.preds.views)
    leading = outputs.argmax(axis=1)
    return tuple(
        PicturedView(
            text=str(view),
            picture=data_uri(seen[0]),
            answer=study.class_names[leading[place]],
            probability=float(outputs[place, leading[place]]),
            agrees=bool(leading[place] == predicted),
        )
        for place, (view, seen) in enumerate(views)
    )


def _checked(pixels: object, index: int) -> Array:
    if not isinstance(pixels, np.ndarray):
        got = type(pixels).__name__
    elif pixels.dtype in (np.uint8, np.float32) and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
        return as_pixels(pixels)
    else:
        got = f"{pixels.dtype} {list(pixels.shape)}"
    raise ReportError(
        f"image({index}) gave {got}, expected uint8, or float32 in [0, 1], [height, width, 1 or 3]; repair the reader."
    )
