"""The curves of a report against slow, obvious versions of themselves."""

import numpy as np
import pytest

from secondlook.metrics import rank
from secondlook.predictions import Predictions
from secondlook.report.findings import risk_bands, spread_counts
from secondlook.report.study import Study, build_study


@pytest.fixture
def study(preds: Predictions) -> Study:
    return build_study(preds, methods=["msr", "mean", "bootstrap"], resamples=5)


def test_risk_curve_equals_that_of_the_metrics(study: Study) -> None:
    for name, curve in risk_bands(study).items():
        expected = rank(study.correct, study.confidences[name]).risk_coverage()
        np.testing.assert_allclose(curve.risk, expected.risk[curve.accepted - 1], atol=1e-12)
        assert (curve.low <= curve.high).all()
        middle = np.interp(curve.band_coverage, expected.coverage, expected.risk)
        assert ((curve.low <= middle) & (middle <= curve.high)).mean() > 0.9


@pytest.mark.parametrize(("n_images", "max_counts"), [(1, 10), (10, 10), (1000, 100), (50_000, 1000)])
def test_spread_counts_run_from_one_to_all_images(n_images: int, max_counts: int) -> None:
    counts = spread_counts(n_images, max_counts)
    assert counts[0] == 1
    assert counts[-1] == n_images
    assert len(counts) <= max_counts
    assert (np.diff(counts) > 0).all()


def test_only_probabilities_have_a_reliability_curve(study: Study) -> None:
    assert study.probabilities == ("msr", "mean")
