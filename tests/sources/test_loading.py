"""`open_source`: specs, arguments, the registry of schemes, and subsets, indices and limits."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import SourceError
from secondlook.sources import SOURCES, ArraySource, Source, open_source, source_scheme
from tests.sources.conftest import labels_of

IMAGES = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)
IDS = [f"photo-{number}" for number in range(20)]


def source_of(ids: list[str]) -> Source:
    return ArraySource(IMAGES[: len(ids)], spec="my images", ids=ids)


@pytest.mark.parametrize("name", ["wh?at", "wh?at=1", "x=1?y", "50%", "a?b&c"])
def test_spec_of_a_subset_opens_it_again_whatever_the_folder_name(name: str, picture_folder: Path) -> None:
    location = picture_folder.rename(picture_folder.with_name(name))
    whole = open_source(f"folder:{location}?on_error=skip")
    for subset in (
        open_source(f"folder:{location}?limit=2"),
        open_source(f"folder:{location}?on_error=skip", limit=2),
        open_source(whole, limit=2),
    ):
        again = open_source(subset.spec)
        assert (again.ids, again.spec) == (subset.ids, subset.spec)
        assert len(subset) == 2
    if name == "wh?at":  # which is not an option
        for data in (f"folder:{location}", open_source(f"folder:{location}")):
            assert open_source(data, limit=2).spec == f"folder:{location}?limit=2"


@pytest.mark.parametrize(
    ("data", "arguments", "value"),
    [
        ("folder:", {}, "'folder:'"),
        ("array:[4, 5, 6, 3]", {}, r"'array:\[4, 5, 6, 3\]'"),
        ("folder:val?limit=3&limit=4", {}, "duplicate option 'limit'"),
        ("folder:val?limit=3&x", {}, "'x'"),
        ("folder:val?limit=", {}, "'limit='"),
        ("foldr:val", {}, r"'foldr'.*'folder'\?"),
        ("folder:val?limt=3", {}, r"'limt'.*'limit'\?"),
        ("npz:x?subset=evalation", {}, r"subset='evalation'.*'evaluation'\?"),
        ("test.npz", {}, "'npz:test.npz'"),
        ("list.csv", {}, "'csv:list.csv'"),
        ("list.tsv", {}, "'csv:list.tsv'"),
        ("data.parquet", {}, "'parquet:data.parquet'"),
        ("nothing", {}, "'folder:val/'"),
        ("/usr", {}, "'folder:/usr'"),
        ("a" * 5000, {}, "no scheme"),
        ("a\0b", {}, "no scheme"),
        ("~nobody/val", {}, "no scheme"),
        (0.5, {}, "type float"),
        (Path("val"), {}, "'val' is not an image file"),
        ("folder:x", {"labels": [0]}, "'folder:x'"),
        ("folder:x?limit=3", {"limit": 3}, "limit="),
        ("folder:x?max_pixels=0", {}, "max_pixels='0'"),
        ("folder:x?max_bytes=1G", {}, "max_bytes='1G'"),
        ("folder:x?on_error=ignore", {}, "on_error='ignore'"),
        (source_of(IDS), {"labels": [0]}, "'my images'"),
        (source_of(IDS), {"max_pixels": 5}, "max_pixels"),
        (source_of(IDS), {"max_bytes": 5}, "max_bytes"),
        (source_of(IDS), {"on_error": "skipp"}, "'skipp'.*'skip'"),
    ],
)
def test_invalid_text_or_argument_is_rejected(data: object, arguments: dict[str, Any], value: str) -> None:
    with pytest.raises(SourceError, match=value):
        open_source(data, **arguments)


def test_unknown_scheme_lists_the_known_ones_which_are_registered_once_only() -> None:
    with pytest.raises(SourceError) as caught:
        open_source("nope:val")
    assert all(scheme.form in str(caught.value) for scheme in SOURCES.values())
    with pytest.raises(SourceError, match="'npz'"):
        source_scheme("npz", form="npz:", summary="again")(SOURCES["npz"].open)


def test_open_source_is_returned_as_it_is_and_a_subset_of_a_subset_is_rejected() -> None:
    source = source_of(IDS)
    assert open_source(source) is source
    assert open_source(source, on_error="fail") is source
    assert open_source(source, on_error="skip").on_error == "skip"
    assert len(open_source(source, limit=100)) == 20
    subset = open_source(source, limit=2)
    assert subset.spec == "my images?limit=2"
    assert open_source(IMAGES, limit=10).spec == "array:[20, 1, 1, 1]?limit=10"
    with pytest.raises(SourceError, match=re.escape(repr(subset.spec))):
        open_source(subset, limit=5)


@given(ids=st.permutations(IDS), count=st.integers(1, 19), seed=st.integers(0, 5), removed=st.sampled_from(IDS))
@settings(deadline=None, max_examples=40)
def test_subsets_depend_on_ids_alone(ids: list[str], count: int, seed: int, removed: str) -> None:
    whole = source_of(ids)
    experimental = open_source(whole, subset="experimental", count=count, seed=seed)
    evaluation = open_source(whole, subset="evaluation", count=count, seed=seed)
    by_hash = sorted(IDS, key=lambda id_: hashlib.sha256(f"{seed}:{id_}".encode()).hexdigest())
    assert set(experimental.ids) == set(by_hash[:count])  # another one for each seed
    assert set(experimental.ids) | set(evaluation.ids) == set(IDS)
    assert len(experimental) + len(evaluation) == 20
    assert list(experimental.ids) == [id_ for id_ in ids if id_ in set(experimental.ids)]
    assert [int(experimental.read(i)[0, 0, 0]) for i in range(count)] == [ids.index(id_) for id_ in experimental.ids]
    if count < 19:
        rest = source_of([id_ for id_ in ids if id_ != removed])
        after = set(open_source(rest, subset="experimental", count=count, seed=seed).ids)
        assert len(after - set(experimental.ids)) <= 1, "removing an image moves at most one other"


@given(ids=st.permutations(IDS), limit=st.integers(1, 19), removed=st.sampled_from(IDS))
@settings(deadline=None, max_examples=40)
def test_limit_is_a_sample_by_id_in_the_order_of_the_source(ids: list[str], limit: int, removed: str) -> None:
    sample = open_source(source_of(ids), limit=limit).ids
    assert list(sample) == [id_ for id_ in ids if id_ in set(sample)]
    assert (
        set(sample)
        == set(open_source(source_of(IDS), limit=limit).ids)
        <= {*open_source(source_of(IDS), limit=limit + 1).ids}
    )
    rest = open_source(source_of([id_ for id_ in ids if id_ != removed]), limit=limit)
    assert len(set(rest.ids) - set(sample)) <= 1, "removing an image moves at most one other"


def test_limit_takes_images_of_all_classes_where_they_are_in_order() -> None:
    images, labels = np.zeros((1000, 1, 1, 1), np.uint8), np.arange(1000) // 100
    whole = open_source(images, labels=labels)
    assert np.bincount(labels_of(open_source(whole, limit=100)) or []).min() >= 4
    experimental = open_source(whole, subset="experimental", fraction=0.5)
    chosen = set(open_source(whole, limit=100).ids) & set(experimental.ids)
    assert 30 <= len(chosen) <= 70, "the sample does not depend on the subset"


def test_indices_are_read_from_text_or_npy(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("7\n3 11\n")
    np.save(tmp_path / "some.npy", np.array([7, 3, 11], dtype=np.uint16))
    for name in ("some.txt", "some.npy"):
        subset = open_source(IMAGES, labels=np.arange(20), indices=tmp_path / name)
        assert subset.ids == ("000007", "000003", "000011")
        assert labels_of(subset) == [7, 3, 11]
        assert subset.read(1).item() == 3
    assert len(open_source(IMAGES, indices=tmp_path / "some.txt", limit=2)) == 2


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("7 20", "index 20 at position 1"),
        ("-1", "index -1 at position 0"),
        ("3 4 3", "duplicate index 3"),
        ("3 four", "'four'"),
        ("", "int64 [0]"),
        (None, "none.txt'"),
        (np.ones(20, dtype=bool), "some.npy' holds bool [20]"),
        (np.array([1, None]), "Object arrays cannot be loaded"),
    ],
)
def test_invalid_indices_are_rejected(tmp_path: Path, content: Any, value: str) -> None:
    path = tmp_path / {type(None): "none.txt", str: "some.txt"}.get(type(content), "some.npy")
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(SourceError, match=re.escape(value)):
        open_source(IMAGES, indices=path)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("subset=evaluate", "subset='evaluate'.*'evaluation'"),
        ("subset=evaluation&fraction=1.5", "fraction='1.5'"),
        ("subset=evaluation&fraction=x", "fraction='x'"),
        ("subset=evaluation&count=0", "count='0'"),
        ("subset=evaluation&count=20", "evaluation subset of the 20 images"),
        ("subset=experimental&fraction=0.01", "experimental subset of the 20 images"),
        ("subset=evaluation&count=21", "count=21"),
        ("subset=evaluation&seed=-1", "seed='-1'"),
        ("limit=0", "limit='0'"),
        ("limit=many", "limit='many'"),
        ("fraction=0.1", "fraction= .*subset="),
        ("subset=evaluation&fraction=0.1&count=3", "fraction= and count="),
        ("subset=evaluation&indices=x", "subset= and indices="),
        ("part=evaluation", "'part'"),
    ],
)
def test_invalid_selection_is_rejected(tmp_path: Path, options: str, value: str) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    with pytest.raises(SourceError, match=value):
        open_source(f"npz:{tmp_path}/a.npz?{options}")


def test_arguments_and_options_are_equivalent(tmp_path: Path) -> None:
    file = f"npz:{tmp_path}/a.npz"
    np.savez(tmp_path / "a.npz", images=IMAGES)
    by_text = open_source(f"{file}?subset=experimental&fraction=0.3&seed=2&limit=4")
    by_arguments = open_source(file, subset="experimental", fraction=0.3, seed=2, limit=4)
    assert by_text.spec == by_arguments.spec == f"{file}?subset=experimental&fraction=0.3&seed=2&limit=4"
    assert by_text.digest == by_arguments.digest
    assert open_source(f"{file}?subset=experimental&fraction=0.3", seed=2, limit=4).ids == by_text.ids
    for fraction, count in {None: 2, 0.1: 2, 0.12: 2, 0.125: 3, 0.5: 10, 0.95: 19}.items():
        assert len(open_source(file, subset="experimental", fraction=fraction)) == count, "the nearest one"


def test_digest_of_a_subset_covers_only_its_own_images() -> None:
    evaluation = open_source(IMAGES, subset="evaluation", count=5)
    for position in range(20):
        images = IMAGES.copy()
        images[position] += 100
        is_selected = f"{position:06d}" in evaluation.ids
        assert (open_source(images, subset="evaluation", count=5).digest != evaluation.digest) == is_selected
