"""`LabelingPlan`: certifies no more than all labels would, asks for few of them, and continues where it was."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import secondlook as sl
from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import DecisionError
from secondlook.policies import certify_confidence
from tests.policies.conftest import known, make_world
from tests.policies.test_fixed_sequence import POPULATIONS, Population


def make_pool(is_wrong: BoolArray, probability: Float64Array) -> tuple[sl.Predictions, dict[str, int]]:
    """Return predictions of class 0 with these probabilities, and the labels by id: 1 where that is wrong. [N] each"""
    preds = sl.Predictions(probabilities=np.stack([probability, 1 - probability], axis=1)[:, None], views=["identity"])
    return preds, dict(zip(preds.ids, is_wrong.astype(int).tolist(), strict=True))


def draw_pool(population: Population, rng: np.random.Generator, n: int) -> tuple[sl.Predictions, dict[str, int]]:
    correct, confidence = population.draw(rng, n)  # -1 to 0
    return make_pool(~correct, 1 + 0.49 * confidence)


def label_all(plan: sl.LabelingPlan, truth: dict[str, int], count: int = 50) -> sl.LabelingPlan:
    while ids := plan.next_ids(count):
        plan.add({id_: truth[id_] for id_ in ids})
    return plan


def test_labels_of_the_most_confident_images_are_requested_until_the_sequence_fails() -> None:
    preds = make_world(1500, labels=False)
    truth = dict(zip(preds.ids, make_world(1500).labels.tolist(), strict=True))
    plan = sl.LabelingPlan(preds, risk=0.05, delta=0.05)
    confidence = dict(zip(preds.ids, sl.confidence(preds, "blend").tolist(), strict=True))
    values = [confidence[id_] for id_ in plan.ids]
    assert values == sorted(values, reverse=True)
    assert plan.next_ids(7) == plan.ids[:7]
    plan.add({id_: truth[id_] for id_ in plan.ids[:3]})
    assert plan.next_ids(2) == plan.ids[3:5]
    progress = label_all(plan, truth).progress
    assert progress.finished
    assert progress.accepted <= progress.labels + progress.errors + 5
    assert progress.labels < progress.images
    assert progress.labels <= plan.max_labels == 3 * 59  # 59 images without an error pass 5 % at delta 0.05
    assert progress.errors == sum(truth[id_] != preds.predicted()[preds.ids.index(id_)] for id_ in plan.labels)


def test_policy_is_that_of_the_same_test_with_all_labels_up_to_where_labeling_stopped(tmp_path: Path) -> None:
    labeled = make_world(1500)
    truth = dict(zip(labeled.ids, labeled.labels.tolist(), strict=True))
    plan = label_all(sl.LabelingPlan(labeled, risk=0.1, delta=0.05, max_labels=400), truth)
    drawn = np.array([labeled.ids.index(id_) for id_ in plan.ids])
    is_known = np.isin(plan.ids, list(plan.labels))
    reference = certify_confidence(
        labeled.correct()[drawn] & is_known, sl.confidence(labeled, "blend")[drawn], risk=0.1, delta=0.05
    )
    policy = plan.policy
    assert policy.certified
    assert policy.threshold == reference.threshold
    assert known(policy.calibration).labels == len(plan.labels)
    assert known(policy.calibration).tuning == 375
    policy.save(tmp_path / "policy.json")
    loaded = sl.load_policy(tmp_path / "policy.json")
    assert loaded.accept(labeled).tolist() == policy.accept(labeled).tolist()
    assert "images without one count as wrong" in str(loaded)


@given(st.integers(0, 10_000), st.sampled_from(sorted(POPULATIONS)), st.floats(0.03, 0.3), st.data())
@settings(max_examples=40)
def test_any_labels_certify_no_more_than_all_labels(seed: int, name: str, risk: float, data: st.DataObject) -> None:
    preds, truth = draw_pool(POPULATIONS[name], np.random.default_rng(seed), 300)
    plan = sl.LabelingPlan(preds, risk=risk, delta=0.1, max_labels=300)
    assert sorted(plan.ids) == sorted(preds.ids), "all images can be labeled, so all are drawn"
    accepted = 0
    for start in data.draw(st.permutations(range(0, 300, 60))):
        plan.add({id_: truth[id_] for id_ in plan.ids[start : start + 60]})
        assert plan.progress.accepted >= accepted, "a label never takes a certificate back"
        accepted = plan.progress.accepted
    wrong = np.array([truth[id_] == 1 for id_ in preds.ids])
    everything = certify_confidence(~wrong, sl.confidence(preds, "msr"), risk=risk, delta=0.1)
    assert accepted == known(everything.calibration).accepted


@pytest.mark.parametrize("name", ["steep", "flat", "oscillating", "ties"])
def test_guarantee_fails_in_at_most_delta_of_pools(name: str) -> None:
    population, rng, delta, draws = POPULATIONS[name], np.random.default_rng(3), 0.2, 50
    failures = 0
    for draw in range(draws):
        preds, truth = draw_pool(population, rng, 1200)
        plan = label_all(sl.LabelingPlan(preds, risk=0.05, delta=delta, seed=draw), truth, 60)
        if plan.progress.accepted:
            quantile = (1 - plan.policy.threshold) / 0.49
            failures += population.risk(np.array(min(quantile, 1.0))) > 0.05 + 1e-9
    assert failures <= binom.ppf(1 - 1e-4, draws, delta)


def test_number_of_images_does_not_depend_on_the_images_that_are_labeled() -> None:
    preds = make_world(1500, labels=False)
    plan = sl.LabelingPlan(preds, risk=0.05, delta=0.05)
    apart = np.setdiff1d(np.arange(1500), [preds.ids.index(id_) for id_ in plan.ids])
    shuffled = np.array(preds.logits)
    shuffled[[preds.ids.index(id_) for id_ in plan.ids]] *= 0.01
    other = sl.Predictions(logits=shuffled, views=preds.views, ids=preds.ids)
    again = sl.LabelingPlan(other, risk=0.05, delta=0.05)
    assert len(again.ids) == len(plan.ids)
    given_apart = sl.LabelingPlan(preds, risk=0.05, delta=0.05, tuning=apart[:300])
    assert not set(given_apart.ids) & {preds.ids[place] for place in apart[:300]}


def test_without_tuning_images_as_many_images_are_drawn_as_labels_are_planned() -> None:
    preds, truth = draw_pool(POPULATIONS["steep"], np.random.default_rng(0), 3000)
    plan = sl.LabelingPlan(preds, risk=0.1, delta=0.1, max_labels=150, tuning=())
    assert len(plan.ids) == 150
    assert label_all(plan, truth).progress.accepted > 50


def test_the_same_labels_continue_a_plan_in_any_order_and_may_be_corrected() -> None:
    preds, truth = draw_pool(POPULATIONS["steep"], np.random.default_rng(0), 600)
    plan = label_all(sl.LabelingPlan(preds, risk=0.1, delta=0.1), truth, 20)
    again = sl.LabelingPlan(preds, risk=0.1, delta=0.1)
    for id_ in reversed(plan.labels):
        again.add({id_: 1})
    assert again.progress.accepted == 0
    again.add(plan.labels)
    assert again.progress == plan.progress
    assert again.policy.threshold == plan.policy.threshold
    assert sl.LabelingPlan(preds, risk=0.1, delta=0.1, seed=1).ids != plan.ids


def test_image_without_a_label_counts_as_wrong_and_is_not_requested_again() -> None:
    preds, truth = draw_pool(POPULATIONS["steep"], np.random.default_rng(0), 600)
    plan = sl.LabelingPlan(preds, risk=0.1, delta=0.1)
    first = plan.next_ids(1)
    plan.add({first[0]: None})
    assert plan.next_ids(1) == (plan.ids[1],)
    assert (plan.progress.labels, plan.progress.errors) == (1, 1)
    outside = next(id_ for id_ in preds.ids if id_ not in plan.ids)
    plan.add({outside: truth[outside]})
    assert outside not in plan.labels


def test_copies_that_are_errors_count_each_time() -> None:
    quality = np.random.default_rng(0).random(400)
    probability, is_wrong = np.append(0.6 + 0.39 * quality, [0.999] * 40), np.append(quality < 0.1, [True] * 40)
    preds, truth = make_pool(is_wrong, probability)
    copies = preds.ids[401:]
    plan = sl.LabelingPlan(preds, risk=0.05, delta=0.1, duplicates=copies, max_labels=440)
    plan.add(truth)
    assert plan.progress.accepted == 0
    with pytest.raises(DecisionError, match="no threshold is certified yet"):
        _ = plan.policy


def test_underconfident_probabilities_do_not_stop_a_plan_early() -> None:
    coverages = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        quality = rng.random(2000)
        is_wrong = rng.random(2000) < 0.2 * (1 - quality) ** 3
        preds, truth = make_pool(is_wrong, 0.5 + 0.1 * quality)  # the most confident are 60 % sure
        coverages.append(label_all(sl.LabelingPlan(preds, risk=0.05, delta=0.05), truth).progress.coverage)
    assert np.mean(coverages) > 0.5


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"risk": 0.001}, "needed"),
        ({"risk": 0.1, "max_labels": 0}, 0),
        ({"risk": 0.1, "max_labels": 10}, "at least 67"),
        ({"risk": 1.5}, 1.5),
        ({"risk": 0.1, "delta": 0}, 0),
        ({"risk": 0.1, "method": "bootstrap"}, "rank"),
        ({"risk": 0.1, "method": "learned"}, "label"),
    ],
)
def test_impossible_plans_are_rejected(arguments: dict[str, object], value: object) -> None:
    with pytest.raises(sl.SecondLookError, match=str(value)):
        sl.LabelingPlan(make_world(300, labels=False), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [{"nowhere": 1}, {"00000": 5}, {"00000": -1}, {"00000": True}, {"00000": "cat"}])
def test_wrong_labels_are_rejected(labels: dict[str, int]) -> None:
    preds = make_world(300, labels=False)
    plan = sl.LabelingPlan(preds, risk=0.1, delta=0.1, max_labels=300)
    labels = {preds.ids[0] if id_ == "00000" else id_: label for id_, label in labels.items()}
    with pytest.raises(DecisionError):
        plan.add(labels)
    assert not plan.labels
