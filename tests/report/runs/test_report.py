"""The report of a run: its guarantees are those of the latest calibration, and it records none itself."""

import re
from pathlib import Path

import pytest

import secondlook as sl
from secondlook.errors import CalibrationWarning, DecisionError
from secondlook.report import writer
from tests.report.conftest import Report


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the plots, which take most of the time."""
    monkeypatch.setattr(writer, "render_plots", lambda findings: ())


def read_lead(page: Path) -> list[int]:
    """Return the numbers of the first sentences: images, accepted, wrong, to review, errors there, errors."""
    return [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*", Report(page).element("lead"))]


def test_report_uses_the_latest_calibration(run: sl.Run) -> None:
    run.certify("msr", risk=0.2, delta=0.2, progress=False)
    with pytest.warns(CalibrationWarning):
        policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    before = (run.path / "calibrations.json").read_bytes()
    written = run.report(progress=False)
    data = Report(written.path).data
    assert (data["risk"], data["delta"], data["calibrated"], data["method"]) == (0.1, 0.1, ["mean"], "mean")
    accept = sl.confidence(run.predictions, "mean") >= policy.threshold
    wrong = ~run.predictions.correct()
    assert read_lead(written.path) == [500, *map(sum, (accept, accept & wrong, ~accept, ~accept & wrong, wrong))]
    assert policy.calibration is not None
    assert policy.calibration.accepted == sum(accept), "the page shows what the policy does"
    assert "risk 0.1 and delta 0.1 of the latest calibration" in written.terms
    assert written.terms in written.path.read_text("utf-8")
    assert any("30 %" in note for note in written.notes), "the joint failure probability of both calibrations"
    assert (run.path / "calibrations.json").read_bytes() == before


def test_several_methods_of_a_calibration_share_its_delta_and_all_share_a_given_one(run: sl.Run) -> None:
    policy = run.certify(["msr", "mean"], risk=0.1, delta=0.1, progress=False)
    written = run.report(progress=False)
    data = Report(written.path).data
    assert (data["delta"], data["calibrated"], data["method"]) == (0.1, ["msr", "mean"], policy.method)
    assert policy.calibration is not None
    assert read_lead(written.path)[1:3] == [policy.calibration.accepted, policy.calibration.errors]
    assert written.notes == ()
    data = Report(run.report(delta=0.3, progress=False).path).data
    assert (data["delta"], data["calibrated"]) == (0.3, [])
    assert data["sharing"] == ["msr", "mean", "blend"]
    with pytest.raises(DecisionError, match="delta"):
        run.report(delta=0.0, progress=False)


def test_report_without_a_calibration_of_its_predictions_uses_the_default(run: sl.Run) -> None:
    written = run.report(progress=False)
    assert Report(written.path).data["delta"] == 0.001
    assert "by default" in written.terms
    assert not (run.path / "calibrations.json").exists()
    run.certify("mean", risk=0.1, delta=0.1, predict_from="views", progress=False)
    assert "by default" in run.report(progress=False).terms
