"""Predictions with known errors, an image reader, and a parser of the data that a page embeds."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.predictions import Predictions
from secondlook.views import ViewSet

VIEWS = ViewSet(["identity", "hflip", "shift:1,0"])
CLASSES = ("cat", "dog", "bird", "frog")

PredictionFactory = Callable[..., Predictions]


def _make_predictions(first: Float64Array, others: Float64Array, wrong: BoolArray) -> Predictions:
    """Predict class 0 with the given probabilities for the image itself and for two more views."""
    top = np.stack([first, others, others], axis=1)
    rest = (1 - top) / 3
    probabilities = np.stack([top, rest, rest, rest], axis=2)
    return Predictions(probabilities=probabilities, views=VIEWS, labels=np.where(wrong, 1, 0), class_names=CLASSES)


@pytest.fixture
def make_predictions() -> PredictionFactory:
    return _make_predictions


@pytest.fixture
def preds() -> Predictions:
    """600 images, 25 % wrong; the other views are less confident of wrong predictions, so that a second look helps."""
    rng = np.random.default_rng(0)
    wrong = rng.random(600) < 0.25
    first = rng.uniform(0.5, 0.999, 600)
    others = np.clip(np.where(wrong, first - 0.2, first) + rng.normal(0, 0.05, 600), 0.3, 0.999)
    return _make_predictions(first, others, wrong)


@pytest.fixture
def read_image() -> Callable[[int], Array]:
    """Return a reader of small images that differ from each other."""
    noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return lambda index: np.roll(noise, index, axis=0)


@pytest.fixture
def read_page_data() -> Callable[[Path], dict[str, Any]]:
    """Return a reader of the data that a page embeds for its script, with unpacked arrays."""
    return _read_page_data


def _read_page_data(path: Path) -> dict[str, Any]:
    embedded = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    assert embedded is not None
    data = _unpack(json.loads(embedded[1]))
    assert isinstance(data, dict)
    return data


def _unpack(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"type", "data"}:
        return np.frombuffer(base64.b64decode(value["data"]), dtype=f"<{value['type']}")
    if isinstance(value, dict):
        return {name: _unpack(one) for name, one in value.items()}
    return [_unpack(one) for one in value] if isinstance(value, list) else value
