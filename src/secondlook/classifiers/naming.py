"""Python objects named by a text: `package.module:name`."""

import importlib
import sys
from pathlib import Path
from typing import Any

from secondlook.errors import ClassifierError


def imported(address: str, spec: str) -> Any:
    """Return the object at `package.module:name`; modules in the current folder are found as well."""
    module_name, colon, attribute = address.partition(":")
    if not colon or not attribute:
        raise ClassifierError(f"{spec!r} must name a module and what to take from it: package.module:name.")
    try:
        module = _module(module_name)
    except ModuleNotFoundError as error:
        raise ClassifierError(
            f"{spec!r} needs the module {error.name!r}, which is not found; install it or run beside it."
        ) from error
    if not hasattr(module, attribute):
        raise ClassifierError(f"module {module_name!r} of {spec!r} has no {attribute!r}; check the name.")
    return getattr(module, attribute)


def _module(name: str) -> Any:
    folder = str(Path.cwd())
    if folder in sys.path:
        return importlib.import_module(name)
    # A command-line tool does not have the current folder on its path, although models are often defined there.
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
