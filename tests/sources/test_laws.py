"""Laws that hold for every registered scheme."""

import pickle
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from secondlook.sources import SOURCES, open_source

SCHEMES = sorted(name for name, scheme in SOURCES.items() if scheme.open.__module__.startswith("secondlook."))
every_kind = pytest.mark.parametrize(
    "scheme", [*SCHEMES, "folder in a bucket", "parquet in a bucket", "webdataset in a bucket"]
)
COMMON_OPTIONS = set(signature(open_source).parameters) - {"data", "labels", "class_names"}
IN_MEMORY = ("cifar10", "cifar100", "svhn", "stl10")
"""Schemes whose images are loaded when they are opened, and have no location from then on."""


@every_kind
def test_batches_contain_every_image_with_its_label(scheme: str, samples: Callable[[str], str]) -> None:
    source = open_source(samples(scheme))
    assert len(source) == 7 == len(source.ids) == len(set(source.ids))
    batches = list(source.batches(3))
    assert [len(batch.images) for batch in batches] == [3, 3, 1]
    assert np.concatenate([batch.indices for batch in batches]).tolist() == list(range(7))
    assert batches[0].indices.dtype == np.int64
    assert tuple(id_ for batch in batches for id_ in batch.ids) == tuple(source.ids)
    for index, image in enumerate(image for batch in batches for image in batch.images):
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
        assert image.flags.writeable
        np.testing.assert_array_equal(image, source.read(index))
    (second, third) = source.batches(2, start=2, stop=5)
    assert [second.indices.tolist(), third.indices.tolist()] == [[2, 3], [4]]
    np.testing.assert_array_equal(third.images[0], source.read(4))
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.shape == (7,)
    if source.class_names is not None:
        assert 0 <= source.labels.min() <= source.labels.max() < len(source.class_names)


@every_kind
def test_spec_opens_the_same_data_and_subsets_again(scheme: str, samples: Callable[[str], str]) -> None:
    text = samples(scheme)
    source = open_source(text)
    assert open_source(source.spec).digest == source.digest
    subset = open_source(text, subset="evaluation", count=3, seed=5, limit=2)
    assert len(subset) == 2
    assert open_source(subset.spec).digest == subset.digest != source.digest
    subsets = [open_source(text, subset="experimental", fraction=0.4)]
    subsets.append(open_source(text, subset="evaluation", fraction=0.4))
    assert [len(subset) for subset in subsets] == [3, 4]
    assert sorted(id_ for subset in subsets for id_ in subset.ids) == sorted(open_source(text).ids)


@every_kind
def test_extracted_images_are_the_same(scheme: str, samples: Callable[[str], str]) -> None:
    source = open_source(samples(scheme))
    subset = open_source(source.with_on_error("skip"), subset="evaluation", count=2, seed=1)
    for whole, positions in ((source, range(2, 5)), (source, np.array([6, 0, 3])), (subset, range(1, 4))):
        part = whole.extract(positions)
        if scheme in IN_MEMORY:
            assert part is None
            continue
        received = pickle.loads(pickle.dumps(part))
        assert received.ids == tuple(whole.ids[position] for position in positions)
        assert received.labels is received.class_names is None
        assert received.on_error == whole.on_error
        for index, position in enumerate(positions):
            np.testing.assert_array_equal(received.read(index), whole.read(int(position)))
        again = received.extract(range(1, 2))
        np.testing.assert_array_equal(again.read(0), whole.read(int(positions[1])))


@every_kind
def test_extracted_images_are_as_small_as_they_are_few(scheme: str, samples: Callable[[str], str]) -> None:
    source = open_source(samples(scheme))
    large = source.extract(np.repeat(np.arange(7), 100))
    if large is None:
        return
    assert len(large) == 700
    few, of_many = (len(pickle.dumps(whole.extract(range(3)))) for whole in (source, large))
    assert of_many < few + 200
    assert of_many < len(pickle.dumps(large)) / 5


def check_record(scheme: str, page: str) -> None:
    """Check that the documentation lists a scheme and its options, which have names of their own."""
    record, text = SOURCES[scheme], (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
    assert record.form.startswith(f"{scheme}:")
    assert record.summary
    assert not set(record.options) & COMMON_OPTIONS
    assert f"`{record.form}`" in text
    assert all(f"{option}=" in text for option in record.options)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_record_is_complete_and_documented(scheme: str) -> None:
    check_record(scheme, "reference/sources.md")
    text = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "sources.md").read_text(encoding="utf-8")
    assert all(f"{option}=" in text for option in COMMON_OPTIONS)
