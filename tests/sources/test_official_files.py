"""The files of CIFAR, SVHN, STL-10 and ImageNet as people download them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import Source, open_source

RNG = np.random.default_rng(0)
DIGITS = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


def stacked(source: Source) -> Array:
    return np.stack([image for batch in source.batches(2) for image in batch.images])


def labels_of(source: Source) -> list[int]:
    assert source.labels is not None
    return [int(label) for label in source.labels]


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, write_cifar10: Callable[[Path, Array, list[int]], None], inside: str) -> None:
    write_cifar10(tmp_path / inside, DIGITS, [2, 0, 1])
    source = open_source(f"cifar10:{tmp_path}")
    np.testing.assert_array_equal(stacked(source), DIGITS)
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("airplane", "automobile", "bird")
    train = open_source(f"cifar10:{tmp_path}?split=train")
    assert len(train) == 15
    np.testing.assert_array_equal(stacked(train)[3:6], np.roll(DIGITS, 2, axis=1))


def test_cifar100(tmp_path: Path, write_cifar100: Callable[[Path, Array, list[int], list[int]], None]) -> None:
    write_cifar100(tmp_path / "cifar-100-python", DIGITS, [2, 0, 1], [1, 0, 1])
    source = open_source(f"cifar100:{tmp_path}")
    np.testing.assert_array_equal(stacked(source), DIGITS)
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("apple", "bear", "cup")
    coarse = open_source(f"cifar100:{tmp_path}?labels=coarse&split=train")
    assert labels_of(coarse) == [1, 0, 1]
    assert coarse.class_names == ("fruit", "thing")


def test_bad_cifar_files_are_told(
    tmp_path: Path,
    write_cifar10: Callable[[Path, Array, list[int]], None],
    dump: Callable[[Path, object], None],
) -> None:
    with pytest.raises(
        SourceError, match=r"no 'batches.meta' in .*cifar-10-batches-py'; unpack the official cifar-10-py"
    ):
        open_source(f"cifar10:{tmp_path}")
    with pytest.raises(SourceError, match=r"no 'meta' in .*; unpack the official cifar-100-python.tar.gz"):
        open_source(f"cifar100:{tmp_path}")
    with pytest.raises(SourceError, match=r"is no folder \(nothing is there\)"):
        open_source(f"cifar10:{tmp_path}/nowhere")
    write_cifar10(tmp_path, DIGITS, [2, 0, 1])
    dump(tmp_path / "test_batch", {b"data": np.zeros((2, 100), dtype=np.uint8), b"labels": [0, 1]})
    with pytest.raises(SourceError, match=r"the data in '.*test_batch' is uint8 \[2, 100\]; uint8 \[N, 3072\] was"):
        open_source(f"cifar10:{tmp_path}")
    dump(tmp_path / "test_batch", {b"data": np.zeros((2, 3072), dtype=np.uint8)})
    with pytest.raises(SourceError, match=r"test_batch' has no entry 'labels'; it has: data"):
        open_source(f"cifar10:{tmp_path}")
    dump(tmp_path / "test_batch", {b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [0, 3]})
    with pytest.raises(SourceError, match=r"label 3 of image 1 .* 0 to 2"):
        open_source(f"cifar10:{tmp_path}")
    dump(tmp_path / "test_batch", {b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [0, [1]]})
    with pytest.raises(SourceError, match=r"'labels' in '.*test_batch' is not a list of whole numbers"):
        open_source(f"cifar10:{tmp_path}")
    (tmp_path / "test_batch").unlink()
    with pytest.raises(SourceError, match=r"test_batch' cannot be read as a pickle: .*No such file"):
        open_source(f"cifar10:{tmp_path}")


def test_svhn_label_ten_is_the_digit_zero(tmp_path: Path, write_svhn: Callable[[Path, Array, list[int]], None]) -> None:
    write_svhn(tmp_path, DIGITS, [10, 1, 9])
    source = open_source(f"svhn:{tmp_path}")
    assert labels_of(source) == [0, 1, 9]
    assert source.class_names == tuple("0123456789")
    np.testing.assert_array_equal(stacked(source), DIGITS)


def test_bad_svhn_files_are_told(tmp_path: Path, write_svhn: Callable[[Path, Array, list[int]], None]) -> None:
    with pytest.raises(SourceError, match=r"no 'train_32x32.mat' in"):
        open_source(f"svhn:{tmp_path}?split=train")
    write_svhn(tmp_path, DIGITS, [0, 1, 9])
    with pytest.raises(SourceError, match=r"y in .* runs from 0 to 9; 1 to 10 was expected, where 10 is the digit 0"):
        open_source(f"svhn:{tmp_path}")
    savemat(tmp_path / "test_32x32.mat", {"X": DIGITS, "y": [1, 2, 3]})
    with pytest.raises(SourceError, match=r"X in .* is uint8 \[3, 32, 32, 3\]; uint8 \[32, 32, 3, N\] was expected"):
        open_source(f"svhn:{tmp_path}")
    savemat(tmp_path / "test_32x32.mat", {"X": DIGITS})
    with pytest.raises(SourceError, match=r"has no variable 'y'"):
        open_source(f"svhn:{tmp_path}")
    (tmp_path / "test_32x32.mat").write_bytes(b"no MATLAB file")
    with pytest.raises(SourceError, match=r"cannot be read as a MATLAB file"):
        open_source(f"svhn:{tmp_path}")


@pytest.mark.parametrize("inside", ["", "stl10_binary"])
def test_stl10(tmp_path: Path, write_stl10: Callable[[Path, Array, list[int]], None], inside: str) -> None:
    images = RNG.integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    write_stl10(tmp_path / inside, images, [1, 10])
    source = open_source(f"stl10:{tmp_path}")
    np.testing.assert_array_equal(stacked(source), images)
    assert labels_of(source) == [0, 9]
    assert source.class_names is not None
    assert source.class_names[9] == "truck"


def test_bad_stl10_files_are_told(tmp_path: Path, write_stl10: Callable[[Path, Array, list[int]], None]) -> None:
    images = RNG.integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)
    write_stl10(tmp_path, images, [0, 10])
    with pytest.raises(SourceError, match=r"labels in .* run from 0 to 10; 1 to 10 was expected"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_y.bin").unlink()
    with pytest.raises(SourceError, match=r"there is no '.*test_y.bin' beside the images"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_X.bin").write_bytes(b"123")
    with pytest.raises(SourceError, match=r"has 3 bytes; a multiple of 27648 \(3 x 96 x 96\) was expected"):
        open_source(f"stl10:{tmp_path}")
    (tmp_path / "test_X.bin").rename(tmp_path / "unlabeled_X.bin")
    (tmp_path / "unlabeled_X.bin").write_bytes(bytes(27_648))
    assert open_source(f"stl10:{tmp_path}?split=unlabeled").labels is None


def write_jpeg(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (gray, gray, gray)).save(path, "JPEG")


@pytest.mark.parametrize(("images", "devkit"), [("", ""), ("val", "ILSVRC2012_devkit_t12"), ("", "elsewhere")])
def test_imagenet_flat_goes_through_the_devkit(
    tmp_path: Path, write_devkit: Callable[[Path, list[int]], None], images: str, devkit: str
) -> None:
    # Numbers 1, 2, 3 are n03000000, n01000000, n02000000: ranks 2, 0, 1.
    write_devkit(tmp_path / devkit, [1, 2, 3, 1])
    for number in (1, 2, 3):
        write_jpeg(tmp_path / images / f"ILSVRC2012_val_{number:08d}.JPEG", 50 * number)
    option = f"?devkit={tmp_path}/elsewhere" if devkit == "elsewhere" else ""
    source = open_source(f"imagenet:{tmp_path}{option}")
    assert labels_of(source) == [2, 0, 1]
    assert source.class_names == ("n01000000 tench", "n02000000 crane", "n03000000 kit fox")
    assert source.ids[1] == "ILSVRC2012_val_00000002.JPEG"
    assert [int(image[0, 0, 0]) for image in stacked(source)] == [50, 100, 150]


def test_imagenet_synset_folders_with_the_devkit(
    tmp_path: Path, write_devkit: Callable[[Path, list[int]], None]
) -> None:
    write_devkit(tmp_path, [1])
    write_jpeg(tmp_path / "val" / "n03000000" / "a.JPEG", 10)
    write_jpeg(tmp_path / "val" / "n02000000" / "b.JPEG", 20)
    source = open_source(f"imagenet:{tmp_path}")
    assert source.ids == ("n02000000/b.JPEG", "n03000000/a.JPEG")
    assert labels_of(source) == [1, 2]
    write_jpeg(tmp_path / "val" / "n09999999" / "c.JPEG", 20)
    with pytest.raises(SourceError, match=r"'n09999999' in .* is no synset of the devkit"):
        open_source(f"imagenet:{tmp_path}")


def test_imagenet_synset_folders_alone_must_be_a_thousand(tmp_path: Path) -> None:
    write_jpeg(tmp_path / "n00000999" / "a.JPEG", 10)
    with pytest.raises(SourceError, match=r"holds 1 synset folders, not 1000, .* add the devkit .* folder:"):
        open_source(f"imagenet:{tmp_path}")
    for number in range(999):
        (tmp_path / f"n{number:08d}").mkdir()
    source = open_source(f"imagenet:{tmp_path}")
    assert labels_of(source) == [999]
    assert source.class_names is not None
    assert len(source.class_names) == 1000


def test_bad_imagenet_files_are_told(tmp_path: Path, write_devkit: Callable[[Path, list[int]], None]) -> None:
    with pytest.raises(SourceError, match=r"neither ILSVRC2012_val_00000001.JPEG and so on nor folders"):
        open_source(f"imagenet:{tmp_path}")
    write_jpeg(tmp_path / "ILSVRC2012_val_00000002.JPEG", 10)
    with pytest.raises(SourceError, match=r"need the devkit for their labels; unpack ILSVRC2012_devkit_t12.tar.gz"):
        open_source(f"imagenet:{tmp_path}")
    with pytest.raises(SourceError, match=r"there is no data/meta.mat in"):
        open_source(f"imagenet:{tmp_path}?devkit={tmp_path}")
    write_devkit(tmp_path, [1])
    with pytest.raises(SourceError, match=r"has no line 2 in the ground truth, which has 1 lines"):
        open_source(f"imagenet:{tmp_path}")
    truth = tmp_path / "data" / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("1\n4\n")
    with pytest.raises(SourceError, match=r"line 2 of the ground truth is 4; 1 to 3 was expected"):
        open_source(f"imagenet:{tmp_path}")
    truth.write_text("1\nx\n")
    with pytest.raises(SourceError, match=r"ground_truth.txt' cannot be read: invalid literal"):
        open_source(f"imagenet:{tmp_path}")
    savemat(tmp_path / "data" / "meta.mat", {"synsets": np.zeros((2, 1), dtype=[("WNID", object)])})
    with pytest.raises(SourceError, match=r"lack one of ILSVRC2012_ID, WNID, words, num_children"):
        open_source(f"imagenet:{tmp_path}")
