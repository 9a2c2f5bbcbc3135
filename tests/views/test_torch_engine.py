"""The PyTorch engine on CPU tensors against the CPU engine."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import ViewError
from secondlook.operations import Copy, Frame, Reorder, Tone
from secondlook.views import PRESETS, View, ViewSet, apply_view, view_step

torch = pytest.importorskip("torch")

from secondlook.views.torch_engine import apply_view_to_tensor  # noqa: E402 - imports torch

COMPUTED = [
    *(
        "blur:1.3",
        "noise:20",
        "gray",
        "crop:10,5,70,80",
        "shift:1.5,2.25",
        "zoom:.7",
        "zoom:1.3",
        "rotate:33",
        "zoom:.2",
    ),
]
MOVED = ["identity", "hflip", "vflip", "shift:2,-1", "shift:-3,0", "shift:100,0", "channels:bgr", "channels:gbr"]
TONES = ["gamma:.6", "gamma:2", "brightness:1.7", "contrast:.5", "contrast:1.3"]

STEP_TEXTS = st.sampled_from([*COMPUTED, *MOVED, *TONES])


def apply_to_tensor(images: Array, text: str) -> Array:
    before = images.copy()
    result: Array = apply_view_to_tensor(torch.from_numpy(images), View.parse(text)).numpy()
    np.testing.assert_array_equal(images, before, err_msg="the input is unchanged")
    assert result.shape == images.shape
    assert result.dtype == images.dtype
    return result


def make_images(seed: int, shape: tuple[int, ...]) -> Array:
    images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    images[:1] = 128  # means of equal pixels lie exactly between two values of some tones
    return images


def is_exact(text: str, shape: tuple[int, ...]) -> bool:
    """Whether a view moves pixels or changes the tone of uint8 images, once at most."""
    operations = View.parse(text).plan(Frame(*shape[1:]))
    tones = [operation for operation in operations if isinstance(operation, Tone)]
    return all(isinstance(operation, Copy | Reorder | Tone) for operation in operations) and len(tones) <= 1


@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (3, 41, 29, 1), (2, 224, 224, 3), (2, 5, 3, 3)], ids=str)
@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.filterwarnings("ignore::secondlook.views.ViewWarning")
def test_presets_equal_the_cpu_engine(preset: str, shape: tuple[int, ...]) -> None:
    pixels = make_images(1, shape)
    for text in ViewSet(preset).texts:
        expected, found = apply_view(pixels, text), apply_to_tensor(pixels, text)
        largest = np.abs(found.astype(int) - expected).max()
        assert largest <= (0 if is_exact(text, shape) else 1), text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(STEP_TEXTS, min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.just(3)),
)
def test_any_view_equals_the_cpu_engine(steps: list[str], seed: int, shape: tuple[int, ...]) -> None:
    text = "+".join(steps)
    pixels = make_images(seed, shape)
    difference = np.abs(apply_to_tensor(pixels, text).astype(int) - apply_view(pixels, text))
    assert difference.max() <= (0 if is_exact(text, shape) else 1)
    floats = (pixels / 255).astype(np.float32)
    np.testing.assert_allclose(apply_to_tensor(floats, text), apply_view(floats, text), atol=1 / 255)


@pytest.mark.parametrize("text", [*COMPUTED, *TONES, "hflip+gamma:.8", "rotate:5+contrast:1.2"])
def test_float_images_equal_the_cpu_engine(text: str) -> None:
    images = np.random.default_rng(2).random((4, 33, 27, 3), dtype=np.float32)
    np.testing.assert_allclose(apply_to_tensor(images, text), apply_view(images, text), atol=2e-4)


def test_gray_images_and_no_images() -> None:
    pixels = make_images(3, (4, 12, 10, 1))
    for text in ("gray", "blur:0.7", "rotate:12", "contrast:1.4", "hflip+shift:1,2", "gamma:.5"):
        np.testing.assert_allclose(apply_to_tensor(pixels, text), apply_view(pixels, text), atol=1)
        assert apply_to_tensor(np.empty((0, 8, 8, 3), dtype=np.uint8), text).shape == (0, 8, 8, 3)


def test_many_images_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from secondlook.views import torch_engine

    monkeypatch.setattr(torch_engine, "_HISTOGRAM_PIXELS", 3 * 8 * 8 * 3)
    pixels = make_images(4, (8, 8, 8, 3))
    np.testing.assert_array_equal(apply_to_tensor(pixels, "contrast:1.7"), apply_view(pixels, "contrast:1.7"))


@pytest.mark.usefixtures("temporary_registry")
def test_function_of_a_user_is_run_on_arrays() -> None:
    @view_step("invert")
    def invert(images: Array) -> Array:
        assert isinstance(images, np.ndarray)
        return 1 - images

    pixels = make_images(5, (3, 9, 8, 3))
    np.testing.assert_array_equal(apply_to_tensor(pixels, "hflip+invert"), 255 - pixels[:, :, ::-1])


def test_view_with_a_plain_name_is_rejected() -> None:
    with pytest.raises(ViewError, match="elsewhere"):
        apply_view_to_tensor(torch.zeros((1, 4, 4, 3)), View(name="elsewhere"))


def test_engine_needs_neither_opencv_nor_numba() -> None:
    code = """
import sys
sys.modules["cv2"] = sys.modules["numba"] = None
import torch
from secondlook.views import View
from secondlook.views.torch_engine import apply_view_to_tensor
images = torch.arange(2 * 6 * 5 * 3, dtype=torch.uint8).view(2, 6, 5, 3)
for text in ("hflip", "rotate:5+gamma:0.8", "contrast:1.2", "blur:1", "gray"):
    assert apply_view_to_tensor(images, View.parse(text)).shape == images.shape
"""
    subprocess.run([sys.executable, "-c", code], check=True)
