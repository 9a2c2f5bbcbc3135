"""What every section of a report is drawn from: confidences, who is right, and the images in order of confidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import ReportError
from secondlook.estimators import METHODS, find_method
from secondlook.estimators import confidence as confidence_of
from secondlook.metrics import Ranking, rank
from secondlook.predictions import PredictFrom, Predictions

BASELINE = "msr"
SECOND_LOOKS = ("mean", "bootstrap", "bootstrap-lower", "mean-logit")
"""What may stand for the second look in the result's sentence, in this order, whichever turns out best."""
ONE_VIEW = ("msr",)
SEVERAL_VIEWS = ("msr", "mean", "bootstrap", "bootstrap-lower")


@dataclass(frozen=True, eq=False)
class Study:
    """Labeled predictions with the confidences to compare."""

    preds: Predictions
    predict_from: PredictFrom
    top_k: int
    seed: int
    class_names: tuple[str, ...]
    correct: BoolArray
    """Whether each answer is right. bool [N]"""
    confidences: Mapping[str, Float64Array]
    """How sure each answer is, by each method. float64 [N] each"""
    rankings: Mapping[str, Ranking]
    baseline: str
    second_look: str | None
    """The method that stands for the second look; None where there is none beside the baseline."""
    progress: bool
    """Whether to draw progress bars."""

    @property
    def n_images(self) -> int:
        """Number of images."""
        return self.preds.n_images

    @property
    def n_errors(self) -> int:
        """Number of wrong answers."""
        return self.rankings[self.baseline].n_errors

    @property
    def error_rate(self) -> float:
        """Share of wrong answers."""
        return self.n_errors / self.n_images

    @property
    def has_right_and_wrong(self) -> bool:
        """Whether there is something to tell apart."""
        return 0 < self.n_errors < self.n_images

    @property
    def shown(self) -> str:
        """The method that the page opens with."""
        return self.second_look or self.baseline


def studied(
    preds: Predictions,
    methods: Sequence[str] | None,
    *,
    predict_from: PredictFrom,
    top_k: int,
    seed: int,
    class_names: Sequence[str] | None,
    progress: bool = True,
) -> Study:
    """Compute what a report needs of the predictions, or say why there can be none."""
    if not preds.has_labels:
        raise ReportError(
            "a report is about right and wrong answers, and these predictions have no labels; give labels= where they "
            "are made."
        )
    several = preds.n_outputs > 1
    names = tuple(dict.fromkeys((SEVERAL_VIEWS if several else ONE_VIEW) if methods is None else methods))
    if not names:
        raise ReportError("there is no method to report on; name at least one, such as 'mean'.")
    with preds.read_with_bar("confidences", len(names) + 1, enabled=progress) as seen:
        correct = seen.correct(predict_from=predict_from, top_k=top_k)
        confidences = {name: _confidence(seen, name, predict_from, top_k, seed) for name in names}
    baseline = BASELINE if BASELINE in names else names[0]
    others = [name for name in (*SECOND_LOOKS, *names) if name in names and name != baseline]
    return Study(
        preds=preds,
        predict_from=predict_from,
        top_k=top_k,
        seed=seed,
        class_names=_class_names(preds, class_names),
        correct=correct,
        confidences=confidences,
        rankings={name: rank(correct, values) for name, values in confidences.items()},
        baseline=baseline,
        second_look=others[0] if others and several else None,
        progress=progress,
    )


def is_probability(method: str) -> bool:
    """Whether a method's values can be read as probabilities of being right."""
    return find_method(method)[0].is_probability


def symbol_of(method: str) -> str:
    """Return the paper's symbol of a method."""
    return METHODS[method.partition(":")[0]].symbol


def summary_of(method: str) -> str:
    """Return what a method is, in one line."""
    return METHODS[method.partition(":")[0]].summary


def _confidence(preds: Predictions, name: str, predict_from: PredictFrom, top_k: int, seed: int) -> Float64Array:
    takes_seed = "seed" in find_method(name)[0].options
    return confidence_of(preds, name, predict_from=predict_from, top_k=top_k, **({"seed": seed} if takes_seed else {}))


def _class_names(preds: Predictions, given: Sequence[str] | None) -> tuple[str, ...]:
    names = preds.class_names if given is None else tuple(given)
    if names is None:
        return tuple(f"class {index}" for index in range(preds.n_classes))
    if len(names) != preds.n_classes:
        raise ReportError(f"class_names has {len(names)} names for {preds.n_classes} classes; give one for each.")
    return names
