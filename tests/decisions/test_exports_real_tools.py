"""Exports are read by the code of the tools: the label-studio-sdk, and the importer of fiftyone."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.decisions import Review
from secondlook.policies import Policy
from tests.policy_maker import attach, score

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.outside

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


@pytest.fixture(scope="session")
def tools_python(python_with: Callable[..., Path]) -> Path:
    """The Python of an environment with the tools."""
    return python_with("review", HERE / "review-requirements.txt", "--no-deps")


@pytest.fixture
def run_script(tools_python: Path) -> Callable[..., Any]:
    """Return a function that runs a script with the tools and returns the JSON that it prints."""

    def run(script: str, *arguments: Path) -> Any:
        command = [str(tools_python), "-c", script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def rows(bright_or_dark: tuple[Array, Array], brightness: Any, tmp_path: Path) -> list[dict[str, Any]]:
    """The rows of rejected images that were exported for both tools."""
    images, labels = bright_or_dark
    for number in range(40):
        path = tmp_path / "new" / ("dark & <dim>", "brighté")[labels[number]] / f"shot {number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(path)
    classifier = load_classifier(brightness, name="brightness")
    policy = attach(
        Policy(threshold=0.97, method="mean"), classifier=classifier, views=("identity", "hflip", "shift:1,0")
    )
    exports = [f"label-studio:{tmp_path / 'tasks.json'}", f"fiftyone:{tmp_path / 'labels.json'}"]
    score(
        policy,
        f"folder:{tmp_path / 'new'}",
        tmp_path / "scores.jsonl",
        classifier=classifier,
        review=Review(exports=exports),
    )
    read = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in read if not row["accept"]]


def test_label_studio_accepts_the_tasks(
    run_script: Callable[..., Any], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    config = tmp_path / "tasks-config.xml"
    assert run_script(LABEL_STUDIO, tmp_path / "tasks.json", config) == {"tasks": len(rows), "errors": []}
    assert len(rows) > 5


def test_label_studio_rejects_invalid_tasks(
    run_script: Callable[..., Any], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    assert rows
    tasks[0]["predictions"][0]["score"] = 1.5
    tasks[1]["predictions"][0]["result"][0]["value"]["choices"] = ["purple"]
    del tasks[2]["data"]["image"]
    (tmp_path / "bad.json").write_text(json.dumps(tasks))
    errors = run_script(LABEL_STUDIO, tmp_path / "bad.json", tmp_path / "tasks-config.xml")["errors"]
    assert len(errors) == 3


def test_fiftyone_reads_the_labels(run_script: Callable[..., Any], rows: list[dict[str, Any]], tmp_path: Path) -> None:
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
