"""A set of views: ordered, without duplicates, the image itself first."""

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from secondlook.errors import ViewError
from secondlook.registry import did_you_mean
from secondlook.views.arguments import shortened
from secondlook.views.presets import PRESETS, Preset
from secondlook.views.view import View


class ViewWarning(UserWarning):
    """Something about a set of views that the user should know before trusting it."""


class ViewSet:
    """The views that a classifier is shown, such as `ViewSet("cifar10")` or `ViewSet("identity, hflip, shift:2,-1")`.

    Takes a preset's name, text with views separated by white space, a file of such text (a `Path`, or text that ends
    in `.txt`; '#' starts a comment), or any iterable of views and texts. Immutable and hashable.
    """

    __slots__ = ("preset", "views")

    views: tuple[View, ...]
    preset: Preset | None

    def __init__(self, views: "str | Path | Iterable[View | str] | ViewSet") -> None:
        preset = PRESETS.get(views) if isinstance(views, str) else None
        given = _parsed(preset.views.split() if preset else _texts(views))
        _refuse_duplicates(given)
        if View() not in given:
            _say(f"the identity was put in front of the {len(given)} given view(s): the image itself always counts.")
        elif not given[0].is_identity:
            _say(f"the identity was moved to the front, from place {given.index(View()) + 1} of {len(given)}.")
        if preset and preset.warning:
            _say(f"views {preset.name!r}: {preset.warning}")
        object.__setattr__(self, "views", (View(), *(view for view in given if not view.is_identity)))
        object.__setattr__(self, "preset", preset)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ViewSet cannot be changed ({name}); make a new one from a list of views.")

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each view, in order."""
        return tuple(str(view) for view in self.views)

    def index(self, view: View | str) -> int:
        """Return the place of a view in the set."""
        wanted = View.parse(view) if isinstance(view, str) else view
        if wanted not in self.views:
            raise ViewError(
                f"view {str(wanted)!r} is not in this set of {len(self)} views.{did_you_mean(str(wanted), self.texts)}"
            )
        return self.views.index(wanted)

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __getitem__(self, place: int) -> View:
        return self.views[place]

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


def _texts(views: "str | Path | Iterable[View | str] | ViewSet") -> list[View | str]:
    if isinstance(views, ViewSet):
        return list(views.views)
    if isinstance(views, Path):
        return list(_words_of_file(views))
    if not isinstance(views, str):
        return list(views)
    words = views.split()
    if len(words) == 1 and words[0].endswith(".txt"):
        return list(_words_of_file(Path(words[0])))
    return list(_without_commas(words))


def _words_of_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ViewError(f"view file {str(path)!r} cannot be read: {error}.") from None
    return _without_commas([word for line in lines for word in line.partition("#")[0].split()])


def _without_commas(words: list[str]) -> list[str]:
    return [word.removesuffix(",") for word in words if word != ","]


def _parsed(given: Iterable[View | str]) -> list[View]:
    items = list(given)
    if not items:
        raise ViewError("the set of views is empty; name at least one view, such as 'identity hflip', or a preset.")
    return [_parsed_at(place, item, items) for place, item in enumerate(items)]


def _parsed_at(place: int, item: View | str, items: list[View | str]) -> View:
    if isinstance(item, View):
        return item
    if not isinstance(item, str):
        raise ViewError(f"view {place + 1} of {len(items)} is a {type(item).__name__}, expected a text or a View.")
    try:
        return View.parse(item.strip())
    except ViewError as error:
        if item in PRESETS:
            raise ViewError(f"preset {item!r} is a whole set; it cannot stand beside other views.") from None
        if len(items) == 1:
            hint = did_you_mean(item, PRESETS) if ":" not in item else ""
            raise ViewError(f"{error}{f' {_presets_known()}{hint}' if item.isidentifier() else hint}") from None
        raise ViewError(f"view {place + 1} of {len(items)}: {error}") from None


def _presets_known() -> str:
    return f"Presets: {', '.join(PRESETS)}."


def _refuse_duplicates(views: list[View]) -> None:
    first_place: dict[View, int] = {}
    for place, view in enumerate(views, start=1):
        if view in first_place:
            raise ViewError(
                f"view {shortened(str(view))!r} stands twice in the set, at places {first_place[view]} and {place} "
                f"of {len(views)}; remove one."
            )
        first_place[view] = place


def _say(sentence: str) -> None:
    warnings.warn(sentence, ViewWarning, stacklevel=3)


ViewsLike = ViewSet | str | Path | Iterable[View | str]
"""A set, text, a preset's name, a file, or any views and texts."""


def as_view_set(views: ViewsLike) -> ViewSet:
    """Return `views` as a set."""
    return views if isinstance(views, ViewSet) else ViewSet(views)


def as_view_set_with_identity(views: ViewsLike) -> ViewSet:
    """Return `views` as a set; a plain list of views may omit the identity."""
    if isinstance(views, ViewSet | str | Path):
        return as_view_set(views)
    return ViewSet([View(), *(view for view in views if str(view) != str(View()))])
