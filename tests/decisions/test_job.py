"""Scoring new images with a policy: rows, audits, resuming, skipping and rejecting."""

import json
import shutil
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
from secondlook.policies import AuditPlan, Policy, certify
from secondlook.predictions import Predictions, collect
from secondlook.sources import ArraySource, open_source
from secondlook.views import ViewSet, apply_views
from tests.conftest import PickledEngine
from tests.decisions.conftest import Counting, Score, brightness, make_policy, read_rows, save_images
from tests.policy_maker import score

VIEWS = ViewSet("identity hflip shift:1,0 shift:0,1")
IMAGES = 70


@pytest.fixture(scope="module")
def images(bright_or_dark: tuple[Array, Array]) -> Array:
    return bright_or_dark[0][:IMAGES]


@pytest.fixture(scope="module")
def policy(bright_or_dark: tuple[Array, Array], classifier: Classifier) -> Policy:
    pixels, labels = bright_or_dark
    preds = collect(classifier, pixels[IMAGES:], VIEWS, labels=labels[IMAGES:])
    return make_policy(classifier, " ".join(VIEWS.texts), certify(preds, "mean", risk=0.1, delta=0.1))


@pytest.fixture
def folder(images: Array, tmp_path: Path) -> Path:
    """The images as files, one of them broken."""
    save_images(tmp_path / "new", images, broken=[20])
    return tmp_path / "new"


def test_rows_match_outputs_of_views(score_into: Score, policy: Policy, classifier: Classifier, images: Array) -> None:
    summary, rows = score_into(per_view=True)
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
        assert row["low"] - 1e-9 <= row["confidence"] <= row["high"] + 1e-9
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
    assert summary.audited is None
    assert "audited" not in summary.to_dict()


@pytest.mark.parametrize("is_ensemble", [False, True])
def test_chunks_do_not_change_decisions(
    score_into: Score, policy: Policy, classifier: Classifier, images: Array, is_ensemble: bool
) -> None:
    """Nor do they for the members of an ensemble, one of which outputs logits."""
    if is_ensemble:
        logits = load_classifier(lambda batch: np.log(brightness(batch) ** 0.5 + 0.05), name="two", output="logits")
        classifier = load_classifier([classifier, logits], name="both")
        policy = make_policy(classifier, threshold=0.8, predict_from="views")
    _, rows = score_into(policy=policy, classifier=classifier, seed=3, level=0.8)
    whole = SelectiveClassifier(classifier, policy).decide(images, level=0.8, seed=3)
    assert [row["id"] for row in rows] == list(whole.ids)
    assert whole.interval is not None
    columns = {"label": whole.labels, "confidence": whole.confidence, "accept": whole.accept}
    columns |= {"low": whole.interval[0], "high": whole.interval[1]}
    for name, values in columns.items():
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), abs=1e-12), name


def read_metadata(path: Path) -> Any:
    return json.loads(pq.read_schema(path).metadata[b"secondlook.score"])


def test_stored_policy_data_and_class_names(score_into: Score, policy: Policy, tmp_path: Path, images: Array) -> None:
    score_into()
    assert read_metadata(tmp_path / "scores.parquet") == {
        "policy": json.loads(policy.model_dump_json()),
        "data": f"array:[{IMAGES}, 6, 6, 3]",
        "level": 0.95,
        "seed": 0,
        "mismatch": None,
    }
    named = policy.model_copy(update={"class_names": ("dark", "bright")})
    folders = ArraySource(images, class_names=["camera 1", "camera 2"])
    for used, expected in ((policy, ["camera 1", "camera 2"]), (named, ["dark", "bright"])):
        _, rows = score_into(data=folders, policy=used, overwrite=True)
        assert {row["class"] for row in rows} == set(expected)
        assert all(row["class"] == expected[row["label"]] for row in rows)
    days = ("friday", "tuesday", "monday")
    for n_days in (2, 3):
        for day, image in zip(days[:n_days], images, strict=False):
            (tmp_path / "new" / day).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / "new" / day / "a.png")
        _, rows = score_into(data=f"folder:{tmp_path / 'new'}", overwrite=True)
        assert [row["class"] for row in rows] == [days[row["label"]] if n_days == 2 else None for row in rows]


def test_skipped_images_are_listed_and_never_audited(score_into: Score, folder: Path) -> None:
    with pytest.raises(SourceError, match=r"020\.png"):
        score_into("scores.jsonl", f"folder:{folder}")
    summary, rows = score_into("scores.jsonl", f"folder:{folder}", on_error="skip")
    ((id_, reason),) = summary.skipped
    assert (summary.images, id_) == (IMAGES - 1, "020.png")
    assert f"skipped: 020.png: {reason}" in str(summary)
    assert json.loads(json.dumps(summary.to_dict()))["skipped"][0]["id"] == "020.png"
    assert [row["id"] for row in rows] == [f"{number:03d}.png" for number in range(IMAGES)]
    assert [row["id"] for row in rows if row["reason"] is not None] == ["020.png"]
    assert rows[20] == dict.fromkeys(rows[20]) | {"id": "020.png", "accept": False, "looks": 0, "reason": reason}
    _, rows = score_into("audited.csv", f"folder:{folder}", audit=1.0, on_error="skip")
    (skipped,) = (row for row in rows if row["reason"])
    assert (skipped["audit"], skipped["audit_probability"]) == ("false", "")
    assert all(row["audit"] == row["accept"] for row in rows)
    for number in range(16, 32):
        (folder / f"{number:03d}.png").write_bytes(b"")
    for name in ("scores.parquet", "scores.csv"):
        summary, _ = score_into(name, f"folder:{folder}", on_error="skip")
        assert (summary.images, len(summary.skipped)) == (IMAGES - 16, 16)
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(PredictionsError, match="70 images"):
        score_into("none.csv", f"folder:{folder}", on_error="skip")


def test_accepted_images_are_marked_with_the_stated_probability(
    score_into: Score, policy: Policy, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    exports = [f"label-studio:{tmp_path / 'tasks.json'}"]
    summary, rows = score_into(audit=0.3, seed=5, rejected=tmp_path / "rejected", exports=exports)
    plan = AuditPlan(policy.reference, policy.threshold, 0.3)
    for row, number in zip(rows, AuditPlan.draw([row["id"] for row in rows], 5), strict=True):
        if row["accept"]:
            assert row["audit_probability"] == plan.probabilities(np.array([row["confidence"]]))[0]
            assert row["audit"] == (number < row["audit_probability"])
        else:
            assert (row["audit"], row["audit_probability"]) == (False, None)
    marked = sum(row["audit"] for row in rows)
    assert 0 < marked < summary.accepted
    assert summary.audited == summary.to_dict()["audited"] == marked
    assert f"{marked} of the accepted" in str(summary)
    assert read_metadata(tmp_path / "scores.parquet")["audit"] == 0.3
    due = {row["id"] for row in rows if row["audit"] or not row["accept"]}
    assert {line["id"] for line in read_rows(tmp_path / "rejected" / Review.LIST)} == due
    assert len(json.loads((tmp_path / "tasks.json").read_text())) == len(due)
    assert score_into("there.parquet", audit=0.3, seed=5, engine=pickled_engine)[1] == rows


@pytest.fixture
def slow(counting: Counting) -> Classifier:
    """A classifier that counts: a chunk of 16 images is four batches, after one image at the start."""
    return load_classifier(counting, name="brightness")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [*range(2, 12), 17, 18, 19])
def test_interrupted_job_loses_at_most_one_chunk(
    score_into: Score, counting: Counting, slow: Classifier, tmp_path: Path, at: int, error: type[BaseException]
) -> None:
    counting.restart(at, error)
    with pytest.raises(error):
        score_into(classifier=slow, batch_size=16)
    saved = sorted(path.name[:11] for path in tmp_path.glob("scores.parquet.parts/part-*"))
    assert saved == [f"part-00000{number}" for number in range((at - 2) // len(VIEWS))]
    assert saved or not list(tmp_path.iterdir()), "a job that has saved nothing leaves nothing"
    counting.restart()
    first: list[Predictions] = []
    score_into(classifier=slow, batch_size=16, on_first_predictions=first.append)
    assert sum(counting.sizes) == 1 + (IMAGES - len(saved) * 16) * len(VIEWS)
    assert [len(preds) for preds in first] == [6 if len(saved) == 4 else 16], "the first chunk that was missing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.parquet"]
    score_into("whole.parquet")
    assert (tmp_path / "scores.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("different", ["seed", "level", "per_view", "data", "policy", "classifier", "preprocessing"])
def test_chunks_of_another_job_are_rejected(
    score_into: Score, policy: Policy, images: Array, different: str, counting: Counting, slow: Classifier
) -> None:
    counting.restart(9, RuntimeError)
    with pytest.raises(RuntimeError):
        score_into("scores.csv", classifier=slow, batch_size=16)
    cropped = load_classifier(brightness, name="brightness", crop=4)
    options: dict[str, dict[str, Any]] = {
        "seed": {"seed": 1},
        "level": {"level": 0.9},
        "per_view": {"per_view": True},
        "data": {"data": images[::-1].copy()},
        "policy": {"policy": policy.model_copy(update={"threshold": 0.5})},
        "classifier": {"classifier": brightness, "allow_mismatch": True},
        "preprocessing": {"classifier": cropped, "allow_mismatch": True},
    }
    with pytest.raises(DecisionError, match=f"scores.csv.parts.* different {different};"):
        score_into("scores.csv", **options[different])


def test_other_folders_are_rejected_and_temporary_files_removed(score_into: Score, tmp_path: Path) -> None:
    parts, found = tmp_path / "b.csv.parts", ["_job.json", "diary.txt"]
    parts.mkdir()
    for n_names in (1, 2):
        (parts / found[-n_names]).write_text("{")
        with pytest.raises(DecisionError, match=r"b\.csv\.parts"):
            score_into("b.csv")
        assert sorted(path.name for path in parts.iterdir() if path.name != "_lock") == found[-n_names:]
    shutil.rmtree(parts)
    other = tmp_path / ".scores.csv.notes.tmp"
    other.touch()
    names = ["scores.csv", "tasks-config.xml", "tasks.json"]
    for name in names:
        (tmp_path / f".{name}.{'0f' * 16}.secondlook.tmp").touch()
    score_into(
        "scores.csv", exports=[f"label-studio:{tmp_path / 'tasks.json'}"], image_prefix="https://images.example/"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, *names]


@pytest.mark.parametrize(
    ("pattern", "out", "exports"),
    [
        (r"scores .*data at 'mine\.csv'", "mine.csv", ()),
        (r"scores .*data at 'sub/\.\./mine\.csv'", "sub/../mine.csv", ()),
        (r"'fiftyone:policy\.json' .*policy", "s.csv", ("fiftyone:policy.json",)),
        (r"'fiftyone:s\.csv' .*scores", "s.csv", ("fiftyone:s.csv",)),
        (r"'label-studio:a\.json' .*'fiftyone:a\.json'", "s.csv", ("fiftyone:a.json", "label-studio:a.json")),
        (r"'fiftyone:a-config\.xml'", "s.csv", ("fiftyone:a-config.xml", "label-studio:a.json")),
    ],
)
def test_outputs_never_replace_inputs_or_each_other(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, out: str, exports: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy.save("policy.json")
    Path("mine.csv").write_text("path\nabsent.png\n")
    Path("sub").mkdir()
    with pytest.raises(DecisionError, match=pattern):
        score(tmp_path / "policy.json", "csv:mine.csv", out, classifier=brightness, exports=exports)
    assert Path("mine.csv").read_text() == "path\nabsent.png\n"


def test_mismatch_voids_the_guarantee(score_into: Score) -> None:
    darkness = load_classifier(brightness, name="darkness")
    with pytest.raises(DecisionError, match=r"'brightness'.*'darkness'"):
        score_into(classifier=darkness)
    summary, _ = score_into(classifier=darkness, allow_mismatch=True)
    assert summary.guarantee is None
    assert summary.mismatch is not None
    assert f"guarantee: none, since {summary.mismatch}" in str(summary)
    assert "'brightness'" in summary.mismatch
    assert "'darkness'" in summary.mismatch


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"policy": "absent.json"}, r"absent\.json"),
        ({"name": "scores.xlsx"}, r"'\.xlsx'.*scores\.xlsx"),
        ({"name": "scores.parqet"}, r"'\.parqet'.*'\.parquet'"),
        ({"name": "none/scores.csv"}, "none'"),
        ({"name": "folder.csv"}, r"folder\.csv"),
        ({"level": 1.5}, r"level=1\.5"),
        ({"seed": -1}, "seed=-1"),
        *(({"audit": audit}, "audit=") for audit in (0, -0.1, 1.5, float("nan"), "much")),
        ({"classifier": None}, "'brightness'"),
        ({"method": "bootstrap"}, "'bootstrap'"),  # a rank among other images
        ({"exports": ["cvat:a.json"]}, r"'cvat'.*fiftyone:FILE, label-studio:FILE"),
        ({"exports": ["label-studi:a.json"]}, r"'label-studi'.*'label-studio'"),
        *(
            ({"exports": [text]}, rf"'{text}' .*expected label-studio:FILE\.$")
            for text in ("label-studio", "label-studio:")
        ),
        ({"exports": ["tasks.json"]}, r"'tasks.json'.*expected one of: fiftyone:FILE, label-studio:FILE\.$"),
        *(({"exports": [text]}, f"'{text}'") for text in ("fiftyone", "fiftyone:")),
        ({"exports": ["fiftyone:a.json?color=red"]}, "'color'"),
        ({"exports": ["fiftyone:no/such/a.json"]}, "'no/such'"),
    ],
)
def test_invalid_arguments_are_rejected_and_leave_nothing_behind(
    score_into: Score, policy: Policy, tmp_path: Path, arguments: dict[str, Any], pattern: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    given = dict(arguments)
    if "method" in given:
        given["policy"] = policy.model_copy(update={"method": given.pop("method")})
    with pytest.raises(DecisionError, match=pattern):
        score_into(**{"name": "scores.csv", **given})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv"]
