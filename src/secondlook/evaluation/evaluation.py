"""`evaluate`: how good each confidence is, how uncertain that is, and whether it beats the baseline.

Everything is computed from `ImageStatistics`, which need no outputs of the classifier any more: those of several parts
of the images, joined, are those of all images.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, TypeAdapter, ValidationError

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.errors import ANY, MetricError, PredictionsError, Repair
from secondlook.estimators import (
    FittedMethods,
    confidence,
    find_method,
    fit_methods,
    other_class_mass,
    plurality_confidence,
)
from secondlook.evaluation.comparison import METHOD, Comparison, PredictFromComparison
from secondlook.evaluation.estimates import (
    Estimate,
    EstimateTable,
    check_resampling,
    estimate_blocks,
    estimate_metrics,
)
from secondlook.evaluation.groups import (
    ALL_IMAGES,
    IN_DISTRIBUTION,
    OOD_DETECTION,
    Groups,
    make_groups,
    select_groups,
)
from secondlook.files import Count, PositiveCount, describe_invalid
from secondlook.metrics import rank
from secondlook.predictions import DEFAULT_EXECUTION, Execution, PredictFrom, Predictions, concatenate
from secondlook.registry import did_you_mean
from secondlook.tables import arrow_table, describe_prediction, format_image_share

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_METRICS = ("auroc", "aupr", "aurc", "eaurc", "augrc", "risk_at:0.8", "coverage_at:0.01")
LINE_WIDTH = 80
PREDICTED_FROM: tuple[PredictFrom, ...] = get_args(PredictFrom)

Share = Annotated[float, Field(ge=0, le=1)]

# Columns of the Arrow table of `ImageStatistics`.
ID, LABEL, OTHER_MASS = "id", "label", "other_mass"
PREDICTED, MEAN, CONFIDENCE = "predicted:", "mean:", "confidence:"
MEMBERS, VIEWS = "secondlook.members", "secondlook.views"


@dataclass(frozen=True, repr=False)
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
        known = {f"{one.method}, {one.metric}, {one.group}": one for one in self.rows}
        name = ", ".join(key if len(key) == 3 else (*key, ALL_IMAGES))
        if name not in known:
            raise MetricError(f"the evaluation has no estimate for {name!r}.{did_you_mean(name, known)}")
        return known[name]

    def to_dict(self) -> dict[str, object]:
        """Return the evaluation as plain values for JSON."""
        compared = None if self.image_or_views is None else self.image_or_views.to_dict()
        rows = [one.to_dict() for one in self.rows]
        names = [one.name for one in fields(self) if one.name not in ("rows", "image_or_views")]
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "recommendation": self.recommendation, "image_or_views": compared, "rows": rows}

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


@dataclass(frozen=True, eq=False)
class ImageStatistics:
    """What an evaluation needs to know about each of N images, once their outputs are gone."""

    ids: tuple[str, ...]
    n_members: int
    n_views: int
    columns: Mapping[str, Array]
    """Values of the images by name, [N, ...] each:

    - 'label': true classes, int64 [N]; absent without labels
    - 'predicted:image', 'predicted:views': the top-k classes predicted from each, int64 [N, k]; absent where the images
      will never have labels
    - 'confidence:METHOD': the confidence of each method that is not a rank, float64 [N]
    - 'mean:image', 'mean:views': the confidence 'mean' of both predictions, float64 [N]; absent with one view, or
      without predictions
    - 'other_mass': what ranks follow from, `other_class_mass`, float64 [N, members * V]; absent if no method is a rank
    """

    @classmethod
    def compute(
        cls, preds: Predictions, fitted: FittedMethods, *, is_judged: bool = True, progress: bool = False
    ) -> Self:
        """Return the statistics of all images of `preds`, which need not be those that the methods were fitted with.

        `is_judged` tells whether the images have labels, or will get them: whether predictions are correct matters. A
        method that ranks images by something else than their other-class mass ranks those of `preds`.
        """
        ranked = _list_rankings(fitted)
        for text in ranked:
            fitted.resample(text, preds.n_members, preds.n_views)  # reject invalid options before anything is read
        predicted_from = PREDICTED_FROM if is_judged else ()
        compared = predicted_from if preds.n_views > 1 else ()
        columns: dict[str, Array] = {LABEL: preds.labels} if preds.has_labels else {}
        with preds.show_progress("confidences", len(fitted.options) + 1 + len(compared), enabled=progress) as watched:
            for one in predicted_from:
                columns[f"{PREDICTED}{one}"] = watched.predicted(one, fitted.top_k).reshape(-1, fitted.top_k)
            for text in fitted.options:
                if text not in ranked:
                    columns[f"{CONFIDENCE}{text}"] = fitted.compute(watched, text)
            for one in compared:
                columns[f"{MEAN}{one}"] = confidence(watched, METHOD, predict_from=one, top_k=fitted.top_k)
            if ranked:
                columns[OTHER_MASS] = other_class_mass(watched, fitted.predict_from, fitted.top_k)
        return cls(preds.ids, preds.n_members, preds.n_views, columns)

    @staticmethod
    def check_divisible(methods: Iterable[str]) -> None:
        """Raise unless all methods can be computed from the statistics of parts of the images."""
        for text in methods:
            found = find_method(text)
            if found.is_rank and found.resampling is None:
                raise MetricError(
                    f"method {text!r} ranks all images together, so that it cannot be computed part by part",
                    repair=Repair("leave it out, or evaluate without {engine}", engine=ANY),
                )

    def evaluate(
        self,
        fitted: FittedMethods,
        metrics: Iterable[str] = DEFAULT_METRICS,
        *,
        groups: Groups = None,
        class_names: tuple[str, ...] | None = None,
        ood: "ImageStatistics | None" = None,
        level: float = 0.95,
        resamples: int = 500,
        seed: int = 0,
        execution: Execution = DEFAULT_EXECUTION,
    ) -> Evaluation:
        """Evaluate methods on the images, which are labeled; the result is that of `evaluate`.

        `groups` and `class_names` are those of the images, `ood` are the statistics of out-of-distribution images.
        If nothing is fitted, all confidences are evaluated.
        """
        everything = self if ood is None else ImageStatistics.join([self, ood])
        confidences = everything._list_confidences(fitted)
        baseline = "msr" if "msr" in confidences else next(iter(confidences))
        correct = {one: self._is_correct(one) for one in PREDICTED_FROM}
        n_ood = everything.n_images - self.n_images
        made = make_groups(self.columns[LABEL], correct[fitted.predict_from], groups, n_ood, class_names)
        resampling: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
        rows = estimate_metrics(
            {
                one.name: {name: (one.correct, values[one.images]) for name, values in confidences.items()}
                for one in made
            },
            metrics,
            baseline=baseline,
            scores=[name for name in fitted.options if not find_method(name).is_probability],
            progress=execution.progress,
            **resampling,
        )
        compared = None
        if means := self._find(MEAN):
            both: dict[str, Any] = {one: (correct[one], means[one]) for one in PREDICTED_FROM}
            result = Comparison.from_confidences(both, ["accuracy", "aurc"], execution=execution, **resampling)
            compared = PredictFromComparison(result.rows)
        return Evaluation(
            rows,
            baseline,
            fitted.predict_from,
            fitted.top_k,
            self.n_views,
            accuracy_from_image=float(correct["image"].mean()),
            accuracy_from_views=float(correct["views"].mean()),
            tuning_images=len(fitted.tuning),
            image_or_views=compared,
            notes=fitted.notes,
            **resampling,
        )

    def _list_confidences(self, fitted: FittedMethods) -> dict[str, Float64Array]:
        """Return the confidence of each method. float64 [N] each"""
        known = self._find(CONFIDENCE)
        texts = tuple(fitted.options) or tuple(known)
        if not texts:
            raise MetricError("is empty; pass at least one method, such as 'mean'", argument="methods")
        for text in _list_rankings(fitted):
            resampling = fitted.resample(text, self.n_members, self.n_views)
            known[text] = plurality_confidence(self.columns[OTHER_MASS], *resampling)
        return {text: known[text] for text in texts}

    def _is_correct(self, predict_from: PredictFrom) -> BoolArray:
        """Return whether the label is among the predicted classes. bool [N]"""
        correct: BoolArray = (self.columns[f"{PREDICTED}{predict_from}"] == self.columns[LABEL][:, None]).any(axis=1)
        return correct

    def _find(self, prefix: str) -> dict[str, Array]:
        """Return the columns whose names begin with a prefix, without it."""
        return {name.removeprefix(prefix): values for name, values in self.columns.items() if name.startswith(prefix)}

    @property
    def n_images(self) -> int:
        """Number of images."""
        return len(self.ids)

    def select(self, images: IntArray) -> Self:
        """Return the statistics of some of the images. int64 [n]"""
        ids = tuple(self.ids[image] for image in images.tolist())
        return replace(self, ids=ids, columns={name: values[images] for name, values in self.columns.items()})

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the statistics of the images of all parts, one after another, with the columns that all have."""
        shared = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
        joined = {name: np.concatenate([part.columns[name] for part in parts]) for name in shared}
        return replace(parts[0], ids=tuple(id_ for part in parts for id_ in part.ids), columns=joined)

    def to_arrow(self) -> "pa.Table":
        """Return an Arrow table with a row per image; every number is exact."""
        import pyarrow as pa

        columns: dict[str, Any] = {ID: pa.array(self.ids, pa.string())}
        for name, values in self.columns.items():
            columns[name] = pa.array(np.ascontiguousarray(values).reshape(-1))
            if values.ndim == 2:
                columns[name] = pa.FixedSizeListArray.from_arrays(columns[name], values.shape[1])
        return arrow_table(columns).replace_schema_metadata({MEMBERS: str(self.n_members), VIEWS: str(self.n_views)})

    @classmethod
    def from_arrow(cls, table: "pa.Table") -> Self:
        """Return the statistics that `to_arrow` was called on."""
        n_members, n_views = (int(table.schema.metadata[name.encode()]) for name in (MEMBERS, VIEWS))
        columns = {name: _read_column(table[name]) for name in table.column_names if name != ID}
        return cls(tuple(table[ID].to_pylist()), n_members, n_views, columns)


def _read_column(column: "pa.ChunkedArray") -> Array:
    joined = column.combine_chunks()
    is_list = hasattr(joined.type, "list_size")
    values: Array = (joined.flatten() if is_list else joined).to_numpy(zero_copy_only=False)
    return values.reshape(-1, joined.type.list_size) if is_list else values


def _list_rankings(fitted: FittedMethods) -> tuple[str, ...]:
    """Return the texts of the methods that rank images by their other-class mass."""
    return tuple(text for text in fitted.options if find_method(text).resampling is not None)


def evaluate(
    preds: Predictions,
    methods: Iterable[str] | Mapping[str, ArrayLike] | None = None,
    metrics: Iterable[str] = DEFAULT_METRICS,
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    groups: Groups = None,
    ood: Predictions | None = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    tuning: object = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> Evaluation:
    """Evaluate methods by metrics, with intervals and the paired difference of each method to a baseline.

    The baseline is 'msr', or else the first method; `compare` takes any. Methods that have to be fitted are fitted on
    images set apart; only the other images are judged.

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
    level, resamples, seed
        Confidence level of the intervals, the number of resamplings of the images that they are percentiles of, which
        all methods share, and their random seed.
    tuning
        Positions or a mask bool [N] of images that were used to choose or fit something, and on which methods are
        fitted; they are not judged. By default, if a method has to be fitted, a quarter of the images, at most 1,000.
    execution
        Whether to show progress bars.
    """
    if not preds.has_labels:
        raise MetricError(
            "evaluate needs labels, and these predictions have none", repair=Repair("pass {labels} to them", labels=ANY)
        )
    check_resampling(level, resamples, seed)
    own = _check_own(methods, preds, ood) if isinstance(methods, Mapping) else None
    names = methods if own is None else ()
    fitted = fit_methods(preds, names, tuning=tuning, predict_from=predict_from, top_k=top_k)
    judged = fitted.select_judged(preds)
    statistics = ImageStatistics.compute(judged, fitted, progress=execution.progress)
    outside = None
    if ood is not None:
        try:
            concatenate(judged, ood)
        except PredictionsError as error:
            raise MetricError(f"does not match the predictions: {error}", argument="ood") from None
        outside = ImageStatistics.compute(ood, fitted, is_judged=False, progress=execution.progress)
    if own is not None:
        statistics = replace(statistics, columns={**statistics.columns, **_as_columns(own, fitted.judged)})
        if outside is not None:
            places = np.arange(preds.n_images, preds.n_images + outside.n_images)
            outside = replace(outside, columns={**outside.columns, **_as_columns(own, places)})
    return statistics.evaluate(
        fitted,
        metrics,
        groups=select_groups(groups, preds.n_images, fitted.judged),
        class_names=preds.class_names,
        ood=outside,
        level=level,
        resamples=resamples,
        seed=seed,
        execution=execution,
    )


def _check_own(
    confidences: Mapping[str, ArrayLike], preds: Predictions, ood: Predictions | None
) -> dict[str, Float64Array]:
    """Return confidences that were computed elsewhere. float64 [N] each"""
    n_images = preds.n_images + (0 if ood is None else ood.n_images)
    checked = {name: np.asarray(values, dtype=np.float64) for name, values in confidences.items()}
    for name, values in checked.items():
        if len(values) != n_images:
            raise MetricError(
                f"method {name!r} has {len(values)} values for {n_images} images; expected one per image."
            )
        rank(np.ones(len(values), dtype=np.bool_), values)
    return checked


def _as_columns(confidences: Mapping[str, Float64Array], images: IntArray) -> dict[str, Array]:
    """Return the confidences of some of the images as columns of `ImageStatistics`."""
    return {f"{CONFIDENCE}{name}": values[images] for name, values in confidences.items()}
