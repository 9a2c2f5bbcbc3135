"""A run with unknown images: their numbers, their predictions, and their section of the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import secondlook as sl
from secondlook.errors import MetricError
from secondlook.report import writer
from tests.report.conftest import Report
from tests.report.runs.conftest import QUIET, VIEWS

N_UNKNOWN = 80


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the plots, which take most of the time."""
    monkeypatch.setattr(writer, "render_plots", lambda findings: ())


@pytest.fixture
def unknown_run(classifier: sl.Classifier, archive: str, tmp_path: Path) -> sl.Run:
    rng = np.random.default_rng(9)
    level = rng.uniform(60, 196, size=(N_UNKNOWN, 1, 1, 1))
    images = np.clip(level + rng.normal(0, 25, size=(N_UNKNOWN, 6, 6, 3)), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "unknown.npz", images=images)
    options: dict[str, Any] = {"views": VIEWS, "resamples": 20, "execution": QUIET}
    options |= {"methods": ["msr", "mean", "bootstrap"], "unknown": f"npz:{tmp_path / 'unknown.npz'}"}
    return sl.create_run(classifier, archive, out=tmp_path / "run", **options)


def count_accepted(run: sl.Run, method: str, threshold: float) -> int:
    assert run.unknown_predictions is not None
    return int(sum(sl.confidence(run.unknown_predictions, method) >= threshold))


def test_stored_predictions_are_evaluated_again(unknown_run: sl.Run) -> None:
    opened = sl.open_run(unknown_run.path)
    assert opened.unknown_predictions is not None
    assert (opened.unknown_predictions.n_images, opened.unknown_predictions.has_labels) == (N_UNKNOWN, False)
    assert opened.evaluate(progress=False).rows == opened.evaluation.rows
    assert opened.settings["unknown"].endswith("unknown.npz")


def test_run_without_unknown_images_has_none(run: sl.Run) -> None:
    assert run.unknown_predictions is None
    assert run.accepted_unknowns is None
    policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    assert run.count_accepted_unknowns(policy) is None
    report = Report(run.report(progress=False, galleries=False).path)
    assert report.data["unknown"] is None
    assert 'id="unknown"' not in report.text


def test_evaluation_counts_unknown_images_accepted_at_certified_thresholds(unknown_run: sl.Run) -> None:
    """As `certify` would choose the thresholds: two methods share delta, and the ranking has none."""
    found = unknown_run.evaluation_content["unknown"]
    assert (found["delta"], found["sharing"]) == (0.001, ["msr", "mean"])
    stored = unknown_run.predictions
    preds = sl.Predictions(probabilities=stored.probabilities, views=VIEWS, labels=stored.labels)  # without a ledger
    for one in found["methods"]:
        threshold = sl.certify(preds, one["method"], risk=found["risk"], delta=0.0005).threshold
        assert one["threshold"] == threshold
        assert one["accepted"] == count_accepted(unknown_run, one["method"], threshold)
        exact = binomtest(one["accepted"], N_UNKNOWN).proportion_ci(0.95, method="exact")
        assert (one["interval"]["low"], one["interval"]["high"]) == pytest.approx((exact.low, exact.high))
        assert unknown_run.accepted_unknowns is not None
        assert f"{one['accepted']} of {N_UNKNOWN}" in unknown_run.accepted_unknowns
    assert not (unknown_run.path / "calibrations.json").exists()


def test_policy_counts_accepted_unknown_images_and_keeps_its_guarantee(unknown_run: sl.Run) -> None:
    policy = unknown_run.certify("mean", risk=0.1, delta=0.1, progress=False)
    known = sl.Predictions(
        probabilities=unknown_run.predictions.probabilities, views=VIEWS, labels=unknown_run.predictions.labels
    )
    assert policy.threshold == sl.certify(known, "mean", risk=0.1, delta=0.1).threshold
    found = unknown_run.count_accepted_unknowns(policy)
    assert found is not None
    assert found.accepted == count_accepted(unknown_run, "mean", policy.threshold)
    share = f"{100 * found.accepted / N_UNKNOWN:.1f}".rstrip("0").rstrip(".")
    assert str(found) == f"accepts {found.accepted} of {N_UNKNOWN} unknown images ({share} %)"


def test_report_has_a_section_with_the_numbers_and_the_accepted_images(unknown_run: sl.Run) -> None:
    policy = unknown_run.certify("mean", risk=0.1, delta=0.1, progress=False)
    written = unknown_run.report(progress=False)
    report = Report(written.path)
    assert written.notes == ()
    assert 'id="unknown-gallery"' in report.text
    data, accepted = report.data, count_accepted(unknown_run, "mean", policy.threshold)
    (row,) = report.rows("unknown-accepted")
    assert (row["method"], row["accepted"], row["images"]) == ("mean", str(accepted), str(N_UNKNOWN))
    assert data["unknown"] == N_UNKNOWN
    methods = {one["name"]: one for one in data["methods"]}
    assert methods["bootstrap"]["unknown"] is None, "a rank among other images"
    thresholds = methods["mean"]["thresholds"]
    expected = [count_accepted(unknown_run, "mean", threshold) for threshold in thresholds[::50]]
    assert methods["mean"]["unknown"][::50].tolist() == expected
    pictures = data["unknown_pictures"]
    place = [one["name"] for one in data["methods"]].index("mean")
    assert len(pictures) == 60
    shown = [one["confidences"][place] for one in pictures]
    assert unknown_run.unknown_predictions is not None
    assert shown == sorted(sl.confidence(unknown_run.unknown_predictions, "mean").tolist(), reverse=True)[:60]
    assert {one["label"] for one in pictures} == {None}
    rows = {(one.method, one.metric): one for one in unknown_run.evaluation.rows if one.group == "unknown detection"}
    for method in ("msr", "mean", "bootstrap"):
        rows[method, "aurc"] = unknown_run.evaluation[method, "aurc"]
    found = {(row["method"], row["metric"]): float(row["value"]) for row in report.rows("unknown")}
    assert found == {key: one.value for key, one in rows.items()}


def test_changed_unknown_images_are_not_shown(unknown_run: sl.Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "unknown.npz", images=np.zeros((N_UNKNOWN, 6, 6, 3), dtype=np.uint8))
    written = sl.open_run(unknown_run.path).report(progress=False)
    (note,) = written.notes
    assert "unknown.npz" in note
    data = Report(written.path).data
    assert (len(data["unknown_pictures"]), data["unknown"]) == (0, N_UNKNOWN)
    assert data["pictures"]


def test_other_views_are_rejected(unknown_run: sl.Run) -> None:
    assert unknown_run.unknown_predictions is not None
    with pytest.raises(MetricError, match="unknown="):
        sl.write_report(
            unknown_run.predictions,
            unknown_run.path / "other.html",
            title="t",
            unknown=unknown_run.unknown_predictions.select(views="identity"),
            progress=False,
        )


def test_record_names_the_images(unknown_run: sl.Run) -> None:
    record = json.loads((unknown_run.path / "run.json").read_text())
    assert record["unknown"]["spec"] == unknown_run.settings["unknown"]
    assert unknown_run.facts["unknown images"] == unknown_run.settings["unknown"]
