"""Calibrations of a run: recorded once each, added up over the same images, duplicates counted once."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.errors import CalibrationWarning, DecisionError
from secondlook.policies import Ledger
from secondlook.report import writer
from tests.report.runs.conftest import QUIET, VIEWS, classify


def certify(run: sl.Run, method: Any = "mean", **arguments: Any) -> sl.Policy:
    """Certify with a warning allowed or not: `pytest` turns every warning into an error."""
    return run.certify(method, **{"risk": 0.1, "delta": 0.1, "progress": False, **arguments})


def joint_delta(policy: sl.Policy) -> float | None:
    assert policy.calibration is not None
    return policy.calibration.joint_delta


def recorded(run: sl.Run) -> list[dict[str, Any]]:
    content = json.loads((run.path / "calibrations.json").read_text())
    assert content["version"] == 1
    calibrations: list[dict[str, Any]] = content["calibrations"]
    return calibrations


def test_first_calibration_is_recorded_once_without_a_warning(run: sl.Run) -> None:
    policy = certify(run)
    assert joint_delta(policy) is None
    (found,) = recorded(run)
    assert (found.pop("images"), found.pop("predictions")) == (run.record.data.digest, run.record.predictions)
    assert len(found.pop("selection")) == 64
    expected = {"views": VIEWS.split(), "methods": ["mean"], "options": {}, "predict_from": "image", "top_k": 1}
    unused = dict.fromkeys(("tolerance", "max_looks", "class_risks", "class_groups"))
    assert found == {**expected, "risk": 0.1, "delta": 0.1, **unused}
    before = (run.path / "calibrations.json").read_bytes()
    assert certify(sl.open_run(run.path)) == policy
    assert (run.path / "calibrations.json").read_bytes() == before


@pytest.mark.parametrize(
    "other",
    [
        *({"method": "msr"}, {"risk": 0.2}, {"predict_from": "views"}),
        *({"method": "zero", "share": 0.5}, {"adaptive": True}),
    ],
)
def test_second_calibration_warns_of_the_joint_failure_probability(run: sl.Run, other: dict[str, Any]) -> None:
    certify(run)
    with pytest.warns(CalibrationWarning, match="20 %"):
        policy = certify(run, **other)
    assert joint_delta(policy) == pytest.approx(0.2)
    assert "20 %" in str(policy)
    assert json.loads(policy.model_dump_json())["calibration"]["joint_delta"] == pytest.approx(0.2)
    with pytest.warns(CalibrationWarning, match="20 %"):
        first = certify(run)
    assert joint_delta(first) == pytest.approx(0.2), "the first guarantee is not the only one any more"


def test_joint_failure_probability_is_the_sum_of_the_deltas_and_at_most_one(run: sl.Run) -> None:
    certify(run, delta=0.01)
    with pytest.warns(CalibrationWarning, match="3 %"):
        assert joint_delta(certify(run, "msr", delta=0.02)) == pytest.approx(0.03)
    with pytest.warns(CalibrationWarning, match="53 %"):
        certify(run, "msr", delta=0.5)
    with pytest.warns(CalibrationWarning, match="100 %"):
        assert joint_delta(certify(run, "mean", delta=0.49)) == 1


def test_calibration_that_certifies_nothing_counts(run: sl.Run) -> None:
    with pytest.raises(DecisionError):
        certify(run, risk=0.0001)
    with pytest.warns(CalibrationWarning, match="20 %"):
        certify(run)


def test_several_methods_at_once_are_one_calibration(run: sl.Run) -> None:
    policy = certify(run, ["msr", "mean"])
    rule = sl.certify(run.predictions, ["msr", "mean"], risk=0.1, delta=0.1)
    assert policy == rule
    assert policy.guarantee is not None
    assert policy.guarantee.delta == 0.1
    assert joint_delta(policy) is None
    assert [(one["methods"], one["delta"]) for one in recorded(run)] == [(["msr", "mean"], 0.1)]
    certify(run, ["mean", "msr"])
    assert len(recorded(run)) == 1, "the order of the methods does not matter"
    with pytest.warns(CalibrationWarning, match="20 %"):
        certify(run)


def test_certify_on_the_predictions_of_a_run_is_recorded(run: sl.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "render_plots", lambda findings: ())  # they take most of the time
    certify(run)
    terms: dict[str, Any] = {"risk": 0.1, "delta": 0.1}
    assert joint_delta(sl.certify(run.predictions, "mean", **terms)) is None, "the same calibration again"
    half = run.predictions.select(images=np.arange(250))
    others: list[tuple[sl.Predictions, dict[str, Any]]] = [
        (half, {}),
        (run.predictions, {"groups": ["a", "b"] * 250}),
        (run.predictions, {"groups": ["a", "a"] * 250}),
        (run.predictions, {"tuning": np.arange(100)}),
        (run.predictions, {"duplicates": run.predictions.ids[:3]}),
        (run.predictions, {"risk": 0.0001}),
    ]
    for number, (preds, changes) in enumerate(others, start=2):
        for _ in range(2):  # the second time adds nothing
            with pytest.warns(CalibrationWarning, match=f"{10 * number} %"):
                policy = sl.certify(preds, "mean", **(terms | changes))
            assert joint_delta(policy) == pytest.approx(0.1 * number)
            assert policy.certified == ("risk" not in changes)
    with pytest.warns(CalibrationWarning, match="80 %"):
        certify(run, "msr")
    written = run.report(progress=False, galleries=False)
    assert "for msr: " in written.terms
    with pytest.warns(CalibrationWarning, match="90 %"):
        sl.certify(half, "mean", risk=0.2, delta=0.1)
    assert run.report(progress=False, galleries=False).terms == written.terms, "other images than those of the page"


def test_given_schedule_and_plain_arrays(run: sl.Run) -> None:
    schedule = certify(run, adaptive=True).schedule
    assert schedule is not None
    terms: dict[str, Any] = {"risk": 0.1, "delta": 0.1, "tuning": np.arange(100)}
    with pytest.warns(CalibrationWarning, match="20 %"):
        sl.certify(run.predictions, "mean", adaptive=schedule, **terms)
    preds = run.predictions
    copy = sl.Predictions(probabilities=preds.probabilities, views=preds.views, labels=preds.labels)
    assert joint_delta(sl.certify(copy, "mean", **terms)) is None
    assert len(recorded(run)) == 2


def test_thresholds_for_classes_are_one_calibration_with_its_delta(run: sl.Run) -> None:
    policy = certify(run, risk=0.3, groups="class")
    rule = sl.certify(run.predictions, "mean", risk=0.3, delta=0.1, groups="class")
    assert policy == rule
    assert policy.groups
    assert joint_delta(policy) is None
    (record,) = recorded(run)
    assert (record["risk"], record["delta"], record["class_risks"]) == (0.3, 0.1, [0.3, 0.3])
    certify(run, risk={"dark": 0.3, "*": 0.3}, groups="class")
    assert len(recorded(run)) == 1, "the same risks given in another way"
    with pytest.warns(CalibrationWarning, match="20 %"):
        certify(run, risk={"dark": 0.2, "*": 0.3}, groups="class")
    assert recorded(run)[1]["class_risks"] == [0.2, 0.3]
    with pytest.warns(CalibrationWarning, match="30 %"):
        certify(run, risk=0.3)
    groups: dict[str, list[str | int]] = {"both": ["dark", "bright"]}
    with pytest.warns(CalibrationWarning, match="40 %"):
        assert certify(run, risk=0.3, groups=groups).shared_classes == {"both": [0, 1]}
    assert (recorded(run)[3]["class_risks"], recorded(run)[3]["class_groups"]) == ([0.3], {"both": [0, 1]})


def test_calibration_without_a_certified_class_counts(run: sl.Run) -> None:
    with pytest.raises(DecisionError, match="every predicted class"):
        certify(run, risk={"dark": 0.0001, "bright": 0.0002}, groups="class")
    assert [(one["risk"], one["class_risks"]) for one in recorded(run)] == [(0.0002, [0.0001, 0.0002])]


def test_invalid_calibrations_and_thresholds_without_a_guarantee_are_not_recorded(run: sl.Run) -> None:
    groups: Any = ["a", "b"] * 250
    with pytest.raises(DecisionError, match="groups='class'"):
        certify(run, groups=groups)
    for arguments in ({"risk": "a"}, {"method": "meen"}, {"method": ["mean", "bootstrap"]}):
        with pytest.raises(sl.SecondLookError):
            certify(run, **arguments)
    run.threshold_for(coverage=0.5, progress=False)
    assert not (run.path / "calibrations.json").exists()


def test_evaluating_the_same_images_keeps_the_ledger(run: sl.Run, classifier: sl.Classifier, archive: str) -> None:
    certify(run)
    options: dict[str, Any] = {"resamples": 5, "execution": QUIET}
    again = sl.create_run(classifier, archive, out=run.path, views="identity hflip", **options)
    with pytest.warns(CalibrationWarning, match="20 %"):
        certify(again)
    others = sl.create_run(classifier, f"{archive}?limit=400", out=run.path, views=VIEWS, **options)
    assert joint_delta(certify(others)) is None
    back = sl.create_run(classifier, archive, out=run.path, views=VIEWS, **options)
    with pytest.warns(CalibrationWarning, match="20 %"):
        certify(back)


def test_another_classifier_on_the_same_images_is_another_calibration(run: sl.Run, archive: str) -> None:
    certify(run)
    other = sl.load_classifier(lambda batch: classify(batch // 2), output="probabilities", name="brightness-v2")
    replaced = sl.create_run(other, archive, out=run.path, views=VIEWS, resamples=5, execution=QUIET)
    with pytest.warns(CalibrationWarning, match="20 %"):
        certify(replaced)


def test_damaged_or_unwritable_ledger_is_an_error(run: sl.Run) -> None:
    path = run.path / "calibrations.json"
    for content in (b"", b"{}x", b'{"calibrations": [{"delta": 2}]}', b'{"version": 3}'):
        path.write_bytes(content)
        with pytest.raises(DecisionError, match=re.escape(str(path))):
            certify(run)
        assert path.read_bytes() == content
    path.unlink()
    (run.path / "calibrations.lock").unlink(missing_ok=True)
    (run.path / "calibrations.lock").mkdir()
    with pytest.raises(DecisionError, match=re.escape(str(path))):
        certify(run)


@pytest.mark.filterwarnings("ignore::secondlook.errors.CalibrationWarning")
def test_simultaneous_calibrations_are_all_recorded(run: sl.Run) -> None:
    record = run.record
    same: dict[str, Any] = {"images": record.data.digest, "predictions": record.predictions, "views": record.views}
    same |= {"methods": ("mean",), "predict_from": "image", "top_k": 1, "risk": 0.1, "delta": 0.001, "selection": ""}

    def add(number: int) -> None:
        Ledger.record(run.path / "calibrations.json", "", **same, options={"number": number})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["options"]["number"] for one in recorded(run)) == list(range(40))


def write_repeated(archive: str, path: Path, repeats: int) -> str:
    """Write an archive with every image of another one `repeats` times."""
    content = dict(np.load(archive.removeprefix("npz:")))
    content |= {name: np.repeat(content[name], repeats, axis=0) for name in ("images", "labels")}
    np.savez(path, **content)
    return f"npz:{path}"


def test_only_wrong_copies_count(run: sl.Run, classifier: sl.Classifier, archive: str, tmp_path: Path) -> None:
    spec = write_repeated(archive, tmp_path / "five.npz", 5)
    repeated = sl.create_run(classifier, spec, out=tmp_path / "five", views=VIEWS, resamples=5, execution=QUIET)
    assert len(repeated.record.data.duplicates) == 2000
    Path(spec.removeprefix("npz:")).unlink()
    expected, policy = certify(run), certify(sl.open_run(repeated.path))
    assert policy.threshold > expected.threshold
    assert policy.guarantee == expected.guarantee
    assert policy.calibration is not None
    errors = int(np.sum(~run.predictions.correct()))
    assert (policy.calibration.images, policy.calibration.duplicates) == (500 + 4 * errors, 4 * (500 - errors))
    assert f"{4 * (500 - errors):,} correct copies" in str(policy)
    with pytest.warns(CalibrationWarning, match="20 %"):
        attack = sl.certify(repeated.predictions, "mean", risk=0.1, delta=0.1)
    assert attack.coverage > policy.coverage
