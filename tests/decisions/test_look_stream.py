"""A stream of looks: the looks at every image are those it has alone, whenever it comes and with whichever others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import Looking, LookStream, Plan
from secondlook.decisions.policy_classifier import ResolvedClassifier
from secondlook.policies import Policy
from tests.decisions.test_looking import Counting, look_slowly, make_images
from tests.policy_maker import attach

MakeRule = Callable[..., Policy]
VIEWS = ("identity", "hflip", "shift:1,0")


def make_decider(rule: Policy, classifier: Classifier) -> Plan:
    policy = attach(rule, classifier=classifier, views=VIEWS if rule.schedule is None else rule.schedule.views)
    return Plan(policy, ResolvedClassifier(classifier, None))


def run_stream(stream: LookStream[int], images: list[Array], arrivals: list[int]) -> tuple[dict[int, Array], list[int]]:
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


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    arrivals=st.lists(st.integers(0, 6), max_size=8),
    max_looks=st.integers(1, 5),
    predict_from=st.sampled_from(["image", "views"]),
    top_k=st.sampled_from([1, 2]),
    members=st.integers(1, 2),
)
def test_looks_are_those_of_the_slow_reference(
    make_adaptive_rule: MakeRule,
    seed: int,
    arrivals: list[int],
    max_looks: int,
    predict_from: str,
    top_k: int,
    members: int,
) -> None:
    counting = [Counting(0.05), Counting(0.03)][:members]
    classifiers = [load_classifier(function, name=f"{number}") for number, function in enumerate(counting)]
    classifier = Ensemble(classifiers) if members > 1 else classifiers[0]
    rule = make_adaptive_rule(seed, max_looks, predict_from=predict_from, top_k=top_k)
    images = list(make_images(seed, 12))
    decider = make_decider(rule, classifier)
    looked, _ = run_stream(LookStream(decider), images, arrivals)
    assert [function.images for function in counting] == [sum(map(len, looked.values()))] * members
    for key, image in enumerate(images):
        assert len(looked[key]) == look_slowly(classifiers, image, rule).looks
        ((_, preds, _),) = Looking(decider, image[None]).groups()
        alone = decider.make_predictions(looked[key][None])
        np.testing.assert_array_equal(alone.probabilities, preds.probabilities)


def test_images_of_a_step_share_a_batch(make_adaptive_rule: MakeRule) -> None:
    counting = Counting()
    decider = make_decider(make_adaptive_rule(1, 5), load_classifier(counting, name="colors"))
    stream: LookStream[int] = LookStream(decider)
    images, n_steps, n_waiting = make_images(1, 40), 0, []
    for start in range(0, 40, 10):
        stream.add([(key, images[key][None]) for key in range(start, start + 10)])
        n_waiting.append(len(stream))
        stream.look()
        n_steps += 1
    assert max(n_waiting) > 10, "some images need several looks"
    assert list(map(len, counting.batches)) == n_waiting
    assert len(counting.batches) == n_steps


def test_without_a_schedule_a_step_takes_all_looks() -> None:
    counting = Counting()
    decider = make_decider(Policy(threshold=0.5, method="mean"), load_classifier(counting, name="colors"))
    images = list(make_images(2, 7))
    looked, failed = run_stream(LookStream(decider), images, [4, 3])
    assert not failed
    assert {len(outputs) for outputs in looked.values()} == {len(VIEWS)}
    ((_, preds, _),) = Looking(decider, np.stack(images)).groups()
    np.testing.assert_array_equal(np.stack([looked[key] for key in range(7)]), preds.probabilities)


def test_images_of_several_shapes_are_looked_at(make_adaptive_rule: MakeRule) -> None:
    decider = make_decider(make_adaptive_rule(3, 5), load_classifier(Counting(), name="colors"))
    images = [image[:rows] for image, rows in zip(make_images(3, 12), [5, 4, 3] * 4, strict=True)]
    looked, _ = run_stream(LookStream(decider), images, [12])
    for key, image in enumerate(images):
        ((_, preds, _),) = Looking(decider, image[None]).groups()
        assert len(looked[key]) == preds.n_views


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_an_image_that_fails_does_not_spoil_the_others(make_adaptive_rule: MakeRule, is_adaptive: bool) -> None:
    images = make_images(4, 8)
    images[3] = 255
    counting = Counting()

    def fail(batch: Any) -> Any:
        if (batch == 255).all(axis=(1, 2, 3)).any():
            raise ValueError("a classifier may raise anything")
        return counting(batch)

    rule = make_adaptive_rule(4, 5) if is_adaptive else Policy(threshold=0.5, method="mean")
    healthy = make_decider(rule, load_classifier(Counting(), name="colors"))
    expected, _ = run_stream(LookStream(healthy), [image for key, image in enumerate(images) if key != 3], [7])
    looked, failed = run_stream(
        LookStream(make_decider(rule, load_classifier(fail, name="colors"))), list(images), [2, 2, 2, 2]
    )
    assert failed == [3]
    for key, outputs in looked.items():
        np.testing.assert_array_equal(outputs, expected[key - (key > 3)])


def test_a_step_that_fails_after_its_looks_takes_them_again(
    make_adaptive_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = make_decider(make_adaptive_rule(5, 5), load_classifier(Counting(), name="colors"))
    images = list(make_images(5, 10))
    expected, _ = run_stream(LookStream(decider), images, [10])
    make_predictions = decider.make_predictions

    def fail(outputs: Any, *others: Any) -> Any:
        if len(outputs) > 1:
            raise MemoryError
        return make_predictions(outputs, *others)

    monkeypatch.setattr(decider, "make_predictions", fail)
    looked, failed = run_stream(LookStream(decider), images, [10])
    assert not failed
    for key, outputs in looked.items():
        np.testing.assert_array_equal(outputs, expected[key])
