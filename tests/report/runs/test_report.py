"""The report of a run: its guarantees are those of the latest calibration, and it records none itself."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import secondlook as sl
from secondlook.errors import CalibrationWarning, DecisionError
from secondlook.report import writer
from tests.report.conftest import Report
from tests.report.runs.conftest import QUIET, VIEWS


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


POLICIES: dict[str, dict[str, Any]] = {
    "class": {"groups": "class", "risk": {"dark": 0.2, "*": 0.3}},
    "rejected class": {"groups": "class", "risk": {"dark": 0.0001, "*": 0.3}},
    "groups": {"groups": {"both": ["dark", "bright"]}},
    "adaptive": {"adaptive": True},
    "adaptive, other settings": {"adaptive": True, "tolerance": 0.2, "max_looks": 2, "method": ["mean", "blend"]},
    "adaptive, views": {"adaptive": True, "predict_from": "views"},
}


@pytest.mark.parametrize("terms", POLICIES.values(), ids=POLICIES)
def test_report_leads_with_the_policy_of_the_latest_calibration(
    classifier: sl.Classifier, archive: str, tmp_path: Path, terms: dict[str, Any]
) -> None:
    given = {"predict_from": terms.get("predict_from", "image"), "methods": ["msr", "mean", "blend"]}
    run = sl.create_run(classifier, archive, out=tmp_path / "run", views=VIEWS, resamples=5, execution=QUIET, **given)
    if "adaptive" not in terms:
        run.certify("mean", risk=0.1, delta=0.1, progress=False)
    with warnings.catch_warnings(action="ignore"):
        policy = run.certify(**{"risk": 0.3, "delta": 0.1, "method": "mean", "progress": False, **terms})
    before = (run.path / "calibrations.json").read_bytes()
    written = run.report(progress=False)
    assert (run.path / "calibrations.json").read_bytes() == before
    accept, predicted = policy.accept(run.predictions), policy.look(run.predictions).predicted
    wrong, n_errors = predicted != run.predictions.labels, int((~run.predictions.correct(given["predict_from"])).sum())
    accepted, errors = int(accept.sum()), int((accept & wrong).sum())
    report = Report(written.path)
    assert read_lead(written.path) == [500, accepted, errors, 500 - accepted, n_errors - errors, n_errors]
    shown = report.data["policy"]
    assert (shown["accepted"], shown["errors"], shown["method"]) == (accepted, errors, policy.method)
    assert int(shown["cells"].sum()) == accepted
    pictures = {one["id"]: one["accepted"] for one in report.data["pictures"]}
    expected = dict(zip(run.predictions.ids, accept.tolist(), strict=True))
    assert pictures
    assert pictures == {id_: expected[id_] for id_ in pictures}
    assert sum(int(row["accepted"]) for row in report.rows("classes")) == accepted
    assert sum(int(row["accepted"]) for row in report.rows("confusions")) == accepted
    assert str(policy.guarantee) in shown["guarantee"]
    assert {one["no_guarantee"] is None for one in report.data["methods"]} == {False}, "no counts compete"
    assert "no calibration was reported" not in report.text
    assert (report.data["adaptive"] is None) == (terms not in (POLICIES["adaptive"], POLICIES["adaptive, views"]))


def test_report_says_that_the_latest_calibration_certifies_nothing(run: sl.Run) -> None:
    with pytest.raises(DecisionError):
        run.certify("mean", risk=0.0001, delta=0.1, groups="class", progress=False)
    written = run.report(progress=False)
    assert Report(written.path).data["policy"] is None
    assert any("certifies nothing" in note for note in written.notes)


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
