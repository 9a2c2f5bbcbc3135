"""Decoding: blocks of arrays and tensors, and files in several threads, against images that are fitted one by one."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ClassifierError
from secondlook.predictions import DecodedChunk, collect
from secondlook.sources import ArraySource, Source, object_sources, open_source

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 12, 10, 3), dtype=np.uint8)
SCATTERED = np.array([7, 3, 19, 0, 4])


def make_classifier(**settings: Any) -> Classifier:
    return load_classifier(lambda batch: np.full((len(batch), 2), 0.5), **settings)


def decode(source: Source, classifier: Classifier | None = None, start: int = 0) -> DecodedChunk:
    return DecodedChunk.decode(classifier or make_classifier(), source, 3, range(start, len(source)))


def fit_one_by_one(source: Source, classifier: Classifier) -> Array:
    return np.stack([classifier.preprocessing.fit([source.read(index)])[0] for index in range(len(source))])


@pytest.fixture
def on_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats tensors on the host as if they were on a GPU."""
    monkeypatch.setattr(object_sources, "is_on_accelerator", lambda tensor: True)


def write_files(folder: Path) -> str:
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(folder / f"{number:02d}.png")
    return f"folder:{folder}"


def write_archive(folder: Path) -> str:
    np.savez(folder / "images.npz", images=IMAGES)
    return f"npz:{folder / 'images.npz'}"


SOURCES: dict[str, Callable[[Path], Source]] = {
    "array": lambda folder: open_source(IMAGES),
    "one image": lambda folder: open_source(IMAGES[0]),
    "array of floats": lambda folder: open_source((IMAGES / 255).astype(np.float32)),
    "array in another order": lambda folder: open_source(np.asfortranarray(IMAGES)),
    "tensor": lambda folder: open_source(torch.from_numpy(IMAGES).permute(0, 3, 1, 2)),
    "subset of an array": lambda folder: open_source(IMAGES).select(SCATTERED),
    "first images of an array": lambda folder: open_source(IMAGES).select(np.arange(7)),
    "archive": lambda folder: open_source(write_archive(folder)),
    "subset of an archive": lambda folder: open_source(write_archive(folder)).select(SCATTERED),
    "first images of an archive": lambda folder: open_source(write_archive(folder)).select(np.arange(7)),
    "files": lambda folder: open_source(write_files(folder)),
    "subset of files": lambda folder: open_source(write_files(folder)).select(SCATTERED),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "resized": {"resize": (7, 9)},
    "resized and cropped": {"resize": 16, "crop": 14},
    "cropped": {"crop": (8, 9)},
    "gray": {"channels": 1, "gray": "luminance"},
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("threads", [1, 3])
def test_images_are_those_fitted_one_by_one(
    kind: str, settings: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secondlook.sources.source.DECODING_THREADS", threads)
    classifier = make_classifier(**SETTINGS[settings])
    source = SOURCES[kind](tmp_path)
    source.threads = threads
    expected = fit_one_by_one(source, classifier)
    chunk = decode(source, classifier)
    assert isinstance(chunk.images, np.ndarray)
    assert chunk.images.dtype == expected.dtype
    assert chunk.images.flags.c_contiguous
    np.testing.assert_array_equal(chunk.images, expected)
    assert chunk.indices.tolist() == list(range(len(source)))
    assert (chunk.number, chunk.skipped) == (3, ())
    part = decode(source, classifier, start=len(source) // 2)
    assert part.indices.tolist() == list(range(len(source) // 2, len(source)))
    np.testing.assert_array_equal(part.images, expected[len(source) // 2 :])


def test_blocks_share_memory_with_arrays_and_those_of_files_are_bounded(tmp_path: Path) -> None:
    source = open_source(IMAGES)
    block = source.read_block(range(3, 9))
    assert isinstance(block, np.ndarray)
    assert np.shares_memory(block, IMAGES)
    source.max_bytes = 5 * IMAGES[0].nbytes
    assert source.read_block(range(20)) is not None, "nothing is copied"
    assert source.read_block(SCATTERED) is not None
    assert source.read_block(np.array([7, 3, 19, 0, 4, 5])) is None, "above max_bytes"
    source = open_source(write_archive(tmp_path))
    source.max_bytes = 19 * IMAGES[0].nbytes
    assert source.read_block(range(20)) is None
    assert source.read_block(range(19)) is not None
    np.testing.assert_array_equal(decode(source).images, IMAGES)


class Inverted(ArraySource):
    def read(self, index: int) -> Array:
        return 255 - super().read(index)


@pytest.mark.parametrize("select", [lambda source: source, lambda source: source.select(np.arange(20))])
def test_images_of_a_users_source_come_from_its_read(select: Any) -> None:
    source = select(Inverted(IMAGES))
    np.testing.assert_array_equal(decode(source).images, 255 - IMAGES)
    assert source.digest == open_source(255 - IMAGES).digest


def test_array_is_not_changed_by_a_classifier_that_changes_its_batch() -> None:
    images = IMAGES.copy()

    def classify(batch: Array) -> Array:
        batch[:] = 0
        return np.full((len(batch), 2), 0.5)

    collect(classify, images, "identity hflip")
    np.testing.assert_array_equal(images, IMAGES)


@pytest.mark.parametrize("settings", [{"size": (4, 4)}, {"channels": 1}, {"resize": 10**6}])
def test_first_image_of_a_block_that_does_not_fit_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ClassifierError) as of_block:
        decode(open_source(IMAGES), make_classifier(**settings), start=5)
    with pytest.raises(ClassifierError) as of_images:
        decode(Inverted(IMAGES, spec=open_source(IMAGES).spec), make_classifier(**settings), start=5)
    assert str(of_block.value) == str(of_images.value)
    assert "image '000005'" in str(of_block.value)


@pytest.mark.parametrize("threads", [1, 3])
def test_unreadable_files_are_skipped_in_order(threads: int, tmp_path: Path) -> None:
    spec = write_files(tmp_path)
    for number in (0, 5, 19):
        (tmp_path / f"{number:02d}.png").write_bytes(b"")
    source = open_source(spec, on_error="skip")
    source.threads = threads
    chunk = decode(source, make_classifier(resize=6, crop=6))
    assert [skipped.index for skipped in chunk.skipped] == [0, 5, 19]
    assert [skipped.id for skipped in source.skipped] == ["00.png", "05.png", "19.png"]
    assert chunk.indices.tolist() == [index for index in range(20) if index not in (0, 5, 19)]
    assert len(chunk.images) == 17
    assert len(decode(source, start=19).images) == 0


class Mixed(ArraySource):
    def read(self, index: int) -> Array:
        image = super().read(index)
        return image if index < 2 else (image / 255).astype(np.float32)


def test_images_of_several_dtypes_are_not_rounded() -> None:
    images = decode(Mixed(IMAGES[:4])).images
    np.testing.assert_array_equal(images, np.concatenate([IMAGES[:2], (IMAGES[2:4] / 255).astype(np.float32)]))


def test_files_are_fitted_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = make_classifier(resize=6, crop=6)
    together = threading.Barrier(4, timeout=300)
    fit = type(classifier.preprocessing).fit

    def fit_together(preprocessing: Any, images: Any) -> Array:
        together.wait()
        return fit(preprocessing, images)

    monkeypatch.setattr(type(classifier.preprocessing), "fit", fit_together)
    source = open_source(write_files(tmp_path))
    source.threads = 4
    assert len(decode(source, classifier).images) == 20


def make_accelerated(**settings: Any) -> Classifier:
    classifier = make_classifier(**settings)
    classifier.workers = object()  # type: ignore[assignment]  # stands for the models on GPUs; nothing of it is called
    return classifier


TENSOR = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).contiguous()


@pytest.mark.usefixtures("on_accelerator")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_tensor_stays_on_its_device(dtype: torch.dtype) -> None:
    tensor = TENSOR if dtype == torch.uint8 else (TENSOR / 255).to(dtype)
    source = open_source(tensor)
    chunk = DecodedChunk.decode(make_accelerated(), source, 0, range(4, 9))
    assert isinstance(chunk.images, torch.Tensor)
    assert chunk.images.dtype == (torch.uint8 if dtype == torch.uint8 else torch.float32)
    np.testing.assert_array_equal(chunk.images.numpy(), np.stack([source.read(index) for index in range(4, 9)]))
    assert chunk.indices.tolist() == list(range(4, 9))
    is_shared = chunk.images.data_ptr() == tensor[4].data_ptr()
    assert is_shared == (dtype != torch.float16), "only the conversion of float16 takes a copy"
    few = decode(source.select(SCATTERED), make_accelerated()).images
    assert isinstance(few, torch.Tensor)
    np.testing.assert_array_equal(few.numpy(), np.stack([source.read(index) for index in SCATTERED]))


@pytest.mark.usefixtures("on_accelerator")
@pytest.mark.parametrize("settings", SETTINGS)
def test_tensor_that_has_to_be_fitted_or_classified_on_the_host_is_copied_there(settings: str) -> None:
    make = make_classifier if settings == "as they are" else make_accelerated
    classifier = make(**SETTINGS[settings])
    source = open_source(TENSOR)
    chunk = decode(source, classifier)
    np.testing.assert_array_equal(chunk.images, fit_one_by_one(open_source(IMAGES), classifier))
    assert isinstance(chunk.images, np.ndarray)
    source.max_bytes = TENSOR.nbytes - 1
    np.testing.assert_array_equal(decode(source, classifier).images, chunk.images)


@pytest.mark.usefixtures("on_accelerator")
def test_predictions_from_a_tensor_are_those_from_an_array() -> None:
    def classify(batch: Array) -> Array:
        share = batch.reshape(len(batch), -1)[:, ::7].mean(axis=1) / 255
        return np.stack([share, 1 - share], axis=1)

    expected = collect(load_classifier(classify), IMAGES, "identity hflip")
    for data in (TENSOR, open_source(TENSOR, limit=20)):
        predictions = collect(load_classifier(classify), data, "identity hflip")
        assert predictions.ids == expected.ids
        np.testing.assert_array_equal(predictions.probabilities, expected.probabilities)
