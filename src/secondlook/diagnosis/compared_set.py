"""The set that a found one is compared with: a preset, or any set that is wholly in the pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import DiagnosisError
from secondlook.views import PRESETS, Preset, View, ViewSet, ViewsLike, as_view_set_with_identity


@dataclass(frozen=True, eq=False)
class ComparedSet:
    """A set by name, and where its views stand in the pool."""

    name: str
    title: str
    places: IntArray


def compared_set(asked: ViewsLike | None, pool: ViewSet) -> ComparedSet | None:
    """Return the set that is asked for, or else the first preset whose views are all in the pool."""
    place = {text: number for number, text in enumerate(pool.texts)}
    if asked is None:
        name = next((name for name, preset in PRESETS.items() if set(_texts(preset)) <= place.keys()), None)
        return None if name is None else _named(name, _texts(PRESETS[name]), place)
    if isinstance(asked, str) and asked in PRESETS:
        return _named(asked, _texts(PRESETS[asked]), place)
    texts = as_view_set_with_identity(asked).texts
    name = str(asked) if isinstance(asked, str | Path) else f"the given {len(texts)} views"
    return _named(name, texts, place)


def _texts(preset: Preset) -> list[str]:
    """Return the views without the warning that opening the preset would give."""
    return [str(View.parse(text)) for text in preset.views.split()]


def _named(name: str, texts: Sequence[str], place: dict[str, int]) -> ComparedSet:
    missing = [text for text in texts if text not in place]
    if missing:
        raise DiagnosisError(
            f"{len(missing)} of the {len(texts)} views of {name!r} are not in the pool, such as {missing[0]!r}; "
            "collect them too, or compare with another set."
        )
    title = f"the preset {name!r}" if name in PRESETS else name
    return ComparedSet(name, title, np.array([place[text] for text in texts]))
