"""Tiny data sets in the official formats, and stand-in classifiers that record their inputs."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io

import secondlook as sl
from reproduction import Column
from reproduction.experiment import SubsetName
from reproduction.workspace import Workspace
from secondlook.arrays import Array

IMAGES = 60


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


def make_labeled_images(network: RecordingNetwork, seed: int, side: int) -> tuple[Array, Array]:
    """Return images of coarse patches, and labels that the network predicts about two times in three."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (IMAGES, 8, 8, 3)).repeat(side // 8, axis=1).repeat(side // 8, axis=2)
    images = coarse.astype(np.uint8)
    classes = network.weights.shape[1]
    predicted = network(images).argmax(axis=1)
    network.batches.clear()
    return images, np.where(rng.random(IMAGES) < 0.65, predicted, rng.integers(0, classes, IMAGES))


def write_cifar(folder: Path, test: str, meta: str, keys: tuple[str, str], images: Array, labels: Array) -> None:
    folder.mkdir()
    content = {"data": images.transpose(0, 3, 1, 2).reshape(IMAGES, -1), keys[0]: [int(one) for one in labels]}
    (folder / test).write_bytes(pickle.dumps(content))
    names = [f"class {number}" for number in range(100 if "fine" in keys[0] else 10)]
    (folder / meta).write_bytes(pickle.dumps({keys[1]: names}))


def write_svhn(folder: Path, images: Array, labels: Array) -> None:
    folder.mkdir()
    written = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    scipy.io.savemat(folder / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": written})


def write_stl10(folder: Path, images: Array, labels: Array) -> None:
    folder.mkdir()
    for split in ("test", "train"):
        (folder / f"{split}_X.bin").write_bytes(images.transpose(0, 3, 2, 1).tobytes())
        (folder / f"{split}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"class{number}" for number in range(10)))


@pytest.fixture
def networks() -> dict[str, RecordingNetwork]:
    """The networks behind the stand-ins, by name."""
    keys = ["cifar10-vgg8", "cifar100-vgg8", "svhn-vgg8", "stl10-elu", "stl10-wrn-noflip"]
    keys += [f"stl10-wrn-{seed}" for seed in range(5)]
    return {key: RecordingNetwork(seed, 100 if "100" in key else 10) for seed, key in enumerate(keys)}


@pytest.fixture
def stand_ins(networks: dict[str, RecordingNetwork]) -> dict[str, sl.Classifier]:
    """Stand-ins for all classifiers without a default, and for those of torchvision."""
    made = {key: sl.load_classifier(network, name=key) for key, network in networks.items()}
    return made | {f"imagenet-{name}": made["svhn-vgg8"] for name in ("alexnet", "resnet18", "resnext")}


@pytest.fixture
def write_data(networks: dict[str, RecordingNetwork]) -> Callable[[Path, str], None]:
    """Return a function that writes one of the data sets into a folder."""

    def write(root: Path, key: str) -> None:
        network = networks["stl10-wrn-0" if key == "stl10" else f"{key}-vgg8"]
        images, labels = make_labeled_images(network, len(key), 96 if key == "stl10" else 32)
        match key:
            case "cifar10":
                keys = ("labels", "label_names")
                write_cifar(root / "cifar-10-batches-py", "test_batch", "batches.meta", keys, images, labels)
            case "cifar100":
                keys = ("fine_labels", "fine_label_names")
                write_cifar(root / "cifar-100-python", "test", "meta", keys, images, labels)
            case "svhn":
                write_svhn(root / "svhn", images, labels)
            case "stl10":
                write_stl10(root / "stl10_binary", images, labels)

    return write


@pytest.fixture
def data_root(tmp_path: Path, write_data: Callable[[Path, str], None]) -> Path:
    """A folder with tiny versions of CIFAR-10, CIFAR-100, SVHN and STL-10."""
    root = tmp_path / "data"
    root.mkdir()
    for key in ("cifar10", "cifar100", "svhn", "stl10"):
        write_data(root, key)
    return root


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


@pytest.fixture(autouse=True)
def _few_image_resamplings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reproduction.measurements.IMAGE_RESAMPLINGS", 20)
