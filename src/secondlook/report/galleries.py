"""Galleries of example images: which images are shown, and a thumbnail of each of their views with its prediction."""

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.classifiers import as_pixels
from secondlook.errors import ReportError
from secondlook.report.operating_points import format_percent, point_at_risk
from secondlook.report.study import Study

MAX_IMAGES = 24
THUMBNAIL_SIDE = 96
THUMBNAIL_QUALITY = 85

ImageReader = Callable[[int], Array]
"""From the index of an image to its pixels at the classifier's input size, uint8 [H, W, 1 or 3]."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Selected images in order, with a title and a caption."""

    name: str
    title: str
    caption: str
    images: IntArray
    rank_changes: IntArray | None = None
    """Ranks that each image gained (or lost, if negative) by the second look, in the gallery of changed decisions."""
    now_accepted: BoolArray | None = None
    """Whether the second look accepts each image, in the gallery of changed decisions."""


@dataclass(frozen=True)
class ViewThumbnail:
    """One view of an image and the prediction for it."""

    text: str
    picture: str
    """A data URI."""
    predicted: str
    probability: float
    agrees: bool
    """Whether this is the class predicted for the image."""


@dataclass(frozen=True)
class GalleryImage:
    """One image of a gallery with all of its views."""

    id: str
    label: str
    predicted: tuple[str, ...]
    correct: bool
    confidences: dict[str, float]
    views: tuple[ViewThumbnail, ...]


def choose_galleries(study: Study, risk: float) -> list[Gallery]:
    """Return the galleries that have images; equal confidences keep the order of the images."""
    confidence = study.confidences[study.main_method]
    falling = np.argsort(-confidence, kind="stable")
    rising = np.argsort(confidence, kind="stable")
    galleries = [
        Gallery(
            "most-confident-errors",
            "Most confident errors",
            f"Wrong predictions with the highest confidence ({study.main_method}). A threshold rejects these last.",
            falling[~study.correct[falling]][:MAX_IMAGES],
        ),
        Gallery(
            "least-confident-correct",
            "Least confident correct predictions",
            f"Correct predictions with the lowest confidence ({study.main_method}). "
            "They go to the review queue although they are correct.",
            rising[study.correct[rising]][:MAX_IMAGES],
        ),
    ]
    if study.second_look is not None:
        galleries.append(_changed_decisions(study, study.second_look, risk))
    return [gallery for gallery in galleries if len(gallery.images)]


def read_gallery_images(study: Study, galleries: Iterable[Gallery], image: ImageReader) -> dict[int, GalleryImage]:
    """Return the images of all galleries by index, each once."""
    chosen = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(gallery.images for gallery in galleries)]))
    if not len(chosen):
        return {}
    outputs = study.preds.select(images=chosen).probabilities
    predicted = study.preds.predicted(study.predict_from, study.top_k).reshape(study.n_images, study.top_k)
    names = study.class_names
    return {
        index: GalleryImage(
            id=study.preds.ids[index],
            label=names[study.preds.labels[index]],
            predicted=tuple(names[one] for one in predicted[index]),
            correct=bool(study.correct[index]),
            confidences={name: float(values[index]) for name, values in study.confidences.items()},
            views=_draw_views(study, _check_pixels(image(index), index), outputs[row], int(predicted[index, 0])),
        )
        for row, index in enumerate(chosen.tolist())
    }


def encode_thumbnail(pixels: Array) -> str:
    """Return a picture of at most 96 x 96 pixels as a data URI. uint8 [H, W, 1 or 3]"""
    from PIL import Image

    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=THUMBNAIL_QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _changed_decisions(study: Study, second_look: str, risk: float) -> Gallery:
    """Return the images that the two methods decide differently, largest change of rank first."""
    gained = _mean_ranks(study.confidences[study.baseline]) - _mean_ranks(study.confidences[second_look])
    before, after = (_accept_at_risk(study, name, risk) for name in (study.baseline, second_look))
    order = np.argsort(-np.abs(gained), kind="stable")
    order = order[(before != after)[order]][:MAX_IMAGES]
    return Gallery(
        "changed-decisions",
        "Decisions changed by the second look",
        f"At {format_percent(risk, 4)} tolerated risk, {study.baseline} and {second_look} decide differently about "
        "these images. Those whose rank by confidence changed most come first.",
        order,
        np.rint(gained[order]).astype(np.int64),
        after[order],
    )


def _accept_at_risk(study: Study, method: str, risk: float) -> BoolArray:
    accept: BoolArray = study.confidences[method] >= point_at_risk(study.rankings[method], risk).threshold
    return accept


def _mean_ranks(confidence: Float64Array) -> Float64Array:
    """Return the rank of each image from the most confident (1) down, the mean rank for ties. float64 [N]"""
    from scipy.stats import rankdata

    ranks: Float64Array = np.asarray(rankdata(-confidence), dtype=np.float64)
    return ranks


def _draw_views(study: Study, pixels: Array, outputs: Array, predicted: int) -> tuple[ViewThumbnail, ...]:
    from secondlook.views import iter_views

    leading = outputs.argmax(axis=1)
    return tuple(
        ViewThumbnail(
            text=str(view),
            picture=encode_thumbnail(transformed[0]),
            predicted=study.class_names[leading[row]],
            probability=float(outputs[row, leading[row]]),
            agrees=bool(leading[row] == predicted),
        )
        for row, (view, transformed) in enumerate(iter_views(pixels[None], study.preds.views))
    )


def _check_pixels(pixels: object, index: int) -> Array:
    if not isinstance(pixels, np.ndarray):
        got = type(pixels).__name__
    elif pixels.dtype in (np.uint8, np.float32) and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
        return as_pixels(pixels)
    else:
        got = f"{pixels.dtype} {list(pixels.shape)}"
    raise ReportError(
        f"image({index}) returned {got}, expected uint8, or float32 in [0, 1], [height, width, 1 or 3]; "
        "correct the function passed as image=."
    )
