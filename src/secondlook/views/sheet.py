"""The contact sheet: an image of every view, each with its text below."""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from secondlook.arrays import Array
from secondlook.sources import read_image
from secondlook.views.engine import apply_view, check_images
from secondlook.views.view import ViewSet, ViewsLike

_TILE_SIDE = 192
_GAP = 12
_TEXT_HEIGHT = 20
_BACKGROUND, _TEXT_COLOR = (255, 255, 255), (30, 30, 30)


def contact_sheet(image: object, views: ViewsLike, *, columns: int | None = None) -> Image.Image:
    """Draw every view of one image (anything that `read_image` accepts), with its text below. -> Pillow image"""
    view_set = ViewSet(views)
    batch = check_images(read_image(image)[None])
    n_columns = columns or min(len(view_set), math.ceil(math.sqrt(len(view_set) * 1.3)))
    width, height = _compute_tile_size(batch.shape[2], batch.shape[1])
    n_rows = math.ceil(len(view_set) / n_columns)
    size = (n_columns * (width + _GAP) + _GAP, n_rows * (height + _TEXT_HEIGHT + _GAP) + _GAP)
    sheet = Image.new("RGB", size, _BACKGROUND)
    for position, view in enumerate(view_set):
        left = _GAP + position % n_columns * (width + _GAP)
        top = _GAP + position // n_columns * (height + _TEXT_HEIGHT + _GAP)
        sheet.paste(_draw_tile(apply_view(batch, view)[0], (width, height)), (left, top))
        _draw_text(sheet, str(view), left, top + height + 3, width)
    return sheet


def _compute_tile_size(width: int, height: int) -> tuple[int, int]:
    """Return the tile size: small images are enlarged by an integer factor, to keep pixels square."""
    longest = max(width, height)
    scale = max(1, _TILE_SIDE // longest) if longest <= _TILE_SIDE else _TILE_SIDE / longest
    return max(1, round(width * scale)), max(1, round(height * scale))


def _draw_tile(image: Array, size: tuple[int, int]) -> Image.Image:
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    tile = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    return tile.resize(size, Image.Resampling.NEAREST if size[0] >= tile.width else Image.Resampling.LANCZOS)


def _draw_text(sheet: Image.Image, text: str, left: int, top: int, width: int) -> None:
    draw = ImageDraw.Draw(sheet)
    fonts = [ImageFont.load_default(size) for size in (13, 12, 11, 10, 9)]
    font = next((font for font in fonts if draw.textlength(text, font) <= width + _GAP), fonts[-1])
    while len(text) > 2 and draw.textlength(text, font) > width + _GAP:
        text = text[:-2] + "…"
    draw.text((left, top), text, fill=_TEXT_COLOR, font=font)
