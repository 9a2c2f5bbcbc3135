"""Subsets, indices and limits."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import SourceError
from secondlook.sources import ArraySource, Source, open_source
from secondlook.sources.source import Subset
from tests.sources.conftest import labels_of

IMAGES = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)
IDS = [f"photo-{number}" for number in range(20)]


def reference_experimental(ids: list[str], count: int, seed: int) -> set[str]:
    return set(sorted(ids, key=lambda id_: hashlib.sha256(f"{seed}:{id_}".encode()).hexdigest())[:count])


def source_of(ids: list[str]) -> Source:
    return ArraySource(IMAGES[: len(ids)], ids=ids)


@given(ids=st.permutations(IDS), count=st.integers(1, 19), seed=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_subsets_depend_on_ids_alone(ids: list[str], count: int, seed: int) -> None:
    whole = source_of(ids)
    experimental = open_source(whole, subset="experimental", count=count, seed=seed)
    evaluation = open_source(whole, subset="evaluation", count=count, seed=seed)
    assert set(experimental.ids) == reference_experimental(IDS, count, seed)
    assert set(experimental.ids) | set(evaluation.ids) == set(IDS)
    assert len(experimental) + len(evaluation) == 20
    assert list(experimental.ids) == [id_ for id_ in ids if id_ in set(experimental.ids)]
    assert [int(experimental.read(i)[0, 0, 0]) for i in range(count)] == [ids.index(id_) for id_ in experimental.ids]


@given(count=st.integers(1, 18), removed=st.sampled_from(IDS))
@settings(deadline=None, max_examples=40)
def test_removing_an_image_moves_at_most_one_other(count: int, removed: str) -> None:
    before = set(open_source(source_of(IDS), subset="experimental", count=count).ids)
    rest = [id_ for id_ in IDS if id_ != removed]
    after = set(open_source(source_of(rest), subset="experimental", count=count).ids)
    assert len(after - before) <= 1


def test_another_seed_selects_other_images() -> None:
    subsets = {tuple(open_source(source_of(IDS), subset="experimental", fraction=0.5, seed=s).ids) for s in range(5)}
    assert len(subsets) == 5


@pytest.mark.parametrize(("fraction", "expected"), [(None, 2), (0.1, 2), (0.12, 2), (0.125, 3), (0.5, 10), (0.95, 19)])
def test_fraction_is_rounded_to_the_nearest_count(fraction: float | None, expected: int) -> None:
    assert len(open_source(source_of(IDS), subset="experimental", fraction=fraction)) == expected


def test_subsets_of_the_paper_have_their_sizes() -> None:
    images = np.zeros((26_032, 1, 1, 1), dtype=np.uint8)
    assert len(open_source(images, subset="experimental", count=3_254)) == 3_254
    assert len(open_source(images, subset="evaluation", count=3_254)) == 22_778
    assert len(open_source(images[:10_000], subset="experimental")) == 1_000


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
    ],
)
def test_invalid_indices_are_rejected(tmp_path: Path, content: str, value: str) -> None:
    (tmp_path / "some.txt").write_text(content)
    with pytest.raises(SourceError, match=re.escape(value)):
        open_source(IMAGES, indices=tmp_path / "some.txt")


def test_unreadable_indices_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.txt'"):
        open_source(IMAGES, indices=tmp_path / "none.txt")
    np.save(tmp_path / "mask.npy", np.ones(20, dtype=bool))
    with pytest.raises(SourceError, match=r"mask\.npy' .*bool \[20\]"):
        open_source(IMAGES, indices=tmp_path / "mask.npy")
    np.save(tmp_path / "objects.npy", np.array([1, None]), allow_pickle=True)
    with pytest.raises(SourceError, match=r"objects\.npy' .*Object arrays cannot be loaded"):
        open_source(IMAGES, indices=tmp_path / "objects.npy")


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
    np.savez(tmp_path / "a.npz", images=IMAGES)
    by_text = open_source(f"npz:{tmp_path}/a.npz?subset=experimental&fraction=0.3&seed=2&limit=4")
    by_arguments = open_source(f"npz:{tmp_path}/a.npz", subset="experimental", fraction=0.3, seed=2, limit=4)
    assert isinstance(by_text, Subset)
    assert by_text.spec == by_arguments.spec == f"npz:{tmp_path}/a.npz?subset=experimental&fraction=0.3&seed=2&limit=4"
    assert by_text.digest == by_arguments.digest
    mixed = open_source(f"npz:{tmp_path}/a.npz?subset=experimental&fraction=0.3", seed=2, limit=4)
    assert mixed.ids == by_text.ids


def test_limit_beyond_the_end_selects_all_images() -> None:
    assert len(open_source(IMAGES, limit=100)) == 20


def test_subset_of_a_subset_is_rejected() -> None:
    subset = open_source(IMAGES, limit=10)
    assert subset.spec == "array:[20, 1, 1, 1]?limit=10"
    with pytest.raises(SourceError, match=re.escape(repr(subset.spec))):
        open_source(subset, limit=5)


def test_digest_of_a_subset_covers_only_its_own_images() -> None:
    evaluation = open_source(IMAGES, subset="evaluation", count=5)
    assert isinstance(evaluation, Subset)
    selected = int(evaluation.positions[3])
    other = next(position for position in range(20) if position not in evaluation.positions)
    for changed, equal in ((selected, False), (other, True)):
        images = IMAGES.copy()
        images[changed] += 100
        assert (open_source(images, subset="evaluation", count=5).digest == evaluation.digest) is equal
