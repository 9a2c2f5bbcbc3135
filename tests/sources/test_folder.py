"""Folders of image files, and reading with unreadable images."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import encoded_sources, open_source
from secondlook.sources.encoded_sources import IgnoredFilesWarning
from secondlook.sources.source import Skipped
from tests.sources.conftest import labels_of, png_bytes

SHARED = Path(__file__).resolve().parents[3] / "shared"
PIXELS = np.zeros((3, 4, 3), dtype=np.uint8)


def test_one_folder_per_class(picture_folder: Path) -> None:
    source = open_source(f"folder:{picture_folder}")
    assert source.ids == ("cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png")
    assert source.class_names == ("cat", "dog")
    assert labels_of(source) == [0, 0, 1, 1]


def test_hidden_and_other_files_are_ignored(picture_folder: Path) -> None:
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
        path.write_bytes(png_bytes(PIXELS))
    (picture_folder / "README.md").write_text("about")
    source = open_source(f"folder:{picture_folder}")
    assert source.ids[:4] == ("cat/0.png", "cat/1.png", "cat/UPPER.JPG", "cat/deep/er/x.TIFF")
    assert source.class_names == ("ant", "cat", "dog")
    assert len(source) == 6


def test_all_suffixes_of_jpeg_are_read(picture_folder: Path) -> None:
    for suffix in ("jpg", "jpeg", "jpe", "JFIF"):
        (picture_folder / "cat" / f"x.{suffix}").write_bytes(png_bytes(PIXELS))
    assert open_source(f"folder:{picture_folder}").ids[2:6] == ("cat/x.JFIF", "cat/x.jpe", "cat/x.jpeg", "cat/x.jpg")


def test_unsupported_images_are_counted_in_one_warning(picture_folder: Path) -> None:
    for name in ("cat/a.gif", "cat/deep/b.GIF", "dog/c.heic", "dog/.d.gif", "dog/e.txt", "Thumbs.db", "f.json"):
        (picture_folder / name).parent.mkdir(exist_ok=True)
        (picture_folder / name).touch()
    for options in ("", "?labels=none"):
        with pytest.warns(IgnoredFilesWarning) as warned:
            source = open_source(f"folder:{picture_folder}{options}")
        (message,) = [str(warning.message) for warning in warned]
        assert f"3 files of 'folder:{picture_folder}{options}'" in message
        assert "(2 .gif, 1 .heic)" in message
        assert len(source) == 4
    with pytest.warns(IgnoredFilesWarning, match=r"1 files .*\(1 \.heic\)"):
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


def test_flat_folder_has_no_labels(picture_folder: Path) -> None:
    source = open_source(f"folder:{picture_folder / 'cat'}")
    assert source.ids == ("0.png", "1.png")
    assert source.labels is None
    assert source.class_names is None


def test_images_beside_class_folders_are_rejected(picture_folder: Path) -> None:
    (picture_folder / "stray.png").write_bytes(png_bytes(PIXELS))
    with pytest.raises(SourceError, match=r"1 images and 2 folders.*\?labels=none"):
        open_source(f"folder:{picture_folder}")


def test_all_images_can_be_read_without_labels(picture_folder: Path) -> None:
    (picture_folder / "stray.png").write_bytes(png_bytes(PIXELS))
    source = open_source(f"folder:{picture_folder}?labels=none")
    assert source.ids == ("stray.png", "cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png")
    assert source.labels is None


def test_classes_file_sets_the_order_of_classes(picture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("eel\ndog\ncat\n")
    source = open_source(f"folder:{picture_folder}?classes={tmp_path}/names.txt")
    assert source.class_names == ("eel", "dog", "cat")
    assert labels_of(source) == [2, 2, 1, 1]


def test_invalid_classes_file_is_rejected(picture_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cats\ndog\n")
    with pytest.raises(SourceError, match=r"'cat' of image 0 .*'cats'\?"):
        open_source(f"folder:{picture_folder}?classes={tmp_path}/names.txt")
    with pytest.raises(SourceError, match=r"none\.txt'"):
        open_source(f"folder:{picture_folder}?classes={tmp_path}/none.txt")
    with pytest.raises(SourceError, match="classes="):
        open_source(f"folder:{picture_folder}/cat?classes={tmp_path}/names.txt")


def test_missing_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/nowhere"))):
        open_source(f"folder:{tmp_path}/nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/file"))):
        open_source(f"folder:{tmp_path}/file")


@pytest.mark.parametrize("options", ["", "?labels=none"])
def test_empty_folder_is_rejected(tmp_path: Path, options: str) -> None:
    with pytest.raises(SourceError, match=r"no images \(\.jpg, "):
        open_source(f"folder:{tmp_path}{options}")


@pytest.fixture
def damaged_folder(picture_folder: Path) -> Path:
    """Four readable images and four unreadable ones of different kinds."""
    whole = png_bytes(np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8))
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
    assert [skipped.id for skipped in source.skipped] == [
        "cat/1-cut.png",
        "cat/1-empty.png",
        "cat/1-text.png",
        "dog/9-big.png",
    ]
    assert source.skipped[1] == Skipped("cat/1-empty.png", "it is empty (0 bytes)")
    assert "50 x 50 = 2500 pixels" in source.skipped[3].reason


def test_subset_lists_its_own_skipped_images(damaged_folder: Path) -> None:
    source = open_source(f"folder:{damaged_folder}?limit=3&on_error=skip")
    assert [batch.indices.tolist() for batch in source.batches(8)] == [[0]]
    assert len(source.skipped) == 2


def test_digest_depends_on_ids_labels_and_bytes(picture_folder: Path) -> None:
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


def test_digest_does_not_depend_on_the_location(picture_folder: Path, tmp_path: Path) -> None:
    first = open_source(f"folder:{picture_folder}").digest
    picture_folder.rename(tmp_path / "moved")
    assert open_source(f"folder:{tmp_path}/moved").digest == first


def test_digest_of_a_large_folder_covers_sizes_and_times(picture_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_bytes = open_source(f"folder:{picture_folder}").digest
    monkeypatch.setattr(encoded_sources, "MAX_HASHED_BYTES", 10)
    of_status = open_source(f"folder:{picture_folder}").digest
    assert of_status != of_bytes
    assert open_source(f"folder:{picture_folder}").digest == of_status
    os.utime(picture_folder / "cat" / "0.png", ns=(1, 1))
    assert open_source(f"folder:{picture_folder}").digest != of_status


def test_file_name_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.png")).touch()
    with pytest.raises(SourceError, match=r"'caf\\udce9\.png'"):
        open_source(f"folder:{tmp_path}")
