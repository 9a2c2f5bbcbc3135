"""Images, and a classifier that is wrong where it is unsure."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.policies import Policy, Schedule
from tests.policy_maker import attach, score


@pytest.fixture(scope="session")
def bright_or_dark() -> tuple[Array, Array]:
    """600 grayish images uint8 [600, 6, 6, 3] with labels 0 (dark) and 1 (bright), some hard to tell."""
    rng = np.random.default_rng(11)
    labels = rng.integers(2, size=600)
    mean = 128 + np.where(labels == 1, 1, -1) * rng.gamma(2.0, 25.0, size=600) + rng.normal(0, 30, size=600)
    pixels = mean[:, None, None, None] + rng.normal(0, 30, size=(600, 6, 6, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="session")
def brightness() -> Callable[[Any], Any]:
    """Return a function from images to the probabilities of dark and bright."""

    def compute_probabilities(batch: Any) -> Any:
        bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 128.0) / 12.0))
        return np.stack([1 - bright, bright], axis=1)

    return compute_probabilities


@pytest.fixture(scope="session")
def classifier(brightness: Callable[[Any], Any]) -> Classifier:
    return load_classifier(brightness, name="brightness")


@pytest.fixture
def images(bright_or_dark: tuple[Array, Array]) -> Array:
    """30 images, uint8 [30, 6, 6, 3]."""
    return bright_or_dark[0][:30]


@pytest.fixture
def image_files(images: Array, tmp_path: Path) -> str:
    """The spec of the images as files in two folders, with names that file systems may confuse."""
    for number, image in enumerate(images):
        name = f"{'Dark' if number % 2 else 'bright ones'}/Shot {number // 2}.{'PNG' if number % 3 else 'png'}"
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "new" / name)
    return f"folder:{tmp_path / 'new'}"


@pytest.fixture
def review_policy(classifier: Classifier) -> Policy:
    return attach(
        Policy(threshold=0.95, method="mean"), classifier=classifier, views=("identity", "hflip", "shift:1,0")
    )


@pytest.fixture
def score_images(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that scores images and returns the rows of the rejected ones, least confident first."""

    def run(data: Any, **options: Any) -> list[dict[str, Any]]:
        score(review_policy, data, tmp_path / "scores.jsonl", classifier=classifier, **options)
        rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
        rejected = [row for row in rows if not row["accept"]]
        assert 5 < len(rejected) < len(images)
        return sorted(rejected, key=lambda row: (row["confidence"], row["id"]))

    return run


LOOKS = ("identity", "shift:1,0", "hflip", "brightness:1.2", "shift:0,1")
"""Views in the order of looks."""


@pytest.fixture(scope="session")
def make_adaptive_rule() -> Callable[..., Policy]:
    """Return a function that makes a rule with a random schedule, which leaves many images open."""

    def make(seed: int = 34, max_looks: int = len(LOOKS), **rule: Any) -> Policy:
        rng = np.random.default_rng(seed)
        changes, spreads = rng.normal(0, 0.3, len(LOOKS)), rng.uniform(0, 1.0, len(LOOKS))
        threshold = float(rng.uniform(0.6, 0.95))
        schedule = Schedule(
            views=LOOKS[:max_looks],
            method=rule.get("method", "mean"),
            changes=tuple(changes[:max_looks]),
            spreads=tuple(spreads[:max_looks]),
            margin=float(rng.uniform(0.5, 3)),
            tolerance=0.01,
            full_looks=len(LOOKS),
            images=100,
            threshold=threshold,
        )
        return Policy(**{"threshold": threshold, "schedule": schedule, "method": "mean", **rule})

    return make
