"""Decoding image files of every format, and rejecting files that cannot be decoded."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.sources import UnreadableImageError, image_files, open_source, read_image
from secondlook.sources.image_files import convert_pillow_image, decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
MAX_PIXELS = 1_000_000


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(content: bytes, max_pixels: int = MAX_PIXELS, **limits: int) -> Array:
    return decode_image(content, "x", max_pixels, **limits)


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"big": 1})]
)
def test_lossless_formats_are_decoded_exactly(kind: str, options: dict[str, object]) -> None:
    save = {"compression": "tiff_lzw"} if "big" in options else options
    image = decode(encode(Image.fromarray(PIXELS), kind, **save))
    assert image.dtype == np.uint8
    assert image.flags.writeable
    np.testing.assert_array_equal(image, PIXELS)


def test_jpeg_is_decoded_as_by_pillow() -> None:
    content = encode(Image.fromarray(PIXELS), "JPEG")
    np.testing.assert_array_equal(decode(content), np.array(Image.open(io.BytesIO(content))))


def test_format_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encode(Image.fromarray(PIXELS), "PNG"))
    np.testing.assert_array_equal(read_image(tmp_path / "a.jpg"), PIXELS)


def reference_orientation(image: Array, orientation: int) -> Array:
    """The EXIF table: which side of the stored image is the visual top, and which is the visual left."""
    turned = {
        1: image,
        2: image[:, ::-1],
        3: image[::-1, ::-1],
        4: image[::-1],
        5: image.transpose(1, 0, 2),
        6: np.rot90(image, -1),
        7: image[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(image),
    }
    return turned[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    plain = decode(encode(Image.fromarray(PIXELS), kind))
    turned = decode(encode(Image.fromarray(PIXELS), kind, exif=exif))
    np.testing.assert_array_equal(turned, reference_orientation(plain, orientation))


def test_gray_and_bilevel_become_rgb() -> None:
    gray = PIXELS[..., 0]
    np.testing.assert_array_equal(decode(encode(Image.fromarray(gray), "PNG")), np.repeat(gray[..., None], 3, axis=2))
    bilevel = Image.fromarray(gray).point(lambda value: 255 * (value > 127), "1")
    np.testing.assert_array_equal(decode(encode(bilevel, "PNG"))[..., 2], np.where(gray > 127, 255, 0))


def test_alpha_is_dropped() -> None:
    alpha = np.dstack([PIXELS, np.zeros((5, 7), dtype=np.uint8)])
    np.testing.assert_array_equal(decode(encode(Image.fromarray(alpha), "PNG")), PIXELS)
    gray_alpha = Image.fromarray(alpha).convert("LA")
    expected = np.repeat(np.array(gray_alpha)[..., :1], 3, axis=2)
    np.testing.assert_array_equal(decode(encode(gray_alpha, "PNG")), expected)


@pytest.mark.parametrize("transparency", [None, 0, b"\x00\x80\xff"])
def test_palettes_become_rgb(transparency: int | bytes | None) -> None:
    palette = Image.fromarray(PIXELS).quantize(16)
    options = {} if transparency is None else {"transparency": transparency}
    expected = np.array(palette.convert("RGB"))
    np.testing.assert_array_equal(decode(encode(palette, "PNG", **options)), expected)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb(kind: str) -> None:
    red = Image.new("CMYK", (4, 3), (0, 255, 255, 0))
    image = decode(encode(red, kind))
    assert image.shape == (3, 4, 3)
    assert np.abs(image.astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_pixels_keep_the_upper_byte(kind: str) -> None:
    deep = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1800
    image = decode(encode(Image.fromarray(deep), kind))
    np.testing.assert_array_equal(image, np.repeat((deep // 256).astype(np.uint8)[..., None], 3, axis=2))


def test_first_of_several_images_is_decoded() -> None:
    first, second = Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1].copy())
    content = encode(first, "TIFF", save_all=True, append_images=[second])
    np.testing.assert_array_equal(decode(content), PIXELS)


def make_huge_png(width: int, height: int) -> bytes:
    """A PNG whose header announces a huge image, followed by almost no data."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def test_huge_image_is_rejected_before_decoding() -> None:
    with pytest.raises(UnreadableImageError, match=r"30000 x 30000 .*above the limit of 1000000; pass max_pixels="):
        decode(make_huge_png(30_000, 30_000))


def test_size_limit_is_exact_and_not_that_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pillow's own limit neither warns nor raises, whatever its value; warnings are errors here.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    content = encode(Image.fromarray(PIXELS), "PNG")
    np.testing.assert_array_equal(decode(content, max_pixels=35), PIXELS)
    with pytest.raises(UnreadableImageError, match="above the limit of 34; pass max_pixels=35"):
        decode(content, max_pixels=34)


def make_huge_webp(kind: bytes) -> bytes:
    """A WebP file of about 50 bytes whose header announces 16,384 x 16,384 pixels, or 16,383 x 16,383."""
    start = {
        b"VP8X": struct.pack("<I", 10) + bytes(4) + b"\xff\x3f\x00" * 2,
        b"VP8L": struct.pack("<I", 20) + b"\x2f\xff\xff\xff\x0f",
        b"VP8 ": struct.pack("<I", 20) + b"\x10\x00\x00\x9d\x01\x2a\xff\x3f\xff\x3f",
    }
    content = b"WEBP" + kind + start[kind]
    content += bytes(43 - len(content))
    return b"RIFF" + struct.pack("<I", len(content)) + content


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_huge_webp_is_rejected_before_it_is_opened(kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    content = make_huge_webp(kind)
    assert len(content) == 51
    # Pillow raises DecompressionBombError above twice this limit; other limits must not matter either.
    for limit in (Image.MAX_IMAGE_PIXELS, None, 1):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(UnreadableImageError, match=r"1638[34] x 1638[34] .*limit of 1000000; pass max_pixels="):
            decode(content)
        with pytest.raises(UnreadableImageError):
            decode(content, max_pixels=10**9, max_bytes=10**6)


def test_pillows_own_size_limit_is_an_unreadable_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(UnreadableImageError, match="it is damaged or cut short"):
        decode(encode(Image.fromarray(PIXELS), "WEBP"))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_limit_of_decoded_bytes_is_exact_and_named(kind: str) -> None:
    content = encode(Image.fromarray(PIXELS), kind)
    assert decode(content, max_bytes=105).shape == (5, 7, 3)
    with pytest.raises(
        UnreadableImageError, match=r"7 x 5 .* 105 bytes, above the limit of 104; pass max_bytes=105"
    ) as caught:
        decode(content, max_bytes=104)
    assert (caught.value.limit, caught.value.needed) == ("max_bytes", 105)


@pytest.mark.parametrize("kind", [SyntaxError, struct.error, Image.DecompressionBombWarning, MemoryError])
def test_whatever_a_decoder_raises_is_an_unreadable_image(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(image: Image.Image) -> None:
        raise kind("x")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    with pytest.raises(UnreadableImageError) as caught:
        decode(encode(Image.fromarray(PIXELS), "PNG"))
    known: dict[type[Exception], str] = {MemoryError: "decoding it takes more memory than is available"}
    assert caught.value.reason == known.get(kind, "it is damaged or cut short (x)")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I;16B"])
def test_images_converted_in_strips_are_the_same(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    if mode.startswith("I;16"):
        image = Image.frombytes(mode, (30, 40), noise[..., :2].tobytes())
    else:
        image = Image.fromarray(noise).convert("RGB").convert(mode)
    if mode == "P":
        image.info["transparency"] = bytes(range(256))
    whole = image_files._convert_to_rgb(image, "x")
    monkeypatch.setattr(image_files, "STRIP_PIXELS", 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    np.testing.assert_array_equal(image_files._convert_to_rgb(image, "x"), whole)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"hello, I am a text", "its content is not JPEG, PNG, WebP, BMP or TIFF"),
        (b"GIF89a" + bytes(20), "its content is not JPEG"),
        (b"\xff\xd8\xff" + bytes(20), "it is damaged or cut short"),
        (b"BM", "it is damaged or cut short"),
    ],
)
def test_file_that_is_no_image_is_rejected(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImageError, match="image x ") as caught:
        decode(content)
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_truncated_image_is_rejected(kind: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    content = encode(Image.fromarray(noise), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow also warns about the truncated directory of a TIFF
        with pytest.raises(UnreadableImageError, match="image x "):
            decode(content[: len(content) // 2])


def test_float_pixels_are_rejected() -> None:
    content = encode(Image.fromarray(np.ones((3, 3), dtype=np.float32)), "TIFF")
    with pytest.raises(UnreadableImageError, match="32-bit"):
        decode(content)


def test_file_that_cannot_be_opened_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImageError, match=r"none\.png .*No such file"):
        read_image(tmp_path / "none.png")
    with pytest.raises(UnreadableImageError, match=r"folder .*Is a directory"):
        read_image(tmp_path, "folder")


@given(
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "BMP", "TIFF"]),
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
    assert image.ndim == 3
    assert image.shape[2] == 3


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
def test_number_of_scans_of_a_jpeg_file_is_limited(size: tuple[int, int]) -> None:
    """500 scans of an image of 100 million pixels took minutes to decode."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    progressive = encode(noise, "JPEG", progressive=True, exif=b"Exif\0\0" + 60 * b"\xff\xda\xff\xd9")
    allowed = image_files.MAX_SCANS - count_scans(progressive)
    np.testing.assert_array_equal(decode(progressive), np.asarray(Image.open(io.BytesIO(progressive))))
    assert decode(add_scans(progressive, allowed)).shape == (*size, 3)
    with pytest.raises(UnreadableImageError, match=f"more than {image_files.MAX_SCANS} scans"):
        decode(add_scans(progressive, allowed + 1))
    with pytest.raises(UnreadableImageError, match=f"more than {image_files.MAX_SCANS} scans"):
        decode(add_scans(encode(noise, "JPEG"), 100))


def test_file_of_too_many_scans_is_skipped(tmp_path: Path) -> None:
    content = encode(Image.fromarray(PIXELS), "JPEG", progressive=True)
    (tmp_path / "a.jpg").write_bytes(content)
    (tmp_path / "b.jpg").write_bytes(add_scans(content, 1000))
    source = open_source(f"folder:{tmp_path}", on_error="skip")
    assert [batch.ids for batch in source.batches(2)] == [("a.jpg",)]
    assert [image.id for image in source.skipped] == ["b.jpg"]


def test_data_behind_a_jpeg_image_are_not_its_scans() -> None:
    """Phones append a video, in which any bytes may occur."""
    content = encode(Image.fromarray(PIXELS), "JPEG", progressive=True)
    np.testing.assert_array_equal(decode(content + 1000 * b"\xff\xda\0\2"), decode(content))


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (500, 375), (3000, 2500)], ids=str)
def test_pixels_are_those_that_numpy_reads(size: tuple[int, int]) -> None:
    """Large images are in several parts of memory, which are read in strips."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for each in (image, image.resize((size[0] + 1, size[1] + 2)), image.convert("RGBA"), image.convert("L")):
        expected = np.asarray(each.convert("RGB"))
        np.testing.assert_array_equal(convert_pillow_image(each, "it", 10**8), expected)
