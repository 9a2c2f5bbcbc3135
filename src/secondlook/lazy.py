"""Names that are imported when they are first used, so that `import secondlook` stays light."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module `__getattr__` for `package` that finds each name of `modules` in the module given for it.

    A module given as the name itself (`{"metrics": "secondlook.metrics"}`) is imported whole.
    """

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    return getattr_
