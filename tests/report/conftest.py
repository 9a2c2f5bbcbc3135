"""Predictions whose right answers are known beforehand, and a reader of what a page embeds."""

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

Made = Callable[..., Predictions]


def _made(first: Float64Array, others: Float64Array, wrong: BoolArray, **options: Any) -> Predictions:
    """Answer class 0 with the given probability in the image itself and in two further views; label it so or not."""
    shares = np.stack([first, others, others], axis=1)
    rest = (1 - shares) / 3
    probabilities = np.stack([shares, rest, rest, rest], axis=2)
    return Predictions(
        probabilities=probabilities, views=VIEWS, labels=np.where(wrong, 1, 0), **{"class_names": CLASSES, **options}
    )


@pytest.fixture
def made() -> Made:
    return _made


@pytest.fixture
def preds() -> Predictions:
    """600 images, 25 % wrong; further views are less sure of wrong answers, so that a second look helps."""
    rng = np.random.default_rng(0)
    wrong = rng.random(600) < 0.25
    first = rng.uniform(0.5, 0.999, 600)
    others = np.clip(np.where(wrong, first - 0.2, first) + rng.normal(0, 0.05, 600), 0.3, 0.999)
    return _made(first, others, wrong)


@pytest.fixture
def pixels() -> Callable[[int], Array]:
    """Return a reader of small pictures that differ."""
    noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return lambda index: np.roll(noise, index, axis=0)


@pytest.fixture
def embedded() -> Callable[[Path], dict[str, Any]]:
    """Return what a page carries for its script, with arrays unpacked."""
    return _embedded


def _embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    data = _unpacked(json.loads(found[1]))
    assert isinstance(data, dict)
    return data


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"type", "data"}:
        return np.frombuffer(base64.b64decode(value["data"]), dtype=f"<{value['type']}")
    if isinstance(value, dict):
        return {name: _unpacked(one) for name, one in value.items()}
    return [_unpacked(one) for one in value] if isinstance(value, list) else value
