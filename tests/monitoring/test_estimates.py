"""Accuracy and risk without labels, against transparent versions; and shift models from corrupted images."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secondlook as sl
from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.classifiers import Ensemble
from secondlook.errors import MonitoringError
from secondlook.monitoring import AccuracyEstimate, Monitor, count_looks, estimates, learn_shifts
from secondlook.monitoring.estimates import (
    AccuracyEstimator,
    LabeledScores,
    ShiftedScores,
    compose_views,
    compute_expected_accuracy,
    compute_threshold_weights,
    draw_images,
    find_error,
    learn_shift_model,
    list_shifts,
    score_images,
)
from secondlook.policies import Calibration, Policy, Reference, ShiftModel
from secondlook.views import View, apply_view
from tests.monitoring import streams
from tests.monitoring.streams import make_shift_model
from tests.policy_maker import attach

THRESHOLD = 0.7
VIEWS = ["identity", "hflip", "shift:1,0"]
QUIET = sl.Execution(progress=False)


def draw_confidence(n_images: int, seed: int, *, skill: float = 3.0) -> tuple[Float64Array, BoolArray]:
    """Return confidences, and which images are correct: more often at larger confidences."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(skill, 1, n_images)
    return confidence, rng.random(n_images) < confidence


CLEAN_CONFIDENCE, CLEAN_CORRECT = draw_confidence(4000, 0)
REFERENCE = Reference.make(CLEAN_CONFIDENCE, CLEAN_CONFIDENCE, None, ~CLEAN_CORRECT)
POLICY = streams.make_policy(threshold=THRESHOLD).replace(
    reference=REFERENCE,
    calibration=Calibration(images=4000, accepted=int(np.sum(CLEAN_CONFIDENCE >= THRESHOLD)), errors=60),
)
LEARNED = POLICY.replace(shifts=make_shift_model())


def estimate(policy: Policy, confidence: Float64Array, predicted: IntArray | None = None) -> AccuracyEstimate:
    """Return the estimate of a monitor for images of these confidences and predicted classes."""
    n_images = len(confidence)
    columns = {
        "id": np.arange(n_images).astype(str),
        "label": np.zeros(n_images, np.int64) if predicted is None else predicted,
        "confidence": confidence,
        "accept": confidence >= THRESHOLD,
        "first_look": confidence,
        "disagreement": np.full(n_images, 0.1),
    }
    found = Monitor(policy).update(pa.table(columns)).estimate
    assert found is not None
    return found


def bounds(found: AccuracyEstimate, name: str) -> tuple[float, float]:
    return getattr(found, f"{name}_low"), getattr(found, f"{name}_high")


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(lambda counts: sum(counts) > 0),
    rate=st.floats(0, 1),
)
def test_coverage_at_the_threshold_equals_the_calibration_accuracy(counts: list[int], rate: float) -> None:
    errors = [int(rate * count) for count in counts]
    histogram = SimpleNamespace(counts=tuple(counts))
    weights = compute_threshold_weights(cast(Reference, SimpleNamespace(confidence=histogram, errors=tuple(errors))))
    assert np.dot(weights, counts) == pytest.approx(sum(counts) - sum(errors))
    filled = [weight for weight, count in zip(weights, counts, strict=True) if count]
    assert sorted(filled) == filled, "higher bins count first"
    assert sum(0 < weight < 1 for weight in filled) <= 1


@pytest.mark.parametrize("skill", [3.0, 1.5, 0.8])
def test_estimates_without_shifts_use_calibration_images_of_equal_confidence(skill: float) -> None:
    confidence, _ = draw_confidence(3000, 5, skill=skill)
    found = estimate(POLICY, confidence)
    assert not found.includes_shifts
    # Bins hold 32 images each, and their edges come from other images than the counts.
    threshold = np.quantile(CLEAN_CONFIDENCE, 1 - CLEAN_CORRECT.mean())
    assert found.accuracy == pytest.approx(np.mean(confidence >= threshold), abs=0.02)
    assert REFERENCE.errors is not None
    rates = []
    for value in confidence[confidence >= THRESHOLD]:
        place = sum(bool(value >= edge) for edge in REFERENCE.confidence.edges)
        rates.append(REFERENCE.errors[place] / REFERENCE.confidence.counts[place])
    assert found.risk == pytest.approx(np.mean(rates))
    fewer = estimate(POLICY, confidence[:300])
    assert np.ptp(bounds(fewer, "accuracy")) > 2 * np.ptp(bounds(found, "accuracy")), "more images, narrower intervals"


def test_intervals_without_shifts_cover_the_truth_of_exchangeable_images() -> None:
    hits = risk_hits = 0
    for seed in range(100, 300):
        confidence, correct = draw_confidence(300, seed)
        found, accept = estimate(POLICY, confidence), confidence >= THRESHOLD
        hits += bounds(found, "accuracy")[0] <= correct.mean() <= bounds(found, "accuracy")[1]
        risk_hits += bounds(found, "risk")[0] <= float(np.mean(~correct[accept])) <= bounds(found, "risk")[1]
    assert hits >= 0.85 * 200
    assert risk_hits >= 0.85 * 200


@pytest.mark.parametrize("separation", [0.0, 1.0, 4.0], ids=["uninformative", "blunt", "sharp"])
def test_intervals_without_shifts_cover_for_blunt_and_sharp_confidences(separation: float) -> None:
    """The interval has the errors of calibration and stream, and the estimate no bias."""
    rng, rounds = np.random.default_rng(0), 200

    def draw(n_images: int) -> tuple[Float64Array, BoolArray]:
        correct = rng.random(n_images) < 0.9
        confidence: Float64Array = 1 / (1 + np.exp(-rng.normal(separation * correct)))
        return confidence, correct

    threshold = float(np.quantile(draw(100_000)[0], 0.1))
    hits = np.zeros(2)
    for _ in range(rounds):
        confidence, correct = draw(500)
        reference = Reference.make(confidence, confidence, None, ~correct)
        calibration = Calibration(images=500, accepted=int(np.sum(confidence >= threshold)), errors=0)
        estimator = AccuracyEstimator(POLICY.replace(reference=reference, calibration=calibration))
        confidence, correct = draw(2000)
        features, accept = estimator.features(confidence, np.zeros(2000, np.int64)), confidence >= threshold
        found = estimator.estimate(2000, features.sum(axis=0), int(accept.sum()), features[accept].sum(axis=0))
        for place, (name, truth) in enumerate((("accuracy", correct.mean()), ("risk", np.mean(~correct[accept])))):
            low, high = bounds(found, name)
            hits[place] += low <= truth <= high
    assert (hits >= 0.84 * rounds).all()
    assert (hits <= 0.96 * rounds).all()


def test_estimate_with_shifts_follows_its_formula() -> None:
    confidence, _ = draw_confidence(200, 7, skill=1.0)
    predicted = np.random.default_rng(1).choice(4, 200, p=[0.1, 0.1, 0.7, 0.1])
    clean_shares = make_shift_model().class_shares
    expected = np.mean(compute_expected_accuracy(REFERENCE)[REFERENCE.confidence.find_bins(confidence)])
    shares = [float(np.mean(predicted == one)) for one in range(4)]
    # Of two images of the sample, drawn without replacement, the share with equal classes is free of bias.
    agreeing = np.mean([predicted[i] == predicted[j] for i in range(200) for j in range(200) if i != j])
    squared = agreeing * 199 / 200 + 1 / 200 - (1 - sum(share**2 for share in shares)) / 200
    squared += sum(one**2 for one in clean_shares) - 2 * np.dot(shares, clean_shares)
    odds = math.log(expected / (1 - expected))
    value = 0.1 + 1.2 * odds - 2.0 * math.sqrt(squared) * (1.1 - odds)
    error = 0.2 * (1 + max(0.1 + 1.2 * 1.1 - value, 0))
    accuracy, low = 1 / (1 + math.exp(-value)), 1 / (1 + math.exp(error - value))
    found = estimate(LEARNED, confidence, predicted)
    assert found.accuracy == pytest.approx(accuracy)
    share = (200 * accuracy + 1) / 202
    sampling = 1.6448536 * math.sqrt(share * (1 - share) / 200)
    assert found.accuracy_low == pytest.approx(accuracy - math.sqrt((accuracy - low) ** 2 + sampling**2))
    right = 1.0 + 1.5 * value
    assert found.risk == pytest.approx(1 / (1 + math.exp(right)))
    assert bounds(found, "risk")[0] < 1 / (1 + math.exp(right)) < bounds(found, "risk")[1]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(0, 10**6),
    st.floats(0.3, 10),
    st.sampled_from([POLICY, LEARNED, POLICY.replace(shifts=make_shift_model(risk=None))]),
)
def test_intervals_hold_the_estimate_and_lie_within_0_and_1(
    n_images: int, seed: int, skill: float, policy: Policy
) -> None:
    confidence, _ = draw_confidence(n_images, seed, skill=skill)
    found = estimate(policy, confidence, np.random.default_rng(seed).integers(0, 4, n_images))
    low, high = bounds(found, "accuracy")
    assert 0 <= low <= (found.accuracy or 0) <= high <= 1
    has_risk = bool((confidence >= THRESHOLD).any()) and (policy.shifts is None or policy.shifts.risk is not None)
    assert (found.risk is not None) == has_risk
    if found.risk is not None:
        assert 0 <= bounds(found, "risk")[0] <= found.risk <= bounds(found, "risk")[1] <= 1


def test_nothing_is_estimated_without_labels() -> None:
    unlabeled = POLICY.replace(reference=Reference.make(CLEAN_CONFIDENCE, CLEAN_CONFIDENCE, None, None))
    assert estimate(unlabeled, CLEAN_CONFIDENCE[:30]) == AccuracyEstimate()
    assert Monitor(POLICY).update([]).estimate is None


def test_first_of_several_predicted_classes_counts() -> None:
    rows = [row for row in streams.make_rows(200) if row["reason"] is None]
    pairs = [{**row, "labels": [row["label"], (row["label"] + 1) % 4]} for row in rows]
    one, two = (streams.make_policy(top_k=k).replace(shifts=make_shift_model()) for k in (1, 2))
    assert Monitor(two).update(pairs).estimate == Monitor(one).update(rows).estimate


# ---- Corrupted images, and how predictions for them are collected and scored


class Brightness:
    """A classifier of dark, medium and bright images that counts its input images."""

    def __init__(self) -> None:
        self.n_images = 0

    def __call__(self, batch: Array) -> Array:
        self.n_images += len(batch)
        mean = batch.mean(axis=(1, 2, 3))[:, None] / 255
        detail = np.abs(np.diff(batch.astype(float), axis=2)).mean(axis=(1, 2, 3))[:, None] / 60
        logits: Array = (detail + 1) * -40 * (mean - np.array([0.25, 0.5, 0.75])) ** 2
        return logits.astype(np.float32)


def make_images(n_images: int = 450) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n_images)
    mean = 64 * (labels + 1) + rng.normal(0, 22, n_images)
    pixels = mean[:, None, None, None] + rng.normal(0, 30, (n_images, 8, 8, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def make_parts(
    views: list[str] = VIEWS, *, adaptive: bool = False, groups: str | None = None
) -> tuple[Brightness, sl.Classifier, sl.Source, sl.Predictions, sl.Policy]:
    counting = Brightness()
    classifier = sl.load_classifier(counting, output="logits", name="brightness")
    images, labels = make_images()
    source = sl.open_source(images, labels=labels)
    preds = sl.collect(classifier, source, views, execution=QUIET)
    method = "msr" if len(views) == 1 else "mean"
    rule = sl.certify(preds, method, risk=0.3 if groups else 0.2, delta=0.1, adaptive=adaptive, groups=groups)
    policy = attach(rule, classifier=classifier, views=(rule.schedule.views if rule.schedule else tuple(views)))
    counting.n_images = 0
    return counting, classifier, source, preds, policy


def test_every_shift_is_a_view_of_three_strengths() -> None:
    for side in (8, 32, 224, 1000):
        shifts = list_shifts(side)
        assert len(shifts) == 10
        for views in shifts.values():
            assert len(views) == 3
            assert [str(View.parse(view)) for view in views] == list(views), "as stored"
    assert list_shifts(32)["noise"] == ("noise:6", "noise:12", "noise:20")
    assert list_shifts(128)["blur"] == ("blur:1.28", "blur:1.92", "blur:2.88")


@pytest.mark.parametrize("side", [32, 96])
def test_stronger_shifts_change_images_more(side: int) -> None:
    rng = np.random.default_rng(0)
    image = np.clip(128 + 50 * rng.standard_normal((1, side, side, 3)), 0, 255).astype(np.uint8)
    for kind, views in list_shifts(side).items():
        if kind in ("rotation", "zoom in", "zoom out", "resolution"):  # of noise, all of them change every pixel
            continue
        changes = [np.abs(apply_view(image, view).astype(float) - image).mean() for view in views]
        assert 0 < changes[0] < changes[1] < changes[2], kind


def test_composed_views_are_the_views_of_a_corrupted_image() -> None:
    images, _ = make_images(4)
    views = ("identity", "hflip+shift:1,0", "gamma:0.9")
    for shifts in list_shifts(8).values():
        for shift in shifts:
            corrupted = apply_view(images, shift)
            for view, composed in zip(views, compose_views(shift, views), strict=True):
                difference = apply_view(images, composed).astype(int) - apply_view(corrupted, view)
                assert np.abs(difference).max() <= 2, composed  # a corrupted image file is rounded once more


@pytest.mark.parametrize(("views", "adaptive"), [(VIEWS, False), (VIEWS, True), (["identity"], False)])
def test_corrupted_images_score_like_image_files(views: list[str], adaptive: bool) -> None:
    _, classifier, source, preds, policy = make_parts(views, adaptive=adaptive)
    model = learn_shifts(policy, classifier, source, preds, n_images=120, seed=3, execution=QUIET)
    drawn = np.sort(np.random.default_rng(3).permutation(450)[:120])
    images, labels = make_images()
    for learned in model.shifts:
        assert learned.views == list_shifts(8)[learned.kind]
        for shift, accuracy in zip(learned.views, learned.accuracy, strict=True):
            shifted = apply_view(images[drawn], shift)
            corrupted = sl.collect(classifier, shifted, views, labels=labels[drawn], execution=QUIET)
            scores = score_images(policy, corrupted)
            assert accuracy == pytest.approx(scores.correct.mean(), abs=1.5 / 120)  # pixels are rounded once more
    assert model.images == 120


@pytest.mark.parametrize("groups", [None, "class"])
def test_scores_are_those_of_the_policy(groups: str | None) -> None:
    """Every class may have its own threshold."""
    *_, preds, policy = make_parts(groups=groups)
    scores = score_images(policy, preds)
    np.testing.assert_array_equal(scores.confidence, policy.confidence(preds))
    thresholds = np.array([group.threshold for group in policy.groups] or [policy.threshold] * 3)
    assert (len(set(thresholds)) > 1) == (groups is not None)
    np.testing.assert_array_equal(scores.accept, scores.confidence >= thresholds[scores.predicted])
    np.testing.assert_array_equal(scores.correct, preds.correct())
    np.testing.assert_array_equal(scores.predicted, preds.predicted())


def test_outputs_are_stored_and_used_again(tmp_path: Path) -> None:
    counting, classifier, source, preds, policy = make_parts()
    model = learn_shifts(policy, classifier, source, preds, n_images=60, store=tmp_path, execution=QUIET)
    assert counting.n_images == count_looks(policy, 60)
    assert learn_shifts(policy, classifier, source, preds, n_images=60, store=tmp_path, execution=QUIET) == model
    assert counting.n_images == count_looks(policy, 60)
    assert learn_shifts(policy, classifier, source, preds, n_images=60, execution=QUIET) == model, "in memory"


def test_shift_model_of_an_ensemble() -> None:
    members = [sl.load_classifier(Brightness(), output="logits", name=name) for name in ("one", "two")]
    images, labels = make_images()
    source = sl.open_source(images, labels=labels)
    models = []
    for classifier in (members[0], Ensemble(members)):
        preds = sl.collect(classifier, source, VIEWS, execution=QUIET)
        rule = sl.certify(preds, "mean", risk=0.2, delta=0.1)
        policy = attach(rule, classifier=classifier, views=tuple(VIEWS))
        models.append(learn_shifts(policy, classifier, source, preds, n_images=60, execution=QUIET))
    assert [one.accuracy for one in models[0].shifts] == [one.accuracy for one in models[1].shifts]


def test_few_or_unlabeled_images_are_rejected_and_duplicates_not_drawn() -> None:
    _, classifier, source, preds, policy = make_parts()
    images, labels = make_images(60)
    twice = sl.open_source(np.concatenate([images, images]), labels=np.concatenate([labels, labels]))
    assert len(draw_images(twice, 500, 0)) == 60
    with pytest.raises(MonitoringError, match=r" 50 .* 40;.*images="):
        learn_shifts(policy, classifier, source, preds, n_images=40, execution=QUIET)
    with pytest.raises(MonitoringError, match="labeled"):
        learn_shifts(policy, classifier, sl.open_source(images), preds, execution=QUIET)
    reference = Reference.make(CLEAN.confidence, CLEAN.confidence, None, None)
    with pytest.raises(MonitoringError, match="labeled"):
        learn_shift_model(reference, N_CLASSES, CLEAN, make_kinds(100))


# ---- The shift model, on synthetic scores with known truth

N_CLASSES = 5


def draw_scores(n_images: int, seed: int, damage: float = 0.0, collapse: float = 0.0) -> LabeledScores:
    """Return the scores of damaged images, of which a share is confidently predicted as class 0.

    Damage lowers confidence less than accuracy, as with real classifiers.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, N_CLASSES, n_images)
    quality = rng.normal(2.5 - damage, 1.5, n_images)
    correct = rng.random(n_images) < 1 / (1 + np.exp(-quality))
    predicted = np.where(correct, labels, (labels + rng.integers(1, N_CLASSES, n_images)) % N_CLASSES)
    is_lost = rng.random(n_images) < collapse
    predicted = np.where(is_lost, 0, predicted)
    confidence = 1 / (1 + np.exp(-(quality + 0.5 * damage)))
    return LabeledScores(confidence, predicted, confidence >= 0.9, predicted == labels, labels)


def make_kinds(n_images: int = 1000) -> list[ShiftedScores]:
    kinds = {"a": 0.0, "b": 0.1, "c": 0.25, "d": 0.05}
    return [
        ShiftedScores(kind, f"{kind}:{damage}", draw_scores(n_images, 10 * place + int(damage), damage, share * damage))
        for place, (kind, share) in enumerate(kinds.items(), start=1)
        for damage in (1.0, 2.0, 3.0)
    ]


CLEAN = draw_scores(4000, 0)
CALIBRATION = Reference.make(CLEAN.confidence, CLEAN.confidence, None, ~CLEAN.correct)


def estimate_accuracy(model: ShiftModel, scores: LabeledScores) -> float:
    expected = compute_expected_accuracy(CALIBRATION)[CALIBRATION.confidence.find_bins(scores.confidence)].mean()
    counts = np.bincount(scores.predicted, minlength=N_CLASSES).astype(np.float64)
    return ShiftModel.to_share(model.estimate_accuracy(float(expected), counts, len(scores.correct))[0])


def test_accuracy_is_estimated_for_unseen_strengths() -> None:
    model = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, make_kinds())
    for damage, collapse in ((0.0, 0.0), (0.5, 0.0), (1.5, 0.15), (2.5, 0.5)):
        scores = draw_scores(4000, 99, damage, collapse)
        assert estimate_accuracy(model, scores) == pytest.approx(scores.correct.mean(), abs=0.07)
    # A threshold on confidence is off by far more.
    worst = draw_scores(4000, 99, 2.5, 0.5)
    naive = np.mean(worst.confidence >= np.quantile(CLEAN.confidence, 1 - CLEAN.correct.mean()))
    assert naive - worst.correct.mean() > 0.2


def test_estimate_of_a_kind_does_not_depend_on_its_labels() -> None:
    kinds = make_kinds(300)
    model = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, kinds)
    changed = [
        one._replace(scores=replace(one.scores, correct=np.zeros_like(one.scores.correct))) if one.kind == "b" else one
        for one in kinds
    ]
    other = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, changed)
    by_kind, other_by_kind = ({one.kind: one for one in each.shifts} for each in (model, other))
    assert by_kind["b"].estimate == other_by_kind["b"].estimate
    assert by_kind["b"].accuracy != other_by_kind["b"].accuracy == (0.0, 0.0, 0.0)
    assert by_kind["a"].estimate != other_by_kind["a"].estimate
    assert other.accuracy.error > model.accuracy.error


def test_changed_class_shares_are_not_mistaken_for_worse_images(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = draw_scores(8000, 5, damage=1.0)
    kept = (scores.labels < 2) | (np.random.default_rng(0).random(8000) < 0.1)
    skewed = LabeledScores(*(getattr(scores, name)[kept] for name in scores.__dataclass_fields__))
    model = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, make_kinds())
    error = abs(estimate_accuracy(model, skewed) - skewed.correct.mean())
    assert error < 0.06
    monkeypatch.setattr(estimates, "CLASS_MIXES", 0)
    unaware = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, make_kinds())
    assert abs(estimate_accuracy(unaware, skewed) - skewed.correct.mean()) > 1.2 * error


def test_risk_is_learned_where_corrupted_images_are_accepted() -> None:
    model = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, make_kinds())
    found = model.estimate_accepted(ShiftModel.to_log_odds(float(CLEAN.correct.mean())))
    assert found is not None
    assert 1 - ShiftModel.to_share(found[0]) == pytest.approx(np.mean(~CLEAN.correct[CLEAN.accept]), abs=0.015)
    assert found[1] > 0
    nothing = np.zeros(200, np.bool_)
    never = [one._replace(scores=replace(one.scores, accept=nothing)) for one in make_kinds(200)]
    assert learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, never).risk is None


def test_model_is_small_and_survives_json() -> None:
    model = learn_shift_model(CALIBRATION, N_CLASSES, CLEAN, make_kinds(200))
    assert ShiftModel.model_validate_json(model.model_dump_json()) == model
    assert len(model.model_dump_json()) < 1500
    assert model.images == 200
    assert [one.kind for one in model.shifts] == ["a", "b", "c", "d"]
    assert all(one.kind in str(model) for one in model.shifts)
    assert "not a guarantee" in str(model)
    many_classes = learn_shift_model(CALIBRATION, 1000, CLEAN, make_kinds(200))
    assert len(many_classes.class_shares) == 16
    assert len(many_classes.model_dump_json()) < 1500


def test_error_is_exceeded_by_a_tenth_of_exchangeable_errors() -> None:
    assert find_error([float(one) for one in range(1, 10)]) == 9
    assert find_error([float(one) for one in range(19, 0, -1)]) == 18
    assert find_error([2.0]) == 2
    rng = np.random.default_rng(0)
    exceeded = [find_error(draw[:-1].tolist()) < draw[-1] for draw in rng.exponential(size=(4000, 31))]
    assert np.mean(exceeded) <= 0.11


def test_class_distance_has_no_bias() -> None:
    rng, shares = np.random.default_rng(1), (0.5, 0.3, 0.2)
    for truth in (shares, (0.2, 0.3, 0.5)):
        drawn = rng.multinomial(40, truth, size=20_000).astype(np.float64)
        squared = [np.sum((one / 40 - shares) ** 2) - (1 - np.sum((one / 40) ** 2)) / 40 for one in drawn[:2000]]
        measured = [ShiftModel.measure_class_distance(one, shares, 40) for one in drawn[:2000]]
        np.testing.assert_allclose(np.square(measured), np.maximum(squared, 0))
        expected = sum((a - b) ** 2 for a, b in zip(truth, shares, strict=True))
        plain = np.mean(np.sum((drawn / 40 - shares) ** 2, axis=1) - (1 - np.sum((drawn / 40) ** 2, axis=1)) / 40)
        assert plain == pytest.approx(expected, abs=0.002)
