"""Candidate views to collect predictions for: a registry of kinds, each ordered from mild to strong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice, takewhile

from secondlook.errors import DiagnosisError
from secondlook.registry import NamedRecord, Registry
from secondlook.views import View, ViewSet

ViewsOfLevel = Callable[[int, int], list[str]]
"""(level from 1 up, pixels of the smallest shift) -> texts of the views of that strength; empty after the last level"""

LAST_LEVEL = 4
"""Shifts by a quarter of the image, rotations by 8 degrees, zooms by a sixth."""


@dataclass(frozen=True)
class CandidateKind(NamedRecord):
    """A kind of candidate views, and the function that lists those of each level of strength."""

    views_of_level: ViewsOfLevel


CANDIDATE_KINDS: Registry[CandidateKind] = Registry("kind of candidates", DiagnosisError)
"""All kinds of candidate views by name."""


def candidate_kind(name: str, summary: str) -> Callable[[ViewsOfLevel], ViewsOfLevel]:
    """Register the decorated function as a kind of candidates."""

    def register(views_of_level: ViewsOfLevel) -> ViewsOfLevel:
        CANDIDATE_KINDS.add(CandidateKind(name, summary, views_of_level))
        return views_of_level

    return register


def candidate_views(kind: str = "natural", image_size: int = 32, n: int | None = 100) -> ViewSet:
    """Return candidate views for a search, ordered from mild to strong and starting with the identity.

    A smaller set is the beginning of a larger one.

    Parameters
    ----------
    kind
        One of `CANDIDATE_KINDS`: 'natural' for photographs, 'digits' for anything that must not be flipped, or
        'harmful' for views that break most classifiers.
    image_size
        Side of the classifier's input in pixels. Shifts are whole pixels that grow with it: 1 at 32, 7 at 224.
    n
        Number of views, including the identity; None for all.
    """
    record = CANDIDATE_KINDS.find(kind)
    if image_size < 1:
        raise DiagnosisError(f"image_size is {image_size}; expected the side of the images in pixels, at least 1.")
    unit = max(1, round(image_size / 32))
    views = list(dict.fromkeys([View(), *(View.parse(text) for text in _all_levels(record.views_of_level, unit))]))
    if n is not None and not 2 <= n <= len(views):
        raise DiagnosisError(
            f"n is {n}; expected 2 to {len(views)} candidates of kind {kind!r} (including the identity), or None for "
            "all."
        )
    return ViewSet(islice(views, n))


def _all_levels(views_of_level: ViewsOfLevel, unit: int) -> Iterator[str]:
    levels = (views_of_level(level, unit) for level in count(1))
    return chain.from_iterable(takewhile(bool, levels))


@candidate_kind("natural", "photographs: flips, shifts, small rotations, zooms, gamma, contrast, and pairs of them")
def _natural_views(level: int, unit: int) -> list[str]:
    unflipped = _unflipped_views(level, unit)
    flipped = [f"hflip+{text}" for text in unflipped]
    return [
        *(["hflip"] if level == 1 else []),
        *(text for pair in zip(unflipped, flipped, strict=True) for text in pair),
    ]


@candidate_kind("digits", "digits, letters and signs: like 'natural', without flips")
def _unflipped_views(level: int, unit: int) -> list[str]:
    if level > LAST_LEVEL:
        return []
    near, far = _shifts((2 * level - 1) * unit), _shifts(2 * level * unit)
    rotations = [f"rotate:{2 * level}", f"rotate:{-2 * level}"]
    zoom_in, zoom_out = f"zoom:{1 + 0.04 * level:g}", f"zoom:{1 - 0.04 * level:g}"
    darker, brighter = f"gamma:{1 + 0.2 * level:g}", f"gamma:{0.85**level:.2g}"
    more_contrast, less_contrast = f"contrast:{1 + 0.15 * level:g}", f"contrast:{0.85**level:.2g}"
    pairs = [
        f"{rotations[0]}+{near[0]}",
        f"{rotations[1]}+{near[1]}",
        f"{zoom_in}+{brighter}",
        f"{zoom_in}+{rotations[1]}",
        f"{brighter}+{near[2]}",
        f"{less_contrast}+{near[3]}",
    ]
    return [*near, *far, *rotations, zoom_in, zoom_out, brighter, darker, less_contrast, more_contrast, *pairs]


@candidate_kind("harmful", "views that break most classifiers, to check that the diagnosis detects them")
def _harmful_views(level: int, unit: int) -> list[str]:
    if level > 1:
        return []
    rotations = ["rotate:90", "rotate:45", "rotate:-135"]
    shifts = [f"shift:{14 * unit},{-14 * unit}", f"shift:{-16 * unit},0"]
    return ["vflip", "hflip+vflip", "channels:bgr", "channels:gbr", "channels:brg", *rotations, *shifts]


def _shifts(distance: int) -> list[str]:
    """Return the shifts by that many pixels to the right, left, down and up, then along both diagonals."""
    straight = [(distance, 0), (-distance, 0), (0, distance), (0, -distance)]
    diagonal = [(x, y) for x in (distance, -distance) for y in (distance, -distance)]
    return [f"shift:{x},{y}" for x, y in straight + diagonal]
