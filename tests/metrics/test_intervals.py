"""The bootstrap over images against drawing the images explicitly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.metrics import Interval, Ranking, aurc, rank, resample_metrics

Images = Callable[..., tuple[Any, Any]]


def test_counts_rank_like_repeated_images(images: Images) -> None:
    correct, confidence = images(0, n=60, decimals=1)
    rankings: list[Ranking] = []

    def keep(_: str, ranking: Ranking) -> list[float]:
        rankings.append(ranking)
        return [0.0]

    resample_metrics({"mine": (correct, confidence)}, keep, 20, seed=1)
    assert len(rankings) == 20
    rng = np.random.default_rng(1)
    for found in rankings:
        drawn = rng.integers(60, size=60)
        expected = rank(correct[drawn], confidence[drawn])
        np.testing.assert_array_equal(found.confidences, expected.confidences)
        np.testing.assert_array_equal(found.accepted, expected.accepted)
        np.testing.assert_array_equal(found.errors, expected.errors)


def test_metrics_are_those_of_the_drawn_images_and_paired_by_name(images: Images) -> None:
    correct, confidence = images(1, n=200, decimals=2)
    steps: list[int] = []
    values = resample_metrics(
        {"given": (correct, confidence), "same": (correct, confidence)},
        lambda name, ranking: [ranking.mean_selective_risk],
        30,
        5,
        advance=steps.append,
    )
    rng = np.random.default_rng(5)
    drawn = [rng.integers(200, size=200) for _ in range(30)]
    np.testing.assert_array_equal(values["given"][:, 0], [aurc(correct[rows], confidence[rows]) for rows in drawn])
    np.testing.assert_array_equal(values["given"], values["same"])
    assert steps == [1] * 30


@pytest.mark.parametrize(("n_undefined", "is_defined"), [(0, True), (10, True), (11, False), (100, False)])
def test_an_interval_needs_enough_defined_resamples(n_undefined: int, is_defined: bool) -> None:
    values = np.linspace(0, 1, 100)
    values[:n_undefined] = np.nan
    interval = Interval.from_resamples(values, 0.9)
    assert (interval is not None) == is_defined


def test_the_interval_holds_the_central_values() -> None:
    interval = Interval.from_resamples(np.arange(101.0), 0.9)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((5.0, 95.0))
