"""The official files of CIFAR, SVHN and STL-10."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from reproduction import archive_files
from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import Source, open_source

RNG = np.random.default_rng(0)
DIGITS = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
ROWS = np.zeros((2, 3072), dtype=np.uint8)
Write = Callable[[Path, Array, list[int]], None]


def stack_images(source: Source) -> Array:
    return np.stack([image for batch in source.batches(2) for image in batch.images])


def labels_of(source: Source) -> list[int]:
    assert source.labels is not None
    return [int(label) for label in source.labels]


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, write_cifar10: Write, inside: str) -> None:
    write_cifar10(tmp_path / inside, DIGITS, [2, 0, 1])
    source = open_source(f"cifar10:{tmp_path}")
    np.testing.assert_array_equal(stack_images(source), DIGITS)
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("airplane", "automobile", "bird")
    train = open_source(f"cifar10:{tmp_path}?split=train")
    assert len(train) == 15
    np.testing.assert_array_equal(stack_images(train)[3:6], np.roll(DIGITS, 2, axis=1))


def test_cifar100(tmp_path: Path, write_cifar100: Callable[[Path, Array, list[int], list[int]], None]) -> None:
    write_cifar100(tmp_path / "cifar-100-python", DIGITS, [2, 0, 1], [1, 0, 1])
    source = open_source(f"cifar100:{tmp_path}")
    np.testing.assert_array_equal(stack_images(source), DIGITS)
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
def test_missing_files_are_reported_with_the_archive_to_unpack(
    tmp_path: Path, spec: str, file: str, archive: str
) -> None:
    with pytest.raises(SourceError, match=f"{re.escape(repr(file))}.*{re.escape(archive)}"):
        open_source(spec.format(tmp_path))
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/nowhere"))):
        open_source(spec.format(f"{tmp_path}/nowhere"))


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({b"data": np.zeros((2, 100), dtype=np.uint8), b"labels": [0, 1]}, "uint8 [2, 100]"),
        ({b"data": ROWS}, "'labels'"),
        ({b"data": ROWS, b"labels": [0, 3]}, "label 3 of image 1"),
        ({b"data": ROWS, b"labels": [0, [1]]}, "'labels'"),
    ],
)
def test_malformed_cifar_batch_is_rejected(
    tmp_path: Path, write_cifar10: Write, dump: Callable[[Path, object], None], content: object, value: str
) -> None:
    write_cifar10(tmp_path, DIGITS, [2, 0, 1])
    dump(tmp_path / "test_batch", content)
    with pytest.raises(SourceError, match=re.escape(value)):
        open_source(f"cifar10:{tmp_path}")


def test_missing_cifar_batch_is_rejected(tmp_path: Path, write_cifar10: Write) -> None:
    write_cifar10(tmp_path, DIGITS, [2, 0, 1])
    (tmp_path / "test_batch").unlink()
    with pytest.raises(SourceError, match=r"test_batch'.*No such file"):
        open_source(f"cifar10:{tmp_path}")


def test_svhn_label_10_is_the_digit_0(tmp_path: Path, write_svhn: Write) -> None:
    write_svhn(tmp_path, DIGITS, [10, 1, 9])
    source = open_source(f"svhn:{tmp_path}")
    assert labels_of(source) == [0, 1, 9]
    assert source.class_names == tuple("0123456789")
    np.testing.assert_array_equal(stack_images(source), DIGITS)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({"X": DIGITS.transpose(1, 2, 3, 0), "y": [0, 1, 9]}, "0 to 9"),
        ({"X": DIGITS, "y": [1, 2, 3]}, "uint8 [3, 32, 32, 3]"),
        ({"X": DIGITS}, "'y'"),
    ],
)
def test_malformed_svhn_file_is_rejected(tmp_path: Path, content: dict[str, object], value: str) -> None:
    savemat(tmp_path / "test_32x32.mat", content)
    with pytest.raises(SourceError, match=re.escape(value)):
        open_source(f"svhn:{tmp_path}")


def test_file_that_is_no_mat_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "test_32x32.mat").write_bytes(b"no MATLAB file")
    with pytest.raises(SourceError, match=r"test_32x32\.mat'"):
        open_source(f"svhn:{tmp_path}")


def test_reading_a_mat_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_svhn: Write) -> None:
    write_svhn(tmp_path, DIGITS, [10, 1, 9])
    monkeypatch.setattr(archive_files, "MAT_READER_SECONDS", 0.01)
    with pytest.raises(SourceError, match=r"test_32x32\.mat'.*took more than 0 seconds"):
        open_source(f"svhn:{tmp_path}")
    monkeypatch.setattr(archive_files, "MAX_FILE_BYTES", 100)
    with pytest.raises(SourceError, match=r"test_32x32\.mat'.*above the limit of 100"):
        open_source(f"svhn:{tmp_path}")


@pytest.mark.posix
def test_memory_for_reading_a_mat_file_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_svhn: Write
) -> None:
    write_svhn(tmp_path, DIGITS, [10, 1, 9])
    monkeypatch.setattr(archive_files, "MAT_READER_BYTES", 2**20 - archive_files.MAX_FILE_BYTES)
    with pytest.raises(SourceError, match=r"test_32x32\.mat'"):
        open_source(f"svhn:{tmp_path}")


def test_stl10_file_that_changes_while_in_use_does_not_matter(tmp_path: Path, write_stl10: Write) -> None:
    write_stl10(tmp_path, np.full((2, 96, 96, 3), 7, dtype=np.uint8), [1, 10])
    source = open_source(f"stl10:{tmp_path}")
    os.truncate(tmp_path / "test_X.bin", 30_000)
    assert (source.read(1) == 7).all()


@pytest.mark.parametrize("inside", ["", "stl10_binary"])
def test_stl10(tmp_path: Path, write_stl10: Write, inside: str) -> None:
    images = RNG.integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    write_stl10(tmp_path / inside, images, [1, 10])
    source = open_source(f"stl10:{tmp_path}")
    np.testing.assert_array_equal(stack_images(source), images)
    assert labels_of(source) == [0, 9]
    assert source.class_names is not None
    assert source.class_names[9] == "truck"


def test_stl10_unlabeled_split_has_no_labels(tmp_path: Path, write_stl10: Write) -> None:
    write_stl10(tmp_path, np.zeros((1, 96, 96, 3), dtype=np.uint8), [1])
    (tmp_path / "test_X.bin").rename(tmp_path / "unlabeled_X.bin")
    assert open_source(f"stl10:{tmp_path}?split=unlabeled").labels is None


def test_malformed_stl10_files_are_rejected(tmp_path: Path, write_stl10: Write) -> None:
    write_stl10(tmp_path, np.zeros((2, 96, 96, 3), dtype=np.uint8), [0, 10])
    with pytest.raises(SourceError, match=r"test_y\.bin'.*0 to 10"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_y.bin").unlink()
    with pytest.raises(SourceError, match=r"test_y\.bin'"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_X.bin").write_bytes(b"123")
    with pytest.raises(SourceError, match=r"test_X\.bin' .*3 bytes.*27648"):
        open_source(f"stl10:{tmp_path}")
