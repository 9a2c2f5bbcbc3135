"""The text of a view: canonical form, the notation of the paper, and errors."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import ViewError
from secondlook.views import STEPS, View
from tests.views import reference


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
        ("hflip+noise:0", "hflip"),
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("identity", "the image itself"),
        ("hflip", "mirrored"),
        ("hflip+shift:2,-1", "mirrored, shifted by 2 pixels right and 1 pixel up"),
        ("shift:-5%,5%", "shifted by 5 % left and down"),
        ("shift:0,-0.5", "shifted by 0.5 pixels up"),
        ("rotate:-3", "turned by 3 degrees counterclockwise"),
        ("rotate:1", "turned by 1 degree clockwise"),
        ("zoom:1.0869565217391304", "zoomed 1.09x"),
        ("gamma:0.8", "brighter (gamma 0.8)"),
        ("gamma:1.2+contrast:0.5", "darker (gamma 1.2), with less contrast (0.5x)"),
        ("brightness:0.9", "darker (0.9x)"),
        ("crop:5,5,90,80", "cropped to 90 x 80 %"),
    ],
)
def test_views_are_described_in_words(text: str, words: str) -> None:
    assert View.parse(text).describe() == words


def test_every_built_in_step_has_words_and_plain_names_stay() -> None:
    assert [name for name in reference.STEPS if not STEPS[name].words] == ["identity"]
    assert View(name="flip of NumPy").describe() == "flip of NumPy"


NUMBERS = st.floats(-1e20, 1e20, allow_nan=False)
STEP_TEXTS = st.one_of(
    st.sampled_from(["hflip", "vflip", "gray", "identity", "channels:gbr"]),
    st.tuples(NUMBERS, st.sampled_from(["", "%"]), NUMBERS).map(lambda t: f"shift:{t[0]!r}{t[1]},{t[2]!r}"),
    NUMBERS.map(lambda value: f"rotate:{value!r}"),
    st.floats(0.05, 20).map(lambda value: f"zoom:{value!r}"),
    st.floats(0.01, 100).map(lambda value: f"gamma:{value!r}"),
    st.floats(0, 100).map(lambda value: f"contrast:{value!r}"),
    st.floats(0.01, 100).map(lambda value: f"blur:{value!r}"),
    st.floats(0, 255).map(lambda value: f"noise:{value!r}"),
    st.floats(0, 50).map(lambda value: f"crop:{value!r},0,{value / 2 + 1!r},100"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP_TEXTS, min_size=1, max_size=5))
def test_formatted_view_parses_to_itself(steps: list[str]) -> None:
    view = View.parse("+".join(step.replace("e+", "e") for step in steps))
    assert View.parse(str(view)) == view
    assert pickle.loads(pickle.dumps(view)) == view


@pytest.mark.parametrize(
    ("paper", "text"),
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
def test_notation_of_the_paper(paper: str, text: str) -> None:
    assert View.parse(paper) == View.parse(text)
    assert View.parse(View.parse(text).to_paper_notation()) == View.parse(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hflipp", r"'hflipp'.*shift:DX,DY.*'hflip'\?"),
        ("hflip+shfit:1,2", r"'hflip\+shfit:1,2'.*shift:DX,DY.*'shift'\?"),
        ("⇔3", r"'⇔3'.*shift:DX,DY.*'hflip'\?"),
        ("shift:1", "'shift:1' .*1 argument.*shift:DX,DY"),
        ("shift", "'shift' .*0 argument.*shift:DX,DY"),
        ("shift:1,2,3", "'shift:1,2,3' .*3 argument.*shift:DX,DY"),
        ("hflip:1", "'hflip:1' .*1 argument.*hflip"),
        ("shift:1,two", "^DY of step .*'shift:1,two' .*'two'"),
        ("shift:,1", "^DX of step .*'shift:,1' .*''"),
        ("rotate:nan", "^DEG of step .*'rotate:nan' .*'nan'"),
        ("zoom:inf", "^F of step .*'zoom:inf' .*'inf'"),
        ("zoom:0", r"^F of step .*'zoom:0' .*0, expected 0\.05 to 20"),
        ("gamma:-1", r"^G of step .*'gamma:-1' .*-1, expected 0\.01 to 100"),
        ("contrast:-0.1", r"^F of step .*'contrast:-0\.1' .*-0\.1, expected 0 to 100"),
        ("noise:-1", "^S of step .*'noise:-1' .*-1, expected 0 to 255"),
        ("channels:rgg", "^ORDER of step .*'channels:rgg' .*'rgg'"),
        ("→two", "^DX of step .*'→two' .*'two'"),
        ("crop:50,0,60,100", "'crop:50,0,60,100'"),
        ("crop:50,0,0,100", "'crop:50,0,0,100'"),
        ("hflip++vflip", r"empty step in view 'hflip\+\+vflip'"),
        ("", "empty step in view ''"),
        ("hflip+", r"empty step in view 'hflip\+'"),
        ("+".join(["hflip"] * 40), "40 steps"),
    ],
)
def test_invalid_views_are_rejected(text: str, told: str) -> None:
    with pytest.raises(ViewError, match=told):
        View.parse(text)
