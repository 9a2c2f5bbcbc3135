"""Tables of paths and labels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import Source, open_source


@pytest.fixture
def table(tmp_path: Path, encode_png: Callable[[Array], bytes]) -> Callable[[str], str]:
    """Three images and a table beside them; returns the table's text."""
    (tmp_path / "img").mkdir()
    for number in range(3):
        pixels = np.full((2, 3, 3), number, dtype=np.uint8)
        (tmp_path / "img" / f"{number}.png").write_bytes(encode_png(pixels))

    def write(content: str, name: str = "list.csv") -> str:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return f"csv:{tmp_path / name}"

    return write


def labels_of(source: Source) -> list[int] | None:
    return None if source.labels is None else [int(label) for label in source.labels]


def test_paths_are_relative_to_the_table(table: Callable[[str], str]) -> None:
    source = open_source(table("path,label\nimg/2.png,1\nimg/0.png,0\n"))
    assert source.ids == ("img/2.png", "img/0.png")
    assert labels_of(source) == [1, 0]
    assert source.class_names is None
    assert source.read(0).tolist() == np.full((2, 3, 3), 2).tolist()


def test_names_are_numbered_in_sorted_order(table: Callable[[str], str]) -> None:
    source = open_source(table('\ufeffpath,label\nimg/0.png,"dog, big"\nimg/1.png,cat\nimg/2.png,cat\n'))
    assert source.class_names == ("cat", "dog, big")
    assert labels_of(source) == [1, 0, 0]


def test_names_are_numbered_by_a_file_of_classes(table: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("7\ndog\ncat\n")
    text = table("path,label\nimg/0.png,dog\nimg/1.png,7\n") + f"?classes={tmp_path}/names.txt"
    assert labels_of(open_source(text)) == [1, 0]


def test_numbers_with_a_point_are_class_numbers(table: Callable[[str], str], tmp_path: Path) -> None:
    rows = "".join(f"img/{number}.png,{number}.0\n" for number in range(12))
    source = open_source(table("path,label\n" + rows))
    assert labels_of(source) == list(range(12))
    assert source.class_names is None
    assert labels_of(open_source(table("path,label\na,1.\nb,-0.0\nc,2e1\nd,3\n"))) == [1, 0, 20, 3]
    (tmp_path / "names.txt").write_text("-1\n1\n0.5\n")
    text = table("path,label\na,-1\nb,0.5\n") + f"?classes={tmp_path}/names.txt"
    assert labels_of(open_source(text)) == [0, 2]


def test_other_columns_tabs_and_no_labels(table: Callable[..., str]) -> None:
    text = table("file\tkind\nimg/0.png\t1\n", "list.tsv") + "?path=file&label=kind"
    assert labels_of(open_source(text)) == [1]
    assert labels_of(open_source(table("path\nimg/0.png\n"))) is None
    assert labels_of(open_source(table("path,label\nimg/0.png,\n"))) is None


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("Path,label\na,1\n", "", r"has no column 'path'; its first line names: Path, label.*Did you mean 'Path'"),
        ("", "", r"first line names: nothing"),
        ("path,label\na,1\n", "?label=lable", r"has no column 'lable'.*Did you mean 'label'"),
        ("path,label\n", "", r"holds no images"),
        ("path,label\nx,1\ny,2\nx,1\n", "", r"path 'x' stands in lines 2 and 4"),
        ("path,label\n,1\n", "", r"line 2 of .* has no path"),
        ("path,label\nx,1\ny,\n", "", r"line 3 of .* has no label, others have"),
        ("path,label\nx,cat\ny,2\n", "", r"mix numbers \(line 3: '2'\) and names"),
        ("path,label\nx,cat\ny,2.0\n", "", r"mix numbers \(line 3: '2.0'\) and names"),
        ("path,label\nx,0\ny,-1\n", "", r"line 3 of .* has the label -1, but a class number is 0, 1, 2 and so on"),
        ("path,label\nx,0\ny,1.5\n", "", r"line 3 of .* has the label 1.5, .*name the classes with \?classes=FILE"),
        ("path,label\nx,99999999999999999999\n", "", r"line 2 of .* has the label 99999999999999999999, but"),
        ("path,label\nx,1e-999999999\n", "", r"line 2 of .* has the label 1e-999999999, but"),
        ("path,label\nx,1e999999999\n", "", r"line 2 of .* has the label 1e999999999, but"),
        ("path,label\nx,1\na, b.png,2\n", "", r"line 3 of .* has 3 cells, but the first line names 2 columns; put"),
        ('path,label\n"x,1\n', "", r"cannot be read as a table: unexpected end of data"),
    ],
)
def test_a_bad_table_is_told(table: Callable[[str], str], content: str, options: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(table(content) + options)


def test_labels_outside_the_classes_are_told(table: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    with pytest.raises(SourceError, match=r"label 2 of image 0 .* 0 to 1 \(there are 2 class names\)"):
        open_source(table("path,label\nimg/0.png,2\n") + f"?classes={tmp_path}/names.txt")
    with pytest.raises(SourceError, match=r"class 'dogs' of image 0 .* Did you mean 'dog'"):
        open_source(table("path,label\nimg/0.png,dogs\n") + f"?classes={tmp_path}/names.txt")


def test_files_that_cannot_be_read_are_told(table: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot be read as a table: .*No such file"):
        open_source(f"csv:{tmp_path}/none.csv")
    (tmp_path / "latin.csv").write_bytes(b"path\n\xe9.png\n")
    with pytest.raises(SourceError, match=r"a CSV file in UTF-8 is needed"):
        open_source(f"csv:{tmp_path}/latin.csv")
    source = open_source(table("path\nimg/0.png\nimg/none.png\n"))
    with pytest.raises(SourceError, match=r"image .*img/none.png cannot be read: the file cannot be opened"):
        list(source.batches(8))
    assert len(source.digest) == 64
