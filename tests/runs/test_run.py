"""Runs in Python: created, opened, evaluated again, certified and reported without the model."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.errors import DecisionError, PredictionsError, ReportError, SourceError

VIEWS = "identity hflip shift:1,0"


def test_created_run_equals_the_opened_one(run: sl.Run) -> None:
    opened = sl.open_run(run.path)
    assert opened == run
    assert opened.record.views == tuple(VIEWS.split())
    assert opened.title == "brightness-v1 on data.npz"
    np.testing.assert_array_equal(opened.predictions.labels, run.predictions.labels)


def test_predictions_are_those_of_collect(run: sl.Run, classifier: sl.Classifier, archive: str) -> None:
    expected = sl.collect(classifier, archive, VIEWS, progress=False)
    np.testing.assert_array_equal(run.predictions.probabilities, expected.probabilities)
    assert tuple(run.predictions.ids) == tuple(expected.ids)


def test_stored_evaluation_equals_a_new_one(run: sl.Run) -> None:
    assert run.evaluation == run.evaluate(progress=False)
    assert run.evaluation == sl.evaluate(run.predictions, resamples=20, progress=False)


def test_evaluate_takes_other_methods_and_metrics(run: sl.Run) -> None:
    result = run.evaluate(["mean"], ["accuracy"], predict_from="views", progress=False)
    assert result.methods == ("mean",)
    assert result["mean", "accuracy"].value == run.predictions.correct(predict_from="views").mean()


def test_certify_returns_the_policy_of_the_certified_rule(run: sl.Run) -> None:
    policy = run.certify(risk=0.1, delta=0.1, progress=False)
    rule = sl.certify(run.predictions, "mean", risk=0.1, delta=0.1)
    assert policy.rule == rule
    assert policy.views == run.record.views
    assert policy.classifier == run.record.classifier
    assert policy.class_names == ("dark", "bright")


def test_certify_raises_where_nothing_can_be_certified(run: sl.Run) -> None:
    with pytest.raises(DecisionError, match=re.escape("0.01 %")):
        run.certify(risk=0.0001, progress=False)


def test_threshold_for_a_coverage_has_no_guarantee(run: sl.Run) -> None:
    policy = run.threshold_for(coverage=0.8, progress=False)
    assert not policy.rule.certified
    assert policy.rule.coverage >= 0.8


def test_seed_zero_is_recorded(run: sl.Run) -> None:
    assert run.settings["seed"] == 0


def test_settings_of_the_run_are_the_defaults(classifier: sl.Classifier, archive: str, tmp_path: Path) -> None:
    run = sl.create_run(
        classifier,
        archive,
        tmp_path / "views-run",
        views=VIEWS,
        methods=["mean"],
        metrics=["accuracy"],
        predict_from="views",
        resamples=5,
        seed=4,
        progress=False,
    )
    assert run.predict_from == "views"
    again = run.evaluate(progress=False)
    assert again == run.evaluation
    assert (again.predict_from, again.seed, again.methods) == ("views", 4, ("mean",))
    assert run.certify(risk=0.1, delta=0.1, progress=False).predict_from == "views"


def test_report_shows_images_while_they_are_there(run: sl.Run) -> None:
    written = run.report(progress=False)
    assert written.path == run.path / "report.html"
    assert written.notes == ()
    assert "<title>" in written.path.read_text(encoding="utf-8")


def test_report_without_images_has_a_note(run: sl.Run, archive: str) -> None:
    Path(archive.removeprefix("npz:")).unlink()
    written = sl.open_run(run.path).report(run.path / "other.html", progress=False)
    assert written.path.is_file()
    assert len(written.notes) == 1


def test_changed_images_are_not_shown(run: sl.Run, archive: str) -> None:
    path = Path(archive.removeprefix("npz:"))
    content = dict(np.load(path))
    content["images"] = 255 - content["images"]
    np.savez(path, **content)
    with pytest.raises(SourceError, match="changed"):
        sl.open_run(run.path).image(0)


def test_same_run_gives_the_same_bytes(classifier: sl.Classifier, archive: str, run: sl.Run) -> None:
    def content() -> dict[str, bytes]:
        files = sorted(path for path in run.path.rglob("*") if path.is_file())
        return {str(path.relative_to(run.path)): path.read_bytes() for path in files}

    before = content()
    sl.create_run(classifier, archive, run.path, views=VIEWS, resamples=20, progress=False)
    assert content() == before


def test_arrays_can_be_evaluated(classifier: sl.Classifier, tmp_path: Path) -> None:
    labels = np.arange(40) % 2
    images = np.full((40, 6, 6, 3), 200, dtype=np.uint8) * labels[:, None, None, None].astype(np.uint8)
    labels[:3] = 1 - labels[:3]
    run = sl.create_run(classifier, images, tmp_path / "run", labels=labels, views=VIEWS, resamples=5, progress=False)
    assert run.predictions.n_images == 40
    assert run.report(progress=False).notes, "an array cannot be opened again, so the report has no images"


def test_unlabeled_data_is_rejected(classifier: sl.Classifier, tmp_path: Path) -> None:
    images = np.zeros((4, 6, 6, 3), dtype=np.uint8)
    with pytest.raises(SourceError, match="labels"):
        sl.create_run(classifier, images, tmp_path / "run", views=VIEWS, progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments", [{"methods": ["meen"]}, {"metrics": ["aurok"]}, {"predict_from": "x"}, {"level": 95}, {"top_k": 0}]
)
def test_bad_arguments_are_rejected_before_anything_is_computed(
    classifier: sl.Classifier, archive: str, tmp_path: Path, arguments: dict[str, object]
) -> None:
    with pytest.raises(sl.SecondLookError, match=re.escape(repr(next(iter(arguments.values()))).strip("[]"))):
        sl.create_run(classifier, archive, tmp_path / "run", views=VIEWS, progress=False, **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_harmful_views_are_warned_of_and_recorded(archive: str, tmp_path: Path) -> None:
    def left_half(batch: Array) -> Array:
        bright = batch[:, :, :3].mean(axis=(1, 2, 3)) > batch[:, :, 3:].mean(axis=(1, 2, 3))
        return np.stack([~bright, bright], axis=1).astype(float)

    model = sl.load_classifier(left_half, output="probabilities", name="left-half")
    with pytest.warns(sl.ViewWarning, match="hflip"):
        run = sl.create_run(model, archive, tmp_path / "run", views="identity hflip", resamples=5, progress=False)
    assert "hflip" in run.record.warnings[0]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"format": "secondlook run", "version": 1}'])
def test_unreadable_folders_are_rejected(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
        (folder / "run.json").write_bytes(content)
    with pytest.raises(PredictionsError, match=re.escape(str(folder))):
        sl.open_run(folder)


def test_changed_record_is_rejected(run: sl.Run) -> None:
    path = run.path / "run.json"
    path.write_text(path.read_text().replace('"resamples": 20', '"resamples": 21'))
    with pytest.raises(PredictionsError, match="checksum"):
        sl.open_run(run.path)


def test_changed_evaluation_is_rejected(run: sl.Run) -> None:
    path = run.path / "evaluation.json"
    path.write_text(path.read_text().replace('"resamples": 20', '"resamples": 21'))
    with pytest.raises(PredictionsError, match=re.escape("evaluation.json")):
        _ = sl.open_run(run.path).evaluation


def test_damaged_evaluation_is_an_error(run: sl.Run) -> None:
    (run.path / "evaluation.json").write_text(json.dumps({"rows": [{}]}))
    with pytest.raises(PredictionsError, match=re.escape("evaluation.json")):
        _ = sl.open_run(run.path).evaluation


def test_run_that_cannot_be_written_is_an_error_with_the_path(
    run: sl.Run, classifier: sl.Classifier, archive: str
) -> None:
    (run.path / "evaluation.json").unlink()
    (run.path / "evaluation.json").mkdir()
    with pytest.raises(ReportError, match=re.escape(str(run.path / "evaluation.json"))):
        sl.create_run(classifier, archive, run.path, views=VIEWS, resamples=5, progress=False)


def test_runs_are_compared_on_shared_images(
    run: sl.Run, classifier: sl.Classifier, archive: str, tmp_path: Path
) -> None:
    other = sl.create_run(
        classifier, f"{archive}?limit=300", tmp_path / "other", views=VIEWS, resamples=5, progress=False
    )
    result = sl.compare({"all": run, "first": other}, methods=["mean"], metrics=["auroc"], resamples=5, progress=False)
    assert result.n_images == 300
    first, second = result.rows
    assert (first.value, second.difference) == (second.value, 0)
