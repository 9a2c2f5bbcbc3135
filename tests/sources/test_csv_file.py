"""Tables of paths and labels."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import open_source
from tests.sources.conftest import labels_of, png_bytes


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], str]:
    """Write three images and a table of them; returns the spec of the table."""
    (tmp_path / "img").mkdir()
    for number in range(3):
        pixels = np.full((2, 3, 3), number, dtype=np.uint8)
        (tmp_path / "img" / f"{number}.png").write_bytes(png_bytes(pixels))

    def write(content: str, name: str = "list.csv") -> str:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return f"csv:{tmp_path / name}"

    return write


def test_paths_are_relative_to_the_table(table: Callable[[str], str]) -> None:
    source = open_source(table("path,label\nimg/2.png,1\nimg/0.png,0\n"))
    assert source.ids == ("img/2.png", "img/0.png")
    assert labels_of(source) == [1, 0]
    assert source.class_names is None
    assert source.read(0).tolist() == np.full((2, 3, 3), 2).tolist()


def test_class_names_are_numbered_in_sorted_order(table: Callable[[str], str]) -> None:
    source = open_source(table('\ufeffpath,label\nimg/0.png,"dog, big"\nimg/1.png,cat\nimg/2.png,cat\n'))
    assert source.class_names == ("cat", "dog, big")
    assert labels_of(source) == [1, 0, 0]


def test_class_names_are_numbered_by_a_classes_file(table: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("7\ndog\ncat\n")
    text = table("path,label\nimg/0.png,dog\nimg/1.png,7\n") + f"?classes={tmp_path}/names.txt"
    assert labels_of(open_source(text)) == [1, 0]


def test_decimal_numbers_are_class_indices(table: Callable[[str], str], tmp_path: Path) -> None:
    rows = "".join(f"img/{number}.png,{number}.0\n" for number in range(12))
    source = open_source(table("path,label\n" + rows))
    assert labels_of(source) == list(range(12))
    assert source.class_names is None
    assert labels_of(open_source(table("path,label\na,1.\nb,-0.0\nc,2e1\nd,3\n"))) == [1, 0, 20, 3]
    (tmp_path / "names.txt").write_text("-1\n1\n0.5\n")
    text = table("path,label\na,-1\nb,0.5\n") + f"?classes={tmp_path}/names.txt"
    assert labels_of(open_source(text)) == [0, 2]


def test_columns_can_be_named_and_separated_by_tabs(table: Callable[..., str]) -> None:
    text = table("file\tkind\nimg/0.png\t1\n", "list.tsv") + "?path=file&label=kind"
    assert labels_of(open_source(text)) == [1]


@pytest.mark.parametrize("content", ["path\nimg/0.png\n", "path,label\nimg/0.png,\n"])
def test_labels_are_optional(table: Callable[[str], str], content: str) -> None:
    assert labels_of(open_source(table(content))) is None


@pytest.mark.parametrize(
    ("content", "options", "value"),
    [
        ("Path,label\na,1\n", "", r"'path'.*Path, label.*'Path'\?"),
        ("", "", "'path'"),
        ("path,label\na,1\n", "?label=lable", r"'lable'.*'label'\?"),
        ("path,label\n", "", "no images"),
        ("path,label\nx,1\ny,2\nx,1\n", "", "'x' in lines 2 and 4"),
        ("path,label\n,1\n", "", "line 2 .*no path"),
        ("path,label\nx,1\ny,\n", "", "line 3 .*no label"),
        ("path,label\nx,cat\ny,2\n", "", "'2' in line 3"),
        ("path,label\nx,cat\ny,2.0\n", "", "'2.0' in line 3"),
        ("path,label\nx,0\ny,-1\n", "", "label -1 in line 3"),
        ("path,label\nx,0\ny,1.5\n", "", r"label 1.5 in line 3.*\?classes=FILE"),
        ("path,label\nx,99999999999999999999\n", "", "label 99999999999999999999 in line 2"),
        ("path,label\nx,1e-999999999\n", "", "label 1e-999999999 in line 2"),
        ("path,label\nx,1e999999999\n", "", "label 1e999999999 in line 2"),
        ("path,label\nx,1\na, b.png,2\n", "", "line 3 .*3 cells.*2 columns"),
        ('path,label\n"x,1\n', "", "unexpected end of data"),
    ],
)
def test_malformed_table_is_rejected(table: Callable[[str], str], content: str, options: str, value: str) -> None:
    with pytest.raises(SourceError, match=value):
        open_source(table(content) + options)


@pytest.mark.parametrize(("label", "value"), [("2", "label 2 of image 0"), ("dogs", r"'dogs' of image 0.*'dog'\?")])
def test_label_outside_the_classes_file_is_rejected(
    table: Callable[[str], str], tmp_path: Path, label: str, value: str
) -> None:
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    with pytest.raises(SourceError, match=value):
        open_source(table(f"path,label\nimg/0.png,{label}\n") + f"?classes={tmp_path}/names.txt")


def test_unreadable_table_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/none.csv"))):
        open_source(f"csv:{tmp_path}/none.csv")
    (tmp_path / "latin.csv").write_bytes(b"path\n\xe9.png\n")
    with pytest.raises(SourceError, match=r"latin\.csv'.*UTF-8"):
        open_source(f"csv:{tmp_path}/latin.csv")


def test_missing_image_is_unreadable_but_has_a_digest(table: Callable[[str], str]) -> None:
    source = open_source(table("path\nimg/0.png\nimg/none.png\n"))
    with pytest.raises(SourceError, match=r"img/none\.png"):
        list(source.batches(8))
    assert len(source.digest) == 64
