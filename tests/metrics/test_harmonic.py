"""Sums of 1/n against adding them one by one."""

import math

import numpy as np
import pytest

from secondlook.metrics.harmonic import harmonic_sums


@pytest.mark.parametrize("size", [1, 2, 3, 40, 1000])
@pytest.mark.parametrize("before", [0, 1, 5, 31, 32, 33, 100, 10**4, 10**7, 10**9])
def test_runs_are_summed_to_the_last_digits(before: int, size: int) -> None:
    expected = math.fsum(1 / n for n in range(before + 1, before + size + 1))
    (found,) = harmonic_sums(np.array([before]), np.array([size]))
    assert found == pytest.approx(expected, rel=3e-14, abs=0)
