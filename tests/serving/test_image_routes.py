"""Images of the review queue over HTTP: pixel range, 16-bit windows, and the part that the classifier sees."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serving.running import Digits, Server, make_bomb, make_cropping_policy, replace_images, send, serve

DEEP = np.random.default_rng(0).integers(100, 4000, (12, 20), dtype=np.uint16)
"""12-bit pixels in 16 bits, which are almost black in 8 bits."""


def encode(pixels: Any, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


def decode(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.fixture(scope="module")
def cropping(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that audits every image, with a classifier that sees the center after a resize."""
    folder = tmp_path_factory.mktemp("cropping")
    make_cropping_policy(digits, folder)
    with serve(folder / "policy.json", folder / "service", audit=1.0) as running:
        yield running


def submit(server: Server, content: bytes) -> int:
    """Send an image to be reviewed; returns its number."""
    url, service = server
    reply = send(f"{url}/v1/decide", content, Content_Type="application/octet-stream")
    assert reply.status == 200, reply.body
    (number,) = (
        one.number for block in service.reviews.iter_items(["waiting"]) for one in block if one.id == reply.json["id"]
    )
    return int(number)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_images_are_spread_over_a_window(cropping: Server, kind: str) -> None:
    address = f"{cropping[0]}/v1/review/{submit(cropping, encode(DEEP, kind))}"
    described = send(f"{address}/display").json
    low, high = int(DEEP.min()), int(DEEP.max())
    assert {name: described[name] for name in ("width", "height", "bits", "low", "high")} == {
        "width": 20, "height": 12, "bits": 16, "low": low, "high": high,
    }  # fmt: skip
    for query, start, end in (("", low, high), ("?low=1000&high=2000", 1000, 2000), ("?high=500", low, 500)):
        shown = decode(send(f"{address}/image{query}").body)
        expected = [[round(255 * min(max((int(one) - start) / (end - start), 0), 1)) for one in row] for row in DEEP]
        assert shown.dtype == np.uint8
        np.testing.assert_array_equal(shown, expected)
    assert set(np.unique(decode(send(f"{address}/image?low=2000&high=1000").body))) == {0, 255}
    for value in (-1, 65536, "x"):
        assert send(f"{address}/image?low={value}").status == 422


def test_8_bit_images_are_sent_unchanged_unless_windowed(cropping: Server) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (30, 20), dtype=np.uint8)
    content = encode(pixels, "PNG")
    address = f"{cropping[0]}/v1/review/{submit(cropping, content)}"
    assert send(f"{address}/image").body == content
    described = send(f"{address}/display").json
    assert (described["bits"], described["low"], described["high"]) == (8, pixels.min(), pixels.max())
    shown = decode(send(f"{address}/image?low=100&high=151").body)
    np.testing.assert_array_equal(shown.min(axis=2), shown.max(axis=2))
    np.testing.assert_array_equal(shown[:, :, 0], np.clip(pixels.astype(int) * 5 - 500, 0, 255))


@pytest.mark.parametrize(
    ("size", "crop"),
    [((20, 20), [0.1, 0.1, 0.8, 0.8]), ((20, 40), [0.3, 0.1, 0.4, 0.8]), ((60, 30), [0.1, 0.3, 0.8, 0.4])],
)
def test_part_that_the_classifier_sees(cropping: Server, size: tuple[int, int], crop: list[float]) -> None:
    number = submit(cropping, encode(np.full(size, 7, dtype=np.uint8), "PNG"))
    assert send(f"{cropping[0]}/v1/review/{number}/display").json["crop"] == pytest.approx(crop)


def test_whole_images_and_bombs(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", audit=1.0) as server:
        number = submit(server, digits.files[0])
        assert send(f"{server[0]}/v1/review/{number}/display").json["crop"] is None
        replace_images(server[1], make_bomb())
        for path in ("display", "image?low=3"):
            reply = send(f"{server[0]}/v1/review/{number}/{path}")
            assert reply.status >= 400
        assert send(f"{server[0]}/v1/review/999/display").code == "no_image"
