"""Parts of the setup check: class orders against brute force, readings, and values of SciPy and scikit-learn."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score, log_loss

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import FunctionClassifier, Preprocessing
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
from secondlook.diagnosis.readings import Trial, describe_input, find_changes, format_changes, propose_readings, read_as

CLASSES = 5
PAIRS = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), min_size=1, max_size=25)


def count_matches(order: Array, labels: Array, predicted: Array) -> int:
    return sum(order[label] == output for label, output in zip(labels, predicted, strict=True))


@settings(deadline=None, max_examples=100)
@given(PAIRS)
def test_fitted_orders_equal_brute_force(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = np.array(pairs).T
    same = np.arange(CLASSES)
    orders = [np.array(order) for order in permutations(range(CLASSES))]
    absent = sorted(set(range(CLASSES)) - set(labels.tolist()) - set(predicted.tolist()))

    def value(order: Array) -> float:
        kept = (order == same).sum() - (order == same)[absent].sum()
        return float(count_matches(order, labels, predicted) + KEEP_BONUS * kept)

    found = fit_best_order(labels, predicted, CLASSES)
    assert sorted(found) == list(range(CLASSES))
    assert value(found) == max(value(order) for order in orders if (order == same)[absent].all())

    moves = [move_class(CLASSES, source, target) for source in range(CLASSES) for target in range(CLASSES)]
    best = max(count_matches(order, labels, predicted) for order in moves)
    moved = fit_moved_class(labels, predicted, CLASSES)
    assert count_matches(moved, labels, predicted) == best
    assert any(np.array_equal(moved, order) for order in moves)
    if count_matches(same, labels, predicted) == best:
        assert np.array_equal(moved, same)


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


def test_given_preprocessing_is_not_proposed_again() -> None:
    imagenet: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert "ImageNet normalization" in propose_readings(Preprocessing(), 3, [(8, 8)])
    assert "ImageNet normalization" not in propose_readings(Preprocessing(**imagenet), 3, [(8, 8)])
    assert "pixels in [0, 1]" in propose_readings(Preprocessing(**imagenet), 3, [(8, 8)])


@pytest.mark.parametrize("given", [Preprocessing(), Preprocessing(color="BGR", channels=3, size=8)])
def test_changes_added_to_the_given_settings_are_the_reading(given: Preprocessing) -> None:
    for reading in propose_readings(given, 3, [(16, 16)]).values():
        assert given.with_settings(find_changes(reading, given)) == reading


def test_only_readings_that_the_model_can_take_are_proposed() -> None:
    raw = propose_readings(Preprocessing(input_dtype="uint8", channels=3), 3, [(8, 8)])
    assert list(raw) == ["BGR channels"]
    gray = propose_readings(Preprocessing(channels=1), 1, [(8, 8)])
    assert "MNIST normalization" in gray
    assert not {"BGR channels", "ImageNet normalization"} & set(gray)
    assert not [name for name in propose_readings(Preprocessing(size=8), 3, [(8, 8)]) if "crop" in name]
    cropped = propose_readings(Preprocessing(size=224, resize=224, crop=224), 3, [(300, 400)])
    assert cropped["87.5% crop"].resize == 256
    assert cropped["resized to the input"].resize == (224, 224)


def test_mean_follows_the_color_order() -> None:
    reading = propose_readings(Preprocessing(color="BGR"), 3, [(8, 8)])["CIFAR-10 normalization"]
    assert reading.mean == (0.4465, 0.4822, 0.4914)


def test_same_model_is_used_and_not_changed() -> None:
    inputs: list[Array] = []

    def classify(batch: Array) -> Array:
        inputs.append(batch)
        return np.full((len(batch), 2), 0.5)

    function = sl.load_classifier(classify)
    assert isinstance(function, FunctionClassifier)
    assert describe_input(function).scale == 1.0
    images = np.full((2, 4, 4, 3), 255, dtype=np.uint8)
    read_as(function, Preprocessing(layout="NHWC", mean=(0.5,), std=(0.5,)))(images)
    function(images)
    assert inputs[0].dtype == np.float32
    assert inputs[0].max() == 1.0
    assert inputs[1] is images


def test_settings_are_written_as_arguments() -> None:
    changes = {"scale": 16 / 255, "mean": (0.5, 0.4, 0.3), "std": (1.0,), "color": "BGR", "resize": 8}
    expected = "scale=0.0627451, mean=(0.5, 0.4, 0.3), std=1, color='BGR', resize=8"
    assert format_changes(changes) == expected


def outcome(predicted: Array, labels: Array, n_classes: int = 4) -> Trial:
    return Trial.create("", Preprocessing(), np.eye(n_classes)[predicted] * 0.9 + 0.1 / n_classes, labels, None)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 80))
def test_values_equal_references(seed: int, n_images: int) -> None:
    rng = np.random.default_rng(seed)
    labels, first, second = rng.integers(4, size=(3, n_images))
    one, other = outcome(first, labels), outcome(second, labels)
    gained, lost = ((first == labels) & (second != labels)).sum(), ((first != labels) & (second == labels)).sum()
    expected = binomtest(int(gained), int(gained + lost), alternative="greater").pvalue if gained + lost else 1.0
    assert one.compute_p_value(other) == pytest.approx(expected)
    assert one.log_loss == pytest.approx(log_loss(labels, one.probabilities, labels=range(4)))
    if len(set(labels) | set(first)) > 1:
        assert one.kappa == pytest.approx(cohen_kappa_score(labels, first))


def test_order_applies_to_labels() -> None:
    labels = np.array([0, 1, 2, 2])
    reordered = Trial.create("", Preprocessing(), np.eye(3)[[1, 2, 0, 1]], labels, np.array([1, 2, 0]))
    assert reordered.accuracy == 0.75
    assert reordered.kappa == pytest.approx(cohen_kappa_score([1, 2, 0, 0], [1, 2, 0, 1]))


def test_collapse_to_the_most_frequent_class_is_not_better() -> None:
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(256) < 0.9, 0, rng.integers(1, 4, 256))
    given_ = outcome(np.where(rng.random(256) < 0.5, labels, (labels + 1) % 4), labels)
    collapsed = outcome(np.zeros(256, dtype=np.int64), labels)
    assert collapsed.accuracy > given_.accuracy + 0.3
    assert not collapsed.is_clearly_better(given_, 1)
    assert outcome(labels, labels).is_clearly_better(given_, 1)
    one_class = np.zeros(256, dtype=np.int64)
    given_ = outcome(rng.integers(4, size=256), one_class)
    assert not outcome(one_class, one_class).is_clearly_better(given_, comparisons=1)
