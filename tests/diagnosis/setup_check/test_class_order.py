"""Class orders: fitted ones against brute force, and what is said about them."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.diagnosis.class_order import (
    KEEP_BONUS,
    cross_fit_correct,
    describe_order,
    fit_best_order,
    fit_moved_class,
    list_in_order,
    move_class,
    order_by_number,
)

CLASSES = 5
PAIRS = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=25)


def count_matches(order: Array, labels: Array, predicted: Array) -> int:
    return sum(order[label] == output for label, output in zip(labels, predicted, strict=True))


@settings(deadline=None, max_examples=60)
@given(PAIRS)
def test_best_order_equals_brute_force(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = np.array(pairs).T
    present = set(labels.tolist()) | set(predicted.tolist())

    def value(order: Array) -> float:
        kept = sum(order[number] == number for number in present)
        return float(count_matches(order, labels, predicted) + KEEP_BONUS * kept)

    allowed = [
        np.array(order)
        for order in permutations(range(CLASSES))
        if all(order[number] == number for number in range(CLASSES) if number not in present)
    ]
    found = fit_best_order(labels, predicted, CLASSES)
    assert sorted(found) == list(range(CLASSES))
    assert value(found) == max(map(value, allowed))


@settings(deadline=None, max_examples=100)
@given(PAIRS)
def test_moved_class_equals_brute_force(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = np.array(pairs).T
    moves = [move_class(CLASSES, source, target) for source in range(CLASSES) for target in range(CLASSES)]
    best = max(count_matches(order, labels, predicted) for order in moves)
    found = fit_moved_class(labels, predicted, CLASSES)
    assert count_matches(found, labels, predicted) == best
    assert any(np.array_equal(found, order) for order in moves)
    if count_matches(np.arange(CLASSES), labels, predicted) == best:
        assert np.array_equal(found, np.arange(CLASSES))


def test_renamed_folder_moves_one_class() -> None:
    # 'airplane' renamed to 'plane' is behind 'horse' instead of first.
    names = sorted(["plane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"])
    trained = sorted(["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"])
    order = [trained.index("airplane" if name == "plane" else name) for name in names]
    np.testing.assert_array_equal(order, move_class(10, 7, 0))
    assert "'plane'" in describe_order(order, names)
    assert "0" in describe_order(order, names)
    assert list_in_order(order, names).startswith("plane, automobile")


def test_chance_does_not_count() -> None:
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(20, size=(2, 200))

    def fit(labels: Array, predicted: Array) -> Array:
        return fit_best_order(labels, predicted, 20)

    assert (fit(labels, predicted)[labels] == predicted).mean() > 0.12
    assert cross_fit_correct(fit, labels, predicted).mean() < 0.1


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ([0, 3, 2, 1, 4], ["'b'", "'d'", "exchanged"]),
        ([1, 0, 2, 3, 4], ["'a'", "'b'", "exchanged"]),
        ([4, 0, 1, 2, 3], ["'a'", "4"]),
        ([0, 1, 3, 4, 2], ["'e'", "2"]),
        ([2, 3, 4, 0, 1], ["another order"]),
    ],
)
def test_differences_are_named(order: list[int], told: list[str]) -> None:
    assert all(text in describe_order(order, "abcde") for text in told)


def test_numbers_in_the_order_of_text_are_recognized() -> None:
    names = sorted(str(number) for number in range(12))
    order = order_by_number(names)
    assert order is not None
    assert [names[place] for place in np.argsort(order)] == [str(number) for number in range(12)]
    assert "number" in describe_order(order.tolist(), names)
    assert order_by_number(["0", "1", "2"]) is None
    assert order_by_number(["cat", "dog"]) is None
    assert list_in_order(order.tolist(), [*names]).startswith("0, 1, 2, 3")
