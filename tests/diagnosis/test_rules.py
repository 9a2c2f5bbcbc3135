"""The rules for harmful views against slow references, on simulated classifiers."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.diagnosis import choose_views, diagnose_views
from secondlook.predictions import Predictions

Rows = Sequence[Sequence[float]]


def simulate(seed: int, n_images: int, n_classes: int, lift: float, noise: float, broken: float) -> tuple[Any, Any]:
    """Return probabilities float64 [N, 2, C] and labels int64 [N]; the view is random on a fraction of the images."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(n_classes, size=n_images)
    logits = np.repeat(generator.normal(0, 1.5, (n_images, 1, n_classes)), 2, axis=1)
    logits[np.arange(n_images), :, labels] += lift
    logits[:, 1] += generator.normal(0, noise, (n_images, n_classes))
    lost = generator.random(n_images) < broken
    logits[lost, 1] = generator.normal(0, 2, (int(lost.sum()), n_classes))
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=2, keepdims=True), labels


def diagnose(probabilities: Array, labels: Array | None = None) -> str:
    """Return the status of the second view."""
    return diagnose_views(Predictions(probabilities=probabilities, views="identity hflip", labels=labels))[
        "hflip"
    ].status


def find_largest(row: Sequence[float]) -> int:
    return max(range(len(row)), key=lambda k: row[k])


def exceeds(differences: Sequence[float], limit: float, errors: int = 2) -> bool:
    """Return whether the mean is above the limit by more than two standard errors."""
    mean = sum(differences) / len(differences)
    error = math.sqrt(sum((one - mean) ** 2 for one in differences) / len(differences) / len(differences))
    return mean - errors * error > limit


def is_harmful_without_labels(image: Rows, view: Rows) -> bool:
    """Slow reference of the label-free rule."""
    n = len(image)
    largest = [max(row) for row in image]
    confident = [i for i in range(n) if largest[i] >= statistics.median(largest)]
    m, changed = len(confident), sum(find_largest(image[i]) != find_largest(view[i]) for i in confident)
    if sum(math.comb(m, k) * 0.1**k * 0.9 ** (m - k) for k in range(changed, m + 1)) < 0.01:
        return True
    doubt = sum(1 - one for one in largest)
    growths = [largest[i] - max(view[i]) for i in range(n)]
    return n >= 30 and exceeds(growths, 0.4 * max(doubt, 1) / n)


def is_harmful_with_labels(image: Rows, view: Rows, labels: Sequence[int]) -> bool:
    """Slow reference of the rule with labels, which overrule the other where they decide."""
    n = len(image)
    before = [find_largest(row) != label for row, label in zip(image, labels, strict=True)]
    after = [find_largest(row) != label for row, label in zip(view, labels, strict=True)]
    errors = sum(before)
    limit = min(0.4 * max(errors, 1), 0.25 * (n - errors)) / n
    growths = [second - first for first, second in zip(before, after, strict=True)]
    if n >= 30 and exceeds(growths, limit):
        return True
    if n >= 30 and exceeds([-one for one in growths], -limit):
        return False
    return is_harmful_without_labels(image, view)


def is_strained(image: Rows, view: Rows, labels: Sequence[int] | None) -> bool:
    """Slow reference of the growth of the doubt by which a view is not chosen, unless labels show it harmless."""
    n = len(image)
    doubt = sum(1 - max(row) for row in image)
    growths = [max(first) - max(second) for first, second in zip(image, view, strict=True)]
    if n < 30 or not exceeds(growths, 0.3 * max(doubt, 1) / n, errors=1):
        return False
    if labels is None:
        return True
    wrong = [[find_largest(row) != label for row, label in zip(rows, labels, strict=True)] for rows in (image, view)]
    limit = min(0.4 * max(sum(wrong[0]), 1), 0.25 * (n - sum(wrong[0]))) / n
    return not exceeds([first - second for first, second in zip(*wrong, strict=True)], -limit)


simulated = st.builds(
    simulate,
    seed=st.integers(0, 2**32 - 1),
    n_images=st.sampled_from([1, 5, 29, 30, 80, 200]),
    n_classes=st.integers(2, 6),
    lift=st.sampled_from([0.0, 1.0, 3.0, 6.0]),
    noise=st.sampled_from([0.0, 0.3, 1.0]),
    broken=st.sampled_from([0.0, 0.05, 0.15, 0.5, 1.0]),
)


@settings(max_examples=150, deadline=None)
@given(simulated)
def test_rules_match_the_slow_references(case: tuple[Array, Array]) -> None:
    probabilities, labels = case
    image, view = probabilities[:, 0].tolist(), probabilities[:, 1].tolist()
    assert (diagnose(probabilities) == "harmful") == is_harmful_without_labels(image, view)
    assert (diagnose(probabilities, labels) == "harmful") == is_harmful_with_labels(image, view, labels.tolist())


@settings(max_examples=100, deadline=None)
@given(simulated)
def test_views_are_chosen_unless_harmful_or_strained(case: tuple[Array, Array]) -> None:
    probabilities, labels = case
    image, view = probabilities[:, 0].tolist(), probabilities[:, 1].tolist()
    for given_labels, listed in ((None, None), (labels, labels.tolist())):
        preds = Predictions(probabilities=probabilities, views="identity hflip", labels=given_labels)
        strained = is_strained(image, view, listed)
        assert ("hflip" in choose_views(preds).set_aside) == (
            diagnose(probabilities, given_labels) == "harmful" or strained
        )


@settings(max_examples=40, deadline=None)
@given(simulated, st.integers(0, 2**32 - 1))
def test_order_of_images_does_not_matter_and_the_image_itself_is_harmless(case: tuple[Array, Array], seed: int) -> None:
    probabilities, labels = case
    order = np.random.default_rng(seed).permutation(len(labels))
    for given_labels, reordered in ((None, None), (labels, labels[order])):
        assert diagnose(probabilities, given_labels) == diagnose(probabilities[order], reordered)
        assert diagnose(probabilities[:, [0, 0]], given_labels) == "usable"


@pytest.mark.parametrize(("lift", "error_rate"), [(6.0, 0.03), (4.0, 0.15), (2.0, 0.55)])
def test_limit_follows_how_often_the_classifier_errs(lift: float, error_rate: float) -> None:
    """Noise between the views of a poor classifier is as large as what breaks a good one, and is no harm."""
    statuses: dict[str, list[str]] = {"harmless": [], "broken": []}
    for seed in range(20):
        for kind, broken in (("harmless", 0.0), ("broken", 0.3)):
            probabilities, labels = simulate(seed, 256, 10, lift, 0.3, broken)
            assert np.mean(probabilities[:, 0].argmax(axis=1) != labels) == pytest.approx(error_rate, abs=0.1)
            statuses[kind] += [diagnose(probabilities), diagnose(probabilities, labels)]
    assert statuses["harmless"].count("harmful") == 0
    assert statuses["broken"].count("harmful") == 40


def test_view_that_doubles_the_doubt_without_changing_predictions_is_harmful() -> None:
    mass = np.tile([0.97, 0.93], (100, 1))
    probabilities = np.stack([mass, 1 - mass], axis=2)
    preds = Predictions(probabilities=probabilities, views="identity channels:bgr")
    row = diagnose_views(preds)["channels:bgr"]
    assert row.agreement.overall == 1
    assert row.agreement.doubt_growth == pytest.approx(0.07 / 0.03 - 1)
    assert row.reason is not None
    assert "from 3.0 % to 7.0 %" in row.reason
    assert diagnose_views(preds.select(images=np.arange(29)))["channels:bgr"].status == "usable"


@pytest.mark.parametrize(("n_images", "labeled"), [(100, "harmful"), (2000, "usable")])
def test_labels_overrule_the_label_free_rule_where_there_are_enough(n_images: int, labeled: str) -> None:
    """The view changes every fifth prediction, but makes as few errors: half of the changes are corrections."""
    tenth = n_images // 10
    mass = np.full((n_images, 2), 0.9)
    mass[:tenth, 0] = 0.1
    mass[tenth : 2 * tenth, 1] = 0.1
    probabilities = np.stack([mass, 1 - mass], axis=2)
    assert diagnose(probabilities) == "harmful"
    assert diagnose(probabilities, np.zeros(n_images, dtype=np.int64)) == labeled


def test_poor_classifier_cannot_hide_a_view_that_loses_its_accuracy() -> None:
    """Of 80 % errors the growth to 100 % is small, but nothing is left of the accuracy."""
    labels = np.zeros(300, dtype=np.int64)
    mass = np.full((300, 2), 0.3)
    mass[:60, 0] = 0.9
    assert diagnose(np.stack([mass, 1 - mass], axis=2), labels) == "harmful"


@pytest.mark.parametrize("labeled", [False, True])
def test_saturated_outputs_are_no_reason_for_an_alarm(labeled: bool) -> None:
    """A doubt below one image in the sample counts as one image, also where it is zero."""
    mass = np.tile([1.0, 0.9999], (100, 1))
    labels = np.zeros(100, dtype=np.int64) if labeled else None
    assert diagnose(np.stack([mass, 1 - mass], axis=2), labels) != "harmful"
