"""The corruptions of the monitoring benchmark: seeded, mild to severe, for any size."""

import cv2
import numpy as np
import pytest

from corruptions import CORRUPTIONS, STRENGTHS
from secondlook.arrays import Array
from secondlook.monitoring.estimates import list_shifts


def make_images(height: int, width: int, count: int = 4) -> Array:
    """Return smooth random images. uint8 [N, H, W, 3]"""
    rng = np.random.default_rng(0)
    smooth = [cv2.GaussianBlur(rng.normal(size=(height, width, 3)), (0, 0), 0.8) for _ in range(count)]
    return np.clip(128 + 200 * np.stack(smooth), 0, 255).astype(np.uint8)


def test_there_are_fifteen_in_four_families() -> None:
    assert len(CORRUPTIONS) == 15
    assert {one.family for one in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_what_resembles_a_corruption_is_a_kind_of_shift(name: str) -> None:
    assert CORRUPTIONS[name].resembles
    assert set(CORRUPTIONS[name].resembles) <= set(list_shifts(32))


@pytest.mark.parametrize("size", [(32, 32), (64, 48)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_seeded_and_mild_at_first(name: str, size: tuple[int, int]) -> None:
    images, changes = make_images(*size), []
    before = images.copy()
    for strength in STRENGTHS:
        corrupted = CORRUPTIONS[name](images, strength, np.random.default_rng(1))
        again = CORRUPTIONS[name](images, strength, np.random.default_rng(1))
        assert corrupted.shape == images.shape
        assert corrupted.dtype == np.uint8
        assert np.array_equal(corrupted, again)
        changes.append(np.abs(corrupted.astype(float) - images).mean())
    assert np.array_equal(images, before), "the input is unchanged"
    assert 0 < changes[0] < changes[2]
