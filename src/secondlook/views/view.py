"""A view: a sequence of steps, as an immutable value with one canonical text; the notation of the paper is read too."""

from dataclasses import dataclass
from functools import lru_cache

from secondlook.errors import ViewError
from secondlook.operations import Frame, Operation, fuse_operations
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

    def plan(self, frame: Frame) -> tuple[Operation, ...]:
        """Return the operations of the view for images of one size, fused as far as possible."""
        return _plan_operations(self, frame)

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return "+".join(str(step) for step in self.steps) or "identity"

    def to_paper_notation(self) -> str:
        """Return the view in the notation of the paper; a name, and steps that it has no sign for, keep their text."""
        if self.name is not None:
            return self.name
        return "+".join(write_paper_notation(step.name, step.arguments) or str(step) for step in self.steps) or "x"


@lru_cache(maxsize=4096)
def _plan_operations(view: View, frame: Frame) -> tuple[Operation, ...]:
    if view.name is not None:
        raise ViewError(
            f"view {view.name!r} is only the name of a view that was computed elsewhere, so it cannot be applied to"
            " images; write it as steps, such as 'hflip+shift:2,0'."
        )
    return fuse_operations((one.step.operation(frame, *one.arguments) for one in view.steps), frame)


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


# ---- The notation of the paper

_SIGNS = {"⇔": "hflip", "⇕": "vflip", "↻": "rotate:", "↺": "rotate:-", "×": "zoom:", "γ": "gamma:"}
_ARROWS = {"←": ("x", "-"), "→": ("x", ""), "↑": ("y", "-"), "↓": ("y", "")}


def is_paper_notation(piece: str) -> bool:
    """Return whether a step is in the notation of the paper."""
    return piece == "x" or piece[:1] in _SIGNS or piece[:1] in _ARROWS or sorted(piece) == ["B", "G", "R"]


def rewrite_paper_notation(pieces: list[str]) -> list[str]:
    """Return the text of the same steps; adjacent '←2' and '↓1' are one shift, as in the paper."""
    rewritten: list[str] = []
    pending: dict[str, str] = {}  # sides of a shift that the next arrow may complete
    for piece in pieces:
        sign, value = piece[:1], piece[1:]
        if sign not in _ARROWS:
            pending = {}
            rewritten.append(_rewrite_step(piece))
            continue
        side, minus = _ARROWS[sign]
        if pending and side not in pending:
            rewritten.pop()
        else:
            pending = {}
        pending[side] = _sign_number(minus, value)
        rewritten.append(f"shift:{pending.get('x', '0')},{pending.get('y', '0')}")
        if len(pending) == 2:
            pending = {}
    return rewritten


def _rewrite_step(piece: str) -> str:
    if piece == "x":
        return "identity"
    if piece[:1] not in _SIGNS:
        return f"channels:{piece.lower()}" if is_paper_notation(piece) else piece
    step, colon, minus = _SIGNS[piece[:1]].partition(":")
    return f"{step}{colon}{_sign_number(minus, piece[1:])}"


def _sign_number(minus: str, number: str) -> str:
    return number[1:] if minus and number.startswith("-") else f"{minus}{number}"


def write_paper_notation(name: str, arguments: Arguments) -> str | None:
    """Return a step in the notation of the paper, or None where it has no sign for it."""
    match name, arguments:
        case ("hflip", ()) | ("vflip", ()):
            return {"hflip": "⇔", "vflip": "⇕"}[name]
        case "shift", (Amount() as dx, Amount() as dy):
            sides = ((dx, "←→"), (dy, "↑↓"))
            return "+".join(signs[one.value > 0] + str(one).removeprefix("-") for one, signs in sides if one.value)
        case (("rotate" | "zoom" | "gamma"), (float() as value,)):
            sign = {"rotate": "↻" if value > 0 else "↺", "zoom": "×", "gamma": "γ"}[name]
            return sign + format_number(value).removeprefix("-")
        case "channels", (str() as order,):
            return order.upper()
    return None
