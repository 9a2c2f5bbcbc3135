"""One image of any kind as an array: files of every format, PIL images, arrays and tensors; all else is rejected."""

import io
import re
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import UnreadableImageError, open_source, read_image
from tests.sources.conftest import encode, png_bytes, random_images

torch = pytest.importorskip("torch")

PIXELS = random_images(1, 5, 7)[0]
CHANNELS_FIRST = np.ascontiguousarray(PIXELS.transpose(2, 0, 1))
MAX_SCANS = 50
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "TIFF"]
every_format = pytest.mark.parametrize("kind", FORMATS)


def decode(content: bytes, max_pixels: int = 1_000_000, **limits: Any) -> Array:
    return read_image(content, "x", max_pixels=max_pixels, **limits)


def write_file(folder: Path) -> Path:
    (folder / "a.jpg").write_bytes(png_bytes(PIXELS))  # its content tells the format, not its name
    return folder / "a.jpg"


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": write_file,
    "text": lambda folder: str(write_file(folder)),
    "bytes": lambda _: png_bytes(PIXELS),
    "bytearray": lambda _: bytearray(png_bytes(PIXELS)),
    "memoryview": lambda _: memoryview(png_bytes(PIXELS)),
    "WebP": lambda _: encode(Image.fromarray(PIXELS), "WEBP", lossless=True),
    "BMP": lambda _: encode(Image.fromarray(PIXELS), "BMP"),
    "TIFF": lambda _: encode(Image.fromarray(PIXELS), "TIFF"),
    "compressed TIFF": lambda _: encode(Image.fromarray(PIXELS), "TIFF", compression="tiff_lzw"),
    "first of two": lambda _: encode(
        Image.fromarray(PIXELS), "TIFF", save_all=True, append_images=[Image.fromarray(255 - PIXELS)]
    ),
    "PIL image": lambda _: Image.fromarray(PIXELS),
    "PIL file": lambda folder: Image.open(write_file(folder)),
    "array": lambda _: PIXELS,
    "array of one image": lambda _: PIXELS[None],
    "tensor": lambda _: torch.from_numpy(CHANNELS_FIRST),
    "tensor of one image": lambda _: torch.from_numpy(CHANNELS_FIRST)[None],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_pixels(kind: str, tmp_path: Path) -> None:
    given = KINDS[kind](tmp_path)
    image = read_image(given)
    np.testing.assert_array_equal(image, PIXELS)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.flags.writeable or not isinstance(given, bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_float_tensors_are_images_in_0_to_1(dtype: Any) -> None:
    tensor = (torch.from_numpy(CHANNELS_FIRST).float() / 255).to(dtype)
    image = read_image(tensor.requires_grad_())
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, PIXELS / 255, atol=2**-8)
    np.testing.assert_array_equal(image[3, 5], tensor[:, 3, 5].detach().float().numpy())


TURNS: dict[int, Callable[[Array], Array]] = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90,
}
"""The EXIF table: which side of the stored image is the visual top, and which is the visual left."""


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_exif_orientation_is_applied_to_files_and_pil_images(mode: str, orientation: int) -> None:
    picture = Image.fromarray(DEEP) if mode == "I;16" else Image.fromarray(PIXELS).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in {"RGB": ("PNG", "JPEG", "TIFF"), "CMYK": ("TIFF",)}.get(mode, ("PNG",)):
        turned = TURNS[orientation](decode(encode(picture, kind)))
        content = encode(picture, kind, exif=exif)
        np.testing.assert_array_equal(decode(content), turned)
        with Image.open(io.BytesIO(content)) as opened:
            np.testing.assert_array_equal(read_image(opened), turned)


GRAY = PIXELS[..., 0]
DEEP = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1800
TRANSPARENT = Image.fromarray(np.dstack([PIXELS, np.zeros((5, 7), dtype=np.uint8)]))
BILEVEL = Image.fromarray(GRAY).point(lambda value: 255 * (value > 127), "1")
PALETTE = Image.fromarray(PIXELS).quantize(16)


@pytest.mark.parametrize(
    ("image", "kind", "options", "expected"),
    [
        (Image.fromarray(GRAY), "PNG", {}, GRAY[..., None]),
        (BILEVEL, "PNG", {}, np.where(GRAY > 127, 255, 0)[..., None]),
        (TRANSPARENT, "PNG", {}, PIXELS),
        (TRANSPARENT.convert("LA"), "PNG", {}, np.array(TRANSPARENT.convert("LA"))[..., :1]),
        *((PALETTE, "PNG", more, PALETTE.convert("RGB")) for more in ({}, {"transparency": 0})),
        (PALETTE, "PNG", {"transparency": b"\x00\x80\xff"}, PALETTE.convert("RGB")),
        *((Image.fromarray(DEEP), kind, {}, (DEEP // 256)[..., None]) for kind in ("PNG", "TIFF")),
    ],
)
def test_other_colors_become_rgb(image: Image.Image, kind: str, options: dict[str, Any], expected: Any) -> None:
    """An alpha channel is dropped, and 16-bit pixels keep the upper byte."""
    np.testing.assert_array_equal(
        decode(encode(image, kind, **options)), np.broadcast_to(np.asarray(expected), (5, 7, 3))
    )


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_gray_is_kept_on_request(kind: str) -> None:
    found = read_image(encode(Image.fromarray(DEEP), kind), keep_16_bit=True)
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, DEEP[..., None])
    with Image.open(io.BytesIO(encode(Image.fromarray(DEEP), kind))) as opened:
        np.testing.assert_array_equal(read_image(opened, keep_16_bit=True), DEEP[..., None])
    assert read_image(encode(Image.fromarray(PIXELS), kind), keep_16_bit=True).dtype == np.uint8


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb_and_jpeg_is_decoded_as_by_pillow(kind: str) -> None:
    image = decode(encode(Image.new("CMYK", (4, 3), (0, 255, 255, 0)), kind))
    assert image.shape == (3, 4, 3)
    assert np.abs(image.astype(int) - [255, 0, 0]).max() < 8
    content = encode(Image.fromarray(PIXELS), kind)
    np.testing.assert_array_equal(decode(content), np.array(Image.open(io.BytesIO(content))))


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (500, 375), (3000, 2500)], ids=str)
def test_pixels_are_those_that_numpy_reads(size: tuple[int, int]) -> None:
    """Large images are in several parts of memory, which are read in strips."""
    image = Image.fromarray(random_images(1, size[1], size[0])[0])
    for each in (image, image.resize((size[0] + 1, size[1] + 2)), image.convert("RGBA"), image.convert("L")):
        np.testing.assert_array_equal(read_image(each), np.asarray(each.convert("RGB")))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I;16B"])
def test_images_converted_in_strips_are_the_same(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of more than four million pixels has several strips, its halves have one each."""
    noise = np.random.default_rng(2).integers(0, 256, (2200, 2000, 4), dtype=np.uint8)
    if mode.startswith("I;16"):
        image, *halves = (
            Image.frombytes(mode, (2000, len(part)), part[..., :2].tobytes()) for part in (noise, *np.split(noise, 2))
        )
    else:
        image = Image.fromarray(noise).convert("RGB").convert(mode)
        halves = [image.resize((2000, 1100), Image.Resampling.NEAREST, (0, top, 2000, top + 1100)) for top in (0, 1100)]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    if mode == "P":
        for each in (image, *halves):
            each.info["transparency"] = bytes(range(256))
    np.testing.assert_array_equal(read_image(image), np.concatenate([read_image(half) for half in halves]))


def make_huge_png() -> bytes:
    """A PNG whose header announces 30,000 x 30,000 pixels, followed by almost no data."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def make_huge_webp(kind: bytes) -> bytes:
    """A WebP file of 51 bytes whose header announces 16,384 x 16,384 pixels, or 16,383 x 16,383."""
    start = {
        b"VP8X": struct.pack("<I", 10) + bytes(4) + b"\xff\x3f\x00" * 2,
        b"VP8L": struct.pack("<I", 20) + b"\x2f\xff\xff\xff\x0f",
        b"VP8 ": struct.pack("<I", 20) + b"\x10\x00\x00\x9d\x01\x2a\xff\x3f\xff\x3f",
    }
    content = b"WEBP" + kind + start[kind]
    content += bytes(43 - len(content))
    return b"RIFF" + struct.pack("<I", len(content)) + content


@pytest.mark.parametrize("pillow_limit", [Image.MAX_IMAGE_PIXELS, None, 1])
@pytest.mark.parametrize(
    ("content", "sides"),
    [
        (make_huge_png(), "30000 x 30000"),
        *((make_huge_webp(kind), r"1638[34] x 1638[34]") for kind in (b"VP8X", b"VP8L", b"VP8 ")),
    ],
)
def test_huge_image_is_rejected_before_it_is_decoded(
    content: bytes, sides: str, pillow_limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillow_limit)
    with pytest.raises(UnreadableImageError, match=rf"{sides} .*above the limit of 1000000; pass max_pixels="):
        decode(content)
    with pytest.raises(UnreadableImageError, match=sides):
        decode(content, max_pixels=10**9, max_bytes=10**6)


@pytest.mark.parametrize("kind", [*FORMATS, "PIL image"])
def test_limits_are_exact_and_named(kind: str) -> None:
    image = Image.fromarray(PIXELS)
    content = image if kind == "PIL image" else encode(image, kind)
    assert read_image(content, max_pixels=35, max_bytes=105).shape == (5, 7, 3)
    for limit, needed in (("max_pixels", 35), ("max_bytes", 105)):
        limits: dict[str, Any] = {limit: needed - 1}
        found = rf"7 x 5 .*{needed}.*above the limit of {needed - 1}; pass {limit}={needed} "
        with pytest.raises(UnreadableImageError, match=found) as caught:
            read_image(content, **limits)
        assert (caught.value.limit, caught.value.needed) == (limit, needed)


@pytest.mark.parametrize("kind", [SyntaxError, struct.error, Image.DecompressionBombWarning, MemoryError])
def test_whatever_a_decoder_raises_is_an_unreadable_image(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = png_bytes(PIXELS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # which does not matter, except for a WebP file
    np.testing.assert_array_equal(decode(content, max_pixels=35), PIXELS)
    with pytest.raises(UnreadableImageError, match="it is damaged or cut short"):
        decode(encode(Image.fromarray(PIXELS), "WEBP"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", Mock(side_effect=kind("x")))
    with pytest.raises(UnreadableImageError) as caught:
        decode(content)
    known: dict[type[Exception], str] = {MemoryError: "decoding it takes more memory than is available"}
    assert caught.value.reason == known.get(kind, "it is damaged or cut short (x)")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"hello, I am a text", "its content is not JPEG, PNG, WebP, BMP or TIFF"),
        (b"GIF89a" + bytes(20), "its content is not JPEG"),
        (b"\xff\xd8\xff" + bytes(20), "it is damaged or cut short"),
        (b"BM", "it is damaged or cut short"),
        (encode(Image.fromarray(np.ones((3, 3), dtype=np.float32)), "TIFF"), "its pixels are 32-bit"),
    ],
)
def test_file_that_is_no_image_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImageError, match="image x ") as caught:
        decode(content)
    assert caught.value.reason.startswith(reason)


@every_format
def test_truncated_image_is_rejected(kind: str) -> None:
    content = encode(Image.fromarray(random_images(1, 40, 40)[0]), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow also warns about the truncated directory of a TIFF
        with pytest.raises(UnreadableImageError, match="image x "):
            decode(content[: len(content) // 2])


@given(
    kind=st.sampled_from(FORMATS),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_bytes_are_decoded_or_rejected(kind: str, damage: list[tuple[float, int]]) -> None:
    content = bytearray(encode(Image.fromarray(PIXELS), kind))
    for place, value in damage:
        content[int(place * len(content))] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = decode(bytes(content))
        except UnreadableImageError:
            return
    assert image.dtype == np.uint8
    assert (image.ndim, image.shape[2]) == (3, 3)


def add_scans(content: bytes, count: int) -> bytes:
    """Repeat the last scan of a JPEG file, which is valid and takes another pass over all pixels."""
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + count * last + content[-2:]


def count_scans(content: bytes) -> int:
    """Count the scans in a slow way: byte by byte, with the lengths of segments."""
    place, scans = 2, 0
    while content[place : place + 2] != b"\xff\xd9":
        if content[place] == 0xFF and content[place + 1] not in (0x00, 0xFF, *range(0xD0, 0xD8)):
            scans += content[place + 1] == 0xDA
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        else:
            place += 1
    return scans


@pytest.mark.parametrize("size", [(16, 16), (300, 200)])
def test_number_of_scans_of_a_jpeg_file_is_limited(size: tuple[int, int], tmp_path: Path) -> None:
    """500 scans of an image of 100 million pixels took minutes to decode."""
    noise = Image.fromarray(random_images(1, *size)[0])
    progressive = encode(noise, "JPEG", progressive=True, exif=b"Exif\0\0" + 60 * b"\xff\xda\xff\xd9")
    allowed = MAX_SCANS - count_scans(progressive)
    np.testing.assert_array_equal(decode(progressive), np.asarray(Image.open(io.BytesIO(progressive))))
    assert decode(add_scans(progressive, allowed)).shape == (*size, 3)
    for content in (add_scans(progressive, allowed + 1), add_scans(encode(noise, "JPEG"), 100)):
        with pytest.raises(UnreadableImageError, match=f"more than {MAX_SCANS} scans"):
            decode(content)
    appended = progressive + 1000 * b"\xff\xda\0\2"  # phones append a video, in which any bytes may occur
    np.testing.assert_array_equal(decode(appended), decode(progressive))
    (tmp_path / "a.jpg").write_bytes(progressive)
    (tmp_path / "b.jpg").write_bytes(add_scans(progressive, 1000))
    source = open_source(f"folder:{tmp_path}", on_error="skip")
    assert [batch.ids for batch in source.batches(2)] == [("a.jpg",)]
    assert [image.id for image in source.skipped] == ["b.jpg"]


def closed_image() -> Image.Image:
    image = Image.open(io.BytesIO(png_bytes(PIXELS)))
    image.close()
    return image


@pytest.mark.parametrize(
    ("image", "values"),
    [
        (torch.randn(3, 8, 8), ["normalized", "mean=", "std="]),
        (torch.full((3, 2, 2), 200.0), ["200", "255"]),
        (torch.full((3, 2, 2), float("nan")), ["NaN"]),
        (np.full((2, 2, 3), 1e300), ["float64", "inf"]),
        (torch.rand(8, 8, 3), ["[8, 8, 3]", "permute(2, 0, 1)"]),
        (torch.rand(8, 8), ["[8, 8]", "[C, H, W]"]),
        (torch.zeros(3, 4, 4, dtype=torch.int64), ["int64"]),
        (torch.zeros(2, 3, 4, 4), ["[2, 4, 4, 3]"]),
        (CHANNELS_FIRST, ["[3, 5, 7]", "transpose(1, 2, 0)"]),
        (PIXELS[..., 0], ["[5, 7]", "image[..., None]"]),
        (np.zeros((2, 2, 4), np.uint8), ["[2, 2, 4]", "image[..., :3]"]),
        (PIXELS.astype(np.float64), ["float64", "255"]),
        (PIXELS.astype(np.int32), ["int32"]),
        (np.full((2, 2, 3), -100, np.float32), ["-100", "normalized", "mean=", "std="]),
        (np.zeros((0, 2, 3), np.uint8), ["[0, 2, 3]"]),
        (5, ["int", "torch tensor"]),
        (None, ["NoneType"]),
        (b"", ["empty"]),
        (b"no image", ["JPEG"]),
        ("absent.jpg", ["No such file"]),
        (Path("/"), ["Is a directory"]),
        ("a\0b", ["cannot be opened"]),
        (closed_image(), ["damaged"]),
    ],
)
def test_anything_else_is_rejected_in_one_sentence(image: object, values: list[str]) -> None:
    for where, name in ((None, ""), ("the third", "image the third")):
        with pytest.raises(SourceError, match=re.escape(values[0])) as caught:
            read_image(image, where)
        assert all(value in str(caught.value) for value in (*values, name)), str(caught.value)
        assert "\n" not in str(caught.value)


def test_images_without_a_name_are_told_by_their_place_and_recognized_without_imports() -> None:
    for image, name in (("absent.jpg", r"absent\.jpg"), (closed_image(), "in memory")):
        with pytest.raises(UnreadableImageError, match=name):
            read_image(image)
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
