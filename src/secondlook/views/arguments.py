"""The arguments of a step: how they are read from text, checked, and written back in one form only."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

Argument = float | str
"""What a parameter reads: a number, or a text such as a channel order."""


@dataclass(frozen=True)
class Amount:
    """A length in pixels, or in per cent of a side."""

    value: float
    percent: bool = False

    def pixels(self, side: int) -> float:
        """Return the length in pixels for a side of that many pixels."""
        return self.value * side / 100 if self.percent else self.value

    def __str__(self) -> str:
        return number_text(self.value) + ("%" if self.percent else "")


@dataclass(frozen=True)
class Parameter:
    """A named argument: `read` gives its value, or raises `ValueError` with the end of a sentence."""

    name: str
    read: Callable[[str], "Argument | Amount"]


def number_text(value: float) -> str:
    """Write a number in its one shortest form, without a plus sign: '+' joins the steps of a chain."""
    return repr(value + 0.0).removesuffix(".0").replace("e+", "e")


def argument_text(value: Argument | Amount) -> str:
    """Write an argument in its one form."""
    return number_text(value) if isinstance(value, float) else str(value)


def read_number(text: str) -> float:
    """Read a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"is {shortened(text)!r}, expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"is {text!r}, expected a finite number")
    return value + 0.0  # -0 becomes 0, so that equal views have equal text


def number(name: str) -> Parameter:
    """Read any finite number."""
    return Parameter(name, read_number)


def number_between(name: str, lowest: float, highest: float) -> Parameter:
    """Read a number from `lowest` to `highest`, both included."""

    def read(text: str) -> float:
        value = read_number(text)
        if not lowest <= value <= highest:
            raise ValueError(f"is {text}, expected {number_text(lowest)} to {number_text(highest)}")
        return value

    return Parameter(name, read)


def percentage(name: str) -> Parameter:
    """Read a number from 0 to 100; the per cent sign may be left out."""
    plain = number_between(name, 0.0, 100.0)
    return Parameter(name, lambda text: plain.read(text.removesuffix("%")))


def amount(name: str) -> Parameter:
    """Read pixels, or per cent with the sign."""

    def read(text: str) -> Amount:
        value = read_number(text.removesuffix("%"))
        return Amount(value, percent=text.endswith("%") and value != 0)

    return Parameter(name, read)


def channel_order(name: str) -> Parameter:
    """Read a permutation of the letters r, g, b."""
    orders = ["".join(order) for order in itertools.permutations("rgb")]

    def read(text: str) -> str:
        if text.lower() not in orders:
            raise ValueError(f"is {shortened(text)!r}, expected one of {', '.join(orders)}")
        return text.lower()

    return Parameter(name, read)


def shortened(text: str, most: int = 60) -> str:
    """Return the text, cut where it is too long to read in a message."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
