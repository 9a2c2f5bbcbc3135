"""`compare`: methods of several classifiers on the images they share, each paired with the first one."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from secondlook.errors import MetricError
from secondlook.estimators import confidence, find_method
from secondlook.evaluation.estimates import (
    Estimate,
    EstimateOptions,
    EstimateTable,
    describe_prediction,
    estimate_blocks,
    estimate_metrics,
)
from secondlook.evaluation.groups import ALL_IMAGES
from secondlook.metrics import NamedConfidences, parse_metrics
from secondlook.predictions import PredictFrom, Predictions
from secondlook.progress import progress_bar


class HasPredictions(Protocol):
    """Anything with predictions, such as a run."""

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

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as plain values for JSON."""
        names = ("baseline", "level", "n_images", "predict_from", "top_k")
        return {**{name: getattr(self, name) for name in names}, "rows": [one.to_dict() for one in self.rows]}

    def _blocks(self) -> list[object]:
        title = f"{self.n_images:,} images"
        if self.predict_from is not None and self.top_k is not None:
            title += f", {describe_prediction(self.predict_from, self.top_k)}"
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

    Parameters
    ----------
    predictions
        Labeled predictions, or objects with `.predictions` such as runs, by name.
    methods
        Names of methods. The first method of the first predictions is the baseline of all differences.
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
    paired = pair_predictions({name: _get_predictions(name, value) for name, value in predictions.items()})
    methods = [methods] if isinstance(methods, str) else list(methods)
    entries, scores = {}, []
    for name, shared in paired.items():
        with shared.show_progress(name, len(methods) + 1, enabled=progress) as preds:
            correct = preds.correct(predict_from=predict_from, top_k=top_k)
            for method in methods:
                values = confidence(preds, method, predict_from=predict_from, top_k=top_k)
                entries[f"{name} {method}"] = correct, values
                if not find_method(method).is_probability:
                    scores.append(f"{name} {method}")
    result = compare_confidences(
        entries, metrics, scores=scores, level=level, resamples=resamples, seed=seed, progress=progress
    )
    return replace(result, predict_from=predict_from, top_k=top_k)


def compare_confidences(
    entries: NamedConfidences,
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


def _get_predictions(name: str, value: Predictions | HasPredictions) -> Predictions:
    preds = value if isinstance(value, Predictions) else getattr(value, "predictions", None)
    if not isinstance(preds, Predictions):
        raise MetricError(
            f"{name!r} is a {type(value).__name__}; expected Predictions, or an object with .predictions such as a run."
        )
    if not preds.has_labels:
        raise MetricError(f"the predictions {name!r} have no labels; pass labels= to them.")
    return preds
