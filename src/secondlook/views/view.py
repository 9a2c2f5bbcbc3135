"""Views and sets of views: immutable values with a canonical text; they also parse the notation of the paper."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from secondlook.errors import ViewError
from secondlook.operations import Frame, Operation, fuse_operations
from secondlook.registry import did_you_mean
from secondlook.tables import TextTable, format_html
from secondlook.views.presets import PRESETS, Preset
from secondlook.views.steps import STEPS, Amount, Argument, Arguments, Step, format_number, shorten

MAX_STEPS = 32
AUTO = "auto"
"""Requests views chosen for a classifier and its images; only valid where both are known."""

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

    def describe(self) -> str:
        """Return a description of the step, or its text if there is none."""
        return self.step.words(*self.arguments) if self.step.words else str(self)


@dataclass(frozen=True)
class View:
    """A transformed version of an image: steps applied left to right. Without steps, it is the image itself.

    `View.parse(text)` parses the text of a view and `str(view)` formats it; equal views have equal text. A view of
    external predictions may have a plain name instead of steps; it cannot be applied to images.
    """

    steps: tuple[BoundStep, ...] = ()
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> "View":
        """Parse a view like 'hflip+shift:2,-1', or '⇔+→2+↑1' in the notation of the paper."""
        n_steps = text.count("+") + 1
        if n_steps > MAX_STEPS:
            raise ViewError(f"view {shorten(text)!r} has {n_steps:,} steps; expected at most {MAX_STEPS}.")
        pieces = _ARROWS.sub(_rewrite_arrows, text).split("+")
        steps = (_parse_step(_rewrite_sign(piece), text) for piece in pieces)
        # Drop steps that change nothing, so that equal views have equal text and are stored once.
        return cls(tuple(step for step in steps if step.arguments != step.step.neutral))

    @property
    def is_identity(self) -> bool:
        """Whether the view is the image itself."""
        return not self.steps and self.name is None

    def plan(self, frame: Frame) -> tuple[Operation, ...]:
        """Return the operations of the view for images of one size, fused if possible."""
        return _plan_operations(self, frame)

    def __str__(self) -> str:
        return self.name or "+".join(map(str, self.steps)) or "identity"

    def describe(self) -> str:
        """Describe the view, for example 'mirrored, shifted by 2 pixels right'; a plain name is returned unchanged."""
        return self.name or ", ".join(one.describe() for one in self.steps) or "the image itself"

    def to_paper_notation(self) -> str:
        """Return the view in the notation of the paper; a name, and steps without a sign, keep their text."""
        return self.name or "+".join(map(_to_paper_notation, self.steps)) or "x"


@lru_cache(maxsize=4096)
def _plan_operations(view: View, frame: Frame) -> tuple[Operation, ...]:
    if view.name is not None:
        fault = f"view {view.name!r} is the plain name of a view that was computed elsewhere, so it cannot be applied"
        raise ViewError(fault, repair="write it as steps, such as 'hflip+shift:2,0'")
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
        expected = f"{len(step.parameters)}: {step.form}{f'; {_SEPARATOR_HINT}' if holds_step else ''}"
        raise ViewError(f"step {shorten(piece)!r} {where} has {len(words)} argument(s); expected {expected}.")
    arguments: list[Argument] = []
    for (parameter, parse), word in zip(step.parameters, words, strict=True):
        try:
            arguments.append(parse(word.strip()))
        except ValueError as error:
            raise ViewError(f"{parameter} of step {step.form!r} {where} {error}.") from None
    if fault := step.check(*arguments):
        raise ViewError(f"step {piece!r} {where} {fault}.")
    return BoundStep(name, tuple(arguments))


# ---- The notation of the paper

_SIGNS = {"⇔": "hflip", "⇕": "vflip", "↺": "rotate:-", "↻": "rotate:", "×": "zoom:", "γ": "gamma:"}
_DIRECTIONS = {"←": ("x", "-"), "→": ("x", ""), "↑": ("y", "-"), "↓": ("y", "")}
_ARROWS = re.compile(r"(?<![^+])(?:[←→][^+]*\+[↑↓]|[↑↓][^+]*\+[←→]|[←→↑↓])[^+]*")
"""One arrow, or two of different directions that form one shift, like '←2+↓1'."""


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
    """Return a step in the notation of the paper, or its text if there is no sign for it."""
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


# ---- Sets of views


class ViewWarning(UserWarning):
    """A set of views was changed, or may not be suitable."""


@dataclass(frozen=True, init=False, repr=False)
class ViewSet:
    """An ordered set of views: `ViewSet("cifar10")` or `ViewSet("identity, hflip, shift:2,-1")`.

    Accepts the name of a preset, text with views separated by white space, a text file (a `Path`, or a name that ends
    in `.txt`; '#' starts a comment), another set, or any iterable of views and texts. Immutable and hashable.
    """

    views: tuple[View, ...]
    preset: Preset | None = field(compare=False)

    def __init__(self, views: "ViewsLike") -> None:
        if isinstance(views, ViewSet):  # keep its preset, and do not warn again
            vars(self).update(vars(views))
            return
        preset = PRESETS.get(views) if isinstance(views, str) else None
        parsed = _parse_views(preset.views.split() if preset else _split_views(views))
        if len(set(parsed)) < len(parsed):
            double = next(view for view in parsed if parsed.count(view) > 1)
            places = " and ".join(str(place) for place, view in enumerate(parsed, start=1) if view == double)
            fault = f"duplicate view {shorten(str(double))!r} at positions {places} of {len(parsed)}"
            raise ViewError(fault, repair="remove one")
        if View() not in parsed:
            _warn(f"added the identity in front of the {len(parsed)} given view(s); every set starts with it.")
        elif not parsed[0].is_identity:
            _warn(f"moved the identity from position {parsed.index(View()) + 1} of {len(parsed)} to the front.")
        if preset and preset.warning:
            _warn(f"views {preset.name!r}: {preset.warning}")
        object.__setattr__(self, "views", (View(), *(view for view in parsed if not view.is_identity)))
        object.__setattr__(self, "preset", preset)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The text of each view, in order."""
        return tuple(str(view) for view in self.views)

    @classmethod
    def with_identity(cls, views: "ViewsLike", available: "ViewSet | None" = None) -> "ViewSet":
        """Return `views`, which may be plain names of `available` views, as a set; the identity may be anywhere."""
        named = {view.name: view for view in available or () if view.name is not None}
        if isinstance(views, str) and views in named:
            views = [views]
        if isinstance(views, ViewSet | str | Path):
            return cls(views)
        items = [named.get(item, item) if isinstance(item, str) else item for item in _split_views(views)]
        parsed = _parse_views(items) if items else []
        return cls([View(), *(view for view in parsed if not view.is_identity)])

    @classmethod
    def with_names(cls, views: "ViewsLike") -> "ViewSet":
        """Return the views of predictions as a set; items of a list that are not view texts become plain names.

        The first view is the image itself, whatever its name. The identity at another position is an error, since
        moving it would not move its predictions.
        """
        if isinstance(views, ViewSet) or (isinstance(views, str) and views in PRESETS):
            return cls(views)
        parsed = _parse_views(_split_views(views), keeps_names=not isinstance(views, str | Path))
        if parsed[0].name is not None:
            parsed[0] = View()
        if View() in parsed[1:]:
            fault = f"the identity is view {parsed.index(View(), 1) + 1} of {len(parsed)}, expected the first"
            raise ViewError(fault, repair="put it first in both the views and the outputs")
        return cls(parsed)

    def resolve(self, view: View | str) -> View:
        """Return the view for a text, which may be the plain name of a view of this set."""
        if not isinstance(view, str):
            return view
        return next((one for one in self.views if one.name == view), None) or View.parse(view)

    def index(self, view: View | str) -> int:
        """Return the position of a view."""
        parsed = self.resolve(view)
        if parsed not in self.views:
            hint = did_you_mean(str(parsed), self.texts)
            raise ViewError(f"view {str(parsed)!r} is not in this set of {len(self)} views.{hint}")
        return self.views.index(parsed)

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __getitem__(self, position: int) -> View:
        return self.views[position]

    def __contains__(self, view: object) -> bool:
        return (self.resolve(view) if isinstance(view, str) else view) in self.views

    def __str__(self) -> str:
        # A plain name may contain spaces, so only commas separate names.
        return (" " if all(view.name is None for view in self.views) else ", ").join(self.texts)

    def __repr__(self) -> str:
        return f"ViewSet({(self.preset.name if self.preset else str(self))!r})"

    def _repr_html_(self) -> str:
        title = f"{len(self)} view{'s' * (len(self) > 1)}{f', preset {self.preset.name}' if self.preset else ''}"
        return format_html([title, TextTable([["", "view"], *([str(n), text] for n, text in enumerate(self.texts))])])


ViewsLike = ViewSet | str | Path | Iterable[View | str]
"""A set of views, text, the name of a preset, a file, or an iterable of views and texts."""


def _split_views(views: ViewsLike) -> list[View | str]:
    if isinstance(views, str) and len(views.split()) == 1 and views.strip().endswith(".txt"):
        views = Path(views.strip())
    if isinstance(views, Path):
        from secondlook.files import read_regular_file  # loads pydantic

        try:
            lines = read_regular_file(views).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ViewError(f"view file {str(views)!r} cannot be read: {error}; expected a UTF-8 text file.") from None
        views = " ".join(line.partition("#")[0] for line in lines)
    if isinstance(views, str):
        return [word.removesuffix(",") for word in views.split() if word != ","]
    given: object = views  # callers without a type checker, or policy options, may pass anything
    if not isinstance(given, Iterable):
        fault = "is invalid; expected a preset, text, a file or a list of views, such as 'natural'"
        raise ViewError(fault, argument="views", value=given)
    return list(views)


def _parse_views(items: Sequence[View | str], *, keeps_names: bool = False) -> list[View]:
    """Parse views; other texts are errors, or plain names with `keeps_names`."""
    if not items:
        raise ViewError("the set of views is empty; expected at least one view, such as 'identity hflip', or a preset.")
    return [_parse_item(position, item, len(items), keeps_names) for position, item in enumerate(items, start=1)]


def _parse_item(position: int, item: View | str, n_items: int, keeps_names: bool) -> View:
    if isinstance(item, View):
        return item
    if not isinstance(item, str):
        raise ViewError(f"view {position} of {n_items} is of type {type(item).__name__}; expected a string or a View.")
    try:
        return View.parse(item.strip())
    except ViewError as error:
        step, colon, _ = item.partition(":")
        is_misspelled = item in PRESETS or (colon and step in STEPS)  # for example 'zoom:x'
        if keeps_names and step.strip() and not is_misspelled:
            return View(name=item.strip())
        if item.strip() == AUTO:
            fault = f"{AUTO!r} chooses views for a classifier and its images, which are unknown here"
            raise ViewError(fault, repair="name a preset, such as 'natural', or call choose_views") from None
        if item in PRESETS:
            raise ViewError(f"preset {item!r} is a whole set; it cannot be combined with other views.") from None
        where = f"view {position} of {n_items}: " if n_items > 1 else ""
        if str(error).endswith("?") or ":" in item:  # the error names the closest step or an argument
            raise ViewError(f"{where}{error}") from None
        presets = f" Presets: {', '.join(PRESETS)}." if item.isidentifier() else ""
        raise ViewError(f"{where}{error}{presets}{did_you_mean(item, PRESETS)}") from None


def _warn(message: str) -> None:
    warnings.warn(message, ViewWarning, stacklevel=3)
