"""Folders of image files, and reading that goes on or stops at a bad one."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import IgnoredFilesWarning, Skipped, image_files, open_source

PIXELS = np.zeros((3, 4, 3), dtype=np.uint8)
Encode = Callable[[Array], bytes]


def test_a_folder_per_class(picture_folder: Path) -> None:
    source = open_source(f"folder:{picture_folder}")
    assert source.ids == ("cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png")
    assert source.class_names == ("cat", "dog")
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1, 1]


def test_what_counts_as_an_image(picture_folder: Path, encode_png: Encode) -> None:
    for name in (
        "cat/UPPER.JPG",
        "cat/deep/er/x.TIFF",
        "cat/.hidden.png",
        ".git/x.png",
        "cat/.cache/x.png",
        "ant/a.txt",
    ):
        path = picture_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(PIXELS))
    (picture_folder / "README.md").write_text("about")
    source = open_source(f"folder:{picture_folder}")
    assert source.ids[:4] == ("cat/0.png", "cat/1.png", "cat/UPPER.JPG", "cat/deep/er/x.TIFF")
    assert source.class_names == ("ant", "cat", "dog")
    assert len(source) == 6


def test_a_jpeg_has_four_endings(picture_folder: Path, encode_png: Encode) -> None:
    for ending in ("jpg", "jpeg", "jpe", "JFIF"):
        (picture_folder / "cat" / f"x.{ending}").write_bytes(encode_png(PIXELS))
    assert open_source(f"folder:{picture_folder}").ids[2:6] == ("cat/x.JFIF", "cat/x.jpe", "cat/x.jpeg", "cat/x.jpg")


def test_images_of_other_kinds_are_counted_and_told_once(picture_folder: Path) -> None:
    for name in ("cat/a.gif", "cat/deep/b.GIF", "dog/c.heic", "dog/.d.gif", "dog/e.txt", "Thumbs.db", "f.json"):
        (picture_folder / name).parent.mkdir(exist_ok=True)
        (picture_folder / name).touch()
    for options in ("", "?labels=none"):
        with pytest.warns(IgnoredFilesWarning) as warned:
            source = open_source(f"folder:{picture_folder}{options}")
        assert [str(each.message) for each in warned] == [
            f"'folder:{picture_folder}{options}' leaves out 3 files that are not JPEG, PNG, WebP, BMP or TIFF "
            "(2 .gif, 1 .heic); convert them to one of these to have them read."
        ]
        assert len(source) == 4
    with pytest.warns(IgnoredFilesWarning, match=r"leaves out 1 files .*\(1 \.heic\)"):
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


def test_a_flat_folder_has_no_labels(picture_folder: Path) -> None:
    source = open_source(f"folder:{picture_folder / 'cat'}")
    assert source.ids == ("0.png", "1.png")
    assert source.labels is None
    assert source.class_names is None


def test_a_mix_is_told_and_can_be_read_without_labels(picture_folder: Path, encode_png: Encode) -> None:
    (picture_folder / "stray.png").write_bytes(encode_png(PIXELS))
    with pytest.raises(SourceError, match=r"mixes 1 images of its own with 2 folders of images; .*\?labels=none"):
        open_source(f"folder:{picture_folder}")
    source = open_source(f"folder:{picture_folder}?labels=none")
    assert source.ids == ("stray.png", "cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png")
    assert source.labels is None


def test_the_order_of_classes_can_be_given(picture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("eel\ndog\ncat\n")
    source = open_source(f"folder:{picture_folder}?classes={tmp_path}/names.txt")
    assert source.class_names == ("eel", "dog", "cat")
    assert source.labels is not None
    assert source.labels.tolist() == [2, 2, 1, 1]
    (tmp_path / "names.txt").write_text("cats\ndog\n")
    with pytest.raises(
        SourceError, match=r"class 'cat' of image 0 .* not among the 2 class names. Did you mean 'cats'"
    ):
        open_source(f"folder:{picture_folder}?classes={tmp_path}/names.txt")
    with pytest.raises(SourceError, match=r"class names file '.*none.txt' .* cannot be read"):
        open_source(f"folder:{picture_folder}?classes={tmp_path}/none.txt")
    with pytest.raises(SourceError, match=r"classes= has no use"):
        open_source(f"folder:{picture_folder}/cat?classes={tmp_path}/names.txt")


def test_missing_and_empty_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"'.*nowhere' is no folder \(nothing is there\); folder: needs"):
        open_source(f"folder:{tmp_path}/nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"is no folder \(a file is there\)"):
        open_source(f"folder:{tmp_path}/file")
    with pytest.raises(SourceError, match=r"no images \(\.jpg, .*\) lie in"):
        open_source(f"folder:{tmp_path}")
    with pytest.raises(SourceError, match=r"no images"):
        open_source(f"folder:{tmp_path}?labels=none")


@pytest.fixture
def damaged_folder(picture_folder: Path, encode_png: Encode) -> Path:
    """Four good images and four bad ones of different kinds."""
    whole = encode_png(np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8))
    (picture_folder / "cat" / "1-cut.png").write_bytes(whole[: len(whole) // 2])
    (picture_folder / "cat" / "1-empty.png").touch()
    (picture_folder / "cat" / "1-text.png").write_text("not a picture at all")
    (picture_folder / "dog" / "9-big.png").write_bytes(encode_png(np.zeros((50, 50, 3), dtype=np.uint8)))
    return picture_folder


def test_fail_stops_with_the_path_and_the_reason(damaged_folder: Path) -> None:
    batches = open_source(f"folder:{damaged_folder}").batches(1)
    assert next(batches).ids == ("cat/0.png",)
    with pytest.raises(SourceError, match=r"image .*/cat/1-cut.png cannot be read: it is damaged .* on_error='skip'"):
        next(batches)


def test_skip_goes_on_counts_and_lists(damaged_folder: Path) -> None:
    source = open_source(f"folder:{damaged_folder}?on_error=skip&max_pixels=1000")
    for _time in range(2):
        batches = list(source.batches(3))
        assert [batch.indices.tolist() for batch in batches] == [[0], [4, 5], [6]]
        assert batches[1].ids == ("cat/1.png", "dog/2.png")
    assert [skipped.id for skipped in source.skipped] == [
        "cat/1-cut.png",
        "cat/1-empty.png",
        "cat/1-text.png",
        "dog/9-big.png",
    ]
    assert source.skipped[1] == Skipped("cat/1-empty.png", "it is empty (0 bytes)")
    assert "50 x 50 = 2500 pixels" in source.skipped[3].reason


def test_a_batch_with_nothing_left_is_left_out(damaged_folder: Path) -> None:
    source = open_source(f"folder:{damaged_folder}", on_error="skip")
    assert [batch.indices.tolist() for batch in source.batches(1)] == [[0], [4], [5], [6], [7]]


def test_a_part_skips_for_itself(damaged_folder: Path) -> None:
    source = open_source(f"folder:{damaged_folder}?limit=3&on_error=skip")
    assert [batch.indices.tolist() for batch in source.batches(8)] == [[0]]
    assert len(source.skipped) == 2


def test_the_digest_follows_names_labels_and_bytes(picture_folder: Path) -> None:
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
    assert renamed != first
    (picture_folder / "cat" / "00.png").rename(picture_folder / "dog" / "0.png")
    assert digest() not in (first, renamed)


def test_the_digest_does_not_depend_on_where_the_folder_is(picture_folder: Path, tmp_path: Path) -> None:
    first = open_source(f"folder:{picture_folder}").digest
    picture_folder.rename(tmp_path / "moved")
    assert open_source(f"folder:{tmp_path}/moved").digest == first


def test_a_large_folder_is_known_by_sizes_and_times(picture_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_bytes = open_source(f"folder:{picture_folder}").digest
    monkeypatch.setattr(image_files, "HASHED_BYTES", 10)
    by_status = open_source(f"folder:{picture_folder}").digest
    assert by_status != by_bytes
    assert open_source(f"folder:{picture_folder}").digest == by_status
    os.utime(picture_folder / "cat" / "0.png", ns=(1, 1))
    assert open_source(f"folder:{picture_folder}").digest != by_status


def test_a_name_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.png")).touch()
    with pytest.raises(SourceError, match=r"the name 'caf\\udce9\.png' in 'folder:.*' is not UTF-8; rename the file"):
        open_source(f"folder:{tmp_path}")
