"""The engine against the reference: equal for copies, within one gray level for all other operations."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import SecondLookError, ViewError
from secondlook.operations import Frame, Warp
from secondlook.views import STEPS, View, ViewSet, apply_view, apply_views
from tests.views import reference

COPIES = ["identity", "hflip", "vflip", "shift:2,-1", "shift:-3,0", "shift:0,4", "shift:50,0", "shift:-1e12,1"]
COLOR_COPIES = ["channels:bgr", "channels:gbr", "channels:brg"]
COMPUTED = [
    *("shift:0.5,0", "shift:-1.25,2.75", "shift:10%,-7%", "shift:99.5,0"),
    *("rotate:3", "rotate:-40", "rotate:90", "rotate:123.4", "zoom:1.1", "zoom:0.6", "zoom:0.05", "zoom:20"),
    *("gamma:0.5", "gamma:2.2", "contrast:0.4", "contrast:1.7", "brightness:0.5", "brightness:1.6", "gray"),
    *("blur:0.7", "blur:2.5", "noise:14", "noise:100", "crop:10,20,60,50", "crop:0,0,50,50"),
]
CHAINS = [
    *("hflip+rotate:20", "rotate:20+hflip", "vflip+rotate:20", "rotate:20+vflip", "hflip+shift:0.5,1.25"),
    *("hflip+crop:10,20,60,50", "crop:10,20,60,50+vflip", "shift:2,1+rotate:20", "shift:2,1+zoom:0.5"),
    "gamma:0.5+shift:1,0+contrast:0.5+gray",
]
SIZES = [(1, 1), (1, 7), (5, 1), (2, 3), (9, 9), (9, 8), (12, 7)]


def random_images(seed: int, height: int, width: int, channels: int, dtype: str, count: int = 3) -> Array:
    values = np.random.default_rng(seed).integers(0, 256, (count, height, width, channels))
    return values.astype(np.uint8) if dtype == "uint8" else (values / 255).astype(np.float32)


def largest_difference(first: Array, second: Array) -> float:
    """Return the largest difference in gray levels (1/255)."""
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    scale = 1.0 if first.dtype == np.uint8 else 255.0
    return float(np.abs(first.astype(np.float64) - second.astype(np.float64)).max() * scale)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_every_step_equals_the_reference(size: tuple[int, int], channels: int, dtype: str) -> None:
    images = random_images(0, *size, channels, dtype)
    for text in COPIES + (COLOR_COPIES if channels == 3 else []):
        assert np.array_equal(apply_view(images, text), reference.apply_view(images, text)), text
    for text in COMPUTED + CHAINS:
        assert largest_difference(apply_view(images, text), reference.apply_view(images, text)) <= 1.0, text


def test_every_built_in_step_is_compared() -> None:
    compared = {text.partition(":")[0] for text in COPIES + COLOR_COPIES + COMPUTED}
    assert compared == set(STEPS) == set(reference.STEPS)


def numbers(low: float, high: float) -> st.SearchStrategy[str]:
    return st.floats(low, high, allow_nan=False).map(lambda value: f"{value:.3f}")


def step_texts(channels: int) -> st.SearchStrategy[str]:
    whole = st.integers(-6, 6)
    steps = [
        st.sampled_from(["identity", "hflip", "vflip", "gray"]),
        st.tuples(whole, whole).map(lambda pair: f"shift:{pair[0]},{pair[1]}"),
        st.tuples(numbers(-5, 5), numbers(-5, 5)).map(lambda pair: f"shift:{pair[0]},{pair[1]}"),
        st.tuples(numbers(-40, 40), numbers(-40, 40)).map(lambda pair: f"shift:{pair[0]}%,{pair[1]}%"),
        numbers(-180, 180).map(lambda value: f"rotate:{value}"),
        numbers(0.3, 3).map(lambda value: f"zoom:{value}"),
        # A steeper curve after a warp would show the rounding of float32 itself.
        numbers(0.5, 3).map(lambda value: f"gamma:{value}"),
        numbers(0, 2).map(lambda value: f"contrast:{value}"),
        numbers(0, 2).map(lambda value: f"brightness:{value}"),
        numbers(0.3, 2).map(lambda value: f"blur:{value}"),
        numbers(0, 60).map(lambda value: f"noise:{value}"),
        st.sampled_from(["crop:10,20,60,50", "crop:0,0,80,100", "crop:33.3,1,12,70"]),
    ]
    if channels == 3:
        steps.append(st.sampled_from(COLOR_COPIES))
    return st.one_of(steps)


@st.composite
def chains_on_images(draw: st.DrawFn) -> tuple[str, Array]:
    channels = draw(st.sampled_from([1, 3]))
    text = "+".join(draw(st.lists(step_texts(channels), min_size=1, max_size=4)))
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(["uint8", "float32"]))
    return text, random_images(draw(st.integers(0, 99)), height, width, channels, dtype, count=2)


@settings(max_examples=250, deadline=None)
@given(chains_on_images())
def test_random_chains_equal_the_reference(drawn: tuple[str, Array]) -> None:
    text, images = drawn
    assert largest_difference(apply_view(images, text), reference.apply_view(images, text)) <= 1.0


@pytest.mark.parametrize("text", ["shift:0.5,0+gamma:0.3", "gamma:0.3+zoom:0.7+gamma:0.4", "blur:1+brightness:40"])
def test_pixels_are_rounded_only_once(text: str) -> None:
    # Near black these steps amplify a rounding error of half a gray level to many levels.
    dark = random_images(7, 8, 8, 3, "uint8") // 64
    assert largest_difference(apply_view(dark, text), reference.apply_view(dark, text)) <= 1.0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["hflip", "vflip"]),
            st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda pair: f"shift:{pair[0]},{pair[1]}"),
            st.sampled_from(COLOR_COPIES),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([1, 2, 12]),
)
def test_chains_of_copies_are_exact(steps: list[str], height: int, width: int, count: int) -> None:
    images = random_images(1, height, width, 3, "uint8", count)
    assert np.array_equal(apply_view(images, "+".join(steps)), reference.apply_view(images, "+".join(steps)))


@pytest.mark.parametrize("text", ["hflip+rotate:10", "rotate:10+vflip", "vflip+hflip+zoom:1.2", "hflip+shift:0.5,1"])
def test_flips_are_fused_into_the_warp(text: str) -> None:
    operations = View.parse(text).plan(Frame(8, 6, 3))
    assert len(operations) == 1
    assert isinstance(operations[0], Warp)


def test_all_views_of_a_batch_equal_one_view_of_one_image() -> None:
    images = random_images(2, 10, 8, 3, "uint8", count=5)
    views = ViewSet("identity hflip shift:1,2 rotate:9+gamma:0.7 contrast:1.5 vflip")
    together = apply_views(images, views)
    assert together.shape == (5, 6, 10, 8, 3)
    for (index, image), (place, view) in itertools.product(enumerate(images), enumerate(views)):
        assert np.array_equal(together[index, place], apply_view(image[None], view)[0])
    gray = random_images(3, 6, 6, 1, "float32")
    batches = [apply_view(gray, view) for view in ViewSet("natural")]
    assert np.array_equal(np.stack(batches, axis=1), apply_views(gray, "natural"))


@pytest.mark.parametrize("text", [*COPIES, *COMPUTED, *COLOR_COPIES])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_input_is_neither_modified_nor_shared(text: str, dtype: str) -> None:
    images = random_images(4, 6, 5, 3, dtype)
    before = images.copy()
    result = apply_view(images, text)
    assert np.array_equal(images, before)
    assert not np.shares_memory(result, images)


@pytest.mark.parametrize(
    "text", ["hflip", "shift:1,1", "rotate:5", "gamma:0.5", "contrast:0.5", "blur:1", "channels:bgr"]
)
def test_strided_images_and_empty_batches(text: str) -> None:
    images = random_images(5, 12, 10, 3, "uint8")
    strided = images[:, ::2, ::-1]
    assert not strided.flags.c_contiguous
    assert np.array_equal(apply_view(strided, text), apply_view(strided.copy(), text))
    assert apply_view(images[:0], text).shape == (0, 12, 10, 3)


@pytest.mark.parametrize(
    ("images", "value"),
    [
        (np.zeros((4, 4), np.uint8), "[4, 4]"),
        (np.zeros((4, 4, 2), np.uint8), "[4, 4, 2]"),
        (np.zeros((2, 3, 8, 8), np.uint8), "[2, 3, 8, 8]"),
        (np.zeros((2, 8, 8, 4), np.uint8), "[2, 8, 8, 4]"),
        (np.zeros((2, 0, 8, 3), np.uint8), "[2, 0, 8, 3]"),
        (np.full((2, 8, 8, 3), 255.0), "float64"),
        (np.full((2, 8, 8, 3), 255, np.float32), "255"),
        (np.full((2, 8, 8, 3), np.nan, np.float32), "NaN"),
    ],
)
def test_invalid_images_are_rejected(images: Array, value: str) -> None:
    with pytest.raises(SecondLookError, match=re.escape(value)):
        apply_views(images, "identity hflip")


def test_channel_order_of_gray_images_is_rejected() -> None:
    with pytest.raises(ViewError, match="'channels:bgr'"):
        apply_view(np.zeros((1, 4, 4, 1), np.uint8), "channels:bgr")


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1), (3, 4)])
def test_every_integer_shift_of_small_images(size: tuple[int, int]) -> None:
    height, width = size
    images = np.random.default_rng(0).integers(1, 256, (3, height, width, 3), dtype=np.uint8)
    for flip, dx, dy in itertools.product(("", "hflip+"), range(-width - 1, width + 2), range(-height - 1, height + 2)):
        padded = np.pad(images[:, :, ::-1] if flip else images, [(0, 0), (9, 9), (9, 9), (0, 0)])
        expected = padded[:, 9 - dy : 9 - dy + height, 9 - dx : 9 - dx + width]
        np.testing.assert_array_equal(apply_view(images, f"{flip}shift:{dx},{dy}"), expected)


def test_an_older_opencv_is_rejected(tmp_path: Path) -> None:
    """A later `pip install 'opencv-python<5'` silently replaces the module, whose warps differ by several levels."""
    (tmp_path / "cv2.py").write_text("__version__ = '4.12.0'\n")
    code = "import numpy as np, secondlook as sl; sl.apply_views(np.zeros((1, 4, 4, 3), np.uint8), 'identity hflip')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    message = ended.stderr.splitlines()[-1]
    assert "ViewError" in message
    for fact in ("OpenCV 4.12.0", "OpenCV 5", "pip install 'opencv-python-headless>=5'"):
        assert fact in message
