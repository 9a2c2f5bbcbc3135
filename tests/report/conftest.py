"""Predictions with known errors, an image reader, and reports with their page, its data and their tables."""

import base64
import csv
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.predictions import Predictions
from secondlook.report import write_report
from secondlook.views import ViewSet
from tests.report.references import RUN_ONLY, write_run_report

VIEWS = ViewSet(["identity", "hflip", "shift:1,0"])
CLASSES = ("cat", "dog", "bird", "frog")
DEFAULTS: dict[str, Any] = {"title": "t", "methods": ["msr", "mean"], "resamples": 5, "artifacts": False}


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8").replace("\u00a0", " ")

    @property
    def data(self) -> dict[str, Any]:
        """The data that the page embeds for its script, with unpacked arrays."""
        (embedded,) = re.findall(
            r'<script type="application/json" id="data">(.*?)</script>', self.path.read_text("utf-8"), re.DOTALL
        )
        data = _unpack(json.loads(embedded))
        assert isinstance(data, dict)
        return data

    @property
    def files(self) -> Path:
        return self.path.with_name(f"{self.path.stem}-files")

    def rows(self, table: str, **equal: str) -> list[dict[str, str]]:
        """Return the rows of a table that have these cells."""
        content = (self.files / f"{table}.csv").read_text("utf-8")
        rows = list(csv.DictReader(io.StringIO(content, newline="")))
        return [row for row in rows if all(row[name] == value for name, value in equal.items())]

    def element(self, id_: str) -> str:
        """Return the text of an element that holds no others."""
        (text,) = re.findall(rf'id="{id_}"[^>]*>(.*?)</', self.text)
        return str(text)


Write = Callable[..., Report]


def _unpack(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"type", "data"}:
        return np.frombuffer(base64.b64decode(value["data"]), dtype=f"<{value['type']}")
    if isinstance(value, dict):
        return {name: _unpack(one) for name, one in value.items()}
    return [_unpack(one) for one in value] if isinstance(value, list) else value


def write_page(preds: Predictions, path: Path, **options: Any) -> Report:
    """Write a report, of a run where the options are those of a run, as without matplotlib if it has files."""
    write = write_run_report if RUN_ONLY & options.keys() else write_report
    with pytest.MonkeyPatch.context() as patch:  # drawing takes most of the time
        patch.setitem(sys.modules, "matplotlib", None)
        return Report(write(preds, path, **{**DEFAULTS, **options}))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a report without plots, by default of msr and mean and without tables."""

    def write_into_folder(preds: Predictions, name: str = "r.html", **options: Any) -> Report:
        return write_page(preds, tmp_path / name, **options)

    return write_into_folder


def make_predictions(first: Float64Array, others: Float64Array, wrong: BoolArray) -> Predictions:
    """Predict class 0 with the given probabilities for the image itself and for two more views."""
    top = np.stack([first, others, others], axis=1)
    rest = (1 - top) / 3
    probabilities = np.stack([top, rest, rest, rest], axis=2)
    return Predictions(probabilities=probabilities, views=VIEWS, labels=np.where(wrong, 1, 0), class_names=CLASSES)


@pytest.fixture(scope="session")
def preds() -> Predictions:
    """600 images, 25 % wrong; the other views are less confident of wrong predictions, so that a second look helps."""
    rng = np.random.default_rng(0)
    wrong = rng.random(600) < 0.25
    first = rng.uniform(0.5, 0.999, 600)
    others = np.clip(np.where(wrong, first - 0.2, first) + rng.normal(0, 0.05, 600), 0.3, 0.999)
    return make_predictions(first, others, wrong)


@pytest.fixture(scope="session")
def mixed() -> Predictions:
    """300 images of five classes, without any of the third; confidences tie, and each class has errors."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    labels[labels == 2] = 3
    logits = rng.normal(size=(300, 2, 5)).round(1)
    logits[np.arange(300), :, labels] += 1.5
    return Predictions(logits=logits.astype(np.float32), views="identity hflip", labels=labels)


def read_image(index: int) -> Array:
    """Return a small image that differs from others."""
    noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return np.roll(noise, index, axis=0)


@pytest.fixture(scope="session")
def report(preds: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report of all default methods with images and tables, at 10 % risk."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    shown: dict[str, Any] = {"title": "Cats & dogs", "methods": None, "risk": 0.1, "delta": 0.05}
    return write_page(preds, path, image=read_image, artifacts=True, **shown)
