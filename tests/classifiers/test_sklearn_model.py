"""scikit-learn estimators: objects, and pickles that are loaded only if trusted."""

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


def test_the_output_is_predict_proba_of_flattened_pixels(estimator: Any, images: Array) -> None:
    classifier = load_classifier(estimator)
    assert classifier.output == "probabilities"
    assert classifier.n_classes == 3
    np.testing.assert_allclose(classifier(images), estimator.predict_proba((images / 255).reshape(7, -1)), atol=1e-5)


def test_the_digest_depends_on_the_name_or_the_pickle(estimator: Any, images: Array) -> None:
    other = LogisticRegression().fit((images / 255).reshape(7, -1), LABELS[::-1])
    assert load_classifier(estimator).digest == load_classifier(estimator).digest != load_classifier(other).digest
    assert load_classifier(estimator, name="a").digest == load_classifier(other, name="a").digest


def test_an_estimator_that_cannot_be_pickled_has_no_digest(estimator: Any) -> None:
    estimator.hook = lambda: None
    assert load_classifier(estimator).digest == ""


@pytest.mark.parametrize("dump", [joblib.dump, lambda each, file: Path(file).write_bytes(pickle.dumps(each))])
def test_a_pickle_must_be_trusted(dump: Any, estimator: Any, images: Array, tmp_path: Path) -> None:
    dump(estimator, tmp_path / "m.pkl")
    for untrusted in (f"sklearn:{tmp_path}/m.pkl", f"sklearn:{tmp_path}/m.pkl?trust_pickle=no"):
        with pytest.raises(ClassifierError, match="trust_pickle=True"):
            load_classifier(untrusted)
    by_text = load_classifier(f"sklearn:{tmp_path}/m.pkl?trust_pickle=true")
    np.testing.assert_array_equal(by_text(images), load_classifier(estimator)(images))
    for yes in ("yes", "1", "True"):
        assert load_classifier(f"sklearn:{tmp_path}/m.pkl?trust_pickle={yes}").digest == by_text.digest
    assert by_text.digest == load_classifier(f"sklearn:{tmp_path}/m.pkl", trust_pickle=True).digest


def test_a_damaged_pickle_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(b"nonsense")
    with pytest.raises(ClassifierError, match=r"m\.pkl"):
        load_classifier(f"sklearn:{tmp_path}/m.pkl", trust_pickle=True)


def test_an_estimator_without_probabilities_is_rejected() -> None:
    with pytest.raises(ClassifierError, match="LinearSVC"):
        load_classifier(LinearSVC())


def test_logits_are_rejected(estimator: Any) -> None:
    with pytest.raises(ClassifierError, match="output='logits'"):
        load_classifier(estimator, output="logits")


def test_images_of_another_size_are_rejected(estimator: Any) -> None:
    with pytest.raises(ClassifierError, match=r"192 .*\[8, 8, 1\].* 64"):
        load_classifier(estimator)(np.zeros((1, 8, 8, 1), np.uint8))


def test_classes_must_be_names_or_numbers_from_zero(images: Array) -> None:
    rows = (images / 255).reshape(7, -1)
    names = load_classifier(LogisticRegression().fit(rows, np.array(["cat", "dog"])[LABELS % 2]))
    assert names.class_names == ("cat", "dog")
    with pytest.raises(ClassifierError, match=r"\[1, 2, 3\]"):
        load_classifier(LogisticRegression().fit(rows, LABELS + 1))
    with pytest.raises(ClassifierError, match=r"\[3, 4, 5\]"):
        load_classifier(LogisticRegression().fit(rows, (LABELS + 3).astype(np.uint8)))
