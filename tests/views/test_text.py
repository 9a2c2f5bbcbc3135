"""The text of views and sets: one meaning, one text; and a sentence for whatever is wrong."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secondlook as sl
from secondlook.arrays import Array
from secondlook.errors import ViewError
from secondlook.views import STEPS, View, ViewWarning, apply_view


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("shift:2.0,0", "shift:2,0"),
        ("shift:-0,1.50", "shift:0,1.5"),
        ("shift:5.0%,0%", "shift:5%,0"),
        ("shift:1e2,0", "shift:100,0"),
        ("rotate:03", "rotate:3"),
        ("zoom:1.10", "zoom:1.1"),
        ("channels:BGR", "channels:bgr"),
        ("crop:10%,10%,80%,80%", "crop:10,10,80,80"),
        ("identity", "identity"),
        ("identity+hflip", "hflip"),
        ("hflip+shift:0,0", "hflip"),
        ("shift:0,0%", "identity"),
        ("rotate:0+zoom:1+gamma:1+contrast:1+brightness:1+channels:rgb+crop:0,0,100,100", "identity"),
        ("hflip+hflip", "hflip+hflip"),
    ],
)
def test_equal_views_have_equal_text(text: str, canonical: str) -> None:
    assert str(View.parse(text)) == canonical
    assert View.parse(text) == View.parse(canonical)
    assert hash(View.parse(text)) == hash(View.parse(canonical))


NUMBERS = st.floats(-1e20, 1e20, allow_nan=False)
STEP_TEXTS = st.one_of(
    st.sampled_from(["hflip", "vflip", "gray", "identity", "channels:gbr"]),
    st.tuples(NUMBERS, st.sampled_from(["", "%"]), NUMBERS).map(lambda t: f"shift:{t[0]!r}{t[1]},{t[2]!r}"),
    NUMBERS.map(lambda value: f"rotate:{value!r}"),
    st.floats(0.05, 20).map(lambda value: f"zoom:{value!r}"),
    st.floats(0.01, 100).map(lambda value: f"gamma:{value!r}"),
    st.floats(0, 100).map(lambda value: f"contrast:{value!r}"),
    st.floats(0.01, 100).map(lambda value: f"blur:{value!r}"),
    st.floats(0, 50).map(lambda value: f"crop:{value!r},0,{value / 2 + 1!r},100"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP_TEXTS, min_size=1, max_size=5))
def test_reading_what_was_written_gives_the_same_view(steps: list[str]) -> None:
    view = View.parse("+".join(step.replace("e+", "e") for step in steps))
    assert View.parse(str(view)) == view


@pytest.mark.parametrize(
    ("paper", "plain"),
    [
        ("⇔+←2+↓1", "hflip+shift:-2,1"),
        ("⇔+↑1", "hflip+shift:0,-1"),
        ("→3", "shift:3,0"),
        ("↻3", "rotate:3"),
        ("↺7", "rotate:-7"),
        ("×1.1", "zoom:1.1"),
        ("×1.1+γ0.8", "zoom:1.1+gamma:0.8"),
        ("⇕", "vflip"),
        ("BGR", "channels:bgr"),
        ("x", "identity"),
        ("→5%+↑2.5%", "shift:5%,-2.5%"),
        ("⇔+rotate:4+↓1+→2", "hflip+rotate:4+shift:2,1"),
    ],
)
def test_the_papers_notation(paper: str, plain: str) -> None:
    assert View.parse(paper) == View.parse(plain)
    assert View.parse(View.parse(plain).paper_text()) == View.parse(plain)


@pytest.mark.parametrize("preset", ["cifar10", "cifar100", "imagenet", "stl10", "stl10-elu", "natural", "digits"])
def test_presets_survive_the_papers_notation(preset: str) -> None:
    views = sl.ViewSet(preset)
    assert sl.ViewSet([view.paper_text() for view in views]) == views


def test_views_are_values() -> None:
    view = View.parse("hflip+shift:2,-1")
    assert pickle.loads(pickle.dumps(view)) == view
    views = sl.ViewSet("cifar10")
    assert pickle.loads(pickle.dumps(views)) == views == copy.deepcopy(views)
    assert hash(views) == hash(sl.ViewSet(list(views)))
    with pytest.raises(AttributeError, match="cannot be changed"):
        views.views = ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hflipp", r"unknown step 'hflipp' in view 'hflipp'; known steps: identity, hflip, .*Did you mean 'hflip'\?"),
        ("hflip+shfit:1,2", r"unknown step 'shfit' in view 'hflip\+shfit:1,2'.* Did you mean 'shift'\?"),
        ("shift:1", r"step 'shift:1' in view 'shift:1' has 1 argument\(s\), expected 2: shift:DX,DY"),
        ("shift", r"has 0 argument\(s\), expected 2: shift:DX,DY"),
        ("shift:1,2,3", r"has 3 argument\(s\), expected 2"),
        ("hflip:1", r"has 1 argument\(s\), expected 0: hflip"),
        ("shift:1,two", "DY of step 'shift:DX,DY' in view 'shift:1,two' is 'two', expected a number"),
        ("shift:,1", "DX of step 'shift:DX,DY' .* is '', expected a number"),
        ("rotate:nan", "DEG of step 'rotate:DEG' .* is 'nan', expected a finite number"),
        ("zoom:inf", "F of step 'zoom:F' .* is 'inf', expected a finite number"),
        ("zoom:0", "F of step 'zoom:F' .* is 0, expected 0.05 to 20"),
        ("gamma:-1", "G of step 'gamma:G' .* is -1, expected 0.01 to 100"),
        ("contrast:-0.1", "F of step 'contrast:F' .* is -0.1, expected 0 to 100"),
        ("channels:rgg", "ORDER of step 'channels:ORDER' .* is 'rgg', expected one of rgb, rbg"),
        ("crop:50,0,60,100", r"leaves the image; X \+ W and Y \+ H must be at most 100"),
        ("crop:50,0,0,100", "has no area"),
        ("hflip++vflip", r"empty step in view 'hflip\+\+vflip'; steps are joined by one '\+'"),
        ("", "empty step in view ''"),
        ("+".join(["hflip"] * 40), "has 40 steps, expected at most 32"),
        ("⇔3", "unknown step 'hflip3' in view '⇔3'"),
        ("→two", "DX of step 'shift:DX,DY' in view '→two' is 'two', expected a number"),
    ],
)
def test_a_bad_view_is_explained(text: str, sentence: str) -> None:
    with pytest.raises(ViewError, match=sentence):
        View.parse(text)


@pytest.mark.parametrize(
    ("views", "sentence"),
    [
        ("identity,hflip", "unknown step 'identity,hflip' .*; views are separated by white space"),
        ("identity shift:1,0,hflip", "view 2 of 2: .* separated by white space"),
        ("identity hflip zoom:0", "view 3 of 3: F of step 'zoom:F' in view 'zoom:0'"),
        ("identity hflip shift:1,0 hflip", "view 'hflip' stands twice in the set, at places 2 and 4 of 4; remove one"),
        ("identity shift:2,0 shift:2.0,0", "view 'shift:2,0' stands twice"),
        ("identity zoom:1", "view 'identity' stands twice"),
        ("", "the set of views is empty"),
        ([], "the set of views is empty"),
        ("cifar", r"Presets: cifar10, .*Did you mean 'cifar10'\?"),
        ("natural hflip", "preset 'natural' is a whole set"),
        (["hflip", 3], "view 2 of 2 is a int, expected a text or a View"),
        ("no-such-file.txt", "view file 'no-such-file.txt' cannot be read"),
        ("x" * 10_000, r"unknown step 'x{60}… \(10,000 characters\)'"),
        ("hflip+" * 2_000 + "vflip", "has 2,001 steps, expected at most 32"),
        ("identity " + "1" * 10_000, r"view 2 of 2: unknown step '1{60}…"),
    ],
)
def test_a_bad_set_is_explained_in_few_words(views: object, sentence: str) -> None:
    with pytest.raises(ViewError, match=sentence) as raised:
        sl.ViewSet(views)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 500


def test_sets_are_read_from_text_lists_and_files(tmp_path: Path) -> None:
    forms: list[str | Path | list[View | str]]
    expected = ("identity", "hflip", "shift:2,-1", "hflip+rotate:3")
    file = tmp_path / "views.txt"
    file.write_text("# mine\nidentity hflip # mirrored\n\nshift:2,-1,\n⇔+↻3\n", encoding="utf-8")
    forms = [
        "identity, hflip, shift:2,-1, hflip+rotate:3",
        "identity hflip\n shift:2,-1\thflip+rotate:3",
        ["identity", "hflip", View.parse("shift:2,-1"), "hflip+rotate:3"],
        file,
        str(file),
    ]
    for views in forms:
        assert sl.ViewSet(views).texts == expected
    assert sl.ViewSet(sl.ViewSet(file)) == sl.ViewSet(file)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "views.txt").write_bytes(b"\xff\xfe\x00hflip")
    with pytest.raises(ViewError, match=r"views.txt' cannot be read"):
        sl.ViewSet(tmp_path / "views.txt")


def test_a_missing_identity_is_added_and_said() -> None:
    with pytest.warns(ViewWarning, match=r"identity was put in front of the 2 given view\(s\)"):
        views = sl.ViewSet("hflip shift:1,0")
    assert views.texts == ("identity", "hflip", "shift:1,0")
    with pytest.warns(ViewWarning, match="moved to the front, from place 2 of 2"):
        assert sl.ViewSet("hflip identity").texts == ("identity", "hflip")


def test_a_set_behaves_like_a_sequence() -> None:
    views = sl.ViewSet("identity hflip shift:1,0")
    assert len(views) == 3
    assert views[1] == View.parse("hflip")
    assert "shift:1.0,0" in views
    assert "vflip" not in views
    assert views.index("shift:1,0") == 2
    assert str(views) == "identity hflip shift:1,0"
    assert repr(sl.ViewSet("cifar10")) == "ViewSet('cifar10')"
    with pytest.raises(ViewError, match=r"view 'shift:1,1' is not in this set of 3 views. Did you mean 'shift:1,0'\?"):
        views.index("shift:1,1")


@pytest.mark.usefixtures("spare_registry")
def test_users_add_their_own_step() -> None:
    @sl.view_step("posterize:BITS")
    def posterize(images: Array, bits: float) -> Array:
        """Keep BITS bits of each pixel.

        The rest of the docstring is not shown.
        """
        levels = 2**bits - 1
        images *= levels
        posterized: Array = np.rint(images) / levels
        return posterized

    assert STEPS["posterize"].form == "posterize:BITS"
    assert STEPS["posterize"].summary == "Keep BITS bits of each pixel."
    assert str(View.parse("hflip+posterize:1.0")) == "hflip+posterize:1"
    images = np.array([[[[10], [100], [140], [250]]]], dtype=np.uint8)
    assert apply_view(images, "posterize:1")[0, 0, :, 0].tolist() == [0, 0, 255, 255]
    assert apply_view(images, "hflip+posterize:1")[0, 0, :, 0].tolist() == [255, 255, 0, 0]
    assert images[0, 0, :, 0].tolist() == [10, 100, 140, 250]
    with pytest.raises(ViewError, match=r"step 'posterize' .* has 0 argument\(s\), expected 1: posterize:BITS"):
        View.parse("posterize")
    with pytest.raises(ViewError, match="step 'posterize' is registered already"):
        sl.view_step("posterize:N")(posterize)
    with pytest.raises(ViewError, match="step name 'No Good' must be lower-case ASCII"):
        sl.view_step("No Good")(posterize)


@pytest.mark.usefixtures("spare_registry")
def test_a_users_step_that_misbehaves_is_named() -> None:
    sl.view_step("shrink")(lambda images: images[:, 1:])
    sl.view_step("poison")(lambda images: images * np.nan)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    with pytest.raises(ViewError, match=r"view 'shrink' gave shape \[2, 3, 4, 3\], expected \[2, 4, 4, 3\]"):
        apply_view(images, "shrink")
    with pytest.raises(ViewError, match="view 'poison' gave NaN"):
        apply_view(images, "poison")
