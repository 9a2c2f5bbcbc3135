"""A limit of familiarity: chosen on tuning images, certified on others, bounded by examples, stored and verified.

That the guarantee and the bound hold in simulations is in tests/benchmarks/test_guarantee.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import DecisionError, SecondLookError
from secondlook.estimators import confidence, fit_method, tuning_positions
from secondlook.policies import (
    Frontier,
    LabelingPlan,
    Policy,
    PolicyWarning,
    certify,
    certify_confidence,
    read_policy,
    threshold_for,
)
from secondlook.predictions import Predictions
from tests.policies.conftest import known, make_world, relabel

RISK, DELTA, BUDGET = 0.05, 0.1, 0.1
OPTIONS: dict[str, Any] = {"risk": RISK, "delta": DELTA, "unknown_budget": BUDGET}


def make_unknown(n_images: int = 300, seed: int = 1) -> Predictions:
    """Return predictions for images that are none of the classes of `make_world`; some are confident."""
    generator = np.random.default_rng(seed)
    spread = generator.gamma(2.0, 1.5, (n_images, 1, 1))
    logits = spread * generator.normal(size=(n_images, 1, 5)) + generator.normal(size=(n_images, 6, 5))
    return Predictions(logits=logits.astype(np.float32), views=make_world(1).views)


@pytest.fixture(scope="module")
def unknown() -> Predictions:
    return make_unknown()


@pytest.fixture(scope="module")
def rule(world: Predictions, unknown: Predictions) -> Policy:
    return certify(world, "mean", unknown=unknown, **OPTIONS)


def split_world(preds: Predictions) -> tuple[Predictions, Predictions]:
    """Return the tuning images and the others."""
    apart = tuning_positions(preds.n_images)
    return preds.select(images=apart), preds.select(images=np.setdiff1d(np.arange(preds.n_images), apart))


def measure(rule: Policy, preds: Predictions) -> tuple[Float64Array, BoolArray]:
    """Return the familiarity, and whether it reaches the limit."""
    limit = known(rule.familiarity)
    values = limit.compute(preds if rule.schedule is None else preds.select(views="identity"))
    return values, values >= limit.limit


def choose_slowly(rule: Policy, tuning: Predictions, examples: Predictions | None) -> float:
    """Return the limit by its definition, one candidate after another."""
    values, correct, limit = rule.confidence(tuning), tuning.correct(), known(rule.familiarity)
    passing = [one for one in values if np.mean(~correct[values >= one]) <= RISK]
    threshold = min(passing, default=np.sort(values)[-(-len(values) // 2)])
    own = np.sort(measure(rule, tuning)[0][values >= threshold])
    candidates = own[: min(int(limit.budget * len(values)), (len(own) - 1) // 2) + 1]
    if examples is None:
        return float(candidates[-1])
    others = measure(rule, examples)[0][rule.confidence(examples) >= threshold]
    gains = [np.sum(others < one) / max(len(others), 1) - np.mean(own < one) for one in candidates]
    return float(candidates[int(np.argmax(gains))])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_images=st.integers(60, 700),
    budget=st.floats(0.01, 0.6),
    n_examples=st.sampled_from([0, 20, 61]),
    method=st.sampled_from(["msr", "mean", "blend"]),
)
def test_certified_rule_is_that_of_a_slow_reference(
    seed: int, n_images: int, budget: float, n_examples: int, method: str
) -> None:
    preds = make_world(n_images, seed=seed)
    examples = make_unknown(n_examples, seed) if n_examples else None
    rule = certify(preds, method, risk=RISK, delta=DELTA, unknown=examples, unknown_budget=budget)
    tuning, judged = split_world(preds)
    choosing, judging = None, None
    if examples is not None:
        first, second = np.array_split(np.random.default_rng(0).permutation(n_examples), 2)
        choosing, judging = (examples.select(images=np.sort(half)) for half in (first, second))
    limit = known(rule.familiarity)
    assert limit.limit == choose_slowly(rule, tuning, choosing)
    assert limit.given_up <= limit.budget * limit.images
    _, familiar = measure(rule, judged)
    correct, values, counts = judged.correct(), confidence(judged, method), known(rule.calibration)
    assert rule.threshold == certify_confidence(correct[familiar], values[familiar], risk=RISK, delta=DELTA).threshold
    accept = familiar & (values >= rule.threshold)
    assert (counts.images, counts.accepted, counts.errors) == (len(judged), accept.sum(), (accept & ~correct).sum())
    np.testing.assert_array_equal(rule.accept(judged), accept)
    assert not rule.certified or binom.cdf(known(counts.errors), counts.accepted, RISK) <= DELTA
    if judging is None or not rule.certified:
        assert rule.unknown is None
        return
    found = int(rule.accept(judging).sum())
    bound = float(beta.ppf(1 - 0.05, found + 1, len(judging) - found)) if found < len(judging) else 1.0
    assert (known(rule.unknown).images, known(rule.unknown).accepted) == (len(judging), found)
    assert known(rule.unknown).bound == pytest.approx(bound)


def test_certified_images_do_not_choose_the_limit(world: Predictions, unknown: Predictions, rule: Policy) -> None:
    others = np.setdiff1d(np.arange(len(world)), tuning_positions(len(world)))
    relabeled = certify(relabel(world, others[::3]), "mean", unknown=unknown, **OPTIONS)
    assert relabeled.familiarity == rule.familiarity
    some = np.sort(np.append(tuning_positions(len(world)), others[:500]))
    apart = np.isin(some, tuning_positions(len(world)))
    fewer = certify(world.select(images=some), "mean", unknown=unknown, tuning=apart, **OPTIONS)
    assert fewer.familiarity == rule.familiarity
    assert known(fewer.calibration).images == 500


def test_familiarity_rejects_unknown_images_and_few_known_ones(
    world: Predictions, unknown: Predictions, rule: Policy
) -> None:
    plain = certify(world, "mean", risk=RISK, delta=DELTA, tuning=tuning_positions(len(world)))
    fresh = make_unknown(3000, seed=2)
    assert rule.accept(fresh).mean() < 0.9 * plain.accept(fresh).mean()
    assert rule.coverage > plain.coverage - 2 * BUDGET
    assert known(rule.unknown).bound >= rule.accept(fresh).mean()
    assert (plain.familiarity, plain.unknown) == (None, None)
    assert known(certify(world, "mean", unknown=unknown, risk=RISK).familiarity).budget == 0.02
    for part in (f"familiarity >= {known(rule.familiarity).limit:.6g}", str(rule.familiarity), str(rule.unknown)):
        assert part in str(rule)


def test_confident_examples_that_do_not_exist_cost_nothing(world: Predictions) -> None:
    unsure = Predictions(logits=np.zeros((40, 6, 5), np.float32), views=world.views)
    limit = known(certify(world, "mean", unknown=unsure, **OPTIONS).familiarity)
    assert limit.given_up == 0


def test_every_method_has_its_limit_and_delta_is_shared(world: Predictions, unknown: Predictions) -> None:
    both = certify(world, ["msr", "mean"], unknown=unknown, **OPTIONS)
    halved = {**OPTIONS, "delta": DELTA / 2}
    alone = [certify(world, method, unknown=unknown, **halved) for method in ("msr", "mean")]
    best = max(alone, key=lambda one: one.coverage)
    assert (both.method, both.threshold, both.familiarity) == (best.method, best.threshold, best.familiarity)
    assert (both.unknown, both.calibration) == (best.unknown, best.calibration)


def test_fitted_method_and_limit_share_the_tuning_images(world: Predictions, unknown: Predictions) -> None:
    tuning, judged = split_world(world)
    learned = certify(world, "learned", unknown=unknown, **OPTIONS)
    assert learned.options == fit_method(tuning, "learned")
    assert learned.accept(judged).sum() == known(learned.calibration).accepted


@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_adaptive_rule_looks_once_at_unfamiliar_images(
    world: Predictions, unknown: Predictions, predict_from: Any
) -> None:
    rule = certify(world, unknown=unknown, adaptive=True, predict_from=predict_from, **OPTIONS)
    schedule, (_, judged) = known(rule.schedule), split_world(world)
    _, familiar = measure(rule, judged)
    running = rule.compiled.running(judged.select(views=list(schedule.views)))
    nested = schedule.confidence(running)
    looked, accept, counts = rule.look(judged), rule.accept(judged), known(rule.calibration)
    np.testing.assert_array_equal(accept, familiar & (nested >= rule.threshold))
    np.testing.assert_array_equal(looked.looks[familiar], schedule.look(running, rule.threshold)[0][familiar])
    assert set(looked.looks[~familiar]) == {1}
    assert (looked.looks[~familiar] < schedule.look(running, rule.threshold)[0][~familiar]).any()
    assert (counts.accepted, counts.mean_looks) == (accept.sum(), looked.looks.mean())
    wrong = accept & (looked.predicted != judged.labels)
    assert wrong.sum() <= known(counts.errors)
    final = familiar & (rule.compiled.confidence(judged.select(views=list(schedule.views))) >= rule.threshold)
    if predict_from == "image" and schedule.max_looks == 6:
        assert counts.differing == np.sum(accept != final)


def test_every_class_has_a_guarantee_among_familiar_images(world: Predictions, unknown: Predictions) -> None:
    rule = certify(world, "mean", groups="class", unknown=unknown, **{**OPTIONS, "risk": 0.1})
    _, judged = split_world(world)
    _, familiar = measure(rule, judged)
    values, predicted, accept = confidence(judged, "mean"), judged.predicted(), rule.accept(judged)
    for index, group in enumerate(rule.groups):
        own = predicted == index
        np.testing.assert_array_equal(accept[own], (familiar & (values >= group.threshold))[own])
        assert (group.images, group.accepted) == (own.sum(), accept[own].sum())
    assert known(rule.calibration).accepted == accept.sum()
    assert known(rule.calibration).images == len(judged)


@pytest.mark.parametrize("groups", [None, "class"])
def test_correct_copies_are_left_out_and_wrong_ones_count(
    world: Predictions, unknown: Predictions, groups: Any
) -> None:
    copies = world.ids[: len(world) // 3]
    options = {**OPTIONS, "risk": 0.1, "groups": groups}
    rule = certify(world, "mean", unknown=unknown, duplicates=copies, **options)
    (_, judged), counts = split_world(world), known(rule.calibration)
    left_out = np.isin(judged.ids, copies) & judged.correct()
    assert (counts.duplicates, counts.images) == (left_out.sum(), len(judged) - left_out.sum())
    accept = rule.accept(judged)
    assert counts.accepted == np.sum(accept & ~left_out)
    assert counts.errors == np.sum(accept & ~judged.correct())
    assert sum(group.images for group in rule.groups) in (0, counts.images)


def test_file_keeps_limit_and_bound_and_a_changed_one_loses_the_bound(rule: Policy, tmp_path: Path) -> None:
    path, (_, fresh) = tmp_path / "policy.json", split_world(make_world(500, seed=3))
    rule.save(path)
    loaded = read_policy(path)
    assert loaded.decides_like(rule)
    assert (loaded.familiarity, loaded.unknown) == (rule.familiarity, rule.unknown)
    np.testing.assert_array_equal(loaded.accept(fresh), rule.accept(fresh))
    content = json.loads(path.read_text())
    for part, value in (("familiarity", {**content["familiarity"], "limit": 0.0}), ("familiarity", None)):
        path.write_text(json.dumps({**content, part: value}))
        with pytest.warns(PolicyWarning):
            changed = read_policy(path)
        assert (changed.certified, changed.unknown, changed.was_changed) == (False, None, True)
    for name, invalid in {"limit": "NaN", "budget": 1.0, "given_up": -1}.items():
        path.write_text(json.dumps({**content, "familiarity": {**content["familiarity"], name: invalid}}))
        with pytest.raises(DecisionError, match=f"familiarity.{name}"):
            read_policy(path)


def test_numbers_without_familiarity_are_refused(rule: Policy, world: Predictions) -> None:
    values = confidence(world, "mean")
    with pytest.raises(DecisionError, match=r"familiarity.*predictions"):
        rule.accept(values, method="mean")
    with pytest.raises(DecisionError, match="familiarity"):
        rule.accept_values(values)
    np.testing.assert_array_equal(rule.accept_values(values, None, measure(rule, world)[0]), rule.accept(world))


def test_reference_has_the_familiarity_of_all_judged_images(rule: Policy) -> None:
    reference = known(rule.reference)
    assert sum(known(reference.familiarity).counts) == reference.images == 2250 * 4 / 5


@pytest.mark.parametrize("budget", [0, 1, -0.1, 1.5, True, "0.1", float("nan"), [0.1]])
def test_budget_is_a_fraction(world: Predictions, budget: Any) -> None:
    with pytest.raises(DecisionError, match="unknown_budget="):
        certify(world, risk=RISK, unknown_budget=budget)


def test_examples_must_match_and_be_enough(world: Predictions, unknown: Predictions) -> None:
    others = {
        "views": unknown.select(views=["identity", "hflip"]),
        "classes": Predictions(logits=unknown.logits[:, :, :4], views=unknown.views),
        "output": Predictions(probabilities=unknown.probabilities, views=unknown.views),
        "19 images": unknown.select(images=np.arange(19)),
    }
    for offending, examples in others.items():
        with pytest.raises(DecisionError, match=f"unknown=.*{offending}") as raised:
            certify(world, risk=RISK, unknown=examples)
        assert "\n" not in str(raised.value)
    with pytest.raises(DecisionError, match="tuning="):
        certify(world, risk=RISK, unknown=unknown, tuning=[])
    with pytest.raises(DecisionError, match=r"unknown=.*groups"):
        certify(world, risk=RISK, unknown=unknown, groups=world.labels)
    tuning = make_world(40)
    sure = Predictions(logits=100 * np.eye(5, dtype=np.float32)[tuning.labels][:, None].repeat(6, 1), views=world.views)
    preds = tuning.concatenate(sure, labels=np.append(tuning.labels, tuning.labels))
    with pytest.raises(DecisionError, match="familiar"):
        certify(preds, risk=RISK, unknown_budget=BUDGET, tuning=np.arange(40, 80))


@pytest.mark.parametrize("function", [threshold_for, Frontier.compute, LabelingPlan])
def test_other_ways_to_choose_a_threshold_have_no_limit(world: Predictions, function: Any) -> None:
    given = {"coverage": 0.5} if function is threshold_for else {"risk": RISK}
    with pytest.raises(SecondLookError, match="'unknown_budget'"):
        function(world, **given, unknown_budget=0.02)
