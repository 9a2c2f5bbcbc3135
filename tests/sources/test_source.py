"""The behavior that all sources share (batches, skipping, digests), on a user's own source and on arrays."""

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import ArraySource, Source, UnreadableImageError, open_source
from secondlook.sources.reading_threads import SharedCache
from tests.sources.conftest import labels_of, random_images, read_all

IMAGES = random_images(4, 5, 6)
every_count = pytest.mark.parametrize("threads", [1, 3])


class Stripes(Source):
    """A user's own source: image i is filled with i; images in `broken` cannot be read."""

    def __init__(self, count: int, *broken: int, threads: int = 1, **error: Any) -> None:
        super().__init__("stripes", [f"s{number}" for number in range(count)])
        self.broken, self.error, self.threads = broken, {"reason": "it is torn"} | error, threads

    def read(self, index: int) -> Array:
        if index in self.broken:
            raise UnreadableImageError(self.ids[index], **self.error)
        return np.full((index % 3 + 1, 2, 3), index, dtype=np.uint8)


@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    threads=st.integers(1, 3),
    broken=st.frozensets(st.integers(0, 29)),
    ends=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
@settings(deadline=None, max_examples=60)
def test_batches_are_the_readable_images_in_order(
    count: int, batch_size: int, threads: int, broken: frozenset[int], ends: tuple[int, int]
) -> None:
    source = open_source(Stripes(count, *broken, threads=threads), on_error="skip")
    start, stop = sorted(min(end, count) for end in ends)
    batches = list(source.batches(batch_size, start, stop))
    readable = [index for index in range(start, stop) if index not in broken]
    assert [index for batch in batches for index in batch.indices.tolist()] == readable
    assert all(0 < len(batch.images) == len(batch.ids) == len(batch.indices) <= batch_size for batch in batches)
    assert [int(image[0, 0, 0]) for batch in batches for image in batch.images] == readable
    assert [skipped.id for skipped in source.skipped] == [f"s{i}" for i in range(start, stop) if i in broken]
    converted = source.convert_images(lambda id_, image: np.array([int(id_[1:]), image[0, 0, 0]]), range(start, stop))
    assert [(index, *pair.tolist()) for index, pair in converted] == [(index, index, index) for index in readable]


class Photos(Source):
    """Images of known sizes; counts the bytes that are held, by the source and by its caller."""

    max_bytes = 120

    def __init__(self, sizes: list[int], threads: int) -> None:
        super().__init__("photos", [f"p{number}" for number in range(len(sizes))])
        self.sizes, self.threads = sizes, threads
        self.held = self.peak = 0
        self.lock = threading.Lock()

    def read(self, index: int) -> Array:
        image = np.full((self.sizes[index], 1, 1), index % 256, dtype=np.uint8)
        self._count(image.nbytes)
        weakref.finalize(image, self._count, -image.nbytes)
        return image

    def read_within(self, index: int, max_bytes: int) -> Array:
        if self.sizes[index] > max_bytes:
            raise UnreadableImageError(self.ids[index], "large", limit="max_bytes", needed=self.sizes[index])
        return self.read(index)

    def _count(self, n_bytes: int) -> None:
        with self.lock:
            self.held += n_bytes
            self.peak = max(self.peak, self.held)


@given(
    sizes=st.lists(st.integers(1, 150), min_size=1, max_size=40),
    batch_size=st.integers(1, 20),
    threads=st.integers(1, 4),
)
@settings(deadline=None, max_examples=60)
def test_images_held_at_once_stay_below_the_limit(sizes: list[int], batch_size: int, threads: int) -> None:
    source = Photos([min(size, 120) for size in sizes], threads)
    indices: list[int] = []
    for batch in source.batches(batch_size):
        assert 0 < len(batch.images) <= batch_size
        assert [image[0, 0, 0] for image in batch.images] == batch.indices.tolist()
        indices += batch.indices.tolist()
        del batch
    assert indices == list(range(len(sizes)))
    # A thread may hold the images of its last task for a moment after the task is done.
    assert source.peak <= 120 * threads

    def convert(id_: str, image: Array) -> Array:
        time.sleep(0.0005)  # lets the other threads read
        return np.array([len(image)])

    source = Photos(sizes, threads)
    results = list(source.convert_images(convert, range(len(sizes))))
    assert [(index, int(size[0])) for index, size in results] == list(enumerate(sizes))
    assert source.peak <= max(120, *sizes), "an image above the limit is held alone"


class SlowStripes(Stripes):
    """Counts the images that are read."""

    n_read = 0

    def read(self, index: int) -> Array:
        self.n_read += 1
        time.sleep(0.01)
        return super().read(index)


@every_count
def test_reading_ends_with_the_first_error_or_when_nobody_needs_more_images(threads: int) -> None:
    def convert(id_: str, image: Array) -> Array:
        if id_ in ("s4", "s5"):
            raise ZeroDivisionError(f"at {id_}")
        return image

    failed, left = (SlowStripes(4000, threads=threads) for _ in range(2))
    with pytest.raises(ZeroDivisionError, match="at s4"):
        list(failed.convert_images(convert, range(4000)))
    results = left.convert_images(lambda id_, image: image, range(4000))
    next(results)
    results.close()
    assert max(failed.n_read, left.n_read) < 4000


def test_images_of_arrays_are_read_a_few_at_a_time_if_large_within_a_valid_range() -> None:
    source = open_source(IMAGES)
    source.max_bytes = 200  # two images of 90 bytes
    assert [batch.indices.tolist() for batch in source.batches(4)] == [[0, 1], [2, 3]]
    source.max_bytes = 80
    assert [batch.indices.tolist() for batch in source.batches(4)] == [[0], [1], [2], [3]]
    assert [len(batch.images) for batch in open_source(source, limit=2).batches(4)] == [1, 1]
    for arguments, value in {(0,): "batch_size=0", (2, 5): "start=5", (2, -1): "start=-1", (2, 0, 9): "stop=9"}.items():
        with pytest.raises(SourceError, match=value):
            source.batches(*arguments)


@every_count
def test_first_unreadable_image_is_reported_unless_a_copy_skips_it(threads: int) -> None:
    source = Stripes(20, 4, 5, 15, threads=threads)
    lenient = source.with_on_error("skip")
    assert [len(batch.images) for batch in lenient.batches(20)] == [17]
    assert [skipped.id for skipped in lenient.skipped] == ["s4", "s5", "s15"]
    assert {skipped.reason for skipped in lenient.skipped} == {"it is torn"}
    with pytest.raises(SourceError, match=r"image s4 .*it is torn.*on_error='skip'"):
        list(source.batches(20))
    assert (source.on_error, source.skipped) == ("fail", [])
    assert repr(source) == "<Stripes 'stripes': 20 images>"


def test_digest_of_a_users_source_depends_on_its_pixels_but_not_on_why_they_cannot_be_read() -> None:
    sources = [Stripes(3), Stripes(4), Stripes(3, 1), Stripes(3, 2)]
    assert len({source.digest for source in sources}) == 4
    assert Stripes(3).digest == sources[0].digest
    assert Stripes(3, 1, reason="the dog ate it", limit="max_bytes", needed=7).digest == sources[2].digest


def test_digests_differ_for_any_difference() -> None:
    labeled = ArraySource(IMAGES, labels=[0, 1, 1, 0], class_names=["cat", "dog"])
    before = labeled.without_labels().digest
    digests = [
        open_source(IMAGES).digest,
        labeled.digest,
        open_source(IMAGES[::-1]).digest,
        open_source(IMAGES, labels=[0, 1, 1, 0]).digest,
        open_source(IMAGES, labels=[0, 1, 0, 1]).digest,
        open_source(IMAGES.reshape(4, 6, 5, 3)).digest,
        open_source((IMAGES / 255).astype(np.float32)).digest,
        open_source(IMAGES[:3]).digest,
        ArraySource(IMAGES, ids=list("abcd")).digest,
    ]
    assert len(set(digests)) == len(digests)
    for same in (IMAGES, IMAGES.copy(order="F")):
        assert open_source(same).digest == digests[0] == before
    assert labeled.without_labels().digest == before, "although the digest with labels is known"
    assert (labeled.without_labels().labels, labeled.class_names) == (None, ("cat", "dog"))


def test_images_are_hashed_one_by_one_or_together() -> None:
    """Every way to hash images gives the digests that are stored, in one block of images as in several."""

    class Unblocked(ArraySource):
        def read(self, index: int) -> Array:
            return super().read(index)

    images = random_images(5000, 2, 1)
    for positions in (np.arange(5000), np.array([2, 0, 3])):
        assert open_source(images).select(positions).digest == Unblocked(images).select(positions).digest
    assert open_source(images).digest == Unblocked(images).digest


def test_own_hash_of_a_users_source_is_used_but_finds_no_duplicates() -> None:
    class Named(ArraySource):
        def hash_content(self, index: int) -> bytes:
            return self.ids[index].encode()

    class Large(Stripes):
        def hash_content(self, index: int) -> bytes:
            return b"same size and time"  # hashes of very large sources cover nothing else

    for source in (Named(IMAGES), Named(IMAGES).select(np.arange(4))):
        assert source.digest == Named(IMAGES[::-1]).digest != open_source(IMAGES).digest
    assert Stripes(9, 2, 5).find_duplicates() == [], "both are unreadable for the same reason"
    assert Large(9).find_duplicates() == open_source(IMAGES).find_duplicates() == []
    repeated = open_source(IMAGES[[0, 1, 0, 2, 1, 0]])
    for threads in (1, 3):
        repeated.threads = threads
        for each in (repeated, repeated.without_labels()):
            assert each.find_duplicates() == [2, 4, 5], "later images with the same pixels"


def test_digests_are_stable_between_versions() -> None:
    # Stored predictions are found by these digests.
    images = np.arange(2 * 3 * 2 * 3, dtype=np.uint8).reshape(2, 3, 2, 3)
    labeled = open_source(images, labels=[1, 0], class_names=["cat", "dog"])
    assert labeled.digest == "3f8ba7686033d68fe8446d009e6eb3f06f3c9f383795c23fba62c882360603d0"
    assert open_source(images).digest == "109ca446ee5aeda36a0a079ecf1362d40b8e98e4b65cfb4dcf07c093cbfb81fd"
    assert Stripes(3, 1).digest == "e2fdbeaa97ef7bf51b96b290b085e77fa9b20ccd46adf9111ef1ad7f8fdb3174"


@pytest.mark.parametrize("images", [IMAGES, (IMAGES / 255).astype(np.float32), IMAGES[..., :1]])
def test_array_is_a_source_and_floats_are_not_rounded(images: Array) -> None:
    for labels in ([0, 1, 1, 0], np.array([[0], [1], [1], [0]], dtype=np.uint8)):
        source = open_source(images, labels=labels, class_names=["cat", "dog"])
        assert (source.spec, source.class_names) == (f"array:{list(images.shape)}", ("cat", "dog"))
        assert source.ids == ("000000", "000001", "000002", "000003")
        assert labels_of(source) == [0, 1, 1, 0]
        assert read_all(source).dtype == images.dtype
        np.testing.assert_array_equal(read_all(source), images)


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4"])
def test_other_floats_are_read_as_float32(dtype: str, tmp_path: Path) -> None:
    images = (IMAGES / 255).astype(dtype)
    np.savez(tmp_path / "a.npz", images=images)
    expected = open_source(images.astype(np.float32))
    for data in (images, list(images), f"npz:{tmp_path / 'a.npz'}"):
        source = open_source(data)
        np.testing.assert_array_equal(source.stack(), expected.stack(), strict=True)
        assert source.digest == expected.digest


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"images": IMAGES.transpose(0, 3, 1, 2)}, ["[4, 3, 5, 6]", "transpose(0, 2, 3, 1)"]),
        ({"images": IMAGES[..., 0]}, ["[4, 5, 6]", "images[..., None]"]),
        ({"images": IMAGES[0, 0, 0]}, ["[3]"]),
        ({"images": IMAGES[..., :2]}, ["[4, 5, 6, 2]"]),
        ({"images": IMAGES[:0]}, ["[0, 5, 6, 3]"]),
        ({"images": IMAGES[:, :0]}, ["[4, 0, 6, 3]"]),
        ({"images": IMAGES.astype(np.int32)}, ["int32"]),
        ({"images": IMAGES.astype(np.float64)}, ["float64", "255"]),
        ({"images": IMAGES.astype(np.float32)}, ["255"]),
        ({"images": IMAGES / [[[[255]]], [[[255]]], [[[np.nan]]], [[[255]]]]}, ["NaN", "image 2"]),
        ({"labels": [0, 1, 1]}, ["[3]"]),
        ({"labels": np.array([0.0, 1.0, 1.0, 0.0])}, ["float64"]),
        ({"labels": np.array(["cat", "dog", "dgo", "cat"])}, ["'dgo' of image 2"]),
        ({"labels": [0, 1, 2, 0]}, ["label 2 of image 2"]),
        ({"labels": [0, -1, 1, 0]}, ["label -1 of image 1"]),
        ({"labels": [0, 1, 1, 0], "class_names": ["cat", "cat"]}, ["duplicate class name 'cat'"]),
        ({"class_names": []}, ["empty"]),
        ({"ids": ["a", "b", "a", "c"]}, ["duplicate id 'a'"]),
        ({"ids": ["a", "b"]}, ["2 ids for the 4 images"]),
    ],
)
def test_invalid_images_labels_class_names_and_ids_are_rejected(options: dict[str, Any], values: list[str]) -> None:
    options = {"class_names": ["cat", "dog"]} | options
    doors: list[Callable[..., Any]] = [ArraySource] if "ids" in options else [open_source, ArraySource]
    images = options.pop("images", IMAGES)
    for open_with in doors:
        with pytest.raises(SourceError) as caught:
            open_with(images, **options)
        assert all(value in str(caught.value) for value in values), str(caught.value)


@given(keys=st.lists(st.integers(0, 9), max_size=60), max_weight=st.integers(0, 30), min_items=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_items_of_the_shared_cache_used_last_are_kept(keys: list[int], max_weight: int, min_items: int) -> None:
    cache = SharedCache(max_weight, len, min_items)
    kept: list[int] = []
    for key in keys:
        read = Mock(return_value=bytes(key))
        assert cache.get(key, read) == bytes(key)
        assert read.called == (key not in kept)
        kept = [other for other in kept if other != key] + [key]
        while sum(kept) > max_weight and len(kept) > min_items:
            kept.pop(0)


def test_what_cannot_be_read_is_read_again() -> None:
    cache, read = SharedCache(100, len), Mock(side_effect=[OSError("broken"), OSError("broken"), b"item"])
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            cache.get("key", read)
    assert cache.get("key", read) == b"item"
