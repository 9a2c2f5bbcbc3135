"""What every source does by itself: batches, skipping, digests; shown on a user's own source."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import ArraySource, Skipped, Source, UnreadableImageError, open_source


class Stripes(Source):
    """A user's own source: image i is filled with i; some cannot be read."""

    def __init__(self, count: int, broken: frozenset[int] = frozenset()) -> None:
        super().__init__("stripes", [f"s{number}" for number in range(count)])
        self.broken = broken

    def read(self, index: int) -> Array:
        if index in self.broken:
            raise UnreadableImageError(self.ids[index], "it is torn")
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
    source = open_source(Stripes(count, broken), on_error="skip")
    source.threads = threads
    start, stop = sorted(min(end, count) for end in ends)
    batches = list(source.batches(batch_size, start, stop))
    readable = [index for index in range(start, stop) if index not in broken]
    assert [index for batch in batches for index in batch.indices.tolist()] == readable
    assert all(0 < len(batch.images) == len(batch.ids) == len(batch.indices) <= batch_size for batch in batches)
    assert [int(image[0, 0, 0]) for batch in batches for image in batch.images] == readable
    assert [skipped.id for skipped in source.skipped] == [f"s{i}" for i in range(start, stop) if i in broken]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_unreadable_image_is_the_one_told(threads: int) -> None:
    source = Stripes(20, frozenset({4, 5, 15}))
    source.threads = threads
    with pytest.raises(
        SourceError, match="image s4 cannot be read: it is torn; repair or remove it, or pass on_error="
    ):
        list(source.batches(20))
    assert source.skipped == []


def test_an_open_source_is_itself_unless_asked_for_something_else() -> None:
    source = Stripes(3, frozenset({1}))
    assert open_source(source) is source
    assert open_source(source, on_error="fail") is source
    lenient = open_source(source, on_error="skip")
    assert [len(batch.images) for batch in lenient.batches(3)] == [2]
    assert lenient.skipped == [Skipped("s1", "it is torn")]
    assert source.on_error == "fail"
    assert source.skipped == []


def test_a_users_source_has_a_digest_of_its_pixels() -> None:
    assert Stripes(3).digest == Stripes(3).digest
    assert len({Stripes(3).digest, Stripes(4).digest, Stripes(3, frozenset({1})).digest}) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "batch_size=0"), ((2, 4), "start=4, stop=3 is no range"), ((2, -1), "start=-1"), ((2, 0, 9), "stop=9")],
)
def test_bad_ranges_are_told_at_once(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Stripes(3).batches(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0]}, "labels and class_names go with an array; 'stripes' brings its own"),
        ({"max_pixels": 5}, "max_pixels is for files"),
        ({"on_error": "skipp"}, r"on_error='skipp' .* Did you mean 'skip'\?"),
    ],
)
def test_arguments_that_do_not_fit_an_open_source(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(Stripes(3), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("folder:x", {"labels": [0]}, "'folder:x' brings its own"),
        ("folder:x?limit=3", {"limit": 3}, "limit= is given as an argument and in 'folder:x.limit=3'; say it once"),
        ("folder:x?max_pixels=0", {}, "max_pixels='0' .* whole number from 1 on"),
        ("folder:x?on_error=ignore", {}, "on_error='ignore' of .* is none of fail, skip"),
    ],
)
def test_arguments_that_do_not_fit_a_text(text: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(text, **arguments)  # type: ignore[arg-type]


def test_what_is_no_source_is_told() -> None:
    with pytest.raises(SourceError, match=r"a source is a text .*; got PosixPath"):
        open_source(Path("val"))  # type: ignore[arg-type]


def test_it_prints_well() -> None:
    assert repr(Stripes(3)) == "<Stripes 'stripes': 3 images>"


def test_images_alone_are_the_same_data_whenever_they_are_asked_for() -> None:
    labeled = ArraySource(np.zeros((3, 4, 4, 3), dtype=np.uint8), labels=[0, 1, 0], class_names=["a", "b"])
    before = labeled.without_labels().digest
    assert labeled.digest != before
    assert labeled.without_labels().digest == before
    assert labeled.without_labels().labels is None
    assert labeled.class_names == ("a", "b")
