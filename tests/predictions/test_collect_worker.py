"""Collecting with an engine: the same files as in this process, whatever is missing, damaged or unreadable."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.errors import PredictionsError, SecondLookError
from secondlook.predictions import DamagedChunkWarning, Execution, Predictions, collect

VIEWS = "identity hflip shift:1,0"


def classify(batch: Array) -> Array:
    """Return logits that depend on every pixel. uint8 [N, H, W, 3] -> float64 [N, 4]"""
    weights = np.random.default_rng(0).normal(size=(batch[0].size, 4)) / 64
    return np.stack([image.reshape(-1) @ weights for image in batch.astype(np.float64)])


def classify_otherwise(batch: Array) -> Array:
    return classify(255 - batch)


def load(function: Any = classify) -> Classifier:
    return load_classifier(function, output="logits", name=function.__name__)


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def expected(images: Array, labels: Array, tmp_path: Path) -> dict[str, bytes]:
    """The files of a store that is filled in this process."""
    collect(load(), images, VIEWS, labels=labels, store=tmp_path / "expected")
    return read_files(tmp_path / "expected")


def test_store_has_the_same_files(
    images: Array, labels: Array, store: Path, expected: dict[str, bytes], pickled_engine: Any
) -> None:
    preds = collect(load(), images, VIEWS, labels=labels, store=store, execution=Execution(engine=pickled_engine))
    assert read_files(store) == expected
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3]
    assert preds.ids == Predictions.open(store).ids
    again = collect(load(), images, VIEWS, labels=labels, store=store, execution=Execution(engine=pickled_engine))
    assert len(pickled_engine.numbers) == 4, "nothing is computed again"
    np.testing.assert_array_equal(again.labels, labels)


def test_outputs_in_memory_are_the_same(images: Array, labels: Array, pickled_engine: Any) -> None:
    expected, found = (
        collect(load(), images, VIEWS, labels=labels, execution=Execution(engine=engine))
        for engine in (None, pickled_engine)
    )
    assert len(pickled_engine.numbers) == 4
    np.testing.assert_array_equal(found.logits, expected.logits)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_killed_job_resumes_with_the_chunks_that_are_written(
    images: Array, labels: Array, store: Path, expected: dict[str, bytes], pickled_engine: Any
) -> None:
    pickled_engine.dies_after = 2
    with pytest.raises(KeyboardInterrupt):
        collect(load(), images, VIEWS, labels=labels, store=store, execution=Execution(engine=pickled_engine))
    pickled_engine.dies_after = None
    collect(load(), images, VIEWS, labels=labels, store=store, execution=Execution(engine=pickled_engine))
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3], "no chunk is computed twice"
    assert read_files(store) == expected


def test_damaged_and_missing_chunks_are_computed_again(
    images: Array, labels: Array, store: Path, expected: dict[str, bytes], pickled_engine: Any
) -> None:
    collect(load(), images, VIEWS, labels=labels, store=store)
    one, other = sorted(store.rglob("part-000001-*"))[0], sorted(store.rglob("part-000003-*"))[1]
    one.write_bytes(one.read_bytes()[:-30])
    other.unlink()
    with pytest.warns(DamagedChunkWarning):
        collect(load(), images, VIEWS, labels=labels, store=store, execution=Execution(engine=pickled_engine))
    assert sorted(pickled_engine.numbers) == [1, 3]
    assert read_files(store) == expected


def test_new_views_only_are_classified(images: Array, labels: Array, store: Path, pickled_engine: Any) -> None:
    collect(load(), images, "identity hflip", labels=labels, store=store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("part-*")}
    preds = collect(load(), images, VIEWS, labels=labels, store=store, execution=Execution(engine=pickled_engine))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [load_worker.keywords["needed"] for load_worker in pickled_engine.loads] == [{2}]
    np.testing.assert_array_equal(preds.logits, collect(load(), images, VIEWS).logits)


@pytest.mark.parametrize("is_stored", [True, False])
def test_ensemble(images: Array, labels: Array, tmp_path: Path, is_stored: bool, pickled_engine: Any) -> None:
    ensemble = Ensemble([load(), load(classify_otherwise)])
    stores = {engine: tmp_path / name if is_stored else None for engine, name in ((None, "a"), (pickled_engine, "b"))}
    expected, found = (
        collect(ensemble, images, VIEWS, labels=labels, store=store, execution=Execution(engine=engine))
        for engine, store in stores.items()
    )
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    if is_stored:
        assert read_files(tmp_path / "a") == read_files(tmp_path / "b")


def write_images(folder: Path, images: Array, broken: list[int]) -> str:
    folder.mkdir()
    for number, image in enumerate(images):
        path = folder / f"{number:03d}.png"
        if number in broken:
            path.write_bytes(b"not an image")
        else:
            Image.fromarray(image).save(path)
    return f"folder:{folder}"


def test_unreadable_images_are_skipped_by_default(images: Array, tmp_path: Path, pickled_engine: Any) -> None:
    broken = [0, 3, *range(16, 32), 49]  # the second chunk has no other images
    spec = write_images(tmp_path / "images", images, broken)
    found = collect(
        load(), spec, VIEWS, store=tmp_path / "found", execution=Execution(engine=pickled_engine, on_error="skip")
    )
    expected = collect(load(), spec, VIEWS, store=tmp_path / "expected", execution=Execution(on_error="skip"))
    by_default = collect(load(), spec, VIEWS, execution=Execution(engine=pickled_engine))
    assert found.skipped == expected.skipped == by_default.skipped
    assert [id_ for id_, _ in found.skipped] == [f"{number:03d}.png" for number in broken]
    assert read_files(tmp_path / "found") == read_files(tmp_path / "expected")
    with pytest.raises(SecondLookError, match=r"000\.png"):
        collect(load(), spec, VIEWS, execution=Execution(engine=pickled_engine, on_error="fail"))
    with pytest.raises(SecondLookError, match=r"000\.png"):
        collect(load(), f"{spec}?on_error=fail", VIEWS, execution=Execution(engine=pickled_engine))


def test_wrong_labels_are_rejected_at_the_first_chunk(images: Array, pickled_engine: Any) -> None:
    with pytest.raises(PredictionsError, match="labels"):
        collect(load(), images, VIEWS, labels=np.full(50, 4), execution=Execution(engine=pickled_engine))
    assert len(pickled_engine.numbers) == 1
