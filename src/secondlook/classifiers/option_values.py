"""Values of a scheme's options: read from a text, and compared with the types that the opener states."""

import math
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Union, get_args, get_origin

from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.errors import ClassifierError

TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
KINDS: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    Sequence: "a list",
    Mapping: "a mapping",
    Preprocessing: "a Preprocessing, which goes with a call and not with a text",
}
"""The types that are compared, and what a person calls them; a value for any other type is the opener's to check."""


def read_value(text: str, hint: object) -> object:
    """Return what a text says for an option of this type; what cannot be read so stays for `check_value` to refuse."""
    kinds = _kinds(hint)
    if kinds == {str}:
        return text
    if kinds == {bool}:
        return TRUTHS.get(text.lower(), text)
    return _value_of(text)


def check_value(name: str, value: object, hint: object, spec: str) -> None:
    """Refuse a value of another type than the option's."""
    kinds = _kinds(hint)
    if value is None or not kinds <= KINDS.keys() or any(_is_a(value, kind) for kind in kinds):
        return
    expected = " or ".join(KINDS[kind] for kind in KINDS if kind in kinds)
    raise ClassifierError(f"option {name}={value!r} of {spec!r} has a value of another kind; expected {expected}.")


def _kinds(hint: object) -> set[object]:
    """Return the types that a hint allows, less None and the types of members: `Sequence[str] | None` is a Sequence."""
    hints = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return {get_origin(each) or each for each in hints if each is not type(None)}


def _is_a(value: object, kind: object) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is int:
        return isinstance(value, Integral)
    if kind is float:
        return isinstance(value, Real) and math.isfinite(value)
    if kind is str:
        # A path, or a device of torch, is as good as its text.
        return isinstance(value, str) or not isinstance(value, Real | Collection)
    return isinstance(kind, type) and isinstance(value, kind)


def _value_of(text: str) -> object:
    """Return a number, true or false, a tuple where there are commas, or the text itself."""
    if "," in text:
        return tuple(_value_of(part) for part in text.split(","))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
