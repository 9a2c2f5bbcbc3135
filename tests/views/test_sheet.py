"""The contact sheet: every view, in order."""

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.views import contact_sheet


def random_image(height: int, width: int, channels: int = 3) -> Array:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_small_images_are_enlarged_by_an_integer_factor() -> None:
    image = random_image(32, 32)
    sheet = np.asarray(contact_sheet(image, "identity hflip", columns=2))
    enlarged = image.repeat(6, axis=0).repeat(6, axis=1)
    assert np.array_equal(sheet[12:204, 12:204], enlarged)
    assert np.array_equal(sheet[12:204, 216:408], enlarged[:, ::-1])
    assert (sheet[204:, 12:204] < 128).any(), "no text below the view"


@pytest.mark.parametrize(("height", "width", "channels"), [(1, 1, 3), (500, 300, 3), (28, 28, 1), (3, 400, 3)])
def test_images_of_any_size_are_drawn(height: int, width: int, channels: int) -> None:
    sheet = contact_sheet(random_image(height, width, channels), "natural")
    assert sheet.mode == "RGB"
    assert max(sheet.size) < 2000


def test_float_images_are_drawn_like_uint8_images() -> None:
    image = random_image(16, 16)
    as_float = (image / 255).astype(np.float32)
    assert contact_sheet(as_float, "digits").tobytes()[:1000] == contact_sheet(image, "digits").tobytes()[:1000]
