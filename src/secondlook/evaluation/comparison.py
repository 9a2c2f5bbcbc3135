"""`compare`: methods of several classifiers on their shared images, or two ways to predict the class."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self, get_args

import numpy as np
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import ANY, MetricError, Repair
from secondlook.estimators import FittedMethods, find_method, needs_fitting, tuning_positions
from secondlook.evaluation.estimates import (
    ALL_IMAGES,
    Estimate,
    EstimateTable,
    check_resampling,
    estimate_blocks,
    estimate_metrics,
)
from secondlook.predictions import DEFAULT_EXECUTION, Execution, PredictFrom, Predictions
from secondlook.tables import describe_prediction, format_image_share, format_value

METHOD = "mean"
"""The confidence for comparing the AURC: that of the paper, which is defined for every set of views."""
_SAME_IMAGES = "compare predictions for the same images"


@dataclass(frozen=True, repr=False)
class Comparison(EstimateTable):
    """Estimates of several classifiers and methods, with paired differences to the first; `print` shows a table."""

    rows: tuple[Estimate, ...]
    baseline: str
    level: float
    n_images: int
    predict_from: PredictFrom | None = None
    """None for plain confidences."""
    top_k: int | None = None
    tuning_images: int = 0
    """Number of shared images that were set apart; `n_images` does not include them."""

    @classmethod
    def from_confidences(
        cls,
        entries: Mapping[str, tuple[BoolArray, Float64Array]],
        metrics: Iterable[str],
        *,
        scores: Collection[str] = (),
        level: float = 0.95,
        resamples: int = 500,
        seed: int = 0,
        execution: Execution = DEFAULT_EXECUTION,
    ) -> Self:
        """Compare confidences of the same images, each with its own correctness; the first is the baseline.

        `entries` are (bool [N], float64 [N]) by name. `scores` lists the names of entries that are not probabilities;
        calibration metrics are undefined for them.
        """
        if not entries:
            raise MetricError("there is nothing to compare; pass at least one method, such as 'mean'.")
        sizes = {name: len(correct) for name, (correct, _) in entries.items()}
        if len(set(sizes.values())) > 1:
            raise MetricError(f"the entries differ in their number of images: {sizes}", repair=_SAME_IMAGES)
        baseline = next(iter(entries))
        rows = estimate_metrics(
            {ALL_IMAGES: entries},
            metrics,
            baseline=baseline,
            scores=scores,
            level=level,
            resamples=resamples,
            seed=seed,
            progress=execution.progress,
        )
        return cls(rows, baseline, level, sizes[baseline])

    def _blocks(self) -> list[object]:
        title = f"{self.n_images:,} images"
        if self.predict_from is not None and self.top_k is not None:
            title += f", {describe_prediction(self.predict_from, self.top_k)}"
        if self.tuning_images:
            title += f"\n{self.tuning_images:,} images set apart for tuning, {self.n_images:,} judged"
        return [title, *estimate_blocks(self.rows, self.baseline, self.level)]


def compare(
    predictions: Mapping[str, Any],
    methods: Iterable[str] = ("msr", "mean"),
    metrics: Iterable[str] = ("accuracy", "auroc", "aurc", "risk_at:0.8"),
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    execution: Execution = DEFAULT_EXECUTION,
) -> Comparison:
    """Compare methods of several classifiers on their shared images, paired by id.

    Images that any run set apart are not judged. Methods that need fitting are fitted on them, or otherwise on a
    quarter of the images, at most 1,000.

    Parameters
    ----------
    predictions
        Labeled predictions, or objects with `.predictions`, like runs, by name.
    methods
        Names of methods, optionally with options, like 'max-logit-pnorm?on=views'. The first method of the first
        predictions is the baseline of all differences.
    metrics, predict_from, top_k, level, resamples, seed
        As in `evaluate`.
    execution
        Whether to show progress bars.
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
        fitted = FittedMethods.fit(shared, methods, tuning=tuning, predict_from=predict_from, top_k=top_k)
        with fitted.select_judged(shared).show_progress(name, len(methods) + 1, enabled=execution.progress) as preds:
            correct = preds.correct(predict_from=predict_from, top_k=top_k)
            for method in methods:
                entries[f"{name} {method}"] = correct, fitted.compute(preds, method)
                if not find_method(method).is_probability:
                    scores.append(f"{name} {method}")
    result = Comparison.from_confidences(
        entries, metrics, scores=scores, level=level, resamples=resamples, seed=seed, execution=execution
    )
    return replace(result, predict_from=predict_from, top_k=top_k, tuning_images=len(tuning))


def pair_predictions(predictions: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Return predictions for the shared images, in the order of the first predictions; labels must agree."""
    if not predictions:
        raise MetricError("there is nothing to compare; pass at least one set of predictions.")
    places = {name: {id_: place for place, id_ in enumerate(preds.ids)} for name, preds in predictions.items()}
    first = next(iter(places))
    shared = [id_ for id_ in places[first] if all(id_ in own for own in places.values())]
    if not shared:
        raise MetricError(f"there is no image in all of {', '.join(map(repr, predictions))}", repair=_SAME_IMAGES)
    paired = {}
    for name, preds in predictions.items():
        paired[name] = preds.select(images=np.array([places[name][id_] for id_ in shared]))
        # Different images may have the same ids, for example positions in two archives.
        n_different = int(np.sum(paired[name].labels != paired[first].labels))
        if n_different:
            counts = f"{n_different:,} of {len(shared):,} shared ids"
            raise MetricError(f"{first!r} and {name!r} have different labels for {counts}", repair=_SAME_IMAGES)
    return paired


def _find_tuning(shared: Predictions, given: Iterable[Any]) -> IntArray:
    """Return the positions, among the shared images, of those set apart by any run. int64 [n]"""
    apart = {one.predictions.ids[place] for one in given for place in getattr(one, "tuning_positions", ())}
    positions = [position for position, id_ in enumerate(shared.ids) if id_ in apart]
    if len(positions) == shared.n_images:
        fault = f"all {shared.n_images:,} images shared by the runs were set apart for tuning"
        raise MetricError(fault, repair="compare runs that share other images")
    return np.array(positions, dtype=np.int64)


def _get_predictions(name: str, value: Any) -> Predictions:
    preds = value if isinstance(value, Predictions) else getattr(value, "predictions", None)
    if not isinstance(preds, Predictions):
        raise MetricError(f"{name!r} is a {type(value).__name__}; expected Predictions or a run.")
    if not preds.has_labels:
        raise MetricError(f"the predictions {name!r} have no labels", repair=Repair("pass {labels}", labels=ANY))
    return preds


@dataclass(frozen=True)
class PredictFromComparison:
    """Accuracy and AURC of the class predicted from the image itself, and from the mean over views."""

    rows: Annotated[tuple[Estimate, ...], Field(min_length=4, max_length=4)]
    """'accuracy' and 'aurc' of 'image', then of 'views' with the paired differences to 'image'."""
    method: str = METHOD
    """The confidence for the AURC."""

    def __post_init__(self) -> None:
        expected = [(one, metric) for one in get_args(PredictFrom) for metric in ("accuracy", "aurc")]
        if [(one.method, one.metric) for one in self.rows] != expected:
            raise ValueError(f"rows other than {expected}")

    @property
    def recommended(self) -> PredictFrom | None:
        """Recommendation: 'image' or 'views'; None without a clear difference, or if it cannot be judged.

        Views are only recommended if the accuracy is measurably higher, and the AURC not measurably worse.
        """
        accuracy, aurc = (one.verdict for one in self.rows[2:])
        if "worse" in (accuracy, aurc):
            return "image"
        return "views" if accuracy == "better" else None

    def describe(self, predict_from: PredictFrom, top_k: int = 1) -> str | None:
        """Return a sentence that recommends the image or the views; None if there are too few errors to judge."""
        _, _, accuracy, aurc = self.rows
        if accuracy.verdict is None or aurc.verdict is None:
            return None
        ends = accuracy.difference_interval
        assert ends is not None, "there is a verdict"
        image, views = (format_image_share(self.rows[index].value or 0.0, accuracy.images) for index in (0, 2))
        points, low, high = (
            format_image_share(one, accuracy.images, sign="+", unit="")
            for one in (accuracy.difference or 0.0, ends.low, ends.high)
        )
        name = "accuracy" if top_k == 1 else f"top-{top_k} accuracy"
        before, after = (format_value(self.rows[index].value or 0.0) for index in (1, 3))
        accuracies = f"{name} {views} instead of {image} ({points} [{low}, {high}] points)"
        numbers = f"{accuracies}, AURC ({self.method}) {after} instead of {before}"
        if self.recommended is None:
            return f"Predicting from the views makes no clear difference: {numbers}."
        advice = "Keep predicting" if self.recommended == predict_from else "Predict"
        link = "" if self.recommended == "views" else "from the views, "
        return f"{advice} from the {self.recommended}: {link}{numbers}."

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as plain values for JSON."""
        return {"method": self.method, "rows": [one.to_dict() for one in self.rows]}
