"""The study of fourteen classifiers: its numbers against independent references, and the documentation."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import secondlook as sl
from reproduction import networks_study as study
from reproduction.defaults_study import SPLITS, Row, read_rows
from reproduction.unknown_study import CHOSEN_ON, CIFAR100_NETWORKS, NETWORKS
from secondlook.estimators import METHODS, fit_method
from secondlook.policies import certify_confidence

ROOT = Path(__file__).resolve().parents[2]
N_SPLITS = 3
TUNING = np.arange(0, 1600, 4)
VIEWS = "identity hflip shift:1,0 shift:0,1"


@pytest.fixture(scope="module")
def preds() -> sl.Predictions:
    """Logits of a classifier that errs on some images, where its views agree less."""
    random = np.random.default_rng(0)
    labels = random.integers(5, size=1600)
    signal = 4 * np.eye(5)[labels] + 1.2 * random.normal(size=(1600, 5))
    logits = signal[:, None] + random.normal(size=(1600, 4, 5))
    return sl.Predictions(logits=logits, views=VIEWS, labels=labels)


@pytest.fixture(scope="module")
def measured(preds: sl.Predictions) -> study.Measured:
    return study.measure_network(preds, TUNING, study.list_methods(preds), N_SPLITS)


@pytest.fixture(scope="module")
def rows(measured: study.Measured) -> list[Row]:
    return study.make_rows({"network": "c100-small", "chosen_on": "no"}, measured, "blend")


def test_tuning_images_are_neither_certified_on_nor_judged() -> None:
    split = study.split_others(1600, TUNING, seed=1)
    together = np.concatenate([split.tuning, split.certification, split.judged])
    assert sorted(together) == list(range(1600))
    np.testing.assert_array_equal(split.tuning, TUNING)
    assert len(split.certification) == len(split.judged) == 600
    assert set(split.judged) != set(study.split_others(1600, TUNING, seed=2).judged)


def test_numbers_are_those_of_scikit_learn_and_of_a_certified_rule(
    preds: sl.Predictions, measured: study.Measured
) -> None:
    correct = preds.correct()
    weights = fit_method(preds.select(images=TUNING), "learned")
    confidences = {"msr": sl.confidence(preds, "msr"), "learned": sl.confidence(preds, "learned", **weights)}
    for seed in range(N_SPLITS):
        split = study.split_others(preds.n_images, TUNING, seed)
        for method, confidence in confidences.items():
            judged, certified = confidence[split.judged], split.certification
            auroc = roc_auc_score(correct[split.judged], judged)
            assert measured[method, "AUROC"][seed] == pytest.approx(100 * auroc)
            error = 1 - correct[split.judged].mean()
            augrc = error**2 / 2 + error * (1 - error) * (1 - auroc)
            assert measured[method, "AUGRC"][seed] == pytest.approx(100 * augrc)
            rule = certify_confidence(correct[certified], confidence[certified], risk=0.1, delta=0.05)
            coverage = 100 * np.mean(judged >= rule.threshold)
            assert measured[method, "coverage at 10 %"][seed] == pytest.approx(coverage)
            assert coverage > 0


def test_rows_have_the_difference_to_the_image_alone_and_that_of_the_default(
    rows: list[Row], measured: study.Measured
) -> None:
    found = study.find_rows(rows, metric="AUROC")["c100-small", "mean"]
    mean, msr, blend = (measured[method, "AUROC"].mean() for method in ("mean", "msr", "blend"))
    assert float(found["value"]) == pytest.approx(mean, abs=1e-4)
    assert float(found["difference"]) == pytest.approx(mean - msr, abs=1e-4)
    assert float(found["default_difference"]) == pytest.approx(blend - mean, abs=1e-4)
    bootstrap = study.make_bootstrap_row({"network": "c100-small"}, measured)
    expected = (measured["bootstrap", "AUROC"] - measured["mean", "AUROC"]).mean()
    assert float(bootstrap["difference"]) == pytest.approx(expected, abs=1e-4)


def test_every_registered_method_is_measured(rows: list[Row]) -> None:
    methods = {row["method"].partition("?")[0].partition(":")[0] for row in rows}
    assert methods == set(METHODS)
    assert study.find_best_other(rows, "c100-small")["method"] not in ("blend", *study.FITTED)


@pytest.mark.parametrize(("gain", "loss", "is_reached"), [(1.5, -0.3, True), (1.4, -0.1, False), (3.0, -0.4, False)])
def test_missed_aims_are_marked(rows: list[Row], gain: float, loss: float, is_reached: bool) -> None:
    changed = []
    for row in rows:
        other = {"value": "99", "default_difference": str(loss)} if row["method"] == "mean" else {}
        own = {"difference": str(gain)} if row["method"] == "blend" else {}
        changed.append(row | other | own)
    assert study.is_reached(changed, "c100-small") is is_reached
    assert ("**missed**" in study.format_auroc_table(changed)) is not is_reached


def test_kept_results_are_complete_and_documented() -> None:
    methods, bootstrap, corrupted = (
        read_rows(study.RESULTS / f"{name}.csv") for name in ("methods", "bootstrap", "corrupted")
    )
    assert {row["network"] for row in methods} == set(NETWORKS)
    assert {row["network"] for row in methods if row["chosen_on"] == "yes"} == set(CHOSEN_ON)
    assert {row["splits"] for row in methods} == {str(SPLITS)}
    assert {(row["network"], row["views"]) for row in bootstrap} == {
        (network, views) for network in CIFAR100_NETWORKS for views in (study.AUTO, study.PRINTED)
    }
    documented = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert study.format_auroc_table(methods) in documented
    assert study.format_complete_table(methods, ["blend"]) in documented
    assert study.format_complete_table(methods) in (study.RESULTS / "tables.md").read_text(encoding="utf-8")
    assert study.format_bootstrap_table(bootstrap) in documented
    assert study.format_corrupted_table(corrupted) in documented
