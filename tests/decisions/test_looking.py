"""Adaptive looking: the decisions of a slow reference, whatever the batches, and no forward pass too many.

In a stream, the looks at every image are those it has alone, whenever it comes and with whichever others.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import LookStream, Plan, make_decisions
from secondlook.decisions.looking import Looking
from secondlook.policies import Policy
from secondlook.predictions import Predictions
from secondlook.views import View, apply_view
from tests.decisions.conftest import Counting, compile_plan, count_colors, make_adaptive_rule, make_colors, make_policy

RULES = {
    "seed": st.integers(0, 10**6),
    "max_looks": st.integers(1, 5),
    "predict_from": st.sampled_from(["image", "views"]),
    "top_k": st.sampled_from([1, 2]),
    "familiarity": st.none()
    | st.fixed_dictionaries(
        {
            "limit": st.floats(0.0, 0.6),
            "weights": st.sampled_from([(), (1.0, 0.1, -0.05, 0.0)]),
            "budget": st.just(0.02),
            "images": st.just(100),
            "given_up": st.just(1),
        }
    ),
}


class Looked(NamedTuple):
    """What is known of an image when looking stopped."""

    looks: int
    confidence: float
    predicted: tuple[int, ...]


def load_members(members: int) -> tuple[list[Counting], list[Classifier], Classifier]:
    """Return functions, their classifiers, and the only one of them or their ensemble."""
    counting = [count_colors(0.05), count_colors(0.03)][:members]
    classifiers = [load_classifier(function, name=f"{number}") for number, function in enumerate(counting)]
    return counting, classifiers, Ensemble(classifiers) if members > 1 else classifiers[0]


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

    first = [Predictions(probabilities=each(views[0])[:, None], views="identity") for each in classifiers]
    limit, looks = rule.familiarity, 0
    is_familiar = limit is None or np.mean([limit.compute(one) for one in first]) >= limit.limit
    while True:
        looks += 1
        mean = sum(outputs[:looks]) / looks
        leading = np.argsort(-(outputs[0] if rule.predict_from == "image" else mean), kind="stable")[: rule.top_k]
        estimate = log_odds(float(mean[leading].sum())) + schedule.changes[looks - 1]
        distance = abs(estimate - log_odds(rule.threshold))
        if looks == len(views) or not is_familiar or distance > schedule.margin * schedule.spreads[looks - 1]:
            return Looked(looks, 1 / (1 + math.exp(-estimate)), tuple(map(int, leading)))


def look_together(classifier: Classifier, images: Array, rule: Policy, batch_size: int) -> list[Looked]:
    policy = make_policy(classifier, rule=rule)
    ids = [f"image {number}" for number in range(len(images))]
    looking = Looking(compile_plan(policy, classifier), images, batch_size)
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


@settings(max_examples=150)
@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    members=st.integers(1, 2),
    rule=st.fixed_dictionaries(RULES),
)
def test_decisions_are_those_of_a_reference(count: int, batch_size: int, members: int, rule: dict[str, Any]) -> None:
    counting, classifiers, classifier = load_members(members)
    policy, images = make_adaptive_rule(**rule), make_colors(rule["seed"], count)
    found = look_together(classifier, images, policy, batch_size)
    assert [sum(function.sizes) for function in counting] == [sum(one.looks for one in found)] * members
    for image, one in zip(images, found, strict=True):
        expected = look_slowly(classifiers, image, policy)
        assert (one.looks, one.predicted) == (expected.looks, expected.predicted)
        assert one.confidence == pytest.approx(expected.confidence, rel=1e-6)


def make_plan(rule: Policy, function: Any) -> Plan:
    classifier = load_classifier(function, name="colors")
    return compile_plan(make_policy(classifier, rule=rule), classifier)


def run_stream(
    stream: LookStream[int], images: Sequence[Array] | Array, arrivals: list[int]
) -> tuple[dict[int, Array], list[int]]:
    """Add so many images before each step, and return the outputs of each image, and which images failed."""
    looked: dict[int, Array] = {}
    failed: list[int] = []
    n_added = 0
    for count in [*arrivals, *[1] * len(images)]:
        stream.add([(key, images[key][None]) for key in range(n_added, min(n_added + count, len(images)))])
        n_added = min(n_added + count, len(images))
        step = stream.look()
        looked |= {one.key: one.outputs for one in step.looked}
        failed += [key for key, _ in step.failed]
        assert len(stream.keys) == len(stream) == n_added - len(looked) - len(failed)
    while len(stream):
        looked |= {one.key: one.outputs for one in stream.look().looked}
    return looked, failed


def look_alone(plan: Plan, image: Array) -> Array:
    ((_, preds, _),) = Looking(plan, image[None]).groups()
    outputs: Array = preds.probabilities[0]
    return outputs


@settings(max_examples=100)
@given(arrivals=st.lists(st.integers(0, 6), max_size=8), members=st.integers(1, 2), rule=st.fixed_dictionaries(RULES))
def test_looks_of_a_stream_are_those_of_a_reference(arrivals: list[int], members: int, rule: dict[str, Any]) -> None:
    counting, classifiers, classifier = load_members(members)
    policy, images = make_adaptive_rule(**rule), make_colors(rule["seed"], 12)
    plan = compile_plan(make_policy(classifier, rule=policy), classifier)
    looked, _ = run_stream(LookStream(plan), images, arrivals)
    assert [sum(function.sizes) for function in counting] == [sum(map(len, looked.values()))] * members
    for key, image in enumerate(images):
        assert len(looked[key]) == look_slowly(classifiers, image, policy).looks
        found = plan.make_predictions(looked[key][None]).probabilities[0]
        np.testing.assert_array_equal(found, look_alone(plan, image))


def test_open_images_share_and_fill_batches_which_are_smaller_without_memory() -> None:
    counting = count_colors()
    stream: LookStream[int] = LookStream(make_plan(make_adaptive_rule(1), counting))
    images, n_waiting = make_colors(1, 40), []
    for start in range(0, 40, 10):
        stream.add([(key, images[key][None]) for key in range(start, start + 10)])
        n_waiting.append(len(stream))
        stream.look()
    assert max(n_waiting) > 10, "some images need several looks"
    assert counting.sizes == n_waiting
    counting, size = count_colors(), 16
    found = look_together(load_classifier(counting, name="colors"), make_colors(0, 100), make_adaptive_rule(), size)
    rounds = [sum(one.looks >= looks for one in found) for looks in range(1, 6)]
    assert rounds[2] > size
    expected = [[size] * (count // size) + [count % size] * (count % size > 0) for count in rounds]
    assert counting.sizes == [size for one in expected for size in one]
    whole, small = (
        look_together(load_classifier(function, name="colors"), make_colors(0, 50), make_adaptive_rule(), 64)
        for function in (count_colors(), count_colors(largest_batch=5))
    )
    assert small == whole


def test_without_a_schedule_a_step_takes_all_looks_and_with_one_shapes_may_differ() -> None:
    plan, images = make_plan(Policy(threshold=0.5, method="mean"), count_colors()), make_colors(2, 7)
    looked, failed = run_stream(LookStream(plan), images, [4, 3])
    assert not failed
    assert {len(outputs) for outputs in looked.values()} == {len(plan.views)}
    ((_, preds, _),) = Looking(plan, images).groups()
    np.testing.assert_array_equal(np.stack([looked[key] for key in range(7)]), preds.probabilities)
    plan = make_plan(make_adaptive_rule(3), count_colors())
    shapes = [image[:rows] for image, rows in zip(make_colors(3, 12), [5, 4, 3] * 4, strict=True)]
    looked, _ = run_stream(LookStream(plan), shapes, [12])
    assert [len(looked[key]) for key in range(12)] == [len(look_alone(plan, image)) for image in shapes]


@pytest.mark.parametrize("rule", [Policy(threshold=0.5, method="mean"), make_adaptive_rule(4)], ids=["all", "adaptive"])
def test_failure_of_an_image_does_not_affect_the_others(rule: Policy) -> None:
    images, counting = make_colors(4, 8), count_colors()
    images[3] = 255

    def fail(batch: Any) -> Any:
        if (batch == 255).all(axis=(1, 2, 3)).any():
            raise ValueError("a classifier may raise anything")
        return counting(batch)

    expected, _ = run_stream(LookStream(make_plan(rule, count_colors())), np.delete(images, 3, axis=0), [7])
    looked, failed = run_stream(LookStream(make_plan(rule, fail)), images, [2, 2, 2, 2])
    assert failed == [3]
    for key, outputs in looked.items():
        np.testing.assert_array_equal(outputs, expected[key - (key > 3)])


class OutOfMemory(Plan):
    """Has memory for the predictions of one image."""

    def make_predictions(self, outputs: Any, *others: Any) -> Any:
        if len(outputs) > 1:
            raise MemoryError
        return super().make_predictions(outputs, *others)


def test_a_step_that_fails_after_its_looks_takes_them_again() -> None:
    plan, images = make_plan(make_adaptive_rule(5), count_colors()), make_colors(5, 10)
    expected, _ = run_stream(LookStream(plan), images, [10])
    looked, failed = run_stream(LookStream(OutOfMemory(plan.policy, plan.resolved)), images, [10])
    assert not failed
    for key, outputs in looked.items():
        np.testing.assert_array_equal(outputs, expected[key])
