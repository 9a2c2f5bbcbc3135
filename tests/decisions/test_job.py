"""Scoring new images with a policy: rows, resuming, skipping and rejecting."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Review, SelectiveClassifier
from secondlook.errors import DecisionError, PredictionsError, SourceError
from secondlook.policies import Policy, certify
from secondlook.predictions import Execution, Predictions, collect
from secondlook.sources import ArraySource, open_source
from secondlook.views import ViewSet, apply_views
from tests import policy_maker
from tests.policy_maker import attach

VIEWS = ViewSet("identity hflip shift:1,0 shift:0,1")
IMAGES = 70


score = partial(policy_maker.score, part_size=16)


@pytest.fixture
def images(bright_or_dark: tuple[Array, Array]) -> Array:
    return bright_or_dark[0][:IMAGES]


@pytest.fixture
def policy(bright_or_dark: tuple[Array, Array], classifier: Classifier) -> Policy:
    pixels, labels = bright_or_dark
    preds = collect(classifier, pixels[IMAGES:], VIEWS, labels=labels[IMAGES:])
    rule = certify(preds, "mean", risk=0.1, delta=0.1)
    return attach(rule, classifier=classifier, views=VIEWS.texts, made="2026-01-01T00:00:00+00:00")


@pytest.fixture
def folder(images: Array, tmp_path: Path) -> Path:
    """The images as files, one of them broken."""
    path = tmp_path / "new"
    path.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(path / f"{number:03d}.png")
    (path / "020.png").write_bytes(b"not an image")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_rows_match_the_outputs_of_the_views(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    summary = score(policy, images, tmp_path / "scores.parquet", classifier=classifier, per_view=True)
    rows = read_rows(tmp_path / "scores.parquet")
    assert list(rows[0]) == [
        *("id", "label", "class", "confidence", "low", "high", "accept", "looks", "first_look", "disagreement"),
        *("reason", "view_labels", "view_probabilities"),
    ]
    views = apply_views(images, VIEWS)
    for number, row in enumerate(rows):
        outputs = np.asarray(classifier(views[number]), dtype=np.float64)
        label = int(outputs[0].argmax())
        assert (row["id"], row["label"], row["class"]) == (open_source(images).ids[number], label, None)
        assert row["confidence"] == pytest.approx(outputs[:, label].mean(), abs=1e-6)
        assert row["low"] <= row["confidence"] + 1e-9
        assert row["high"] >= row["confidence"] - 1e-9
        assert row["accept"] == (row["confidence"] >= policy.threshold)
        assert row["looks"] == len(views[number])
        assert row["first_look"] == pytest.approx(outputs[0].max(), abs=1e-6)
        distances = np.abs(outputs - outputs.mean(axis=0)).sum(axis=1) / 2
        assert row["disagreement"] == pytest.approx(distances.mean(), abs=1e-6)
        assert row["view_labels"] == outputs.argmax(axis=1).tolist()
        assert row["view_probabilities"] == pytest.approx(outputs.max(axis=1).tolist(), abs=1e-6)
    accepted = sum(row["accept"] for row in rows)
    assert (summary.images, summary.accepted, summary.rejected) == (IMAGES, accepted, IMAGES - accepted)
    assert 0 < accepted < IMAGES


def test_chunks_do_not_change_decisions(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    score(policy, images, tmp_path / "scores.parquet", classifier=classifier, seed=3, level=0.8)
    whole = SelectiveClassifier(classifier, policy).decide(images, level=0.8, seed=3)
    rows = read_rows(tmp_path / "scores.parquet")
    assert [row["id"] for row in rows] == list(whole.ids)
    assert whole.interval is not None
    columns = {"label": whole.labels, "confidence": whole.confidence, "accept": whole.accept}
    columns |= {"low": whole.interval[0], "high": whole.interval[1]}
    for name, values in columns.items():
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), abs=1e-12), name


def test_parquet_stores_policy_and_data(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    score(policy, images, tmp_path / "scores.parquet", classifier=classifier)
    content = json.loads(pq.read_schema(tmp_path / "scores.parquet").metadata[b"secondlook.score"])
    assert content == {
        "policy": json.loads(policy.model_dump_json()),
        "data": f"array:[{IMAGES}, 6, 6, 3]",
        "level": 0.95,
        "seed": 0,
        "mismatch": None,
    }


def test_class_names_of_the_policy_come_before_those_of_the_data(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    named = policy.model_copy(update={"class_names": ("dark", "bright")})
    folders = ArraySource(images, class_names=["camera 1", "camera 2"])
    for used, expected in ((policy, ["camera 1", "camera 2"]), (named, ["dark", "bright"])):
        score(used, folders, tmp_path / "scores.parquet", classifier=classifier, overwrite=True)
        rows = read_rows(tmp_path / "scores.parquet")
        assert {row["class"] for row in rows} == set(expected)
        assert all(row["class"] == expected[row["label"]] for row in rows)


def test_single_view_has_no_interval(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = attach(Policy(threshold=0.9, method="msr"), classifier=classifier, views=("identity",))
    summary = score(policy, images, tmp_path / "scores.csv", classifier=classifier)
    assert "guarantee: none" in str(summary)
    cells = (tmp_path / "scores.csv").read_text().splitlines()[1].split(",")
    assert cells[4:6] == ["", ""]


def test_ensemble_decides_with_all_members(images: Array, tmp_path: Path, brightness: Any) -> None:
    def compute_logits(batch: Any) -> Any:
        return np.log(brightness(batch) ** 0.5 + 0.05)

    members = [load_classifier(brightness, name="one"), load_classifier(compute_logits, name="two", output="logits")]
    ensemble = load_classifier(members, name="both")
    policy = attach(Policy(threshold=0.8, method="mean", predict_from="views"), classifier=ensemble, views=VIEWS.texts)
    score(policy, images, tmp_path / "scores.parquet", classifier=ensemble)
    whole = SelectiveClassifier(ensemble, policy).decide(images)
    rows = read_rows(tmp_path / "scores.parquet")
    assert whole.interval is not None
    for name, values in (("confidence", whole.confidence), ("label", whole.labels), ("low", whole.interval[0])):
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), abs=1e-12), name


def test_skipped_images_are_listed(policy: Policy, classifier: Classifier, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"020\.png"):
        score(policy, f"folder:{folder}", tmp_path / "scores.jsonl", classifier=classifier)
    summary = score(
        policy,
        f"folder:{folder}",
        tmp_path / "scores.jsonl",
        classifier=classifier,
        execution=Execution(on_error="skip"),
    )
    assert summary.images == IMAGES - 1
    assert [id_ for id_, _ in summary.skipped] == ["020.png"]
    assert f"skipped: 020.png: {summary.skipped[0][1]}" in str(summary)
    assert json.loads(json.dumps(summary.to_dict()))["skipped"][0]["id"] == "020.png"
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"{number:03d}.png" for number in range(IMAGES)]
    assert [row["id"] for row in rows if row["reason"] is not None] == ["020.png"]
    assert rows[20] == dict.fromkeys(rows[20]) | {
        "id": "020.png",
        "accept": False,
        "looks": 0,
        "reason": summary.skipped[0][1],
    }


def test_chunk_of_unreadable_images(policy: Policy, classifier: Classifier, folder: Path, tmp_path: Path) -> None:
    for number in range(16, 32):
        (folder / f"{number:03d}.png").write_bytes(b"")
    for suffix in (".parquet", ".csv"):
        out = tmp_path / f"scores{suffix}"
        summary = score(policy, f"folder:{folder}", out, classifier=classifier, execution=Execution(on_error="skip"))
        assert (summary.images, len(summary.skipped)) == (IMAGES - 16, 16)
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(PredictionsError, match="70 images"):
        score(
            policy,
            f"folder:{folder}",
            tmp_path / "none.csv",
            classifier=classifier,
            execution=Execution(on_error="skip"),
        )


def test_folders_of_new_images_need_not_be_classes(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    for day, image in zip(("monday", "tuesday", "friday"), images, strict=False):
        (tmp_path / "new" / day).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "new" / day / "a.png")
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.parquet", classifier=classifier)
    assert {row["class"] for row in read_rows(tmp_path / "scores.parquet")} == {None}
    (tmp_path / "new" / "monday" / "a.png").unlink()
    (tmp_path / "new" / "monday").rmdir()
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.parquet", classifier=classifier, overwrite=True)
    for row in read_rows(tmp_path / "scores.parquet"):
        assert row["class"] == ("friday", "tuesday")[row["label"]]


class FailingFunction:
    """Fails at one call, as a machine may, and counts the images of the others."""

    def __init__(self, function: Callable[[Any], Any], fails_at: int) -> None:
        self.function, self.remaining, self.images = function, fails_at, 0

    def __call__(self, batch: Any) -> Any:
        self.remaining -= 1
        if self.remaining == 0:
            raise RuntimeError("the machine is out of order")
        self.images += len(batch)
        return self.function(batch)


def test_interrupted_job_resumes(policy: Policy, brightness: Any, images: Array, tmp_path: Path) -> None:
    failing = FailingFunction(brightness, fails_at=11)
    classifier = load_classifier(failing, name="brightness")
    out = tmp_path / "scores.csv"
    with pytest.raises(RuntimeError, match="out of order"):
        score(policy, images, out, classifier=classifier, execution=Execution(batch_size=16))
    assert not out.exists()
    finished = sorted(path.name[: len("part-000000")] for path in (tmp_path / "scores.csv.parts").glob("part-*"))
    assert finished == ["part-000000", "part-000001"]
    failing.images = 0
    first: list[Predictions] = []
    score(policy, images, out, classifier=classifier, on_first_predictions=first.append)
    assert failing.images == 1 + (IMAGES - 2 * 16) * len(VIEWS)
    assert [len(preds) for preds in first] == [16], "called once, with the first chunk that was missing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.csv"]
    score(policy, images, tmp_path / "again.csv", classifier=classifier)
    assert out.read_bytes() == (tmp_path / "again.csv").read_bytes()


@pytest.fixture
def unfinished(policy: Policy, brightness: Any, images: Array, tmp_path: Path) -> Path:
    """The folder of a job that failed after some chunks."""
    failing = load_classifier(FailingFunction(brightness, 9), name="brightness")
    with pytest.raises(RuntimeError):
        score(policy, images, tmp_path / "scores.csv", classifier=failing, execution=Execution(batch_size=16))
    return tmp_path / "scores.csv.parts"


@pytest.mark.usefixtures("unfinished")
@pytest.mark.parametrize("different", [{"seed": 1}, {"level": 0.9}, {"per_view": True}])
def test_chunks_of_a_job_with_other_options_are_rejected(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, different: dict[str, Any]
) -> None:
    with pytest.raises(DecisionError, match=f"scores.csv.parts.* different {next(iter(different))};"):
        score(policy, images, tmp_path / "scores.csv", classifier=classifier, **different)


@pytest.mark.usefixtures("unfinished")
def test_chunks_of_other_data_policies_and_classifiers_are_rejected(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, brightness: Any
) -> None:
    out = tmp_path / "scores.csv"
    with pytest.raises(DecisionError, match="different data;"):
        score(policy, images[::-1].copy(), out, classifier=classifier)
    with pytest.raises(DecisionError, match="different policy;"):
        score(policy.model_copy(update={"threshold": 0.5}), images, out, classifier=classifier)
    with pytest.raises(DecisionError, match="different classifier;"):
        score(policy, images, out, classifier=brightness, allow_mismatch=True)
    cropped = load_classifier(brightness, name="brightness", crop=4)
    with pytest.raises(DecisionError, match="different preprocessing;"):
        score(policy, images, out, classifier=cropped, allow_mismatch=True)


def test_folder_that_is_not_a_job_is_rejected(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    parts = tmp_path / "b.csv.parts"
    parts.mkdir()
    (parts / "diary.txt").touch()
    with pytest.raises(DecisionError, match=r"b\.csv\.parts"):
        score(policy, images, tmp_path / "b.csv", classifier=classifier)
    (parts / "_job.json").write_text("{")
    with pytest.raises(DecisionError, match=r"b\.csv\.parts"):
        score(policy, images, tmp_path / "b.csv", classifier=classifier)
    assert sorted(path.name for path in parts.iterdir()) == ["_job.json", "_lock", "diary.txt"]


def test_temporary_files_of_killed_jobs_are_removed(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    other = tmp_path / ".scores.csv.notes.tmp"
    other.touch()
    names = ["scores.csv", "tasks-config.xml", "tasks.json"]
    for name in names:
        (tmp_path / f".{name}.{'0f' * 16}.tmp").touch()
    exports = [f"label-studio:{tmp_path / 'tasks.json'}"]
    options: dict[str, Any] = {"exports": exports, "image_prefix": "https://images.example/"}
    score(policy, images, tmp_path / "scores.csv", classifier=classifier, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, *names]


def test_outputs_never_replace_inputs_or_each_other(
    policy: Policy, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy.save("policy.json")
    Path("mine.csv").write_text("path\nabsent.png\n")
    Path("sub").mkdir()

    def check_rejected(pattern: str, out: str, exports: tuple[str, ...] = ()) -> None:
        with pytest.raises(DecisionError, match=pattern):
            score(tmp_path / "policy.json", "csv:mine.csv", out, classifier=classifier, review=Review(exports=exports))

    check_rejected(r"scores .*data at 'mine\.csv'", "mine.csv")
    check_rejected(r"scores .*data at 'sub/\.\./mine\.csv'", "sub/../mine.csv")
    check_rejected(r"'fiftyone:policy\.json' .*policy", "s.csv", ("fiftyone:policy.json",))
    check_rejected(r"'fiftyone:s\.csv' .*scores", "s.csv", ("fiftyone:s.csv",))
    check_rejected(r"'label-studio:a\.json' .*'fiftyone:a\.json'", "s.csv", ("fiftyone:a.json", "label-studio:a.json"))
    check_rejected(r"'fiftyone:a-config\.xml'", "s.csv", ("fiftyone:a-config.xml", "label-studio:a.json"))
    assert Path("mine.csv").read_text() == "path\nabsent.png\n"


def test_mismatch_voids_the_guarantee(policy: Policy, images: Array, tmp_path: Path, brightness: Any) -> None:
    darkness = load_classifier(brightness, name="darkness")
    out = tmp_path / "scores.csv"
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        score(policy, images, out, classifier=darkness)
    summary = score(policy, images, out, classifier=darkness, allow_mismatch=True)
    assert summary.guarantee is None
    assert summary.mismatch is not None
    assert f"guarantee: none, since {summary.mismatch}" in str(summary)
    assert "'brightness'" in summary.mismatch
    assert "'darkness'" in summary.mismatch


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"policy": "absent.json"}, r"absent\.json"),
        ({"out": "scores.xlsx"}, r"'\.xlsx'"),
        ({"out": "scores.parqet"}, r"'\.parqet'.*'\.parquet'"),
        ({"out": "none/scores.csv"}, "none'"),
        ({"out": "folder.csv"}, r"folder\.csv"),
        ({"level": 1.5}, r"level=1\.5"),
        ({"seed": -1}, "seed=-1"),
        ({"classifier": None}, "'brightness'"),
        ({"exports": ["cvat:a.json"]}, "'cvat'"),
    ],
)
def test_invalid_arguments_are_rejected_and_leave_nothing_behind(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, arguments: dict[str, Any], pattern: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    given = {"policy": policy, "out": "scores.csv", "classifier": classifier, **arguments}
    with pytest.raises(DecisionError, match=pattern):
        score(given.pop("policy"), images, tmp_path / given.pop("out"), **given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv"]


def test_rank_confidence_is_rejected(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    ranked = policy.model_copy(update={"method": "bootstrap"})
    with pytest.raises(DecisionError, match="'bootstrap'"):
        score(ranked, images, tmp_path / "scores.csv", classifier=classifier)
