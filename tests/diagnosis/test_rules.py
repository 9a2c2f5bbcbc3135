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
    preds = Predictions(probabilities=probabilities, views="identity hflip", labels=labels)
    return diagnose_views(preds)["hflip"].status


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
    harmful = {
        True: is_harmful_with_labels(image, view, labels.tolist()),
        False: is_harmful_without_labels(image, view),
    }
    for labeled in (False, True):
        given_labels = labels if labeled else None
        assert (diagnose(probabilities, given_labels) == "harmful") == harmful[labeled]
        preds = Predictions(probabilities=probabilities, views="identity hflip", labels=given_labels)
        strained = is_strained(image, view, labels.tolist() if labeled else None)
        assert ("hflip" in choose_views(preds).set_aside) == (harmful[labeled] or strained)


@settings(max_examples=40, deadline=None)
@given(simulated, st.integers(0, 2**32 - 1))
def test_order_of_images_does_not_matter_and_the_image_itself_is_harmless(case: tuple[Array, Array], seed: int) -> None:
    probabilities, labels = case
    order = np.random.default_rng(seed).permutation(len(labels))
    for given_labels, reordered in ((None, None), (labels, labels[order])):
        assert diagnose(probabilities, given_labels) == diagnose(probabilities[order], reordered)
        assert diagnose(probabilities[:, [0, 0]], given_labels) == "usable"


@pytest.mark.parametrize(("lift", "error_rate"), [(6.0, 0.03), (4.0, 0.15), (2.0, 0.55)])
def test_limit_scales_with_the_error_rate(lift: float, error_rate: float) -> None:
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


def make_masses(n_images: int, usual: tuple[float, float], *others: tuple[int, int, tuple[float, float]]) -> Array:
    """Return the mass of class 0 in the image and in the view; `others` are first, last and masses. float64 [N, 2]"""
    masses = np.tile(usual, (n_images, 1))
    for first, last, pair in others:
        masses[first:last] = pair
    return masses


@pytest.mark.parametrize(
    ("masses", "unlabeled", "labeled"),
    [
        # The view changes every fifth prediction, but makes as few errors: half of the changes are corrections.
        (make_masses(100, (0.9, 0.9), (0, 10, (0.1, 0.9)), (10, 20, (0.9, 0.1))), "harmful", "harmful"),
        (make_masses(2000, (0.9, 0.9), (0, 200, (0.1, 0.9)), (200, 400, (0.9, 0.1))), "harmful", "usable"),
        # Of 80 % errors the growth to 100 % is small, but nothing is left of the accuracy.
        (make_masses(300, (0.3, 0.3), (0, 60, (0.9, 0.3))), "harmful", "harmful"),
        # A doubt below one image in the sample counts as one image, also where it is zero.
        (make_masses(100, (1.0, 0.9999)), "usable", "usable"),
    ],
    ids=["few labels", "labels overrule", "poor classifier", "saturated outputs"],
)
def test_views_with_and_without_labels(masses: Array, unlabeled: str, labeled: str) -> None:
    probabilities = np.stack([masses, 1 - masses], axis=2)
    assert diagnose(probabilities) == unlabeled
    assert diagnose(probabilities, np.zeros(len(masses), dtype=np.int64)) == labeled
