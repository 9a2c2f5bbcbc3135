"""The plain function as a classifier: pixels in, scores out, nothing done in between."""

from collections.abc import Callable
from typing import Any

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.digests import digest_of
from secondlook.classifiers.naming import imported
from secondlook.classifiers.preprocessing import GEOMETRY, Preprocessing
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.errors import ClassifierError

FITTING = (*GEOMETRY, "size")
"""The settings that make sense for a function: it normalizes by itself."""


class FunctionClassifier(Classifier):
    """A function from uint8|float32 [N, H, W, C] to [N, classes]."""

    def __init__(self, function: Callable[[Array], Any], statement: LoadOptions) -> None:
        super().__init__(
            name=statement.shown_name,
            digest=digest_of("function", statement.name) if statement.name else "",
            output=statement.output or "probabilities",
            preprocessing=statement.preprocessing(Preprocessing(layout="NHWC")),
        )
        self._function = function

    def answer(self, images: Array) -> Array:
        """Scores as the function gives them; a torch tensor is brought to the CPU."""
        answers = self._function(images)
        if hasattr(answers, "detach"):
            answers = answers.detach().cpu().numpy()
        scores: Array = answers
        return scores


@model_scheme(
    "function",
    form="function:package.module:name",
    says="Python function (or any callable) from a uint8 batch [N, H, W, C] to an array [N, classes]",
    recognizes=callable,
)
def open_function(target: object, statement: LoadOptions) -> Classifier:
    """Wrap a callable, or the one that a text names."""
    for setting in statement.given_settings:
        if setting not in FITTING:
            raise ClassifierError(
                f"{setting}= has no effect on {statement.spec!r}: a function gets the pixels as they are; "
                "normalize inside the function."
            )
    function = imported(target, statement.spec) if isinstance(target, str) else target
    if not callable(function):
        raise ClassifierError(f"{statement.spec!r} names {function!r}, which cannot be called; name a function.")
    return FunctionClassifier(function, statement)
