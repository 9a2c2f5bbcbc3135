"""A view: a sequence of steps, as an immutable value with one canonical text; the notation of the paper is read too."""

import re
from dataclasses import dataclass
from functools import lru_cache

from secondlook.errors import ViewError
from secondlook.operations import Frame, Operation, fuse_operations
from secondlook.views.steps import STEPS, Amount, Argument, Arguments, Step, format_number, shorten

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
        texts = [format_number(value) if isinstance(value, float) else str(value) for value in self.arguments]
        return f"{self.name}:{','.join(texts)}" if texts else self.name


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
        n_steps = text.count("+") + 1
        if n_steps > MAX_STEPS:
            raise ViewError(f"view {shorten(text)!r} has {n_steps:,} steps; expected at most {MAX_STEPS}.")
        pieces = _ARROWS.sub(_rewrite_arrows, text).split("+")
        steps = (_parse_step(_rewrite_sign(piece), text) for piece in pieces)
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
        return self.name or "+".join(map(str, self.steps)) or "identity"

    def to_paper_notation(self) -> str:
        """Return the view in the notation of the paper; a name, and steps that it has no sign for, keep their text."""
        return self.name or "+".join(map(_to_paper_notation, self.steps)) or "x"


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
    name, parse = step.parameters[place]
    try:
        return parse(word.strip())
    except ValueError as error:
        raise ViewError(f"{name} of step {step.form!r} {where} {error}.") from None


# ---- The notation of the paper

_SIGNS = {"⇔": "hflip", "⇕": "vflip", "↺": "rotate:-", "↻": "rotate:", "×": "zoom:", "γ": "gamma:"}
_DIRECTIONS = {"←": ("x", "-"), "→": ("x", ""), "↑": ("y", "-"), "↓": ("y", "")}
_ARROWS = re.compile(r"(?<![^+])(?:[←→][^+]*\+[↑↓]|[↑↓][^+]*\+[←→]|[←→↑↓])[^+]*")
"""One arrow, or two of different directions, such as '←2+↓1', which are one shift."""


def _rewrite_arrows(match: re.Match[str]) -> str:
    sides = {"x": "0", "y": "0"}
    for piece in match[0].split("+"):
        side, minus = _DIRECTIONS[piece[0]]
        sides[side] = (minus + piece[1:]).removeprefix("--")
    return f"shift:{sides['x']},{sides['y']}"


def _rewrite_sign(piece: str) -> str:
    if piece == "x":
        return "identity"
    if sorted(piece) == ["B", "G", "R"]:
        return f"channels:{piece.lower()}"
    return (_SIGNS[piece[0]] + piece[1:]).replace(":--", ":") if piece[:1] in _SIGNS else piece


def _to_paper_notation(step: BoundStep) -> str:
    """Return a step in the notation of the paper; its text where there is no sign for it."""
    match step.name, step.arguments:
        case "shift", (Amount() as dx, Amount() as dy):
            sides = ((dx, "←→"), (dy, "↑↓"))
            return "+".join(signs[one.value > 0] + str(one).removeprefix("-") for one, signs in sides if one.value)
        case "channels", (str() as order,):
            return order.upper()
    for sign, start in _SIGNS.items():
        if start.partition(":")[0] == step.name and str(step).startswith(start):
            return sign + str(step).removeprefix(start)
    return str(step)
