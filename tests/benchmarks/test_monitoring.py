"""The simulated streams of the monitoring benchmark have the shifts and the error rates that they state."""

import numpy as np
import pytest

import monitoring as benchmark
from secondlook.policies import AuditPlan


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


def test_a_shift_is_found_after_its_start() -> None:
    stream = benchmark.ShiftedStream(500, images=3000, start=1000, location=2.0)
    raised_at = stream.watch(0)
    assert raised_at is not None
    assert 1000 < raised_at < 1100


@pytest.mark.parametrize("design", benchmark.DESIGNS)
def test_a_broken_guarantee_is_found_and_a_kept_one_is_not(design: str) -> None:
    broken = benchmark.AuditedStream(design, 0.05, "as calibrated", 20_000, 0.1)
    labels, held = broken.judge(0)
    assert labels is not None
    assert labels < 200
    assert not held
    assert benchmark.AuditedStream(design, 0.1, "as calibrated", 40_000, 0.001).judge(0) == (None, True)


def test_shares_have_exact_intervals() -> None:
    row = benchmark.summarize_share("alarms", 0, 100)
    assert row["alarms_share"] == 0
    assert row["alarms_high"] == pytest.approx(1 - 0.025 ** (1 / 100), abs=1e-5)
