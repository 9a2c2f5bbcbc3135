"""Estimators of scikit-learn: objects, and pickles that are loaded only when trusted."""

import pickle
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError

Array = np.ndarray[Any, Any]
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])


@pytest.fixture
def estimator(images: Array) -> Any:
    return LogisticRegression().fit((images / 255).reshape(7, -1), LABELS)


def test_it_gives_predict_proba_of_flattened_pixels(estimator: Any, images: Array) -> None:
    classifier = load_classifier(estimator)
    assert classifier.output == "probabilities"
    assert classifier.n_classes == 3
    np.testing.assert_allclose(classifier(images), estimator.predict_proba((images / 255).reshape(7, -1)), atol=1e-5)


def test_the_digest_is_that_of_the_name_or_the_pickle(estimator: Any, images: Array) -> None:
    other = LogisticRegression().fit((images / 255).reshape(7, -1), LABELS[::-1])
    assert load_classifier(estimator).digest == load_classifier(estimator).digest != load_classifier(other).digest
    assert load_classifier(estimator, name="a").digest == load_classifier(other, name="a").digest


def test_an_estimator_that_cannot_be_pickled_has_no_identity(estimator: Any) -> None:
    estimator.hook = lambda: None
    assert load_classifier(estimator).digest == ""


@pytest.mark.parametrize("dump", [joblib.dump, lambda each, file: Path(file).write_bytes(pickle.dumps(each))])
def test_a_pickle_needs_trust(dump: Any, estimator: Any, images: Array, tmp_path: Path) -> None:
    dump(estimator, tmp_path / "m.pkl")
    for untrusted in (f"sklearn:{tmp_path}/m.pkl", f"sklearn:{tmp_path}/m.pkl?trust_pickle=no"):
        with pytest.raises(
            ClassifierError, match="loading a pickle runs whatever code it holds; pass trust_pickle=True"
        ):
            load_classifier(untrusted)
    by_text = load_classifier(f"sklearn:{tmp_path}/m.pkl?trust_pickle=true")
    np.testing.assert_array_equal(by_text(images), load_classifier(estimator)(images))
    for yes in ("yes", "1", "True"):
        assert load_classifier(f"sklearn:{tmp_path}/m.pkl?trust_pickle={yes}").digest == by_text.digest
    assert by_text.digest == load_classifier(f"sklearn:{tmp_path}/m.pkl", trust_pickle=True).digest


def test_a_damaged_pickle_is_said(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(b"nonsense")
    with pytest.raises(ClassifierError, match=r"cannot be unpickled: .*check or re-create it"):
        load_classifier(f"sklearn:{tmp_path}/m.pkl", trust_pickle=True)


def test_an_estimator_without_probabilities_is_said() -> None:
    with pytest.raises(ClassifierError, match="holds LinearSVC, which has no predict_proba"):
        load_classifier(LinearSVC())


def test_logits_are_not_what_it_gives(estimator: Any) -> None:
    with pytest.raises(ClassifierError, match="this kind of classifier gives probabilities; leave output= out"):
        load_classifier(estimator, output="logits")


def test_images_of_another_size_are_said(estimator: Any) -> None:
    with pytest.raises(ClassifierError, match=r"takes 192 values per image, but images of \[8, 8, 1\] have 64"):
        load_classifier(estimator)(np.zeros((1, 8, 8, 1), np.uint8))


def test_classes_are_names_or_numbers_from_zero(images: Array) -> None:
    rows = (images / 255).reshape(7, -1)
    names = load_classifier(LogisticRegression().fit(rows, np.array(["cat", "dog"])[LABELS % 2]))
    assert names.class_names == ("cat", "dog")
    with pytest.raises(ClassifierError, match="but labels run from 0 to 2; train it on labels 0, 1, 2"):
        load_classifier(LogisticRegression().fit(rows, LABELS + 1))
    with pytest.raises(ClassifierError, match=r"was trained on the classes \[3, 4, 5\], but"):
        load_classifier(LogisticRegression().fit(rows, (LABELS + 3).astype(np.uint8)))
