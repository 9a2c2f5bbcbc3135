"""The input of a report: correctness, confidences and rankings of the same labeled images."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import ANY, Repair, ReportError
from secondlook.estimators import FittedMethods, find_method
from secondlook.evaluation import DEFAULT_METRICS, Evaluation, check_resampling
from secondlook.metrics import Ranking, parse_metrics, rank
from secondlook.policies import Policy
from secondlook.predictions import PredictFrom, Predictions, check_prediction

BASELINE = "msr"


@dataclass(frozen=True)
class EvaluationSettings:
    """The options of `evaluate` with their defaults; None stands for the default methods."""

    methods: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = DEFAULT_METRICS
    predict_from: PredictFrom = "image"
    top_k: int = 1
    level: float = 0.95
    resamples: int = 500
    seed: int = 0

    @classmethod
    def from_options(
        cls, methods: Iterable[str] | None = None, metrics: Iterable[str] | None = None, **options: Any
    ) -> Self:
        """Check the options early, and convert NumPy numbers to Python numbers."""
        settings = cls(None if methods is None else tuple(methods), tuple(metrics or DEFAULT_METRICS), **options)
        parse_metrics(settings.metrics)
        for name in settings.methods or ():
            find_method(name)
        check_prediction(settings.predict_from, settings.top_k)
        check_resampling(settings.level, settings.resamples, settings.seed)
        level, resamples, seed = float(settings.level), int(settings.resamples), int(settings.seed)
        return replace(settings, level=level, resamples=resamples, seed=seed)


@dataclass(frozen=True, eq=False)
class Study:
    """Labeled predictions and the confidences to compare."""

    preds: Predictions
    """The predictions for the judged images, without the tuning images."""
    given: Predictions
    """The predictions for all images."""
    fitted: FittedMethods
    """The methods with their options, and the positions of the judged images."""
    settings: EvaluationSettings
    policy: Policy | None
    """The calibrated policy; None without one."""
    calibrated: str | None
    """The method of the policy with its options, one of `confidences`."""
    class_names: tuple[str, ...]
    correct: BoolArray
    """Whether each prediction is correct. bool [N]"""
    leading: IntArray
    """The most probable class of each image. int64 [N]"""
    duplicates: frozenset[str]
    """Ids of copies of other images: a guarantee counts only the errors among them."""
    distinct: BoolArray
    """Whether each image is the first one with its pixels. bool [N]"""
    confidences: Mapping[str, Float64Array]
    """Confidence per image, by method. float64 [N] each"""
    unknown: Predictions | None
    """Predictions for unknown images, if any; not part of `preds`."""
    together: Mapping[str, Float64Array]
    """Confidence of the judged images followed by the unknown ones, by method. float64 [N + M] each"""
    rankings: Mapping[str, Ranking]
    baseline: str
    second_look: str | None
    """The method to compare with the baseline; None without another method, or with only one view."""
    progress: bool

    @property
    def probabilities(self) -> tuple[str, ...]:
        """The methods with a probability as confidence."""
        return tuple(name for name in self.confidences if find_method(name).is_probability)

    @property
    def n_images(self) -> int:
        """Number of images."""
        return self.preds.n_images

    @property
    def n_tuning(self) -> int:
        """Number of tuning images."""
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
    *,
    policy: Policy | None = None,
    duplicates: Collection[str] = (),
    tuning: object = None,
    unknown: Predictions | None = None,
    progress: bool = True,
    **options: Any,
) -> Study:
    """Compute correctness, confidences and rankings of labeled predictions, with the options of `evaluate`.

    The method of `policy` is added to the others; `duplicates` are ids of copies of other images; `unknown` are
    predictions for unknown images.
    """
    if not preds.has_labels:
        raise ReportError("the predictions have no labels", repair=Repair("pass {labels}", labels=ANY))
    settings = EvaluationSettings.from_options(**options)
    predict_from, top_k = settings.predict_from, settings.top_k
    calibrated = None if policy is None else describe_method(policy)
    fitted = FittedMethods.fit(
        preds,
        settings.methods,
        added=() if calibrated is None else (calibrated,),
        tuning=tuning,
        predict_from=predict_from,
        top_k=top_k,
        duplicates=duplicates,
    )
    names, judged = tuple(fitted.options), fitted.select_judged(preds)
    if not names:
        raise ReportError("is empty", argument="methods", repair="name at least one method, e.g. 'mean'")
    with judged.show_progress("confidences", len(names) + 1, enabled=progress) as table:
        correct = table.correct(predict_from=predict_from, top_k=top_k)
        leading = table.predicted(predict_from=predict_from, top_k=top_k).reshape(table.n_images, top_k)[:, 0]
        together = {name: fitted.compute_together(table, unknown, name, seed=settings.seed) for name in names}
        confidences = {name: values[: table.n_images] for name, values in together.items()}
        if unknown is not None:  # ranks among the known images only
            ranks = [name for name in names if find_method(name).is_rank]
            confidences |= {name: fitted.compute(table, name, seed=settings.seed) for name in ranks}
    copies = frozenset(duplicates)
    baseline = BASELINE if BASELINE in names else names[0]
    others = [name for name in (*Evaluation.SECOND_LOOK_METHODS, *names) if name in names and name != baseline]
    return Study(
        preds=judged,
        given=preds,
        fitted=fitted,
        settings=settings,
        policy=policy,
        calibrated=calibrated,
        class_names=preds.class_names or tuple(f"class {index}" for index in range(preds.n_classes)),
        correct=correct,
        leading=leading,
        duplicates=copies,
        distinct=np.array([id_ not in copies for id_ in judged.ids]),
        confidences=confidences,
        unknown=unknown,
        together=together,
        rankings={name: rank(correct, values) for name, values in confidences.items()},
        baseline=baseline,
        second_look=others[0] if others and preds.n_outputs > 1 else None,
        progress=progress,
    )


def name_method(method: str) -> str:
    """Return the name of a method in words."""
    return find_method(method).name_in_words(method)


def describe_method(policy: Policy) -> str:
    """Return the method of a policy with the options that were given, not fitted."""
    fitted = find_method(policy.method).fitted
    given = {name: value for name, value in policy.options.items() if name not in fitted and value is not None}
    options = "&".join(
        f"{name}={str(value).lower() if value in (True, False) else value}" for name, value in given.items()
    )
    return f"{policy.method}?{options}" if options else policy.method
