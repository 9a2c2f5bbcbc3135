"""Tiny data sets in the official formats of the archives, and stand-in classifiers that record their inputs."""

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import secondlook as sl
from reproduction import Column
from reproduction.experiment import SubsetName
from reproduction.workspace import Workspace
from secondlook.arrays import Array
from tests.sources.conftest import random_images

IMAGES = 60


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


def python2_list(values: Sequence[Any]) -> bytes:
    items = (python2_bytes(value.encode()) if isinstance(value, str) else b"K" + bytes([value]) for value in values)
    return b"](" + b"".join(items) + b"e"


def python2_dict(**entries: Any) -> bytes:
    """A protocol-2 pickle as written by Python 2, like the official CIFAR files: keys and names are 8-bit strings."""
    body = b""
    for key, value in entries.items():
        body += python2_bytes(key.encode())
        body += python2_array(value) if isinstance(value, np.ndarray) else python2_list(value)
    return b"\x80\x02}(" + body + b"u."


def cifar_rows(images: Array) -> Array:
    """uint8 [N, 32, 32, 3] -> uint8 [N, 3072]: the red plane, the green plane, the blue plane, each row by row"""
    return np.stack([np.concatenate([image[:, :, channel].ravel() for channel in range(3)]) for image in images])


def write_cifar10(
    root: Path, images: Array, labels: Sequence[int], names: Sequence[str] = ("plane", "car", "bird")
) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "batches.meta").write_bytes(python2_dict(label_names=names))
    for number, name in enumerate(["test_batch", *(f"data_batch_{batch}" for batch in range(1, 6))]):
        rows = cifar_rows(np.roll(images, number, axis=1))
        (root / name).write_bytes(python2_dict(data=rows, labels=labels, filenames=["a.png"]))


def write_cifar100(
    root: Path,
    images: Array,
    fine: Sequence[int],
    coarse: Sequence[int],
    names: Sequence[str] = ("apple", "bear", "cup"),
) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "meta").write_bytes(python2_dict(fine_label_names=names, coarse_label_names=["fruit", "thing"]))
    for name in ("test", "train"):
        (root / name).write_bytes(python2_dict(data=cifar_rows(images), fine_labels=fine, coarse_labels=coarse))


def write_svhn(root: Path, images: Array, labels: Sequence[int]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    columns = np.array(labels, dtype=np.uint8)[:, None]
    savemat(root / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": columns}, do_compression=True)


def write_stl10(root: Path, images: Array, labels: Sequence[int]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for split in ("test", "train"):
        with (root / f"{split}_X.bin").open("wb") as file:
            for image in images:
                for channel in range(3):
                    for column in range(96):
                        file.write(image[:, column, channel].tobytes())
        (root / f"{split}_y.bin").write_bytes(bytes(labels))
    (root / "class_names.txt").write_text("airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n")


def write_devkit(root: Path, ground_truth: Sequence[int]) -> None:
    """Write a devkit of three classes whose numbers differ from the order of their synset ids, below one inner node."""
    (root / "data").mkdir(parents=True)
    lines = "".join(f"{number}\n" for number in ground_truth)
    (root / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text(lines)
    names = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children")
    table = np.zeros((4, 1), dtype=[(name, object) for name in names])
    table[0, 0] = (1, "n03000000", "kit fox, Vulpes", "a fox", 0)
    table[1, 0] = (2, "n01000000", "tench, Tinca tinca", "a fish", 0)
    table[2, 0] = (3, "n02000000", "crane", "a bird", 0)
    table[3, 0] = (4, "n00000001", "animal", "all of them", 3)
    savemat(root / "data" / "meta.mat", {"synsets": table})


def write_imagenet(root: Path) -> None:
    (root / "val").mkdir()
    for number, image in enumerate(random_images(7), start=1):
        Image.fromarray(image).save(root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG", "JPEG")
    write_devkit(root / "ILSVRC2012_devkit_t12", [1, 2, 3, 3, 2, 1, 1])


@pytest.fixture
def samples(tmp_path: Path) -> Callable[[str], str]:
    """Write a data set of seven images for a scheme and return its spec."""
    digits, labels = random_images(7, 32, 32), [0, 1, 2, 2, 1, 0, 1]
    writers: dict[str, Callable[[], None]] = {
        "cifar10": lambda: write_cifar10(tmp_path, digits, labels),
        "cifar100": lambda: write_cifar100(tmp_path, digits, labels, [0, 1, 1, 1, 1, 0, 1]),
        "svhn": lambda: write_svhn(tmp_path, digits, [10, 1, 2, 9, 10, 3, 4]),
        "stl10": lambda: write_stl10(tmp_path, random_images(7, 96, 96), [1, 10, 2, 3, 4, 5, 6]),
        "imagenet": lambda: write_imagenet(tmp_path),
    }

    def sample(scheme: str) -> str:
        writers[scheme]()
        return f"{scheme}:{tmp_path}"

    return sample


class RecordingNetwork:
    """A fixed random function of an 8x8 thumbnail that records every batch."""

    def __init__(self, seed: int, classes: int) -> None:
        self.weights = np.random.default_rng(seed).normal(size=(8 * 8 * 3, classes)) / 4
        self.batches: list[Array] = []

    def __call__(self, images: Array) -> Array:
        self.batches.append(images)
        side = images.shape[1] // 8
        small = images.reshape(len(images), 8, side, 8, side, 3).mean(axis=(2, 4)).reshape(len(images), -1) / 255
        logits = (small - small.mean(axis=1, keepdims=True)) @ self.weights * 4
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: Array = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
        return probabilities

    @property
    def n_images(self) -> int:
        return sum(map(len, self.batches))


def make_networks() -> dict[str, RecordingNetwork]:
    keys = ["cifar10-vgg8", "cifar100-vgg8", "svhn-vgg8", "stl10-elu", "stl10-wrn-noflip"]
    keys += [f"stl10-wrn-{seed}" for seed in range(5)]
    return {key: RecordingNetwork(seed, 100 if "100" in key else 10) for seed, key in enumerate(keys)}


def make_stand_ins(networks: dict[str, RecordingNetwork]) -> dict[str, sl.Classifier]:
    """Return stand-ins for all classifiers without a default, and for those of torchvision."""
    made = {key: sl.load_classifier(network, name=key) for key, network in networks.items()}
    return made | {f"imagenet-{name}": made["svhn-vgg8"] for name in ("alexnet", "resnet18", "resnext")}


def write_data(root: Path, key: str) -> None:
    """Write one of the data sets: images of coarse patches, whose labels a network predicts two times in three."""
    network = make_networks()["stl10-wrn-0" if key == "stl10" else f"{key}-vgg8"]
    rng, side = np.random.default_rng(len(key)), 12 if key == "stl10" else 4
    coarse = rng.integers(0, 256, (IMAGES, 8, 8, 3)).repeat(side, axis=1).repeat(side, axis=2)
    images, classes = coarse.astype(np.uint8), network.weights.shape[1]
    labels = np.where(rng.random(IMAGES) < 0.65, network(images).argmax(axis=1), rng.integers(0, classes, IMAGES))
    names = [f"class {number}" for number in range(classes)]
    match key:
        case "cifar10":
            write_cifar10(root / "cifar-10-batches-py", images, labels.tolist(), names)
        case "cifar100":
            write_cifar100(root / "cifar-100-python", images, labels.tolist(), [0] * IMAGES, names)
        case "svhn":
            write_svhn(root / "svhn", images, np.where(labels == 0, 10, labels).tolist())
        case "stl10":
            write_stl10(root / "stl10_binary", images, (labels + 1).tolist())


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny versions of CIFAR-10, CIFAR-100, SVHN and STL-10, only to be read."""
    root = tmp_path_factory.mktemp("data")
    for key in ("cifar10", "cifar100", "svhn", "stl10"):
        write_data(root, key)
    return root


@pytest.fixture
def networks() -> dict[str, RecordingNetwork]:
    """The networks behind the stand-ins, by name."""
    return make_networks()


@pytest.fixture
def stand_ins(networks: dict[str, RecordingNetwork]) -> dict[str, sl.Classifier]:
    return make_stand_ins(networks)


@pytest.fixture
def workspace(data_root: Path, stand_ins: dict[str, sl.Classifier], tmp_path: Path) -> Workspace:
    return Workspace(data_root, tmp_path / "store", stand_ins, progress=False)


@pytest.fixture
def collect_plainly(workspace: Workspace) -> Callable[..., sl.Predictions]:
    """Return a function that collects the predictions of a column without a store."""

    def collect(column: Column, subset: SubsetName = "evaluation", views: str | None = None) -> sl.Predictions:
        classifier = workspace.get_classifier(column.classifiers[0])
        source = workspace.open_subset(column.data_set, subset)
        return sl.collect(classifier, source, sl.ViewSet(views or column.views))

    return collect


@pytest.fixture(scope="module", autouse=True)
def _few_image_resamplings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("reproduction.measurements.IMAGE_RESAMPLINGS", 20)
        yield
