"""`evaluate`: how good each confidence is, how uncertain that is, and whether it beats the baseline."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, TypeAdapter, ValidationError

from secondlook.arrays import BoolArray, Float64Array
from secondlook.errors import MetricError, PredictionsError
from secondlook.estimators import FittedMethods, find_method, fit_methods, plurality_confidence
from secondlook.evaluation.estimates import (
    Estimate,
    EstimateOptions,
    EstimateTable,
    check_resampling,
    describe_prediction,
    estimate_blocks,
    estimate_metrics,
)
from secondlook.evaluation.groups import (
    ALL_IMAGES,
    IN_DISTRIBUTION,
    OOD_DETECTION,
    Group,
    Groups,
    make_groups,
    select_groups,
)
from secondlook.evaluation.image_or_views import PredictFromComparison, compare_image_and_views
from secondlook.evaluation.image_statistics import ImageStatistics, compute_statistics, list_rankings
from secondlook.files import Count, PositiveCount, describe_invalid
from secondlook.metrics import parse_metrics, rank
from secondlook.predictions import PredictFrom, Predictions, concatenate
from secondlook.progress import progress_bar
from secondlook.registry import did_you_mean
from secondlook.tables import format_image_share

DEFAULT_METRICS = ("auroc", "aupr", "aurc", "eaurc", "augrc", "risk_at:0.8", "coverage_at:0.01")

Share = Annotated[float, Field(ge=0, le=1)]

LINE_WIDTH = 80

_SETTINGS = ("baseline", "predict_from", "top_k", "views", "level", "resamples", "seed")
_ACCURACIES = ("accuracy_from_image", "accuracy_from_views")
_OTHERS = ("tuning_images", "notes", "recommendation")


@dataclass(frozen=True)
class Evaluation(EstimateTable):
    """The result of `evaluate`; `print` shows a table for each group of images."""

    rows: Annotated[tuple[Estimate, ...], Field(min_length=1)]
    baseline: str
    predict_from: PredictFrom
    top_k: PositiveCount
    views: PositiveCount
    level: Annotated[float, Field(gt=0, lt=1)]
    resamples: PositiveCount
    seed: Annotated[int, Field(ge=0)]
    accuracy_from_image: Share | None = None
    """Fraction of the labeled images whose class is predicted correctly from the image itself; None if not recorded."""
    accuracy_from_views: Share | None = None
    """The same for the class predicted from the mean over views."""
    tuning_images: Count = 0
    """Number of images that were set apart to choose or fit something; all numbers are about the others."""
    image_or_views: PredictFromComparison | None = None
    """Both ways to predict the class compared; None with one view, or if not recorded."""
    notes: tuple[str, ...] = ()
    """Why a default method is left out."""

    @property
    def recommendation(self) -> str | None:
        """One sentence about what to predict the class from; None with one view, or too few errors to judge."""
        return None if self.image_or_views is None else self.image_or_views.describe(self.predict_from, self.top_k)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of images; the first is all images."""
        return tuple(dict.fromkeys(one.group for one in self.rows))

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(dict.fromkeys(one.method for one in self.rows))

    def __getitem__(self, key: tuple[str, str] | tuple[str, str, str]) -> Estimate:
        """Return the estimate of (method, metric) on all images, or of (method, metric, group)."""
        method, metric = key[:2]
        group = key[2] if len(key) == 3 else ALL_IMAGES
        for one in self.rows:
            if (one.method, one.metric, one.group) == (method, metric, group):
                return one
        name = f"{method}, {metric}, {group}"
        known = [f"{one.method}, {one.metric}, {one.group}" for one in self.rows]
        raise MetricError(f"the evaluation has no estimate for {name!r}.{did_you_mean(name, known)}")

    def to_dict(self) -> dict[str, object]:
        """Return the evaluation as plain values for JSON."""
        settings = {name: getattr(self, name) for name in (*_SETTINGS, *_ACCURACIES, *_OTHERS)}
        compared = None if self.image_or_views is None else self.image_or_views.to_dict()
        return {**settings, "image_or_views": compared, "rows": [one.to_dict() for one in self.rows]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `to_dict` was called on; other keys are ignored."""
        try:
            return _evaluation_adapter().validate_python(values)
        except ValidationError as error:
            raise MetricError(
                f"invalid evaluation, {describe_invalid(error)}; expected what to_dict() returns."
            ) from None

    def _blocks(self) -> list[object]:
        first, *others = (self._group_blocks(group) for group in self.groups)
        ends: list[object] = [
            textwrap.fill(text, LINE_WIDTH, break_on_hyphens=False)
            for text in (*self.notes, self.recommendation)
            if text
        ]
        return [*first, *(block for group in [*others, ends] if group for block in ("", *group))]

    def _group_blocks(self, group: str) -> list[object]:
        rows = [one for one in self.rows if one.group == group]
        images, errors = rows[0].images, rows[0].errors
        kind = "out of distribution" if group == OOD_DETECTION else "wrong"
        title = f"{group}: {images:,} images, {errors:,} of them {kind} ({format_image_share(errors / images, images)})"
        header = [title, *self._describe_settings()] if group == self.groups[0] else [title]
        return ["\n".join(header), *estimate_blocks(rows, self.baseline, self.level, kind)]

    def _describe_settings(self) -> Iterator[str]:
        if self.tuning_images:
            yield f"{self.tuning_images:,} images set apart for tuning, {self._n_labeled:,} judged"
        if self.accuracy_from_image is not None and self.accuracy_from_views is not None:
            accuracies = self.accuracy_from_image, self.accuracy_from_views
            image, views = (format_image_share(accuracy, self._n_labeled) for accuracy in accuracies)
            name = "accuracy" if self.top_k == 1 else f"top-{self.top_k} accuracy"
            yield f"{name}: {image} from the image, {views} from the views"
        yield (
            f"{self.views} views, {describe_prediction(self.predict_from, self.top_k)}; "
            f"{100 * self.level:g} % intervals ({self.resamples:,} resamplings)"
        )

    @property
    def _n_labeled(self) -> int:
        """Number of images that are not out of distribution."""
        group = IN_DISTRIBUTION if IN_DISTRIBUTION in self.groups else self.groups[0]
        return next(one.images for one in self.rows if one.group == group)


@cache
def _evaluation_adapter() -> TypeAdapter[Evaluation]:
    return TypeAdapter(Evaluation)


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
    tuning: object = None,
    progress: bool = True,
) -> Evaluation:
    """Evaluate methods by metrics, with intervals and the paired difference of each method to a baseline.

    Methods that have to be fitted are fitted on images set apart; only the other images are judged.

    Parameters
    ----------
    preds
        Labeled predictions.
    methods
        Names of methods, maybe with options such as 'max-logit-pnorm?on=views'; or your own confidences by name, float
        [N] each (with `ood`, the images of `preds` first). By default 'msr', with at least two views also 'mean',
        'bootstrap' and 'blend', and 'learned' if it can be fitted on images that are set apart already.
    metrics
        Names such as 'auroc' or 'risk_at:0.8'.
    predict_from
        Whether the class is predicted from the 'image' itself or from the mean over 'views'.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    groups
        "class" to also evaluate each class separately; or one label per image, or several such lists by name.
    ood
        Predictions for out-of-distribution images. All of them count as errors; the groups 'in distribution' and 'OOD
        detection' report the metrics without them, and how well the confidence separates them from the others.
    baseline
        Method to compare with, by default 'msr' or else the first.
    level
        Confidence level of the intervals.
    resamples
        Number of resamplings of the images that the intervals are percentiles of; all methods share them.
    seed
        Random seed of the resamplings.
    tuning
        Positions or a mask bool [N] of images that were used to choose or fit something, and on which methods are
        fitted; they are not judged. By default, if a method has to be fitted, a quarter of the images, at most 1,000.
    progress
        Whether to show progress bars if standard error is a terminal.
    """
    if not preds.has_labels:
        raise MetricError("evaluate needs labels, and these predictions have none; pass labels= to them.")
    check_resampling(level, resamples, seed)
    own = methods if isinstance(methods, Mapping) else None
    fitted = fit_methods(
        preds, () if own is not None else methods, tuning=tuning, predict_from=predict_from, top_k=top_k
    )
    judged = fitted.select_judged(preds)
    if ood is not None:
        _check_same_classifier(judged, ood)
    statistics = [
        compute_statistics(one, fitted, is_judged=one is judged, progress=progress)
        for one in (judged, ood)
        if one is not None
    ]
    if own is not None:
        values = _check_own(own, preds.n_images + (0 if ood is None else ood.n_images))
        kept = fitted.judged, np.arange(preds.n_images, len(next(iter(values.values()))))
        statistics = [
            replace(one, confidences={name: confidence[places] for name, confidence in values.items()})
            for one, places in zip(statistics, kept, strict=False)
        ]
    return evaluate_statistics(
        statistics[0],
        fitted,
        metrics,
        groups=select_groups(groups, preds.n_images, fitted.judged),
        class_names=preds.class_names,
        ood=None if ood is None else statistics[1],
        baseline=baseline,
        level=level,
        resamples=resamples,
        seed=seed,
        progress=progress,
    )


def evaluate_statistics(
    statistics: ImageStatistics,
    fitted: FittedMethods,
    metrics: Iterable[str] = DEFAULT_METRICS,
    *,
    groups: Groups = None,
    class_names: tuple[str, ...] | None = None,
    ood: ImageStatistics | None = None,
    baseline: str | None = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> Evaluation:
    """Evaluate methods by what is known about each image; `evaluate` and its result are the same for all images.

    Parameters
    ----------
    statistics
        Statistics of the labeled images that are judged.
    fitted
        The methods, and how many images they were fitted on. Without methods, all confidences are evaluated.
    metrics, groups, baseline, level, resamples, seed, progress
        As in `evaluate`; groups are those of the judged images.
    class_names
        Names of the classes, for the names of groups.
    ood
        Statistics of out-of-distribution images.
    """
    everything = statistics if ood is None else ImageStatistics.join([statistics, ood])
    confidences = _list_confidences(everything, fitted)
    options = EstimateOptions(
        metrics=parse_metrics(metrics),
        scores=frozenset(name for name in fitted.options if not find_method(name).is_probability),
        baseline=_find_baseline(baseline, confidences),
        level=level,
        resamples=resamples,
        seed=seed,
    )
    assert statistics.labels is not None, "judged images are labeled"
    correct = statistics.correct
    made = make_groups(
        statistics.labels, correct[fitted.predict_from], groups, everything.n_images - statistics.n_images, class_names
    )
    with progress_bar("intervals", len(made) * resamples, "resamplings", enabled=progress) as advance:
        rows = tuple(
            row
            for group in made
            for row in estimate_metrics(group.name, _select_entries(group, confidences), options, advance)
        )
    compared = compare_image_and_views(
        correct, statistics.means, level=level, resamples=resamples, seed=seed, progress=progress
    )
    return Evaluation(
        rows,
        options.baseline,
        fitted.predict_from,
        fitted.top_k,
        statistics.n_views,
        level,
        resamples,
        seed,
        accuracy_from_image=float(correct["image"].mean()),
        accuracy_from_views=float(correct["views"].mean()),
        tuning_images=len(fitted.tuning),
        image_or_views=compared,
        notes=fitted.notes,
    )


def _check_same_classifier(preds: Predictions, ood: Predictions) -> None:
    try:
        concatenate(preds, ood)
    except PredictionsError as error:
        raise MetricError(f"ood= does not match the predictions: {error}") from None


def _list_confidences(statistics: ImageStatistics, fitted: FittedMethods) -> dict[str, Float64Array]:
    """Return the confidence of each method. float64 [N] each"""
    texts = tuple(fitted.options) or tuple(statistics.confidences)
    if not texts:
        raise MetricError("methods is empty; pass at least one method, such as 'mean'.")
    known = dict(statistics.confidences)
    for text in list_rankings(fitted):
        assert statistics.other_mass is not None, "computed where a method is a rank"
        resampling = fitted.resample(text, statistics.n_members, statistics.n_views)
        known[text] = plurality_confidence(statistics.other_mass, *resampling)
    return {text: known[text] for text in texts}


def _check_own(confidences: Mapping[str, ArrayLike], n_images: int) -> dict[str, Float64Array]:
    """Return confidences that were computed elsewhere. float64 [N] each"""
    if not confidences:
        raise MetricError("methods is empty; pass at least one method, such as 'mean'.")
    checked = {name: np.asarray(values, dtype=np.float64) for name, values in confidences.items()}
    for name, values in checked.items():
        if len(values) != n_images:
            raise MetricError(
                f"method {name!r} has {len(values)} values for {n_images} images; expected one per image."
            )
        rank(np.ones(len(values), dtype=np.bool_), values)
    return checked


def _find_baseline(baseline: str | None, confidences: Mapping[str, Float64Array]) -> str:
    if baseline is None:
        return "msr" if "msr" in confidences else next(iter(confidences))
    if baseline not in confidences:
        known = ", ".join(confidences)
        raise MetricError(f"baseline {baseline!r} is not among the methods {known}; add it to methods=.")
    return baseline


def _select_entries(group: Group, confidences: Mapping[str, Float64Array]) -> dict[str, tuple[BoolArray, Float64Array]]:
    return {name: (group.correct, values[group.images]) for name, values in confidences.items()}
