"""The report of a run: its guarantees are those of the latest calibration, and it records none itself."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.errors import CalibrationWarning, DecisionError
from secondlook.estimators import METHODS, tuning_positions
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


def read_counts(page: Path) -> tuple[int, int, int]:
    """Return the counts of the summary: images, accepted, errors among accepted."""
    (facts,) = re.findall(r'<dl class="facts" id="counts">(.*?)</dl>', Report(page).text, re.DOTALL)
    images, accepted, errors, *_ = (int(one.replace(",", "")) for one in re.findall(r"<dd>([\d,]+)\b", facts))
    return images, accepted, errors


def test_report_uses_the_latest_calibration(run: sl.Run) -> None:
    run.certify("msr", risk=0.2, delta=0.2, progress=False)
    with pytest.warns(CalibrationWarning):
        policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    before = (run.path / "calibrations.json").read_bytes()
    written = run.report(progress=False)
    data = Report(written.path).data
    assert (data["risk"], data["delta"], data["method"]) == (0.1, 0.1, "mean")
    accept = sl.confidence(run.predictions, "mean") >= policy.threshold
    wrong = ~run.predictions.correct()
    assert read_lead(written.path) == [500, *map(sum, (accept, accept & wrong, ~accept, ~accept & wrong, wrong))]
    assert read_counts(written.path) == (500, sum(accept), sum(accept & wrong))
    assert "of the latest calibration of the run, for mean" in written.terms
    assert written.terms in Report(written.path).text
    assert any("30 %" in note for note in written.notes), "the joint failure probability of both calibrations"
    assert (run.path / "calibrations.json").read_bytes() == before


POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "options": {"method": "mean", "temperature": 1.5},
    "best of several": {"method": ["msr", "mean", "mean?temperature=2"]},
    "class": {"groups": "class", "risk": {"dark": 0.2, "*": 0.3}},
    "rejected class": {"groups": "class", "risk": {"dark": 0.0001, "*": 0.3}},
    "groups": {"groups": {"both": ["dark", "bright"]}},
    "adaptive": {"adaptive": True},
    "adaptive, other settings": {"adaptive": True, "tolerance": 0.2, "max_looks": 2, "method": ["mean", "blend"]},
    "adaptive, views": {"adaptive": True, "predict_from": "views"},
    "limit of familiarity": {"unknown_budget": 0.05},
    "views": {"predict_from": "views"},
}
THRESHOLDS: dict[str, dict[str, Any]] = {
    "least cost": {"cost_error": 5, "cost_review": 1},
    "average risk": {"average_risk": 0.2},
    "coverage": {"coverage": 0.7},
    "adaptive coverage": {"coverage": 0.7, "adaptive": True},
}


@pytest.mark.parametrize("terms", [*POLICIES.values(), *THRESHOLDS.values()], ids=[*POLICIES, *THRESHOLDS])
def test_report_leads_with_the_policy_of_the_latest_calibration(
    classifier: sl.Classifier, archive: str, tmp_path: Path, terms: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"methods": ["msr", "mean", "blend"], "views": VIEWS, "resamples": 5, "execution": QUIET}
    run = sl.create_run(classifier, archive, out=tmp_path / "run", **given)
    with warnings.catch_warnings(action="ignore"):
        if terms in list(THRESHOLDS.values()):
            policy = run.threshold_for("mean", delta=0.1, progress=False, **terms)
        else:
            policy = run.certify(**{"risk": 0.3, "delta": 0.1, "method": "mean", "progress": False, **terms})
    calibration = policy.calibration
    assert calibration is not None
    ledger = run.path / "calibrations.json"
    before = ledger.read_bytes() if ledger.exists() else None
    written = sl.open_run(run.path).report(progress=False)
    assert (ledger.read_bytes() if ledger.exists() else None) == before
    assert written.notes == ()
    apart: Any = tuning_positions(500) if calibration.tuning else []
    judged = run.predictions.select(images=np.delete(np.arange(500), apart))
    accept, wrong = policy.accept(judged), policy.look(judged).predicted != judged.labels
    accepted, errors = int(accept.sum()), int((accept & wrong).sum())
    assert (calibration.images, calibration.accepted, calibration.errors) == (judged.n_images, accepted, errors)
    report = Report(written.path)
    n_errors = int((~judged.correct(policy.predict_from)).sum())
    counts = [judged.n_images, accepted, errors]
    assert read_lead(written.path) == [*counts, judged.n_images - accepted, n_errors - errors, n_errors]
    assert read_counts(written.path) == tuple(counts), "one set of counts"
    shown = report.data["policy"]
    assert (shown["accepted"], shown["errors"]) == (accepted, errors)
    assert shown["method"].partition("?")[0] == policy.method
    assert int(shown["cells"].sum()) == accepted
    pictures = {one["id"]: one["accepted"] for one in report.data["pictures"]}
    expected = dict(zip(judged.ids, accept.tolist(), strict=True))
    assert pictures
    assert pictures == {id_: expected[id_] for id_ in pictures}
    assert sum(int(row["accepted"]) for row in report.rows("classes")) == accepted
    assert sum(int(row["accepted"]) for row in report.rows("confusions")) == accepted
    assert policy.guarantee_text in shown["guarantee"]
    assert ("✓ Guaranteed" in report.element("badge")) == policy.certified
    new, decided, *_, people = re.findall(r"[\d,]*\d(?= (?:new|are|go))", report.element("meaning"))
    assert new == "10,000"
    assert int(decided.replace(",", "")) == pytest.approx(10_000 * accepted / judged.n_images, abs=5.1)
    assert int(decided.replace(",", "")) + int(people.replace(",", "")) == 10_000
    assert {one["no_guarantee"] is None for one in report.data["methods"]} == {False}, "no counts compete"


def test_report_says_that_no_policy_is_stored(run: sl.Run) -> None:
    with pytest.raises(DecisionError):
        run.certify("mean", risk=0.0001, delta=0.1, groups="class", progress=False)
    written = run.report(progress=False)
    assert Report(written.path).data["policy"] is None
    assert Report(written.path).element("badge") == "– Not calibrated"
    assert any("No calibrated policy" in note for note in written.notes)


def test_report_of_other_images_or_views_ignores_the_policy(
    classifier: sl.Classifier, archive: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"out": tmp_path / "run", "resamples": 5, "execution": QUIET}
    sl.create_run(classifier, archive, views=VIEWS, **given).certify("mean", risk=0.1, delta=0.1, progress=False)
    run = sl.create_run(classifier, archive, views="identity", **given)
    assert run.latest_policy is None
    assert Report(run.report(progress=False).path).data["policy"] is None
    run = sl.create_run(classifier, archive, views=VIEWS, **given)
    assert run.latest_policy is not None


@pytest.mark.parametrize("views", [VIEWS, "identity brightness:0.5"], ids=["harmless views", "a harmful view"])
def test_summary_says_where_the_image_itself_certifies_more(
    classifier: sl.Classifier, archive: str, tmp_path: Path, views: str
) -> None:
    with warnings.catch_warnings(action="ignore"):
        run = sl.create_run(classifier, archive, out=tmp_path / "run", views=views, resamples=5, execution=QUIET)
        policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    preds = run.predictions
    alone = sl.Predictions(probabilities=preds.probabilities[:, :1], views="identity", labels=preds.labels)
    plain = sl.certify(alone, "msr", risk=0.1, delta=0.1)
    sentence, summary = run.describe_baseline(policy), Report(run.report(progress=False).path).text
    assert (plain.coverage > policy.coverage) == (views != VIEWS)
    if views == VIEWS:
        assert sentence is None
        assert 'id="baseline"' not in summary
    else:
        assert f"{100 * plain.coverage:.4g} % instead of {100 * policy.coverage:.4g} %" in str(sentence)
        assert str(sentence) in summary


def test_several_methods_of_a_calibration_share_its_delta_and_all_share_a_given_one(run: sl.Run) -> None:
    policy = run.certify(["msr", "mean"], risk=0.1, delta=0.1, progress=False)
    written = run.report(progress=False)
    data = Report(written.path).data
    assert (data["delta"], data["policy"]["method"]) == (0.1, policy.method)
    assert policy.calibration is not None
    assert read_lead(written.path)[1:3] == [policy.calibration.accepted, policy.calibration.errors]
    assert written.notes == ()
    data = Report(run.report(delta=0.3, progress=False).path).data
    assert (data["delta"], data["policy"]) == (0.3, None)
    assert data["sharing"] == [METHODS[name].words for name in ("msr", "mean", "blend")]
    with pytest.raises(DecisionError, match="delta"):
        run.report(delta=0.0, progress=False)


def test_report_without_a_calibration_of_its_predictions_uses_the_default(run: sl.Run) -> None:
    written = run.report(progress=False)
    assert Report(written.path).data["delta"] == 0.001
    assert "by default" in written.terms
    assert not (run.path / "calibrations.json").exists()
