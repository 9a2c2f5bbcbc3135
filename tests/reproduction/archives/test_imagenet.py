"""The ILSVRC 2012 validation images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from secondlook.errors import SourceError
from secondlook.sources import Source, open_source

WriteDevkit = Callable[[Path, list[int]], None]


def labels_of(source: Source) -> list[int]:
    assert source.labels is not None
    return [int(label) for label in source.labels]


def write_jpeg(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (gray, gray, gray)).save(path, "JPEG")


@pytest.mark.parametrize(("images", "devkit"), [("", ""), ("val", "ILSVRC2012_devkit_t12"), ("", "elsewhere")])
def test_labels_of_flat_images_are_mapped_through_the_devkit(
    tmp_path: Path, write_devkit: WriteDevkit, images: str, devkit: str
) -> None:
    # Numbers 1, 2, 3 are n03000000, n01000000, n02000000: class indices 2, 0, 1.
    write_devkit(tmp_path / devkit, [1, 2, 3, 1])
    for number in (1, 2, 3):
        write_jpeg(tmp_path / images / f"ILSVRC2012_val_{number:08d}.JPEG", 50 * number)
    option = f"?devkit={tmp_path}/elsewhere" if devkit == "elsewhere" else ""
    source = open_source(f"imagenet:{tmp_path}{option}")
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("n01000000 tench", "n02000000 crane", "n03000000 kit fox")
    assert source.ids[1] == "ILSVRC2012_val_00000002.JPEG"
    assert [int(source.read(index)[0, 0, 0]) for index in range(3)] == [50, 100, 150]


def test_synset_folders_with_the_devkit(tmp_path: Path, write_devkit: WriteDevkit) -> None:
    write_devkit(tmp_path, [1])
    write_jpeg(tmp_path / "val" / "n03000000" / "a.JPEG", 10)
    write_jpeg(tmp_path / "val" / "n02000000" / "b.JPEG", 20)
    source = open_source(f"imagenet:{tmp_path}")
    assert source.ids == ("n02000000/b.JPEG", "n03000000/a.JPEG")
    assert labels_of(source) == [1, 2]
    write_jpeg(tmp_path / "val" / "n09999999" / "c.JPEG", 20)
    with pytest.raises(SourceError, match="'n09999999'"):
        open_source(f"imagenet:{tmp_path}")


def test_synset_folders_without_the_devkit_must_be_a_thousand(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "n00000999" / "a.JPEG", 10)
    with pytest.raises(SourceError, match=r"1 synset folders.*1000"):
        open_source(f"imagenet:{tmp_path}")
    for number in range(999):
        (tmp_path / f"n{number:08d}").mkdir()
    source = open_source(f"imagenet:{tmp_path}")
    assert labels_of(source) == [999]
    assert source.class_names is not None
    assert len(source.class_names) == 1000


def test_missing_images_and_devkit_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"ILSVRC2012_img_val\.tar"):
        open_source(f"imagenet:{tmp_path}")
    write_jpeg(tmp_path / "ILSVRC2012_val_00000002.JPEG", 10)
    with pytest.raises(SourceError, match=r"ILSVRC2012_devkit_t12\.tar\.gz"):
        open_source(f"imagenet:{tmp_path}")
    with pytest.raises(SourceError, match=r"data/meta\.mat"):
        open_source(f"imagenet:{tmp_path}?devkit={tmp_path}")


@pytest.mark.parametrize(
    ("ground_truth", "value"),
    [("1\n", "ILSVRC2012_val_00000002"), ("1\n4\n", "line 2 .* 4; "), ("1\nx\n", r"ground_truth\.txt'.*'x'")],
)
def test_malformed_ground_truth_is_rejected(
    tmp_path: Path, write_devkit: WriteDevkit, ground_truth: str, value: str
) -> None:
    write_jpeg(tmp_path / "ILSVRC2012_val_00000002.JPEG", 10)
    write_devkit(tmp_path, [1])
    (tmp_path / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(ground_truth)
    with pytest.raises(SourceError, match=value):
        open_source(f"imagenet:{tmp_path}")


def test_malformed_synsets_are_rejected(tmp_path: Path, write_devkit: WriteDevkit) -> None:
    write_jpeg(tmp_path / "ILSVRC2012_val_00000001.JPEG", 10)
    write_devkit(tmp_path, [1])
    savemat(tmp_path / "data" / "meta.mat", {"synsets": np.zeros((2, 1), dtype=[("WNID", object)])})
    with pytest.raises(SourceError, match=r"meta\.mat'.*'ILSVRC2012_ID'.*WNID"):
        open_source(f"imagenet:{tmp_path}")
