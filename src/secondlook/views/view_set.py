"""A set of views: ordered, without duplicates, the identity first."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from secondlook.errors import ViewError
from secondlook.registry import did_you_mean
from secondlook.views.presets import PRESETS, Preset
from secondlook.views.steps import shorten
from secondlook.views.view import View


class ViewWarning(UserWarning):
    """A set of views that was changed, or that may not be suitable."""


class ViewSet:
    """An ordered set of views, such as `ViewSet("cifar10")` or `ViewSet("identity, hflip, shift:2,-1")`.

    Takes the name of a preset, text with views separated by white space, a file of such text (a `Path`, or text that
    ends in `.txt`; '#' starts a comment), or any iterable of views and texts. Immutable and hashable.
    """

    __slots__ = ("preset", "views")

    views: tuple[View, ...]
    preset: Preset | None

    def __init__(self, views: "ViewsLike") -> None:
        preset = PRESETS.get(views) if isinstance(views, str) else None
        parsed = _parse_views(preset.views.split() if preset else _split_views(views))
        _check_duplicates(parsed)
        if View() not in parsed:
            _warn(f"added the identity in front of the {len(parsed)} given view(s); every set starts with it.")
        elif not parsed[0].is_identity:
            _warn(f"moved the identity from position {parsed.index(View()) + 1} of {len(parsed)} to the front.")
        if preset and preset.warning:
            _warn(f"views {preset.name!r}: {preset.warning}")
        object.__setattr__(self, "views", (View(), *(view for view in parsed if not view.is_identity)))
        object.__setattr__(self, "preset", preset)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r}: a ViewSet is immutable; make a new one from a list of views.")

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each view, in order."""
        return tuple(str(view) for view in self.views)

    def index(self, view: View | str) -> int:
        """Return the position of a view."""
        parsed = View.parse(view) if isinstance(view, str) else view
        if parsed not in self.views:
            raise ViewError(
                f"view {str(parsed)!r} is not in this set of {len(self)} views.{did_you_mean(str(parsed), self.texts)}"
            )
        return self.views.index(parsed)

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __getitem__(self, position: int) -> View:
        return self.views[position]

    def __contains__(self, view: object) -> bool:
        return (View.parse(view) if isinstance(view, str) else view) in self.views

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ViewSet) and self.views == other.views

    def __hash__(self) -> int:
        return hash(self.views)

    def __reduce__(self) -> tuple[type["ViewSet"], tuple[tuple[View, ...]]]:
        return ViewSet, (self.views,)

    def __str__(self) -> str:
        return " ".join(self.texts)

    def __repr__(self) -> str:
        return f"ViewSet({(self.preset.name if self.preset else str(self))!r})"


ViewsLike = ViewSet | str | Path | Iterable[View | str]
"""A set of views, text, the name of a preset, a file, or an iterable of views and texts."""


def as_view_set(views: ViewsLike) -> ViewSet:
    """Return `views` as a set."""
    return views if isinstance(views, ViewSet) else ViewSet(views)


def as_view_set_with_identity(views: ViewsLike) -> ViewSet:
    """Return `views` as a set; an iterable of views may omit or reorder the identity without a warning."""
    if isinstance(views, ViewSet | str | Path):
        return as_view_set(views)
    items = _list_views(views)
    parsed = _parse_views(items) if items else []
    return ViewSet([View(), *(view for view in parsed if not view.is_identity)])


def _split_views(views: ViewsLike) -> list[View | str]:
    if isinstance(views, Path):
        return list(_read_view_file(views))
    if not isinstance(views, str):
        return _list_views(views)
    words = views.split()
    if len(words) == 1 and words[0].endswith(".txt"):
        return list(_read_view_file(Path(words[0])))
    return list(_strip_commas(words))


def _list_views(views: Iterable[View | str]) -> list[View | str]:
    given: object = views  # whatever callers without a type checker, or the options of a policy, pass
    if not isinstance(given, Iterable):
        raise ViewError(f"views={given!r}; expected a preset, text, a file or a list of views, such as 'natural'.")
    return list(views)


def _read_view_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ViewError(f"view file {str(path)!r} cannot be read: {error}; expected a UTF-8 text file.") from None
    return _strip_commas([word for line in lines for word in line.partition("#")[0].split()])


def _strip_commas(words: list[str]) -> list[str]:
    return [word.removesuffix(",") for word in words if word != ","]


def _parse_views(items: Sequence[View | str]) -> list[View]:
    if not items:
        raise ViewError("the set of views is empty; expected at least one view, such as 'identity hflip', or a preset.")
    return [_parse_item(position, item, len(items)) for position, item in enumerate(items, start=1)]


def _parse_item(position: int, item: View | str, n_items: int) -> View:
    if isinstance(item, View):
        return item
    if not isinstance(item, str):
        raise ViewError(f"view {position} of {n_items} is of type {type(item).__name__}; expected a text or a View.")
    try:
        return View.parse(item.strip())
    except ViewError as error:
        if item in PRESETS:
            raise ViewError(f"preset {item!r} is a whole set; it cannot be combined with other views.") from None
        if n_items > 1:
            raise ViewError(f"view {position} of {n_items}: {error}") from None
        presets = f" Presets: {', '.join(PRESETS)}." if item.isidentifier() else ""
        raise ViewError(f"{error}{presets}{did_you_mean(item, PRESETS) if ':' not in item else ''}") from None


def _check_duplicates(views: list[View]) -> None:
    position_of: dict[View, int] = {}
    for position, view in enumerate(views, start=1):
        if view in position_of:
            raise ViewError(
                f"duplicate view {shorten(str(view))!r} at positions {position_of[view]} and {position} of"
                f" {len(views)}; remove one."
            )
        position_of[view] = position


def _warn(message: str) -> None:
    warnings.warn(message, ViewWarning, stacklevel=3)
