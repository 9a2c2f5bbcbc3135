"""A view: a sequence of steps, as an immutable value with one canonical text."""

from dataclasses import dataclass

from secondlook.errors import ViewError
from secondlook.views.arguments import Argument, format_argument, shorten
from secondlook.views.notation import is_paper_notation, rewrite_paper_notation, write_paper_notation
from secondlook.views.operations import Frame, Operation
from secondlook.views.steps import STEPS, Arguments, Step

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

    `View.parse(text)` parses the text of a view and `str(view)` formats it; equal views have equal text.
    """

    steps: tuple[BoundStep, ...] = ()

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
        return not self.steps

    def __str__(self) -> str:
        return "+".join(str(step) for step in self.steps) or "identity"

    def to_paper_notation(self) -> str:
        """Return the view in the notation of the paper; steps that it has no sign for keep their text."""
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
