"""`compare`: methods of several classifiers on the images they share, each paired with the first one."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import MetricError
from secondlook.estimators import find_method, fit_methods, needs_fitting, tuning_positions
from secondlook.evaluation.estimates import (
    Estimate,
    EstimateOptions,
    EstimateTable,
    check_resampling,
    describe_prediction,
    estimate_blocks,
    estimate_metrics,
)
from secondlook.evaluation.groups import ALL_IMAGES
from secondlook.metrics import parse_metrics
from secondlook.predictions import PredictFrom, Predictions
from secondlook.progress import progress_bar


class HasPredictions(Protocol):
    """Anything with predictions, such as a run; `tuning_positions` may name images that it has set apart."""

    @property
    def predictions(self) -> Predictions:
        """Labeled predictions."""


@dataclass(frozen=True)
class Comparison(EstimateTable):
    """Estimates of several classifiers and methods, paired with the first; `print` shows a table."""

    rows: tuple[Estimate, ...]
    baseline: str
    level: float
    n_images: int
    predict_from: PredictFrom | None = None
    """None where plain confidences were compared."""
    top_k: int | None = None
    tuning_images: int = 0
    """Number of images, of those that all have, that were set apart; `n_images` does not include them."""

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as plain values for JSON."""
        names = ("baseline", "level", "n_images", "predict_from", "top_k", "tuning_images")
        return {**{name: getattr(self, name) for name in names}, "rows": [one.to_dict() for one in self.rows]}

    def _blocks(self) -> list[object]:
        title = f"{self.n_images:,} images"
        if self.predict_from is not None and self.top_k is not None:
            title += f", {describe_prediction(self.predict_from, self.top_k)}"
        if self.tuning_images:
            title += f"\n{self.tuning_images:,} images set apart for tuning, {self.n_images:,} judged"
        return [title, *estimate_blocks(self.rows, self.baseline, self.level)]


def compare(
    predictions: Mapping[str, Predictions | HasPredictions],
    methods: Iterable[str] = ("msr", "mean"),
    metrics: Iterable[str] = ("accuracy", "auroc", "aurc", "risk_at:0.8"),
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Compare methods of several classifiers on the images that all of them have, paired by id.

    Images that one of the runs set apart are not judged. Methods that have to be fitted are fitted on them; if there
    are none, on a quarter of the images, at most 1,000.

    Parameters
    ----------
    predictions
        Labeled predictions, or objects with `.predictions` such as runs, by name.
    methods
        Names of methods, maybe with options such as 'max-logit-pnorm?on=views'. The first method of the first
        predictions is the baseline of all differences.
    metrics
        Names such as 'auroc' or 'risk_at:0.8'.
    predict_from
        Whether the class is predicted from the 'image' itself or from the mean over 'views'.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    level
        Confidence level of the intervals.
    resamples
        Number of resamplings of the images that the intervals are percentiles of; all methods share them.
    seed
        Random seed of the resamplings.
    progress
        Whether to show progress bars if standard error is a terminal.
    """
    check_resampling(level, resamples, seed)
    paired = pair_predictions({name: _get_predictions(name, value) for name, value in predictions.items()})
    methods = [methods] if isinstance(methods, str) else list(methods)
    first = next(iter(paired.values()))
    tuning = _find_tuning(first, predictions.values())
    if not len(tuning) and any(map(needs_fitting, methods)):
        tuning = tuning_positions(first.n_images)
    entries, scores = {}, []
    for name, shared in paired.items():
        fitted = fit_methods(shared, methods, tuning=tuning, predict_from=predict_from, top_k=top_k)
        with fitted.select_judged(shared).show_progress(name, len(methods) + 1, enabled=progress) as preds:
            correct = preds.correct(predict_from=predict_from, top_k=top_k)
            for method in methods:
                entries[f"{name} {method}"] = correct, fitted.compute(preds, method)
                if not find_method(method).is_probability:
                    scores.append(f"{name} {method}")
    result = compare_confidences(
        entries, metrics, scores=scores, level=level, resamples=resamples, seed=seed, progress=progress
    )
    return replace(result, predict_from=predict_from, top_k=top_k, tuning_images=len(tuning))


def compare_confidences(
    entries: Mapping[str, tuple[BoolArray, Float64Array]],
    metrics: Iterable[str],
    *,
    scores: Collection[str] = (),
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Compare confidences of the same images, each with its own correctness; the first is the baseline.

    `entries` are (bool [N], float64 [N]) by name. `scores` names the entries that are not probabilities, for which
    calibration metrics are undefined.
    """
    if not entries:
        raise MetricError("there is nothing to compare; pass at least one method, such as 'mean'.")
    sizes = {name: len(correct) for name, (correct, _) in entries.items()}
    if len(set(sizes.values())) > 1:
        raise MetricError(
            f"the entries differ in their number of images: {sizes}; compare confidences of the same images."
        )
    baseline = next(iter(entries))
    options = EstimateOptions(parse_metrics(metrics), frozenset(scores), baseline, level, resamples, seed)
    with progress_bar("intervals", resamples, "resamplings", enabled=progress) as advance:
        rows = tuple(estimate_metrics(ALL_IMAGES, entries, options, advance))
    return Comparison(rows, baseline, level, sizes[baseline])


def pair_predictions(predictions: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Return predictions for the images that all have, in the order of the first; their labels must agree."""
    if not predictions:
        raise MetricError("there is nothing to compare; pass at least one set of predictions.")
    ids = [preds.ids for preds in predictions.values()]
    in_all = set.intersection(*map(set, ids))
    shared = [image for image in ids[0] if image in in_all]
    if not shared:
        names = ", ".join(map(repr, predictions))
        raise MetricError(f"no image is in all of {names}; compare predictions for the same images.")
    positions = [{image: position for position, image in enumerate(own)} for own in ids]
    paired = {
        name: preds.select(images=np.array([own[image] for image in shared]))
        for (name, preds), own in zip(predictions.items(), positions, strict=True)
    }
    _check_same_labels(paired)
    return paired


def _check_same_labels(paired: Mapping[str, Predictions]) -> None:
    """Reject different images with the same ids, such as positions in two archives."""
    first = next(iter(paired))
    for name, preds in paired.items():
        n_different = int(np.sum(preds.labels != paired[first].labels))
        if n_different:
            raise MetricError(
                f"{first!r} and {name!r} have different labels for {n_different:,} of {preds.n_images:,} shared ids; "
                "compare predictions for the same images."
            )


def _find_tuning(shared: Predictions, given: Iterable[Predictions | HasPredictions]) -> IntArray:
    """Return the positions, among the shared images, of those that some run has set apart. int64 [n]"""
    apart: set[str] = set()
    for one in given:
        if not isinstance(one, Predictions):
            apart.update(one.predictions.ids[position] for position in getattr(one, "tuning_positions", ()))
    positions = [position for position, id_ in enumerate(shared.ids) if id_ in apart]
    if len(positions) == shared.n_images:
        raise MetricError(
            f"all {shared.n_images:,} images that the runs share were set apart for tuning, so that none can be "
            "judged; compare runs that share other images."
        )
    return np.array(positions, dtype=np.int64)


def _get_predictions(name: str, value: Predictions | HasPredictions) -> Predictions:
    preds = value if isinstance(value, Predictions) else getattr(value, "predictions", None)
    if not isinstance(preds, Predictions):
        raise MetricError(
            f"{name!r} is a {type(value).__name__}; expected Predictions, or an object with .predictions such as a run."
        )
    if not preds.has_labels:
        raise MetricError(f"the predictions {name!r} have no labels; pass labels= to them.")
    return preds
