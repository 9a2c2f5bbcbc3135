"""A view: a sequence of steps, as an immutable value with one canonical text; the notation of the paper is read too."""

from dataclasses import dataclass

from secondlook.errors import ViewError
from secondlook.views.operations import Frame, Operation
from secondlook.views.steps import STEPS, Amount, Argument, Arguments, Step, format_argument, format_number, shorten

MAX_STEPS = 32
"""A longer view is surely a mistake."""

_SEPARATOR_HINT = "separate views by white space, such as 'identity, hflip'; commas alone separate arguments"


@dataclass(frozen=True)
class BoundStep:
    """A step with its arguments, such as `shift:2,-1`."""

    name: str
    arguments: Arguments = ()

    @property
    def step(self) -> Step:
        """The registered step."""
        return STEPS[self.name]

    def to_operation(self, frame: Frame) -> Operation:
        """Return the operation of the engine for images of one size."""
        return self.step.operation(frame, *self.arguments)

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}:{','.join(format_argument(argument) for argument in self.arguments)}"


@dataclass(frozen=True)
class View:
    """A transformed version of an image: steps applied left to right. Without steps it is the image itself.

    `View.parse(text)` parses the text of a view and `str(view)` formats it; equal views have equal text. A view of
    predictions that were made elsewhere may have a plain name instead of steps; it cannot be applied to images.
    """

    steps: tuple[BoundStep, ...] = ()
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> "View":
        """Parse a view such as 'hflip+shift:2,-1', or '⇔+→2+↑1' in the notation of the paper."""
        pieces = text.split("+")
        if len(pieces) > MAX_STEPS:
            raise ViewError(f"view {shorten(text)!r} has {len(pieces):,} steps; expected at most {MAX_STEPS}.")
        if any(is_paper_notation(piece) for piece in pieces):
            pieces = rewrite_paper_notation(pieces)
        steps = (_parse_step(piece, text) for piece in pieces)
        # Steps that change nothing are dropped, so that equal views have equal text and are stored once.
        return cls(tuple(step for step in steps if step.arguments != step.step.neutral))

    @property
    def is_identity(self) -> bool:
        """Whether the view is the image itself."""
        return not self.steps and self.name is None

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return "+".join(str(step) for step in self.steps) or "identity"

    def to_paper_notation(self) -> str:
        """Return the view in the notation of the paper; a name, and steps that it has no sign for, keep their text."""
        if self.name is not None:
            return self.name
        return "+".join(write_paper_notation(step.name, step.arguments) or str(step) for step in self.steps) or "x"


def _parse_step(piece: str, text: str) -> BoundStep:
    name, colon, rest = piece.partition(":")
    where = f"in view {shorten(text)!r}"
    if not name:
        raise ViewError(f"empty step {where}; expected steps joined by one '+', such as 'hflip+shift:2,0'.")
    if "," in name:
        raise ViewError(f"unknown step {shorten(name)!r} {where}; {_SEPARATOR_HINT}.")
    step = STEPS.find(shorten(name), "" if name == text else f" {where}")
    words = rest.split(",") if colon else []
    if len(words) != len(step.parameters):
        holds_step = any(word.partition(":")[0] in STEPS for word in words)
        raise ViewError(
            f"step {shorten(piece)!r} {where} has {len(words)} argument(s); expected {len(step.parameters)}:"
            f" {step.form}{f'; {_SEPARATOR_HINT}' if holds_step else ''}."
        )
    arguments = tuple(_parse_argument(step, place, word, where) for place, word in enumerate(words))
    fault = step.check(*arguments)
    if fault:
        raise ViewError(f"step {piece!r} {where} {fault}.")
    return BoundStep(name, arguments)


def _parse_argument(step: Step, place: int, word: str, where: str) -> Argument:
    parameter = step.parameters[place]
    try:
        return parameter.parse(word.strip())
    except ValueError as error:
        raise ViewError(f"{parameter.name} of step {step.form!r} {where} {error}.") from None


_SIGNS = "⇔⇕←→↑↓↻↺×γ"
_DIRECTIONS = {"←": (-1, 0), "→": (1, 0), "↑": (0, -1), "↓": (0, 1)}


def is_paper_notation(piece: str) -> bool:
    """Return whether a step is in the notation of the paper."""
    return piece == "x" or piece[:1] in tuple(_SIGNS) or _is_channel_order(piece)


def rewrite_paper_notation(pieces: list[str]) -> list[str]:
    """Return the text of the same steps; adjacent '←2' and '↓1' are one shift, as in the paper."""
    rewritten: list[str] = []
    pending: tuple[str, str] | None = None  # an arrow that the next one may complete
    for piece in pieces:
        arrow, distance = piece[:1], piece[1:]
        if arrow in _DIRECTIONS and pending and _is_horizontal(arrow) != _is_horizontal(pending[0]):
            rewritten[-1] = _format_shift(dict([pending, (arrow, distance)]))
            pending = None
        elif arrow in _DIRECTIONS:
            rewritten.append(_format_shift({arrow: distance}))
            pending = (arrow, distance)
        else:
            rewritten.append(_rewrite_step(piece))
            pending = None
    return rewritten


def write_paper_notation(name: str, arguments: tuple[Argument, ...]) -> str | None:
    """Return a step in the notation of the paper, or None where it has no sign for it."""
    match name, arguments:
        case "hflip", ():
            return "⇔"
        case "vflip", ():
            return "⇕"
        case "shift", (Amount() as dx, Amount() as dy):
            return "+".join(_format_arrow(*side) for side in ((dx, "←", "→"), (dy, "↑", "↓")) if side[0].value)
        case "rotate", (float() as degrees,):
            return ("↻" if degrees > 0 else "↺") + format_number(abs(degrees))
        case (("zoom" | "gamma"), (float() as value,)):
            return {"zoom": "×", "gamma": "γ"}[name] + format_number(value)
        case "channels", (str() as order,):
            return order.upper()
    return None


def _is_channel_order(piece: str) -> bool:
    return sorted(piece) == ["B", "G", "R"]


def _is_horizontal(arrow: str) -> bool:
    return arrow in "←→"


def _format_shift(distances: dict[str, str]) -> str:
    sides = {"x": "0", "y": "0"}
    for arrow, distance in distances.items():
        sign = sum(_DIRECTIONS[arrow])
        sides["x" if _is_horizontal(arrow) else "y"] = _negate(distance) if sign < 0 else distance
    return f"shift:{sides['x']},{sides['y']}"


def _negate(distance: str) -> str:
    return distance.removeprefix("-") if distance.startswith("-") else f"-{distance}"


def _rewrite_step(piece: str) -> str:
    sign, value = piece[:1], piece[1:]
    match sign:
        case "⇔":
            return f"hflip{value}"
        case "⇕":
            return f"vflip{value}"
        case "↻":
            return f"rotate:{value}"
        case "↺":
            return f"rotate:{_negate(value)}"
        case "×":
            return f"zoom:{value}"
        case "γ":
            return f"gamma:{value}"
    if piece == "x":
        return "identity"
    return f"channels:{piece.lower()}" if _is_channel_order(piece) else piece


def _format_arrow(distance: Amount, negative: str, positive: str) -> str:
    return (negative if distance.value < 0 else positive) + format_argument(
        Amount(abs(distance.value), distance.percent)
    )
