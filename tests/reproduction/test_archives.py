"""The official files of CIFAR, SVHN, STL-10 and ImageNet, which obey the laws of all sources."""

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from reproduction import archives
from secondlook.errors import SourceError
from secondlook.sources import SOURCES, open_source
from tests.reproduction.conftest import write_cifar10, write_cifar100, write_devkit, write_stl10, write_svhn
from tests.sources import test_laws as laws
from tests.sources.conftest import labels_of, random_images, read_all

DIGITS = random_images(3, 32, 32)
ROWS = np.zeros((2, 3072), dtype=np.uint8)
ARCHIVES = [name for name, scheme in SOURCES.items() if scheme.open.__module__ == archives.__name__]
LAWS: list[Callable[[str, Callable[[str], str]], None]] = [
    laws.test_batches_contain_every_image_with_its_label,
    laws.test_spec_opens_the_same_data_and_subsets_again,
    laws.test_extracted_images_are_the_same,
    laws.test_extracted_images_are_as_small_as_they_are_few,
]


def test_all_archives_are_registered_and_documented() -> None:
    assert ARCHIVES == ["cifar10", "cifar100", "svhn", "stl10", "imagenet"]
    for scheme in ARCHIVES:
        laws.check_record(scheme, "background/reproduction.md")


@pytest.mark.parametrize("scheme", ARCHIVES)
@pytest.mark.parametrize("law", LAWS)
def test_archives_obey_the_laws_of_sources(law: Any, scheme: str, samples: Callable[[str], str]) -> None:
    law(scheme, samples)


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, inside: str) -> None:
    write_cifar10(tmp_path / inside, DIGITS, [2, 0, 1])
    source = open_source(f"cifar10:{tmp_path}")
    np.testing.assert_array_equal(read_all(source), DIGITS)
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("plane", "car", "bird")
    train = open_source(f"cifar10:{tmp_path}?split=train")
    assert len(train) == 15
    np.testing.assert_array_equal(read_all(train)[3:6], np.roll(DIGITS, 2, axis=1))


def test_cifar100(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-python", DIGITS, [2, 0, 1], [1, 0, 1])
    source = open_source(f"cifar100:{tmp_path}")
    np.testing.assert_array_equal(read_all(source), DIGITS)
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("apple", "bear", "cup")
    coarse = open_source(f"cifar100:{tmp_path}?labels=coarse&split=train")
    assert labels_of(coarse) == [1, 0, 1]
    assert coarse.class_names == ("fruit", "thing")


@pytest.mark.parametrize(
    ("spec", "file", "archive"),
    [
        ("cifar10:{}", "batches.meta", "cifar-10-python.tar.gz"),
        ("cifar100:{}", "meta", "cifar-100-python.tar.gz"),
        ("svhn:{}?split=train", "train_32x32.mat", "SVHN"),
        ("stl10:{}", "test_X.bin", "stl10_binary.tar.gz"),
    ],
)
def test_missing_files_are_told_with_their_archive(tmp_path: Path, spec: str, file: str, archive: str) -> None:
    with pytest.raises(SourceError, match=f"{re.escape(repr(file))}.*{re.escape(archive)}"):
        open_source(spec.format(tmp_path))
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/nowhere"))):
        open_source(spec.format(f"{tmp_path}/nowhere"))


def test_malformed_cifar_batch_is_rejected(tmp_path: Path) -> None:
    write_cifar10(tmp_path, DIGITS, [2, 0, 1])
    for content, value in (
        ({b"data": np.zeros((2, 100), dtype=np.uint8), b"labels": [0, 1]}, r"uint8 \[2, 100\]"),
        ({b"data": ROWS}, "'labels'"),
        ({b"data": ROWS, b"labels": [0, 3]}, "label 3 of image 1"),
        ({b"data": ROWS, b"labels": [0, [1]]}, "'labels'"),
    ):
        (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(SourceError, match=value):
            open_source(f"cifar10:{tmp_path}")
    (tmp_path / "test_batch").unlink()
    with pytest.raises(SourceError, match=r"test_batch'.*No such file"):
        open_source(f"cifar10:{tmp_path}")


def test_svhn_label_10_is_the_digit_0_and_malformed_files_are_rejected(tmp_path: Path) -> None:
    write_svhn(tmp_path, DIGITS, [10, 1, 9])
    source = open_source(f"svhn:{tmp_path}")
    assert labels_of(source) == [0, 1, 9]
    assert source.class_names == tuple("0123456789")
    np.testing.assert_array_equal(read_all(source), DIGITS)
    (tmp_path / "test_32x32.mat").write_bytes(b"no MATLAB file")
    with pytest.raises(SourceError, match=re.escape("test_32x32.mat'")):
        open_source(f"svhn:{tmp_path}")
    columns = DIGITS.transpose(1, 2, 3, 0)
    wrong: dict[str, dict[str, object]] = {"0 to 9": {"X": columns, "y": [0, 1, 9]}, "'y'": {"X": DIGITS}}
    for value, content in {**wrong, "uint8 [3, 32, 32, 3]": {"X": DIGITS, "y": [1, 2, 3]}}.items():
        savemat(tmp_path / "test_32x32.mat", content)
        with pytest.raises(SourceError, match=re.escape(value)):
            open_source(f"svhn:{tmp_path}")


@pytest.mark.parametrize("inside", ["", "stl10_binary"])
def test_stl10(tmp_path: Path, inside: str) -> None:
    images = random_images(2, 96, 96)
    write_stl10(tmp_path / inside, images, [1, 10])
    source = open_source(f"stl10:{tmp_path}")
    np.testing.assert_array_equal(read_all(source), images)
    assert labels_of(source) == [0, 9]
    assert source.class_names is not None
    assert source.class_names[9] == "truck"
    os.truncate(tmp_path / inside / "test_X.bin", 30_000)
    np.testing.assert_array_equal(source.read(1), images[1])
    (tmp_path / inside / "train_X.bin").rename(tmp_path / inside / "unlabeled_X.bin")
    assert open_source(f"stl10:{tmp_path}?split=unlabeled").labels is None


def test_malformed_stl10_files_are_rejected(tmp_path: Path) -> None:
    write_stl10(tmp_path, np.zeros((2, 96, 96, 3), dtype=np.uint8), [0, 10])
    with pytest.raises(SourceError, match=r"test_y\.bin'.*0 to 10"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_y.bin").unlink()
    with pytest.raises(SourceError, match=r"test_y\.bin'"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_X.bin").write_bytes(b"123")
    with pytest.raises(SourceError, match=r"test_X\.bin' .*3 bytes.*27648"):
        open_source(f"stl10:{tmp_path}")


def write_jpeg(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (gray, gray, gray)).save(path, "JPEG")


@pytest.mark.parametrize(("images", "devkit"), [("", ""), ("val", "ILSVRC2012_devkit_t12"), ("", "elsewhere")])
def test_labels_of_flat_images_are_mapped_through_the_devkit(tmp_path: Path, images: str, devkit: str) -> None:
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


def test_synset_folders_with_the_devkit(tmp_path: Path) -> None:
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


def test_missing_images_and_devkit_and_malformed_ones_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"ILSVRC2012_img_val\.tar"):
        open_source(f"imagenet:{tmp_path}")
    write_jpeg(tmp_path / "ILSVRC2012_val_00000002.JPEG", 10)
    with pytest.raises(SourceError, match=r"ILSVRC2012_devkit_t12\.tar\.gz"):
        open_source(f"imagenet:{tmp_path}")
    with pytest.raises(SourceError, match=r"data/meta\.mat"):
        open_source(f"imagenet:{tmp_path}?devkit={tmp_path}")
    write_devkit(tmp_path, [1])
    wrong = {"1\n": "ILSVRC2012_val_00000002", "1\n4\n": "line 2 .* 4; ", "1\nx\n": r"ground_truth\.txt'.*'x'"}
    for ground_truth, value in wrong.items():
        (tmp_path / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(ground_truth)
        with pytest.raises(SourceError, match=value):
            open_source(f"imagenet:{tmp_path}")
    savemat(tmp_path / "data" / "meta.mat", {"synsets": np.zeros((2, 1), dtype=[("WNID", object)])})
    with pytest.raises(SourceError, match=r"meta\.mat'.*'ILSVRC2012_ID'.*WNID"):
        open_source(f"imagenet:{tmp_path}")
