"""Runs with an engine: the same evaluation and predictions as in this process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.diagnosis import choice
from secondlook.errors import PredictionsError
from secondlook.predictions import DamagedChunkWarning, batching
from secondlook.sources import UnreadableImageError
from tests.predictions.conftest import read_files
from tests.report.runs.conftest import VIEWS, write_archive


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Spec of 1,024 dark and bright images, enough to fit a method."""
    return write_archive(tmp_path, 1024)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 128 images of 6 x 6 pixels."""
    monkeypatch.setattr(batching, "CHUNK_BYTES", 128 * 6 * 6 * 3)


def classify(batch: Array) -> Array:
    """Return probabilities of dark and bright, by the left half of an image. uint8 [N, H, W, 3] -> float64 [N, 2]"""
    bright = 1 / (1 + np.exp(-(batch[:, :, :4].mean(axis=(1, 2, 3)) - 128.0) / 12.0))
    return np.stack([1 - bright, bright], axis=1)


def classify_otherwise(batch: Array) -> Array:
    return classify(batch**0.99)


def load(function: Any = classify) -> sl.Classifier:
    return sl.load_classifier(function, output="probabilities", name=function.__name__)


def create_both(
    tmp_path: Path, engine: Any, data: Any, classifier: Any = None, **options: Any
) -> tuple[sl.Run, sl.Run]:
    """Create a run here and one with an engine."""
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "check_setup": False, **options}
    executions = {"here": sl.Execution(progress=False), "engine": sl.Execution(engine=engine, progress=False)}
    first, second = (
        sl.create_run(classifier or load(), data, out=tmp_path / name, execution=execution, **arguments)
        for name, execution in executions.items()
    )
    return first, second


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"views": "auto"},
        {"views": "auto", "methods": ["learned", "bootstrap?seed=3", "mean?temperature=fit"], "predict_from": "views"},
        {"methods": ["learned", "msr"], "per_class": True, "unknown": True},
        {"views": "identity", "top_k": 2},
        {"views": "identity brightness:0.3", "unknown": True},
    ],
)
@pytest.mark.filterwarnings("ignore::secondlook.views.ViewWarning")
def test_evaluation_is_the_same(archive: str, tmp_path: Path, pickled_engine: Any, options: dict[str, Any]) -> None:
    if options.get("unknown"):
        outside = np.random.default_rng(5).integers(0, 256, (70, 6, 6, 3), dtype=np.uint8)
        np.savez(tmp_path / "unknown.npz", images=outside)
        options = {**options, "unknown": f"npz:{tmp_path / 'unknown.npz'}"}
    here, there = create_both(tmp_path, pickled_engine, archive, **options)
    assert len(pickled_engine.numbers) >= 8, "chunks were computed by the engine"
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()
    assert there.record.model_copy(update={"settings": here.settings}) == here.record
    found, expected = (read_files(run.path / "predictions") for run in (there, here))
    assert {name: found.get(name) for name in expected} == expected
    assert read_files(there.path / "unknown") == read_files(here.path / "unknown")
    if "methods" not in options:
        assert there.evaluate(progress=False).rows[0] == here.evaluate(progress=False).rows[0]


def test_views_set_aside_on_more_images_are_not_evaluated(
    archive: str, tmp_path: Path, pickled_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "MAX_STRAIN_AGAIN", -0.1)
    here, there = create_both(tmp_path, pickled_engine, archive, views="auto")
    assert here.record.view_choice is not None
    assert here.record.view_choice.set_aside, "the data show what is tested"
    assert 1 < len(here.record.views) < 13
    assert there.record.views == here.record.views
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()
    entries = [read_files(run.path / "predictions" / run.record.predictions) for run in (here, there)]
    assert entries[0] == entries[1]


def test_evaluation_of_an_ensemble(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    members = [load(), load(classify_otherwise)]
    here, there = create_both(tmp_path, pickled_engine, archive, members, methods=["bootstrap", "mean", "zero"])
    assert sorted(pickled_engine.numbers) == sorted([*range(8)] * 2), "both members"
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()
    assert read_files(there.path / "predictions") == read_files(here.path / "predictions")


def write_images(folder: Path, archive: str, broken: list[int]) -> str:
    """Write the images of an archive as a table of files."""
    images = np.load(archive.removeprefix("npz:"))
    folder.mkdir()
    lines = ["path,label"]
    for number, (image, label) in enumerate(zip(images["images"], images["labels"], strict=True)):
        lines.append(f"{number:03d}.png,{label}")
        if number in broken:
            (folder / f"{number:03d}.png").write_bytes(b"not an image")
        else:
            Image.fromarray(image).save(folder / f"{number:03d}.png")
    (folder / "labels.csv").write_text("\n".join(lines))
    return f"csv:{folder / 'labels.csv'}"


def test_unreadable_images_are_listed_until_repaired(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    broken = [0, 70, *range(256, 384), 899]  # the third chunk has no other images
    data = write_images(tmp_path / "images", archive, broken)
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "check_setup": False}
    skip = sl.Execution(on_error="skip", progress=False)
    engine = sl.Execution(engine=pickled_engine, progress=False)
    for path in ("before", "after"):
        here = sl.create_run(load(), data, out=tmp_path / path, execution=skip, **arguments)
        there = sl.create_run(load(), data, out=tmp_path / "run", execution=engine, **arguments)
        assert (there.path / "evaluation.json").read_bytes() == (here.path / "evaluation.json").read_bytes()
        skipped = json.loads((there.path / "evaluation.json").read_text())["skipped"]
        assert [one["id"] for one in skipped] == [f"{number:03d}.png" for number in broken]
        pickled_engine.numbers.clear()
        Image.new("RGB", (6, 6), (250, 250, 250)).save(tmp_path / "images" / "070.png")
        broken.remove(70) if path == "before" else None


class UnreliableSource(sl.Source):
    """Images of which one cannot be read while a file exists; its digest is always the same."""

    def __init__(self, failing: Path) -> None:
        super().__init__("unreliable", [f"{number:03d}" for number in range(300)], labels=np.arange(300) % 2)
        self.failing = failing

    def read(self, index: int) -> Array:
        if index == 200 and self.failing.exists():
            raise UnreadableImageError(self.ids[index], "the server does not answer")
        return np.random.default_rng(index).integers(0, 256, (6, 6, 3), dtype=np.uint8)

    def hash_content(self, index: int) -> bytes:
        return str(index).encode()


def test_repaired_images_are_evaluated(tmp_path: Path, pickled_engine: Any) -> None:
    failing = tmp_path / "failing"
    failing.touch()
    execution = sl.Execution(engine=pickled_engine, on_error="skip", progress=False)
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 5, "check_setup": False, "execution": execution}
    counts = []
    for _ in range(2):
        run = sl.create_run(load(), UnreliableSource(failing), out=tmp_path / "run", **arguments)
        counts.append(run.evaluation.rows[0].images)
        failing.unlink(missing_ok=True)
    assert counts == [299, 300]


def test_killed_job_resumes_and_repairs_damaged_chunks(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    execution = sl.Execution(engine=pickled_engine, progress=False)
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "check_setup": False, "execution": execution}
    pickled_engine.dies_after = 3
    with pytest.raises(KeyboardInterrupt):
        sl.create_run(load(), archive, out=tmp_path / "run", **arguments)
    pickled_engine.dies_after = None
    first = sl.create_run(load(), archive, out=tmp_path / "run", **arguments)
    assert sorted(pickled_engine.numbers) == list(range(8)), "no chunk is classified twice"
    expected = read_files(first.path)
    pickled_engine.numbers.clear()
    chunk = sorted((first.path / "predictions" / first.record.predictions).rglob("part-000005-*.parquet"))[0]
    chunk.write_bytes(chunk.read_bytes()[:-100])
    with pytest.warns(DamagedChunkWarning):
        again = sl.create_run(load(), archive, out=tmp_path / "run", **arguments)
    assert pickled_engine.numbers == [5]
    assert read_files(again.path) == expected


def test_other_methods_are_evaluated_from_stored_predictions(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    create_both(tmp_path, pickled_engine, archive)
    pickled_engine.numbers.clear()
    here, there = create_both(tmp_path, pickled_engine, archive, methods=["zero", "bootstrap"])
    assert pickled_engine.numbers == [], "nothing is classified again"
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()
    unnamed = sl.load_classifier(classify, output="probabilities")
    execution = sl.Execution(engine=pickled_engine, progress=False)
    with pytest.raises(PredictionsError, match="name"):
        sl.create_run(unnamed, archive, VIEWS, out=tmp_path / "run", check_setup=False, execution=execution)
