"""Experiments as values: data sets, classifiers, views, methods, metrics and the matching columns of the paper.

Notation (`by`, `k`, method symbols like "MSR(D)") follows the paper, because the results are compared with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import secondlook as sl
from secondlook.predictions import PredictFrom
from secondlook.views import PRESETS

By = Literal["x", "D"]
"""Source of the predicted class in the paper's notation: the image x, or the set D of its views."""
PREDICT_FROM: Mapping[By, PredictFrom] = {"x": "image", "D": "views"}
"""The same choice in the vocabulary of the library."""

SubsetName = Literal["experimental", "evaluation"]
ImageSubset = Literal["experimental", "evaluation", "all"]
"""Images of a data set: those to choose views on, those to evaluate on, or both."""


class ReproductionError(sl.SecondLookError):
    """An experiment that is unknown, or that cannot be run or written."""


@dataclass(frozen=True)
class TitledRecord:
    """A registry record with a name and a title."""

    name: str
    title: str

    @property
    def form(self) -> str:
        """The name on the command line."""
        return self.name

    @property
    def summary(self) -> str:
        """The title."""
        return self.title


@dataclass(frozen=True)
class PublishedColumn:
    """A column of a table in the paper; `flip` is "with" or "without" flips in training, if the paper states it."""

    table: int
    data_set: str
    arch: str = ""
    flip: str = ""


@dataclass(frozen=True)
class MethodRow:
    """A row of a table: the paper's symbol for a confidence, the name of the method, and its options.

    Attributes
    ----------
    views
        Views that the confidence is computed from, if different from the column's; only for classes predicted from x.
    tuned
        Whether the method is tuned on the experimental images.
    """

    symbol: str
    confidence: str
    options: tuple[tuple[str, object], ...] = ()
    views: str | None = None
    tuned: bool = False

    @property
    def extra_views(self) -> tuple[str, ...]:
        """The views that the method needs in addition to the column's."""
        name, _, parameter = self.confidence.partition(":")
        return (parameter,) if name == "view" else () if self.views is None else view_texts(self.views)


@dataclass(frozen=True)
class Column:
    """A column of a table: a data set, a classifier (several form an ensemble), the views D, and k for top-k.

    `classifiers` are names in `CLASSIFIERS`; `methods` are rows that only this column has.
    """

    title: str
    data_set: str
    classifiers: tuple[str, ...]
    views: str
    k: int = 1
    published: PublishedColumn | None = None
    methods: tuple[MethodRow, ...] = ()


@dataclass(frozen=True)
class Term:
    """A cell of a table with its sign in a contrast."""

    sign: Literal[1, -1]
    column: str
    method: str
    by: By = "x"


@dataclass(frozen=True)
class Contrast:
    """A signed sum of cells, with an interval from paired resamplings of the images."""

    question: str
    metric: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Comparison:
    """Methods by metrics for several columns: Tables 1 to 5 and the supplement."""

    name: str
    title: str
    columns: tuple[Column, ...]
    methods: tuple[MethodRow, ...]
    metrics: tuple[str, ...] = ("aorc_joint",)
    by: tuple[By, ...] = ("x",)
    subset: ImageSubset = "evaluation"
    contrasts: tuple[Contrast, ...] = ()


@dataclass(frozen=True)
class Intensity:
    """AORC of single views against their strength; a point is the mean over its views."""

    name: str
    title: str
    axis: str
    columns: tuple[Column, ...]
    points: tuple[tuple[float, tuple[str, ...]], ...]
    subset: ImageSubset = "experimental"


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curves of several methods, and the gain in coverage at a tolerated risk."""

    name: str
    title: str
    column: Column
    methods: tuple[MethodRow, ...]
    risk: float = 0.01
    subset: ImageSubset = "evaluation"
    published: str = ""


@dataclass(frozen=True)
class MetricExplained:
    """The curves and areas that define AORC, for one column and one method."""

    name: str
    title: str
    column: Column
    method: MethodRow
    subset: ImageSubset = "evaluation"


@dataclass(frozen=True)
class ContactSheets:
    """A picture of every view of one image, for the data set of each column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    subset: ImageSubset = "experimental"


@dataclass(frozen=True)
class ResamplingStudy:
    """AORC of BS(D) against the number of resamplings N (window W = N), and against the window at the default N."""

    name: str
    title: str
    columns: tuple[Column, ...]
    resamplings: tuple[int, ...]
    windows: tuple[int, ...]
    seeds: tuple[int, ...]
    subset: ImageSubset = "all"


Piece = Comparison | Intensity | RiskCoverage | MetricExplained | ContactSheets | ResamplingStudy
"""One table or figure of an experiment."""


@dataclass(frozen=True)
class Experiment(TitledRecord):
    """A table or figure of the paper, or several pieces that belong together."""

    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()


def view_texts(views: str) -> tuple[str, ...]:
    """Return the text of each view of a preset, or of views separated by white space, the identity first."""
    words = PRESETS[views].views.split() if views in PRESETS else views.split()
    # A list avoids the warning of a preset, which the notes of the experiment contain.
    return _view_set(words).texts


def required_views(column: Column, methods: tuple[MethodRow, ...]) -> sl.ViewSet:
    """Return all views that a column and the methods need."""
    extra = [text for row in (*methods, *column.methods) for text in row.extra_views]
    return _view_set([*view_texts(column.views), *extra])


def _view_set(texts: list[str]) -> sl.ViewSet:
    return sl.ViewSet(dict.fromkeys(("identity", *texts)))
