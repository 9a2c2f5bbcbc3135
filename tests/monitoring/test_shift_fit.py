"""What is learned from corrupted images, in worlds where the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from secondlook.errors import MonitoringError
from secondlook.monitoring import estimates
from secondlook.monitoring.estimates import LabeledScores, ShiftedScores, find_error, learn_shift_model
from secondlook.policies import Reference, ShiftModel

N_CLASSES = 5


def draw_scores(n_images: int, seed: int, damage: float = 0.0, collapse: float = 0.0) -> LabeledScores:
    """Return the scores of images that are damaged, and of which a share is confidently taken for class 0.

    What is damaged lowers confidence less than accuracy, as with real classifiers.
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


def make_calibration() -> Reference:
    return Reference.make(CLEAN.confidence, CLEAN.confidence, None, ~CLEAN.correct)


def estimate_accuracy(model: ShiftModel, scores: LabeledScores) -> float:
    from secondlook.monitoring.estimates import compute_expected_accuracy

    reference = make_calibration()
    expected = compute_expected_accuracy(reference)[reference.confidence.find_bins(scores.confidence)].mean()
    counts = np.bincount(scores.predicted, minlength=N_CLASSES).astype(np.float64)
    return ShiftModel.to_share(model.estimate_accuracy(float(expected), counts, len(scores.correct))[0])


def test_accuracy_is_estimated_for_strengths_that_were_not_learned_from() -> None:
    model = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, make_kinds())
    for damage, collapse in ((0.0, 0.0), (0.5, 0.0), (1.5, 0.15), (2.5, 0.5)):
        scores = draw_scores(4000, 99, damage, collapse)
        assert estimate_accuracy(model, scores) == pytest.approx(scores.correct.mean(), abs=0.07)
    # A threshold on confidence is off by far more.
    worst = draw_scores(4000, 99, 2.5, 0.5)
    naive = np.mean(worst.confidence >= np.quantile(CLEAN.confidence, 1 - CLEAN.correct.mean()))
    assert naive - worst.correct.mean() > 0.2


def test_estimate_of_a_kind_does_not_depend_on_its_labels() -> None:
    kinds = make_kinds(300)
    model = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, kinds)
    changed = [
        one._replace(scores=replace(one.scores, correct=np.zeros_like(one.scores.correct))) if one.kind == "b" else one
        for one in kinds
    ]
    other = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, changed)
    by_kind, other_by_kind = ({one.kind: one for one in each.shifts} for each in (model, other))
    assert by_kind["b"].estimate == other_by_kind["b"].estimate
    assert by_kind["b"].accuracy != other_by_kind["b"].accuracy == (0.0, 0.0, 0.0)
    assert by_kind["a"].estimate != other_by_kind["a"].estimate
    assert other.accuracy.error > model.accuracy.error


def test_other_classes_are_hardly_taken_for_worse_images(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = draw_scores(8000, 5, damage=1.0)
    kept = (scores.labels < 2) | (np.random.default_rng(0).random(8000) < 0.1)
    skewed = LabeledScores(*(getattr(scores, name)[kept] for name in scores.__dataclass_fields__))
    model = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, make_kinds())
    error = abs(estimate_accuracy(model, skewed) - skewed.correct.mean())
    assert error < 0.06
    monkeypatch.setattr(estimates, "CLASS_MIXES", 0)
    unaware = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, make_kinds())
    assert abs(estimate_accuracy(unaware, skewed) - skewed.correct.mean()) > 1.2 * error


def test_risk_is_learned_where_corrupted_images_are_accepted() -> None:
    model = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, make_kinds())
    found = model.estimate_accepted(ShiftModel.to_log_odds(float(CLEAN.correct.mean())))
    assert found is not None
    assert 1 - ShiftModel.to_share(found[0]) == pytest.approx(np.mean(~CLEAN.correct[CLEAN.accept]), abs=0.015)
    assert found[1] > 0
    never = [
        one._replace(scores=replace(one.scores, accept=np.zeros_like(one.scores.accept))) for one in make_kinds(200)
    ]
    assert learn_shift_model(make_calibration(), N_CLASSES, CLEAN, never).risk is None


def test_model_is_small_and_survives_json() -> None:
    model = learn_shift_model(make_calibration(), N_CLASSES, CLEAN, make_kinds(200))
    assert ShiftModel.model_validate_json(model.model_dump_json()) == model
    assert len(model.model_dump_json()) < 1500
    assert model.images == 200
    assert [one.kind for one in model.shifts] == ["a", "b", "c", "d"]
    assert all(one.kind in str(model) for one in model.shifts)
    assert "not a guarantee" in str(model)
    many_classes = learn_shift_model(make_calibration(), 1000, CLEAN, make_kinds(200))
    assert len(many_classes.class_shares) == 16
    assert len(many_classes.model_dump_json()) < 1500


def test_unlabeled_calibration_images_are_rejected() -> None:
    reference = Reference.make(CLEAN.confidence, CLEAN.confidence, None, None)
    with pytest.raises(MonitoringError, match="labeled"):
        learn_shift_model(reference, N_CLASSES, CLEAN, make_kinds(100))


def test_error_is_exceeded_by_a_tenth_of_like_errors() -> None:
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
