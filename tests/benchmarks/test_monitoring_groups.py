"""The comparison of thresholds per class with one for all, and with Bonferroni's rule."""

import numpy as np
import pytest

import monitoring_groups as benchmark
import secondlook as sl
from secondlook.policies import certify_confidence


@pytest.fixture(scope="module")
def preds() -> sl.Predictions:
    """Predictions of three classes, of which the first is never wrong."""
    rng = np.random.default_rng(0)
    predicted, margin = rng.integers(3, size=6000), rng.gamma(2.0, 2.0, size=6000)
    logits = np.zeros((6000, 2, 3))
    logits[np.arange(6000), :, predicted] = margin[:, None]
    wrong = (predicted > 0) & (rng.random(6000) < 0.3 * np.exp(-margin / 2))
    return sl.Predictions(logits=logits, views="identity hflip", labels=np.where(wrong, 0, predicted))


def test_numbers_are_those_of_each_class_alone(preds: sl.Predictions) -> None:
    row = benchmark.compare_thresholds("simulated", preds, 0.05)
    values, predicted, correct = sl.confidence(preds, "blend"), preds.predicted(), preds.correct()
    rules = [
        certify_confidence(correct[predicted == index], values[predicted == index], risk=0.05, delta=0.001 / 3)
        for index in range(3)
    ]
    alone = sum(rule.coverage * np.mean(predicted == index) for index, rule in enumerate(rules))
    assert row["bonferroni_coverage"] == pytest.approx(alone)
    assert float(str(row["class_coverage"])) > alone, "the class without errors leaves its level to the others"
    accepted = values >= sl.certify(preds, "blend", risk=0.05).threshold
    risks = [np.mean(~correct[accepted & (predicted == index)]) for index in range(3)]
    assert row["worst_class_risk_seen"] == pytest.approx(max(risks))
    assert row["certified_classes"] == 3


def test_table_has_a_line_for_each_risk(preds: sl.Predictions) -> None:
    rows = benchmark.per_class("simulated", preds)
    lines = benchmark.format_table(rows).splitlines()
    assert len(lines) == 2 + len(benchmark.RISKS)
    assert "| 5 % |" in lines[4]
