"""Parts, indices and limits."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import SourceError
from secondlook.sources import ArraySource, Source, Subset, open_source

IMAGES = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)
IDS = [f"photo-{number}" for number in range(20)]


def reference_experimental(ids: list[str], count: int, seed: int) -> set[str]:
    return set(sorted(ids, key=lambda id_: hashlib.sha256(f"{seed}:{id_}".encode()).hexdigest())[:count])


def source_of(ids: list[str]) -> Source:
    return ArraySource(IMAGES[: len(ids)], ids=ids)


@given(ids=st.permutations(IDS), count=st.integers(1, 19), seed=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_parts_depend_on_ids_alone(ids: list[str], count: int, seed: int) -> None:
    whole = source_of(ids)
    experimental = open_source(whole, part="experimental", count=count, seed=seed)
    evaluation = open_source(whole, part="evaluation", count=count, seed=seed)
    assert set(experimental.ids) == reference_experimental(IDS, count, seed)
    assert set(experimental.ids) | set(evaluation.ids) == set(IDS)
    assert len(experimental) + len(evaluation) == 20
    assert list(experimental.ids) == [id_ for id_ in ids if id_ in set(experimental.ids)]
    assert [int(experimental.read(i)[0, 0, 0]) for i in range(count)] == [ids.index(id_) for id_ in experimental.ids]


@given(count=st.integers(1, 18), removed=st.sampled_from(IDS))
@settings(deadline=None, max_examples=40)
def test_an_image_less_moves_at_most_one_other(count: int, removed: str) -> None:
    before = set(open_source(source_of(IDS), part="experimental", count=count).ids)
    rest = [id_ for id_ in IDS if id_ != removed]
    after = set(open_source(source_of(rest), part="experimental", count=count).ids)
    assert len(after - before) <= 1


def test_another_seed_is_another_part() -> None:
    parts = {tuple(open_source(source_of(IDS), part="experimental", fraction=0.5, seed=s).ids) for s in range(5)}
    assert len(parts) == 5


@pytest.mark.parametrize(("fraction", "expected"), [(None, 2), (0.1, 2), (0.12, 2), (0.125, 3), (0.5, 10), (0.95, 19)])
def test_a_fraction_is_rounded_to_the_nearest_count(fraction: float | None, expected: int) -> None:
    assert len(open_source(source_of(IDS), part="experimental", fraction=fraction)) == expected


def test_the_papers_splits_have_their_sizes() -> None:
    images = np.zeros((26_032, 1, 1, 1), dtype=np.uint8)
    assert len(open_source(images, part="experimental", count=3_254)) == 3_254
    assert len(open_source(images, part="evaluation", count=3_254)) == 22_778
    assert len(open_source(images[:10_000], part="experimental")) == 1_000


def test_indices_come_from_text_or_npy(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("7\n3 11\n")
    np.save(tmp_path / "some.npy", np.array([7, 3, 11], dtype=np.uint16))
    for name in ("some.txt", "some.npy"):
        chosen = open_source(IMAGES, labels=np.arange(20), indices=tmp_path / name)
        assert chosen.ids == ("000007", "000003", "000011")
        assert chosen.labels is not None
        assert chosen.labels.tolist() == [7, 3, 11]
        assert chosen.read(1).item() == 3
    assert len(open_source(IMAGES, indices=tmp_path / "some.txt", limit=2)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("7 20", r"index 20 \(number 1 in '.*'\) is not from 0 to 19"),
        ("-1", r"index -1 \(number 0"),
        ("3 4 3", r"index 3 stands 2 times"),
        ("3 four", r"cannot be read: invalid literal"),
        ("", r"holds int64 \[0\]; whole numbers \[n\] were expected"),
    ],
)
def test_bad_indices_are_told(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "some.txt").write_text(content)
    with pytest.raises(SourceError, match=message):
        open_source(IMAGES, indices=tmp_path / "some.txt")


def test_bad_files_of_indices_are_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"indices file '.*none.txt' cannot be read"):
        open_source(IMAGES, indices=tmp_path / "none.txt")
    np.save(tmp_path / "mask.npy", np.ones(20, dtype=bool))
    with pytest.raises(SourceError, match=r"holds bool \[20\]"):
        open_source(IMAGES, indices=tmp_path / "mask.npy")
    np.save(tmp_path / "objects.npy", np.array([1, None]), allow_pickle=True)
    with pytest.raises(SourceError, match="cannot be read: Object arrays cannot be loaded"):
        open_source(IMAGES, indices=tmp_path / "objects.npy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("part=evaluate", r"part='evaluate' .* none of experimental, evaluation. Did you mean 'evaluation'\?"),
        ("part=evaluation&fraction=1.5", r"fraction='1.5' .* not between 0 and 1"),
        ("part=evaluation&fraction=x", r"fraction='x'"),
        ("part=evaluation&count=0", r"count='0' .* whole number from 1 on"),
        ("part=evaluation&count=20", r"the evaluation part of the 20 images .* is empty"),
        ("part=experimental&fraction=0.01", r"the experimental part of the 20 images .* is empty"),
        ("part=evaluation&count=21", r"count=21 is more than the 20 images"),
        ("part=evaluation&seed=-1", r"seed='-1' .* whole number from 0 on"),
        ("limit=0", r"limit='0' .* whole number from 1 on"),
        ("limit=many", r"limit='many'"),
        ("fraction=0.1", r"fraction= .* needs part="),
        ("part=evaluation&fraction=0.1&count=3", r"fraction= and count= .* exclude each other"),
        ("part=evaluation&indices=x", r"part= and indices= .* exclude each other"),
    ],
)
def test_a_bad_choice_is_told(tmp_path: Path, options: str, message: str) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    with pytest.raises(SourceError, match=message):
        open_source(f"npz:{tmp_path}/a.npz?{options}")


def test_arguments_and_options_say_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    by_text = open_source(f"npz:{tmp_path}/a.npz?part=experimental&fraction=0.3&seed=2&limit=4")
    by_arguments = open_source(f"npz:{tmp_path}/a.npz", part="experimental", fraction=0.3, seed=2, limit=4)
    assert isinstance(by_text, Subset)
    assert by_text.spec == by_arguments.spec == f"npz:{tmp_path}/a.npz?part=experimental&fraction=0.3&seed=2&limit=4"
    assert by_text.digest == by_arguments.digest
    mixed = open_source(f"npz:{tmp_path}/a.npz?part=experimental&fraction=0.3", seed=2, limit=4)
    assert mixed.ids == by_text.ids


def test_a_limit_beyond_the_end_is_everything() -> None:
    assert len(open_source(IMAGES, limit=100)) == 20


def test_a_part_of_a_part_is_refused() -> None:
    part = open_source(IMAGES, limit=10)
    assert part.spec == "array:[20, 1, 1, 1]?limit=10"
    with pytest.raises(SourceError, match="is a part already; select from the whole source instead"):
        open_source(part, limit=5)


def test_the_digest_of_a_part_covers_its_own_images_only() -> None:
    evaluation = open_source(IMAGES, part="evaluation", count=5)
    assert isinstance(evaluation, Subset)
    chosen = int(evaluation.positions[3])
    other = next(position for position in range(20) if position not in evaluation.positions)
    for changed, same in ((chosen, False), (other, True)):
        images = IMAGES.copy()
        images[changed] += 100
        assert (open_source(images, part="evaluation", count=5).digest == evaluation.digest) is same
