"""scikit-learn estimators as classifiers: `predict_proba` on flattened pixels."""

import hashlib
import pickle
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.digests import digest_of, digest_of_files, existing_file
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.errors import ClassifierError


class SklearnClassifier(Classifier):
    """An estimator with `predict_proba`, given float32 [N, H * W * C]: pixels normalized, then flattened."""

    def __init__(self, estimator: Any, digest: str, statement: LoadOptions) -> None:
        names = _class_names(estimator, statement.spec)
        super().__init__(
            name=statement.shown_name,
            digest=digest,
            output=statement.known_output("probabilities"),
            preprocessing=statement.preprocessing(Preprocessing(layout="NHWC")),
            n_classes=_number_of_classes(estimator),
            class_names=names,
        )
        self._estimator = estimator

    def answer(self, images: Array) -> Array:
        """Probabilities in the order of the estimator's classes. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        rows = self.preprocessing.normalize(images).reshape(len(images), -1)
        expected = getattr(self._estimator, "n_features_in_", rows.shape[1])
        if rows.shape[1] != expected:
            raise ClassifierError(
                f"classifier {self.name!r} takes {expected} values per image, but images of {list(images.shape[1:])} "
                f"have {rows.shape[1]}; set resize=(height, width) and gray= as it was trained."
            )
        probabilities: Array = self._estimator.predict_proba(rows)
        return probabilities


def _is_estimator(target: object) -> bool:
    return hasattr(target, "fit") and hasattr(target, "predict")


@model_scheme(
    "sklearn",
    form="sklearn:FILE",
    says="scikit-learn estimator with predict_proba; a pickled FILE only with trust_pickle=True",
    recognizes=_is_estimator,
)
def open_sklearn(target: Any, statement: LoadOptions, *, trust_pickle: bool = False) -> Classifier:
    """Wrap an estimator, or unpickle one from a file that the user says is trusted."""
    if not isinstance(target, str):
        return _wrapped(target, _digest_of_estimator(target, statement), statement)
    if trust_pickle is not True:
        raise ClassifierError(
            f"{statement.spec!r} is a pickle, and loading a pickle runs whatever code it holds; "
            "pass trust_pickle=True if you made the file or trust who did."
        )
    file = existing_file(target, statement.spec)
    import joblib  # type: ignore[import-untyped]

    try:
        estimator = joblib.load(file)
    except (pickle.UnpicklingError, EOFError, ImportError, AttributeError, IndexError, KeyError, ValueError) as error:
        raise ClassifierError(f"{statement.spec!r} cannot be unpickled: {error}; check or re-create it.") from error
    return _wrapped(estimator, digest_of_files([file]), statement)


def _wrapped(estimator: Any, digest: str, statement: LoadOptions) -> Classifier:
    if not hasattr(estimator, "predict_proba"):
        raise ClassifierError(
            f"{statement.spec!r} holds {type(estimator).__name__}, which has no predict_proba; "
            "use one that gives probabilities, or wrap it in sklearn.calibration.CalibratedClassifierCV."
        )
    return SklearnClassifier(estimator, digest, statement)


def _digest_of_estimator(estimator: Any, statement: LoadOptions) -> str:
    """Digest of the name the user gave, or of the pickled estimator; empty where it cannot be pickled."""
    if statement.name:
        return digest_of("sklearn", statement.name)
    try:
        return hashlib.sha256(pickle.dumps(estimator, protocol=5)).hexdigest()
    except (pickle.PicklingError, AttributeError, TypeError):
        return ""


def _number_of_classes(estimator: Any) -> int | None:
    classes = getattr(estimator, "classes_", None)
    return None if classes is None else len(classes)


def _class_names(estimator: Any, spec: str) -> tuple[str, ...] | None:
    """Names where the estimator was trained on names; numbers must be 0, 1, 2, ..., as labels are."""
    classes = getattr(estimator, "classes_", None)
    if classes is None or np.array_equal(classes, np.arange(len(classes))):
        return None
    if np.asarray(classes).dtype.kind in "iufb":
        first = np.asarray(classes)[:5].tolist()
        raise ClassifierError(
            f"{spec!r} was trained on the classes {first}, but labels run from 0 to {len(classes) - 1}; "
            "train it on labels 0, 1, 2, ... or on class names."
        )
    return tuple(str(each) for each in classes)
