"""Rules: what they accept, and how they describe their guarantee."""

import math
import re
from typing import Any

import numpy as np
import pytest

from secondlook.errors import DecisionError
from secondlook.policies import Calibration, Guarantee, Policy
from secondlook.policies.guarantee import Shortfall


def test_plain_threshold_has_no_guarantee() -> None:
    rule = Policy(threshold=0.9, method="mean")
    assert not rule.certified
    assert rule.accept([0.95, 0.9, 0.1], method=rule.method).tolist() == [True, True, False]
    assert "guarantee: none" in str(rule)
    with pytest.raises(DecisionError, match="coverage"):
        rule.coverage  # noqa: B018


def test_nan_is_rejected() -> None:
    with pytest.raises(DecisionError, match="threshold=nan"):
        Policy(threshold=math.nan, method="mean")
    with pytest.raises(DecisionError, match="NaN at index 0"):
        Policy(threshold=0.5, method="mean").accept([np.nan], method="mean")


@pytest.mark.parametrize("value", ["0.9", None, True, [0.9], np.array([0.9, 0.8])])
def test_threshold_must_be_a_number(value: Any) -> None:
    with pytest.raises(DecisionError, match=re.escape(f"threshold={value!r}")):
        Policy(threshold=value, method="mean")


def test_infinite_threshold_accepts_nothing_or_everything() -> None:
    assert not Policy(threshold=math.inf, method="mean").accept([0.5], method="mean").any()
    assert Policy(threshold=-math.inf, method="mean").accept([0.5], method="mean").all()


@pytest.mark.parametrize("confidence", [[[0.1], [0.2, 0.3]], ["a"], [None], np.ma.masked_array([0.5], mask=[True])])
def test_confidences_must_be_numbers(confidence: Any) -> None:
    with pytest.raises(DecisionError, match="confidence"):
        Policy(threshold=0.5, method="mean").accept(confidence, method="mean")


def test_text_has_threshold_guarantee_and_calibration() -> None:
    rule = Policy(
        threshold=0.75,
        method="mean",
        guarantee=Guarantee(risk=0.01, delta=0.001),
        calibration=Calibration(images=2000, accepted=1500, errors=7, duplicates=12, joint_delta=0.2),
    )
    for part in ("mean >= 0.75", "1 % errors", "99.9 %", "1,500 of 2,000", "75 %", "7 of them", "12 duplicate", "20 %"):
        assert part in str(rule)
    assert rule.certified
    assert rule.coverage == 0.75


def test_shortfall_text_has_what_would_have_been_possible() -> None:
    requested = Guarantee(risk=0.01, delta=0.001)
    assert "2.5 %" in str(Shortfall(requested=requested, smallest_risk=0.025, additional_images=1200))
    assert "1,200" in str(Shortfall(requested=requested, smallest_risk=None, additional_images=1200))
    assert "would not help" in str(Shortfall(requested=requested, smallest_risk=0.025, additional_images=None))
    assert "a risk of 2.5 % or a delta of 0.05" in str(
        Shortfall(requested=requested, smallest_risk=0.025, additional_images=1200, larger_delta=0.05)
    )
    assert "7 of 1,040" in str(
        Shortfall(
            requested=requested,
            smallest_risk=None,
            additional_images=None,
            larger_delta=None,
            closest=Calibration(images=2000, accepted=1040, errors=7),
        )
    )
