"""Adaptive decisions are certified on images that did not fit the schedule, and seldom differ from all looks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom

from secondlook.errors import DecisionError
from secondlook.estimators import compile_method, tuning_positions
from secondlook.policies import (
    Frontier,
    Policy,
    certify,
    certify_confidence,
    fit_schedule,
    read_policy,
    threshold_for,
)
from secondlook.predictions import ClassifierRecord, Predictions
from tests.policies.conftest import VIEWS, known, make_schedule, make_world, relabel
from tests.policy_maker import attach

RISK, DELTA = 0.05, 0.05
CLASSIFIER = ClassifierRecord(name="tiny", digest="0" * 64, output="logits", preprocessing={})


@pytest.fixture(scope="module")
def judged(world: Predictions) -> Predictions:
    return world.select(images=np.delete(np.arange(world.n_images), tuning_positions(world.n_images)))


@pytest.fixture(scope="module")
def rule(world: Predictions) -> Policy:
    return certify(world, risk=RISK, delta=DELTA, adaptive=True)


def test_the_nested_confidence_is_certified_on_the_other_images(rule: Policy, judged: Predictions) -> None:
    schedule = known(rule.schedule)
    running = compile_method("blend").running(judged.select(views=list(schedule.views)))
    expected = certify_confidence(judged.correct(), schedule.confidence(running), risk=RISK, delta=DELTA)
    assert rule.threshold == expected.threshold
    assert rule.guarantee == expected.guarantee
    assert known(rule.calibration).images == judged.n_images
    assert known(rule.calibration).tuning == schedule.images == 750


def test_counts_are_those_of_the_decisions(rule: Policy, judged: Predictions) -> None:
    looks, confidence, predicted = rule.look(judged)
    accepted = rule.accept(confidence, method=rule.method)
    counts = known(rule.calibration)
    assert counts.accepted == accepted.sum()
    assert counts.errors == np.sum(accepted & ~judged.correct())
    assert counts.mean_looks == looks.mean()
    full = compile_method("blend").running(judged.select(views=list(known(rule.schedule).views)))[:, -1]
    assert counts.differing == np.sum(accepted != (full >= rule.threshold))
    np.testing.assert_array_equal(predicted, judged.predicted())
    np.testing.assert_array_equal(rule.confidence(judged), confidence)


def test_few_looks_accept_nearly_as_many(world: Predictions, rule: Policy) -> None:
    everything = certify(world, risk=RISK, delta=DELTA, tuning=tuning_positions(world.n_images))
    assert known(known(rule.calibration).mean_looks) < 3
    assert rule.coverage > everything.coverage - 0.02
    assert everything.schedule is None
    assert known(everything.calibration).mean_looks is None


def test_given_tuning_images_fit_the_schedule(world: Predictions) -> None:
    apart = np.arange(400)
    rule = certify(world, risk=RISK, delta=DELTA, adaptive=True, tuning=apart, tolerance=0.03, max_looks=4)
    schedule = known(rule.schedule)
    assert (schedule.images, schedule.tolerance, schedule.max_looks) == (400, 0.03, 4)
    planned = rule.model_copy(update={"threshold": schedule.threshold, "schedule": None})
    assert schedule == fit_schedule(world.select(images=apart), planned, tolerance=0.03, max_looks=4)
    assert known(rule.calibration).images == 2600


def test_labels_of_certified_images_do_not_change_the_schedule(world: Predictions, rule: Policy) -> None:
    others = np.delete(np.arange(world.n_images), tuning_positions(world.n_images))
    frontier = Frontier.compute(relabel(world, others), risk=RISK, delta=DELTA)
    assert frontier.schedule == rule.schedule
    assert not frontier.policy.certified


def test_given_schedule_is_certified_on_all_images(world: Predictions) -> None:
    schedule = fit_schedule(make_world(500, seed=9), Policy(threshold=0.9, method="blend"))
    rule = certify(world, risk=RISK, delta=DELTA, adaptive=schedule)
    assert rule.schedule == schedule
    assert (known(rule.calibration).images, known(rule.calibration).tuning) == (3000, 0)


def test_schedule_of_other_views_is_refused(world: Predictions, rule: Policy) -> None:
    schedule = known(rule.schedule)
    with pytest.raises(DecisionError, match=schedule.views[1]):
        certify(world.select(views=["identity", *schedule.views[2:]]), risk=RISK, adaptive=schedule)
    short = schedule.model_copy(update={name: getattr(schedule, name)[:2] for name in ("views", "changes", "spreads")})
    with pytest.raises(DecisionError, match="6 views"):
        certify(world.select(views=list(schedule.views[:3])), risk=RISK, adaptive=short)
    with pytest.raises(DecisionError, match=schedule.views[1]):
        rule.look(world.select(views=["identity", schedule.views[2]]))


@pytest.mark.parametrize(("method", "is_given"), [("mean", True), ("msr", True), ("msr", False)])
def test_other_method_than_that_of_the_schedule_or_no_mean_over_views_is_refused(
    world: Predictions, rule: Policy, method: str, is_given: bool
) -> None:
    with pytest.raises(DecisionError, match=repr(method)):
        certify(world, method, risk=RISK, adaptive=known(rule.schedule) if is_given else True)


@pytest.mark.parametrize("adaptive", ["yes", 1, None, np.True_])
def test_adaptive_is_true_false_or_a_schedule(world: Predictions, adaptive: Any) -> None:
    with pytest.raises(DecisionError, match="adaptive="):
        certify(world, risk=RISK, adaptive=adaptive)


def test_several_methods_have_a_schedule_each(world: Predictions) -> None:
    rule = certify(world, ["mean", "blend"], risk=RISK, delta=DELTA, adaptive=True)
    assert known(rule.schedule).method == rule.method
    alone = certify(world, rule.method, risk=RISK, delta=DELTA / 2, adaptive=True)
    assert rule.threshold == alone.threshold


def test_fitted_method_and_schedule_share_the_tuning_images(world: Predictions) -> None:
    rule = certify(world, "learned", risk=RISK, delta=DELTA, adaptive=True)
    assert known(rule.schedule).images == 750
    assert known(rule.calibration).tuning == 750


def test_ensembles_can_be_adaptive() -> None:
    rule = certify(make_world(1500, members=3), risk=RISK, delta=DELTA, adaptive=True)
    assert rule.certified
    assert known(known(rule.calibration).mean_looks) < 3


def test_nothing_certified_has_no_schedule(world: Predictions) -> None:
    rule = certify(world, risk=1e-5, adaptive=True)
    assert not rule.certified
    assert rule.schedule is None
    assert rule.shortfall is not None


@pytest.mark.parametrize("top_k", [1, 2])
def test_classes_from_the_views_so_far_count_as_correct_only_if_always_right(
    world: Predictions, judged: Predictions, top_k: int
) -> None:
    rule = certify(world, risk=RISK, delta=DELTA, adaptive=True, predict_from="views", top_k=top_k)
    looks, confidence, predicted = rule.look(judged)
    assert predicted.shape == ((judged.n_images,) if top_k == 1 else (judged.n_images, top_k))
    for image in range(0, judged.n_images, 97):
        seen = judged.select(views=list(known(rule.schedule).views[: looks[image]]), images=[image])
        np.testing.assert_array_equal(predicted[image], seen.predicted("views", top_k)[0])
    correct = (predicted.reshape(-1, top_k) == judged.labels[:, None]).any(axis=1)
    accepted = rule.accept(confidence, method=rule.method)
    counts = known(rule.calibration)
    assert counts.accepted == accepted.sum()
    assert known(counts.errors) >= np.sum(accepted & ~correct)
    final = judged.predicted("views", top_k).reshape(-1, top_k)
    compiled = compile_method("blend", predict_from="views", top_k=top_k)
    full = compiled.running(judged.select(views=list(known(rule.schedule).views)))[:, -1]
    other_class = (predicted.reshape(-1, top_k) != final).any(axis=1)
    assert counts.differing == np.sum((accepted != (full >= rule.threshold)) | (accepted & other_class))


def test_no_threshold_accepts_an_error_that_counts_as_correct(judged: Predictions) -> None:
    some, settings = judged.select(images=np.arange(400)), Policy(threshold=0.9, method="blend", predict_from="views")
    schedule = fit_schedule(make_world(300, seed=6), settings, tolerance=0.1)
    alone = [
        threshold_for(some.select(images=[image]), "blend", coverage=1.0, adaptive=schedule, predict_from="views")
        for image in range(400)
    ]
    correct = np.array([known(rule.calibration).errors == 0 for rule in alone])
    assert np.mean(correct) < np.mean(some.correct("views"))
    for threshold in [0.1, 0.3, 0.5, 0.7, 0.9, 0.99]:
        tried = settings.model_copy(update={"threshold": threshold, "schedule": schedule})
        _, confidence, predicted = tried.look(some)
        assert not ((confidence >= threshold) & (predicted != some.labels) & correct).any()


def test_a_coverage_without_labels_can_be_adaptive() -> None:
    preds = make_world(1000, labels=False)
    rule = threshold_for(preds, coverage=0.7, adaptive=True)
    judged = preds.select(images=np.delete(np.arange(1000), tuning_positions(1000)))
    looks, confidence, _ = rule.look(judged)
    assert rule.accept(confidence, method=rule.method).mean() == rule.coverage == pytest.approx(0.7, abs=0.002)
    assert (known(rule.calibration).mean_looks, known(rule.calibration).errors) == (looks.mean(), None)


def bound_differing(differing: int, images: int, delta: float) -> float:
    """Return the exact bound for each image whose confidence may be the threshold."""
    return float(beta.ppf(1 - delta / images, differing + 1, images - 1 - differing)) if differing < images - 1 else 1.0


@pytest.mark.parametrize(
    ("images", "change", "margin", "fewest", "most"),
    [(50, 0.0, 1e6, 0, 0), (400, 0.0, 1.0, 1, 40), (3000, 0.0, 0.3, 50, 600), (49, 20.0, 0.0, 48, 49)],
    ids=["all looks", "few differ", "many images", "all differ"],
)
def test_bound_on_differing_decisions_is_exact(
    world: Predictions, images: int, change: float, margin: float, fewest: int, most: int
) -> None:
    schedule = make_schedule((change,) * 6, (1.0,) * 6, margin)
    some = world.select(images=np.arange(images))
    counts = known(threshold_for(some, "blend", coverage=1.0 if change else 0.5, adaptive=schedule).calibration)
    differing, delta, bound = known(counts.differing), known(counts.differing_delta), known(counts.differing_bound)
    assert fewest <= differing <= most
    assert bound == pytest.approx(bound_differing(differing, images, delta), rel=1e-9)
    if bound < 1:
        assert binom.cdf(differing, images - 1, bound) == pytest.approx(delta / images, rel=1e-6)
    assert bound >= min(differing / (images - 1), 1)


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


def test_frontier_goes_from_one_look_to_all(world: Predictions, rule: Policy) -> None:
    frontier = Frontier.compute(world, risk=RISK, delta=DELTA)
    assert frontier.policy.threshold == rule.threshold
    assert frontier.schedule == rule.schedule
    assert frontier.points[0].looks == 1.0
    assert [point.looks for point in frontier.points] == sorted(point.looks for point in frontier.points)
    assert frontier.points[-1].coverage == pytest.approx(frontier.all_looks.coverage, abs=0.005)
    (chosen,) = (point for point in frontier.points if point.margin == known(rule.schedule).margin)
    assert chosen.coverage == rule.coverage
    assert chosen.looks == known(rule.calibration).mean_looks
    everything = certify(world, risk=RISK, delta=DELTA, tuning=tuning_positions(world.n_images))
    assert frontier.all_looks.coverage == everything.coverage


def test_frontier_without_a_guarantee_has_the_looks_of_the_tuning_images(world: Predictions) -> None:
    frontier = Frontier.compute(world, risk=1e-5)
    assert {point.coverage for point in frontier.points} == {0.0}
    assert [point.looks for point in frontier.points] == [point.looks for point in frontier.schedule.frontier]


def test_policy_stores_the_schedule(rule: Policy, judged: Predictions, tmp_path: Path) -> None:
    schedule = known(rule.schedule)
    policy = attach(rule, classifier=CLASSIFIER, views=schedule.views)
    policy.save(tmp_path / "policy.json")
    loaded = read_policy(tmp_path / "policy.json")
    assert loaded.decides_like(policy)
    assert loaded.schedule == rule.schedule
    np.testing.assert_array_equal(loaded.confidence(judged), rule.confidence(judged))
    assert str(schedule.make_table(rule.threshold)) in str(loaded)


def test_policy_with_other_views_or_method_than_its_schedule_is_refused(rule: Policy) -> None:
    schedule = known(rule.schedule)
    with pytest.raises(DecisionError, match="order of looks"):
        attach(rule, classifier=CLASSIFIER, views=VIEWS)
    with pytest.raises(DecisionError, match="'mean'"):
        attach(rule.model_copy(update={"method": "mean"}), classifier=CLASSIFIER, views=schedule.views)


def test_policy_text_has_the_mean_looks(rule: Policy) -> None:
    text = str(rule)
    assert f"{known(rule.calibration).mean_looks:.2f}" in text
    assert f"{known(rule.calibration).differing} of 2,250" in text
    assert "95 % confidence" in text
    assert "reject below" in text
