"""Images, classifiers that are wrong where they are unsure, and policies for them."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.arrays import Array, softmax
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Plan, compile_policy
from secondlook.estimators import METHODS, confidence
from secondlook.estimators.methods import Method
from secondlook.policies import Policy, Schedule
from tests.policy_maker import attach, score

LOOKS = ("identity", "shift:1,0", "hflip", "brightness:1.2", "shift:0,1")
"""Views in the order of looks."""

Score = Callable[..., tuple[Any, list[dict[str, Any]]]]
"""What the fixture `score_into` is."""


@pytest.fixture
def negative(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a method whose values are below 0."""
    log = Method("log", "log", "logarithm of msr", lambda preds: np.log(confidence(preds, "msr")) - 1)
    monkeypatch.setitem(METHODS._records, log.name, log)
    return log.name


class Counting:
    """A function of images that keeps every batch. It fails at one of its calls, or for larger batches."""

    def __init__(self, function: Callable[[Any], Any], largest_batch: int = 10**6) -> None:
        self.function, self.largest_batch = function, largest_batch
        self.restart()

    def restart(self, fails_at: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.batches: list[Array] = []
        self.fails_at, self.error = fails_at, error

    def __call__(self, batch: Any) -> Any:
        if len(batch) > self.largest_batch:
            raise MemoryError
        if len(self.batches) + 1 == self.fails_at:
            raise self.error("stopped")
        self.batches.append(np.array(batch))
        return self.function(batch)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def count_colors(sharpness: float = 0.05, **options: Any) -> Counting:
    """Return a function that computes the probabilities of the three colors, one image at a time."""

    def classify(batch: Any) -> Any:
        return np.stack([softmax(sharpness * image.reshape(-1, 3).mean(axis=0, dtype=np.float64)) for image in batch])

    return Counting(classify, **options)


def make_colors(seed: int, count: int) -> Array:
    """Return images uint8 [count, 5, 4, 3], each of about one color."""
    rng = np.random.default_rng(seed)
    colors = rng.uniform(60, 180, (count, 1, 1, 3))
    return np.clip(rng.normal(colors, 60, (count, 5, 4, 3)), 0, 255).astype(np.uint8)


def make_adaptive_rule(seed: int = 34, max_looks: int = len(LOOKS), **rule: Any) -> Policy:
    """Return a rule with a random schedule, which leaves many images open."""
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


def make_policy(
    classifier: Classifier, views: str = "identity hflip shift:1,0", rule: Policy | None = None, **settings: Any
) -> Policy:
    """Return a policy for a classifier: that of a rule, or one with a threshold and other settings of `Policy`."""
    rule = rule or Policy(**{"threshold": 0.9, "method": "mean", **settings})
    looks = rule.schedule.views if rule.schedule else tuple(views.split())
    return attach(rule, classifier=classifier, views=looks, class_names=rule.class_names, made="then")


def compile_plan(policy: Policy, classifier: Classifier) -> Plan:
    plan = compile_policy(policy.bind(classifier))
    assert isinstance(plan, Plan)
    return plan


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a score file or of a folder of parts; those of a CSV file are texts."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix.lower() == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list(pq.read_table(path).to_pylist())


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, except for the lock that a kill in the last step leaves."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "_lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def save_images(folder: Path, images: Sequence[Array] | Array, broken: Sequence[int] = ()) -> str:
    """Save images as 000.png, 001.png and so on, and return their spec; broken ones are empty files."""
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    for number in broken:
        (folder / f"{number:03d}.png").write_bytes(b"")
    return f"folder:{folder}"


@pytest.fixture(scope="session")
def bright_or_dark() -> tuple[Array, Array]:
    """600 grayish images uint8 [600, 6, 6, 3] with labels 0 (dark) and 1 (bright), some hard to tell."""
    rng = np.random.default_rng(11)
    labels = rng.integers(2, size=600)
    mean = 128 + np.where(labels == 1, 1, -1) * rng.gamma(2.0, 25.0, size=600) + rng.normal(0, 30, size=600)
    pixels = mean[:, None, None, None] + rng.normal(0, 30, size=(600, 6, 6, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def brightness(batch: Any) -> Any:
    """Return the probabilities of dark and bright images; a function of a module can be pickled."""
    bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 128.0) / 12.0))
    return np.stack([1 - bright, bright], axis=1)


@pytest.fixture
def counting() -> Counting:
    """The function of `classifier`, which counts."""
    return Counting(brightness)


@pytest.fixture(scope="session")
def classifier() -> Classifier:
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


@pytest.fixture(scope="session")
def policy(classifier: Classifier) -> Policy:
    return make_policy(classifier, threshold=0.95)


@pytest.fixture
def score_into(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> Score:
    """Return a function that scores images, in chunks of 16, into a file, and returns the summary and the rows."""

    def run(name: str = "scores.parquet", data: Any = images, policy: Any = policy, **options: Any) -> Any:
        given = {"classifier": classifier, "part_size": 16, **options}
        return score(policy, data, tmp_path / name, **given), read_rows(tmp_path / name)

    return run


@pytest.fixture
def score_images(score_into: Score) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that scores images and returns the rows of the rejected ones, least confident first."""

    def run(data: Any, **options: Any) -> list[dict[str, Any]]:
        summary, rows = score_into("scores.jsonl", data, **options)
        rejected = [row for row in rows if not row["accept"]]
        assert 5 < len(rejected) < summary.images
        return sorted(rejected, key=lambda row: (row["confidence"], row["id"]))

    return run
