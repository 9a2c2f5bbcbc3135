"""Scoring with an exported file: the rows of the policy, resumed after an interruption, for review and monitoring."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import ExportedFile, compile_policy, load_policy
from secondlook.errors import DecisionError, SourceError
from secondlook.onnx_export import export_onnx
from secondlook.policies import Policy, certify
from secondlook.predictions import Execution, Predictions, collect
from tests.conftest import PickledEngine
from tests.decisions.decider_files import make_bright_policy, write_decider
from tests.onnx_export.conftest import make_images, make_policy, write_network
from tests.policy_maker import attach, score

EXACT = ("id", "label", "labels", "class", "accept", "looks", "reason", "view_labels")
COUNT = 50
IMAGES = np.zeros((3, 4, 4, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return load_classifier(f"onnx:{write_network(tmp_path_factory.mktemp('network') / 'n.onnx')}?mean=.5&std=.25")


@pytest.fixture(scope="module")
def files(classifier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Policy]]:
    """Exported files by kind, with their policies; the views do not round pixels otherwise than the library."""
    folder = tmp_path_factory.mktemp("exported")
    images, views = make_images(500, seed=9), "identity hflip shift:1,0 shift:-1,2"
    found = classifier.probabilities(images)
    labels = np.where(found.max(axis=1) > 0.97, found.argmax(axis=1), found.argmin(axis=1))  # wrong where it is unsure
    preds = collect(classifier, images, views, labels=labels)
    top_2 = Policy(threshold=0.9, method="blend", top_k=2, predict_from="views")
    made = {}
    for kind, rule in {
        "plain": certify(preds, "mean", risk=0.1, delta=0.1),
        "adaptive": certify(preds, "mean", risk=0.1, delta=0.1, adaptive=True),
        "top-2": top_2.model_copy(update={"threshold": float(np.median(top_2.confidence(preds)))}),
    }.items():
        names = rule.schedule.views if rule.schedule else preds.views.texts
        policy = attach(rule, classifier=classifier, views=names, class_names=("a", "b", "c", "d"))
        export_onnx(policy, folder / f"{kind}.onnx", classifier=classifier)
        made[kind] = folder / f"{kind}.onnx", policy
    return made


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", ["plain", "adaptive", "top-2"])
def test_rows_are_those_of_the_policy(files: dict[str, Any], classifier: Classifier, tmp_path: Path, kind: str) -> None:
    images, (file, policy) = make_images(COUNT, seed=11), files[kind]
    options: dict[str, Any] = {"per_view": True, "audit": 0.3, "level": 0.8, "seed": 2}
    mine = score(policy, images, tmp_path / "mine.parquet", classifier=classifier, **options)
    theirs = score(file, images, tmp_path / "theirs.parquet", **options)
    for expected, row in zip(read_rows(mine.out), read_rows(theirs.out), strict=True):  # type: ignore[arg-type]
        assert list(row) == list(expected)
        for name, value in expected.items():
            assert row[name] == (value if name in EXACT or value is None else pytest.approx(value, abs=1e-5)), name
    assert {**theirs.to_dict(), "out": ""} == {**mine.to_dict(), "out": ""}
    assert str(theirs).replace("theirs", "mine") == str(mine)
    assert 0 < theirs.accepted < COUNT
    if kind == "adaptive":
        assert len({row["looks"] for row in read_rows(tmp_path / "theirs.parquet")}) > 1
        assert theirs.mean_looks < len(policy.views)


def test_an_open_file_is_the_same_as_its_path(files: dict[str, Any], tmp_path: Path) -> None:
    images, file = make_images(COUNT), files["plain"][0]
    for given, name in ((str(file), "a"), (load_policy(file), "b")):
        score(given, images, tmp_path / f"{name}.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    stored = json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"secondlook.score"])
    assert stored["decider"] == compile_policy(load_policy(file)).described.digest
    assert stored["policy"] == json.loads(files["plain"][1].model_dump_json())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images as files, of two sizes, one of them broken."""
    (tmp_path / "new").mkdir()
    for number, image in enumerate(make_images(COUNT, 20, seed=4)):
        pixels = image if number % 3 else image[:, :18]
        Image.fromarray(pixels).save(tmp_path / "new" / f"{number:03d}.png")
    (tmp_path / "new" / "007.png").write_bytes(b"not an image")
    return tmp_path / "new"


@pytest.fixture
def resizing(tmp_path: Path) -> tuple[Path, Classifier, Policy]:
    """A file that takes images of any size, with the classifier and policy that it was made from."""
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'n.onnx')}?resize=16,16&interpolation=nearest")
    policy, _ = make_policy(classifier, make_images(), Policy(threshold=0.7, method="mean"), "identity hflip shift:1,0")
    export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier)
    return tmp_path / "decide.onnx", classifier, policy


def test_files_of_several_sizes_are_scored_and_reviewed(
    folder: Path, resizing: tuple[Path, Classifier, Policy], tmp_path: Path
) -> None:
    file, classifier, policy = resizing
    shared: dict[str, Any] = {"on_error": "skip", "part_size": 8, "batch_size": 5, "export_all": True}
    results = []
    for name, given, options in (("mine", policy, {"classifier": classifier}), ("theirs", file, {})):
        out = tmp_path / name
        out.mkdir()
        exports = [f"label-studio:{out / 'tasks.json'}", f"fiftyone:{out / 'labels.json'}"]
        chosen = {**shared, **options, "rejected": out / "rejected", "exports": exports}
        results.append(score(given, f"folder:{folder}", out / "scores.jsonl", **chosen))
    assert results[1].skipped == results[0].skipped
    assert len(results[1].skipped) == 1
    assert results[1].rejected == results[0].rejected > 3
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    assert list_files(theirs) == list_files(mine)
    assert [row["label"] for row in read_lines(theirs)] == [row["label"] for row in read_lines(mine)]
    with pytest.raises(SourceError, match="007"):
        score(file, f"folder:{folder}", tmp_path / "failed.csv")


def test_an_image_that_does_not_fit_is_named(files: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DecisionError, match=r"000\.png.*20 x 18 x 3"):
        score(files["plain"][0], f"folder:{folder}", tmp_path / "scores.csv", execution=Execution(on_error="skip"))


@pytest.mark.parametrize("kind", ["plain", "adaptive"])
@pytest.mark.parametrize("at", [0, 1, 4, 12])
def test_interrupted_job_resumes_with_the_same_bytes(
    files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at: int
) -> None:
    file, images = files[kind][0], make_images(COUNT, seed=2)
    options: dict[str, Any] = {"part_size": 8, "batch_size": 4, "per_view": True}
    score(file, images, tmp_path / "whole.parquet", **options)
    calls: list[int] = []
    run = ExportedFile._run

    def count(self: ExportedFile, batch: Array) -> Any:
        if len(calls) == at:
            raise KeyboardInterrupt
        calls.append(len(batch))
        return run(self, batch)

    monkeypatch.setattr(ExportedFile, "_run", count)
    with pytest.raises(KeyboardInterrupt):
        score(file, images, tmp_path / "scores.parquet", **options)
    finished, at = sum(calls), -1
    calls.clear()
    score(file, images, tmp_path / "scores.parquet", **options)
    assert (tmp_path / "scores.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not list(tmp_path.glob("*.parts"))
    assert sum(calls) <= COUNT - finished + 16, "at most the chunk being written and the one before it are lost"


def test_chunks_of_another_file_are_not_used(
    files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, (file, policy) = make_images(COUNT), files["plain"]
    other = write_network(tmp_path / "other.onnx", seed=7)
    monkeypatch.setattr(ExportedFile, "_run", interrupt_after(2, ExportedFile._run))
    with pytest.raises(KeyboardInterrupt):
        score(file, images, tmp_path / "scores.parquet", execution=Execution(part_size=8))
    monkeypatch.undo()
    export_onnx(policy, tmp_path / "other-decide.onnx", classifier=f"onnx:{other}?mean=.5&std=.25", allow_mismatch=True)
    with pytest.raises(DecisionError, match="different classifier"):
        score(tmp_path / "other-decide.onnx", images, tmp_path / "scores.parquet", execution=Execution(part_size=8))


def interrupt_after(count: int, run: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[object] = []

    def interrupt(self: ExportedFile, batch: Array) -> Any:
        calls.append(batch)
        if len(calls) > count:
            raise KeyboardInterrupt
        return run(self, batch)

    return interrupt


def test_a_mismatch_at_export_loses_the_guarantee(files: dict[str, Any], tmp_path: Path) -> None:
    _, policy = files["plain"]
    other = write_network(tmp_path / "other.onnx", seed=7)
    export_onnx(policy, tmp_path / "d.onnx", classifier=f"onnx:{other}?mean=.5&std=.25", allow_mismatch=True)
    summary = score(tmp_path / "d.onnx", make_images(COUNT), tmp_path / "scores.parquet")
    assert policy.certified
    assert summary.guarantee is None
    assert summary.mismatch is not None
    assert summary.mismatch in str(summary)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"classifier": "onnx:n.onnx"}, "classifier="),
        ({"part_size": 0}, "part_size"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
)
def test_arguments_that_do_not_go_with_a_file(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    file = write_decider(tmp_path / "d.onnx")
    with pytest.raises(sl.SecondLookError, match=told):
        score(file, IMAGES, tmp_path / "scores.csv", **options)


def test_an_open_file_is_not_replaced_by_its_scores(tmp_path: Path) -> None:
    policy = load_policy(write_decider(tmp_path / "d.onnx"))
    score(policy, IMAGES, tmp_path / "scores.csv", execution=Execution(device="cpu"))
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + len(IMAGES)
    with pytest.raises(DecisionError, match=r"d\.onnx"):
        score(policy, IMAGES, tmp_path / "d.onnx")


def test_an_engine_cannot_run_a_file(tmp_path: Path, pickled_engine: PickledEngine) -> None:
    with pytest.raises(DecisionError, match="engine="):
        score(
            write_decider(tmp_path / "d.onnx"), IMAGES, tmp_path / "s.csv", execution=Execution(engine=pickled_engine)
        )


def test_first_predictions_are_those_of_the_first_chunk(files: dict[str, Any], tmp_path: Path) -> None:
    seen: list[Predictions] = []
    images = make_images(COUNT)
    score(
        files["plain"][0],
        images,
        tmp_path / "a.csv",
        on_first_predictions=seen.append,
        execution=Execution(part_size=8),
    )
    assert [(len(one), one.views.texts) for one in seen] == [(8, files["plain"][1].views)]
    score(
        files["adaptive"][0],
        images,
        tmp_path / "b.csv",
        on_first_predictions=seen.append,
        execution=Execution(part_size=8),
    )
    assert len(seen) == 1


def test_decisions_on_the_threshold_can_be_monitored(tmp_path: Path) -> None:
    """Rounded to float32, confidences of the file can be on the other side of the threshold."""
    images = np.random.default_rng(3).integers(0, 256, (30, 4, 4, 3), dtype=np.uint8)
    means = images.astype(np.float64).mean(axis=(1, 2, 3)) / 255
    for threshold in np.maximum(means, 1 - means)[:8].tolist():
        policy = make_bright_policy(threshold)
        file = write_decider(tmp_path / "d.onnx", policy)
        score(file, images, tmp_path / "scores.parquet", overwrite=True)
        rows = pq.read_table(tmp_path / "scores.parquet")
        np.testing.assert_array_equal(
            policy.accept(rows["confidence"].to_numpy(), method=policy.method), rows["accept"].to_numpy()
        )
