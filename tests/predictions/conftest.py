"""A small data set, and a classifier that counts the images it classifies."""

import threading
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.predictions import Predictions, batching, collect

CLASSES = 4


def classify_pixels(batch: Array) -> Array:
    """Return logits that depend on every pixel of the image and on nothing else. [N, H, W, 3] -> [N, CLASSES]"""
    weights = np.random.default_rng(0).normal(size=(batch[0].size, CLASSES)) / 64
    return np.asarray(np.stack([image.reshape(-1) @ weights for image in batch.astype(np.float64)]))


class CountingFunction:
    """Classifies pixels, and counts images and batches."""

    def __init__(self) -> None:
        self.images = 0
        self.batch_sizes: list[int] = []

    def __call__(self, batch: Array) -> Array:
        self.images += len(batch)
        self.batch_sizes.append(len(batch))
        return classify_pixels(batch)

    def load(self, name: str = "counting") -> Classifier:
        return load_classifier(self, name=name, output="logits")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder, except locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("secondlook-read-ahead")]


def write_images(folder: Path, images: Iterable[Array], broken: Container[int] = ()) -> str:
    """Write images as numbered files, some of which are not images, and return the spec of the folder."""
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        path = folder / f"{number:03d}.png"
        Image.fromarray(image).save(path)
        if number in broken:
            path.write_bytes(b"not an image")
    return f"folder:{folder}"


@pytest.fixture
def counting() -> CountingFunction:
    return CountingFunction()


@pytest.fixture
def images() -> Array:
    """Pixels uint8 [50, 6, 6, 3]: four chunks of at most 16."""
    return np.random.default_rng(0).integers(0, 256, (50, 6, 6, 3), dtype=np.uint8)


@pytest.fixture
def labels() -> Array:
    return np.random.default_rng(1).integers(0, CLASSES, 50)


@pytest.fixture(autouse=True)
def set_chunk_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let chunks have 16 images of 6 x 6 pixels, and return a function that sets another size."""

    def set_size(n_bytes: int) -> None:
        monkeypatch.setattr(batching, "CHUNK_BYTES", n_bytes)

    set_size(16 * 6 * 6 * 3)
    return set_size


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def stored(counting: CountingFunction, images: Array, labels: Array, store: Path) -> Predictions:
    """Two views of the images, collected into `store`."""
    return collect(counting.load(), images, "identity hflip", labels=labels, store=store)
