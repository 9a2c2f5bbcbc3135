"""Decisions about a few images with all that reviewers want to see: likely classes, and what each look predicted."""

from typing import NamedTuple

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.decisions.rows import Decisions, RowOptions, draw_marks, make_decisions, predict_per_view
from secondlook.predictions import Predictions

MAX_LIKELY = 9
"""Number of likely classes that are listed."""


class LookPrediction(NamedTuple):
    """What one look at an image predicted."""

    view: str
    label: int
    probability: float


class ClassProbability(NamedTuple):
    """A class, and its probability as the mean over the looks."""

    label: int
    probability: float


class DetailedDecision(NamedTuple):
    """The decision about one image, with what it is based on."""

    id: str
    label: int
    """The first predicted class, whether accepted or not."""
    labels: tuple[int, ...] | None
    """The top-k classes; None for top_k = 1."""
    class_name: str | None
    confidence: float
    interval: tuple[float, float] | None
    accept: bool
    looks: int
    first_look: float
    disagreement: float | None
    audit: bool
    """Whether the image is accepted and marked for review."""
    audit_probability: float | None
    """Probability of being marked; None for rejected images, and without audits."""
    likely: tuple[ClassProbability, ...]
    """The likeliest classes, the predicted one first and then by falling probability."""
    views: tuple[LookPrediction, ...]
    """What each look predicted, in the order of looks."""


def detail_decisions(options: RowOptions, preds: Predictions, *, audit_seed: int) -> list[DetailedDecision]:
    """Decide about each image, looked at in all views of `preds`; audits have a random seed of their own."""
    decisions = make_decisions(options.rule, preds, level=options.level, seed=options.seed)
    marked, probabilities = _draw(options, decisions, audit_seed)
    view_classes, view_probabilities = predict_per_view(preds)
    means = np.concatenate([block.mean(axis=1) for _, block in preds.blocks()])
    names, texts = preds.class_names, preds.views.texts
    detailed = []
    for place, decision in enumerate(decisions):
        labels = decision.label if isinstance(decision.label, tuple) else None
        label = labels[0] if labels else decision.label
        assert isinstance(label, int), "the first of the top-k classes is one class"
        seen = zip(texts, view_classes[place].tolist(), view_probabilities[place].tolist(), strict=True)
        detailed.append(
            DetailedDecision(
                id=decision.id,
                label=label,
                labels=labels,
                class_name=None if names is None else names[label],
                confidence=decision.confidence,
                interval=decision.interval,
                accept=decision.accept,
                looks=decision.looks,
                first_look=decision.first_look,
                disagreement=decision.disagreement,
                audit=bool(marked[place]),
                audit_probability=None if np.isnan(probabilities[place]) else float(probabilities[place]),
                likely=rank_classes(means[place], label),
                views=tuple(LookPrediction(*one) for one in seen),
            )
        )
    return detailed


def rank_classes(means: Float64Array, first: int) -> tuple[ClassProbability, ...]:
    """Return the likeliest classes, `first` before all others. float64 [C]"""
    order = [first, *(one for one in np.argsort(-means, kind="stable").tolist() if one != first)]
    return tuple(ClassProbability(one, float(means[one])) for one in order[:MAX_LIKELY])


def _draw(options: RowOptions, decisions: Decisions, seed: int) -> tuple[BoolArray, Float64Array]:
    """Return which images are marked for review, bool [N], and the probability of each, float64 [N]."""
    if options.audit_plan is None:
        return np.zeros(len(decisions), dtype=np.bool_), np.full(len(decisions), np.nan)
    return draw_marks(options.audit_plan, decisions, seed)
