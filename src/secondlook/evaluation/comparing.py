"""`evaluate`: how good each confidence is, how uncertain that is, and whether one is better on the same images."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError
from secondlook.estimators import confidence as confidence_of
from secondlook.estimators import find_method
from secondlook.evaluation.evaluation import Evaluation
from secondlook.evaluation.paired import INTERVALS, RESAMPLINGS, Setting, paired_estimates
from secondlook.evaluation.parts import Groups, Part, parts_of
from secondlook.metrics import check_confidence, parse_metrics
from secondlook.predictions import PredictFrom, Predictions, concatenate
from secondlook.progress import progress_bar

DEFAULT_METRICS = ("auroc", "aupr", "aurc", "eaurc", "augrc", "risk_at:0.8")


def evaluate(
    preds: Predictions,
    methods: Iterable[str] | Mapping[str, ArrayLike] | None = None,
    metrics: Iterable[str] = DEFAULT_METRICS,
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    groups: Groups = None,
    ood: Predictions | None = None,
    baseline: str | None = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> Evaluation:
    """Return methods x metrics with intervals, and the paired difference of each method to the baseline.

    Parameters
    ----------
    preds
        Labeled predictions.
    methods
        One or several names of confidences (`msr`, `mean` and, with two views or more, `bootstrap` unless said), or
        confidences of one's own by name, float [N] (with `ood`: first those of `preds`, then those of `ood`).
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
    progress
        Whether to draw progress bars, where it takes long and standard error is a terminal.
    """
    if not preds.has_labels:
        raise MetricError("an evaluation needs labels, and these predictions have none; give labels=.")
    confidences = _confidences(preds, methods, predict_from, top_k, ood, progress=progress)
    compared_with = _baseline(baseline, confidences)
    named = () if isinstance(methods, Mapping) else confidences
    scores = frozenset(name for name in named if not find_method(name)[0].is_probability)
    setting = Setting(parse_metrics(metrics), scores, compared_with, level, resamples, seed)
    parts = parts_of(
        preds, preds.correct(predict_from=predict_from, top_k=top_k), groups, 0 if ood is None else ood.n_images
    )
    with progress_bar(INTERVALS, len(parts) * resamples, RESAMPLINGS, enabled=progress) as advance:
        rows = tuple(
            row for part in parts for row in paired_estimates(part.name, _entries(part, confidences), setting, advance)
        )
    return Evaluation(rows, compared_with, predict_from, top_k, preds.n_views, level, resamples, seed)


def _confidences(
    preds: Predictions,
    methods: Iterable[str] | Mapping[str, ArrayLike] | None,
    predict_from: PredictFrom,
    top_k: int,
    ood: Predictions | None,
    *,
    progress: bool,
) -> dict[str, Float64Array]:
    """Return the confidence by each method. float64 [N] each, the images of `ood` last"""
    everything = preds if ood is None else concatenate(preds, ood)
    if isinstance(methods, Mapping):
        found = {name: np.asarray(values, dtype=np.float64) for name, values in methods.items()}
    else:
        default = ("msr", "mean", "bootstrap") if preds.n_outputs > 1 else ("msr",)
        asked = default if methods is None else [methods] if isinstance(methods, str) else methods
        names = dict.fromkeys(asked)
        with everything.read_with_bar("confidences", len(names) + 1, enabled=progress) as seen:
            found = {name: confidence_of(seen, name, predict_from=predict_from, top_k=top_k) for name in names}
    if not found:
        raise MetricError("there is no method to evaluate; name at least one, such as 'mean'.")
    for name, values in found.items():
        if len(values) != everything.n_images:
            raise MetricError(f"method {name!r} has {len(values)} values for {everything.n_images} images.")
        check_confidence(np.ones(len(values), dtype=np.bool_), values)
    return found


def _baseline(asked: str | None, confidences: Mapping[str, Float64Array]) -> str:
    if asked is None:
        return "msr" if "msr" in confidences else next(iter(confidences))
    if asked not in confidences:
        raise MetricError(f"baseline {asked!r} is not among the methods {', '.join(confidences)}; add it to methods=.")
    return asked


def _entries(part: Part, confidences: Mapping[str, Float64Array]) -> dict[str, tuple[BoolArray, Float64Array]]:
    return {name: (part.correct, values[part.images]) for name, values in confidences.items()}
