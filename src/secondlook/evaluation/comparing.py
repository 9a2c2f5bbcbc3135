"""`evaluate`: how good each confidence is, how uncertain that is, and whether one is better on the same images."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.estimators import confidence as confidence_of
from secondlook.evaluation.estimate import Estimate, percentile_interval
from secondlook.evaluation.evaluation import Evaluation
from secondlook.evaluation.joined import joined
from secondlook.evaluation.parts import Groups, Part, parts_of
from secondlook.evaluation.resampled import SortedImages, resampling_counts
from secondlook.metrics import Measure, Ranking, measures, rank
from secondlook.metrics.ranking import checked
from secondlook.predictions.predictions import By, Predictions

METRICS = ("auroc", "aupr", "aurc", "eaurc", "augrc", "risk_at:0.8")
PROBABILITIES = ("msr", "mean", "view", "mean-logit", "bootstrap-lower", "nn-ensemble")
"""The named confidences that can be read as a probability of being right, which calibration metrics need."""


@dataclass(frozen=True)
class _Setting:
    """What stays the same over all parts."""

    measures: tuple[Measure, ...]
    no_probabilities: frozenset[str]
    """The methods whose values must not be read as probabilities, even where they lie in [0, 1]."""
    baseline: str
    level: float
    resamples: int
    seed: int


def evaluate(
    preds: Predictions,
    methods: Iterable[str] | Mapping[str, ArrayLike] | None = None,
    metrics: Iterable[str] = METRICS,
    *,
    by: By = "x",
    k: int = 1,
    groups: Groups = None,
    ood: Predictions | None = None,
    baseline: str | None = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> Evaluation:
    """Return methods x metrics with intervals, and the paired difference of each method to the baseline.

    Parameters
    ----------
    preds
        Labelled predictions.
    methods
        Names of confidences (`msr`, `mean` and, with two views or more, `bootstrap` unless said), or confidences of
        one's own by name, float [N] (with `ood`: first those of `preds`, then those of `ood`).
    metrics
        Names such as 'auroc' or 'risk_at:0.8'.
    groups
        "class" for each true class apart, or one label per image, or several such lists by name.
    ood
        Predictions on images that belong to no class. Whatever is predicted for them counts as an error; the numbers
        without them, and how well they are told apart, are reported as parts of their own.
    baseline
        The method to compare with, `msr` or else the first.
    level, resamples, seed
        Of the intervals: percentiles over resamplings of the images, the same ones for all methods.
    """
    if not preds.has_labels:
        raise MetricError("an evaluation needs labels, and these predictions have none; give labels=.")
    if not 0 < level < 1 or resamples < 1:
        raise MetricError(f"level is {level} and resamples {resamples}, expected a share in (0, 1) and at least 1.")
    confidences = _confidences(preds, methods, by, k, ood)
    compared_with = _baseline(baseline, confidences)
    named = () if isinstance(methods, Mapping) else confidences
    scores = frozenset(name for name in named if name.partition(":")[0] not in PROBABILITIES)
    setting = _Setting(measures(metrics), scores, compared_with, level, resamples, seed)
    parts = parts_of(preds, preds.correct(by=by, k=k), groups, 0 if ood is None else ood.n_images)
    rows = tuple(row for part in parts for row in _estimates(part, confidences, setting))
    return Evaluation(rows, compared_with, by, k, preds.n_views, level, resamples, seed)


def _confidences(
    preds: Predictions,
    methods: Iterable[str] | Mapping[str, ArrayLike] | None,
    by: By,
    k: int,
    ood: Predictions | None,
) -> dict[str, Float64Array]:
    """Return the confidence by each method. float64 [N] each, the images of `ood` last"""
    everything = preds if ood is None else joined(preds, ood)
    if isinstance(methods, Mapping):
        found = {name: np.asarray(values, dtype=np.float64) for name, values in methods.items()}
    else:
        default = ("msr", "mean", "bootstrap") if preds.n_views * max(1, len(preds.members)) > 1 else ("msr",)
        names = dict.fromkeys(default if methods is None else methods)
        found = {name: confidence_of(everything, name, by=by, k=k) for name in names}
    if not found:
        raise MetricError("there is no method to evaluate; name at least one, such as 'mean'.")
    for name, values in found.items():
        if len(values) != everything.n_images:
            raise MetricError(f"method {name!r} has {len(values)} values for {everything.n_images} images.")
        checked(np.ones(len(values), dtype=np.bool_), values)
    return found


def _baseline(asked: str | None, confidences: Mapping[str, Float64Array]) -> str:
    if asked is None:
        return "msr" if "msr" in confidences else next(iter(confidences))
    if asked not in confidences:
        raise MetricError(f"baseline {asked!r} is not among the methods {', '.join(confidences)}; add it to methods=.")
    return asked


def _estimates(part: Part, confidences: Mapping[str, Float64Array], setting: _Setting) -> Iterator[Estimate]:
    chosen = {name: values[part.images] for name, values in confidences.items()}
    rankings = {name: rank(part.correct, values) for name, values in chosen.items()}
    drawn = _resampled_values(part.correct, chosen, setting)
    for name, ranking in rankings.items():
        for column, one in enumerate(setting.measures):
            value, reason = _value_or_reason(one, name, ranking, setting)
            reference = _value_or_reason(one, setting.baseline, rankings[setting.baseline], setting)[0]
            difference = None
            if name != setting.baseline and value is not None and reference is not None:
                difference = value - reference
            values, reference_values = drawn[name][:, column], drawn[setting.baseline][:, column]
            yield Estimate(
                part=part.name,
                method=name,
                metric=one.text,
                better=one.metric.better,
                value=value,
                interval=None if value is None else percentile_interval(values, setting.level),
                difference=difference,
                difference_interval=(
                    None if difference is None else percentile_interval(values - reference_values, setting.level)
                ),
                reason=reason,
                images=ranking.n_images,
                errors=ranking.n_errors,
            )


def _resampled_values(
    correct: BoolArray, confidences: Mapping[str, Float64Array], setting: _Setting
) -> dict[str, Float64Array]:
    """Return each method's metrics on each resampling, NaN where one has no meaning. float64 [R, M] each"""
    images = {name: SortedImages(correct, values) for name, values in confidences.items()}
    drawn = {name: np.full((setting.resamples, len(setting.measures)), np.nan) for name in images}
    counts_of_all = resampling_counts(len(correct), setting.resamples, setting.seed)
    for row, counts in enumerate(islice(counts_of_all, setting.resamples)):
        for name, sorted_images in images.items():
            ranking = sorted_images.ranking(counts)
            for column, one in enumerate(setting.measures):
                value = _value_or_reason(one, name, ranking, setting)[0]
                drawn[name][row, column] = np.nan if value is None else value
    return drawn


def _value_or_reason(
    one: Measure, name: str, ranking: Ranking, setting: _Setting
) -> tuple[float, None] | tuple[None, str]:
    if one.metric.reads == "values" and name in setting.no_probabilities:
        return None, f"{one.text} has no meaning for {name!r}, which is a score and not a probability of being right."
    try:
        return one.of(ranking), None
    except MetricError as error:
        return None, str(error)
