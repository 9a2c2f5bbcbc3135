"""Candidate views to choose from: a pool in an order of usefulness, and kinds of views from mild to strong."""

from collections.abc import Callable
from itertools import chain, count, islice, takewhile

from secondlook.errors import DiagnosisError
from secondlook.registry import did_you_mean
from secondlook.views import View, ViewSet

LAST_LEVEL = 4
"""Shifts by a quarter of the image, rotations by 8 degrees, zooms by a sixth."""

_DIAGONAL = ("shift:3.125%,3.125%", "shift:-3.125%,-3.125%", "shift:3.125%,-3.125%", "shift:-3.125%,3.125%")
_STRAIGHT = ("shift:3.125%,0", "shift:-3.125%,0", "shift:0,3.125%", "shift:0,-3.125%")

AUTO_POOL: tuple[str, ...] = (
    # A mixture first: strong shifts gain most for classifiers trained with shifts, mild ones and tones for others.
    "hflip",
    *(text for shift in _DIAGONAL[:2] for text in (shift, f"hflip+{shift}")),
    *_STRAIGHT[:2],
    *(f"hflip+{shift}" for shift in _STRAIGHT[2:]),
    *("gamma:0.85", "gamma:1.15", "hflip+gamma:1.15"),
    *(text for shift in _DIAGONAL[2:] for text in (shift, f"hflip+{shift}")),
    *_STRAIGHT[2:],
    *(f"hflip+{shift}" for shift in _STRAIGHT[:2]),
    *("rotate:3", "rotate:-3", "zoom:0.94", "zoom:1.06", "contrast:0.85", "contrast:1.15"),
)
"""What `choose_views` chooses from besides the image itself, for photographs, digits and signs."""


def candidate_views(kind: str = "natural", image_size: int = 32, n: int | None = 100) -> ViewSet:
    """Return candidate views for a search, ordered from mild to strong and starting with the identity.

    A smaller set is the beginning of a larger one.

    Parameters
    ----------
    kind
        'natural' for photographs, 'digits' for anything that must not be flipped, 'harmful' for views that break most
        classifiers, or 'auto' for those that `choose_views` chooses from, the most useful first.
    image_size
        Side of the classifier's input in pixels. Shifts are whole pixels that grow with it: 1 at 32, 7 at 224.
    n
        Number of views, including the identity; None for all.
    """
    if kind not in CANDIDATE_KINDS:
        known = ", ".join(CANDIDATE_KINDS)
        raise DiagnosisError(
            f"unknown kind of candidates {kind!r}; expected one of: {known}.{did_you_mean(kind, CANDIDATE_KINDS)}"
        )
    if image_size < 1:
        expected = "is out of range; expected the side of the images in pixels, at least 1"
        raise DiagnosisError(expected, argument="image_size", value=image_size)
    unit = max(1, round(image_size / 32))
    levels = takewhile(bool, (CANDIDATE_KINDS[kind](level, unit) for level in count(1)))
    views = list(dict.fromkeys([View(), *map(View.parse, chain.from_iterable(levels))]))
    if n is not None and not 2 <= n <= len(views):
        raise DiagnosisError(
            f"is out of range; expected 2 to {len(views)} candidates of kind {kind!r} (including the identity), or "
            "None for all",
            argument="n",
            value=n,
        )
    return ViewSet(islice(views, n))


def _natural_views(level: int, unit: int) -> list[str]:
    pairs = [text for unflipped in _unflipped_views(level, unit) for text in (unflipped, f"hflip+{unflipped}")]
    return ["hflip", *pairs] if level == 1 else pairs


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


def _harmful_views(level: int, unit: int) -> list[str]:
    rotations = ["rotate:90", "rotate:45", "rotate:-135"]
    shifts = [f"shift:{14 * unit},{-14 * unit}", f"shift:{-16 * unit},0"]
    views = ["vflip", "hflip+vflip", "channels:bgr", "channels:gbr", "channels:brg", *rotations, *shifts]
    return views if level == 1 else []


def _shifts(distance: int) -> list[str]:
    """Return the shifts by that many pixels to the right, left, down and up, then along both diagonals."""
    straight = [(distance, 0), (-distance, 0), (0, distance), (0, -distance)]
    diagonal = [(x, y) for x in (distance, -distance) for y in (distance, -distance)]
    return [f"shift:{x},{y}" for x, y in straight + diagonal]


CANDIDATE_KINDS: dict[str, Callable[[int, int], list[str]]] = {
    "natural": _natural_views,
    "digits": _unflipped_views,
    "harmful": _harmful_views,
    "auto": lambda level, _: list(AUTO_POOL) if level == 1 else [],
}
"""(level from 1 up, pixels of the smallest shift) -> views of that strength, none after the last level; by kind"""
