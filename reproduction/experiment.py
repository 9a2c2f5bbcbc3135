"""An experiment is a value: what is shown to which classifiers, how it is scored, and what the paper printed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reproduction.published import PublishedColumn
from secondlook.predictions import PredictFrom
from secondlook.views import PRESETS, ViewSet, as_view_set_with_identity

PartName = Literal["experimental", "evaluation", "all"]


By = Literal["x", "D"]
"""What the class is predicted from, in the paper's notation: the image x itself, or the set D of its views."""
PREDICT_FROM: Mapping[By, PredictFrom] = {"x": "image", "D": "views"}
"""The same in the words of the library."""


@dataclass(frozen=True)
class MethodRow:
    """A row of a table: how the paper writes a confidence, what it is called here, and its options.

    Attributes
    ----------
    views
        The views that the confidence looks at, where these are not the column's; only for classes predicted by x.
    tuned
        Whether it is given the experimental images to tune itself on.
    """

    symbol: str
    confidence: str
    options: tuple[tuple[str, object], ...] = ()
    views: str | None = None
    tuned: bool = False

    @property
    def own_views(self) -> tuple[str, ...]:
        """The texts of the views that it needs beyond the column's."""
        name, _, parameter = self.confidence.partition(":")
        return (parameter,) if name == "view" else () if self.views is None else texts_of(self.views)


@dataclass(frozen=True)
class Column:
    """A column of a table: a data set, a classifier (several are an ensemble), the views D, what counts as right.

    `classifiers` are keys of CLASSIFIERS; `methods` are rows that this column has beyond those of the table.
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
    """A cell of a table, added to a contrast or taken away from it."""

    sign: Literal[1, -1]
    column: str
    method: str
    by: By = "x"


@dataclass(frozen=True)
class Contrast:
    """A sum and difference of cells, with an interval over the same resamplings of the images."""

    question: str
    metric: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Comparison:
    """Methods by metrics for some columns: Tables 1 to 5 and the supplement."""

    name: str
    title: str
    columns: tuple[Column, ...]
    methods: tuple[MethodRow, ...]
    metrics: tuple[str, ...] = ("aorc_joint",)
    by: tuple[By, ...] = ("x",)
    part: PartName = "evaluation"
    contrasts: tuple[Contrast, ...] = ()


@dataclass(frozen=True)
class Intensity:
    """AORC of single views against how strong they are; a point is the mean over its views."""

    name: str
    title: str
    axis: str
    columns: tuple[Column, ...]
    points: tuple[tuple[float, tuple[str, ...]], ...]
    part: PartName = "experimental"


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curves of some methods, and what is gained at a tolerated risk."""

    name: str
    title: str
    column: Column
    methods: tuple[MethodRow, ...]
    risk: float = 0.01
    part: PartName = "evaluation"
    published: str = ""


@dataclass(frozen=True)
class MetricExplained:
    """The curves and areas behind AORC, for one column and one method."""

    name: str
    title: str
    column: Column
    method: MethodRow
    part: PartName = "evaluation"


@dataclass(frozen=True)
class ContactSheets:
    """A picture of every view of one image of each column's data set."""

    name: str
    title: str
    columns: tuple[Column, ...]
    part: PartName = "experimental"


@dataclass(frozen=True)
class ResamplingStudy:
    """AORC of BS(D) against the number of resamplings N (window W = N), and against the window at the default N."""

    name: str
    title: str
    columns: tuple[Column, ...]
    resamplings: tuple[int, ...]
    windows: tuple[int, ...]
    seeds: tuple[int, ...]
    part: PartName = "all"


Piece = Comparison | Intensity | RiskCoverage | MetricExplained | ContactSheets | ResamplingStudy


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper, or several pieces that belong together."""

    name: str
    title: str
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()


def texts_of(views: str) -> tuple[str, ...]:
    """Return the texts of a preset's views, or of views separated by white space, the identity first."""
    words = PRESETS[views].views.split() if views in PRESETS else views.split()
    # Through a list, so that a preset's warning is not repeated here: the notes of the experiment say it.
    return as_view_set_with_identity(words).texts


def views_needed(column: Column, methods: tuple[MethodRow, ...]) -> ViewSet:
    """Return all views that a column and its methods look at."""
    own = [text for row in (*methods, *column.methods) for text in row.own_views]
    return as_view_set_with_identity(dict.fromkeys((*texts_of(column.views), *own)))
