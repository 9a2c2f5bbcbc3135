"""Image files of a folder or of a table, and reading with unreadable images."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import encoded_sources, open_source
from secondlook.sources.encoded_sources import IgnoredFilesWarning
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


@pytest.mark.parametrize(
    ("place", "count", "kinds", "images"),
    [("", 3, "2 .gif, 1 .heic", 4), ("?labels=none", 3, "2 .gif, 1 .heic", 4), ("/dog", 1, "1 .heic", 2)],
)
def test_unsupported_images_are_counted_in_one_warning(
    picture_folder: Path, place: str, count: int, kinds: str, images: int
) -> None:
    put(picture_folder, "cat/a.gif", "cat/deep/b.GIF", "dog/c.heic", "dog/.d.gif", "dog/e.txt", "Thumbs.db", "f.json")
    with pytest.warns(UserWarning, match="ignoring") as warned:
        assert len(open_source(f"folder:{picture_folder}{place}")) == images
    (message,) = [str(warning.message) for warning in warned]
    assert f"ignoring {count} files of 'folder:{picture_folder}{place}'" in message
    assert f"({kinds})" in message


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
    (tmp_path / "more" / "deep" / "far.png").unlink()
    for name in ("cat/gone.png", "dog/lost.JPG"):
        (picture_folder / name).symlink_to(tmp_path / "nowhere")
    with pytest.warns(IgnoredFilesWarning, match=r"2 .*'cat/gone\.png'"):
        assert open_source(f"folder:{picture_folder}").ids == ("bird/b.png", "cat/1.png", "dog/3.png")


def test_labels_are_folders_in_order_or_in_that_of_a_file_or_none(picture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("eel\ndog\ncat\n")
    named = open_source(f"folder:{picture_folder}?classes={tmp_path}/names.txt")
    assert (labels_of(named), named.class_names) == ([2, 2, 1, 1], ("eel", "dog", "cat"))
    put(picture_folder, "stray.png")
    with pytest.raises(SourceError, match=r"1 images and 2 folders.*\?labels=none"):
        open_source(f"folder:{picture_folder}")
    flat, whole = open_source(f"folder:{picture_folder / 'cat'}"), open_source(f"folder:{picture_folder}?labels=none")
    assert flat.ids == ("0.png", "1.png")
    assert whole.ids == ("stray.png", "cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png")
    assert (flat.labels, flat.class_names, whole.labels) == (None, None, None)


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


def test_unreadable_images_are_an_error_or_skipped_and_listed_once(picture_folder: Path) -> None:
    whole = png_bytes(random_images(1, 30, 30)[0])
    (picture_folder / "cat" / "1-cut.png").write_bytes(whole[: len(whole) // 2])
    (picture_folder / "cat" / "1-empty.png").touch()
    (picture_folder / "cat" / "1-text.png").write_text("not an image at all")
    (picture_folder / "dog" / "9-big.png").write_bytes(png_bytes(np.zeros((50, 50, 3), dtype=np.uint8)))
    failing = open_source(f"folder:{picture_folder}").batches(1)
    assert next(failing).ids == ("cat/0.png",)
    with pytest.raises(SourceError, match=r"/cat/1-cut\.png .*on_error='skip'"):
        next(failing)
    source = open_source(f"folder:{picture_folder}?on_error=skip&max_pixels=1000")
    for _time in range(2):
        batches = list(source.batches(3))
        assert [batch.indices.tolist() for batch in batches] == [[0], [4, 5], [6]]
        assert batches[1].ids == ("cat/1.png", "dog/2.png")
    reasons = {skipped.id: skipped.reason for skipped in source.skipped}
    assert list(reasons) == ["cat/1-cut.png", "cat/1-empty.png", "cat/1-text.png", "dog/9-big.png"]
    assert reasons["cat/1-empty.png"] == "it is empty (0 bytes)"
    assert "50 x 50 = 2500 pixels" in reasons["dog/9-big.png"]
    part = open_source(source.with_on_error("skip").select(np.arange(3)))
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


def write_table(folder: Path, content: str, end: str = "csv") -> str:
    """Write a table, and return its spec."""
    (folder / f"list.{end}").write_text(content, encoding="utf-8")
    return f"csv:{folder}/list.{end}"


def test_paths_are_relative_to_the_table(tmp_path: Path) -> None:
    put(tmp_path, "img/2.png", "img/0.png")
    (tmp_path / "img" / "0.png").write_bytes(b"no image")
    source = open_source(write_table(tmp_path, "path,label\nimg/2.png,1\nimg/0.png,0\nimg/none.png,1\n"))
    assert (labels_of(source), source.class_names) == ([1, 0, 1], None)
    assert source.ids == ("img/2.png", "img/0.png", "img/none.png")
    assert [batch.indices.tolist() for batch in source.with_on_error("skip").batches(2)] == [[0]]
    with pytest.raises(SourceError, match=r"img/none\.png"):
        source.read(2)
    assert len(source.digest) == 64


@pytest.mark.parametrize(
    ("content", "options", "expected", "class_names"),
    [
        ('\ufeffpath,label\na,"dog, big"\nb,cat\nc,cat\n', "", [1, 0, 0], ("cat", "dog, big")),
        ("path,label\na,dog\nb,7\n", "?classes=7\ndog\ncat\n", [1, 0], ("7", "dog", "cat")),
        ("path,label\n" + "".join(f"{n},{n}.0\n" for n in range(12)), "", list(range(12)), None),
        ("path,label\na,1.\nb,-0.0\nc,2e1\nd,3\n", "", [1, 0, 20, 3], None),
        ("path,label\na,-1\nb,0.5\n", "?classes=-1\n1\n0.5\n", [0, 2], ("-1", "1", "0.5")),
        ("path\na\n", "", None, None),
        ("path,label\na,\n", "", None, None),
        ("file\tkind\nimg/0.png\t1\n", "?path=file&label=kind", [1], None),
    ],
)
def test_labels_are_decimal_numbers_or_names_in_order(
    tmp_path: Path, content: str, options: str, expected: list[int] | None, class_names: tuple[str] | None
) -> None:
    before, is_named, names = options.partition("classes=")
    (tmp_path / "names.txt").write_text(names)
    spec = write_table(tmp_path, content, "tsv" if "\t" in content else "csv")
    source = open_source(spec + before + f"{is_named}{tmp_path}/names.txt" * bool(is_named))
    assert (labels_of(source), source.class_names) == (expected, class_names)


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
        (b"path\n\xe9.png\n", "", r"list\.csv'.*UTF-8"),
        (None, "", r"/list\.csv'"),
    ],
)
def test_malformed_table_is_rejected(
    content: str | bytes | None, options: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.txt").write_text("dog\ncat\n")
    if content is not None:
        (tmp_path / "list.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SourceError, match=value):
        open_source(f"csv:{tmp_path}/list.csv{options}")
