import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from secondlook.views import STEPS


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The slow, plain version of every step."""
    spec = importlib.util.spec_from_file_location("views_reference", Path(__file__).with_name("reference.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def spare_registry() -> Iterator[None]:
    """Steps that a test registers are forgotten after it."""
    before = dict(STEPS)
    yield
    STEPS.clear()
    STEPS.update(before)
