"""The set of shifts, and how predictions for corrupted images are collected and scored."""

from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Ensemble
from secondlook.errors import MonitoringError
from secondlook.monitoring import count_looks, learn_shifts
from secondlook.monitoring.estimates import compose_views, draw_images, list_shifts, score_images
from secondlook.predictions import Execution
from secondlook.views import View, apply_view
from tests.policy_maker import attach

VIEWS = ["identity", "hflip", "shift:1,0"]
QUIET = Execution(progress=False)


class Brightness:
    """A classifier of dark, medium and bright images that counts how many images it was given."""

    def __init__(self) -> None:
        self.n_images = 0

    def __call__(self, batch: Array) -> Array:
        self.n_images += len(batch)
        mean = batch.mean(axis=(1, 2, 3))[:, None] / 255
        detail = np.abs(np.diff(batch.astype(float), axis=2)).mean(axis=(1, 2, 3))[:, None] / 60
        logits: Array = (detail + 1) * -40 * (mean - np.array([0.25, 0.5, 0.75])) ** 2
        return logits.astype(np.float32)


def make_images(n_images: int = 450) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n_images)
    mean = 64 * (labels + 1) + rng.normal(0, 22, n_images)
    pixels = mean[:, None, None, None] + rng.normal(0, 30, (n_images, 8, 8, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def make_parts(
    views: list[str] = VIEWS, *, adaptive: bool = False
) -> tuple[Brightness, sl.Classifier, sl.Source, sl.Predictions, sl.Policy]:
    counting = Brightness()
    classifier = sl.load_classifier(counting, output="logits", name="brightness")
    images, labels = make_images()
    source = sl.open_source(images, labels=labels)
    preds = sl.collect(classifier, source, views, execution=sl.Execution(progress=False))
    method = "msr" if len(views) == 1 else "mean"
    rule = sl.certify(preds, method, risk=0.2, delta=0.1, adaptive=adaptive)
    policy = attach(rule, classifier=classifier, views=(rule.schedule.views if rule.schedule else tuple(views)))
    counting.n_images = 0
    return counting, classifier, source, preds, policy


def test_every_shift_is_a_view_of_three_strengths() -> None:
    for side in (8, 32, 224, 1000):
        shifts = list_shifts(side)
        assert len(shifts) == 10
        for views in shifts.values():
            assert len(views) == 3
            assert [str(View.parse(view)) for view in views] == list(views), "as stored"
    assert list_shifts(32)["noise"] == ("noise:6", "noise:12", "noise:20")
    assert list_shifts(128)["blur"] == ("blur:1.28", "blur:1.92", "blur:2.88")


@pytest.mark.parametrize("side", [32, 96])
def test_stronger_shifts_change_images_more(side: int) -> None:
    rng = np.random.default_rng(0)
    image = np.clip(128 + 50 * rng.standard_normal((1, side, side, 3)), 0, 255).astype(np.uint8)
    for kind, views in list_shifts(side).items():
        if kind in ("rotation", "zoom in", "zoom out", "resolution"):  # of noise, all of them change every pixel
            continue
        changes = [np.abs(apply_view(image, view).astype(float) - image).mean() for view in views]
        assert 0 < changes[0] < changes[1] < changes[2], kind


def test_composed_views_are_the_views_of_a_corrupted_image() -> None:
    images, _ = make_images(4)
    views = ("identity", "hflip+shift:1,0", "gamma:0.9")
    for shifts in list_shifts(8).values():
        for shift in shifts:
            corrupted = apply_view(images, shift)
            for view, composed in zip(views, compose_views(shift, views), strict=True):
                difference = apply_view(images, composed).astype(int) - apply_view(corrupted, view)
                assert np.abs(difference).max() <= 2, composed  # a corrupted image file is rounded once more


@pytest.mark.parametrize(("views", "adaptive"), [(VIEWS, False), (VIEWS, True), (["identity"], False)])
def test_corrupted_images_are_scored_as_if_they_came_as_files(views: list[str], adaptive: bool) -> None:
    _, classifier, source, preds, policy = make_parts(views, adaptive=adaptive)
    model = learn_shifts(policy, classifier, source, preds, n_images=120, seed=3, execution=QUIET)
    drawn = np.sort(np.random.default_rng(3).permutation(450)[:120])
    images, labels = make_images()
    for learned in model.shifts:
        assert learned.views == list_shifts(8)[learned.kind]
        for shift, accuracy in zip(learned.views, learned.accuracy, strict=True):
            corrupted = sl.collect(
                classifier,
                apply_view(images[drawn], shift),
                views,
                labels=labels[drawn],
                execution=sl.Execution(progress=False),
            )
            scores = score_images(policy, corrupted)
            assert accuracy == pytest.approx(scores.correct.mean(), abs=1.5 / 120)  # pixels are rounded once more
    assert model.images == 120


def test_scores_are_those_of_the_policy() -> None:
    _, _, _, preds, policy = make_parts()
    scores = score_images(policy, preds)
    np.testing.assert_array_equal(scores.confidence, policy.confidence(preds))
    np.testing.assert_array_equal(scores.accept, scores.confidence >= policy.threshold)
    np.testing.assert_array_equal(scores.correct, preds.correct())
    np.testing.assert_array_equal(scores.predicted, preds.predicted())


def test_every_class_may_have_its_own_threshold() -> None:
    _, classifier, _, preds, _ = make_parts()
    rule = sl.certify(preds, "mean", risk=0.3, delta=0.2, groups="class")
    policy = attach(rule, classifier=classifier, views=tuple(VIEWS))
    scores = score_images(policy, preds)
    thresholds = np.array([group.threshold for group in rule.groups])
    assert len(set(thresholds)) > 1
    np.testing.assert_array_equal(scores.accept, scores.confidence >= thresholds[scores.predicted])


def test_copies_of_images_are_not_drawn() -> None:
    images, labels = make_images(60)
    source = sl.open_source(np.concatenate([images, images]), labels=np.concatenate([labels, labels]))
    assert len(draw_images(source, 500, 0)) == 60


def test_outputs_are_stored_and_used_again(tmp_path: Path) -> None:
    counting, classifier, source, preds, policy = make_parts()
    model = learn_shifts(policy, classifier, source, preds, n_images=60, store=tmp_path, execution=QUIET)
    assert counting.n_images == count_looks(policy, 60)
    assert learn_shifts(policy, classifier, source, preds, n_images=60, store=tmp_path, execution=QUIET) == model
    assert counting.n_images == count_looks(policy, 60)
    assert learn_shifts(policy, classifier, source, preds, n_images=60, execution=QUIET) == model, "in memory"


def test_an_ensemble_is_learned_from_like_a_classifier() -> None:
    members = [sl.load_classifier(Brightness(), output="logits", name=name) for name in ("one", "two")]
    images, labels = make_images()
    source = sl.open_source(images, labels=labels)
    models = []
    for classifier in (members[0], Ensemble(members)):
        preds = sl.collect(classifier, source, VIEWS, execution=sl.Execution(progress=False))
        rule = sl.certify(preds, "mean", risk=0.2, delta=0.1)
        policy = attach(rule, classifier=classifier, views=tuple(VIEWS))
        models.append(learn_shifts(policy, classifier, source, preds, n_images=60, execution=QUIET))
    assert [one.accuracy for one in models[0].shifts] == [one.accuracy for one in models[1].shifts]


def test_too_few_images_are_rejected() -> None:
    _, classifier, source, preds, policy = make_parts()
    with pytest.raises(MonitoringError, match=r" 50 .* 40;.*images="):
        learn_shifts(policy, classifier, source, preds, n_images=40, execution=QUIET)
    with pytest.raises(MonitoringError, match="labeled"):
        learn_shifts(policy, classifier, sl.open_source(make_images()[0]), preds, execution=QUIET)
