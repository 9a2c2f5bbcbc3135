"""`SelectiveClassifier`: predicts, rejects, and follows the conventions of scikit-learn."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.validation import check_is_fitted

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import SelectiveClassifier
from secondlook.errors import DecisionError, PredictionsError
from secondlook.policies import DEFAULT_DELTA, Guarantee, Policy, certify, fit_schedule
from secondlook.predictions import Execution, collect
from secondlook.sources import ArraySource, open_source
from tests.decisions.conftest import Counting, brightness, make_adaptive_rule, make_policy

VIEWS = "identity hflip shift:1,0 brightness:1.05"

Data = tuple[Array, Array]


@pytest.fixture(scope="module")
def fitted(classifier: Classifier, bright_or_dark: Data) -> SelectiveClassifier:
    images, labels = bright_or_dark
    return SelectiveClassifier(classifier, views=VIEWS, risk=0.05, delta=0.1).fit(images[:500], labels[:500])


def test_fit_calibrates_and_predict_rejects(fitted: SelectiveClassifier, bright_or_dark: Data, tmp_path: Path) -> None:
    images, labels = bright_or_dark[0][500:], bright_or_dark[1][500:]
    assert fitted.policy_.certified
    predicted = fitted.predict(images)
    accepted = predicted != -1
    assert 0.3 < accepted.mean() < 1
    assert np.mean(predicted[accepted] != labels[accepted]) <= 0.08
    confidence = fitted.confidence(images)
    assert np.array_equal(accepted, fitted.policy_.accept(confidence, method=fitted.policy_.method))
    expected = np.mean(predicted == labels)  # accepted and correct
    assert fitted.score(images, labels) == fitted.score(ArraySource(images, labels=labels)) == expected
    with pytest.raises(DecisionError, match="labels"):
        fitted.score(images)
    cameras = ArraySource(images, labels=np.arange(100) % 3, class_names=["camera 1", "camera 2", "camera 3"])
    assert np.array_equal(fitted.predict(cameras), predicted), "folders of new images need not be classes"
    image = images[0]
    assert fitted.predict(image).shape == (1,)
    assert fitted.predict(image) == fitted.predict(image[None])
    assert fitted.predict_proba(image).shape == (1, 2)
    assert fitted.decide(image)[0].confidence == fitted.confidence(image)[0]
    fitted.policy_.save(tmp_path / "policy.json")
    loaded = SelectiveClassifier(load_classifier(brightness, name="brightness"), tmp_path / "policy.json")
    assert np.array_equal(loaded.predict(images), predicted)
    assert loaded.policy_.decides_like(fitted.policy_)


def test_probabilities_follow_predict_from(classifier: Classifier, bright_or_dark: Data) -> None:
    images = bright_or_dark[0][:10]
    from_image, from_views = (
        SelectiveClassifier(classifier, make_policy(classifier, VIEWS, predict_from=kind)).predict_proba(images)
        for kind in ("image", "views")
    )
    assert from_image == pytest.approx(brightness(images), abs=1e-6)
    assert SelectiveClassifier(classifier, make_policy(classifier, "identity")).decide(images).interval is None
    expected = collect(classifier, images, VIEWS).probabilities.mean(axis=1)
    assert from_views == pytest.approx(expected, abs=1e-6)
    assert not np.allclose(from_views, from_image)


def test_fit_reports_what_cannot_be_guaranteed_also_in_cross_validation(bright_or_dark: Data) -> None:
    images, labels = bright_or_dark
    with pytest.raises(DecisionError, match=r"0\.1 % errors"):
        SelectiveClassifier(brightness, views=VIEWS, risk=0.001, delta=0.01).fit(images, labels)
    with pytest.raises(DecisionError, match="labels"):
        SelectiveClassifier(brightness, views=VIEWS).fit(images)
    images, labels = bright_or_dark
    scores = cross_val_score(SelectiveClassifier(brightness, views="identity hflip", risk=0.1), images, labels, cv=2)
    assert scores.shape == (2,)
    assert np.all((scores > 0.3) & (scores < 1))


def test_init_loads_and_checks_nothing(bright_or_dark: Data) -> None:
    lazy = SelectiveClassifier("onnx:absent.onnx", "absent.json", views="no such view", method="none", risk=7)
    assert lazy.get_params() == {
        "classifier": "onnx:absent.onnx",
        "policy": "absent.json",
        "views": "no such view",
        "method": "none",
        "risk": 7,
        "delta": DEFAULT_DELTA,
        "predict_from": "image",
        "top_k": 1,
        "method_options": None,
        "adaptive": False,
        "allow_mismatch": False,
        "execution": Execution(progress=False),
    }
    with pytest.raises(DecisionError, match=r"absent\.json"):
        lazy.predict(np.zeros((1, 4, 4, 3), dtype=np.uint8))
    unfitted = SelectiveClassifier(brightness, views=VIEWS)
    for use in (unfitted.predict, unfitted.predict_proba, unfitted.confidence, unfitted.decide, unfitted.score):
        with pytest.raises(DecisionError, match="fit") as caught:
            use(bright_or_dark[0][:2])
        assert isinstance(caught.value, NotFittedError)
    with pytest.raises(NotFittedError):
        check_is_fitted(unfitted)
    assert not hasattr(unfitted, "classes_")


def test_fitted_given_and_fitted_again(
    fitted: SelectiveClassifier, classifier: Classifier, bright_or_dark: Data
) -> None:
    check_is_fitted(fitted)
    assert is_classifier(fitted)
    assert fitted.classifier_ is classifier
    assert fitted.views_.texts == tuple(VIEWS.split())
    assert fitted.n_classes_ == 2
    assert np.array_equal(fitted.classes_, [0, 1])
    images = bright_or_dark[0][:3]
    other = load_classifier(brightness, name="other")
    with pytest.raises(DecisionError, match=r"'brightness'.*'other'"):
        SelectiveClassifier(other, fitted.policy_).predict(images)
    allowed = SelectiveClassifier(other, fitted.policy_, allow_mismatch=True)
    assert len(allowed.predict(images)) == 3
    assert fitted.policy_.certified
    assert not allowed.policy_.certified, "the guarantee is for the other classifier"
    assert allowed.policy_.threshold == fitted.policy_.threshold
    images, labels = bright_or_dark
    again = SelectiveClassifier(classifier, fitted.policy_, risk=0.4, method="msr").fit(images[:400], labels[:400])
    assert again.policy_.method == fitted.policy_.method
    assert again.policy_.guarantee == fitted.policy_.guarantee
    assert again.views_ == fitted.views_
    assert again.policy_.calibration != fitted.policy_.calibration


def test_policy_makes_it_usable_without_fit(bright_or_dark: Data, classifier: Classifier) -> None:
    classifier = load_classifier(brightness, name="brightness")
    usable = SelectiveClassifier(classifier, make_policy(classifier))
    check_is_fitted(usable)
    assert not hasattr(usable, "classes_"), "the number of classes is unknown yet"
    usable.predict(bright_or_dark[0][:2])
    assert np.array_equal(usable.classes_, [0, 1])
    first, second = make_policy(classifier), make_policy(classifier, method="msr")
    chooser = SelectiveClassifier(classifier, first)
    assert chooser.policy_.method == "mean"
    assert chooser.set_params(policy=second).policy_.method == "msr"
    with pytest.raises(ValueError, match="'color'"):
        chooser.set_params(color="red")


def test_clone_keeps_parameters_and_drops_the_fit(
    fitted: SelectiveClassifier, classifier: Classifier, bright_or_dark: Data, tmp_path: Path
) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        check_is_fitted(copy)
    made = make_policy(classifier, threshold=0.8)
    made.save(tmp_path / "policy.json")
    for policy in (tmp_path / "policy.json", str(tmp_path / "policy.json"), made):
        copy = clone(SelectiveClassifier(classifier, policy))
        assert (copy.policy, copy.policy_.threshold) == (policy, 0.8)
        assert copy.classifier is classifier
    images, labels = bright_or_dark
    for given in (brightness, GaussianNB().fit(images.reshape(len(images), -1), labels)):
        copy = clone(SelectiveClassifier(given, views=VIEWS, method_options={"temperature": 2.0}))
        assert copy.classifier is given
        assert copy.method_options == {"temperature": 2.0}


def test_integer_labels_of_an_estimator_are_its_classes(bright_or_dark: Data) -> None:
    images, labels = bright_or_dark
    rows = images.reshape(len(images), -1) / 255
    usual, shifted = (
        SelectiveClassifier(GaussianNB().fit(rows, known), views=VIEWS, method="mean", risk=0.3).fit(images, known)
        for known in (labels, labels + 1)
    )
    assert shifted.score(images, labels + 1) == usual.score(images, labels) > 0.5
    assert np.array_equal(shifted.predict(images), usual.predict(images)), "predictions are class indices"
    assert shifted.decide(images[0])[0].class_name == str(usual.decide(images[0])[0].label + 1)


def test_methods_share_delta(classifier: Classifier, bright_or_dark: Data) -> None:
    images, labels = bright_or_dark
    chooser = SelectiveClassifier(classifier, views=VIEWS, method=["msr", "mean"], risk=0.08, delta=0.1)
    chooser.fit(images, labels)
    preds = collect(classifier, images, VIEWS, labels=labels)
    halves = [certify(preds, method, risk=0.08, delta=0.05) for method in ("msr", "mean")]
    best = max(halves, key=lambda rule: rule.coverage)
    assert (chooser.policy_.method, chooser.policy_.threshold) == (best.method, best.threshold)
    assert chooser.policy_.guarantee == Guarantee(risk=0.08, delta=0.1)
    assert clone(chooser).method == ["msr", "mean"]
    with pytest.raises(DecisionError, match="duplicate method 'mean'"):
        SelectiveClassifier(classifier, method=["mean", "mean"]).fit(images, labels)


def test_correct_copies_add_no_evidence_and_wrong_ones_count(classifier: Classifier, bright_or_dark: Data) -> None:
    images, labels = bright_or_dark[0][:100], bright_or_dark[1][:100]
    chooser = SelectiveClassifier(classifier, views=VIEWS, risk=0.2, delta=0.1)
    once = chooser.fit(images, labels).policy_
    correct = collect(classifier, images, VIEWS, labels=labels).correct()
    for copied, more_errors in ((np.flatnonzero(correct), 0), (np.arange(100), 4 * int(np.sum(~correct)))):
        order = np.concatenate([np.arange(100), np.tile(copied, 4)])
        policy = chooser.fit(images[order], labels[order]).policy_
        assert policy.calibration is not None
        assert policy.calibration.images == 100 + more_errors
        assert policy.calibration.duplicates == 4 * int(np.sum(correct))
        assert policy.threshold >= once.threshold


def make_adaptive(classifier: Classifier, **settings: Any) -> SelectiveClassifier:
    return SelectiveClassifier(classifier, make_policy(classifier, rule=make_adaptive_rule(**settings)))


@pytest.mark.parametrize("count", [60, 4200])
@pytest.mark.parametrize("settings", [{}, {"predict_from": "views"}, {"top_k": 2, "method": "blend"}], ids=str)
def test_adaptive_policy_looks_until_decided(bright_or_dark: Data, settings: dict[str, Any], count: int) -> None:
    """At most 4096 images are looked at together."""
    images, labels = (np.concatenate([values] * 7)[:count] for values in bright_or_dark)

    def classify(batch: Any) -> Any:
        return np.concatenate([0.9 * brightness(batch), np.full((len(batch), 1), 0.1)], axis=1)

    counting = Counting(classify)
    adaptive = make_adaptive(load_classifier(counting, name="counted"), **settings)
    rule = adaptive.policy_
    preds = collect(adaptive.classifier_, images, list(rule.views))
    stored = rule.look(preds)
    accepted = rule.accept(stored.confidence, method=rule.method)
    counting.restart()
    decisions = adaptive.decide(images)
    assert sum(counting.sizes) == stored.looks.sum() < 5 * count
    assert np.array_equal(decisions.looks, stored.looks)
    assert np.array_equal(decisions.labels, stored.predicted)
    assert np.array_equal(decisions.confidence, stored.confidence)
    assert np.array_equal(decisions.accept, accepted)
    assert decisions.ids == preds.ids
    assert decisions.interval is not None
    assert np.array_equal(np.isnan(decisions.interval[0]), stored.looks == 1)
    assert all((decision.interval is None) == (decision.looks == 1) for decision in decisions)
    assert np.array_equal(adaptive.confidence(images), stored.confidence)
    predicted = np.where(accepted.reshape((-1,) + (1,) * (stored.predicted.ndim - 1)), stored.predicted, -1)
    assert np.array_equal(adaptive.predict(images), predicted)
    assert adaptive.score(images, labels) == np.mean((predicted.reshape(count, -1) == labels[:, None]).any(axis=1))
    assert adaptive.n_classes_ == 3
    probabilities = preds.probabilities.astype(np.float64)
    seen = np.ones(count, dtype=int) if rule.predict_from == "image" else stored.looks
    expected = [probabilities[row, :count].mean(axis=0) for row, count in enumerate(seen)]
    assert adaptive.predict_proba(images) == pytest.approx(np.array(expected), abs=1e-6)


def test_adaptive_policy_leaves_out_unreadable_images(classifier: Classifier, image_files: str, images: Array) -> None:
    adaptive = make_adaptive(classifier)
    whole = adaptive.decide(image_files)
    (Path(image_files.partition(":")[2]) / whole.ids[3]).write_bytes(b"")
    fewer = adaptive.decide(open_source(image_files, on_error="skip"))
    assert fewer.ids == whole.ids[:3] + whole.ids[4:]
    assert np.array_equal(fewer.looks, np.delete(whole.looks, 3))
    with pytest.raises(PredictionsError, match="2"):
        make_adaptive(classifier).score(images, np.full(len(images), 2))


@pytest.mark.parametrize("max_looks", [None, 2])
def test_fit_makes_an_adaptive_policy(classifier: Classifier, bright_or_dark: Data, max_looks: int | None) -> None:
    images, labels = bright_or_dark
    tuning = collect(classifier, images[:200], VIEWS)
    images, labels = images[200:], labels[200:]
    made = fit_schedule(tuning, Policy(threshold=0.8), tolerance=0.02, max_looks=max_looks)
    arguments: dict[str, Any] = {"risk": 0.1, "delta": 0.1, "adaptive": made}
    fitted = SelectiveClassifier(classifier, views=VIEWS, **arguments).fit(images, labels)
    preds = collect(classifier, images, VIEWS, labels=labels)
    duplicates = [ArraySource(images).ids[index] for index in ArraySource(images).find_duplicates()]
    assert fitted.policy_ == certify(preds, duplicates=duplicates, **arguments)
    schedule = fitted.policy_.schedule
    assert schedule is not None
    assert (schedule.tolerance, len(schedule.views)) == (0.02, max_looks or 4)
    assert fitted.views_.texts == schedule.views == fitted.policy_.views
    decisions = fitted.decide(images)
    assert 1 < decisions.looks.mean() < 4
    again = SelectiveClassifier(classifier, fitted.policy_, adaptive=False).fit(images, labels)
    assert again.policy_.schedule is not None
    assert again.policy_.schedule.tolerance == 0.02
    assert sorted(again.views_.texts) == sorted(schedule.views)


@pytest.mark.parametrize("adaptive", [False, True])
def test_everything_is_classified_on_the_device(cuda_1_only: Classifier, bright_or_dark: Data, adaptive: bool) -> None:
    images, labels = bright_or_dark
    options: dict[str, Any] = {"risk": 0.3, "delta": 0.1, "adaptive": adaptive}
    there = Execution(device="cuda:1", progress=False)
    model = SelectiveClassifier(cuda_1_only, views=VIEWS, execution=there, **options)
    assert clone(model).execution == there
    predicted = model.fit(images, labels).predict(images[:9])
    again = SelectiveClassifier(cuda_1_only, model.policy_, execution=there)
    np.testing.assert_array_equal(again.predict(images[:9]), predicted)
    with pytest.raises(AssertionError):
        SelectiveClassifier(cuda_1_only, model.policy_).predict(images[:9])


def test_classifier_with_a_torch_model_is_pickled(bright_or_dark: Data) -> None:
    torch = pytest.importorskip("torch")
    images, labels = bright_or_dark
    linear = torch.nn.Linear(images[0].size, 2)
    with torch.no_grad():
        linear.weight[:] = torch.tensor([[-0.2], [0.2]])
        linear.bias[:] = torch.tensor([10.8, -10.8])
    network = load_classifier(torch.nn.Sequential(torch.nn.Flatten(), linear), output="logits")
    estimator = SelectiveClassifier(network, views="identity hflip", risk=0.2, delta=0.1)
    again = pickle.loads(pickle.dumps(estimator))
    expected = estimator.fit(images[:300], labels[:300]).predict(images[300:])
    for copy in (again.fit(images[:300], labels[:300]), pickle.loads(pickle.dumps(estimator))):
        np.testing.assert_array_equal(copy.predict(images[300:]), expected)
        assert copy.policy_ == estimator.policy_
