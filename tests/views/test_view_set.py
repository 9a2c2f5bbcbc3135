"""Sets of views: reading, warnings, errors, the behavior of a sequence, and the presets of the paper."""

import copy
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from secondlook.errors import ViewError
from secondlook.views import PRESETS, View, ViewSet, ViewWarning

COUNTS = {"cifar10": 13, "cifar100": 40, "svhn": 17, "imagenet": 24, "stl10": 34, "stl10-elu": 13}


def test_sets_are_read_from_text_lists_and_files(tmp_path: Path) -> None:
    expected = ("identity", "hflip", "shift:2,-1", "hflip+rotate:3")
    file = tmp_path / "views.txt"
    file.write_text("# mine\nidentity hflip # mirrored\n\nshift:2,-1,\n⇔+↻3\n", encoding="utf-8")
    forms: list[str | Path | list[View | str]] = [
        "identity, hflip, shift:2,-1, hflip+rotate:3",
        "identity hflip\n shift:2,-1\thflip+rotate:3",
        ["identity", "hflip", View.parse("shift:2,-1"), "hflip+rotate:3"],
        file,
        str(file),
    ]
    for views in forms:
        assert ViewSet(views).texts == expected
    assert ViewSet(ViewSet(file)) == ViewSet(file)


def test_unreadable_view_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match=r"'no-such-file\.txt'"):
        ViewSet("no-such-file.txt")
    (tmp_path / "views.txt").write_bytes(b"\xff\xfe\x00hflip")
    with pytest.raises(ViewError, match=r"views\.txt'"):
        ViewSet(tmp_path / "views.txt")


def test_identity_is_added_or_moved_to_the_front_with_a_warning() -> None:
    with pytest.warns(ViewWarning, match="identity"):
        assert ViewSet("hflip shift:1,0").texts == ("identity", "hflip", "shift:1,0")
    with pytest.warns(ViewWarning, match="position 2 of 2"):
        assert ViewSet("hflip identity").texts == ("identity", "hflip")


def test_view_set_behaves_like_a_sequence() -> None:
    views = ViewSet("identity hflip shift:1,0")
    assert len(views) == 3
    assert views[1] == View.parse("hflip")
    assert "shift:1.0,0" in views
    assert "vflip" not in views
    assert views.index("shift:1,0") == 2
    assert str(views) == "identity hflip shift:1,0"
    assert repr(ViewSet("cifar10")) == "ViewSet('cifar10')"
    with pytest.raises(ViewError, match=r"'shift:1,1' .*'shift:1,0'\?"):
        views.index("shift:1,1")


def test_view_set_is_an_immutable_value() -> None:
    views = ViewSet("cifar10")
    assert pickle.loads(pickle.dumps(views)) == views == copy.deepcopy(views)
    assert hash(views) == hash(ViewSet(list(views)))
    with pytest.raises(AttributeError, match="'views'"):
        views.views = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("views", "value"),
    [
        ("identity,hflip", "'identity,hflip' .*white space"),
        ("identity shift:1,0,hflip", "view 2 of 2: .*white space"),
        ("identity hflip zoom:0", "view 3 of 3: .*'zoom:0'"),
        ("identity hflip shift:1,0 hflip", "'hflip' at positions 2 and 4 of 4"),
        ("identity shift:2,0 shift:2.0,0", "'shift:2,0'"),
        ("identity zoom:1", "'identity'"),
        ("", "empty"),
        ([], "empty"),
        ("cifar", r"cifar10, .*'cifar10'\?"),
        ("naturl", r"Did you mean 'natural'\?"),
        ("naturl hflip", r"view 1 of 2: .*Did you mean 'natural'\?"),
        ("hflop", r"'hflip'\?$"),
        ("natural hflip", "'natural'"),
        (["hflip", 3], "view 2 of 2 .*int"),
        ("x" * 10_000, r"'x{60}… \(10,000 characters\)'"),
        ("hflip+" * 2_000 + "vflip", "2,001 steps"),
        ("identity " + "1" * 10_000, "view 2 of 2: .*'1{60}…"),
    ],
)
def test_invalid_set_is_rejected_with_a_short_message(views: object, value: str) -> None:
    with pytest.raises(ViewError, match=value) as raised:
        ViewSet(views)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 500


@pytest.mark.filterwarnings("error")
def test_set_of_a_set_is_the_same_set() -> None:
    for views in (ViewSet("identity hflip"), ViewSet("cifar10")):
        assert ViewSet(views) == ViewSet.with_identity(views) == views
        assert ViewSet(views).preset is ViewSet.with_identity(views).preset is views.preset


@pytest.mark.parametrize(
    "views",
    [
        ["hflip", "shift:1,0"],
        ["identity", "hflip", "shift:1,0"],
        ["hflip", "zoom:1", View.parse("shift:1,0")],
        (text for text in ("hflip", "shift:1,0")),
    ],
)
def test_lists_may_omit_the_identity_without_a_warning(views: Iterable[View | str]) -> None:
    assert ViewSet.with_identity(views).texts == ("identity", "hflip", "shift:1,0")
    assert ViewSet.with_identity([]).texts == ("identity",)
    with pytest.raises(ViewError, match=re.escape("view 2 of 2: ")):  # of the given views
        ViewSet.with_identity(["hflip", "nope"])


@pytest.mark.parametrize("views", [1, None, 2.5])
def test_values_that_are_not_views_are_rejected(views: Any) -> None:
    for function in (ViewSet, ViewSet.with_identity):
        with pytest.raises(ViewError, match=re.escape(repr(views))):
            function(views)


@pytest.mark.parametrize("views", ["auto", " auto ", ["auto"], "identity auto"])
def test_auto_is_not_a_view_set(views: str | list[str]) -> None:
    with pytest.raises(ViewError, match="'auto' chooses views for a classifier and its images") as caught:
        ViewSet(views)
    assert "preset" in str(caught.value)
    assert "choose_views" in str(caught.value)


@pytest.mark.filterwarnings("ignore::secondlook.views.ViewWarning")
def test_presets_have_the_sizes_of_the_paper_and_survive_its_notation() -> None:
    sizes = {f"{name}{version}": size for name, size in COUNTS.items() for version in ("", "-released")}
    assert set(PRESETS) == {*sizes, "natural", "digits"}
    for name, preset in PRESETS.items():
        assert preset.name == preset.form == name
        assert preset.summary
        views = ViewSet(name)
        assert views[0].is_identity
        assert len(views) == sizes.get(name, len(views))
        assert ViewSet([view.to_paper_notation() for view in views]) == views
    with pytest.raises(ViewError, match="'natural'"):
        PRESETS.add(PRESETS["natural"])


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


def test_svhn_differs_only_vertically_from_its_release_and_warns_to_use_digits() -> None:
    with pytest.warns(ViewWarning, match=r"'svhn'.*'digits'"):
        printed = ViewSet("svhn")
    with pytest.warns(ViewWarning, match=r"'svhn-released'.*'digits'"):
        released = ViewSet("svhn-released")
    for view, other in zip(printed, released, strict=True):
        assert str(view) == str(other) or str(view).split(",")[0] == str(other).split(",")[0]


def test_digits_has_no_flips_and_natural_no_shifts_in_pixels() -> None:
    assert not any("flip" in text for text in ViewSet("digits").texts)
    assert all("%" in text or "shift" not in text for text in ViewSet("natural").texts)
    assert 10 <= len(ViewSet("natural")) <= 16
