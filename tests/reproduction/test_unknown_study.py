"""The study of unknown images: its images, its policies on made-up predictions, and the table in the documentation."""

from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from reproduction import unknown_study as study
from reproduction.defaults_study import read_rows

VIEWS = "identity hflip shift:1,0"


@pytest.fixture(scope="module")
def sets() -> dict[str, sl.Predictions]:
    """Known images of five classes, and unknown ones whose fifth output is larger than that of known images."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 3000)
    logits = rng.normal(size=(3000, 3, 5)) + rng.normal(size=(3000, 1, 5))
    logits[np.arange(3000), :, labels] += 5
    others = rng.normal(size=(600, 3, 5)) + rng.normal(size=(600, 1, 5))
    others[np.arange(600), :, rng.integers(0, 4, 600)] += 5
    others[:, :, 4] += 4
    return {
        study.KNOWN: sl.Predictions(logits=logits, views=VIEWS, labels=labels),
        "made": sl.Predictions(logits=others, views=VIEWS),
    }


def test_far_images_are_the_same_ones_each_time_and_differ_by_set() -> None:
    sets = study.make_far_sets()
    assert set(sets) == {"digits", "patches", "textures", "noise"}
    for images in sets.values():
        assert images.dtype == np.uint8
        assert images.shape[1:] == (32, 32, 3)
        assert images.std(axis=(1, 2, 3)).mean() > 20
    study.make_far_sets.cache_clear()
    again = study.make_far_sets()
    for name, images in sets.items():
        np.testing.assert_array_equal(images, again[name])
    compressed = study.compress(sets["textures"][:3])
    assert 0 < np.abs(compressed.astype(int) - sets["textures"][:3]).mean() < 25


def test_examples_reject_more_unknown_images_at_the_same_risk(sets: dict[str, sl.Predictions]) -> None:
    rows = {row["policy"]: row for row in study.measure_policies(sets, 0.05)}
    assert tuple(rows) == study.POLICIES
    accepted = {policy: float(row[study.ACCEPTED]) for policy, row in rows.items()}
    assert accepted["examples 0.05"] < 0.7 * accepted[study.DEFAULT]
    assert all(float(row[study.ERRORS]) < 6 for row in rows.values())
    assert float(rows["budget 0.02"][study.COVERAGE]) > float(rows[study.DEFAULT][study.COVERAGE]) - 5


def test_detection_is_the_chance_that_a_known_image_has_the_higher_score(sets: dict[str, sl.Predictions]) -> None:
    rows = {row["score"]: row for row in study.measure_detection(sets)}
    assert {"blend", "gen", "energy", "max-logit", "agreement"} <= set(rows)
    known, unknown = (study.compute_scores(preds)["energy"] for preds in sets.values())
    chance = np.mean(known[:, None] > unknown) + np.mean(known[:, None] == unknown) / 2
    assert float(rows["energy"]["AUROC"]) == pytest.approx(100 * chance, abs=1e-3)


def test_documentation_has_the_table_of_the_results() -> None:
    text = (Path(__file__).parents[2] / "docs" / "background" / "benchmarks.md").read_text(encoding="utf-8")
    assert study.format_policies_table(read_rows(study.RESULTS / "policies.csv")) in text
