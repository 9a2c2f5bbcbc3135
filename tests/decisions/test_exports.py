"""Exports of the review queue to Label Studio and FiftyOne."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import LabelStudio, Review
from secondlook.decisions.review import ExportFile
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from tests.policy_maker import attach, score

ScoreImages = Callable[..., list[dict[str, Any]]]


def test_label_studio_tasks(score_images: ScoreImages, image_files: str, tmp_path: Path) -> None:
    rows = score_images(image_files, exports=[f"label-studio:{tmp_path / 'tasks.json'}"])
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert [task["data"]["id"] for task in tasks] == [row["id"] for row in rows]
    for task, row in zip(tasks, rows, strict=True):
        path = (tmp_path / "new" / row["id"]).as_posix().lstrip("/").replace(" ", "%20")
        assert task["data"]["image"] == f"/data/local-files/?d={path}"
        assert (task["data"]["low"], task["data"]["high"]) == (row["low"], row["high"])
        (prediction,) = task["predictions"]
        assert prediction["score"] == row["confidence"]
        assert prediction["result"][0]["value"] == {"choices": [row["class"]]}
    assert '<Choice value="Dark"/>' in (tmp_path / "tasks-config.xml").read_text()


def test_exports_of_other_scores_are_kept(score_images: ScoreImages, image_files: str, tmp_path: Path) -> None:
    exports = [f"label-studio:{tmp_path / 'tasks.json'}"]
    (tmp_path / "tasks-config.xml").write_text("edited by hand")
    with pytest.raises(DecisionError, match=r"tasks-config\.xml' exists.* overwrite=True"):
        score_images(image_files, exports=exports)
    assert (tmp_path / "tasks-config.xml").read_text() == "edited by hand"
    score_images(image_files, exports=exports, overwrite=True)
    tasks = (tmp_path / "tasks.json").read_bytes()
    score_images(image_files, exports=exports)  # the same scores again
    assert (tmp_path / "tasks.json").read_bytes() == tasks


def test_many_classes_become_a_list() -> None:
    assert 'layout="select"' in LabelStudio.format_interface(tuple(map(str, range(21))))
    assert "layout" not in LabelStudio.format_interface(tuple(map(str, range(20))))
    assert '<Choice value="a &lt; b &amp; c"/>' in LabelStudio.format_interface(("a < b & c",))


def test_confidence_outside_the_unit_interval_is_not_a_score(
    classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    policy = attach(Policy(threshold=1.0, method="entropy"), classifier=classifier, views=("identity",))
    options: dict[str, Any] = {"classifier": classifier, "image_prefix": "https://images.example/a/"}
    score(
        policy,
        images,
        tmp_path / "scores.csv",
        **options,
        review=Review(exports=[f"label-studio:{tmp_path / 'tasks.json'}"]),
    )
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert len(tasks) == len(images)
    assert all(task["data"]["confidence"] < 0 and "score" not in task["predictions"][0] for task in tasks)
    assert tasks[0]["data"]["image"] == f"https://images.example/a/{tasks[0]['data']['id']}"
    assert tasks[0]["data"]["low"] is None


def test_images_that_are_not_files_are_exported_as_png(
    score_images: ScoreImages, images: Array, tmp_path: Path
) -> None:
    exports = [f"fiftyone:{tmp_path / 'labels.json'}", f"label-studio:{tmp_path / 'tasks.json'}"]
    with pytest.raises(DecisionError, match=r"'fiftyone:.* rejected="):
        score_images(images, exports=exports)
    with pytest.raises(DecisionError, match=r"'fiftyone:.* export_all=False"):
        score_images(images, exports=exports, rejected=tmp_path / "rejected", export_all=True)
    rows = score_images(images, exports=exports, rejected=tmp_path / "rejected")
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert labels["classes"] == ["0", "1"]
    paths = [str(tmp_path / "rejected" / str(row["label"]) / f"{row['id']}.png") for row in rows]
    assert list(labels["labels"]) == paths
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert [task["data"]["image"].removeprefix("/data/local-files/?d=") for task in tasks] == [
        path.lstrip("/") for path in paths
    ]


def test_export_all_includes_accepted_images(score_images: ScoreImages, image_files: str, tmp_path: Path) -> None:
    rows = score_images(image_files, exports=[f"fiftyone:{tmp_path / 'labels.json'}"], export_all=True)
    labels = json.loads((tmp_path / "labels.json").read_text())["labels"]
    assert len(labels) == 30
    assert sum(not label["attributes"]["accept"] for label in labels.values()) == len(rows)
    confidences = [label["confidence"] for label in labels.values()]
    assert confidences == sorted(confidences)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("cvat:a.json", r"'cvat'.*fiftyone:FILE, label-studio:FILE"),
        ("label-studi:a.json", r"'label-studi'.*'label-studio'"),
        ("label-studio", r"'label-studio' names no file; expected label-studio:FILE\.$"),
        ("label-studio:", r"'label-studio:' names no file; expected label-studio:FILE\.$"),
        ("tasks.json", r"'tasks.json'.*expected one of: fiftyone:FILE, label-studio:FILE\.$"),
        ("fiftyone", "'fiftyone'"),
        ("fiftyone:", "'fiftyone:'"),
        ("fiftyone:a.json?color=red", "'color'"),
        ("fiftyone:no/such/a.json", "'no/such'"),
    ],
)
def test_invalid_export_is_rejected(text: str, pattern: str) -> None:
    with pytest.raises(DecisionError, match=pattern):
        ExportFile.parse(text)
