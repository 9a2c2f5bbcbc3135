"""Runs with an engine: the same evaluation and predictions as in this process, from statistics kept in parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.diagnosis import auto
from secondlook.errors import PredictionsError, ReportError
from secondlook.evaluation import ImageStatistics
from secondlook.predictions import DamagedChunkWarning, batching
from secondlook.predictions.store import StoredTable
from secondlook.sources import UnreadableImageError

VIEWS = "identity hflip vflip"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Spec of 900 dark and bright images, enough to fit a method."""
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=900)
    mean = 128 + np.where(labels == 1, 1, -1) * rng.gamma(2.0, 25.0, size=900) + rng.normal(0, 25, size=900)
    images = np.clip(mean[:, None, None, None] + rng.normal(0, 25, size=(900, 6, 6, 3)), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=labels, class_names=["dark", "bright"])
    return f"npz:{tmp_path / 'data.npz'}"


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


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def create_both(
    tmp_path: Path, engine: Any, data: Any, classifier: Any = None, **options: Any
) -> tuple[sl.Run, sl.Run]:
    """Create a run here and one with an engine."""
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "progress": False, "check_setup": False, **options}
    first = sl.create_run(classifier or load(), data, tmp_path / "here", **arguments)
    return first, sl.create_run(classifier or load(), data, tmp_path / "engine", engine=engine, **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"views": "auto"},
        {"views": "auto", "methods": ["learned", "bootstrap?seed=3", "mean?temperature=fit"], "predict_from": "views"},
        {"methods": ["learned", "msr"], "per_class": True, "ood": True},
        {"views": "identity", "top_k": 2},
        {"views": "identity brightness:0.3", "ood": True},
    ],
)
@pytest.mark.filterwarnings("ignore::secondlook.ViewWarning")
def test_evaluation_equals_that_of_this_process(
    archive: str, tmp_path: Path, pickled_engine: Any, options: dict[str, Any]
) -> None:
    if options.get("ood"):
        outside = np.random.default_rng(5).integers(0, 256, (70, 6, 6, 3), dtype=np.uint8)
        np.savez(tmp_path / "ood.npz", images=outside)
        options = {**options, "ood": f"npz:{tmp_path / 'ood.npz'}"}
    here, there = create_both(tmp_path, pickled_engine, archive, **options)
    assert len(pickled_engine.numbers) >= 8, "chunks were computed by the engine"
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()
    assert there.record.model_copy(update={"settings": here.settings}) == here.record
    found, expected = (read_files(run.path / "predictions") for run in (there, here))
    assert {name: found.get(name) for name in expected} == expected
    assert read_files(there.path / "ood") == read_files(here.path / "ood")
    if "methods" not in options:
        assert there.evaluate(progress=False).rows[0] == here.evaluate(progress=False).rows[0]


def test_views_that_are_set_aside_on_more_images_are_stored_but_not_evaluated(
    archive: str, tmp_path: Path, pickled_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "MAX_STRAIN_AGAIN", -0.1)
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
    here, there = create_both(tmp_path, pickled_engine, archive, members, methods=["bootstrap", "mean", "nn-ensemble"])
    assert sorted(pickled_engine.numbers) == list(range(8)), "all members of a chunk are classified together"
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()
    assert read_files(there.path / "predictions") == read_files(here.path / "predictions")


@pytest.mark.parametrize("views", ["auto", "identity brightness:0.3"])
@pytest.mark.filterwarnings("ignore::secondlook.ViewWarning")
def test_run_without_predictions_has_the_same_evaluation(
    archive: str, tmp_path: Path, pickled_engine: Any, views: str
) -> None:
    arguments: dict[str, Any] = {"views": views, "resamples": 20, "progress": False}
    expected = sl.create_run(load(), archive, tmp_path / "here", **arguments)
    arguments |= {"engine": pickled_engine, "keep_predictions": False}
    run = sl.create_run(load(), archive, tmp_path / "run", **arguments)
    assert (run.path / "evaluation.json").read_bytes() == (expected.path / "evaluation.json").read_bytes()
    assert not (run.path / "predictions" / run.record.predictions).exists()
    for use in (run.evaluate, run.report, lambda **_: run.certify(risk=0.1, progress=False)):
        with pytest.raises(PredictionsError, match="no predictions"):
            use(progress=False)
    computed = len(pickled_engine.numbers)
    again = sl.create_run(load(), archive, tmp_path / "run", seed=1, **arguments)
    assert again.evaluation.seed == 1
    numbers = pickled_engine.numbers[computed:]
    assert len(numbers) <= 8, "the parts are reused; given views are checked on a sample"
    with pytest.raises(ReportError, match="engine="):
        sl.create_run(load(), archive, tmp_path / "other", keep_predictions=False)


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


@pytest.mark.parametrize("keep", [True, False])
def test_unreadable_images_are_listed_and_evaluated_once_repaired(
    archive: str, tmp_path: Path, pickled_engine: Any, keep: bool
) -> None:
    broken = [0, 70, *range(256, 384), 899]  # the third chunk has no other images
    data = write_images(tmp_path / "images", archive, broken)
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "progress": False, "check_setup": False}
    engine = {"engine": pickled_engine, "keep_predictions": keep}
    for path in ("before", "after"):
        here = sl.create_run(load(), data, tmp_path / path, on_error="skip", **arguments)
        there = sl.create_run(load(), data, tmp_path / "run", **engine, **arguments)
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


@pytest.mark.parametrize("keep", [True, False])
def test_images_that_can_be_read_again_are_evaluated(tmp_path: Path, pickled_engine: Any, keep: bool) -> None:
    failing = tmp_path / "failing"
    failing.touch()
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 5, "progress": False, "check_setup": False}
    arguments |= {"engine": pickled_engine, "keep_predictions": keep, "on_error": "skip"}
    counts = []
    for _ in range(2):
        run = sl.create_run(load(), UnreliableSource(failing), tmp_path / "run", **arguments)
        counts.append(run.evaluation.rows[0].images)
        failing.unlink(missing_ok=True)
    assert counts == [299, 300]


def test_killed_job_resumes_and_damaged_parts_are_computed_again(
    archive: str, tmp_path: Path, pickled_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "progress": False, "check_setup": False}
    arguments |= {"engine": pickled_engine, "keep_predictions": False}
    pickled_engine.dies_after = 3
    with pytest.raises(KeyboardInterrupt):
        sl.create_run(load(), archive, tmp_path / "run", **arguments)
    pickled_engine.dies_after = None
    first = sl.create_run(load(), archive, tmp_path / "run", **arguments)
    assert sorted(pickled_engine.numbers[:8]) == list(range(8)), "no chunk is summarized twice"
    expected = (first.path / "evaluation.json").read_bytes()
    pickled_engine.numbers.clear()
    part = sorted((tmp_path / "run" / "statistics").rglob("part-000005*"))[0]
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.warns(DamagedChunkWarning, match="part-000005"):
        again = sl.create_run(load(), archive, tmp_path / "run", **arguments)
    assert pickled_engine.numbers[0] == 5
    assert (again.path / "evaluation.json").read_bytes() == expected
    monkeypatch.setattr(batching, "CHUNK_BYTES", 256 * 6 * 6 * 3)
    with pytest.warns(DamagedChunkWarning, match="other images"):
        divided_otherwise = sl.create_run(load(), archive, tmp_path / "run", **arguments)
    assert (divided_otherwise.path / "evaluation.json").read_bytes() == expected


def test_other_methods_are_evaluated_from_stored_predictions(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    here, there = create_both(tmp_path, pickled_engine, archive)
    pickled_engine.numbers.clear()
    here, there = create_both(tmp_path, pickled_engine, archive, methods=["entropy", "bootstrap"])
    assert pickled_engine.numbers == [], "nothing is classified again"
    assert (here.path / "evaluation.json").read_bytes() == (there.path / "evaluation.json").read_bytes()


def test_stored_outputs_are_not_read_again(
    archive: str, tmp_path: Path, pickled_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views that were chosen need no check on stored outputs; all numbers come from the statistics."""
    read: list[int] = []
    before = StoredTable.read

    def count(table: StoredTable, images: Array, views: Array) -> Array:
        read.append(len(images) if table.shape[0] > 256 else 0)
        return before(table, images, views)

    monkeypatch.setattr(StoredTable, "read", count)
    arguments: dict[str, Any] = {"views": "auto", "resamples": 20, "progress": False, "engine": pickled_engine}
    run = sl.create_run(load(), archive, tmp_path / "run", **arguments)
    assert 0 < len(run.record.tuning) <= 225
    assert read
    assert sum(read) == 0, "all reads are of the tuning images"


def test_statistics_are_kept_as_parquet(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    import pyarrow.parquet as pq

    _, there = create_both(tmp_path, pickled_engine, archive)
    parts = [pq.read_table(path) for path in sorted((there.path / "statistics").rglob("*.parquet"))]
    joined = ImageStatistics.join([ImageStatistics.from_arrow(part) for part in parts])
    assert joined.ids == there.predictions.ids
    np.testing.assert_array_equal(joined.columns["confidence:mean"], sl.confidence(there.predictions, "mean"))


def test_function_without_a_name_is_rejected(archive: str, tmp_path: Path, pickled_engine: Any) -> None:
    unnamed = sl.load_classifier(classify, output="probabilities")
    for keep in (True, False):
        with pytest.raises(PredictionsError, match="name"):
            sl.create_run(
                unnamed,
                archive,
                tmp_path / "run",
                views=VIEWS,
                engine=pickled_engine,
                keep_predictions=keep,
                check_setup=False,
                progress=False,
            )
