"""The model of errors against a logistic regression, and at its ends."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from secondlook.diagnosis.expected_errors import fit_error_model, log_odds, logistic


def test_the_fit_is_that_of_a_logistic_regression() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.2, 0.999, 20_000)
    wrong = generator.random(20_000) < logistic(-0.9 * log_odds(confidence) + 0.3)
    model = fit_error_model(confidence, ~wrong)
    reference = LogisticRegression(C=np.inf, tol=1e-8).fit(log_odds(confidence)[:, None], wrong)
    # Platt's step towards one half moves the fit by about one image.
    assert model.slope == pytest.approx(reference.coef_[0, 0], abs=2e-3)
    assert model.offset == pytest.approx(reference.intercept_[0], abs=2e-3)


def test_perfect_separation_and_certainty_stay_finite() -> None:
    confidence = np.array([0.0, 0.1, 0.9, 1.0])
    chance = fit_error_model(confidence, np.array([False, False, True, True])).chance(confidence)
    assert np.isfinite(chance).all()
    assert (np.diff(chance) < 0).all()


def test_a_confidence_that_misleads_says_nothing() -> None:
    confidence = np.linspace(0.1, 0.9, 40)
    wrong = confidence > 0.5
    chance = fit_error_model(confidence, ~wrong).chance(confidence)
    np.testing.assert_allclose(chance, 0.5)
