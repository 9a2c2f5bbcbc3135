"""Imports on first use: lazy public names, and packages of optional extras."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from secondlook.errors import MissingExtraError


def lazy_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module `__getattr__` for `package` that imports each name in `modules` from its module.

    An entry like `{"metrics": "secondlook.metrics"}` imports the module itself.
    """

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        vars(sys.modules[package])[name] = value  # cached for the next lookup
        return value

    return getattr_


def import_extra(module: str, *, feature: str, extra: str) -> Any:
    """Import a module of an optional dependency; raise `MissingExtraError` with the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(feature, module.partition(".")[0], extra) from None
