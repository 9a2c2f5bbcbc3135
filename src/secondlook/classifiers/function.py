"""Python functions as classifiers, and importing Python objects by name."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier, digest_values
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.preprocessing import GEOMETRY, Preprocessing
from secondlook.errors import ClassifierError

FUNCTION_SETTINGS = (*GEOMETRY, "size")
"""The preprocessing settings that apply to a function, which does its own normalization."""


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
        if hasattr(values, "detach"):
            values = values.detach().cpu().numpy()
        array: Array = values
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
        if setting not in FUNCTION_SETTINGS:
            raise ClassifierError(
                f"{setting}= has no effect on {options.spec!r}, because a function gets raw pixels; "
                "normalize inside the function."
            )
    function = import_object(target, options.spec) if isinstance(target, str) else target
    if not callable(function):
        raise ClassifierError(f"{options.spec!r} is {function!r}, which is not callable; expected a function.")
    return FunctionClassifier(function, options)


def import_object(location: str, spec: str) -> Any:
    """Import `package.module:name`; modules in the current folder are found too."""
    module_name, _, attribute = location.partition(":")
    if not attribute:
        raise ClassifierError(f"{spec!r} does not name an object in a module; expected package.module:name.")
    try:
        module = _import_module(module_name)
    except ModuleNotFoundError as error:
        raise ClassifierError(
            f"{spec!r} needs the module {error.name!r}, which was not found; install it, or run in its folder."
        ) from error
    if not hasattr(module, attribute):
        raise ClassifierError(f"module {module_name!r} of {spec!r} has no attribute {attribute!r}; check the name.")
    return getattr(module, attribute)


def _import_module(name: str) -> Any:
    folder = str(Path.cwd())
    if folder in sys.path:
        return importlib.import_module(name)
    # A command-line tool does not have the current folder on its path, although models are often defined there.
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
