"""Models in Python: functions and scikit-learn estimators."""

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier, digest_files, digest_values, find_model_file
from secondlook.classifiers.loading import LoadOptions, import_object, model_scheme
from secondlook.classifiers.preprocessing import GEOMETRY, Preprocessing
from secondlook.errors import ANY, ClassifierError, Repair, reject_failures


class FunctionClassifier(Classifier):
    """A function from uint8|float32 [N, H, W, C] to [N, classes]."""

    def __init__(self, function: Callable[[Array], Any], options: LoadOptions) -> None:
        super().__init__(
            name=options.display_name,
            digest=digest_values("function", options.name) if options.name else "",
            output=options.output or options.default_output or "probabilities",
            preprocessing=options.override(Preprocessing(layout="NHWC")),
        )
        self._function = function

    def forward(self, images: Array) -> Array:
        """Return the output of the function; a torch tensor is moved to the CPU."""
        values = self._function(images)
        array: Array = values.detach().cpu().numpy() if hasattr(values, "detach") else values
        return array


@model_scheme(
    "function",
    form="function:package.module:name",
    summary="Python function (or any callable) from a uint8 batch [N, H, W, C] to an array [N, classes]",
    recognizes=callable,
    describes_itself=True,
)
def open_function(target: object, options: LoadOptions) -> Classifier:
    """Wrap a callable, given as an object or by its name."""
    for setting in options.changed_settings:
        if setting not in (*GEOMETRY, "size"):
            fault = f"has no effect on {options.spec!r}, because a function gets raw pixels"
            raise ClassifierError(fault, argument=setting, repair="normalize inside the function")
    function = import_object(target, options.spec) if isinstance(target, str) else target
    if not callable(function):
        raise ClassifierError(f"{options.spec!r} is {function!r}, which is not callable; expected a function.")
    return FunctionClassifier(function, options)


class SklearnClassifier(Classifier):
    """An estimator with `predict_proba`. Its input is float32 [N, H * W * C]: normalized, flattened pixels."""

    def __init__(self, estimator: Any, digest: str, options: LoadOptions) -> None:
        classes = getattr(estimator, "classes_", None)
        super().__init__(
            name=options.display_name,
            digest=digest,
            output=options.expect_output("probabilities"),
            preprocessing=options.override(Preprocessing(layout="NHWC")),
            n_classes=None if classes is None else len(classes),
            class_names=None if classes is None else _parse_class_names(classes, options.spec),
        )
        self.has_integer_names = self.class_names is not None and isinstance(estimator.classes_[0], Real)
        self.estimator = estimator

    def forward(self, images: Array) -> Array:
        """Return probabilities in the order of the estimator's classes. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        features = self.preprocessing.normalize(images).reshape(len(images), -1)
        expected = getattr(self.estimator, "n_features_in_", features.shape[1])
        if features.shape[1] != expected:
            found = f"images of shape {list(images.shape[1:])} have {features.shape[1]}"
            fault = f"classifier {self.name!r} takes {expected} features per image, but {found}"
            raise ClassifierError(fault, repair=Repair("pass {resize} and {gray} as in training", resize=ANY, gray=ANY))
        return np.asarray(self.estimator.predict_proba(features))


@model_scheme(
    "sklearn",
    form="sklearn:FILE",
    summary="scikit-learn estimator with predict_proba; a pickled FILE requires ?trust_pickle=true",
    recognizes=lambda target: hasattr(target, "fit") and hasattr(target, "predict"),
)
def open_sklearn(target: Any, options: LoadOptions, *, trust_pickle: bool = False) -> Classifier:
    """Wrap an estimator, or load one from a trusted pickle."""
    estimator, digest = target, ""
    if isinstance(target, str):
        estimator, digest = _load_pickle(target, options.spec, trust_pickle)
    elif options.name:
        digest = digest_values("sklearn", options.name)
    else:
        with suppress(pickle.PicklingError, AttributeError, TypeError):  # some estimators cannot be pickled
            digest = hashlib.sha256(pickle.dumps(estimator, protocol=5)).hexdigest()
    if not hasattr(estimator, "predict_proba"):
        fault = f"{options.spec!r} is a {type(estimator).__name__}, which has no predict_proba"
        raise ClassifierError(fault, repair="use another estimator, or wrap it in CalibratedClassifierCV of sklearn")
    return SklearnClassifier(estimator, digest, options)


def _load_pickle(location: str, spec: str, trust_pickle: bool) -> tuple[Any, str]:
    if trust_pickle is not True:
        repair = Repair("pass {trust_pickle} if you trust the source of the file", trust_pickle=True)
        raise ClassifierError(f"{spec!r} is a pickle, and loading a pickle can run any code", repair=repair)
    file = find_model_file(location, spec)
    import joblib  # type: ignore[import-untyped]

    with reject_failures(f"cannot unpickle {spec!r}", "check or re-create the file."):
        estimator = joblib.load(file)
    return estimator, digest_files([file])


def _parse_class_names(classes: Any, spec: str) -> tuple[str, ...] | None:
    """Return the class names, integers as text; None for the classes 0, 1, 2, ..."""
    if np.array_equal(classes, np.arange(len(classes))):
        return None
    given = np.asarray(classes).tolist()
    values = [int(each) if isinstance(each, float) and each.is_integer() else each for each in given]
    if any(isinstance(each, float) for each in values):
        raise ClassifierError(f"{spec!r} has the classes {given[:5]}; train it on integers or on class names.")
    return tuple(map(str, values))
