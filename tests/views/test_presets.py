"""The named sets: counts and contents as the paper prints them and as its code ran them."""

import warnings

import pytest

import secondlook as sl
from secondlook.errors import ViewError
from secondlook.views.presets import PRESETS, Preset, register

COUNTS = {"cifar10": 13, "cifar100": 40, "svhn": 17, "imagenet": 24, "stl10": 34, "stl10-elu": 13}


def quietly(name: str) -> sl.ViewSet:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sl.ViewWarning)
        return sl.ViewSet(name)


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_counts_of_the_paper(name: str, count: int) -> None:
    for version in (name, f"{name}-released"):
        views = quietly(version)
        assert len(views) == count
        assert views.texts[0] == "identity"


def test_every_preset_is_whole_and_told() -> None:
    assert set(PRESETS) == {*COUNTS, *(f"{name}-released" for name in COUNTS), "natural", "digits"}
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert preset.summary
        assert quietly(name)[0].is_identity


def test_released_turns_the_vertical_round() -> None:
    assert "hflip+shift:-2,-1" in sl.ViewSet("cifar10-released")
    assert "hflip+shift:2,0" in sl.ViewSet("cifar10-released")
    assert "rotate:-3" in sl.ViewSet("cifar100-released")
    imagenet = sl.ViewSet("imagenet-released")
    assert "hflip+rotate:10" in imagenet
    assert f"zoom:{1 / 0.92!r}" in imagenet
    assert f"hflip+zoom:{1 / 0.90!r}" in imagenet
    assert f"zoom:{1 / 0.95!r}+gamma:0.8" in imagenet
    assert f"zoom:{1 / 0.95!r}+shift:0,5" in sl.ViewSet("stl10-elu-released")


def test_printed_and_released_differ_only_in_the_vertical_turns_and_zooms() -> None:
    printed, released = quietly("svhn"), quietly("svhn-released")
    for view, other in zip(printed, released, strict=True):
        assert str(view) == str(other) or str(view).split(",")[0] == str(other).split(",")[0]


@pytest.mark.parametrize("name", ["svhn", "svhn-released"])
def test_svhn_warns_wherever_it_is_used(name: str) -> None:
    with pytest.warns(sl.ViewWarning, match=r"far shifts push the digit out .* Use 'digits'"):
        sl.ViewSet(name)


def test_digits_never_flips_and_natural_has_no_pixels() -> None:
    assert not any("flip" in text for text in sl.ViewSet("digits").texts)
    assert all("%" in text or "shift" not in text for text in sl.ViewSet("natural").texts)
    assert 10 <= len(sl.ViewSet("natural")) <= 16


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ViewError, match="preset 'natural' is registered already"):
        register(Preset("natural", "again", "identity"))
