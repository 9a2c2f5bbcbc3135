"""The text of a source."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import SourceError
from secondlook.sources import SOURCES, Spec, open_source, parse_spec, source_scheme

option_names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1)
values = st.text(st.characters(codec="utf-8"), min_size=1)
locations = st.text(st.characters(codec="utf-8", exclude_characters="?"), min_size=1)


@given(locations, st.dictionaries(option_names, values))
@settings(deadline=None, max_examples=100)
def test_a_printed_spec_parses_to_itself(location: str, options: dict[str, str]) -> None:
    spec = Spec("folder", location, options)
    assert parse_spec(str(spec)) == spec


def test_options_follow_the_last_question_mark() -> None:
    assert parse_spec("folder:what?/now?limit=3") == Spec("folder", "what?/now", {"limit": "3"})
    assert parse_spec("folder:what?") == Spec("folder", "what?")
    assert parse_spec("npz:a+b.npz?labels=x%20y+z").options == {"labels": "x y+z"}


@pytest.mark.parametrize("name", ["wh?at", "wh?at=1", "x=1?y", "50%", "a?b&c"])
def test_what_is_selected_opens_again_whatever_the_folder_is_called(name: str, picture_folder: Path) -> None:
    location = picture_folder.rename(picture_folder.with_name(name))
    whole = open_source(f"folder:{location}?on_error=skip")
    for part in (
        open_source(f"folder:{location}?limit=2"),
        open_source(f"folder:{location}?on_error=skip", limit=2),
        open_source(whole, limit=2),
    ):
        again = open_source(part.spec)
        assert (again.ids, again.spec) == (part.ids, part.spec)
        assert len(part) == 2


def test_a_question_mark_in_a_name_is_no_option(picture_folder: Path) -> None:
    location = picture_folder.rename(picture_folder.with_name("wh?at"))
    assert open_source(f"folder:{location}", limit=2).spec == f"folder:{location}?limit=2"
    assert open_source(open_source(f"folder:{location}"), limit=2).spec == f"folder:{location}?limit=2"


def test_home_is_expanded() -> None:
    assert parse_spec("folder:~/x").path == Path.home() / "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("test.npz", r"'test.npz' names no kind of source.*perhaps 'npz:test.npz'"),
        ("nothing", r"for example 'folder:val/'"),
        ("folder:", r"'folder:' says nothing after 'folder:'"),
        ("foldr:val", r"unknown scheme 'foldr' in 'foldr:val'; known schemes: cifar10, .*Did you mean 'folder'\?"),
        ("array:[4, 5, 6, 3]", r"'array:\[4, 5, 6, 3\]' stands for an array in memory; pass the array itself"),
        ("folder:val?limt=3", r"unknown option 'limt'.*known options: .*Did you mean 'limit'\?"),
        ("folder:val?limit=3&limit=4", r"option 'limit' stands twice"),
        ("folder:val?limit=3&x", r"'x' in .* is not an option"),
        ("folder:val?limit=", r"'limit=' in .* is not an option"),
        ("cifar10:x?split=tset", r"split='tset'.*none of test, train. Did you mean 'test'\?"),
    ],
)
def test_a_bad_text_is_told(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(text)


def test_a_bare_folder_is_recognized(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="perhaps 'folder:"):
        open_source(str(tmp_path))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(SourceError, match="'npz' is registered already"):
        source_scheme("npz", form="npz:", summary="again")(SOURCES["npz"].open)
