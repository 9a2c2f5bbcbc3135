"""The classifier that may ask a person."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import DecisionError
from secondlook.selective import Policy, Rule, SelectiveClassifier
from secondlook.selective import classifier as module
from secondlook.sources import ArraySource

VIEWS = "identity hflip shift:1,0 brightness:1.05"


@pytest.fixture(scope="module")
def fitted(brightness: Callable[[Any], Any], bright_or_dark: tuple[Array, Array]) -> SelectiveClassifier:
    images, labels = bright_or_dark
    named = load_classifier(brightness, name="brightness")
    return SelectiveClassifier(named, views=VIEWS, risk=0.05, delta=0.1).fit(images[:500], labels[:500])


def test_fit_calibrates_and_predict_asks(fitted: SelectiveClassifier, bright_or_dark: tuple[Array, Array]) -> None:
    images, labels = bright_or_dark
    assert fitted.rule.certified
    answers = fitted.predict(images[500:])
    accepted = answers != -1
    assert 0.3 < accepted.mean() < 1
    assert np.mean(answers[accepted] != labels[500:][accepted]) <= 0.08
    assert np.array_equal(accepted, fitted.rule.accept(fitted.confidence(images[500:])))


def test_one_image_is_a_batch_of_one(fitted: SelectiveClassifier, bright_or_dark: tuple[Array, Array]) -> None:
    image = bright_or_dark[0][0]
    assert fitted.predict(image).shape == (1,)
    assert fitted.predict(image) == fitted.predict(image[None])
    assert fitted.predict_proba(image).shape == (1, 2)
    assert fitted.decide(image)[0].confidence == fitted.confidence(image)[0]


def test_parts_give_the_same_as_the_whole(
    fitted: SelectiveClassifier, bright_or_dark: tuple[Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = bright_or_dark[0][:50]
    whole = fitted.decide(images)
    monkeypatch.setattr(module, "IMAGES_AT_ONCE", 7)
    parts = fitted.decide(ArraySource(images))
    assert parts.ids == whole.ids
    assert np.array_equal(parts.labels, whole.labels)
    assert np.array_equal(parts.accept, whole.accept)
    assert parts.confidence == pytest.approx(whole.confidence)
    assert np.array_equal(fitted.predict(images), np.where(whole.accept, whole.labels, -1))


def test_decisions_hold_label_confidence_interval_and_accept(
    fitted: SelectiveClassifier, bright_or_dark: tuple[Array, Array]
) -> None:
    decisions = fitted.decide(bright_or_dark[0][:20], level=0.9)
    assert len(decisions) == 20
    for decision in decisions:
        assert decision.interval is not None
        low, high = decision.interval
        assert low <= decision.confidence <= high
        assert decision.accept == (decision.confidence >= fitted.rule.threshold)
        assert decision.label in (0, 1)


def test_probabilities_are_of_the_predicting_output(
    brightness: Callable[[Any], Any], bright_or_dark: tuple[Array, Array]
) -> None:
    images = bright_or_dark[0][:10]
    by_x = SelectiveClassifier(brightness, views=VIEWS)
    assert by_x.predict_proba(images) == pytest.approx(brightness(images), abs=1e-6)
    by_d = SelectiveClassifier(brightness, views=VIEWS, predict_from="views").predict_proba(images)
    assert by_d.sum(axis=1) == pytest.approx(np.ones(10))
    assert not np.allclose(by_d, brightness(images))


def test_a_policy_file_gives_the_same_decisions(
    fitted: SelectiveClassifier, bright_or_dark: tuple[Array, Array], brightness: Callable[[Any], Any], tmp_path: Path
) -> None:
    assert fitted.policy is not None
    fitted.policy.save(tmp_path / "policy.json")
    again = SelectiveClassifier(load_classifier(brightness, name="brightness"), tmp_path / "policy.json")
    assert np.array_equal(again.predict(bright_or_dark[0][:40]), fitted.predict(bright_or_dark[0][:40]))
    assert (again.risk, again.delta) == (0.05, 0.1)


def test_another_classifier_is_refused_unless_told_otherwise(
    fitted: SelectiveClassifier, brightness: Callable[[Any], Any], bright_or_dark: tuple[Array, Array]
) -> None:
    other = load_classifier(brightness, name="other")
    with pytest.raises(DecisionError, match="the policy is for classifier 'brightness'"):
        SelectiveClassifier(other, fitted.policy)
    told = SelectiveClassifier(other, fitted.policy, allow_mismatch=True)
    assert len(told.predict(bright_or_dark[0][:3])) == 3
    assert fitted.rule.certified
    assert not told.rule.certified, "the guarantee is about the other classifier"
    assert told.rule.threshold == fitted.rule.threshold


def test_folders_of_new_images_need_not_be_classes(
    fitted: SelectiveClassifier, bright_or_dark: tuple[Array, Array]
) -> None:
    images = bright_or_dark[0][:9]
    cameras = ArraySource(images, labels=np.arange(9) % 3, class_names=["camera 1", "camera 2", "camera 3"])
    assert np.array_equal(fitted.predict(cameras), fitted.predict(images))


def test_without_a_rule_nothing_is_decided(
    brightness: Callable[[Any], Any], bright_or_dark: tuple[Array, Array]
) -> None:
    with pytest.raises(DecisionError, match="call fit"):
        SelectiveClassifier(brightness, views=VIEWS).predict(bright_or_dark[0])


def test_fit_says_what_cannot_be_guaranteed(
    brightness: Callable[[Any], Any], bright_or_dark: tuple[Array, Array]
) -> None:
    images, labels = bright_or_dark
    with pytest.raises(DecisionError, match=r"no threshold allows at most 0\.1 % errors"):
        SelectiveClassifier(brightness, views=VIEWS, risk=0.001, delta=0.01).fit(images, labels)
    with pytest.raises(DecisionError, match="no labels"):
        SelectiveClassifier(brightness, views=VIEWS).fit(images)


def test_leading_classes_and_a_single_view(bright_or_dark: tuple[Array, Array]) -> None:
    def three(batch: Any) -> Any:
        share = batch.mean(axis=(1, 2, 3)) / 510
        return np.stack([share, 0.9 - share, np.full(len(batch), 0.1)], axis=1)

    named = load_classifier(three, name="three")
    policy = Policy.of(Rule(0.85, top_k=2), classifier=named, views=("identity",))
    both = SelectiveClassifier(named, policy)
    answers = both.predict(bright_or_dark[0][:30])
    decisions = both.decide(bright_or_dark[0][:30])
    assert answers.shape == (30, 2)
    assert decisions.interval is None
    assert np.array_equal(answers[:, 0] == -1, ~decisions.accept)
    assert isinstance(decisions[0].label, tuple)
    assert decisions[0].interval is None
