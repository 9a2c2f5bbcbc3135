"""`open_source`: specs, arguments and the registry of schemes."""

import re
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import SOURCES, ArraySource, open_source, source_scheme

IMAGES = np.zeros((3, 4, 5, 3), dtype=np.uint8)


def make_source() -> ArraySource:
    return ArraySource(IMAGES, spec="my images", ids=["a", "b", "c"])


@pytest.mark.parametrize("name", ["wh?at", "wh?at=1", "x=1?y", "50%", "a?b&c"])
def test_spec_of_a_subset_opens_it_again_whatever_the_folder_name(name: str, picture_folder: Path) -> None:
    location = picture_folder.rename(picture_folder.with_name(name))
    whole = open_source(f"folder:{location}?on_error=skip")
    for subset in (
        open_source(f"folder:{location}?limit=2"),
        open_source(f"folder:{location}?on_error=skip", limit=2),
        open_source(whole, limit=2),
    ):
        again = open_source(subset.spec)
        assert (again.ids, again.spec) == (subset.ids, subset.spec)
        assert len(subset) == 2


def test_question_mark_in_a_folder_name_is_not_an_option(picture_folder: Path) -> None:
    location = picture_folder.rename(picture_folder.with_name("wh?at"))
    assert open_source(f"folder:{location}", limit=2).spec == f"folder:{location}?limit=2"
    assert open_source(open_source(f"folder:{location}"), limit=2).spec == f"folder:{location}?limit=2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("folder:", "'folder:'"),
        ("array:[4, 5, 6, 3]", "'array:[4, 5, 6, 3]'"),
        ("folder:val?limit=3&limit=4", "duplicate option 'limit'"),
        ("folder:val?limit=3&x", "'x'"),
        ("folder:val?limit=", "'limit='"),
    ],
)
def test_malformed_spec_is_rejected(text: str, value: str) -> None:
    with pytest.raises(SourceError, match=re.escape(value)):
        open_source(text)


@pytest.mark.parametrize(
    ("text", "value", "closest"),
    [
        ("foldr:val", "'foldr'", "folder"),
        ("folder:val?limt=3", "'limt'", "limit"),
        ("npz:x?subset=evalation", "subset='evalation'", "evaluation"),
    ],
)
def test_unknown_name_is_rejected_with_a_suggestion(text: str, value: str, closest: str) -> None:
    with pytest.raises(SourceError, match=rf"{value}.*'{closest}'\?"):
        open_source(text)


def test_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(SourceError) as caught:
        open_source("nope:val")
    assert all(scheme.form in str(caught.value) for scheme in SOURCES.values())


@pytest.mark.parametrize("text", ["test.npz", "list.csv", "list.tsv", "data.parquet", "nothing"])
def test_path_without_a_scheme_is_rejected_with_a_suggestion(text: str) -> None:
    schemes = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "hf"}
    scheme = schemes.get(Path(text).suffix)
    with pytest.raises(SourceError, match=re.escape(f"'{scheme}:{text}'" if scheme else "'folder:val/'")):
        open_source(text)


@pytest.mark.parametrize("text", ["a" * 5000, "a\0b", "~nobody/val"])
def test_text_that_cannot_be_a_path_is_rejected(text: str) -> None:
    with pytest.raises(SourceError, match="no scheme"):
        open_source(text)


def test_folder_without_a_scheme_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(f"'folder:{tmp_path}'")):
        open_source(str(tmp_path))


def test_open_source_is_returned_as_it_is() -> None:
    source = make_source()
    assert open_source(source) is source
    assert open_source(source, on_error="fail") is source
    assert open_source(source, on_error="skip").on_error == "skip"


def test_any_text_can_name_a_users_source() -> None:
    assert open_source(make_source(), limit=2).spec == "my images?limit=2"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"labels": [0]}, "'my images'"),
        ({"max_pixels": 5}, "max_pixels"),
        ({"max_bytes": 5}, "max_bytes"),
        ({"on_error": "skipp"}, "'skipp'.*'skip'"),
    ],
)
def test_invalid_argument_for_an_open_source_is_rejected(arguments: dict[str, object], value: str) -> None:
    with pytest.raises(SourceError, match=value):
        open_source(make_source(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "arguments", "value"),
    [
        ("folder:x", {"labels": [0]}, "'folder:x'"),
        ("folder:x?limit=3", {"limit": 3}, "limit="),
        ("folder:x?max_pixels=0", {}, "max_pixels='0'"),
        ("folder:x?max_bytes=1G", {}, "max_bytes='1G'"),
        ("folder:x?on_error=ignore", {}, "on_error='ignore'"),
    ],
)
def test_invalid_argument_for_a_spec_is_rejected(text: str, arguments: dict[str, object], value: str) -> None:
    with pytest.raises(SourceError, match=value):
        open_source(text, **arguments)  # type: ignore[arg-type]


def test_object_of_another_type_is_rejected() -> None:
    with pytest.raises(SourceError, match="type float"):
        open_source(0.5)
    with pytest.raises(SourceError, match="'val' is not an image file"):
        open_source(Path("val"))


def test_scheme_can_be_registered_once_only() -> None:
    with pytest.raises(SourceError, match="'npz'"):
        source_scheme("npz", form="npz:", summary="again")(SOURCES["npz"].open)
