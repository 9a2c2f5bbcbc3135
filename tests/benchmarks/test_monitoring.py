"""Benchmarks of monitoring: streams as stated, seeded corruptions, and thresholds per class beside other rules."""

import cv2
import numpy as np
import pytest

import monitoring as benchmark
import monitoring_groups as groups
import secondlook as sl
from corruptions import CORRUPTIONS, STRENGTHS
from secondlook.arrays import Array
from secondlook.monitoring.estimates import list_shifts
from secondlook.policies import AuditPlan, certify_confidence


@pytest.mark.parametrize("pattern", benchmark.PATTERNS)
@pytest.mark.parametrize(("risk", "extra"), [(0.01, None), (0.02, None), (0.02, "even")])
def test_error_rates_are_as_stated(pattern: str, risk: float, extra: str | None) -> None:
    stream = benchmark.AuditedStream("even", 0.05, pattern, 400_000, risk, extra)
    audited, probability, wrong = stream.draw(np.random.default_rng(0), AuditPlan(None, 0.0, 0.05))
    assert wrong.mean() == pytest.approx(risk, abs=1e-3)
    assert audited.mean() == pytest.approx(0.05, abs=2e-3)
    assert np.all(probability == 0.05)


@pytest.mark.parametrize("shift", benchmark.SHIFTS, ids=benchmark.describe_shift)
def test_images_become_worse_by_the_shift(shift: benchmark.ShiftedStream) -> None:
    before, after = (shift.draw(np.random.default_rng(0), 100_000, shifted=shifted) for shifted in (False, True))
    quality = [np.log(confidence / (1 - confidence)) for confidence, *_ in (before, after)]
    worse = shift.location + shift.degraded * benchmark.DEGRADED
    assert np.mean(quality[0]) - np.mean(quality[1]) == pytest.approx(benchmark.QUALITY_STD * worse, abs=0.05)
    assert np.mean(after[2]) > np.mean(before[2])


def test_a_shift_is_found_after_its_start_and_shares_have_exact_intervals() -> None:
    stream = benchmark.ShiftedStream(500, images=3000, start=1000, location=2.0)
    raised_at = stream.watch(0)
    assert raised_at is not None
    assert 1000 < raised_at < 1100
    row = benchmark.summarize_share("alarms", 0, 100)
    assert row["alarms_share"] == 0
    assert row["alarms_high"] == pytest.approx(1 - 0.025 ** (1 / 100), abs=1e-5)


@pytest.mark.parametrize("design", benchmark.DESIGNS)
def test_a_broken_guarantee_is_found_and_a_kept_one_is_not(design: str) -> None:
    broken = benchmark.AuditedStream(design, 0.05, "as calibrated", 20_000, 0.1)
    labels, held = broken.judge(0)
    assert labels is not None
    assert labels < 200
    assert not held
    assert benchmark.AuditedStream(design, 0.1, "as calibrated", 40_000, 0.001).judge(0) == (None, True)


def make_images(height: int, width: int, count: int = 4) -> Array:
    """Return smooth random images. uint8 [N, H, W, 3]"""
    rng = np.random.default_rng(0)
    smooth = [cv2.GaussianBlur(rng.normal(size=(height, width, 3)), (0, 0), 0.8) for _ in range(count)]
    return np.clip(128 + 200 * np.stack(smooth), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", [(32, 32), (64, 48)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_seeded_and_mild_at_first(name: str, size: tuple[int, int]) -> None:
    images, changes = make_images(*size), []
    before = images.copy()
    for strength in STRENGTHS:
        corrupted = CORRUPTIONS[name](images, strength, np.random.default_rng(1))
        again = CORRUPTIONS[name](images, strength, np.random.default_rng(1))
        assert corrupted.shape == images.shape
        assert corrupted.dtype == np.uint8
        assert np.array_equal(corrupted, again)
        changes.append(np.abs(corrupted.astype(float) - images).mean())
    assert np.array_equal(images, before), "the input is unchanged"
    assert 0 < changes[0] < changes[2]


def test_there_are_fifteen_in_four_families_that_resemble_shifts() -> None:
    assert len(CORRUPTIONS) == 15
    assert {one.family for one in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}
    for one in CORRUPTIONS.values():
        assert set(one.resembles) <= set(list_shifts(32))
        assert one.resembles


@pytest.fixture(scope="module")
def preds() -> sl.Predictions:
    """Predictions of three classes, of which the first is never wrong."""
    rng = np.random.default_rng(0)
    predicted, margin = rng.integers(3, size=6000), rng.gamma(2.0, 2.0, size=6000)
    logits = np.zeros((6000, 2, 3))
    logits[np.arange(6000), :, predicted] = margin[:, None]
    wrong = (predicted > 0) & (rng.random(6000) < 0.3 * np.exp(-margin / 2))
    return sl.Predictions(logits=logits, views="identity hflip", labels=np.where(wrong, 0, predicted))


def test_numbers_are_those_of_each_class_alone_on_a_line_for_each_risk(preds: sl.Predictions) -> None:
    row = groups.compare_thresholds("simulated", preds, 0.05)
    values, predicted, correct = sl.confidence(preds, "blend"), preds.predicted(), preds.correct()
    rules = [
        certify_confidence(correct[predicted == index], values[predicted == index], risk=0.05, delta=0.001 / 3)
        for index in range(3)
    ]
    alone = sum(rule.coverage * np.mean(predicted == index) for index, rule in enumerate(rules))
    assert row["bonferroni_coverage"] == pytest.approx(alone)
    assert float(str(row["class_coverage"])) > alone, "the class without errors leaves its level to the others"
    accepted = values >= sl.certify(preds, "blend", risk=0.05).threshold
    risks = [np.mean(~correct[accepted & (predicted == index)]) for index in range(3)]
    assert row["worst_class_risk_seen"] == pytest.approx(max(risks))
    assert row["certified_classes"] == 3
    rows = groups.per_class("simulated", preds)
    lines = groups.format_table(rows).splitlines()
    assert len(lines) == 2 + len(groups.RISKS)
    assert "| 5 % |" in lines[4]
