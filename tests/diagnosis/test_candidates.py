"""Candidate views: kinds, sizes and order."""

import re

import pytest

from secondlook.diagnosis import candidate_views
from secondlook.errors import DiagnosisError
from secondlook.views import View, ViewSet


@pytest.mark.parametrize("kind", ["natural", "digits", "harmful", "auto"])
@pytest.mark.parametrize("image_size", [1, 16, 32, 224])
def test_every_kind_is_a_view_set_that_starts_with_the_identity(kind: str, image_size: int) -> None:
    views = candidate_views(kind, image_size, None)
    assert isinstance(views, ViewSet)
    assert views[0].is_identity
    assert len(set(views.texts)) == len(views) > 2


def test_smaller_set_is_the_beginning_of_a_larger_one() -> None:
    assert len(candidate_views()) == 100
    assert candidate_views(n=200).texts[:100] == candidate_views(n=100).texts


def test_natural_candidates_have_every_family_and_pairs() -> None:
    names = {tuple(step.name for step in view.steps) for view in candidate_views("natural", 32, 100)}
    single = {"hflip", "shift", "rotate", "zoom", "gamma", "contrast"}
    assert {(name,) for name in single} <= names
    assert ("rotate", "shift") in names
    assert ("hflip", "zoom", "gamma") in names


def test_shifts_go_in_all_directions() -> None:
    views = candidate_views("natural", 32, 100)
    for x in (-1, 0, 1):
        for y in (-1, 0, 1):
            for distance in (1, 2, 3, 4):
                assert View.parse(f"hflip+shift:{distance * x},{distance * y}") in views


def test_shifts_grow_with_the_image() -> None:
    assert "shift:7,0" in candidate_views("natural", 224, 50)
    assert "shift:1,0" not in candidate_views("natural", 224, None)


def test_digits_are_never_flipped() -> None:
    assert not any("flip" in text for text in candidate_views("digits", 16, None).texts)


def test_harmful_candidates_include_flips_channel_swaps_and_rotations() -> None:
    assert {"vflip", "channels:bgr", "rotate:90"} <= set(candidate_views("harmful", 32, None).texts)


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        (("naturel", 32, 10), "'naturel'"),
        (("natural", 0, 10), "image_size=0"),
        (("natural", 32, 1), "n=1 is"),
        (("natural", 32, 100_000), "n=100000 is"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: tuple[str, int, int], offending: str) -> None:
    with pytest.raises(DiagnosisError, match=re.escape(offending)):
        candidate_views(*arguments)
