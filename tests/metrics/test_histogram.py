"""The histogram of a confidence against a slow count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.errors import MetricError
from secondlook.metrics import rank

IMAGES = st.lists(st.tuples(st.booleans(), st.floats(-3, 3)), min_size=1, max_size=40)


@given(IMAGES, st.integers(1, 12))
def test_every_image_is_counted_in_its_bin(images: list[tuple[bool, float]], bins: int) -> None:
    correct, confidence = map(np.array, zip(*images, strict=True))
    histogram = rank(correct, confidence).histogram(bins)
    edges = histogram.edges
    for kind, counts in ((True, histogram.correct), (False, histogram.wrong)):
        values = [value for is_correct, value in images if is_correct is kind]
        # A bin includes its lower edge; the last one includes its upper edge, too.
        slow = [sum(edges[b] <= v and (v < edges[b + 1] or b == bins - 1) for v in values) for b in range(bins)]
        assert counts.tolist() == slow
    assert histogram.correct.sum() + histogram.wrong.sum() == len(images)


def test_probabilities_are_counted_over_the_unit_interval() -> None:
    histogram = rank([True, False, True], [0.2, 0.3, 0.4]).histogram()
    assert (histogram.edges[0], histogram.edges[-1], len(histogram.correct)) == (0, 1, 40)


def test_other_confidences_are_counted_over_their_range() -> None:
    histogram = rank([True, False, True], [-2.0, 0.5, 7.0]).histogram(3)
    assert (histogram.edges[0], histogram.edges[-1]) == (-2, 7)
    assert rank([True, False], [-2.0, -2.0]).histogram().correct.sum() == 1


@pytest.mark.parametrize(
    ("confidence", "bins", "offending"), [([0.5, np.inf], 40, "infinite"), ([0.5, 0.6], 0, "bins=0")]
)
def test_invalid_input_is_rejected(confidence: list[float], bins: int, offending: str) -> None:
    with pytest.raises(MetricError, match=offending):
        rank([True, False], confidence).histogram(bins)
