"""The arguments of steps: parsed from text, validated, and formatted in one canonical form."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Amount:
    """A length in pixels or in percent of a side."""

    value: float
    percent: bool = False

    def to_pixels(self, side: int) -> float:
        """Return the length in pixels for a side of `side` pixels."""
        return self.value * side / 100 if self.percent else self.value

    def __str__(self) -> str:
        return format_number(self.value) + ("%" if self.percent else "")


Argument = float | str | Amount
"""The value of a parameter: a number, a text such as a channel order, or a length."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a step; `parse` raises `ValueError` with the end of a sentence, such as "is 0, expected ..."."""

    name: str
    parse: Callable[[str], Argument]

    @classmethod
    def number(cls, name: str) -> "Parameter":
        """Return a parameter that takes any finite number."""
        return cls(name, parse_number)

    @classmethod
    def bounded(cls, name: str, lowest: float, highest: float) -> "Parameter":
        """Return a parameter that takes a number from `lowest` to `highest`, inclusive."""

        def parse(text: str) -> float:
            value = parse_number(text)
            if not lowest <= value <= highest:
                raise ValueError(f"is {text}, expected {format_number(lowest)} to {format_number(highest)}")
            return value

        return cls(name, parse)

    @classmethod
    def percentage(cls, name: str) -> "Parameter":
        """Return a parameter that takes a number from 0 to 100, with or without a percent sign."""
        bounded = cls.bounded(name, 0.0, 100.0)
        return cls(name, lambda text: bounded.parse(text.removesuffix("%")))

    @classmethod
    def amount(cls, name: str) -> "Parameter":
        """Return a parameter that takes pixels, or percent with the sign."""

        def parse(text: str) -> Amount:
            value = parse_number(text.removesuffix("%"))
            return Amount(value, percent=text.endswith("%") and value != 0)

        return cls(name, parse)

    @classmethod
    def channel_order(cls, name: str) -> "Parameter":
        """Return a parameter that takes a permutation of the letters r, g, b."""
        orders = ["".join(order) for order in itertools.permutations("rgb")]

        def parse(text: str) -> str:
            if text.lower() not in orders:
                raise ValueError(f"is {shorten(text)!r}, expected one of {', '.join(orders)}")
            return text.lower()

        return cls(name, parse)


def parse_number(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"is {shorten(text)!r}, expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"is {text!r}, expected a finite number")
    return value + 0.0  # -0 becomes 0, so that equal views have equal text


def format_number(value: float) -> str:
    """Format a number in its shortest form, without a plus sign: '+' joins the steps of a view."""
    return repr(value + 0.0).removesuffix(".0").replace("e+", "e")


def format_argument(value: Argument) -> str:
    """Format an argument in its canonical form."""
    return format_number(value) if isinstance(value, float) else str(value)


def shorten(text: str, length: int = 60) -> str:
    """Return the text, truncated where it is too long for a message."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"
