"""The study of the defaults: its numbers against independent references, and the documentation against its results."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

import secondlook as sl
from reproduction import defaults_study as study
from reproduction.sklearn_classifiers import cut_patches, fit_network, load_digit_images, split_signs
from secondlook.arrays import Array
from secondlook.cli.demo import digit_images
from secondlook.diagnosis import candidate_views
from secondlook.estimators import fit_method
from secondlook.policies import certify_confidence

ROOT = Path(__file__).resolve().parents[2]
N_SPLITS = 2


def simulate(*, n_images: int = 900, harm: float = 0.0, seed: int = 0, n_classes: int = 4) -> sl.Predictions:
    """Return logits of a classifier that errs on some images; flips replace a part of the outputs by noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(n_classes, size=n_images)
    signal = 2.5 * np.eye(n_classes)[labels] + 1.2 * random.normal(size=(n_images, n_classes))
    logits = signal[:, None] + 0.8 * random.normal(size=(n_images, len(study.VIEWS), n_classes))
    for position, view in enumerate(study.VIEWS):
        harmed = (random.random(n_images) < harm) & view.startswith("hflip")
        logits[harmed, position] = 5 * random.normal(size=(harmed.sum(), n_classes))
    return sl.Predictions(logits=logits, views=study.VIEWS, labels=labels)


@pytest.fixture(scope="module")
def sets() -> list[study.StudySet]:
    return [
        study.StudySet("harmless", simulate(), "natural", False),
        study.StudySet("harmful flips", simulate(harm=0.9, seed=1), "digits", False),
        study.StudySet("seen", simulate(seed=2), "natural", True),
    ]


Rows = tuple[list[study.Row], list[study.Row]]


@pytest.fixture(scope="module")
def rows(sets: list[study.StudySet]) -> Rows:
    return study.run_study(sets, N_SPLITS)


def find_row(rows: list[study.Row], **wanted: str) -> study.Row:
    (found,) = (row for row in rows if wanted.items() <= row.items())
    return found


@pytest.mark.parametrize("n_images", [8, 1597, 10_000])
def test_a_split_uses_every_image_once(n_images: int) -> None:
    split = study.split_images(n_images, seed=3)
    together = np.concatenate([split.tuning, split.certification, split.judged])
    assert sorted(together) == list(range(n_images))
    assert len(split.tuning) == min(1_000, n_images // 4)
    assert len(split.judged) - len(split.certification) in (0, 1)


@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_metrics_are_those_of_scikit_learn(rows: Rows, sets: list[study.StudySet], predict_from: str) -> None:
    preds = sets[0].preds.select(views="natural")
    probabilities = preds.probabilities.astype(np.float64)
    predicted = (probabilities[:, 0] if predict_from == "image" else probabilities.mean(axis=1)).argmax(axis=1)
    correct = predicted == preds.labels
    mean = probabilities.mean(axis=1)[np.arange(len(predicted)), predicted]
    judged = [study.split_images(preds.n_images, seed).judged for seed in range(N_SPLITS)]
    expected = {
        "accuracy": [correct[part].mean() for part in judged],
        "AUROC": [roc_auc_score(correct[part], mean[part]) for part in judged],
        "AUPR": [average_precision_score(~correct[part], -mean[part]) for part in judged],
    }
    for metric, values in expected.items():
        row = find_row(rows[0], set="harmless", predict_from=predict_from, confidence="mean", metric=metric)
        assert float(row["value"]) == pytest.approx(100 * np.mean(values), abs=2e-3)
        assert float(row["difference"]) == 0


@pytest.mark.parametrize("name", ["blend", "learned"])
def test_coverage_is_that_of_a_certified_rule(rows: Rows, sets: list[study.StudySet], name: str) -> None:
    preds = sets[0].preds.select(views="natural")
    coverages = []
    for seed in range(N_SPLITS):
        split = study.split_images(preds.n_images, seed)
        options = fit_method(preds.select(images=split.tuning), name)
        # What was fitted to the tuning images must not be certified on them.
        labeled = split.certification if name == "learned" else np.concatenate([split.tuning, split.certification])
        confidence = sl.confidence(preds, name, **options)
        rule = certify_confidence(preds.correct()[labeled], confidence[labeled], risk=0.05, delta=0.05)
        coverages.append(np.mean(confidence[split.judged] >= rule.threshold))
    row = find_row(rows[0], set="harmless", predict_from="image", confidence=name, metric="coverage at 5 %")
    assert float(row["value"]) == pytest.approx(100 * np.mean(coverages), abs=1e-4)
    assert np.mean(coverages) > 0


def test_every_confidence_is_measured_and_rows_survive_the_file(rows: Rows, tmp_path: Path) -> None:
    metrics = (*study.MEASURED, *study.CERTIFIED)
    assert len(rows[0]) == 4 * 2 * len(study.CONFIDENCES) * len(metrics)  # three sets and their average
    study.write_rows(tmp_path / "made" / "rows.csv", rows[1])
    assert study.read_rows(tmp_path / "made" / "rows.csv") == rows[1]


def test_mean_margin_is_the_mean_over_views_of_the_margin() -> None:
    preds = simulate(n_images=60)
    sorted_outputs = np.sort(preds.probabilities.astype(np.float64), axis=2)
    own = np.take_along_axis(preds.probabilities, preds.predicted()[:, None, None], axis=2)[:, :, 0].astype(np.float64)
    others = np.where(own == sorted_outputs[:, :, -1], sorted_outputs[:, :, -2], sorted_outputs[:, :, -1])
    method, options = study.CONFIDENCES["mean margin"]
    order = stats.spearmanr(sl.confidence(preds, method, **options), (own - others).mean(axis=1)).statistic
    assert order == pytest.approx(1, abs=1e-6)


def test_defaults_set_harmful_flips_aside_and_the_average_what_choices_were_made_on(rows: Rows) -> None:
    for metric in ("AUROC", "coverage at 5 %"):
        wanted = {"predict_from": "image", "confidence": "blend", "metric": metric}
        single = [float(find_row(rows[0], set=name, **wanted)["difference"]) for name in ("harmless", "harmful flips")]
        average = find_row(rows[0], set=study.AVERAGE, **wanted)
        assert float(average["difference"]) == pytest.approx(np.mean(single), abs=1e-4)
    defaults, image, natural = (
        float(find_row(rows[1], set="harmful flips", views=views)["value"])
        for views in (study.DEFAULTS, study.IMAGE, "natural, blend")
    )
    assert defaults > image > natural
    differences = find_row(rows[1], set="harmful flips", views="natural, blend")
    assert float(differences["difference"]) == pytest.approx(defaults - natural, abs=2e-4)
    assert f"({N_SPLITS})" in find_row(rows[1], set="harmful flips", views=study.DEFAULTS)["chosen"]


def test_a_confidence_that_cannot_be_computed_has_no_rows() -> None:
    preds = simulate(n_images=120)
    probabilities = sl.Predictions(probabilities=preds.probabilities, views=preds.views, labels=preds.labels)
    rows, _ = study.run_study([study.StudySet("small", probabilities, "natural", False)], N_SPLITS)
    missing = set(study.CONFIDENCES) - {row["confidence"] for row in rows}
    assert missing == {"max-logit-pnorm on views", "learned"}  # no logits, too few images to fit
    assert "–" in study.format_confidences_table(rows)


def test_interval_is_that_of_scipy_and_spread_the_standard_error() -> None:
    values = np.array([1.0, 2.0, 4.0, 5.0])
    mean, low, high = study.summarize(values)
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 3, loc=3.0, scale=values.std(ddof=1)))
    assert mean == 3
    drawn = np.random.default_rng(0).normal(size=4_000)
    splits = [study.split_images(len(drawn), seed) for seed in range(400)]
    spread = np.std([drawn[split.judged].mean() for split in splits])
    # Between the standard error and 1.3 times it: 38 to 45 % of the images are judged, not half.
    assert 1.0 < spread / (drawn.std() / np.sqrt(len(drawn))) < 1.5


@pytest.mark.parametrize(
    ("image_difference", "preset_difference", "misses"), [(-0.05, -0.15, 0), (-0.2, 0.0, 1), (-0.2, -0.3, 2)]
)
def test_misses_are_marked(image_difference: float, preset_difference: float, misses: int) -> None:
    differences = {study.DEFAULTS: 0.0, study.IMAGE: image_difference, "natural, mean": preset_difference}
    rows = [
        {"set": "one", "chosen_on": "no", "views": views, "splits": "20", "value": "90"}
        | dict.fromkeys(("difference", "difference_low", "difference_high"), str(difference))
        for views, difference in differences.items()
    ]
    assert study.format_defaults_table(rows).count("**") == 2 * misses


def count_bright_sides(images: Array) -> Array:
    """Return logits that differ between an image and its mirror image."""
    parts = (images[:, :, :16], images[:, :, 16:], images[:, :4])  # left, right, top
    return np.stack([part.mean((1, 2, 3)) for part in parts], axis=1).astype(np.float32) / 32


def test_mirrored_predictions_are_exact() -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(6, 32, 32, 3), dtype=np.uint8)
    model = sl.load_classifier(count_bright_sides, output="logits")
    labels = np.zeros(6, dtype=np.int64)
    mirrored = study.mirror(sl.collect(model, images, study.VIEWS, labels=labels))
    expected = sl.collect(model, np.ascontiguousarray(images[:, :, ::-1]), mirrored.views, labels=labels)
    np.testing.assert_allclose(mirrored.logits, expected.logits, rtol=1e-6)
    pool = candidate_views("auto", n=None).texts
    shifts = {view for view in pool if view in ("identity", "hflip") or "shift" in view}
    assert shifts <= set(mirrored.views.texts)


@pytest.mark.parametrize("preset", study.PRESETS)
def test_presets_in_percent_are_the_presets(preset: str) -> None:
    preds = simulate(n_images=20)
    views = study.find_preset_views(preset, preds)
    image = np.random.default_rng(0).integers(0, 256, size=(1, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_array_equal(sl.apply_views(image, views), sl.apply_views(image, preset))


def test_signs_are_digits_of_the_demo_and_mirror_images_and_patches_do_not_overlap() -> None:
    images, labels = digit_images()
    digits = load_digit_images()
    np.testing.assert_array_equal(digits.images, images)
    np.testing.assert_array_equal(digits.labels, labels)
    training, unseen = split_signs(digits)
    for part in (training, unseen):
        half = len(part.labels) // 2
        np.testing.assert_array_equal(part.images[half:], part.images[:half, :, ::-1])
        assert (part.labels[half:] - part.labels[:half] == 7).all()
        assert set(part.labels) == set(range(14))
    patches = cut_patches(even=True, count=50), cut_patches(even=False, count=50)
    assert set(patches[0].labels) == set(patches[1].labels) == set(range(6))
    for first, second in ((training, unseen), patches):
        assert not {image.tobytes() for image in first.images} & {image.tobytes() for image in second.images}


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_logits_of_a_network_belong_to_its_probabilities() -> None:
    digits = load_digit_images()
    logits, probabilities = (fit_network(digits[:60], hidden=8, output=one) for one in ("logits", "probabilities"))
    expected = probabilities.probabilities(digits.images[60:90])
    np.testing.assert_allclose(logits.probabilities(digits.images[60:90]), expected, rtol=1e-4, atol=1e-6)


def test_kept_results_are_complete_and_documented() -> None:
    rows = study.read_rows(study.RESULTS / "defaults.csv")
    names = {row["set"] for row in rows}
    flipped = {f"{name}, {how}" for name in study.ALSO_FLIPPED for how in ("mirrored", "upside down")}
    assert {*study.RESNETS, *study.WIDE_RESNETS, *study.ENSEMBLES, *flipped} < names
    assert len(names) == 26  # with the six networks on what scikit-learn ships, label smoothing included
    assert {row["splits"] for row in rows} == {str(study.SPLITS)}
    assert not {row["set"] for row in rows if row["views"] == study.IMAGE and float(row["difference"]) < -0.1}
    documented = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert study.format_methods_table(study.read_rows(study.RESULTS / "confidences.csv")) in documented
    marked = re.findall(r"^\| (\S+) † ", documented, re.MULTILINE)
    assert set(study.CHOSEN_ON) <= set(marked)
