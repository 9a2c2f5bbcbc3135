"""Checks of single preprocessing settings: a value comes back tidy, or an error says what was expected."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean


def checked_resize(resize: object) -> int | tuple[int, int] | None:
    """Return a shorter side, a (height, width), or None."""
    if isinstance(resize, int) and not isinstance(resize, bool) and resize > 0:
        return resize
    return checked_size("resize", resize)


def checked_size(name: str, size: object) -> tuple[int, int] | None:
    """Return (height, width) of a side or a pair, or None."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else size
    if isinstance(pair, Sequence) and len(pair) == 2 and all(_is_positive_integer(side) for side in pair):
        return int(pair[0]), int(pair[1])
    raise ClassifierError(f"{name}={size!r} is not a size; give a positive number of pixels or (height, width).")


def _is_positive_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def checked_numbers(name: str, value: object) -> tuple[float, ...]:
    """Return one number, or three, as a tuple of floats."""
    values: Iterable[Any] = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    try:
        numbers = tuple(float(number) for number in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise ClassifierError(f"{name}={value!r} must be one finite number or one for each of three channels.")
    return numbers


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise unless the value is among the allowed ones."""
    if value not in allowed:
        hint = did_you_mean(str(value), [str(choice) for choice in allowed])
        raise ClassifierError(f"{name}={value!r} is unknown; allowed: {', '.join(map(repr, allowed))}.{hint}")
