"""Agreement of reviewers: Cohen's kappa, Krippendorff's alpha, the estimated error of reviewers, and their speed."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from secondlook.extension import Answer

LEVEL = 0.95
FAST_SECONDS = 1.0


class GivenLabel(NamedTuple):
    """The first label that a reviewer gave to an image, before any correction."""

    image: int
    reviewer: str
    label: int
    seconds: float | None = None
    """Time that the image was on the screen."""
    is_blind: bool = True
    """Whether it was given without a hint that others disagree, to an image chosen independently of its labels."""


class ReviewerRow(BaseModel):
    """The labels of a reviewer."""

    name: str
    labels: int
    pairs: int = Field(description="Images that another reviewer labeled blindly, too; once per other reviewer.")
    agreement: float | None = Field(description="Share of these with the same label; null without any.")
    seconds: float | None = Field(description="Median time per label; null if unknown.")
    fast: float | None = Field(description="Share of labels in less than a second.")


class PairRow(BaseModel):
    """Agreement of two reviewers."""

    reviewers: tuple[str, str]
    images: int
    agreement: float
    kappa: float | None = Field(description="Cohen's kappa; null if both gave only one label.")


class ClassRow(BaseModel):
    """Agreement about one class or answer."""

    label: int
    class_name: str | None = Field(default=None, serialization_alias="class", description="Class name, or an answer.")
    pairs: int = Field(description="Pairs of labels in which at least one is this class.")
    agreement: float = Field(description="Probability that the other label is this class, too, if one is.")


class ReviewerError(BaseModel):
    """Error rate of reviewers, estimated from the disagreement of two labels per image."""

    images: int
    disagreements: int
    estimate: float | None = Field(description="Null without any image.")
    low: float = Field(description="Lower end of the 95 % interval.")
    high: float
    bound: float = Field(description="The stated bound; 0 means that labels are taken as the truth.")
    exceeded: bool = Field(description="Whether the whole interval is above the bound.")


class AgreementBody(BaseModel):
    """Agreement of all reviewers. `cannot tell` counts as no label."""

    reviewers: list[ReviewerRow]
    pairs: list[PairRow]
    classes: list[ClassRow]
    alpha: float | None = Field(description="Krippendorff's alpha for nominal data; null if undefined.")
    error: ReviewerError


def describe_agreement(given: Iterable[GivenLabel], bound: float) -> AgreementBody:
    """Return the agreement of reviewers, from all labels in the order in which they were given."""
    first: dict[tuple[int, str], GivenLabel] = {}
    for one in given:
        first.setdefault((one.image, one.reviewer), one)
    blind = [one for one in first.values() if one.is_blind and one.label != Answer.CANNOT_TELL]
    images: dict[int, list[GivenLabel]] = defaultdict(list)
    for one in blind:
        images[one.image].append(one)
    pairs = [pair for labels in images.values() for pair in itertools.combinations(labels, 2)]
    return AgreementBody(
        reviewers=_describe_reviewers(list(first.values()), pairs),
        pairs=_describe_pairs(pairs),
        classes=_describe_classes(pairs),
        alpha=compute_alpha([[one.label for one in labels] for labels in images.values()]),
        error=estimate_error([(a.label, b.label) for a, b in (one[:2] for one in images.values() if one[1:])], bound),
    )


def _describe_reviewers(
    given: Sequence[GivenLabel], pairs: Sequence[tuple[GivenLabel, GivenLabel]]
) -> list[ReviewerRow]:
    rows = []
    for name in sorted({one.reviewer for one in given}):
        labels = [one for one in given if one.reviewer == name]
        same = [a.label == b.label for a, b in pairs if name in (a.reviewer, b.reviewer)]
        seconds = np.array([one.seconds for one in labels if one.seconds is not None], dtype=np.float64)
        speed = (float(np.median(seconds)), float(np.mean(seconds < FAST_SECONDS))) if len(seconds) else (None, None)
        agreement = float(np.mean(same)) if same else None
        shown = {"agreement": agreement, "seconds": speed[0], "fast": speed[1]}
        rows.append(ReviewerRow(name=name, labels=len(labels), pairs=len(same), **shown))
    return rows


def _describe_pairs(pairs: Iterable[tuple[GivenLabel, GivenLabel]]) -> list[PairRow]:
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for pair in pairs:
        a, b = sorted(pair, key=lambda one: one.reviewer)
        found[a.reviewer, b.reviewer].append((a.label, b.label))
    return [
        PairRow(
            reviewers=names,
            images=len(labels),
            agreement=float(np.mean([a == b for a, b in labels])),
            kappa=compute_kappa(labels),
        )
        for names, labels in sorted(found.items())
    ]


def _describe_classes(pairs: Iterable[tuple[GivenLabel, GivenLabel]]) -> list[ClassRow]:
    single: dict[int, int] = defaultdict(int)
    both: dict[int, int] = defaultdict(int)
    for a, b in pairs:
        counts = both if a.label == b.label else single
        for label in {a.label, b.label}:
            counts[label] += 1
    return [
        ClassRow(
            label=label,
            pairs=both[label] + single[label],
            agreement=2 * both[label] / (2 * both[label] + single[label]),
        )
        for label in sorted({*single, *both})
    ]


def compute_kappa(labels: Sequence[tuple[int, int]]) -> float | None:
    """Return Cohen's kappa of two reviewers from their labels per image; None if there is only one label."""
    from sklearn.metrics import cohen_kappa_score

    a, b = zip(*labels, strict=True)
    return float(cohen_kappa_score(a, b)) if len({*a, *b}) > 1 else None


def compute_alpha(units: Iterable[Sequence[int]]) -> float | None:
    """Return Krippendorff's alpha for nominal data, from the labels of each image; None if it is undefined."""
    known = [labels for labels in units if len(labels) > 1]
    if not known:
        return None
    _, codes = np.unique(np.concatenate(known), return_inverse=True)
    sizes = np.array([len(labels) for labels in known])
    counts = np.zeros((len(known), codes.max() + 1))
    np.add.at(counts, (np.repeat(np.arange(len(known)), sizes), codes), 1)
    total, of_classes = sizes.sum(), counts.sum(axis=0)
    observed = ((sizes**2 - (counts**2).sum(axis=1)) / (sizes - 1)).sum()
    expected = (total**2 - (of_classes**2).sum()) / (total - 1)
    return float(1 - observed / expected) if expected else None


def estimate_error(pairs: Sequence[tuple[int, int]], bound: float) -> ReviewerError:
    """Estimate the error rate of reviewers from two independent labels per image.

    If each of them is wrong with probability e, they disagree with probability at least d = 2 e (1 - e), so e is at
    most (1 - sqrt(1 - 2 d)) / 2. Errors that both share do not show. The interval of d is that of Clopper and Pearson.
    """
    from scipy.stats import binomtest

    images, disagreements = len(pairs), sum(a != b for a, b in pairs)
    estimate, low, high = None, 0.0, 0.5
    if images:
        interval = binomtest(disagreements, images).proportion_ci(LEVEL, method="exact")
        estimate, low, high = map(_solve_error, (disagreements / images, interval.low, interval.high))
    return ReviewerError(
        images=images,
        disagreements=disagreements,
        estimate=estimate,
        low=low,
        high=high,
        bound=bound,
        exceeded=0 < bound < low,
    )


def _solve_error(disagreement: float) -> float:
    """Return the error rate of two reviewers who disagree with some probability; 0.5 if they do at least half of it."""
    return (1 - math.sqrt(max(0.0, 1 - 2 * disagreement))) / 2
