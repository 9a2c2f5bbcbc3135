"""Plain arrays."""

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import ArraySource, open_source

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)


def test_an_array_is_a_source() -> None:
    source = open_source(IMAGES, labels=[0, 1, 1, 0], class_names=["cat", "dog"])
    assert source.ids == ("000000", "000001", "000002", "000003")
    assert source.spec == "array:[4, 5, 6, 3]"
    assert source.class_names == ("cat", "dog")
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1, 1, 0]
    np.testing.assert_array_equal(np.stack([source.read(i) for i in range(4)]), IMAGES)


def test_reading_does_not_hand_out_the_array_itself() -> None:
    images = IMAGES.copy()
    open_source(images).read(0)[:] = 0
    np.testing.assert_array_equal(images, IMAGES)


def test_float_images_are_handed_on_unrounded() -> None:
    images = (IMAGES / 255).astype(np.float32)
    image = open_source(images).read(1)
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, images[1])


def test_gray_images_and_columns_of_labels() -> None:
    source = open_source(IMAGES[..., :1], labels=np.array([[0], [1], [1], [0]], dtype=np.uint8))
    assert source.read(0).shape == (5, 6, 1)
    assert source.labels is not None
    assert source.labels.shape == (4,)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES.transpose(0, 3, 1, 2), r"shape \[4, 3, 5, 6\].*transpose\(0, 2, 3, 1\)"),
        (IMAGES[0], r"\[5, 6, 3\], expected \[N, H, W, 1 or 3\]; for one image pass image\[None\]"),
        (IMAGES[..., 0], r"gray images pass images\[..., None\]"),
        (IMAGES[0, 0, 0], r"shape \[3\], expected \[N, H, W, 1 or 3\]\."),
        (IMAGES[..., :2], r"shape \[4, 5, 6, 2\]"),
        (IMAGES[:0], r"there is no image in .* \(shape \[0, 5, 6, 3\]\); expected at least one"),
        (IMAGES[:, :0], r"shape \[4, 0, 6, 3\] and so no pixels"),
        (IMAGES.astype(np.int32), r"are int32, expected uint8, or float32 in \[0, 1\]; convert"),
        (IMAGES.astype(np.float64), r"are float64"),
        (IMAGES.astype(np.float32), r"run from 0 to 255, expected \[0, 1\]; divide by 255"),
        (np.full((1, 2, 2, 3), np.nan, dtype=np.float32), r"run from nan to nan"),
    ],
)
def test_a_bad_array_is_told(images: Array, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(images)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 1], r"shape \[3\]; \[4\] was expected"),
        ([0.0, 1.0, 1.0, 0.0], r"are float64; whole numbers"),
        (["a", "b", "b", "a"], r"are <U1; whole numbers"),
        ([0, 1, 2, 0], r"label 2 of image 2 .* 0 to 1 \(there are 2 class names\)"),
        ([0, -1, 1, 0], r"label -1 of image 1"),
    ],
)
def test_bad_labels_are_told(labels: list[object], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(IMAGES, labels=np.array(labels), class_names=["cat", "dog"])


def test_bad_names_are_told() -> None:
    with pytest.raises(SourceError, match="class name 'cat' stands 2 times"):
        open_source(IMAGES, labels=[0, 1, 1, 0], class_names=["cat", "cat"])
    with pytest.raises(SourceError, match=r"list of class names .* is empty"):
        open_source(IMAGES, class_names=[])
    with pytest.raises(SourceError, match="id 'a' stands 2 times"):
        ArraySource(IMAGES, ids=["a", "b", "a", "c"])
    with pytest.raises(SourceError, match="has 2 ids for 4 images"):
        ArraySource(IMAGES, ids=["a", "b"])


def test_the_digest_tells_any_difference() -> None:
    digests = [
        open_source(IMAGES).digest,
        open_source(IMAGES[::-1]).digest,
        open_source(IMAGES, labels=[0, 1, 1, 0]).digest,
        open_source(IMAGES, labels=[0, 1, 0, 1]).digest,
        open_source(IMAGES, labels=[0, 1, 1, 0], class_names=["cat", "dog"]).digest,
        open_source(IMAGES.reshape(4, 6, 5, 3)).digest,
        open_source((IMAGES / 255).astype(np.float32)).digest,
        open_source(IMAGES[:3]).digest,
        ArraySource(IMAGES, ids=list("abcd")).digest,
    ]
    assert len(set(digests)) == len(digests)
    assert open_source(IMAGES.copy(order="F")).digest == digests[0]
    assert open_source(IMAGES).digest == digests[0]
