"""Functions, as objects and by name, and scikit-learn estimators, whose pickles are loaded only if trusted."""

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from secondlook.arrays import Array
from secondlook.classifiers import Ensemble, load_classifier
from secondlook.errors import ClassifierError, SourceError
from secondlook.sources import open_source

LABELS = np.array([0, 1, 2, 0, 1, 2, 0])


def test_a_function_gets_the_pixels_unchanged_and_outputs_probabilities(images: Array) -> None:
    batches = []

    def halves(batch: Array) -> Array:
        batches.append(batch)
        return np.full((len(batch), 2), 0.5)

    classifier = load_classifier(halves)
    assert (classifier.output, classifier.n_classes) == ("probabilities", None)
    assert re.fullmatch("function .*halves", classifier.name)
    assert classifier(images).dtype == np.float32
    assert classifier.n_classes == 2
    assert batches[0] is images
    assert classifier.digest == "", "a function is identified by its name only"
    named = load_classifier(halves, name="halves of v1")
    assert len(named.digest) == 64
    assert named.digest != load_classifier(halves, name="halves of v2").digest
    with pytest.raises(ClassifierError, match="mean="):
        load_classifier(halves, mean=(0.5,))
    assert load_classifier(halves, resize=8, crop=8).preprocessing.input_size == (8, 8)


def test_a_function_may_return_a_tensor_of_always_the_same_classes(images: Array) -> None:
    torch = pytest.importorskip("torch")
    classifier = load_classifier(lambda batch: torch.full((len(batch), len(batch)), 1 / len(batch), requires_grad=True))
    np.testing.assert_allclose(classifier(images), 1 / 7)
    with pytest.raises(ClassifierError, match=r"2 classes.* 7"):
        classifier(images[:2])


def test_a_function_is_loaded_by_name(images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    Path("my_model.py").write_text("def predict(images):\n    return [[0.25, 0.75]] * len(images)\nnumber = 1\n")
    classifier = load_classifier("function:my_model:predict?name=mine")
    assert classifier(images)[0].tolist() == [0.25, 0.75]
    assert classifier.name == "function:my_model:predict?name=mine"
    assert load_classifier(classifier.name).digest == classifier.digest != ""
    renamed = load_classifier("function:my_model:predict", name="mine")
    assert (renamed.name, renamed.digest) == ("mine", classifier.digest)
    assert str(Path.cwd()) not in sys.path
    for spec, offending in (
        ("function:my_model:number", "1"),
        ("function:my_model:predct", "'predct'"),
        ("function:no_such_module_here:predict", "'no_such_module_here'"),
        ("function:my_model", "'function:my_model'"),
    ):
        with pytest.raises(ClassifierError, match=re.escape(offending)):
            load_classifier(spec)


# --- scikit-learn ---


@pytest.fixture
def rows(images: Array) -> Array:
    return (images / 255).reshape(7, -1)


@pytest.fixture
def estimator(rows: Array) -> Any:
    return LogisticRegression().fit(rows, LABELS)


def test_the_output_is_predict_proba_of_flattened_pixels(estimator: Any, rows: Array, images: Array) -> None:
    classifier = load_classifier(estimator)
    assert (classifier.output, classifier.n_classes) == ("probabilities", 3)
    np.testing.assert_allclose(classifier(images), estimator.predict_proba(rows), atol=1e-5)
    with pytest.raises(ClassifierError, match="output='logits'"):
        load_classifier(estimator, output="logits")
    with pytest.raises(ClassifierError, match=r"192 .*\[8, 8, 1\].* 64"):
        classifier(np.zeros((1, 8, 8, 1), np.uint8))
    with pytest.raises(ClassifierError, match="LinearSVC"):
        load_classifier(LinearSVC())
    other = LogisticRegression().fit(rows, LABELS[::-1])
    assert load_classifier(estimator).digest == classifier.digest != load_classifier(other).digest
    assert load_classifier(estimator, name="a").digest == load_classifier(other, name="a").digest
    estimator.hook = lambda: None
    assert load_classifier(estimator).digest == "", "it cannot be pickled"


@pytest.mark.parametrize("dump", [joblib.dump, lambda each, file: Path(file).write_bytes(pickle.dumps(each))])
def test_a_pickle_must_be_trusted(dump: Any, estimator: Any, images: Array, tmp_path: Path) -> None:
    spec = f"sklearn:{tmp_path}/m.pkl"
    dump(estimator, tmp_path / "m.pkl")
    for untrusted in (spec, f"{spec}?trust_pickle=no"):
        with pytest.raises(ClassifierError, match="trust_pickle=True"):
            load_classifier(untrusted)
    trusted = load_classifier(spec, trust_pickle=True)
    np.testing.assert_array_equal(trusted(images), load_classifier(estimator)(images))
    for yes in ("yes", "1", "True", "true"):
        assert load_classifier(f"{spec}?trust_pickle={yes}").digest == trusted.digest
    (tmp_path / "m.pkl").write_bytes(b"nonsense")
    with pytest.raises(ClassifierError, match=r"m\.pkl"):
        load_classifier(spec, trust_pickle=True)


def test_classes_are_names_or_integers(rows: Array, estimator: Any) -> None:
    for labels, names, are_integers in (
        (LABELS, None, False),
        (np.array(["2", "1", "10"])[LABELS], ("1", "10", "2"), False),
        (LABELS + 9, ("9", "10", "11"), True),
        ((2 * LABELS - 2).astype(np.float32), ("-2", "0", "2"), True),
    ):
        classifier = load_classifier(LogisticRegression().fit(rows, labels))
        assert (classifier.class_names, classifier.has_integer_names) == (names, are_integers)
        assert Ensemble([classifier, classifier]).has_integer_names == are_integers
    estimator.classes_ = np.array([0.5, 1.0, 2.0])
    with pytest.raises(ClassifierError, match=r"0\.5, 1\.0, 2\.0"):
        load_classifier(estimator)


@pytest.mark.parametrize("offset", [1, 8])
def test_integer_labels_are_the_integers_the_estimator_was_trained_on(
    offset: int, rows: Array, images: Array, tmp_path: Path
) -> None:
    labels = LABELS + offset
    classifier = load_classifier(LogisticRegression().fit(rows, labels))
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    positions = [f"{tmp_path / str(label) / str(index)}.png" for index, label in enumerate(labels)]
    for position, image in zip(positions, images, strict=True):
        Path(position).parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(position)
    opened = open_source(images, labels=labels)
    in_memory = [classifier.open_labeled(images, each) for each in (labels, labels.tolist(), labels.astype(str))]
    for source in (*in_memory, *map(classifier.open_labeled, (opened, f"npz:{tmp_path}/data.npz", in_memory[0]))):
        assert source.labels is not None
        assert source.labels.tolist() == LABELS.tolist()
        assert source.class_names == classifier.class_names
    folder = classifier.open_labeled(f"folder:{tmp_path}")
    assert folder.labels is not None
    assert np.array_equal(folder.labels, classifier(folder.stack()).argmax(axis=1))
    assert opened.labels is not None
    assert opened.labels.tolist() == labels.tolist(), "the source of the user stays as it is"
    for outside in (offset - 1, offset + 3):
        with pytest.raises(SourceError, match=f"'{outside}' of image 1"):
            classifier.open_labeled(images[:2], [offset, outside])
    named = open_source(images, labels=LABELS, class_names=("ant", "bee", "cow"))
    assert classifier.open_labeled(named) is named, "they are indices of other names"
