"""The numbers that a report is about: correctness, confidences and rankings of the same labeled images."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import ReportError
from secondlook.estimators import FittedMethods, find_method, fit_methods
from secondlook.metrics import Ranking, rank
from secondlook.predictions import PredictFrom, Predictions

BASELINE = "msr"
SECOND_LOOK_METHODS = ("blend", "learned", "mean", "bootstrap", "bootstrap-lower", "mean-logit")
"""The first of these that is reported is compared with the baseline, whichever has the best numbers."""
EXPLANATIONS = {
    "msr": "the classifier's confidence in the image itself",
    "mean": "the classifier's confidence averaged over all views of the image",
    "bootstrap": "rank of the image when its views are resampled many times; it only orders these images",
    "bootstrap-lower": "a cautious confidence: the lower end of its interval over resampled views",
    "blend": "the confidence averaged over all views, and by how much they prefer the predicted class to the next one",
    "learned": "the probability of being correct, learned from how the views behave on images set apart",
}
"""What the methods of a report mean, for readers who do not know machine learning."""


@dataclass(frozen=True, eq=False)
class Study:
    """Labeled predictions and the confidences to compare."""

    preds: Predictions
    """The predictions for the judged images; those that were set apart are not among them."""
    given: Predictions
    """The predictions for all images."""
    fitted: FittedMethods
    """The methods with their options, and which of the given images are judged."""
    predict_from: PredictFrom
    top_k: int
    seed: int
    class_names: tuple[str, ...]
    correct: BoolArray
    """Whether each prediction is correct. bool [N]"""
    leading: IntArray
    """The most probable class of each image. int64 [N]"""
    duplicates: frozenset[str]
    """Ids of images that are copies of others: a guarantee counts them once."""
    distinct: BoolArray
    """Whether each image is the first one with its pixels. bool [N]"""
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
    def n_tuning(self) -> int:
        """Number of images that were set apart."""
        return len(self.fitted.tuning)

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
    tuning: object = None,
    progress: bool = True,
) -> Study:
    """Compute correctness, confidences and rankings of labeled predictions.

    `calibrated` methods are added to the others; `duplicates` are the ids of images that are copies of others. `tuning`
    are the images that are not judged, as in `evaluate`.
    """
    if not preds.has_labels:
        raise ReportError("a report needs labels, and these predictions have none; pass labels= when collecting them.")
    fitted = fit_methods(
        preds,
        methods,
        added=calibrated,
        tuning=tuning,
        predict_from=predict_from,
        top_k=top_k,
        duplicates=duplicates,
    )
    names, judged = tuple(fitted.options), fitted.select_judged(preds)
    if not names:
        raise ReportError("methods= is empty; name at least one method, such as 'mean'.")
    with judged.show_progress("confidences", len(names) + 1, enabled=progress) as table:
        correct = table.correct(predict_from=predict_from, top_k=top_k)
        leading = table.predicted(predict_from=predict_from, top_k=top_k).reshape(table.n_images, top_k)[:, 0]
        confidences = {name: fitted.compute(table, name, seed=seed) for name in names}
    copies = frozenset(duplicates)
    baseline = BASELINE if BASELINE in names else names[0]
    others = [name for name in (*SECOND_LOOK_METHODS, *names) if name in names and name != baseline]
    return Study(
        preds=judged,
        given=preds,
        fitted=fitted,
        predict_from=predict_from,
        top_k=top_k,
        seed=seed,
        class_names=preds.class_names or tuple(f"class {index}" for index in range(preds.n_classes)),
        correct=correct,
        leading=leading,
        duplicates=copies,
        distinct=np.array([id_ not in copies for id_ in judged.ids]),
        confidences=confidences,
        rankings={name: rank(correct, values) for name, values in confidences.items()},
        baseline=baseline,
        second_look=others[0] if others and preds.n_outputs > 1 else None,
        progress=progress,
    )


def is_probability(method: str) -> bool:
    """Return whether the values of a method can be read as the probability of being correct."""
    return find_method(method).is_probability


def method_symbol(method: str) -> str:
    """Return the symbol of a method, such as 'MSR(D)'."""
    return find_method(method).symbol


def explain_method(method: str) -> str:
    """Return one line that explains a method to its reader."""
    found = find_method(method)
    return EXPLANATIONS.get(found.name) or found.summary
