"""What labels buy: ways to choose a threshold in a small world, and the kept results that the docs show."""

import csv
from pathlib import Path

import numpy as np
import pytest

import labels as benchmark
import secondlook as sl
from measurement import RESULTS

DOCS = Path(__file__).parents[2] / "docs"


def read_kept(name: str) -> list[dict[str, str]]:
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", benchmark.WORLDS)
def test_risks_of_worlds_are_the_means_of_their_error_rates(name: str) -> None:
    error_rate, risk = benchmark.WORLDS[name]
    middles = (np.arange(100_000) + 0.5) / 100_000
    for quantile in (0.1, 0.37, 1.0):
        expected = error_rate(middles[middles < quantile]).mean()
        assert float(risk(np.array(quantile))) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("way", ["random, fixed fractions", "random", "on demand", "thinned", "on average"])
def test_every_way_accepts_most_of_an_easy_world_and_nothing_of_a_wrong_one(way: str) -> None:
    preds, truth = benchmark.draw_world("risk 0.08 u^6", 2000, np.random.default_rng(0))
    confidence = sl.confidence(preds, "msr")
    threshold, labels = benchmark.WAYS[way]((preds, truth == 0, confidence), 1500, 0.05, 0)
    assert np.mean(confidence >= threshold) > 0.6
    assert 0 < labels <= 2000
    wrong = (preds, np.zeros(2000, dtype=bool), confidence)
    if way != "on average":
        assert benchmark.WAYS[way](wrong, 1500, 0.05, 0)[0] == np.inf


def test_weighted_errors_that_pass_are_those_of_every_split_of_the_errors() -> None:
    """Errors of k of 300 images are found with probability 1/2 and weigh 4, those of the others weigh 1."""
    rng, risk, level = np.random.default_rng(0), 0.05, 0.2
    allowed = benchmark.allow_weighted_errors(300, risk, level)
    assert allowed > 0
    for thinned in (0, 150, 300):
        found = 4 * rng.binomial(thinned, risk / 2, 20_000) + rng.binomial(300 - thinned, risk, 20_000)
        assert np.mean(found <= allowed) <= level + 0.01


def test_kept_results_hold_the_guarantee_and_are_those_of_the_docs() -> None:
    simulated = read_kept("labels_simulated")
    assert {row["world"] for row in simulated} == set(benchmark.WORLDS)
    for row in simulated:
        if row["way"] == "on average":
            assert float(row["mean_risk"]) <= float(row["risk"]) * 1.02
        else:
            assert int(row["above"]) <= int(row["most_allowed_by_chance"])
    documented = (DOCS / "labels.md").read_text(encoding="utf-8")
    assert benchmark.format_ratio_table(read_kept("labels")) in documented
    assert (DOCS / "images" / "results-labels.png").read_bytes() == (RESULTS / "labels.png").read_bytes()
