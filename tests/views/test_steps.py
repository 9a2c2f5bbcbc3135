"""Each step on a small image with a known result: direction, sign, fill and sampling; and steps added by users."""

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import ViewError
from secondlook.views import STEPS, View, apply_view, view_step


def find_brightest(images: Array, text: str) -> tuple[int, int]:
    """Return the position (x, y) of the brightest pixel of a view."""
    view = apply_view(images, text)[0, :, :, 0]
    y, x = np.unravel_index(int(view.argmax()), view.shape)
    return int(x), int(y)


@pytest.mark.parametrize(
    ("rows", "views"),
    [
        (
            [[10, 20, 30], [40, 50, 60]],
            {
                "identity": [[10, 20, 30], [40, 50, 60]],
                "hflip": [[30, 20, 10], [60, 50, 40]],
                "vflip": [[40, 50, 60], [10, 20, 30]],
                "shift:1,0": [[0, 10, 20], [0, 40, 50]],
                "shift:-1,0": [[20, 30, 0], [50, 60, 0]],
                "shift:0,1": [[0, 0, 0], [10, 20, 30]],
                "shift:0,-1": [[40, 50, 60], [0, 0, 0]],
                "shift:2,-1": [[0, 0, 40], [0, 0, 0]],
                "shift:3,0": [[0, 0, 0], [0, 0, 0]],
                "shift:0.5,0": [[5, 15, 25], [20, 45, 55]],
                "shift:0,-0.5": [[25, 35, 45], [20, 25, 30]],
                "shift:0,50%": [[0, 0, 0], [10, 20, 30]],
                "hflip+shift:1,0": [[0, 30, 20], [0, 60, 50]],
                "shift:1,0+hflip": [[20, 10, 0], [50, 40, 0]],
                "shift:1,0+shift:-1,0": [[10, 20, 0], [40, 50, 0]],
                "→1": [[0, 10, 20], [0, 40, 50]],
                "↑1": [[40, 50, 60], [0, 0, 0]],
            },
        ),
        (
            [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
            {"rotate:90": [[7, 4, 1], [8, 5, 2], [9, 6, 3]], "rotate:180": [[9, 8, 7], [6, 5, 4], [3, 2, 1]]},
        ),
        # About the center, bilinearly.
        ([[0, 100, 200, 100, 0]], {"zoom:2": [[100, 150, 200, 150, 100]], "zoom:4": [[150, 175, 200, 175, 150]]}),
        # Positions 1.5 + (i - 1.5) * 2 = -1.5, 0.5, 2.5, 4.5; beyond the edge the image is mirrored: 10|10 20.
        ([[10, 20, 30, 40]], {"zoom:0.5": [[15, 15, 35, 35]]}),
        ([[0, 64, 128, 255]], {"gamma:2": [[0, 16, 64, 255]], "gamma:0.5": [[0, 128, 181, 255]]}),
        # About the mean of each image.
        ([[50, 100, 150]], {"contrast:0.5": [[75, 100, 125]], "contrast:0": [[100, 100, 100]]}),
        ([[0, 100, 200]], {"contrast:2": [[0, 100, 255]], "brightness:1.5": [[0, 150, 255]]}),
        # Halved to 50, 110 (mean 80), then moved halfway to that mean, not to the mean of the original.
        ([[100, 220]], {"brightness:0.5+contrast:0.5": [[65, 95]]}),
        ([[0, 0, 100, 200]], {"crop:50,0,50,100": [[75, 125, 175, 200]]}),
    ],
)
def test_views_of_small_gray_images(rows: list[list[int]], views: dict[str, list[list[int]]]) -> None:
    images = np.array([rows, np.array(rows) // 2], dtype=np.uint8)[:, :, :, None]  # each is an image of its own
    for text, expected in views.items():
        assert apply_view(images, text)[0, :, :, 0].tolist() == expected, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gray", [124, 124, 124]),
        ("channels:bgr", [50, 100, 200]),
        ("channels:gbr", [100, 50, 200]),
        ("channels:gbr+channels:gbr", [50, 200, 100]),
    ],
)
def test_views_of_a_color(text: str, expected: list[int]) -> None:
    assert apply_view(np.array([[[[200, 100, 50]]]], dtype=np.uint8), text)[0, 0, 0].tolist() == expected


def test_rotate_is_clockwise() -> None:
    top = np.zeros((1, 21, 21, 1), np.uint8)
    top[0, 4, 10] = 255  # twelve o'clock
    x, y = find_brightest(top, "rotate:30")
    assert x > 10
    assert y < 10
    assert find_brightest(top, "rotate:-30")[0] < 10
    assert find_brightest(top, "rotate:90") == (16, 10)  # three o'clock
    assert find_brightest(top, "↺90") == (4, 10)


@pytest.mark.parametrize("size", [(32, 32), (20, 48), (50, 17)])
@pytest.mark.parametrize("degrees", [3, -7, 45, 80])
def test_rotate_hides_the_outside_with_the_smallest_zoom(size: tuple[int, int], degrees: int) -> None:
    white = np.full((1, *size, 1), 255, np.uint8)
    assert apply_view(white, f"rotate:{degrees}").min() == 255
    # A frame one pixel wide is still visible, so the zoom is not larger than needed.
    framed = np.full((1, *size, 1), 255, np.uint8)
    framed[0, 1:-1, 1:-1] = 0
    assert apply_view(framed, f"rotate:{degrees}").max() > 0
    assert apply_view(framed, f"rotate:{degrees}+zoom:1.3").max() < 255


def test_blur_has_the_given_standard_deviation() -> None:
    point = np.zeros((1, 41, 41, 1), np.float32)
    point[0, 20, 20] = 1
    spread = apply_view(point, "blur:2")[0, :, :, 0]
    places = np.arange(41) - 20
    assert spread.sum() == pytest.approx(1.0, abs=1e-5)
    assert (spread.sum(axis=0) * places**2).sum() == pytest.approx(4.0, rel=0.05)
    assert (spread.sum(axis=1) * places**2).sum() == pytest.approx(4.0, rel=0.05)


def test_noise_has_the_given_standard_deviation_and_is_the_same_for_every_image() -> None:
    images = np.full((2, 64, 64, 3), 128, np.uint8)
    noisy = apply_view(images, "noise:14").astype(np.float64)
    assert noisy.std() == pytest.approx(14, rel=0.02)
    assert noisy.mean() == pytest.approx(128, abs=0.5)
    assert np.corrcoef(noisy[0, ..., 0].ravel(), noisy[0, ..., 1].ravel())[0, 1] == pytest.approx(0, abs=0.05)
    assert np.array_equal(noisy[0], noisy[1])
    # The pattern must never change, since stored predictions are identified by the text of their views.
    assert apply_view(images[:, :2, :2, :1], "noise:14")[0, :, :, 0].tolist() == [[153, 134], [142, 159]]


def test_crop_resizes_back() -> None:
    quarters = np.zeros((1, 8, 8, 1), np.uint8)
    quarters[0, :4, 4:] = 200  # the upper right quarter
    assert (apply_view(quarters, "crop:50,0,50,50")[0, :7, 1:] == 200).all()
    assert (apply_view(quarters, "crop:0,50,50,50")[0, 1:, :7] == 0).all()


@pytest.mark.usefixtures("temporary_registry")
def test_users_can_add_a_step() -> None:
    @view_step("posterize:BITS")
    def posterize(images: Array, bits: float) -> Array:
        """Keep BITS bits of each pixel.

        The rest of the docstring is not part of the summary.
        """
        levels = 2**bits - 1
        images *= levels
        posterized: Array = np.rint(images) / levels
        return posterized

    assert STEPS["posterize"].form == "posterize:BITS"
    assert STEPS["posterize"].summary == "Keep BITS bits of each pixel."
    assert View.parse("hflip+posterize:2").describe() == "mirrored, posterize:2"
    assert str(View.parse("hflip+posterize:1.0")) == "hflip+posterize:1"
    images = np.array([[[[10], [100], [140], [250]]]], dtype=np.uint8)
    assert apply_view(images, "posterize:1")[0, 0, :, 0].tolist() == [0, 0, 255, 255]
    assert apply_view(images, "hflip+posterize:1")[0, 0, :, 0].tolist() == [255, 255, 0, 0]
    assert images[0, 0, :, 0].tolist() == [10, 100, 140, 250]
    with pytest.raises(ViewError, match=r"'posterize' .*posterize:BITS"):
        View.parse("posterize")
    with pytest.raises(ViewError, match="'posterize'"):
        view_step("posterize:N")(posterize)
    with pytest.raises(ViewError, match="'No Good'"):
        view_step("No Good")(posterize)


@pytest.mark.usefixtures("temporary_registry")
def test_invalid_output_of_a_users_step_is_rejected() -> None:
    view_step("shrink")(lambda images: images[:, 1:])
    view_step("poison")(lambda images: images * np.nan)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    with pytest.raises(ViewError, match=r"'shrink' .*\[2, 3, 4, 3\].*\[2, 4, 4, 3\]"):
        apply_view(images, "shrink")
    with pytest.raises(ViewError, match=r"'poison' .*NaN"):
        apply_view(images, "poison")
