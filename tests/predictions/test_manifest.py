"""Manifests record how an entry was made, and are validated when read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from secondlook.arrays import Array
from secondlook.errors import PredictionsError
from secondlook.predictions import Predictions, collect

pytestmark = pytest.mark.usefixtures("stored")


@pytest.fixture
def path(store: Path) -> Path:
    (entry,) = store.iterdir()
    return entry / "manifest.json"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 2}, "version"),
        ({"surprise": 1}, "surprise"),
        ({"views": 3}, "views"),
        ({"rows_per_chunk": 0}, "rows_per_chunk"),
        ({"rows_per_chunk": 10**30}, "rows_per_chunk"),
        ({"classes": 0}, "classes"),
        ({"skipped": [{"index": 50, "id": "a", "reason": "b"}]}, "skipped image 50"),
        ({"skipped": [{"index": index, "id": "a", "reason": "b"} for index in range(50)]}, "all of the 50 images"),
    ],
)
def test_invalid_manifest_is_rejected(store: Path, path: Path, change: dict[str, object], fault: str) -> None:
    content = {**json.loads(path.read_text()), **change}
    del content["checksum"]  # as in stores of earlier versions
    path.write_text(json.dumps(content))
    with pytest.raises(PredictionsError, match=f"{re.escape(str(path))}.*{fault}"):
        Predictions.open(store)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"images": 10**15}, f"{10**15} images.*50"),
        ({"images": 40}, "40 images.*50"),
        ({"classes": 10**12}, f"{10**12} classes.*4"),
        ({"classes": 3}, "3 classes.*4"),
        ({"output": "probabilities"}, "probabilities"),
    ],
)
def test_manifest_that_contradicts_the_files_is_rejected(
    store: Path, path: Path, change: dict[str, object], fault: str
) -> None:
    """It is valid by itself; the files are the ground truth, and a wrong number of images would take forever."""
    content = json.loads(path.read_text())
    del content["checksum"]
    holder = {"images": content["data"], "classes": content, "output": content["classifier"]}[next(iter(change))]
    holder.update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(PredictionsError, match=fault):
        Predictions.open(store)


def test_collecting_with_a_manifest_of_more_images_is_rejected(
    counting: Any, images: Array, labels: Array, store: Path, path: Path
) -> None:
    content = json.loads(path.read_text())
    del content["checksum"]
    content["data"]["images"] = 10**15
    path.write_text(json.dumps(content))
    with pytest.raises(PredictionsError, match=f"{10**15} images.*50"):
        collect(counting.load(), images, "identity hflip", labels=labels, store=store)


@pytest.mark.parametrize("member", ["../entry", "/dev/null", "\0", "a" * 5000])
def test_ensemble_of_other_folders_is_rejected(store: Path, member: str) -> None:
    (store / "ensemble").mkdir()
    (store / "ensemble" / "ensemble.json").write_text(json.dumps({"version": 1, "members": [member]}))
    with pytest.raises(PredictionsError, match=r"members\.0"):
        Predictions.open(store / "ensemble")


def test_changed_manifest_is_rejected(store: Path, path: Path) -> None:
    path.write_text(path.read_text().replace('"counting"', '"countinG"'))
    with pytest.raises(PredictionsError, match="checksum"):
        Predictions.open(store)


def test_manifest_that_is_not_json_is_rejected(store: Path, path: Path) -> None:
    path.write_text("{")
    with pytest.raises(PredictionsError, match=f"{re.escape(str(path))}.*JSON"):
        Predictions.open(store)


def test_manifest_records_classifier_data_views_and_versions(path: Path) -> None:
    manifest = json.loads(path.read_text())
    assert manifest["classifier"]["name"] == "counting"
    assert manifest["classifier"]["output"] == "logits"
    assert manifest["data"]["images"] == 50
    assert manifest["data"]["labeled"] is True
    assert manifest["views"] == ["identity", "hflip"]
    assert manifest["rows_per_chunk"] == 16
    assert manifest["classes"] == 4
    assert set(manifest["versions"]) == {"secondlook", "python", "numpy", "pyarrow"}
