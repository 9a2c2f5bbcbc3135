"""Adaptive looking: the decisions of a slow reference, whatever the batches, and no forward pass too many."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import Looking, Plan, make_decisions
from secondlook.decisions.policy_classifier import ResolvedClassifier
from secondlook.policies import Policy
from secondlook.predictions import collect
from secondlook.views import View, apply_view
from tests.policy_maker import attach

MakeRule = Callable[..., Policy]
VIEWS = ("identity",)


class Looked(NamedTuple):
    """What is known of an image when looking stopped."""

    looks: int
    confidence: float
    predicted: tuple[int, ...]


class Counting:
    """Probabilities of the three colors, one image at a time; keeps every batch, and may run out of memory."""

    def __init__(self, sharpness: float = 0.05, largest_batch: int = 10**6) -> None:
        self.sharpness, self.largest_batch = sharpness, largest_batch
        self.batches: list[Array] = []

    def __call__(self, batch: Any) -> Any:
        if len(batch) > self.largest_batch:
            raise MemoryError
        self.batches.append(np.array(batch))
        exponents = [np.exp(self.sharpness * image.reshape(-1, 3).mean(axis=0)) for image in batch.astype(np.float64)]
        return np.stack([one / one.sum() for one in exponents])

    @property
    def images(self) -> int:
        return sum(map(len, self.batches))


def make_images(seed: int, count: int) -> Array:
    rng = np.random.default_rng(seed)
    colors = rng.uniform(60, 180, (count, 1, 1, 3))
    return np.clip(rng.normal(colors, 60, (count, 5, 4, 3)), 0, 255).astype(np.uint8)


def look_slowly(classifiers: Sequence[Classifier], image: Array, rule: Policy) -> Looked:
    """Classify every view of an image by itself, then count the looks with the formulas of the documentation."""
    schedule = rule.schedule
    assert schedule is not None
    views = [apply_view(image[None], View.parse(text)) for text in schedule.views]
    outputs = [
        np.mean([classifier(view)[0].astype(np.float64) for classifier in classifiers], axis=0) for view in views
    ]

    def log_odds(confidence: float) -> float:
        return math.log(confidence / (1 - confidence))

    looks = 0
    while True:
        looks += 1
        mean = sum(outputs[:looks]) / looks
        leading = np.argsort(-(outputs[0] if rule.predict_from == "image" else mean), kind="stable")[: rule.top_k]
        estimate = log_odds(float(mean[leading].sum())) + schedule.changes[looks - 1]
        distance = abs(estimate - log_odds(rule.threshold))
        if looks == len(views) or distance > schedule.margin * schedule.spreads[looks - 1]:
            return Looked(looks, 1 / (1 + math.exp(-estimate)), tuple(map(int, leading)))


def look_together(classifier: Classifier, images: Array, rule: Policy, batch_size: int) -> list[Looked]:
    policy = attach(rule, classifier=classifier, views=rule.schedule.views if rule.schedule else VIEWS)
    ids = [f"image {number}" for number in range(len(images))]
    looking = Looking(Plan(policy, ResolvedClassifier(classifier, None)), images, batch_size)
    for _ in looking.run():
        pass
    found: dict[int, Looked] = {}
    for positions, preds, _ in looking.groups(ids):
        assert preds.ids == tuple(ids[position] for position in positions)
        predicted = preds.predicted(rule.predict_from, rule.top_k).reshape(len(preds), rule.top_k)
        for row in zip(positions, make_decisions(policy, preds).confidence, predicted, strict=True):
            found[int(row[0])] = Looked(preds.n_views, float(row[1]), tuple(map(int, row[2])))
    assert len(looking) == 0
    return [found[number] for number in range(len(images))]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    max_looks=st.integers(1, 5),
    predict_from=st.sampled_from(["image", "views"]),
    top_k=st.sampled_from([1, 2]),
    members=st.integers(1, 2),
)
def test_decisions_are_those_of_the_slow_reference(
    make_adaptive_rule: MakeRule,
    seed: int,
    count: int,
    batch_size: int,
    max_looks: int,
    predict_from: str,
    top_k: int,
    members: int,
) -> None:
    counting = [Counting(0.05), Counting(0.03)][:members]
    classifiers = [load_classifier(function, name=f"{number}") for number, function in enumerate(counting)]
    rule = make_adaptive_rule(seed, max_looks, predict_from=predict_from, top_k=top_k)
    images = make_images(seed, count)
    found = look_together(Ensemble(classifiers) if members > 1 else classifiers[0], images, rule, batch_size)
    assert [function.images for function in counting] == [sum(one.looks for one in found)] * members
    for image, one in zip(images, found, strict=True):
        expected = look_slowly(classifiers, image, rule)
        assert (one.looks, one.predicted) == (expected.looks, expected.predicted)
        assert one.confidence == pytest.approx(expected.confidence, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch_size=st.integers(1, 50),
    method=st.sampled_from(["mean", "blend"]),
    predict_from=st.sampled_from(["image", "views"]),
)
def test_looks_are_those_of_stored_predictions(
    make_adaptive_rule: MakeRule, seed: int, batch_size: int, method: str, predict_from: str
) -> None:
    """To the last bit, in any order of the images."""
    rule = make_adaptive_rule(seed, method=method, predict_from=predict_from)
    assert rule.schedule is not None
    classifier, images = load_classifier(Counting(), name="colors"), make_images(seed, 30)
    stored = rule.look(collect(classifier, images, list(rule.schedule.views)))
    expected = [
        Looked(int(looks), float(confidence), (int(predicted),))
        for looks, confidence, predicted in zip(*stored, strict=True)
    ]
    order = np.random.default_rng(seed).permutation(len(images))
    shuffled = look_together(classifier, images[order], rule, batch_size)
    assert shuffled == [expected[position] for position in order]


def test_open_images_fill_batches_again(make_adaptive_rule: MakeRule) -> None:
    counting, size = Counting(), 16
    found = look_together(load_classifier(counting, name="colors"), make_images(0, 100), make_adaptive_rule(), size)
    sizes = [len(batch) for batch in counting.batches]
    rounds = [sum(one.looks >= looks for one in found) for looks in range(1, 6)]
    assert rounds[2] > size
    expected = [[size] * (count // size) + [count % size] * (count % size > 0) for count in rounds]
    assert sizes == [size for one in expected for size in one]


def test_smaller_batches_after_running_out_of_memory(make_adaptive_rule: MakeRule) -> None:
    images, rule = make_images(0, 50), make_adaptive_rule()
    whole = look_together(load_classifier(Counting(), name="colors"), images, rule, 64)
    small = look_together(load_classifier(Counting(largest_batch=5), name="colors"), images, rule, 64)
    assert small == whole
