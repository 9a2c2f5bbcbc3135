"""The folder of rejected images, and exports of the review queue, which the code of the tools reads."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Answer, LabelStudio, Review
from secondlook.decisions.review import make_file_name, name_class_folders
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from tests.decisions.conftest import Score, brightness, make_policy, read_rows
from tests.policy_maker import score

ScoreImages = Callable[..., list[dict[str, Any]]]


def read_list(folder: Path) -> list[dict[str, str]]:
    return read_rows(folder / Review.LIST)


@pytest.mark.parametrize("link", [False, True])
def test_files_are_copied_or_linked(score_images: ScoreImages, image_files: str, tmp_path: Path, link: bool) -> None:
    rows = score_images(image_files, rejected=tmp_path / "rejected", link=link)
    table = read_list(tmp_path / "rejected")
    assert list(table[0]) == ["file", "id", "label", "class", "confidence"]
    assert [line["id"] for line in table] == [row["id"] for row in rows]
    for line, row in zip(table, rows, strict=True):
        path = tmp_path / "rejected" / line["file"]
        assert path.read_bytes() == (tmp_path / "new" / row["id"]).read_bytes()
        assert path.is_symlink() == link
        assert path.parent.name == make_file_name(row["class"], row["class"])
        assert float(line["confidence"]) == row["confidence"]
    files = list((tmp_path / "rejected").rglob("*.png"))
    assert len(files) == len(rows) == len({line["file"].lower() for line in table})


@pytest.mark.parametrize("kind", ["color", "gray", "float"])
def test_images_that_are_not_files_are_saved_as_png(images: Array, tmp_path: Path, kind: str) -> None:
    pixels = {"color": images, "gray": images[..., :1], "float": images.astype(np.float32) / np.float32(255)}[kind]
    classifier = load_classifier(lambda batch: brightness(batch * (255 if kind == "float" else 1)), name=kind)
    review = Review(rejected=tmp_path / "rejected")
    score(make_policy(classifier), pixels, tmp_path / "scores.csv", classifier=classifier, review=review)
    rejected = [row for row in read_rows(tmp_path / "scores.csv") if row["accept"] == "false"]
    table = read_list(tmp_path / "rejected")
    assert {line["id"] for line in table} == {row["id"] for row in rejected}
    for line in table:
        assert line["file"] == f"{line['label']}/{line['id']}.png"
        with Image.open(tmp_path / "rejected" / line["file"]) as saved:
            expected = images[int(line["id"])]
            assert np.array_equal(np.asarray(saved), expected[..., 0] if kind == "gray" else expected)


def test_folder_must_be_empty_and_outside_the_data(score_images: ScoreImages, image_files: str, tmp_path: Path) -> None:
    score_images(image_files, rejected=tmp_path / "rejected")
    for rejected in (tmp_path / "rejected", tmp_path / "scores.jsonl", tmp_path / "new" / "rejected"):
        with pytest.raises(DecisionError, match=f"'{rejected}'"):
            score_images(image_files, rejected=rejected)
    assert not (tmp_path / "scores.jsonl.parts").exists()


def test_none_and_all_images_rejected(classifier: Classifier, images: Array, tmp_path: Path, score_into: Score) -> None:
    exports = [f"label-studio:{tmp_path / 'tasks.json'}", f"fiftyone:{tmp_path / 'labels.json'}"]
    score_into(policy=make_policy(classifier, threshold=0), exports=exports, rejected=tmp_path / "rejected")
    assert json.loads((tmp_path / "tasks.json").read_text()) == []
    assert json.loads((tmp_path / "labels.json").read_text()) == {"classes": ["0", "1"], "labels": {}}
    assert read_list(tmp_path / "rejected") == []
    (tmp_path / "new").mkdir()
    for name in ("a b.png", f"{make_file_name('a b', 'a b.png')}.png"):
        Image.fromarray(images[0]).save(tmp_path / "new" / name)
    data, policy, rejected = f"folder:{tmp_path / 'new'}", make_policy(classifier, threshold=2.0), tmp_path / "other"
    score_into("scores.csv", data, policy, rejected=rejected)
    assert len(list(rejected.glob("*/*.png"))) == 2, "neither replaces the other"


@settings(max_examples=200)
@given(st.sets(st.text(st.sampled_from("aAbB1._-/ ä:\\\n"), min_size=1, max_size=6), min_size=2, max_size=20))
def test_file_names_are_valid_and_unique(identities: set[str]) -> None:
    names = [make_file_name(identity, identity) for identity in identities]
    assert len({name.lower() for name in names}) == len(identities)
    for name in names:
        assert not set(name) & set('/\\:*?"<>|\n ')
        assert not name.startswith((".", "-"))
        assert not name.endswith(".")
        assert 0 < len(name.encode()) < 250


NAMES = [
    *("rejected.csv", "Rejected.CSV", ".", "..", "", " ", "con", "CON", "nul.png", "com1"),
    *("a/b", "a\\b", "/", "~", "-x"),
    *("x" * 300, "x" * 301, "字" * 300, "dark", "Dark", "dark ", "bright-ones", "a\0b", "a\nb", "_", *["crane"] * 3),
]


def test_classes_never_share_a_folder() -> None:
    # The last names are those of the folders of the others.
    for names in (NAMES, [*NAMES, *name_class_folders(NAMES)], [*name_class_folders(NAMES), *NAMES]):
        folders = name_class_folders(names)
        assert len({folder.lower() for folder in (Review.LIST, *folders)}) == len(names) + 1
        for folder in folders:
            assert Path(folder).name == folder, "one folder below the folder of rejected images"
            assert folder.partition(".")[0].lower() not in ("con", "nul", "com1")
            assert len(folder.encode()) < 250
    assert name_class_folders(("dark", "bright-ones", "crane", "7")) == ("dark", "bright-ones", "crane", "7")


@pytest.mark.parametrize("class_names", [("rejected.csv", ".."), ("con", "a/b"), ("crane", "crane"), ("x" * 300, "")])
def test_any_class_has_a_folder(
    policy: Policy, tmp_path: Path, class_names: tuple[str, str], score_into: Score
) -> None:
    named, rejected = policy.model_copy(update={"class_names": class_names}), tmp_path / "rejected"
    summary, _ = score_into("scores.jsonl", policy=named, rejected=rejected)
    table = read_list(rejected)
    assert len(table) == summary.rejected == len(list(rejected.glob("*/*.png")))
    label_of = {line["file"].partition("/")[0]: line["label"] for line in table}
    assert sorted(label_of.values()) == ["0", "1"]
    assert all(label_of[line["file"].partition("/")[0]] == line["label"] for line in table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rejected", "scores.jsonl"]


def test_label_studio_tasks_are_kept(score_images: ScoreImages, image_files: str, tmp_path: Path) -> None:
    exports, config = [f"label-studio:{tmp_path / 'tasks.json'}"], tmp_path / "tasks-config.xml"
    config.write_text("edited by hand")
    with pytest.raises(DecisionError, match=r"tasks-config\.xml' exists.* overwrite=True"):
        score_images(image_files, exports=exports)
    assert config.read_text() == "edited by hand"
    rows = score_images(image_files, exports=exports, overwrite=True)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert [task["data"]["id"] for task in tasks] == [row["id"] for row in rows]
    for task, row in zip(tasks, rows, strict=True):
        path = (tmp_path / "new" / row["id"]).as_posix().lstrip("/").replace(" ", "%20")
        assert task["data"]["image"] == f"/data/local-files/?d={path}"
        assert (task["data"]["low"], task["data"]["high"]) == (row["low"], row["high"])
        (prediction,) = task["predictions"]
        assert prediction["score"] == row["confidence"]
        assert prediction["result"][0]["value"] == {"choices": [row["class"]]}
    assert '<Choice value="Dark"/>' in config.read_text()
    written = (tmp_path / "tasks.json").read_bytes()
    score_images(image_files, exports=exports)  # the same scores again
    assert (tmp_path / "tasks.json").read_bytes() == written


def test_many_classes_become_a_list() -> None:
    assert 'layout="select"' in LabelStudio.format_interface(tuple(map(str, range(21))))
    assert "layout" not in LabelStudio.format_interface(tuple(map(str, range(20))))
    assert '<Choice value="a &lt; b &amp; c"/>' in LabelStudio.format_interface(("a < b & c",))


@pytest.mark.parametrize(("names", "left_out"), [(("cat", "none"), []), (("Bad image", "cat"), [Answer.BAD_IMAGE])])
def test_other_answers_are_offered_unless_a_class_has_the_name(names: tuple[str, ...], left_out: list[Answer]) -> None:
    offered = Answer.list_offered(names)
    assert set(offered) == set(Answer) - set(left_out)
    choices = [choice.get("value") for choice in fromstring(LabelStudio.format_interface(names)).iter("Choice")]
    assert choices == [*names, *(answer.text for answer in offered)]
    assert [Answer.find(answer.text.upper()) for answer in offered] == list(offered)


def test_logarithms_are_not_scores(
    classifier: Classifier, images: Array, tmp_path: Path, score_into: Score, negative: str
) -> None:
    policy = make_policy(classifier, "identity", threshold=1.0, method=negative)
    exports, prefix = [f"label-studio:{tmp_path / 'tasks.json'}"], "https://images.example/a/"
    score_into(policy=policy, exports=exports, image_prefix=prefix)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert len(tasks) == len(images)
    assert all(task["data"]["confidence"] < 0 and "score" not in task["predictions"][0] for task in tasks)
    assert tasks[0]["data"]["image"] == f"https://images.example/a/{tasks[0]['data']['id']}"
    assert tasks[0]["data"]["low"] is None


def test_images_without_files_are_exported_as_png(score_images: ScoreImages, images: Array, tmp_path: Path) -> None:
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


# --- The code of the tools: the label-studio-sdk, and the importer of fiftyone ---

LABEL_STUDIO = """
import json, sys
from label_studio_sdk.label_interface import LabelInterface
from label_studio_sdk.label_interface.objects import TaskValue

interface = LabelInterface(open(sys.argv[2], encoding="utf-8").read())
interface.validate()
tasks = json.load(open(sys.argv[1], encoding="utf-8"))
errors = []
for task in tasks:
    TaskValue.model_validate(task)
    if not interface.validate_task({"data": task["data"]}):
        errors.append("the data lacks what the interface shows")
    for prediction in task["predictions"]:
        errors += interface.validate_prediction(prediction, return_errors=True)
print(json.dumps({"tasks": len(tasks), "errors": errors}))
"""

# The package opens its database when it is imported, so its importer and its parser are executed from their files; from
# the rest of the package they need paths, JSON and a record of a label.
FIFTYONE = """
import ast, importlib.util, json, os, random, sys
from types import SimpleNamespace

class Classification:
    def __init__(self, label=None, confidence=None, **attributes):
        self.values = {"label": label, "confidence": confidence, **attributes}

names = {
    "os": os, "random": random, "fom": None,
    "fol": SimpleNamespace(Classification=Classification, Classifications=list),
    "fos": SimpleNamespace(normpath=os.path.normpath, normalize_path=os.path.abspath),
    "etas": SimpleNamespace(read_json=lambda path: json.load(open(path, encoding="utf-8"))),
}
data = os.path.join(os.path.dirname(importlib.util.find_spec("fiftyone").origin), "utils", "data")
wanted = {
    "parsers.py": ["SampleParser", "LabeledImageSampleParser", "LabeledImageTupleSampleParser",
                   "ImageClassificationSampleParser", "FiftyOneImageClassificationSampleParser"],
    "importers.py": ["ImportPathsMixin", "DatasetImporter", "LabeledImageDatasetImporter",
                     "FiftyOneImageClassificationDatasetImporter"],
}
for file, classes in wanted.items():
    text = open(os.path.join(data, file), encoding="utf-8").read()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            exec(ast.get_source_segment(text, node), names)
with names["FiftyOneImageClassificationDatasetImporter"](labels_path=sys.argv[1]) as importer:
    samples = [[path, label.values] for path, _, label in importer]
    print(json.dumps({"classes": importer.get_dataset_info()["classes"], "samples": samples}))
"""


@pytest.fixture
def run_script(python_with: Callable[..., Path]) -> Callable[..., Any]:
    """Return a function that runs a script with the tools and returns the JSON that it prints."""

    def run(script: str, *arguments: Path) -> Any:
        python = python_with("review", Path(__file__).with_name("review-requirements.txt"), "--no-deps")
        done = subprocess.run([python, "-c", script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def rows(bright_or_dark: tuple[Array, Array], classifier: Classifier, tmp_path: Path) -> list[dict[str, Any]]:
    images, labels = bright_or_dark
    for number in range(40):
        path = tmp_path / "new" / ("dark & <dim>", "brighté")[labels[number]] / f"shot {number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(path)
    exports, out = [f"label-studio:{tmp_path / 'tasks.json'}", f"fiftyone:{tmp_path / 'labels.json'}"], "scores.jsonl"
    policy = make_policy(classifier, threshold=0.97)
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / out, classifier=classifier, exports=exports)
    return [row for row in read_rows(tmp_path / out) if not row["accept"]]


@pytest.mark.outside
def test_both_tools_read_the_exports(
    run_script: Callable[..., Any], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    config, path = tmp_path / "tasks-config.xml", tmp_path / "tasks.json"
    assert run_script(LABEL_STUDIO, path, config) == {"tasks": len(rows), "errors": []}
    assert len(rows) > 5
    tasks = json.loads(path.read_text(encoding="utf-8"))
    tasks[0]["predictions"][0]["score"] = 1.5
    tasks[1]["predictions"][0]["result"][0]["value"]["choices"] = ["purple"]
    del tasks[2]["data"]["image"]
    path.write_text(json.dumps(tasks))
    assert len(run_script(LABEL_STUDIO, path, config)["errors"]) == 3
    read = run_script(FIFTYONE, tmp_path / "labels.json")
    assert read["classes"] == ["brighté", "dark & <dim>"]
    expected = {
        str(tmp_path / "new" / row["id"]): {
            "label": row["class"],
            "source_id": row["id"],
            **{name: row[name] for name in ("confidence", "low", "high", "accept")},
        }
        for row in rows
    }
    assert dict(read["samples"]) == expected
    assert all(Path(path).is_file() for path, _ in read["samples"])
