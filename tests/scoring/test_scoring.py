"""Scoring new images by a policy: rows, formats, going on, refusing."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError, PredictionsError, SourceError
from secondlook.predictions import Predictions, batching, collect
from secondlook.scoring.scoring import score
from secondlook.selective import Policy, Rule, SelectiveClassifier, certify
from secondlook.sources import ArraySource, open_source
from secondlook.views import ViewSet, apply_views

VIEWS = ViewSet("identity hflip shift:1,0 shift:0,1")
IMAGES = 70


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 16 images, the smallest there are."""
    monkeypatch.setattr(batching, "PART_BYTES", 1)


@pytest.fixture
def classifier(brightness: Callable[[Any], Any]) -> Classifier:
    return load_classifier(brightness, name="brightness")


@pytest.fixture
def images(bright_or_dark: tuple[Array, Array]) -> Array:
    return bright_or_dark[0][:IMAGES]


@pytest.fixture
def policy(bright_or_dark: tuple[Array, Array], classifier: Classifier) -> Policy:
    pixels, labels = bright_or_dark
    preds = collect(classifier, pixels[IMAGES:], VIEWS, labels=labels[IMAGES:])
    rule = certify(preds, "mean", risk=0.1, delta=0.1)
    return Policy.of(rule, classifier=classifier, views=VIEWS.texts, made="2026-01-01T00:00:00+00:00")


@pytest.fixture
def folder(images: Array, tmp_path: Path) -> Path:
    """The images as files, one of them broken."""
    place = tmp_path / "new"
    place.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(place / f"{number:03d}.png")
    (place / "020.png").write_bytes(b"no picture")
    return place


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_rows_are_what_the_views_say(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    summary = score(policy, images, tmp_path / "scores.parquet", classifier=classifier, per_view=True)
    rows = rows_of(tmp_path / "scores.parquet")
    assert list(rows[0]) == [
        *("id", "label", "class", "confidence", "low", "high", "accept"),
        *("view_labels", "view_probabilities"),
    ]
    looked_at = apply_views(images, VIEWS)
    for number, row in enumerate(rows):
        per_view = np.asarray(classifier(looked_at[number]), dtype=np.float64)
        label = int(per_view[0].argmax())
        assert (row["id"], row["label"], row["class"]) == (open_source(images).ids[number], label, None)
        assert row["confidence"] == pytest.approx(per_view[:, label].mean(), abs=1e-6)
        assert row["low"] <= row["confidence"] + 1e-9
        assert row["high"] >= row["confidence"] - 1e-9
        assert row["accept"] == (row["confidence"] >= policy.threshold)
        assert row["view_labels"] == per_view.argmax(axis=1).tolist()
        assert row["view_probabilities"] == pytest.approx(per_view.max(axis=1).tolist(), abs=1e-6)
    accepted = sum(row["accept"] for row in rows)
    assert (summary.images, summary.accepted, summary.rejected) == (IMAGES, accepted, IMAGES - accepted)
    assert 0 < accepted < IMAGES


def test_parts_decide_as_the_whole_does(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    score(policy, images, tmp_path / "scores.parquet", classifier=classifier, seed=3, level=0.8)
    whole = SelectiveClassifier(classifier, policy).decide(images, level=0.8, seed=3)
    rows = rows_of(tmp_path / "scores.parquet")
    assert [row["id"] for row in rows] == list(whole.ids)
    assert whole.interval is not None
    columns = {"label": whole.labels, "confidence": whole.confidence, "accept": whole.accept}
    columns |= {"low": whole.interval[0], "high": whole.interval[1]}
    for name, values in columns.items():
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), abs=1e-12), name


@pytest.mark.parametrize(("top_k", "answers"), [(1, False), (2, True)])
def test_every_format_tells_the_same(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, top_k: int, answers: bool
) -> None:
    asked = policy.model_copy(update={"top_k": top_k, "method": "mean" if top_k == 1 else "msr"})
    for suffix in (".parquet", ".csv", ".jsonl"):
        score(asked, images, tmp_path / f"scores{suffix}", classifier=classifier, per_view=answers)
    rows = rows_of(tmp_path / "scores.parquet")
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "scores.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == IMAGES
    texts = {"id", "class"}
    for row, cell in zip(rows, cells, strict=True):
        read = {name: (text or None) if name in texts else json.loads(text) for name, text in cell.items()}
        assert read == row
    assert ("labels" in rows[0]) == (top_k > 1)
    if top_k > 1:
        assert all(row["labels"][0] == row["label"] and sorted(row["labels"]) == [0, 1] for row in rows)


def test_a_file_carries_how_it_came_about(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    score(policy, images, tmp_path / "scores.parquet", classifier=classifier)
    kept = json.loads(pq.read_schema(tmp_path / "scores.parquet").metadata[b"secondlook.score"])
    assert kept["policy"] == json.loads(policy.model_dump_json())
    assert kept["data"] == f"array:[{IMAGES}, 6, 6, 3]"


def test_classes_are_called_as_when_the_policy_was_made(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    named = policy.model_copy(update={"class_names": ("dark", "bright")})
    folders = ArraySource(images, class_names=["camera 1", "camera 2"])
    for used, expected in ((policy, ["camera 1", "camera 2"]), (named, ["dark", "bright"])):
        score(used, folders, tmp_path / "scores.parquet", classifier=classifier)
        rows = rows_of(tmp_path / "scores.parquet")
        assert {row["class"] for row in rows} == set(expected)
        assert all(row["class"] == expected[row["label"]] for row in rows)


def test_one_view_has_no_interval(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = Policy.of(Rule(0.9, "msr"), classifier=classifier, views=("identity",))
    summary = score(policy, images, tmp_path / "scores.csv", classifier=classifier)
    assert "guarantee: none" in str(summary)
    line = (tmp_path / "scores.csv").read_text().splitlines()[1].split(",")
    assert line[4:6] == ["", ""]


def test_an_ensemble_decides_by_all_its_members(images: Array, tmp_path: Path, brightness: Any) -> None:
    def logits(batch: Any) -> Any:
        return np.log(brightness(batch) ** 0.5 + 0.05)

    members = [
        load_classifier(brightness, name="one"),
        load_classifier(logits, name="two", output="logits"),
    ]
    ensemble = load_classifier(members, name="both")
    policy = Policy.of(Rule(0.8, "mean", predict_from="views"), classifier=ensemble, views=VIEWS.texts)
    score(policy, images, tmp_path / "scores.parquet", classifier=ensemble)
    whole = SelectiveClassifier(ensemble, policy).decide(images)
    rows = rows_of(tmp_path / "scores.parquet")
    assert whole.interval is not None
    for name, values in (("confidence", whole.confidence), ("label", whole.labels), ("low", whole.interval[0])):
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), abs=1e-12), name


def test_what_cannot_be_read_is_listed(policy: Policy, classifier: Classifier, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"020\.png"):
        score(policy, f"folder:{folder}", tmp_path / "scores.jsonl", classifier=classifier)
    summary = score(policy, f"folder:{folder}", tmp_path / "scores.jsonl", classifier=classifier, on_error="skip")
    assert summary.images == IMAGES - 1
    assert [name for name, _ in summary.skipped] == ["020.png"]
    assert "skipped: 020.png: its content is not" in str(summary)
    assert json.loads(json.dumps(summary.to_dict()))["skipped"][0]["id"] == "020.png"
    ids = [json.loads(line)["id"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert ids == [f"{number:03d}.png" for number in range(IMAGES) if number != 20]


def test_a_part_in_which_nothing_can_be_read(
    policy: Policy, classifier: Classifier, folder: Path, tmp_path: Path
) -> None:
    for number in range(16, 32):
        (folder / f"{number:03d}.png").write_bytes(b"")
    for suffix in (".parquet", ".csv"):
        out = tmp_path / f"scores{suffix}"
        summary = score(policy, f"folder:{folder}", out, classifier=classifier, on_error="skip")
        assert (summary.images, len(summary.skipped)) == (IMAGES - 16, 16)
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(PredictionsError, match="none of the 70 images"):
        score(policy, f"folder:{folder}", tmp_path / "none.csv", classifier=classifier, on_error="skip")


def test_folders_of_new_images_need_not_be_classes(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    for day, image in zip(("monday", "tuesday", "friday"), images, strict=False):
        (tmp_path / "new" / day).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "new" / day / "a.png")
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.parquet", classifier=classifier)
    assert {row["class"] for row in rows_of(tmp_path / "scores.parquet")} == {None}
    (tmp_path / "new" / "monday" / "a.png").unlink()
    (tmp_path / "new" / "monday").rmdir()
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.parquet", classifier=classifier)
    for row in rows_of(tmp_path / "scores.parquet"):
        assert row["class"] == ("friday", "tuesday")[row["label"]]


class Failing:
    """Fails at one call, as a machine may, and counts the images it was asked about."""

    def __init__(self, answer: Callable[[Any], Any], fails_at: int) -> None:
        self.answer, self.left, self.images = answer, fails_at, 0

    def __call__(self, batch: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("the machine is out of order")
        self.images += len(batch)
        return self.answer(batch)


def test_what_is_done_is_not_done_again(policy: Policy, brightness: Any, images: Array, tmp_path: Path) -> None:
    failing = Failing(brightness, fails_at=11)
    classifier = load_classifier(failing, name="brightness")
    out = tmp_path / "scores.csv"
    with pytest.raises(RuntimeError, match="out of order"):
        score(policy, images, out, classifier=classifier)
    assert not out.exists()
    kept = sorted(path.name for path in (tmp_path / "scores.csv.parts").glob("part*"))
    assert kept == ["part-000000.parquet", "part-000001.parquet"]
    failing.images = 0
    shown: list[Predictions] = []
    score(policy, images, out, classifier=classifier, look=shown.append)
    assert failing.images == 1 + (IMAGES - 2 * 16) * len(VIEWS)
    assert [len(preds) for preds in shown] == [16], "the first images that are looked at, once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.csv"]
    score(policy, images, tmp_path / "again.csv", classifier=classifier)
    assert out.read_bytes() == (tmp_path / "again.csv").read_bytes()


@pytest.fixture
def unfinished(policy: Policy, brightness: Any, images: Array, tmp_path: Path) -> Path:
    with pytest.raises(RuntimeError):
        score(
            policy,
            images,
            tmp_path / "scores.csv",
            classifier=load_classifier(Failing(brightness, 9), name="brightness"),
        )
    return tmp_path / "scores.csv.parts"


@pytest.mark.usefixtures("unfinished")
@pytest.mark.parametrize(
    ("other", "what"),
    [({"seed": 1}, "seed"), ({"level": 0.9}, "level"), ({"answers": True}, "answers")],
)
def test_parts_of_another_job_are_refused(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, other: dict[str, Any], what: str
) -> None:
    with pytest.raises(DecisionError, match=rf"another kind \(other {what}\); remove it to start anew, or choose"):
        score(policy, images, tmp_path / "scores.csv", classifier=classifier, **other)


@pytest.mark.usefixtures("unfinished")
def test_parts_of_other_data_policies_and_functions_are_refused(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, brightness: Any
) -> None:
    out = tmp_path / "scores.csv"
    with pytest.raises(DecisionError, match=r"\(other data\)"):
        score(policy, images[::-1].copy(), out, classifier=classifier)
    with pytest.raises(DecisionError, match=r"\(other policy\)"):
        score(policy.model_copy(update={"threshold": 0.5}), images, out, classifier=classifier)
    with pytest.raises(DecisionError, match=r"\(other classifier\)"):
        score(policy, images, out, classifier=brightness, allow_mismatch=True)
    cropped = load_classifier(brightness, name="brightness", crop=4)
    with pytest.raises(DecisionError, match=r"\(other preprocessing\)"):
        score(policy, images, out, classifier=cropped, allow_mismatch=True)


def test_nothing_is_written_over_what_is_read_or_written(
    policy: Policy, classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy.save("policy.json")
    Path("mine.csv").write_text("path\nabsent.png\n")

    def refused(sentence: str, out: str, **options: Any) -> None:
        with pytest.raises(DecisionError, match=sentence):
            score(tmp_path / "policy.json", "csv:mine.csv", out, classifier=classifier, **options)

    refused("the scores would replace the data at 'mine.csv'; give each a file of its own", "mine.csv")
    Path("sub").mkdir()
    refused("the scores would replace the data", "sub/../mine.csv")
    refused("the export 'fiftyone:policy.json' would replace the policy", "s.csv", exports=["fiftyone:policy.json"])
    refused("the export 'fiftyone:s.csv' would replace the scores", "s.csv", exports=["fiftyone:s.csv"])
    twice = ["fiftyone:a.json", "label-studio:a.json"]
    refused("the export 'label-studio:a.json' would replace the export 'fiftyone:a.json'", "s.csv", exports=twice)
    assert Path("mine.csv").read_text() == "path\nabsent.png\n"


@pytest.mark.parametrize(
    "name",
    ["function:os:getcwd?name=x", "sklearn:evil.pkl?trust_pickle=true", "torch:package.module:factory?output=logits"],
)
def test_a_policy_does_not_run_code_by_itself(policy: Policy, images: Array, tmp_path: Path, name: str) -> None:
    sent = policy.model_copy(update={"classifier": policy.classifier.model_copy(update={"name": name})})
    with pytest.raises(DecisionError, match="loading it runs code; say that you trust it by giving it yourself"):
        score(sent, images, tmp_path / "scores.csv")


def test_damaged_parts_and_strange_folders(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, unfinished: Path
) -> None:
    part = unfinished / "part-000000.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(bytes(content))
    with pytest.raises(DecisionError, match=r"part-000000\.parquet' of the scores is damaged .* remove it"):
        score(policy, images, tmp_path / "scores.csv", classifier=classifier)
    part.unlink()
    score(policy, images, tmp_path / "scores.csv", classifier=classifier)
    (tmp_path / "b.csv.parts").mkdir()
    (tmp_path / "b.csv.parts" / "diary.txt").touch()
    with pytest.raises(DecisionError, match="is in the way and holds no scoring; remove it"):
        score(policy, images, tmp_path / "b.csv", classifier=classifier)
    (tmp_path / "b.csv.parts" / "job.json").write_text("{")
    with pytest.raises(DecisionError, match="holds a scoring that cannot be read"):
        score(policy, images, tmp_path / "b.csv", classifier=classifier)


def test_what_a_kill_left_aside_is_cleared_away(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    left, kept = tmp_path / f".scores.csv.{'0f' * 16}.tmp", tmp_path / ".scores.csv.notes.tmp"
    left.touch()
    kept.touch()
    score(policy, images, tmp_path / "scores.csv", classifier=classifier)
    assert sorted(tmp_path.iterdir()) == [kept, tmp_path / "scores.csv"]


def test_another_classifier_loses_the_guarantee(policy: Policy, images: Array, tmp_path: Path, brightness: Any) -> None:
    darkness = load_classifier(brightness, name="darkness")
    out = tmp_path / "scores.csv"
    with pytest.raises(DecisionError, match=r"the policy is for classifier 'brightness'.*got 'darkness'"):
        score(policy, images, out, classifier=darkness)
    summary = score(policy, images, out, classifier=darkness, allow_mismatch=True)
    assert summary.guarantee is None
    assert "guarantee: none, since the policy is for classifier 'brightness'" in str(summary)


def test_the_guarantee_is_told(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    summary = score(policy, images, tmp_path / "scores.csv", classifier=classifier)
    assert "guarantee: at most 10 % errors among the accepted, with certainty 90 %" in str(summary)
    assert summary.to_dict()["guarantee"] == str(policy.rule.guarantee)


def test_bad_questions(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    def refused(sentence: str, out: str = "scores.csv", **options: Any) -> None:
        with pytest.raises(DecisionError, match=sentence):
            score(options.pop("policy", policy), images, tmp_path / out, **{"classifier": classifier, **options})

    refused("cannot be read: No such file", policy=tmp_path / "policy.json")
    refused(r"suffix '\.xlsx' is none of \.parquet, \.csv, \.jsonl", out="scores.xlsx")
    refused(r"Did you mean '\.parquet'", out="scores.parqet")
    refused("there is no folder", out="none/scores.csv")
    (tmp_path / "folder.csv").mkdir()
    refused("it is a folder; give the name of a file", out="folder.csv")
    refused("level is 1.5, expected a share", level=1.5)
    refused("seed is -1", seed=-1)
    refused("the classifier of the policy cannot be loaded: 'brightness' does not name a classifier", classifier=None)
    refused("no threshold carries over", policy=policy.model_copy(update={"method": "bootstrap"}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.csv"], "nothing is left behind"
