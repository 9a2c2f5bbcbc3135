"""Pools of candidates: their kinds, sizes and order."""

import pytest

from secondlook.diagnosis import CANDIDATE_KINDS, candidate_kind, candidate_views
from secondlook.errors import DiagnosisError
from secondlook.views import View, ViewSet


@pytest.mark.parametrize("kind", list(CANDIDATE_KINDS))
@pytest.mark.parametrize("image_size", [1, 16, 32, 224])
def test_every_kind_is_a_view_set_that_begins_with_the_image_itself(kind: str, image_size: int) -> None:
    pool = candidate_views(kind, image_size, None)
    assert isinstance(pool, ViewSet)
    assert pool[0].is_identity
    assert len(set(pool.texts)) == len(pool) > 2


def test_a_smaller_pool_is_the_beginning_of_a_larger_one() -> None:
    assert len(candidate_views()) == 100
    assert candidate_views(n=200).texts[:100] == candidate_views(n=100).texts


def test_natural_candidates_hold_every_family_and_pairs() -> None:
    names = {tuple(step.name for step in view.steps) for view in candidate_views("natural", 32, 100)}
    single = {"hflip", "shift", "rotate", "zoom", "gamma", "contrast"}
    assert {(name,) for name in single} <= names
    assert ("rotate", "shift") in names
    assert ("hflip", "zoom", "gamma") in names


def test_shifts_go_in_all_directions() -> None:
    pool = candidate_views("natural", 32, 100)
    for x in (-1, 0, 1):
        for y in (-1, 0, 1):
            for distance in (1, 2, 3, 4):
                assert View.parse(f"hflip+shift:{distance * x},{distance * y}") in pool


def test_shifts_grow_with_the_image() -> None:
    assert "shift:7,0" in candidate_views("natural", 224, 50)
    assert "shift:1,0" not in candidate_views("natural", 224, None)


def test_digits_are_never_flipped() -> None:
    assert not any("flip" in text for text in candidate_views("digits", 16, None).texts)


def test_the_insane_ones_are_there_to_be_found() -> None:
    assert {"vflip", "channels:bgr", "rotate:90"} <= set(candidate_views("insane", 32, None).texts)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("naturel", 32, 10), "unknown kind of candidates 'naturel'.*Did you mean 'natural'"),
        (("natural", 0, 10), "image_size is 0"),
        (("natural", 32, 1), "n is 1; expected 2 to 242"),
        (("natural", 32, 100_000), "n is 100000; expected 2 to 242"),
    ],
)
def test_bad_pools_are_refused(arguments: tuple[str, int, int], sentence: str) -> None:
    with pytest.raises(DiagnosisError, match=sentence):
        candidate_views(*arguments)


def test_a_kind_is_registered_once() -> None:
    with pytest.raises(DiagnosisError, match="'natural' is registered already"):
        candidate_kind("natural", "again")(lambda _level, _unit: [])
