"""Manifests record how an entry was made, and are validated when read."""

import json
import re
from pathlib import Path

import pytest

from secondlook.errors import PredictionsError
from secondlook.predictions import Predictions

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
        ({"rows_per_part": 0}, "rows_per_part"),
        ({"skipped": [{"index": 50, "id": "a", "reason": "b"}]}, "skipped image 50"),
    ],
)
def test_invalid_manifest_is_rejected(store: Path, path: Path, change: dict[str, object], fault: str) -> None:
    content = {**json.loads(path.read_text()), **change}
    del content["checksum"]  # as in stores of earlier versions
    path.write_text(json.dumps(content))
    with pytest.raises(PredictionsError, match=f"{re.escape(str(path))}.*{fault}"):
        Predictions.open(store)


def test_changed_manifest_is_rejected(store: Path, path: Path) -> None:
    path.write_text(path.read_text().replace('"counting"', '"countinG"'))
    with pytest.raises(PredictionsError, match="checksum"):
        Predictions.open(store)


def test_manifest_without_a_checksum_is_read(store: Path, path: Path) -> None:
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content))
    assert Predictions.open(store).n_images == 50


def test_manifest_that_is_not_json_is_rejected(store: Path, path: Path) -> None:
    path.write_text("{")
    with pytest.raises(PredictionsError, match=f"{re.escape(str(path))}.*JSON"):
        Predictions.open(store)


def test_manifest_records_classifier_data_views_and_versions(path: Path) -> None:
    manifest = json.loads(path.read_text())
    assert manifest["classifier"]["name"] == "counting"
    assert manifest["classifier"]["output"] == "logits"
    assert manifest["data"]["images"] == 50
    assert manifest["data"]["labelled"] is True
    assert manifest["views"] == ["identity", "hflip"]
    assert manifest["rows_per_part"] == 16
    assert manifest["classes"] == 4
    assert set(manifest["versions"]) == {"secondlook", "python", "numpy", "pyarrow"}


def test_stored_names_stay_the_same(path: Path) -> None:
    manifest = json.loads(path.read_text())
    assert list(manifest) == [
        "version",
        "classifier",
        "data",
        "views",
        "rows_per_part",
        "classes",
        "skipped",
        "versions",
        "checksum",
    ]
    assert list(manifest["data"]) == ["spec", "digest", "images", "labelled", "class_names"]
