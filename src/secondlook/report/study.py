"""The numbers that a report is about: correctness, confidences and rankings of the same labeled images."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import ReportError
from secondlook.estimators import METHODS, find_method
from secondlook.estimators import confidence as compute_confidence
from secondlook.metrics import Ranking, rank
from secondlook.predictions import PredictFrom, Predictions

BASELINE = "msr"
SECOND_LOOK_METHODS = ("mean", "bootstrap", "bootstrap-lower", "mean-logit")
"""The first of these that is reported is compared with the baseline, whichever has the best numbers."""
SINGLE_VIEW_METHODS = ("msr",)
MULTI_VIEW_METHODS = ("msr", "mean", "bootstrap", "bootstrap-lower")
EXPLANATIONS = {
    "msr": "the classifier's confidence in the image itself",
    "mean": "the classifier's confidence averaged over all views of the image",
    "bootstrap": "rank of the image when its views are resampled many times; it only orders these images",
    "bootstrap-lower": "a cautious confidence: the lower end of its interval over resampled views",
}
"""What the methods of a report mean, for readers who do not know machine learning."""


@dataclass(frozen=True, eq=False)
class Study:
    """Labeled predictions and the confidences to compare."""

    preds: Predictions
    predict_from: PredictFrom
    top_k: int
    seed: int
    class_names: tuple[str, ...]
    correct: BoolArray
    """Whether each prediction is correct. bool [N]"""
    leading: IntArray
    """The most probable class of each image. int64 [N]"""
    distinct: BoolArray
    """Whether each image is the first one with its pixels: a guarantee counts copies once. bool [N]"""
    confidences: Mapping[str, Float64Array]
    """Confidence per image, by method. float64 [N] each"""
    rankings: Mapping[str, Ranking]
    baseline: str
    second_look: str | None
    """The method that is compared with the baseline; None if there is no such method or only one view."""
    progress: bool
    """Whether to show progress bars."""

    @property
    def n_images(self) -> int:
        """Number of images."""
        return self.preds.n_images

    @property
    def n_errors(self) -> int:
        """Number of wrong predictions."""
        return self.rankings[self.baseline].n_errors

    @property
    def error_rate(self) -> float:
        """Fraction of wrong predictions."""
        return self.n_errors / self.n_images

    @property
    def has_correct_and_wrong(self) -> bool:
        """Whether there are both correct and wrong predictions, as ranking metrics require."""
        return 0 < self.n_errors < self.n_images


def build_study(
    preds: Predictions,
    methods: Sequence[str] | None = None,
    *,
    calibrated: Sequence[str] = (),
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    seed: int = 0,
    duplicates: Collection[str] = (),
    progress: bool = True,
) -> Study:
    """Compute correctness, confidences and rankings of labeled predictions.

    `calibrated` methods are added to the others; `duplicates` are the ids of images that are copies of others.
    """
    if not preds.has_labels:
        raise ReportError("a report needs labels, and these predictions have none; pass labels= when collecting them.")
    multiple_outputs = preds.n_outputs > 1
    default = MULTI_VIEW_METHODS if multiple_outputs else SINGLE_VIEW_METHODS
    names = tuple(dict.fromkeys([*(default if methods is None else methods), *calibrated]))
    if not names:
        raise ReportError("methods= is empty; name at least one method, such as 'mean'.")
    with preds.show_progress("confidences", len(names) + 1, enabled=progress) as table:
        correct = table.correct(predict_from=predict_from, top_k=top_k)
        leading = table.predicted(predict_from=predict_from, top_k=top_k).reshape(table.n_images, top_k)[:, 0]
        confidences = {name: _compute_confidence(table, name, predict_from, top_k, seed) for name in names}
    copies = frozenset(duplicates)
    baseline = BASELINE if BASELINE in names else names[0]
    others = [name for name in (*SECOND_LOOK_METHODS, *names) if name in names and name != baseline]
    return Study(
        preds=preds,
        predict_from=predict_from,
        top_k=top_k,
        seed=seed,
        class_names=preds.class_names or tuple(f"class {index}" for index in range(preds.n_classes)),
        correct=correct,
        leading=leading,
        distinct=np.array([id_ not in copies for id_ in preds.ids]),
        confidences=confidences,
        rankings={name: rank(correct, values) for name, values in confidences.items()},
        baseline=baseline,
        second_look=others[0] if others and multiple_outputs else None,
        progress=progress,
    )


def is_probability(method: str) -> bool:
    """Return whether the values of a method can be read as the probability of being correct."""
    return find_method(method).is_probability


def method_symbol(method: str) -> str:
    """Return the symbol of a method, such as 'MSR(D)'."""
    return METHODS[method.partition(":")[0]].symbol


def explain_method(method: str) -> str:
    """Return one line that explains a method to its reader."""
    return EXPLANATIONS.get(method) or METHODS[method.partition(":")[0]].summary


def _compute_confidence(
    preds: Predictions, method: str, predict_from: PredictFrom, top_k: int, seed: int
) -> Float64Array:
    options = {"seed": seed} if "seed" in find_method(method).options else {}
    return compute_confidence(preds, method, predict_from=predict_from, top_k=top_k, **options)
