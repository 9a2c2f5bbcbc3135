"""Candidate views, and those chosen for a classifier: the first that are not harmful, on a sample of the images."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.diagnosis import ViewChoice, candidate_views, choose_views, collect_views, diagnose_views
from secondlook.errors import DiagnosisError, SecondLookError
from secondlook.predictions import Predictions
from secondlook.views import View, ViewSet

MakePool = Callable[..., Predictions]
AUTO_POOL = candidate_views("auto", n=None).texts[1:]
N_IMAGES, SIDE, POOL = 400, 32, len(AUTO_POOL)


class SideClassifier:
    """Tells on which side of an image a bright bar is (two classes), or, if blind to sides, how bright the image is."""

    def __init__(self, *, sees_sides: bool = True) -> None:
        self.sees_sides = sees_sides
        self.classified = 0

    def __call__(self, images: Array) -> Array:
        self.classified += len(images)
        values = images.astype(np.float64)
        width = values.shape[2] // 2
        left, right = values[:, :, :width].mean(axis=(1, 2, 3)), values[:, :, width:].mean(axis=(1, 2, 3))
        difference = left - right if self.sees_sides else left + right - 0.15
        probability = 1 / (1 + np.exp(-4 * np.tanh(60 * difference)))
        return np.stack([probability, 1 - probability], axis=1)

    def load(self, name: str = "sides") -> Classifier:
        return load_classifier(self, name=name, output="probabilities")


@pytest.fixture
def images() -> Array:
    """A bright bar on the left (even) or on the right (odd), of random width. float32 [N, 32, 32, 1]"""
    generator = np.random.default_rng(0)
    values = np.zeros((N_IMAGES, SIDE, SIDE, 1), dtype=np.float32)
    for index, image in enumerate(values):
        width = generator.integers(2, 8)
        column = 2 if index % 2 == 0 else SIDE - 2 - width
        image[8:24, column : column + width] = 0.8
    return values


@pytest.fixture
def labels() -> Array:
    """1 % of the images are mislabeled, so that there are errors."""
    positions = np.arange(N_IMAGES)
    labels: Array = (positions + (positions % 100 == 7)) % 2
    return labels


def test_pool_starts_with_the_most_useful_views_and_has_no_duplicates() -> None:
    assert len(sl.ViewSet(["identity", *AUTO_POOL])) == POOL + 1
    assert AUTO_POOL[:3] == ("hflip", "shift:3.125%,3.125%", "hflip+shift:3.125%,3.125%")
    assert sum("hflip" not in text for text in AUTO_POOL) >= 12


@pytest.mark.parametrize("labeled", [False, True])
def test_flips_are_set_aside_where_they_change_the_class(images: Array, labels: Array, labeled: bool) -> None:
    given = labels if labeled else None
    choice = choose_views(SideClassifier().load(), images, labels=given)
    flips = [text for text in AUTO_POOL if "hflip" in text]
    assert list(choice.set_aside) == flips
    assert choice.views == ("identity", *[text for text in AUTO_POOL if text not in flips][:12])
    assert (choice.images, choice.pool, choice.note) == (256, POOL, None)
    blind = choose_views(SideClassifier(sees_sides=False).load("blind"), images, budget=3)
    assert blind.views == ("identity", *AUTO_POOL[:3])


def test_choice_is_deterministic_and_stored_outputs_are_not_computed_again(images: Array, tmp_path: Path) -> None:
    model = SideClassifier()
    first = choose_views(model.load(), images, store=tmp_path)
    assert model.classified == 256 * (POOL + 1)
    again = choose_views(model.load(), images, budget=5, store=tmp_path)
    assert model.classified == 256 * (POOL + 1)
    assert again.views == first.views[:6]
    assert choose_views(model.load(), images) == first


def test_images_of_all_classes_are_used_in_any_order() -> None:
    """The classifier is blind to flips of all classes but the last one, which is at the end of the source."""
    labels = np.repeat(np.arange(10), 200)
    images = np.zeros((2000, 8, 8, 1), dtype=np.float32)
    images[:, 0, 0, 0] = labels / 10 + 0.05
    images[:, 0, 7, 0] = labels / 10 + 0.05
    images[1800:, 0, 7, 0] = 0.05
    seen: list[int] = []

    def read_corner(batch: Array) -> Array:
        classes = np.clip(batch[:, 0, 0, 0] * 10, 0, 9).astype(np.int64)
        seen.extend(classes.tolist())
        probabilities: Array = np.eye(10)[classes] * 0.9 + 0.01
        return probabilities

    choice = choose_views(load_classifier(read_corner, output="probabilities"), images, labels=labels)
    assert choice.images == 256
    assert min(np.bincount(seen[:256], minlength=10)) >= 20
    assert "hflip" in choice.set_aside


def test_unreadable_images_are_skipped_where_the_source_says_so(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for index in range(40):
        Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{index:02}.png")
    (tmp_path / "07.png").write_bytes(b"no image")
    model = SideClassifier().load()
    with pytest.raises(SecondLookError, match=re.escape("07.png")):
        choose_views(model, f"folder:{tmp_path}")
    assert choose_views(model, f"folder:{tmp_path}", execution=sl.Execution(on_error="skip")).images == 39
    assert choose_views(model, sl.open_source(f"folder:{tmp_path}", on_error="skip")).images == 39


def test_ensemble_is_judged_by_the_mean_over_its_members(images: Array) -> None:
    members = [SideClassifier().load("one"), SideClassifier().load("two")]
    alone = choose_views(members[0], images)
    assert choose_views(Ensemble(members), images) == alone


def test_without_errors_and_with_one_class_only_views_are_chosen(images: Array) -> None:
    left = images[::2]
    correct, wrong = (choose_views(SideClassifier().load(), left, labels=np.full(len(left), label)) for label in (0, 1))
    assert (correct.images, correct.note) == (len(left), None)
    assert "hflip" in correct.set_aside
    assert (wrong.images, wrong.note) == (len(left), None)
    assert "hflip" in wrong.views  # it corrects all of them


def test_views_come_in_the_order_of_the_predictions(make_pool: MakePool) -> None:
    preds = make_pool()
    choice = choose_views(preds, budget=4)
    harmful = diagnose_views(preds).harmful
    assert choice.views == tuple(text for text in preds.views.texts if text not in harmful)[:5]
    assert choice.set_aside == harmful
    assert choose_views(preds).views == tuple(text for text in preds.views.texts if text not in harmful)


def test_written_file_is_a_view_set(make_pool: MakePool, tmp_path: Path) -> None:
    choice = choose_views(make_pool(), budget=4)
    assert ViewSet(choice.write(tmp_path / "views.txt")).texts == choice.views
    assert str(choice).splitlines()[0] in (tmp_path / "views.txt").read_text(encoding="utf-8")
    for name in ("views.csv", "missing/views.txt"):
        with pytest.raises(DiagnosisError, match=name):
            choice.write(tmp_path / name)


def test_image_alone_is_chosen_if_the_views_are_measurably_worse(misleading_pool: MakePool) -> None:
    choice = choose_views(misleading_pool())
    assert choice.set_aside == {}
    assert choice.views == ("identity",)
    assert choice.note is not None
    assert choice.note in str(choice)
    unlabeled = choose_views(misleading_pool(labeled=False))
    assert len(unlabeled.views) == 7
    for one in (choice, unlabeled):
        assert ViewChoice.model_validate_json(one.model_dump_json()) == one
        assert ViewChoice.model_validate(json.loads(one.model_dump_json())) == one


def make_doubting_pool(n_images: int) -> Predictions:
    """The views double and triple the doubt of every eighth and every second image, without changing a prediction."""
    mass = np.full((n_images, 3), 0.96)
    mass[::8, 1] = 0.75
    mass[::2, 2] = 0.88
    labels = (np.arange(n_images) % 25 == 0).astype(np.int64)
    return Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views="identity hflip vflip", labels=labels)


def test_choice_is_checked_again_on_more_images() -> None:
    preds = make_doubting_pool(800)
    few = choose_views(preds.select(images=np.arange(16)))
    assert few.views == ("identity", "hflip", "vflip")
    unlabeled = Predictions(probabilities=preds.probabilities, views=preds.views)
    refined = few.refine(unlabeled)
    assert refined.views == ("identity",)
    assert list(refined.set_aside) == ["hflip", "vflip"]
    assert (refined.images, refined.pool) == (800, 2)
    assert refined.refine(unlabeled) == refined
    assert few.refine(preds).views == few.views  # the labels show that neither view adds errors


def test_refining_keeps_earlier_results(misleading_pool: MakePool) -> None:
    worse = choose_views(misleading_pool())
    assert worse.refine(misleading_pool(2000)).model_copy(update={"images": 1000}) == worse
    before = ViewChoice(views=("identity", "shift:1,0"), set_aside={"hflip": "x"}, images=5, pool=9)
    after = before.refine(misleading_pool(share=0.0, labeled=False))
    assert (after.views, after.set_aside, after.pool) == (before.views, before.set_aside, 9)


def test_choice_is_shown_in_two_lines() -> None:
    choice = ViewChoice(
        views=("identity", "shift:1,0", "shift:2,0", "shift:3,0", "shift:4,0"),
        set_aside={"hflip": "it changes 55.1 % of the confident predictions, more than 10 %", "vflip": "x"},
        images=1256,
        pool=6,
    )
    first, second = str(choice).splitlines()
    shifts = "'shifted by 1 pixel right', 'shifted by 2 pixels right', 'shifted by 3 pixels right' and 1 more"
    for expected in ("1,256 images", "4 of 6", shifts):
        assert expected in first
    for expected in ("2 of 6", "'mirrored', 'mirrored top to bottom'", "'mirrored': it changes 55.1 %"):
        assert expected in second
    _, *rows = choice.details().splitlines()
    assert [row.split()[0] for row in rows] == [*choice.views[1:], "hflip", "vflip"]
    assert " ".join(rows[-2].split()) == f"hflip mirrored {choice.set_aside['hflip']}"
    none = str(ViewChoice(views=("identity",), set_aside={}, images=3, pool=6))
    assert len(none.splitlines()) == 2


@pytest.mark.parametrize("budget", [0, -1, POOL + 1, 2.5, "12", True])
def test_budget_out_of_bounds_is_rejected_before_anything_is_classified(images: Array, budget: object) -> None:
    model = SideClassifier()
    with pytest.raises(DiagnosisError, match=re.escape(f"budget={budget!r} ") + rf".*1 to {POOL}"):
        choose_views(model.load(), images, budget=budget)  # type: ignore[arg-type]
    assert model.classified == 0


def test_budget_of_a_choice_is_at_least_one(make_pool: MakePool) -> None:
    with pytest.raises(DiagnosisError, match=r"budget=0 .*at least 1"):
        choose_views(make_pool(30), budget=0)


def test_views_are_chosen_on_the_device(cuda_1_only: Classifier, images: Array) -> None:
    choice = choose_views(cuda_1_only, images[:8], execution=sl.Execution(device="cuda:1"))
    assert choice.images == 8
    with pytest.raises(AssertionError):
        choose_views(cuda_1_only, images[:8])


def test_images_are_set_apart_independently_of_content_and_views_chosen_on_distinct_ones() -> None:
    """So that the others are still draws if copies are."""
    images = np.random.default_rng(0).integers(0, 256, (400, 4, 4, 1), dtype=np.uint8)
    copied = images.copy()
    copied[200:] = images[:200]

    def classify(batch: Array) -> Array:
        return np.full((len(batch), 2), 0.5)

    classifier = sl.load_classifier(classify, output="probabilities")
    labels = np.zeros(400, dtype=np.int64)
    (_, expected, _), (_, apart, choice) = (
        collect_views(classifier, sl.open_source(each, labels=labels), "auto") for each in (images, copied)
    )
    assert apart.tolist() == expected.tolist()
    assert len(apart) == 100
    assert choice is not None
    assert choice.images == np.sum(apart < 200)


@pytest.mark.parametrize("kind", ["natural", "digits", "harmful", "auto"])
@pytest.mark.parametrize("image_size", [1, 16, 32, 224])
def test_every_kind_is_a_view_set_that_starts_with_the_identity(kind: str, image_size: int) -> None:
    views = candidate_views(kind, image_size, None)
    assert isinstance(views, ViewSet)
    assert views[0].is_identity
    assert len(set(views.texts)) == len(views) > 2
    assert kind != "digits" or not any("flip" in text for text in views.texts)
    assert kind != "harmful" or {"vflip", "channels:bgr", "rotate:90"} <= set(views.texts)


def test_natural_candidates_have_every_family_pairs_and_shifts_in_all_directions() -> None:
    views = candidate_views("natural", 32, 100)
    assert len(views) == 100
    assert views == candidate_views()
    assert candidate_views(n=200).texts[:100] == views.texts, "a smaller set is the beginning of a larger one"
    names = {tuple(step.name for step in view.steps) for view in views}
    assert {(name,) for name in ("hflip", "shift", "rotate", "zoom", "gamma", "contrast")} <= names
    assert {("rotate", "shift"), ("hflip", "zoom", "gamma")} <= names
    for x, y, distance in itertools.product((-1, 0, 1), (-1, 0, 1), (1, 2, 3, 4)):
        assert View.parse(f"hflip+shift:{distance * x},{distance * y}") in views
    assert "shift:7,0" in candidate_views("natural", 224, 50)
    assert "shift:1,0" not in candidate_views("natural", 224, None), "shifts grow with the image"


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        (("naturel", 32, 10), "'naturel'"),
        (("natural", 0, 10), "image_size=0"),
        (("natural", 32, 1), "n=1 is"),
        (("natural", 32, 100_000), "n=100000 is"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: tuple[str, int, int], offending: str) -> None:
    with pytest.raises(DiagnosisError, match=re.escape(offending)):
        candidate_views(*arguments)
