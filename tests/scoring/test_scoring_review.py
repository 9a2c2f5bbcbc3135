"""Handing images to people: the folder of rejected images, and the files for other tools."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import DecisionError
from secondlook.scoring.review.asked_exports import AskedExport
from secondlook.scoring.review.exports import export
from secondlook.scoring.review.file_names import safe_name
from secondlook.scoring.review.label_studio import interface_of
from secondlook.scoring.scoring import score
from secondlook.selective import Policy, Rule

IMAGES = 30


@pytest.fixture
def classifier(brightness: Callable[[Any], Any]) -> Classifier:
    return load_classifier(brightness, name="brightness")


@pytest.fixture
def policy(classifier: Classifier) -> Policy:
    return Policy.of(Rule(0.95), classifier=classifier, views=("identity", "hflip", "shift:1,0"))


@pytest.fixture
def images(bright_or_dark: tuple[Array, Array]) -> Array:
    return bright_or_dark[0][:IMAGES]


@pytest.fixture
def files(images: Array, tmp_path: Path) -> str:
    """Image files in two folders named like classes, with names that file systems dislike."""
    for number, image in enumerate(images):
        name = f"{'Dark' if number % 2 else 'bright ones'}/Shot {number // 2}.{'PNG' if number % 3 else 'png'}"
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "new" / name)
    return f"folder:{tmp_path / 'new'}"


@pytest.fixture
def scored(policy: Policy, classifier: Classifier, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Score, and return the rows of the rejected images, the least sure first."""

    def run(data: Any, **options: Any) -> list[dict[str, Any]]:
        score(policy, data, tmp_path / "scores.jsonl", classifier=classifier, **options)
        rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
        rejected = [row for row in rows if not row["accept"]]
        assert 5 < len(rejected) < IMAGES
        return sorted(rejected, key=lambda row: (row["confidence"], row["id"]))

    return run


def listed(folder: Path) -> list[dict[str, str]]:
    with (folder / "rejected.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("link", [False, True])
def test_files_are_copied_or_linked_by_class(
    scored: Callable[..., Any], files: str, tmp_path: Path, link: bool
) -> None:
    rows = scored(files, rejected=tmp_path / "rejected", link=link)
    table = listed(tmp_path / "rejected")
    assert [line["id"] for line in table] == [row["id"] for row in rows]
    for line, row in zip(table, rows, strict=True):
        place = tmp_path / "rejected" / line["file"]
        assert place.read_bytes() == (tmp_path / "new" / row["id"]).read_bytes()
        assert place.is_symlink() == link
        assert place.parent.name == safe_name(row["class"], row["class"])
        assert float(line["confidence"]) == row["confidence"]
    put = list((tmp_path / "rejected").rglob("*.png"))
    assert len(put) == len(rows) == len({line["file"].lower() for line in table})


def test_images_that_are_no_files_become_png(scored: Callable[..., Any], images: Array, tmp_path: Path) -> None:
    rows = scored(images, rejected=tmp_path / "rejected")
    for line, row in zip(listed(tmp_path / "rejected"), rows, strict=True):
        assert line["file"] == f"{row['label']}/{row['id']}.png"
        with Image.open(tmp_path / "rejected" / line["file"]) as picture:
            assert np.array_equal(np.asarray(picture), images[int(row["id"])])


@pytest.mark.parametrize("kind", ["gray", "float"])
def test_gray_and_float_images_become_png(policy: Policy, images: Array, tmp_path: Path, kind: str) -> None:
    pixels = images[..., :1] if kind == "gray" else images.astype(np.float32) / np.float32(255)

    def brightness(batch: Any) -> Any:
        bright = batch.mean(axis=(1, 2, 3)) / (1 if kind == "float" else 255)
        return np.stack([1 - bright, bright], axis=1)

    options: dict[str, Any] = {"classifier": brightness, "allow_mismatch": True, "rejected": tmp_path / "rejected"}
    score(policy, pixels, tmp_path / "scores.csv", **options)
    first = listed(tmp_path / "rejected")[0]
    with Image.open(tmp_path / "rejected" / first["file"]) as picture:
        expected = images[int(first["id"])]
        assert np.array_equal(np.asarray(picture), expected[..., 0] if kind == "gray" else expected)


def test_only_an_empty_folder_elsewhere_is_filled(scored: Callable[..., Any], files: str, tmp_path: Path) -> None:
    scored(files, rejected=tmp_path / "rejected")
    with pytest.raises(DecisionError, match="is not empty, and what is in it would mix"):
        scored(files, rejected=tmp_path / "rejected")
    with pytest.raises(DecisionError, match="it is a file; give a folder"):
        scored(files, rejected=tmp_path / "scores.jsonl")
    with pytest.raises(DecisionError, match=r"lies in .* whose images are scored"):
        scored(files, rejected=tmp_path / "new" / "rejected")
    assert not (tmp_path / "scores.jsonl.parts").exists()


def test_label_studio_tasks(scored: Callable[..., Any], files: str, tmp_path: Path) -> None:
    rows = scored(files, exports=[f"label-studio:{tmp_path / 'tasks.json'}"])
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


def test_many_classes_are_chosen_from_a_list() -> None:
    assert 'layout="select"' in interface_of(tuple(map(str, range(21))))
    assert "layout" not in interface_of(tuple(map(str, range(20))))
    assert '<Choice value="a &lt; b &amp; c"/>' in interface_of(("a < b & c",))


def test_a_confidence_that_is_no_share_is_no_score(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = Policy.of(Rule(1.0, "entropy"), classifier=classifier, views=("identity",))
    options: dict[str, Any] = {"classifier": classifier, "image_prefix": "https://images.example/a/"}
    score(policy, images, tmp_path / "scores.csv", exports=[f"label-studio:{tmp_path / 'tasks.json'}"], **options)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert len(tasks) == IMAGES
    assert all(task["data"]["confidence"] < 0 and "score" not in task["predictions"][0] for task in tasks)
    assert tasks[0]["data"]["image"] == f"https://images.example/a/{tasks[0]['data']['id']}"
    assert tasks[0]["data"]["low"] is None


def test_exports_of_images_that_are_no_files(scored: Callable[..., Any], images: Array, tmp_path: Path) -> None:
    exports = [f"fiftyone:{tmp_path / 'labels.json'}", f"label-studio:{tmp_path / 'tasks.json'}"]
    with pytest.raises(DecisionError, match=r"needs images that are files.* give --rejected DIR"):
        scored(images, exports=exports)
    with pytest.raises(DecisionError, match="leave --export-all out, since only rejected ones become files"):
        scored(images, exports=exports, rejected=tmp_path / "rejected", export_all=True)
    rows = scored(images, exports=exports, rejected=tmp_path / "rejected")
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert labels["classes"] == ["0", "1"]
    paths = [str(tmp_path / "rejected" / str(row["label"]) / f"{row['id']}.png") for row in rows]
    assert list(labels["labels"]) == paths
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert [task["data"]["image"].removeprefix("/data/local-files/?d=") for task in tasks] == [
        path.lstrip("/") for path in paths
    ]


def test_everything_is_exported_on_request(scored: Callable[..., Any], files: str, tmp_path: Path) -> None:
    rows = scored(files, exports=[f"fiftyone:{tmp_path / 'labels.json'}"], export_all=True)
    labels = json.loads((tmp_path / "labels.json").read_text())["labels"]
    assert len(labels) == IMAGES
    assert sum(not label["attributes"]["accept"] for label in labels.values()) == len(rows)
    sure = [label["confidence"] for label in labels.values()]
    assert sure == sorted(sure)


def test_nothing_rejected_is_an_empty_list(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = Policy.of(Rule(0.0), classifier=classifier, views=("identity", "hflip"))
    exports = [f"label-studio:{tmp_path / 'tasks.json'}", f"fiftyone:{tmp_path / 'labels.json'}"]
    rejected = tmp_path / "rejected"
    score(policy, images, tmp_path / "s.csv", classifier=classifier, exports=exports, rejected=rejected)
    assert json.loads((tmp_path / "tasks.json").read_text()) == []
    assert json.loads((tmp_path / "labels.json").read_text()) == {"classes": ["0", "1"], "labels": {}}
    assert listed(rejected) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cvat:a.json", "known forms: fiftyone:FILE, label-studio:FILE"),
        ("label-studi:a.json", "Did you mean 'label-studio'"),
        ("fiftyone", "is no export"),
        ("fiftyone:", "is no export"),
        ("fiftyone:no/such/a.json", "there is no folder 'no/such'"),
    ],
)
def test_what_is_no_export(text: str, sentence: str) -> None:
    with pytest.raises(DecisionError, match=sentence):
        AskedExport.parse(text)


def test_a_scheme_is_registered_once() -> None:
    with pytest.raises(DecisionError, match="'fiftyone' is registered already"):
        export("fiftyone", "again", reads_files=True)(lambda path, queue, pictures: None)


@settings(deadline=None, max_examples=200)
@given(st.sets(st.text(st.sampled_from("aAbB1._-/ ä:\\\n"), min_size=1, max_size=6), min_size=2, max_size=20))
def test_names_are_safe_and_never_the_same(identities: set[str]) -> None:
    names = [safe_name(identity, identity) for identity in identities]
    assert len({name.lower() for name in names}) == len(identities)
    for name in names:
        assert not set(name) & set('/\\:*?"<>|\n ')
        assert not name.startswith((".", "-"))
        assert not name.endswith(".")
        assert 0 < len(name.encode()) < 250


def test_long_names_are_cut() -> None:
    assert len(safe_name("字" * 500, "字" * 500).encode()) < 250
    assert safe_name("x" * 300, "x" * 300) != safe_name("x" * 301, "x" * 301)
