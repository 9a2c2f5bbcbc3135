"""The presets: sizes and contents as printed in the paper and as in its released code."""

import warnings

import pytest

from secondlook.errors import ViewError
from secondlook.views import PRESETS, ViewSet, ViewWarning
from secondlook.views.presets import Preset

COUNTS = {"cifar10": 13, "cifar100": 40, "svhn": 17, "imagenet": 24, "stl10": 34, "stl10-elu": 13}


def make_view_set(name: str) -> ViewSet:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ViewWarning)
        return ViewSet(name)


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_presets_have_the_sizes_of_the_paper(name: str, count: int) -> None:
    for version in (name, f"{name}-released"):
        views = make_view_set(version)
        assert len(views) == count
        assert views.texts[0] == "identity"


def test_every_preset_is_complete() -> None:
    assert set(PRESETS) == {*COUNTS, *(f"{name}-released" for name in COUNTS), "natural", "digits"}
    for name, preset in PRESETS.items():
        assert preset.name == preset.form == name
        assert preset.summary
        assert make_view_set(name)[0].is_identity


def test_released_presets_reverse_vertical_shifts_and_rotations() -> None:
    assert "hflip+shift:-2,-1" in ViewSet("cifar10-released")
    assert "hflip+shift:2,0" in ViewSet("cifar10-released")
    assert "rotate:-3" in ViewSet("cifar100-released")
    imagenet = ViewSet("imagenet-released")
    assert "hflip+rotate:10" in imagenet
    assert f"zoom:{1 / 0.92!r}" in imagenet
    assert f"hflip+zoom:{1 / 0.90!r}" in imagenet
    assert f"zoom:{1 / 0.95!r}+gamma:0.8" in imagenet
    assert f"zoom:{1 / 0.95!r}+shift:0,5" in ViewSet("stl10-elu-released")


def test_printed_and_released_svhn_differ_only_vertically() -> None:
    printed, released = make_view_set("svhn"), make_view_set("svhn-released")
    for view, other in zip(printed, released, strict=True):
        assert str(view) == str(other) or str(view).split(",")[0] == str(other).split(",")[0]


@pytest.mark.parametrize("name", ["svhn", "svhn-released"])
def test_svhn_warns_and_recommends_digits(name: str) -> None:
    with pytest.warns(ViewWarning, match=r"'svhn.*'digits'"):
        ViewSet(name)


def test_digits_has_no_flips_and_natural_no_shifts_in_pixels() -> None:
    assert not any("flip" in text for text in ViewSet("digits").texts)
    assert all("%" in text or "shift" not in text for text in ViewSet("natural").texts)
    assert 10 <= len(ViewSet("natural")) <= 16


def test_preset_can_be_registered_once_only() -> None:
    with pytest.raises(ViewError, match="'natural'"):
        PRESETS.add(Preset("natural", "again", "identity"))
