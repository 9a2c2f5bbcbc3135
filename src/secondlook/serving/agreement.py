"""Agreement of reviewers: Cohen's kappa, Krippendorff's alpha, the estimated error of reviewers, and their speed."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from secondlook.extension import Answer

FAST_SECONDS = 1.0


class GivenLabel(NamedTuple):
    """The first label that a reviewer gave to an image, before any correction."""

    image: int
    reviewer: str
    label: int
    seconds: float | None = None
    """Time that the image was on the screen."""
    is_blind: bool = True
    """Whether the image was given to several reviewers whatever its labels."""


Pair = tuple[GivenLabel, GivenLabel]


def describe_agreement(given: Iterable[GivenLabel], bound: float) -> dict[str, Any]:
    """Return the agreement of reviewers as JSON values, from all labels in the order in which they were given.

    Only blind labels are compared, and `cannot tell` counts as no label. `bound` is the stated reviewer error.
    """
    first: dict[tuple[int, str], GivenLabel] = {}
    images: dict[int, list[GivenLabel]] = defaultdict(list)
    for one in given:
        is_new = first.setdefault((one.image, one.reviewer), one) is one
        if is_new and one.is_blind and one.label != Answer.CANNOT_TELL:
            images[one.image].append(one)
    pairs = [pair for labels in images.values() for pair in itertools.combinations(labels, 2)]
    of_two: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for a, b in (sorted(pair, key=lambda one: one.reviewer) for pair in pairs):
        of_two[a.reviewer, b.reviewer].append((a.label, b.label))
    return {
        "reviewers": [_describe_reviewer(name, first.values(), pairs) for name in sorted({name for _, name in first})],
        "pairs": [
            {"reviewers": names, "images": len(both), "agreement": _share(both), "kappa": compute_kappa(both)}
            for names, both in sorted(of_two.items())
        ],
        "classes": _describe_classes(pairs),
        "alpha": compute_alpha([[one.label for one in labels] for labels in images.values()]),
        "error": estimate_error([(one[0].label, one[1].label) for one in images.values() if one[1:]], bound),
    }


def _describe_reviewer(name: str, given: Iterable[GivenLabel], pairs: Iterable[Pair]) -> dict[str, Any]:
    labels = [one for one in given if one.reviewer == name]
    both = [(a.label, b.label) for a, b in pairs if name in (a.reviewer, b.reviewer)]
    seconds = np.array([one.seconds for one in labels if one.seconds is not None], dtype=np.float64)
    speed = (float(np.median(seconds)), float(np.mean(seconds < FAST_SECONDS))) if len(seconds) else (None, None)
    counts = {"name": name, "labels": len(labels), "pairs": len(both), "agreement": _share(both)}
    return counts | dict(zip(("seconds", "fast"), speed, strict=True))


def _describe_classes(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Return for each class how often one label of a pair is the class if the other one is."""
    either, both = Counter[int](), Counter[int]()
    for labels in ({a.label, b.label} for a, b in pairs):
        either.update(labels)
        both.update(labels if len(labels) == 1 else ())
    shares = ((label, count, 2 * both[label] / (count + both[label])) for label, count in sorted(either.items()))
    return [{"label": label, "pairs": count, "agreement": share} for label, count, share in shares]


def _share(labels: Sequence[tuple[int, int]]) -> float | None:
    """Return the share of equal labels."""
    return sum(a == b for a, b in labels) / len(labels) if labels else None


def compute_kappa(labels: Sequence[tuple[int, int]]) -> float | None:
    """Return Cohen's kappa of two reviewers from their labels per image; None if there is only one label."""
    from sklearn.metrics import cohen_kappa_score

    a, b = zip(*labels, strict=True)
    return float(cohen_kappa_score(a, b)) if len({*a, *b}) > 1 else None


def compute_alpha(units: Iterable[Sequence[int]]) -> float | None:
    """Return Krippendorff's alpha for nominal data, from the labels of each image; None if it is undefined."""
    known = [labels for labels in units if len(labels) > 1]
    total, totals = sum(map(len, known)), Counter(itertools.chain.from_iterable(known))
    unequal = _count_unequal(totals)
    observed = sum(_count_unequal(Counter(labels)) / (len(labels) - 1) for labels in known)
    return 1 - observed * (total - 1) / unequal if unequal else None


def _count_unequal(counts: Counter[int]) -> int:
    """Return the number of ordered pairs of different labels, from the number of each."""
    return counts.total() ** 2 - sum(count**2 for count in counts.values())


def estimate_error(pairs: Sequence[tuple[int, int]], bound: float) -> dict[str, Any]:
    """Estimate the error rate of reviewers from two independent labels per image.

    If each of them is wrong with probability e, they disagree with probability at least d = 2 e (1 - e), so e is at
    most (1 - sqrt(1 - 2 d)) / 2. Errors that both share do not show. The interval of d is that of Clopper and Pearson.
    """
    from scipy.stats import binomtest

    images, disagreements = len(pairs), sum(a != b for a, b in pairs)
    estimate, low, high = None, 0.0, 0.5
    if images:
        interval = binomtest(disagreements, images).proportion_ci(0.95, method="exact")
        estimate, low, high = map(_solve_error, (disagreements / images, interval.low, interval.high))
    found = {"images": images, "disagreements": disagreements, "estimate": estimate, "low": low, "high": high}
    return found | {"bound": bound, "exceeded": 0 < bound < low}


def _solve_error(disagreement: float) -> float:
    """Return the error rate of two reviewers who disagree with some probability; 0.5 if they do at least half of it."""
    return (1 - math.sqrt(max(0.0, 1 - 2 * disagreement))) / 2
