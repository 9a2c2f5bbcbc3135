"""The contact sheet: a picture of every view of an image, each with its text under it."""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from secondlook.arrays import Array
from secondlook.views.engine import Views, apply_view, check_images
from secondlook.views.view_set import ViewSet

_TILE = 192
_GAP = 12
_TEXT_HEIGHT = 20
_BACKGROUND, _INK = (255, 255, 255), (30, 30, 30)


def contact_sheet(image: Array, views: Views, *, columns: int | None = None) -> Image.Image:
    """Draw every view of one image, its text under it. uint8 or float32 [H, W, C] -> a Pillow image"""
    view_set = views if isinstance(views, ViewSet) else ViewSet(views)
    batch = check_images(np.asarray(image)[None])
    across = columns or min(len(view_set), math.ceil(math.sqrt(len(view_set) * 1.3)))
    width, height = _tile_size(batch.shape[2], batch.shape[1])
    rows = math.ceil(len(view_set) / across)
    size = (across * (width + _GAP) + _GAP, rows * (height + _TEXT_HEIGHT + _GAP) + _GAP)
    sheet = Image.new("RGB", size, _BACKGROUND)
    for place, view in enumerate(view_set):
        left = _GAP + place % across * (width + _GAP)
        top = _GAP + place // across * (height + _TEXT_HEIGHT + _GAP)
        sheet.paste(_picture(apply_view(batch, view)[0], (width, height)), (left, top))
        _write(sheet, str(view), left, top + height + 3, width)
    return sheet


def _tile_size(width: int, height: int) -> tuple[int, int]:
    """Return the size of a tile: small images grow by a whole factor, so that pixels stay square; large ones shrink."""
    longest = max(width, height)
    scale = max(1, _TILE // longest) if longest <= _TILE else _TILE / longest
    return max(1, round(width * scale)), max(1, round(height * scale))


def _picture(image: Array, size: tuple[int, int]) -> Image.Image:
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    enlarged = size[0] >= picture.width
    return picture.resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)


def _write(sheet: Image.Image, text: str, left: int, top: int, width: int) -> None:
    draw = ImageDraw.Draw(sheet)
    fonts = [ImageFont.load_default(size) for size in (13, 12, 11, 10, 9)]
    font = next((font for font in fonts if draw.textlength(text, font) <= width + _GAP), fonts[-1])
    cut = text
    while len(cut) > 2 and draw.textlength(cut, font) > width + _GAP:
        cut = cut[:-2] + "…"
    draw.text((left, top), cut, fill=_INK, font=font)
