"""The registry: unique names, errors that list the known names, and rows for tables."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from secondlook.errors import MetricError
from secondlook.registry import Registry, did_you_mean


@dataclass(frozen=True)
class Shape:
    """A record with a plain field, a tuple and a function."""

    name: str
    summary: str
    sides: int = 0
    colors: tuple[str, ...] = ()
    draw: Callable[[], None] | None = None
    parts: tuple[object, ...] = ()

    @property
    def form(self) -> str:
        return f"{self.name}:SIZE"


@pytest.fixture
def shapes() -> Registry[Shape]:
    registry: Registry[Shape] = Registry("shape", MetricError)
    registry.add(Shape("square", "four equal sides", 4, ("red", "blue")))
    registry.add(Shape("circle", "no sides", draw=lambda: None, parts=(print,)))
    return registry


def test_records_are_kept_once_in_order_of_registration(shapes: Registry[Shape]) -> None:
    assert "triangle" not in shapes
    assert shapes.get("triangle") is None
    with pytest.raises(KeyError, match="triangle"):
        shapes["triangle"]
    triangle = Shape("triangle", "three sides", 3)
    assert shapes.add(triangle) is shapes.find("triangle") is triangle
    with pytest.raises(MetricError, match="'square'"):
        shapes.add(Shape("square", "again"))
    assert shapes["square"].summary == "four equal sides"
    assert list(shapes) == ["square", "circle", "triangle"]
    assert len(shapes) == 3
    assert repr(shapes) == "Registry('shape': square, circle, triangle)"


def test_an_unknown_name_lists_the_known_and_suggests_the_closest(shapes: Registry[Shape]) -> None:
    with pytest.raises(MetricError) as raised:
        shapes.find("sqare", " in 'sqare:3'")
    for expected in ("shape 'sqare' in 'sqare:3'", "square:SIZE, circle:SIZE", "Did you mean 'square'?"):
        assert expected in str(raised.value)
    with pytest.raises(MetricError, match="'zzz'") as raised:
        shapes.find("zzz")
    assert "Did you mean" not in str(raised.value)


def test_rows_contain_the_plain_fields_only(shapes: Registry[Shape]) -> None:
    square, circle = shapes.to_rows()
    assert square == {
        "name": "square",
        "form": "square:SIZE",
        "summary": "four equal sides",
        "sides": 4,
        "colors": ("red", "blue"),
        "draw": None,
        "parts": (),
    }
    assert set(circle) == {"name", "form", "summary", "sides", "colors"}


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("onxx", ["onnx", "torch"], " Did you mean 'onnx'?"),
        ("zzz", ["onnx", "torch"], ""),
        ("onnx", [], ""),
        ("onnx", ["torch", "onnx"], ""),
    ],
)
def test_only_a_close_name_is_suggested(name: str, known: list[str], expected: str) -> None:
    assert did_you_mean(name, known) == expected
