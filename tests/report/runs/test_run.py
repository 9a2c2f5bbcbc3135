"""Runs in Python: created, opened, evaluated again, certified and reported without the model."""

import json
import re
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.naive_bayes import GaussianNB

import secondlook as sl
from secondlook.arrays import Array
from secondlook.diagnosis import SetupWarning
from secondlook.errors import DecisionError, PredictionsError, ReportError, SourceError
from secondlook.files import compute_checksum
from secondlook.views import ViewWarning
from tests.report.runs.conftest import QUIET, VIEWS, classify


def test_created_run_equals_the_opened_and_its_numbers(run: sl.Run, classifier: sl.Classifier, archive: str) -> None:
    opened = sl.open_run(run.path)
    assert opened == run
    assert opened.record.views == tuple(VIEWS.split())
    assert (opened.settings["seed"], "device" in opened.settings) == (0, False)
    assert opened.title == "brightness-v1 on data.npz"
    expected = sl.collect(classifier, archive, VIEWS, execution=QUIET)
    np.testing.assert_array_equal(opened.predictions.probabilities, expected.probabilities)
    assert tuple(opened.predictions.ids) == tuple(expected.ids)
    assert run.evaluation == run.evaluate(progress=False)
    assert run.evaluation == sl.evaluate(run.predictions, resamples=20)
    result = run.evaluate(["mean"], ["accuracy"], predict_from="views", progress=False)
    assert result.methods == ("mean",)
    assert result["mean", "accuracy"].value == run.predictions.correct(predict_from="views").mean()
    policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    rule = sl.certify(run.predictions, "mean", risk=0.1, delta=0.1)
    assert policy == rule
    assert policy.views == run.record.views
    assert policy.classifier == run.record.classifier
    assert policy.class_names == ("dark", "bright")
    chosen = run.threshold_for(coverage=0.8, progress=False)
    assert not chosen.certified
    assert chosen.coverage >= 0.8


def test_run_of_an_estimator_with_integer_classes_opens_its_images(archive: str, tmp_path: Path) -> None:
    known = sl.open_source(archive)
    assert known.labels is not None
    images, labels = known.stack(), known.labels + 1
    np.savez(tmp_path / "from_one.npz", images=images, labels=labels)
    estimator = GaussianNB().fit(images.reshape(len(images), -1) / 255, labels)
    data = f"npz:{tmp_path}/from_one.npz"
    run = sl.create_run(estimator, data, out=tmp_path / "run", views=VIEWS, resamples=20, execution=QUIET)
    assert run.predictions.correct().mean() > 0.8
    assert run.record.data.class_names == ("1", "2")
    assert run.source.labels is not None
    assert run.source.labels.tolist() == run.predictions.labels.tolist() == known.labels.tolist()
    np.savez(tmp_path / "from_one.npz", images=images, labels=labels + 1)
    with pytest.raises(SourceError, match=r"from_one\.npz"):
        sl.open_run(run.path).image(0)


def test_functions_need_a_name_before_a_folder_is_created(run: sl.Run, archive: str, tmp_path: Path) -> None:
    for function in (classify, lambda batch: classify(batch), [classify, classify]):
        with pytest.raises(PredictionsError, match=r"load_classifier\(function, name='v1'\)"):
            sl.create_run(function, archive, out=tmp_path / "other", views=VIEWS, execution=QUIET)
    assert not (tmp_path / "other").exists()
    with pytest.raises(DecisionError, match=r"load_classifier\(function, name=\)") as raised:
        run.collect_unknown(np.zeros((2, 6, 6, 3), np.uint8), classify)
    assert "allow_mismatch" not in str(raised.value), "it is no argument of the method"


def test_repr_is_readable(run: sl.Run) -> None:
    accuracy = 100 * run.predictions.correct().mean()
    for text in (repr(run), run._repr_html_()):
        assert "brightness-v1 on data.npz" in text
        assert f"500 images x 3 views, accuracy {accuracy:.1f} %" in text
    assert len(repr(run).splitlines()) <= 2
    (run.path / "evaluation.json").write_text("damaged")
    assert "500 images x 3 views" in repr(sl.open_run(run.path)), "it does not need the evaluation"


def test_arguments_have_the_order_of_collect() -> None:
    collect, create_run = (list(signature(one).parameters) for one in (sl.collect, sl.create_run))
    assert create_run[:3] == collect[:3] == ["classifier", "data", "views"]
    assert len(create_run) <= 12


def test_numpy_numbers_equal_python_numbers(
    run: sl.Run, classifier: sl.Classifier, archive: str, tmp_path: Path
) -> None:
    numbers: dict[str, Any] = {"resamples": np.int64(20), "seed": np.int32(0)}
    numbers |= {"level": np.float64(0.95), "top_k": np.int64(1)}
    other = sl.create_run(classifier, archive, out=tmp_path / "other", views=VIEWS, execution=QUIET, **numbers)
    assert other.evaluation == run.evaluation
    assert (tmp_path / "other" / "evaluation.json").read_bytes() == (tmp_path / "run" / "evaluation.json").read_bytes()


def test_settings_of_the_run_are_the_defaults(classifier: sl.Classifier, archive: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": ["mean"], "metrics": ["accuracy"], "predict_from": "views", "seed": 4}
    run = sl.create_run(classifier, archive, VIEWS, out=tmp_path / "run", **options, resamples=5, execution=QUIET)
    assert run.predict_from == "views"
    again = run.evaluate(progress=False)
    assert again == run.evaluation
    assert (again.predict_from, again.seed, again.methods) == ("views", 4, ("mean",))
    assert run.certify(risk=0.1, delta=0.1, progress=False).predict_from == "views"


def read_files(run: sl.Run) -> dict[str, bytes]:
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files}


def test_report_is_kept_for_the_same_run_only(run: sl.Run, classifier: sl.Classifier, archive: str) -> None:
    written = run.report(progress=False)
    assert (written.path, written.notes) == (run.path / "report.html", ())
    before = read_files(run)
    sl.create_run(classifier, archive, out=run.path, views=VIEWS, resamples=20, execution=QUIET)
    assert read_files(run) == before
    sl.create_run(classifier, archive, out=run.path, views=VIEWS, resamples=20, seed=1, execution=QUIET)
    assert not list(run.path.glob("report*"))


@pytest.mark.parametrize("change", [{"views": "identity hflip"}, {"predict_from": "views"}, {"data": "?limit=400"}])
def test_outdated_report_is_removed_but_no_user_file(
    run: sl.Run, classifier: sl.Classifier, archive: str, change: dict[str, Any]
) -> None:
    (run.path / "report-files").mkdir()
    for name in ("report.html", "other.html", "report-files/methods.csv", "report-files/notes.csv"):
        (run.path / name).write_text("...")
    options = {"views": VIEWS, "resamples": 20, **change}
    sl.create_run(classifier, archive + options.pop("data", ""), out=run.path, execution=QUIET, **options)
    left = {path.name for path in [*run.path.glob("*.html"), *run.path.glob("report-files/*")]}
    assert left == {"other.html", "notes.csv"}


def test_page_in_a_folder_without_a_run_is_kept(classifier: sl.Classifier, archive: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_text("of a person")
    sl.create_run(classifier, archive, out=tmp_path / "run", views=VIEWS, resamples=5, execution=QUIET)
    assert (tmp_path / "run" / "report.html").read_text() == "of a person"


def write_folders(root: Path) -> None:
    """Write two folders of images, one for each class, in the order of the classifier."""
    for name, value in (("a-dark", 30), ("bright", 220)):
        (root / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(np.full((6, 6, 3), value + number, dtype=np.uint8)).save(root / name / f"{number}.png")


@pytest.mark.parametrize("place", ["val", "val/run", "val/bright/a/b", "val/../val/run", "link/run"])
@pytest.mark.posix
def test_run_among_the_images_is_rejected(classifier: sl.Classifier, tmp_path: Path, place: str) -> None:
    write_folders(tmp_path / "val")
    (tmp_path / "link").symlink_to(tmp_path / "val")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ReportError, match=re.escape(str(tmp_path / place))):
        sl.create_run(classifier, f"folder:{tmp_path / 'val'}", out=tmp_path / place, views=VIEWS, execution=QUIET)
    assert sorted(tmp_path.rglob("*")) == before


def test_images_inside_a_run_are_rejected(classifier: sl.Classifier, archive: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"views": VIEWS, "execution": QUIET}
    for number, place in enumerate(("predictions", "predictions/val", "unknown", "report-files")):
        out = tmp_path / str(number)
        write_folders(out / place)
        with pytest.raises(ReportError, match=re.escape(place)):
            sl.create_run(classifier, f"folder:{out / place}", out=out, **arguments)
    write_folders(tmp_path / "other")
    arguments |= {"unknown": f"folder:{tmp_path / 'other'}"}
    with pytest.raises(ReportError, match="other"):
        sl.create_run(classifier, archive, out=tmp_path / "other" / "run", **arguments)


@pytest.mark.filterwarnings("ignore::secondlook.predictions.ClassNamesWarning")
def test_run_beside_or_above_the_images_is_written(classifier: sl.Classifier, tmp_path: Path) -> None:
    write_folders(tmp_path / "data" / "val")
    for place in ("data", "data/val-run"):
        data = f"folder:{tmp_path / 'data' / 'val'}"
        run = sl.create_run(classifier, data, out=tmp_path / place, views=VIEWS, resamples=5, execution=QUIET)
        assert run.predictions.n_images == 20


def forge(path: Path, **changes: object) -> None:
    """Change a record and leave its checksum out."""
    content = {**json.loads(path.read_text()), **changes}
    content.pop("checksum", None)
    path.write_text(json.dumps(content))


def test_forged_settings_are_rejected_and_unknown_ones_kept(run: sl.Run) -> None:
    values = {"resamples": "many", "top_k": 0, "method": [3], "metric": {"a": 1}, "level": 2, "predict_from": "x"}
    for name, value in values.items():
        forge(run.path / "run.json", settings={**run.settings, name: value})
        with pytest.raises(PredictionsError, match=f"settings.{name}"):
            sl.open_run(run.path)
    forge(run.path / "run.json", settings={**run.settings, "resamples": 10**15})
    for compute in (sl.open_run(run.path).evaluate, sl.open_run(run.path).report):
        with pytest.raises(sl.SecondLookError, match=str(10**15)):
            compute(progress=False)
    forge(run.path / "run.json", settings={**run.settings, "later": [1]})
    assert "later" in sl.open_run(run.path).settings


def test_changed_forged_and_unwritable_files_are_rejected(run: sl.Run, classifier: sl.Classifier, archive: str) -> None:
    path, record = run.path / "evaluation.json", run.path / "run.json"
    told, evaluation, recorded = re.escape(str(path)), path.read_text(), record.read_text()
    path.write_text(evaluation.replace('"resamples": 20', '"resamples": 21'))
    with pytest.raises(PredictionsError, match=told):
        _ = sl.open_run(run.path).evaluation
    rows: tuple[object, ...] = ([], [{}], 3, [[[[]]]], [{"images": "\ud800"}])
    for forged in rows:
        path.write_text(evaluation)
        forge(path, rows=forged)
        forge(record, evaluation=compute_checksum(json.loads(path.read_text())))
        with pytest.raises(PredictionsError, match=told):
            _ = sl.open_run(run.path).evaluation
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(PredictionsError, match=told):
        _ = run.evaluation
    record.write_text(recorded.replace('"resamples": 20', '"resamples": 21'))
    with pytest.raises(PredictionsError, match="checksum"):
        sl.open_run(run.path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ReportError, match=told):
        sl.create_run(classifier, archive, out=run.path, views=VIEWS, resamples=5, execution=QUIET)


def test_changed_images_are_not_shown_and_a_report_without_images_has_a_note(run: sl.Run, archive: str) -> None:
    path = Path(archive.removeprefix("npz:"))
    content = dict(np.load(path))
    content["images"] = 255 - content["images"]
    np.savez(path, **content)
    with pytest.raises(SourceError, match="changed"):
        sl.open_run(run.path).image(0)
    path.unlink()
    written = sl.open_run(run.path).report(run.path / "other.html", progress=False)
    assert written.path.is_file()
    assert len(written.notes) == 1


def test_arrays_can_be_evaluated(classifier: sl.Classifier, tmp_path: Path) -> None:
    labels = np.arange(40) % 2
    images = np.full((40, 6, 6, 3), 200, dtype=np.uint8) * labels[:, None, None, None].astype(np.uint8)
    labels[:3] = 1 - labels[:3]
    run = sl.create_run(
        classifier, images, out=tmp_path / "run", labels=labels, views=VIEWS, resamples=5, execution=QUIET
    )
    assert run.predictions.n_images == 40
    assert run.report(progress=False).notes, "an array cannot be opened again, so the report has no images"


def test_bad_arguments_fail_before_all_computations(classifier: sl.Classifier, archive: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "views": VIEWS, "execution": QUIET}
    wrong: dict[str, Any] = {"methods": ["meen"], "metrics": ["aurok"], "predict_from": "x"}
    wrong |= {"level": 95, "top_k": 0, "seed": -1}
    for name, value in wrong.items():
        with pytest.raises(sl.SecondLookError, match=re.escape(repr(value).strip("[]"))):
            sl.create_run(classifier, archive, **options, **{name: value})
    with pytest.raises(TypeError, match="resample"):
        sl.create_run(classifier, archive, **options, resample=5)
    with pytest.raises(SourceError, match="labels"):
        sl.create_run(classifier, np.zeros((4, 6, 6, 3), dtype=np.uint8), **options)
    assert not (tmp_path / "run").exists()


def classify_left_half(batch: Array) -> Array:
    """Tell whether the left half is brighter than the right half. uint8 [N, 6, 6, 3] -> float64 [N, 2]"""
    contrast = batch[:, :, :3].mean(axis=(1, 2, 3)) - batch[:, :, 3:].mean(axis=(1, 2, 3))
    bright = 1 / (1 + np.exp(-contrast))
    return np.stack([1 - bright, bright], axis=1)


def make_left_half_images(tmp_path: Path, n_images: int = 1200) -> str:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n_images, 6, 6, 3), dtype=np.uint8)
    labels = classify_left_half(images).argmax(axis=1)
    wrong = rng.random(n_images) < 0.15
    np.savez(tmp_path / "halves.npz", images=images, labels=np.where(wrong, 1 - labels, labels))
    return f"npz:{tmp_path / 'halves.npz'}"


def test_harmful_views_cause_a_warning_or_are_removed_on_tuning_images(tmp_path: Path) -> None:
    model = sl.load_classifier(classify_left_half, output="probabilities", name="left-half")
    data = make_left_half_images(tmp_path)
    with pytest.warns(ViewWarning, match=r"hflip.*'auto'"):
        run = sl.create_run(model, data, out=tmp_path / "run", views="identity hflip", resamples=5, execution=QUIET)
    assert "hflip" in run.record.warnings[0]
    with pytest.warns(ViewWarning, match="hflip"):
        run.threshold_for(coverage=0.8, progress=False)
    with pytest.warns(ViewWarning, match="hflip"):
        run.certify("msr", risk=0.3, delta=0.1, progress=False)
    run = sl.create_run(model, data, out=tmp_path / "auto", resamples=5, execution=QUIET)
    assert run.settings["views"] == "auto"
    choice = run.record.view_choice
    assert choice is not None
    assert run.record.views == choice.views
    assert not any("hflip" in view for view in choice.views)
    assert "hflip" in choice.set_aside
    assert run.record.warnings == ()
    assert len(run.record.tuning) == len(run.tuning_positions) == 300
    assert run.evaluation.tuning_images == 300
    assert all(one.images == 900 for one in run.evaluation.rows)
    policy = run.certify(risk=0.3, delta=0.1, progress=False)
    assert policy.method == "blend"
    assert policy.calibration is not None
    assert (policy.calibration.images, policy.calibration.tuning) == (900, 300)
    assert run.evaluation == run.evaluate(progress=False)
    assert sl.open_run(run.path) == run


def test_automatic_choice_is_resumed_and_repeated(tmp_path: Path) -> None:
    calls = []

    def classify(batch: Array) -> Array:
        calls.append(len(batch))
        return classify_left_half(batch)

    model = sl.load_classifier(classify, output="probabilities", name="left-half")
    data = make_left_half_images(tmp_path, 400)
    first = sl.create_run(model, data, out=tmp_path / "run", resamples=5, check_setup=False, execution=QUIET)
    record = (tmp_path / "run" / "run.json").read_bytes()
    calls.clear()
    assert sl.create_run(model, data, out=tmp_path / "run", resamples=5, check_setup=False, execution=QUIET) == first
    assert (tmp_path / "run" / "run.json").read_bytes() == record
    assert sum(calls) <= 1, "the input is probed at most"


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b'{"format": "secondlook run", "version": 1}', b'{"version": 4}']
)
def test_unreadable_folders_are_rejected(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
        (folder / "run.json").write_bytes(content)
    with pytest.raises(PredictionsError, match=re.escape(str(folder))):
        sl.open_run(folder)


def test_wrong_setup_causes_a_warning_that_is_stored(archive: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def classify_inverted(batch: Array) -> Array:
        calls.append(len(batch))
        return classify(batch)[:, ::-1]

    model = sl.load_classifier(classify_inverted, name="inverted-v1")
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 5, "execution": QUIET}
    with pytest.warns(SetupWarning, match="'dark' and 'bright'"):
        run = sl.create_run(model, archive, out=tmp_path / "run", **arguments)
    assert "'dark' and 'bright'" in run.record.warnings[0]
    assert json.loads((run.path / "evaluation.json").read_bytes())["warnings"][0] == run.record.warnings[0]
    record, classified = (run.path / "run.json").read_bytes(), sum(calls)
    with pytest.warns(SetupWarning, match="'dark' and 'bright'"):
        sl.create_run(model, archive, out=tmp_path / "run", **arguments)
    assert (run.path / "run.json").read_bytes() == record
    assert sum(calls) == classified  # everything is stored


def test_setup_check_can_be_skipped(archive: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def guess(batch: Array) -> Array:
        calls.append(len(batch))
        return np.tile([0.1, 0.9], (len(batch), 1))

    model = sl.load_classifier(guess, name="guess-v1")
    arguments: dict[str, Any] = {"views": "identity", "resamples": 5, "execution": QUIET}
    run = sl.create_run(model, archive, out=tmp_path / "run", check_setup=False, **arguments)
    assert sum(calls) == 500
    assert run.settings["no_check"] is True
    sl.create_run(model, archive, out=tmp_path / "run", **arguments)  # not checked before
    assert sum(calls) > 500
    assert "no_check" not in sl.open_run(run.path).settings


def test_all_predictions_run_on_the_device(cuda_1_only: sl.Classifier, archive: str, tmp_path: Path) -> None:
    """The setup check, the choice of views, the labeled and the unknown images."""
    path, noise = tmp_path / "run", np.zeros((4, 6, 6, 3), dtype=np.uint8)
    options: dict[str, Any] = {"unknown": noise, "resamples": 5}
    run = sl.create_run(cuda_1_only, archive, out=path, execution=sl.Execution("cuda:1", progress=False), **options)
    assert run.record.settings["device"] == "cuda:1"
    with pytest.raises(AssertionError):
        sl.create_run(cuda_1_only, archive, out=tmp_path / "other", execution=QUIET, **options)
