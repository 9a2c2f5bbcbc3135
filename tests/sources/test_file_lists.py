"""Image files of a folder or of a table, and reading with unreadable images."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import encoded_sources, open_source
from tests.sources.conftest import labels_of, png_bytes, random_images

PNG = png_bytes(np.zeros((3, 4, 3), dtype=np.uint8))


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(PNG)


def test_one_folder_per_class_without_hidden_and_other_files(picture_folder: Path) -> None:
    put(
        picture_folder,
        "cat/UPPER.JPG",
        "cat/deep/er/x.TIFF",
        *(f"cat/x.{end}" for end in ("jpg", "jpeg", "jpe", "JFIF")),
    )
    put(picture_folder, "cat/.hidden.png", ".git/x.png", "cat/.cache/x.png", "ant/a.txt", "README.md")
    source = open_source(f"folder:{picture_folder}")
    cats = ("0.png", "1.png", "UPPER.JPG", "x.JFIF", "x.jpe", "x.jpeg", "x.jpg", "deep/er/x.TIFF")
    assert source.ids == (*(f"cat/{name}" for name in cats), "dog/2.png", "dog/3.png")
    assert source.class_names == ("ant", "cat", "dog")
    assert labels_of(source) == [1] * 8 + [2] * 2


def test_unsupported_images_are_counted_in_one_warning(picture_folder: Path) -> None:
    put(picture_folder, "cat/a.gif", "cat/deep/b.GIF", "dog/c.heic", "dog/.d.gif", "dog/e.txt", "Thumbs.db", "f.json")
    for options in ("", "?labels=none"):
        with pytest.warns(UserWarning, match="ignoring") as warned:
            source = open_source(f"folder:{picture_folder}{options}")
        (message,) = [str(warning.message) for warning in warned]
        assert f"3 files of 'folder:{picture_folder}{options}'" in message
        assert "(2 .gif, 1 .heic)" in message
        assert len(source) == 4
    with pytest.warns(UserWarning, match=r"ignoring 1 files .*\(1 \.heic\)"):
        open_source(f"folder:{picture_folder / 'dog'}")


def test_links_to_folders_are_followed_but_not_in_circles(picture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "more" / "deep").mkdir(parents=True)
    (tmp_path / "bird").mkdir()
    (picture_folder / "cat" / "0.png").rename(tmp_path / "more" / "deep" / "far.png")
    (picture_folder / "dog" / "2.png").rename(tmp_path / "bird" / "b.png")
    links = {
        picture_folder / "cat" / "link": tmp_path / "more",
        picture_folder / "bird": tmp_path / "bird",
        tmp_path / "bird" / "up": picture_folder,
        tmp_path / "more" / "deep" / "again": tmp_path / "more",
        picture_folder / "cat" / "back": picture_folder,
        picture_folder / "cat" / "self": picture_folder / "cat" / "self",
        picture_folder / "whole": picture_folder,
    }
    for link, target in links.items():
        link.symlink_to(target)
    source = open_source(f"folder:{picture_folder}")
    assert source.ids == ("bird/b.png", "cat/1.png", "cat/link/deep/far.png", "dog/3.png")
    assert source.class_names == ("bird", "cat", "dog")
    assert len(next(source.batches(8)).images) == 4


def test_flat_folder_and_all_images_of_a_folder_have_no_labels(picture_folder: Path) -> None:
    put(picture_folder, "stray.png")
    with pytest.raises(SourceError, match=r"1 images and 2 folders.*\?labels=none"):
        open_source(f"folder:{picture_folder}")
    flat, whole = open_source(f"folder:{picture_folder / 'cat'}"), open_source(f"folder:{picture_folder}?labels=none")
    assert flat.ids == ("0.png", "1.png")
    assert whole.ids == ("stray.png", "cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png")
    assert (flat.labels, flat.class_names, whole.labels) == (None, None, None)


def test_classes_file_sets_the_order_of_classes(picture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("eel\ndog\ncat\n")
    source = open_source(f"folder:{picture_folder}?classes={tmp_path}/names.txt")
    assert source.class_names == ("eel", "dog", "cat")
    assert labels_of(source) == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("pictures?classes={}/wrong.txt", r"'cat' of image 0 .*'cats'\?"),
        ("pictures?classes={}/none.txt", r"none\.txt'"),
        ("pictures/cat?classes={}/wrong.txt", "classes="),
        ("nowhere", "/nowhere'"),
        ("wrong.txt", "/wrong.txt'"),
        ("empty", r"no images \(\.jpg, "),
        ("empty?labels=none", r"no images \(\.jpg, "),
        ("latin", r"'caf\\udce9\.png'"),
    ],
)
@pytest.mark.usefixtures("picture_folder")
def test_folder_that_cannot_be_opened(tmp_path: Path, location: str, found: str) -> None:
    (tmp_path / "wrong.txt").write_text("cats\ndog\n")
    (tmp_path / "empty").mkdir()
    put(tmp_path, os.fsdecode(b"latin/caf\xe9.png"))
    with pytest.raises(SourceError, match=found):
        open_source(f"folder:{tmp_path}/{location.format(tmp_path)}")


@pytest.fixture
def damaged_folder(picture_folder: Path) -> Path:
    """Four readable images and four unreadable ones of different kinds."""
    whole = png_bytes(random_images(1, 30, 30)[0])
    (picture_folder / "cat" / "1-cut.png").write_bytes(whole[: len(whole) // 2])
    (picture_folder / "cat" / "1-empty.png").touch()
    (picture_folder / "cat" / "1-text.png").write_text("not an image at all")
    (picture_folder / "dog" / "9-big.png").write_bytes(png_bytes(np.zeros((50, 50, 3), dtype=np.uint8)))
    return picture_folder


def test_fail_raises_at_the_first_unreadable_image(damaged_folder: Path) -> None:
    batches = open_source(f"folder:{damaged_folder}").batches(1)
    assert next(batches).ids == ("cat/0.png",)
    with pytest.raises(SourceError, match=r"/cat/1-cut\.png .*on_error='skip'"):
        next(batches)


def test_skip_continues_and_lists_skipped_images_once(damaged_folder: Path) -> None:
    source = open_source(f"folder:{damaged_folder}?on_error=skip&max_pixels=1000")
    for _time in range(2):
        batches = list(source.batches(3))
        assert [batch.indices.tolist() for batch in batches] == [[0], [4, 5], [6]]
        assert batches[1].ids == ("cat/1.png", "dog/2.png")
    reasons = {skipped.id: skipped.reason for skipped in source.skipped}
    assert list(reasons) == ["cat/1-cut.png", "cat/1-empty.png", "cat/1-text.png", "dog/9-big.png"]
    assert reasons["cat/1-empty.png"] == "it is empty (0 bytes)"
    assert "50 x 50 = 2500 pixels" in reasons["dog/9-big.png"]
    part = open_source(f"folder:{damaged_folder}?limit=3&on_error=skip")
    assert [batch.indices.tolist() for batch in part.batches(8)] == [[0]]
    assert len(part.skipped) == 2


def test_digest_depends_on_ids_labels_and_bytes_but_not_on_the_location(picture_folder: Path, tmp_path: Path) -> None:
    def digest() -> str:
        return open_source(f"folder:{picture_folder}").digest

    first = digest()
    path = picture_folder / "cat" / "0.png"
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest() != first
    path.write_bytes(content)
    assert digest() == first
    path.rename(picture_folder / "cat" / "00.png")
    renamed = digest()
    (picture_folder / "cat" / "00.png").rename(picture_folder / "dog" / "0.png")
    assert len({digest(), first, renamed}) == 3
    (picture_folder / "dog" / "0.png").rename(path)
    picture_folder.rename(tmp_path / "moved")
    assert open_source(f"folder:{tmp_path}/moved").digest == first


@pytest.mark.parametrize(
    ("scheme", "file"), [("folder", "cat/0.png"), ("parquet", "a.parquet"), ("webdataset", "shards/shard-0000.tar")]
)
def test_digest_of_large_files_covers_sizes_and_times(
    scheme: str, file: str, tmp_path: Path, samples: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = samples(scheme)
    of_bytes = open_source(spec).digest
    monkeypatch.setattr(encoded_sources, "MAX_HASHED_BYTES", 100)
    of_status = open_source(spec).digest
    assert open_source(spec).digest == of_status != of_bytes
    status, content = (tmp_path / file).stat(), (tmp_path / file).read_bytes()
    source = open_source(spec)
    (tmp_path / file).write_bytes(bytes(len(content)))
    os.utime(tmp_path / file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert source.digest == of_status, "no image is read"
    (tmp_path / file).write_bytes(content)
    os.utime(tmp_path / file, ns=(1, 1))
    assert open_source(spec).digest != of_status


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    """Write a table, and a file of class names where they are given; returns the spec of the table."""

    def write(content: str, name: str = "list.csv", classes: str = "") -> str:
        (tmp_path / name).write_text(content, encoding="utf-8")
        (tmp_path / "names.txt").write_text(classes)
        return f"csv:{tmp_path / name}" + (f"?classes={tmp_path}/names.txt" if classes else "")

    return write


def test_paths_are_relative_to_the_table(table: Callable[..., str], tmp_path: Path) -> None:
    put(tmp_path, "img/2.png", "img/0.png")
    (tmp_path / "img" / "0.png").write_bytes(b"no image")
    source = open_source(table("path,label\nimg/2.png,1\nimg/0.png,0\n"), on_error="skip")
    assert source.ids == ("img/2.png", "img/0.png")
    assert labels_of(source) == [1, 0]
    assert source.class_names is None
    assert [batch.indices.tolist() for batch in source.batches(2)] == [[0]]


@pytest.mark.parametrize(
    ("content", "classes", "expected", "class_names"),
    [
        ('\ufeffpath,label\na,"dog, big"\nb,cat\nc,cat\n', "", [1, 0, 0], ("cat", "dog, big")),
        ("path,label\na,dog\nb,7\n", "7\ndog\ncat\n", [1, 0], ("7", "dog", "cat")),
        ("path,label\n" + "".join(f"{n},{n}.0\n" for n in range(12)), "", list(range(12)), None),
        ("path,label\na,1.\nb,-0.0\nc,2e1\nd,3\n", "", [1, 0, 20, 3], None),
        ("path,label\na,-1\nb,0.5\n", "-1\n1\n0.5\n", [0, 2], ("-1", "1", "0.5")),
        ("path\na\n", "", None, None),
        ("path,label\na,\n", "", None, None),
    ],
)
def test_labels_are_decimal_numbers_or_names_in_order(
    table: Callable[..., str], content: str, classes: str, expected: list[int] | None, class_names: tuple[str] | None
) -> None:
    source = open_source(table(content, classes=classes))
    assert (labels_of(source), source.class_names) == (expected, class_names)


def test_columns_can_be_named_and_separated_by_tabs(table: Callable[..., str]) -> None:
    text = table("file\tkind\nimg/0.png\t1\n", "list.tsv") + "?path=file&label=kind"
    assert labels_of(open_source(text)) == [1]


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
        ("path,label\nx,2\n", "?classes=two.txt", "label 2 of image 0"),
        ("path,label\nx,dogs\n", "?classes=two.txt", r"'dogs' of image 0.*'dog'\?"),
    ],
)
def test_malformed_table_is_rejected(
    table: Callable[..., str], content: str, options: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.txt").write_text("dog\ncat\n")
    with pytest.raises(SourceError, match=value):
        open_source(table(content) + options)


def test_unreadable_table_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/none.csv"))):
        open_source(f"csv:{tmp_path}/none.csv")
    (tmp_path / "latin.csv").write_bytes(b"path\n\xe9.png\n")
    with pytest.raises(SourceError, match=r"latin\.csv'.*UTF-8"):
        open_source(f"csv:{tmp_path}/latin.csv")


def test_missing_image_is_unreadable_but_has_a_digest(table: Callable[..., str], tmp_path: Path) -> None:
    put(tmp_path, "img/0.png")
    source = open_source(table("path\nimg/0.png\nimg/none.png\n"))
    with pytest.raises(SourceError, match=r"img/none\.png"):
        list(source.batches(8))
    assert len(source.digest) == 64
