"""One image of any kind as an array: equal pixels whatever the kind, and a sentence for everything else."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.errors import SourceError
from secondlook.sources import UnreadableImageError, read_image
from tests.sources.conftest import png_bytes, random_images

torch = pytest.importorskip("torch")

PIXELS = random_images(1, 20, 30)[0]
CHANNELS_FIRST = np.ascontiguousarray(PIXELS.transpose(2, 0, 1))


def write_file(folder: Path) -> Path:
    (folder / "a.png").write_bytes(png_bytes(PIXELS))
    return folder / "a.png"


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": write_file,
    "text": lambda folder: str(write_file(folder)),
    "bytes": lambda _: png_bytes(PIXELS),
    "bytearray": lambda _: bytearray(png_bytes(PIXELS)),
    "memoryview": lambda _: memoryview(png_bytes(PIXELS)),
    "PIL image": lambda _: Image.fromarray(PIXELS),
    "PIL file": lambda folder: Image.open(write_file(folder)),
    "array": lambda _: PIXELS,
    "array of one image": lambda _: PIXELS[None],
    "tensor": lambda _: torch.from_numpy(CHANNELS_FIRST),
    "tensor of one image": lambda _: torch.from_numpy(CHANNELS_FIRST)[None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_pixels(kind: str, tmp_path: Path) -> None:
    image = read_image(KINDS[kind](tmp_path))
    np.testing.assert_array_equal(image, PIXELS)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_float_tensors_are_images_in_0_to_1(dtype: Any) -> None:
    tensor = (torch.from_numpy(CHANNELS_FIRST).float() / 255).to(dtype)
    image = read_image(tensor.requires_grad_())
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, PIXELS / 255, atol=2**-8)
    np.testing.assert_array_equal(image[3, 5], tensor[:, 3, 5].detach().float().numpy())


@given(mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"]), orientation=st.integers(1, 8))
@settings(deadline=None, max_examples=40)
def test_pil_image_has_the_pixels_of_its_file(mode: str, orientation: int) -> None:
    """EXIF orientation is applied and colors are converted as for files."""
    gray = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) * 20)
    picture = (
        Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000) if mode == "I;16" else gray.convert(mode)
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    picture.save(file, "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    with Image.open(io.BytesIO(file.getvalue())) as opened:
        np.testing.assert_array_equal(read_image(opened), read_image(file.getvalue()))


@pytest.mark.parametrize(
    ("image", "values"),
    [
        (torch.randn(3, 8, 8), ["normalized", "mean=", "std="]),
        (torch.full((3, 2, 2), 200.0), ["200", "255"]),
        (torch.full((3, 2, 2), float("nan")), ["nan"]),
        (torch.rand(8, 8, 3), ["[8, 8, 3]", "permute(2, 0, 1)"]),
        (torch.rand(8, 8), ["[8, 8]", "[C, H, W]"]),
        (torch.zeros(3, 4, 4, dtype=torch.int64), ["int64"]),
        (torch.zeros(2, 3, 4, 4), ["[2, 4, 4, 3]"]),
        (CHANNELS_FIRST, ["[3, 20, 30]", "transpose(1, 2, 0)"]),
        (PIXELS[..., 0], ["[20, 30]", "image[..., None]"]),
        (np.zeros((2, 2, 4), np.uint8), ["[2, 2, 4]", "image[..., :3]"]),
        (PIXELS.astype(np.float64), ["float64"]),
        (PIXELS.astype(np.float32) - 100, ["-100", "normalized", "mean=", "std="]),
        (np.zeros((0, 2, 3), np.uint8), ["[0, 2, 3]"]),
        (5, ["int", "torch tensor"]),
        (None, ["NoneType"]),
        (b"", ["empty"]),
        (b"no image", ["JPEG"]),
        ("absent.jpg", ["absent.jpg", "No such file"]),
        ("a\0b", ["cannot be opened"]),
    ],
)
def test_anything_else_is_rejected_in_one_sentence(image: object, values: list[str]) -> None:
    with pytest.raises(SourceError, match=re.escape(values[0])) as caught:
        read_image(image)
    assert all(value in str(caught.value) for value in values), str(caught.value)
    assert "\n" not in str(caught.value)


def test_error_names_the_image() -> None:
    for image in (torch.randn(3, 8, 8), torch.rand(8, 8, 3), PIXELS[..., 0], b"", 5):
        with pytest.raises(SourceError, match="image the third"):
            read_image(image, "the third")


@pytest.mark.parametrize("image", [png_bytes(PIXELS), Image.fromarray(PIXELS)], ids=["bytes", "PIL image"])
def test_limits_name_the_argument_that_raises_them(image: object) -> None:
    with pytest.raises(UnreadableImageError, match=r"above the limit of 599; pass max_pixels=600 "):
        read_image(image, max_pixels=599)
    with pytest.raises(UnreadableImageError, match=r"above the limit of 1799; pass max_bytes=1800 "):
        read_image(image, max_bytes=1799)
    assert read_image(image, max_pixels=600, max_bytes=1800).shape == (20, 30, 3)


def test_closed_pil_image_is_unreadable(tmp_path: Path) -> None:
    image = Image.open(write_file(tmp_path))
    image.close()
    with pytest.raises(UnreadableImageError, match="in memory"):
        read_image(image)


def test_recognizing_objects_imports_nothing() -> None:
    code = (
        "import sys, numpy as np, secondlook as sl\n"
        "sl.open_source([np.zeros((2, 2, 3), np.uint8)]).digest\n"
        "sl.open_source(['a.jpg'])\n"
        "try: sl.open_source(object())\n"
        "except sl.SecondLookError: pass\n"
        "print([name for name in ('PIL', 'torch', 'pandas', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
