"""The paper's figures as data: the views, their intensity, risk against coverage, and the metric explained."""

from dataclasses import replace

from reproduction.data_sets import SVHN_NOTE
from reproduction.experiment import (
    Column,
    ContactSheets,
    Experiment,
    Intensity,
    MetricExplained,
    RiskCoverage,
)
from reproduction.paper_tables import (
    AORC_NOTE,
    CIFAR10,
    CIFAR100,
    IMAGENET,
    MEAN,
    METHODS,
    SINGLE_VIEW_COLUMNS,
    SPLIT_NOTE,
    STL10_ELU,
    STL10_WRN,
    SVHN,
    VIEWS_NOTE,
)

GAMMAS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5)
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""Right, left, down, up: whole pixels need no interpolation, which would be a blur of its own."""

Point = tuple[float, tuple[str, ...]]


def gamma_points() -> tuple[Point, ...]:
    """Return one view per exponent; gamma 1 is the image itself."""
    return tuple((gamma, ("identity" if gamma == 1 else f"gamma:{gamma}",)) for gamma in GAMMAS)


def shift_points(pixels: tuple[int, ...], *, flips: tuple[str, ...] = ("",)) -> tuple[Point, ...]:
    """Return for each magnitude the shifts in four directions, each after each of the preliminary flips."""
    moved = (
        (
            float(far),
            tuple(f"{flip}shift:{dx * far},{dy * far}" for flip in flips for dx, dy in DIRECTIONS),
        )
        for far in pixels
    )
    return ((0.0, tuple(flip.removesuffix("+") or "identity" for flip in flips)), *moved)


SMALL_SHIFTS, LARGE_SHIFTS = (1, 2, 3, 4, 6, 8, 12), (3, 6, 9, 12, 18, 24, 36)
FLIPPED_TOO = ("", "hflip+")
_SVHN, _CIFAR100, _STL10, _ = SINGLE_VIEW_COLUMNS


def _shifts(name: str, column: Column, pixels: tuple[int, ...], flips: tuple[str, ...]) -> Intensity:
    versions = "with and without a preliminary flip" if len(flips) > 1 else "no flip"
    title = f"AORC against shift, {column.title}: mean over four directions, {versions}"
    return Intensity(name, title, "shift in pixels", (column,), shift_points(pixels, flips=flips))


INTENSITY = (
    Intensity("gamma", "AORC against gamma", "gamma", (_SVHN, _CIFAR100, _STL10), gamma_points()),
    _shifts("shift-svhn", _SVHN, SMALL_SHIFTS, ("",)),
    _shifts("shift-cifar100", _CIFAR100, SMALL_SHIFTS, FLIPPED_TOO),
    _shifts("shift-stl10", _STL10, LARGE_SHIFTS, FLIPPED_TOO),
)

FIGURES = (
    Experiment(
        "figure-views",
        "The views: what a classifier is shown",
        (
            ContactSheets(
                "views", "Every view of one image", (CIFAR10, CIFAR100, SVHN, IMAGENET[0], STL10_WRN, STL10_ELU)
            ),
        ),
        (VIEWS_NOTE,),
    ),
    Experiment(
        "figure-intensity",
        "AORC of a single view against its intensity",
        INTENSITY,
        (AORC_NOTE, SPLIT_NOTE, SVHN_NOTE),
    ),
    Experiment(
        "figure-rc",
        "Risk against coverage, and the gain at 1 % risk",
        (
            RiskCoverage(
                "rc-svhn",
                "Risk against coverage: SVHN VGG-8",
                SVHN,
                (*METHODS, *SVHN.methods),
                published="coverage 0.17 to 0.56 at 1 % risk, 9,013 images of 22,778; at coverage 0.56 a risk lower by "
                "2.49 points, 567 images",
            ),
            RiskCoverage(
                "rc-imagenet",
                "Risk against coverage: ImageNet ResNeXt",
                IMAGENET[2],
                METHODS,
                published="coverage higher by 1.7 points at 1 % risk, 818 images of 49,000",
            ),
        ),
        ("Risk here is selective: errors among the accepted over the accepted.", SPLIT_NOTE, SVHN_NOTE),
    ),
    Experiment(
        "figure-aorc",
        "AORC explained",
        (MetricExplained("aorc", "The areas behind AORC: SVHN VGG-8", replace(SVHN, methods=()), MEAN),),
        (AORC_NOTE, SVHN_NOTE),
    ),
)
