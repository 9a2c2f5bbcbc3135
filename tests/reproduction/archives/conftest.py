"""Tiny data sets in the official formats of the archives."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from secondlook.arrays import Array
from tests.sources.conftest import random_images


def python2_bytes(value: bytes) -> bytes:
    """The opcodes of a str pickled by Python 2: BINSTRING, a 4-byte length, the bytes."""
    return b"T" + struct.pack("<i", len(value)) + value


def python2_array(array: Array) -> bytes:
    """The opcodes of a uint8 array pickled by Python 2: _reconstruct(ndarray, (0,), 'b'), then its state."""
    shape = b"(" + b"".join(b"J" + struct.pack("<i", side) for side in array.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(" + python2_bytes(b"u1") + b"K\x00K\x01tR(K\x03" + python2_bytes(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + python2_bytes(b"b") + b"tR"
    return start + b"(K\x01" + shape + dtype + b"\x89" + python2_bytes(array.tobytes()) + b"tb"


def python2_list(values: list[Any]) -> bytes:
    items = b"".join(b"K" + bytes([value]) if isinstance(value, int) else python2_bytes(value) for value in values)
    return b"](" + items + b"e"


def python2_dict(entries: dict[bytes, Any]) -> bytes:
    """A protocol-2 pickle as written by Python 2, like the official CIFAR files: keys and names are 8-bit strings."""
    body = b""
    for key, value in entries.items():
        body += python2_bytes(key)
        body += python2_array(value) if isinstance(value, np.ndarray) else python2_list(value)
    return b"\x80\x02}(" + body + b"u."


def cifar_rows(images: Array) -> Array:
    """uint8 [N, 32, 32, 3] -> uint8 [N, 3072]: the red plane, the green plane, the blue plane, each row by row"""
    return np.stack([np.concatenate([image[:, :, channel].ravel() for channel in range(3)]) for image in images])


@pytest.fixture
def write_cifar10() -> Callable[[Path, Array, list[int]], None]:
    def write(root: Path, images: Array, labels: list[int]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "batches.meta").write_bytes(python2_dict({b"label_names": [b"airplane", b"automobile", b"bird"]}))
        for number, name in enumerate(["test_batch", *(f"data_batch_{batch}" for batch in range(1, 6))]):
            rows = cifar_rows(np.roll(images, number, axis=1))
            (root / name).write_bytes(python2_dict({b"data": rows, b"labels": labels, b"filenames": [b"a.png"]}))

    return write


@pytest.fixture
def write_cifar100() -> Callable[[Path, Array, list[int], list[int]], None]:
    def write(root: Path, images: Array, fine: list[int], coarse: list[int]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        names = {b"fine_label_names": [b"apple", b"bear", b"cup"], b"coarse_label_names": [b"fruit", b"thing"]}
        (root / "meta").write_bytes(python2_dict(names))
        content = {b"data": cifar_rows(images), b"fine_labels": fine, b"coarse_labels": coarse}
        for name in ("test", "train"):
            (root / name).write_bytes(python2_dict(content))

    return write


@pytest.fixture
def write_svhn() -> Callable[[Path, Array, list[int]], None]:
    def write(root: Path, images: Array, labels: list[int]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        columns = np.array(labels, dtype=np.uint8)[:, None]
        savemat(root / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": columns}, do_compression=True)

    return write


@pytest.fixture
def write_stl10() -> Callable[[Path, Array, list[int]], None]:
    def write(root: Path, images: Array, labels: list[int]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "test_X.bin").open("wb") as file:
            for image in images:
                for channel in range(3):
                    for column in range(96):
                        file.write(image[:, column, channel].tobytes())
        (root / "test_y.bin").write_bytes(bytes(labels))
        (root / "class_names.txt").write_text("airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n")

    return write


@pytest.fixture
def write_devkit() -> Callable[[Path, list[int]], None]:
    """A devkit of three classes whose numbers differ from the order of their synset ids, below one inner node."""

    def write(root: Path, ground_truth: list[int]) -> None:
        (root / "data").mkdir(parents=True)
        lines = "".join(f"{number}\n" for number in ground_truth)
        (root / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
        fields = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("gloss", object)]
        table = np.zeros((4, 1), dtype=[*fields, ("num_children", object)])
        table[0, 0] = (1, "n03000000", "kit fox, Vulpes", "a fox", 0)
        table[1, 0] = (2, "n01000000", "tench, Tinca tinca", "a fish", 0)
        table[2, 0] = (3, "n02000000", "crane", "a bird", 0)
        table[3, 0] = (4, "n00000001", "animal", "all of them", 3)
        savemat(root / "data" / "meta.mat", {"synsets": table})

    return write


def write_flat_imagenet(root: Path, images: Array) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images, start=1):
        Image.fromarray(image).save(root / f"ILSVRC2012_val_{number:08d}.JPEG", "JPEG")


@pytest.fixture
def samples(
    tmp_path: Path,
    write_cifar10: Callable[[Path, Array, list[int]], None],
    write_cifar100: Callable[[Path, Array, list[int], list[int]], None],
    write_svhn: Callable[[Path, Array, list[int]], None],
    write_stl10: Callable[[Path, Array, list[int]], None],
    write_devkit: Callable[[Path, list[int]], None],
) -> Callable[[str], str]:
    """Write a data set of seven images for a scheme and return its spec."""
    digits = random_images(7, 32, 32)
    labels = [0, 1, 2, 2, 1, 0, 1]

    def write_imagenet() -> None:
        write_flat_imagenet(tmp_path / "val", random_images(7))
        write_devkit(tmp_path / "ILSVRC2012_devkit_t12", [1, 2, 3, 3, 2, 1, 1])

    writers: dict[str, Callable[[], Any]] = {
        "cifar10": lambda: write_cifar10(tmp_path, digits, labels),
        "cifar100": lambda: write_cifar100(tmp_path, digits, labels, [0, 1, 1, 1, 1, 0, 1]),
        "svhn": lambda: write_svhn(tmp_path, digits, [10, 1, 2, 9, 10, 3, 4]),
        "stl10": lambda: write_stl10(tmp_path, random_images(7, 96, 96), [1, 10, 2, 3, 4, 5, 6]),
        "imagenet": write_imagenet,
    }

    def sample(scheme: str) -> str:
        writers[scheme]()
        return f"{scheme}:{tmp_path}"

    return sample


@pytest.fixture
def dump() -> Callable[[Path, object], None]:
    def write(path: Path, value: object) -> None:
        path.write_bytes(pickle.dumps(value, protocol=2))

    return write
