"""A view: a chain of steps as a frozen value with one text form."""

from dataclasses import dataclass

from secondlook.errors import ViewError
from secondlook.registry import did_you_mean
from secondlook.views.arguments import Amount, Argument, argument_text, shortened
from secondlook.views.notation import in_paper_notation, is_paper_token, rewrite_paper_notation
from secondlook.views.operations import Operation
from secondlook.views.steps import STEPS, Arguments, Frame, Step

MOST_STEPS = 32
"""A longer chain is surely a mistake."""


@dataclass(frozen=True)
class BoundStep:
    """A step with its arguments, such as `shift:2,-1`."""

    name: str
    arguments: Arguments = ()

    @property
    def step(self) -> Step:
        """The step's record in the registry."""
        return STEPS[self.name]

    def operation(self, frame: Frame) -> Operation:
        """Return what the engine shall do to images of that size."""
        return self.step.operation(frame, *self.arguments)

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}:{','.join(argument_text(argument) for argument in self.arguments)}"


@dataclass(frozen=True)
class View:
    """One plausible version of an image: steps applied left to right. No step is the image itself.

    `View.parse(text)` reads the text of a view, `str(view)` writes it, and equal views have equal text.
    """

    steps: tuple[BoundStep, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "View":
        """Read a view such as 'hflip+shift:2,-1', or the paper's '⇔+→2+↑1'."""
        pieces = text.split("+")
        if len(pieces) > MOST_STEPS:
            raise ViewError(f"view {shortened(text)!r} has {len(pieces):,} steps, expected at most {MOST_STEPS}.")
        if any(is_paper_token(piece) for piece in pieces):
            pieces = rewrite_paper_notation(pieces)
        steps = (_read_step(piece, text) for piece in pieces)
        # A step that changes nothing is dropped: one meaning, one text, one row in the store.
        return cls(tuple(step for step in steps if step.arguments != step.step.neutral))

    @property
    def is_identity(self) -> bool:
        """Whether this is the image itself."""
        return not self.steps

    def __str__(self) -> str:
        return "+".join(str(step) for step in self.steps) or "identity"

    def paper_text(self) -> str:
        """Write the view in the paper's notation; steps that the paper has no sign for keep their own text."""
        return "+".join(in_paper_notation(step.name, step.arguments) or str(step) for step in self.steps) or "x"


def _read_step(piece: str, text: str) -> BoundStep:
    name, colon, rest = piece.partition(":")
    where = f"in view {shortened(text)!r}"
    if not name:
        raise ViewError(f"empty step {where}; steps are joined by one '+', such as 'hflip+shift:2,0'.")
    if name not in STEPS:
        raise ViewError(f"unknown step {shortened(name)!r} {where}; {_repair_for_unknown(name)}")
    step = STEPS[name]
    words = rest.split(",") if colon else []
    if len(words) != len(step.parameters):
        stray = next((word for word in words if word.partition(":")[0] in STEPS), None)
        hint = f" {_SEPARATE}" if stray else ""
        raise ViewError(
            f"step {shortened(piece)!r} {where} has {len(words)} argument(s), "
            f"expected {len(step.parameters)}: {step.form}.{hint}"
        )
    arguments = tuple(_read_argument(step, place, word, where) for place, word in enumerate(words))
    wrong = step.check(*arguments)
    if wrong:
        raise ViewError(f"step {piece!r} {where} {wrong}.")
    return BoundStep(name, arguments)


def _read_argument(step: Step, place: int, word: str, where: str) -> Argument | Amount:
    parameter = step.parameters[place]
    try:
        return parameter.read(word.strip())
    except ValueError as error:
        raise ViewError(f"{parameter.name} of step {step.form!r} {where} {error}.") from None


_SEPARATE = "Views are separated by white space, commas only by arguments: write 'identity, hflip'."


def _repair_for_unknown(name: str) -> str:
    if "," in name:
        return _SEPARATE[0].lower() + _SEPARATE[1:]
    return f"known steps: {', '.join(STEPS)}.{did_you_mean(name, STEPS)}"
