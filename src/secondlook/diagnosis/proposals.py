"""Pools of candidate views to choose from: kinds of pools in one registry, each proposing the gentlest views first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice, takewhile
from types import MappingProxyType

from secondlook.errors import DiagnosisError
from secondlook.registry import did_you_mean
from secondlook.views import View, ViewSet

Propose = Callable[[int, int], list[str]]
"""(level from 1 up, pixels of the smallest shift) -> texts of the views of that strength; none once all were given"""

STRONGEST = 4
"""The last level: shifts by a quarter of the image, turns by 8 degrees, zooms by a sixth."""


@dataclass(frozen=True)
class Kind:
    """A kind of pool: what it is for, and the views it proposes at each level of strength."""

    name: str
    summary: str
    propose: Propose


_kinds: dict[str, Kind] = {}
CANDIDATE_KINDS: Mapping[str, Kind] = MappingProxyType(_kinds)
"""Every kind of pool by its name."""


def candidate_kind(name: str, summary: str) -> Callable[[Propose], Propose]:
    """Register the decorated function as a kind of pool."""

    def register(propose: Propose) -> Propose:
        if name in _kinds:
            raise DiagnosisError(f"the kind of candidates {name!r} is registered already; choose another name.")
        _kinds[name] = Kind(name, summary, propose)
        return propose

    return register


def candidate_views(kind: str = "natural", image_size: int = 32, n: int | None = 100) -> ViewSet:
    """Return a pool of `n` views, the identity among them, for square images of `image_size` pixels; None for all.

    The gentlest come first, so a smaller pool is the beginning of a larger one. Shifts are whole pixels: one pixel at
    32, seven at 224.
    """
    if kind not in _kinds:
        raise DiagnosisError(
            f"unknown kind of candidates {kind!r}; known: {', '.join(_kinds)}.{did_you_mean(kind, _kinds)}"
        )
    if image_size < 1:
        raise DiagnosisError(f"image_size is {image_size}; expected the side of the images in pixels, at least 1.")
    proposed = [
        View(),
        *(View.parse(text) for text in _by_strength(_kinds[kind].propose, max(1, round(image_size / 32)))),
    ]
    distinct = list(dict.fromkeys(proposed))
    if n is not None and not 2 <= n <= len(distinct):
        raise DiagnosisError(
            f"n is {n}; expected 2 to {len(distinct)} candidates of kind {kind!r}, the identity among them, "
            "or None for all."
        )
    return ViewSet(islice(distinct, n))


def _by_strength(propose: Propose, unit: int) -> Iterator[str]:
    levels = (propose(level, unit) for level in count(1))
    return chain.from_iterable(takewhile(bool, levels))


@candidate_kind("natural", "photographs: flips, shifts, small turns, zooms, gamma, contrast, and pairs of them")
def _natural(level: int, unit: int) -> list[str]:
    upright = _upright(level, unit)
    mirrored = [f"hflip+{text}" for text in upright]
    return [
        *(["hflip"] if level == 1 else []),
        *(text for pair in zip(upright, mirrored, strict=True) for text in pair),
    ]


@candidate_kind("digits", "digits, letters and signs: as 'natural', without flips")
def _upright(level: int, unit: int) -> list[str]:
    if level > STRONGEST:
        return []
    near, far = _around((2 * level - 1) * unit), _around(2 * level * unit)
    turns = [f"rotate:{2 * level}", f"rotate:{-2 * level}"]
    enlarged, shrunk = f"zoom:{1 + 0.04 * level:g}", f"zoom:{1 - 0.04 * level:g}"
    darker, brighter = f"gamma:{1 + 0.2 * level:g}", f"gamma:{0.85**level:.2g}"
    harder, softer = f"contrast:{1 + 0.15 * level:g}", f"contrast:{0.85**level:.2g}"
    pairs = [
        f"{turns[0]}+{near[0]}",
        f"{turns[1]}+{near[1]}",
        f"{enlarged}+{brighter}",
        f"{enlarged}+{turns[1]}",
        f"{brighter}+{near[2]}",
        f"{softer}+{near[3]}",
    ]
    return [*near, *far, *turns, enlarged, shrunk, brighter, darker, softer, harder, *pairs]


@candidate_kind("insane", "views that break most classifiers: to see that the diagnosis finds them")
def _insane(level: int, unit: int) -> list[str]:
    far = [f"shift:{14 * unit},{-14 * unit}", f"shift:{-16 * unit},0"]
    turned = ["rotate:90", "rotate:45", "rotate:-135"]
    return ["vflip", "hflip+vflip", "channels:bgr", "channels:gbr", "channels:brg", *turned, *far] if level == 1 else []


def _around(distance: int) -> list[str]:
    """Return the shifts by that many pixels to the right, left, down and up, then along both diagonals."""
    straight = [(distance, 0), (-distance, 0), (0, distance), (0, -distance)]
    diagonal = [(x, y) for x in (distance, -distance) for y in (distance, -distance)]
    return [f"shift:{x},{y}" for x, y in straight + diagonal]
