"""Adaptive decisions are certified on images that did not fit the schedule, and seldom differ from all looks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from secondlook.errors import DecisionError
from secondlook.estimators import compile_method, tuning_positions
from secondlook.policies import (
    Frontier,
    Policy,
    Schedule,
    certify,
    certify_confidence,
    fit_schedule,
    read_policy,
    threshold_for,
)
from secondlook.policies.certification import ScoredImages, bound_differing
from secondlook.predictions import ClassifierRecord, Predictions
from tests.policies.adaptive_world import VIEWS, make_world
from tests.policy_maker import attach

RISK, DELTA = 0.05, 0.05
CLASSIFIER = ClassifierRecord(name="tiny", digest="0" * 64, output="logits", preprocessing={})


@pytest.fixture(scope="module")
def preds() -> Predictions:
    return make_world(3000)


@pytest.fixture(scope="module")
def judged(preds: Predictions) -> Predictions:
    return preds.select(images=np.delete(np.arange(preds.n_images), tuning_positions(preds.n_images)))


@pytest.fixture(scope="module")
def rule(preds: Predictions) -> Policy:
    return certify(preds, risk=RISK, delta=DELTA, adaptive=True)


def schedule_of(rule: Policy) -> Schedule:
    assert rule.schedule is not None
    return rule.schedule


def test_the_nested_confidence_is_certified_on_the_other_images(rule: Policy, judged: Predictions) -> None:
    schedule = schedule_of(rule)
    running = compile_method("blend").running(judged.select(views=list(schedule.views)))
    expected = certify_confidence(judged.correct(), schedule.confidence(running), risk=RISK, delta=DELTA)
    assert rule.threshold == expected.threshold
    assert rule.guarantee == expected.guarantee
    assert rule.calibration is not None
    assert rule.calibration.images == judged.n_images
    assert rule.calibration.tuning == schedule.images == 750


def test_counts_are_those_of_the_decisions(rule: Policy, judged: Predictions) -> None:
    looks, confidence, predicted = rule.look(judged)
    accepted = rule.accept(confidence, method=rule.method)
    counts = rule.calibration
    assert counts is not None
    assert counts.accepted == accepted.sum()
    assert counts.errors == np.sum(accepted & ~judged.correct())
    assert counts.mean_looks == looks.mean()
    full = compile_method("blend").running(judged.select(views=list(schedule_of(rule).views)))[:, -1]
    assert counts.differing == np.sum(accepted != (full >= rule.threshold))
    np.testing.assert_array_equal(predicted, judged.predicted())
    np.testing.assert_array_equal(rule.confidence(judged), confidence)


def test_few_looks_accept_nearly_as_many(preds: Predictions, rule: Policy) -> None:
    everything = certify(preds, risk=RISK, delta=DELTA, tuning=tuning_positions(preds.n_images))
    assert rule.calibration is not None
    assert rule.calibration.mean_looks is not None
    assert rule.calibration.mean_looks < 3
    assert rule.coverage > everything.coverage - 0.02
    assert everything.schedule is None
    assert everything.calibration is not None
    assert everything.calibration.mean_looks is None


def test_given_tuning_images_fit_the_schedule(preds: Predictions) -> None:
    apart = np.arange(400)
    rule = certify(preds, risk=RISK, delta=DELTA, adaptive=True, tuning=apart, tolerance=0.03, max_looks=4)
    schedule = schedule_of(rule)
    assert (schedule.images, schedule.tolerance, schedule.max_looks) == (400, 0.03, 4)
    planned = rule.model_copy(update={"threshold": schedule.threshold, "schedule": None})
    assert schedule == fit_schedule(preds.select(images=apart), planned, tolerance=0.03, max_looks=4)
    assert rule.calibration is not None
    assert rule.calibration.images == 2600


def test_labels_of_certified_images_do_not_change_the_schedule(preds: Predictions, rule: Policy) -> None:
    labels = np.array(preds.labels)
    others = np.delete(np.arange(preds.n_images), tuning_positions(preds.n_images))
    labels[others] = (labels[others] + 1) % 5
    changed = Predictions(logits=preds.logits, views=VIEWS, labels=labels)
    frontier = Frontier.compute(changed, risk=RISK, delta=DELTA)
    assert frontier.schedule == rule.schedule
    assert not frontier.policy.certified


def test_given_schedule_is_certified_on_all_images(preds: Predictions) -> None:
    schedule = fit_schedule(make_world(500, seed=9), Policy(threshold=0.9, method="blend"))
    rule = certify(preds, risk=RISK, delta=DELTA, adaptive=schedule)
    assert rule.schedule == schedule
    assert rule.calibration is not None
    assert (rule.calibration.images, rule.calibration.tuning) == (3000, 0)


def test_schedule_of_other_views_is_refused(preds: Predictions, rule: Policy) -> None:
    schedule = schedule_of(rule)
    with pytest.raises(DecisionError, match=schedule.views[1]):
        certify(preds.select(views=["identity", *schedule.views[2:]]), risk=RISK, adaptive=schedule)
    short = schedule.model_copy(update={name: getattr(schedule, name)[:2] for name in ("views", "changes", "spreads")})
    with pytest.raises(DecisionError, match="6 views"):
        certify(preds.select(views=list(schedule.views[:3])), risk=RISK, adaptive=short)
    with pytest.raises(DecisionError, match=schedule.views[1]):
        rule.look(preds.select(views=["identity", schedule.views[2]]))


def test_schedule_of_another_method_is_refused(preds: Predictions, rule: Policy) -> None:
    with pytest.raises(DecisionError, match="'mean'"):
        certify(preds, "mean", risk=RISK, adaptive=schedule_of(rule))


@pytest.mark.parametrize("adaptive", [True, "given"])
def test_a_method_that_is_no_mean_over_views_is_refused(preds: Predictions, rule: Policy, adaptive: Any) -> None:
    with pytest.raises(DecisionError, match="'msr'"):
        certify(preds, "msr", risk=RISK, adaptive=schedule_of(rule) if adaptive == "given" else True)


@pytest.mark.parametrize("adaptive", ["yes", 1, None, np.True_])
def test_adaptive_is_true_false_or_a_schedule(preds: Predictions, adaptive: Any) -> None:
    with pytest.raises(DecisionError, match="adaptive="):
        certify(preds, risk=RISK, adaptive=adaptive)


def test_several_methods_have_a_schedule_each(preds: Predictions) -> None:
    rule = certify(preds, ["mean", "blend"], risk=RISK, delta=DELTA, adaptive=True)
    assert schedule_of(rule).method == rule.method
    alone = certify(preds, rule.method, risk=RISK, delta=DELTA / 2, adaptive=True)
    assert rule.threshold == alone.threshold


def test_fitted_method_and_schedule_share_the_tuning_images(preds: Predictions) -> None:
    rule = certify(preds, "learned", risk=RISK, delta=DELTA, adaptive=True)
    assert schedule_of(rule).images == 750
    assert rule.calibration is not None
    assert rule.calibration.tuning == 750


def test_ensembles_can_be_adaptive() -> None:
    preds = make_world(1500, members=3)
    rule = certify(preds, risk=RISK, delta=DELTA, adaptive=True)
    assert rule.certified
    assert rule.calibration is not None
    assert (rule.calibration.mean_looks or 9) < 3


def test_nothing_certified_has_no_schedule(preds: Predictions) -> None:
    rule = certify(preds, risk=1e-5, adaptive=True)
    assert not rule.certified
    assert rule.schedule is None
    assert rule.shortfall is not None


@pytest.mark.parametrize("top_k", [1, 2])
def test_classes_from_the_views_so_far_count_as_correct_only_if_always_right(
    preds: Predictions, judged: Predictions, top_k: int
) -> None:
    rule = certify(preds, risk=RISK, delta=DELTA, adaptive=True, predict_from="views", top_k=top_k)
    looks, confidence, predicted = rule.look(judged)
    assert predicted.shape == ((judged.n_images,) if top_k == 1 else (judged.n_images, top_k))
    for image in range(0, judged.n_images, 97):
        seen = judged.select(views=list(schedule_of(rule).views[: looks[image]]), images=[image])
        np.testing.assert_array_equal(predicted[image], seen.predicted("views", top_k)[0])
    correct = (predicted.reshape(-1, top_k) == judged.labels[:, None]).any(axis=1)
    accepted = rule.accept(confidence, method=rule.method)
    assert rule.calibration is not None
    assert rule.calibration.errors is not None
    assert rule.calibration.accepted == accepted.sum()
    assert rule.calibration.errors >= np.sum(accepted & ~correct)
    final = judged.predicted("views", top_k).reshape(-1, top_k)
    compiled = compile_method("blend", predict_from="views", top_k=top_k)
    full = compiled.running(judged.select(views=list(schedule_of(rule).views)))[:, -1]
    other_class = (predicted.reshape(-1, top_k) != final).any(axis=1)
    assert rule.calibration.differing == np.sum((accepted != (full >= rule.threshold)) | (accepted & other_class))


def test_no_threshold_accepts_an_error_that_counts_as_correct(judged: Predictions) -> None:
    settings = Policy(threshold=0.9, method="blend", predict_from="views")
    schedule = fit_schedule(make_world(300, seed=6), settings, tolerance=0.1)
    correct = ScoredImages("blend", settings, judged, 0, np.empty(0)).adapt(schedule).correct()
    assert np.mean(correct) < np.mean(judged.correct("views"))
    for threshold in [0.1, 0.3, 0.5, 0.7, 0.9, 0.99]:
        _, confidence, predicted = settings.model_copy(update={"threshold": threshold, "schedule": schedule}).look(
            judged
        )
        is_error = (confidence >= threshold) & (predicted != judged.labels)
        assert not (is_error & correct).any()


def test_a_coverage_without_labels_can_be_adaptive() -> None:
    preds = make_world(1000, labels=False)
    rule = threshold_for(preds, coverage=0.7, adaptive=True)
    judged = preds.select(images=np.delete(np.arange(1000), tuning_positions(1000)))
    looks, confidence, _ = rule.look(judged)
    assert rule.accept(confidence, method=rule.method).mean() == rule.coverage == pytest.approx(0.7, abs=0.002)
    assert rule.calibration is not None
    assert rule.calibration.mean_looks == looks.mean()
    assert rule.calibration.errors is None


@pytest.mark.parametrize(("differing", "images"), [(0, 50), (3, 400), (120, 9000), (48, 49)])
def test_bound_is_exact_for_each_image_whose_confidence_may_be_the_threshold(differing: int, images: int) -> None:
    bound = bound_differing(differing, images, 0.01)
    if bound < 1:
        assert binom.cdf(differing, images - 1, bound) == pytest.approx(0.01 / images, rel=1e-6)
    assert bound >= differing / (images - 1)


def test_guarantee_and_bound_are_broken_at_most_as_often_as_stated() -> None:
    world = make_world(20_000, seed=3)
    delta, broken, beyond = 0.2, 0, 0
    schedule = fit_schedule(make_world(300, seed=4), Policy(threshold=0.9, method="blend"), tolerance=0.03)
    running = compile_method("blend").running(world.select(views=list(schedule.views)))
    nested, full, correct = schedule.confidence(running), running[:, -1], world.correct()
    generator = np.random.default_rng(5)
    for _ in range(300):
        drawn = generator.integers(0, len(correct), 600)
        rule = certify_confidence(correct[drawn], nested[drawn], risk=0.06, delta=delta)
        accepted = nested >= rule.threshold
        broken += bool(accepted.any() and np.mean(~correct[accepted]) > 0.06)
        counted = np.sum((nested[drawn] >= rule.threshold) != (full[drawn] >= rule.threshold))
        beyond += bool(np.mean(accepted != (full >= rule.threshold)) > bound_differing(int(counted), 600, delta))
    assert 0 < broken <= binom.ppf(0.999, 300, delta)
    assert beyond <= binom.ppf(0.999, 300, delta)


def test_frontier_goes_from_one_look_to_all(preds: Predictions, rule: Policy) -> None:
    frontier = Frontier.compute(preds, risk=RISK, delta=DELTA)
    assert frontier.policy.threshold == rule.threshold
    assert frontier.schedule == rule.schedule
    assert frontier.points[0].looks == 1.0
    assert [point.looks for point in frontier.points] == sorted(point.looks for point in frontier.points)
    assert frontier.points[-1].coverage == pytest.approx(frontier.all_looks.coverage, abs=0.005)
    (chosen,) = (point for point in frontier.points if point.margin == schedule_of(rule).margin)
    assert rule.calibration is not None
    assert chosen.coverage == rule.coverage
    assert chosen.looks == rule.calibration.mean_looks
    everything = certify(preds, risk=RISK, delta=DELTA, tuning=tuning_positions(preds.n_images))
    assert frontier.all_looks.coverage == everything.coverage


def test_frontier_without_a_guarantee_has_the_looks_of_the_tuning_images(preds: Predictions) -> None:
    frontier = Frontier.compute(preds, risk=1e-5)
    assert {point.coverage for point in frontier.points} == {0.0}
    assert [point.looks for point in frontier.points] == [point.looks for point in frontier.schedule.frontier]


def test_policy_stores_the_schedule(rule: Policy, judged: Predictions, tmp_path: Path) -> None:
    schedule = schedule_of(rule)
    policy = attach(rule, classifier=CLASSIFIER, views=schedule.views)
    policy.save(tmp_path / "policy.json")
    loaded = read_policy(tmp_path / "policy.json")
    assert loaded.decides_like(policy)
    assert loaded.schedule == rule.schedule
    np.testing.assert_array_equal(loaded.confidence(judged), rule.confidence(judged))
    assert str(schedule.make_table(rule.threshold)) in str(loaded)


def test_policy_with_other_views_or_method_than_its_schedule_is_refused(rule: Policy) -> None:
    schedule = schedule_of(rule)
    with pytest.raises(DecisionError, match="order of looks"):
        attach(rule, classifier=CLASSIFIER, views=VIEWS)
    with pytest.raises(DecisionError, match="'mean'"):
        attach(rule.model_copy(update={"method": "mean"}), classifier=CLASSIFIER, views=schedule.views)


def test_rule_says_how_often_it_looks(rule: Policy) -> None:
    assert rule.calibration is not None
    text = str(rule)
    assert f"{rule.calibration.mean_looks:.2f}" in text
    assert f"{rule.calibration.differing} of 2,250" in text
    assert "95 % confidence" in text
    assert "reject below" in text
