"""The grammar `scheme:location?option=value&...`."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import SourceError
from secondlook.specs import Spec, parse_spec

OPTION_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)
LOCATIONS = TEXTS | st.text("?=&a1", min_size=1, max_size=6)


@given(LOCATIONS, st.dictionaries(OPTION_NAMES, TEXTS))
@settings(deadline=None, max_examples=200)
def test_formatted_spec_parses_to_itself(location: str, options: dict[str, str]) -> None:
    spec = Spec("folder", location, options)
    assert parse_spec(str(spec)) == spec


def test_options_follow_the_last_question_mark() -> None:
    assert parse_spec("folder:what?/now?limit=3") == Spec("folder", "what?/now", {"limit": "3"})
    assert parse_spec("folder:what?") == Spec("folder", "what")
    assert parse_spec("npz:a+b.npz?labels=x%20y+z").options == {"labels": "x y+z"}


def test_home_folder_is_expanded_unless_its_user_is_unknown() -> None:
    assert parse_spec("folder:~/x").path == Path.home() / "x"
    assert parse_spec("onnx:~nobody-here/m.onnx").path == Path("~nobody-here/m.onnx")


@pytest.mark.parametrize(
    "text", ["nothing", ":location", "folder:", "folder:x?a=1&a=2", "folder:x?a=1&b", "folder:x?a="]
)
def test_malformed_spec_is_rejected_with_the_error_of_the_caller(text: str) -> None:
    with pytest.raises(SourceError):
        parse_spec(text, SourceError)
