"""`evaluate`: metrics of confidences, with intervals and a comparison with the baseline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, TypeAdapter, ValidationError

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.diagnosis import warn_about_setup
from secondlook.errors import ANY, MetricError, Repair
from secondlook.estimators import FittedMethods, confidence, find_method
from secondlook.evaluation.comparison import METHOD, Comparison, PredictFromComparison
from secondlook.evaluation.estimates import (
    ALL_IMAGES,
    ENOUGH_OUTCOMES,
    MIN_OUTCOMES,
    Estimate,
    EstimateTable,
    check_resampling,
    describe_scarcity,
    estimate_blocks,
    estimate_metrics,
    summary_blocks,
    wrap_line,
)
from secondlook.files import Count, PositiveCount, describe_invalid
from secondlook.metrics import rank
from secondlook.predictions import DEFAULT_EXECUTION, Execution, PredictFrom, Predictions
from secondlook.registry import did_you_mean
from secondlook.tables import (
    ARROWS,
    MAX_LISTED_GROUPS,
    TextTable,
    describe_prediction,
    format_class,
    format_image_share,
    shorten_name,
)

DEFAULT_METRICS = ("auroc", "aupr", "aurc", "eaurc", "augrc", "risk_at:0.8", "coverage_at:0.01")
KNOWN_IMAGES, UNKNOWN_DETECTION = "known images", "unknown detection"
UNKNOWN_METRICS = ("auroc", "fpr95")
"""The metrics of unknown detection, which count known images as correct and unknown images as errors."""
MAX_GROUP_TABLES = 10
"""Largest number of groups with a separate table; more groups share one, with a row each."""
VIEWS_VERDICTS = {
    "better": "they help",
    "worse": "they do not help",
    "unclear": "no clear difference",
    None: "too few images for a verdict",
}
PREDICTED_FROM: tuple[PredictFrom, ...] = get_args(PredictFrom)

Share = Annotated[float, Field(ge=0, le=1)]
Groups = str | Sequence[object] | Array | Mapping[str, ArrayLike] | None
"""Groups for `evaluate`."""


@dataclass(frozen=True, repr=False)
class Evaluation(EstimateTable):
    """The result of `evaluate`; `print` shows a verdict and the main metrics, `details()` has all of them."""

    SECOND_LOOK_METHODS: ClassVar[tuple[str, ...]] = ("blend", "learned", "mean", "bootstrap")
    """The first of these methods that was evaluated is compared with the baseline, even if another is better."""

    rows: Annotated[tuple[Estimate, ...], Field(min_length=1)]
    baseline: str
    predict_from: PredictFrom
    top_k: PositiveCount
    views: PositiveCount
    level: Annotated[float, Field(gt=0, lt=1)]
    resamples: PositiveCount
    seed: Annotated[int, Field(ge=0)]
    accuracy_from_image: Share | None = None
    """Fraction of labeled images with a correct prediction from the image itself; None if not recorded."""
    accuracy_from_views: Share | None = None
    """The same for the class predicted from the mean over views."""
    tuning_images: Count = 0
    """Number of images set apart to choose or fit something; all other numbers exclude them."""
    image_or_views: PredictFromComparison | None = None
    """Comparison of both ways to predict the class; None with one view, or if not recorded."""
    notes: tuple[str, ...] = ()
    """Reasons for missing default methods."""

    @property
    def recommendation(self) -> str | None:
        """A sentence that recommends the image or the views; None with one view, or too few errors to judge."""
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
        return {**super().to_dict(), "recommendation": self.recommendation, "image_or_views": compared}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation from the values of `to_dict`; other keys are ignored."""
        try:
            evaluation = TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise MetricError(f"invalid evaluation, {describe_invalid(error)}.") from None
        if evaluation.baseline not in evaluation.methods:
            raise MetricError(f"invalid evaluation, the baseline {evaluation.baseline!r} has no row; evaluate again.")
        estimated: dict[str, set[tuple[str, str]]] = {}
        for one in evaluation.rows:
            estimated.setdefault(one.group, set()).add((one.method, one.metric))
        for group, pairs in estimated.items():
            if len(pairs) < len(evaluation.methods) * len({metric for _, metric in pairs}):
                raise MetricError(f"invalid evaluation, a method lacks a metric in group {group!r}; evaluate again.")
        return evaluation

    @property
    def second_look(self) -> str | None:
        """The method that `verdict` compares with the baseline; None if no method uses views."""
        if self.views == 1:
            return None
        return next((name for name in self.SECOND_LOOK_METHODS if name in self.methods and name != self.baseline), None)

    @property
    def verdict(self) -> dict[str, str]:
        """Sentences about all images: quality of the 'Confidence', benefit of the 'Views', and an 'Advice'."""
        all_images = [one for one in self.rows if one.group == self.groups[0]]
        metric = next((one.metric for one in all_images if one.metric == "auroc"), all_images[0].metric)
        by_method = {one.method: one for one in all_images if one.metric == metric}
        before, after = by_method[self.baseline], by_method.get(self.second_look or "")
        kind = self._name_errors(self.groups[0])
        found = f"The {metric} of {self.baseline} is {before.format_value()}"
        if metric == "auroc" and before.value is not None:
            found = f"Their {self.baseline} is below that of the others in {100 * before.value:.1f} % of pairs"
            found += f" (auroc {before.format_value()}; 0.5 is chance)"
        share = format_image_share(before.errors / before.images, before.images)
        sentences = {"Confidence": f"{before.errors:,} of {before.images:,} images are {kind} ({share}). {found}."}
        if after is not None and after.difference is not None:
            ends = after.format_difference_interval(none="none")
            change = f"{metric} {after.format_value()} with {after.method} instead of {before.format_value()}"
            change += f" (difference: {ends})" if ends else ""
            sentences["Views"] = f"{VIEWS_VERDICTS[after.verdict]}; {change}."
        fewest = min(all_images, key=lambda one: one.n_rarer)
        if fewest.n_rarer < ENOUGH_OUTCOMES:
            advice = f"{describe_scarcity(fewest, kind)[1]}."
        elif after is not None and after.verdict == "better":
            advice = f"choose a threshold with {after.method}."
        else:
            advice = f"choose a threshold with {self.baseline}{'' if after is None else ', or try other views'}."
        sentences["Advice"] = " ".join([advice, *([self.recommendation] if self.recommendation else [])])
        return sentences

    def details(self) -> str:
        """Return tables of all metrics for each group of images, with their intervals."""
        return "\n".join(map(str, self._detail_blocks()))

    def _blocks(self) -> list[object]:
        first, *others = self.groups
        listed = [group for group in others if group not in (KNOWN_IMAGES, UNKNOWN_DETECTION)]
        blocks: list[object] = [wrap_line(f"{name}: {text}") for name, text in self.verdict.items()]
        blocks += ["", *self._summarize_group(first), "", *self._describe_settings()]
        for group in others:
            if group not in listed:
                blocks += ["", self._title(group), *self._summarize_group(group)]
        blocks += ["", *self._list_groups(listed)] if listed else []
        return [*blocks, *(block for note in self.notes for block in ("", wrap_line(note)))]

    def _summarize_group(self, group: str) -> list[object]:
        return summary_blocks([one for one in self.rows if one.group == group], self.baseline)

    def _detail_blocks(self) -> list[object]:
        listed = [group for group in self.groups if group not in (ALL_IMAGES, KNOWN_IMAGES, UNKNOWN_DETECTION)]
        if len(listed) <= MAX_GROUP_TABLES:
            listed = []
        first, *others = (self._group_blocks(group) for group in self.groups if group not in listed)
        others += [self._list_groups(listed)] if listed else []
        ends: list[object] = [wrap_line(text) for text in (*self.notes, self.recommendation) if text]
        return [*first, *(block for group in [*others, ends] if group for block in ("", *group))]

    def _group_blocks(self, group: str) -> list[object]:
        rows = [one for one in self.rows if one.group == group]
        title = self._title(group)
        header = [title, *self._describe_settings()] if group == self.groups[0] else [title]
        return ["\n".join(header), *estimate_blocks(rows, self.baseline, self.level, self._name_errors(group))]

    def _name_errors(self, group: str) -> str:
        """Return the name of images that count as errors in a group."""
        if KNOWN_IMAGES not in self.groups:
            return "wrong"
        return {ALL_IMAGES: "wrong or unknown", UNKNOWN_DETECTION: "unknown"}.get(group, "wrong")

    def _title(self, group: str) -> str:
        images, errors = next((one.images, one.errors) for one in self.rows if one.group == group)
        share = format_image_share(errors / images, images)
        return f"{group}: {images:,} images, {errors:,} of them {self._name_errors(group)} ({share})"

    def _list_groups(self, groups: Sequence[str]) -> list[object]:
        """Return a table of many groups with a row for each, or for those with the largest error rates."""
        metric = next((one for one in self.rows if one.metric != "accuracy"), self.rows[0])
        by_group: dict[str, list[Estimate]] = {group: [] for group in groups}
        for one in self.rows:
            if one.metric == metric.metric and one.group in by_group:
                by_group[one.group].append(one)
        worst = sorted(
            (item for item in by_group.items() if item[1]), key=lambda item: -item[1][0].errors / item[1][0].images
        )
        rows = [["", "images", "wrong", "error rate", *self.methods]]
        for group, found in worst[:MAX_LISTED_GROUPS]:
            images, errors = found[0].images, found[0].errors
            values = (one.format_value() if one.n_rarer >= MIN_OUTCOMES else "-" for one in found)
            share = format_image_share(errors / images, images)
            rows.append([shorten_name(group), f"{images:,}", f"{errors:,}", share, *values])
        title = f"{len(groups):,} groups; {metric.metric} {ARROWS[metric.better]} of each method"
        if len(groups) > MAX_LISTED_GROUPS:
            title += f"; the {MAX_LISTED_GROUPS} with the largest error rates"
        return [title, TextTable(rows, numbers=True), f"-: fewer than {MIN_OUTCOMES} errors, or correct predictions"]

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
            f"{100 * self.level:g} % intervals ({self.resamples:,} resamples)"
        )

    @property
    def _n_labeled(self) -> int:
        """Number of images that are not unknown."""
        group = KNOWN_IMAGES if KNOWN_IMAGES in self.groups else self.groups[0]
        return next(one.images for one in self.rows if one.group == group)


def evaluate(
    preds: Predictions,
    methods: Iterable[str] | Mapping[str, ArrayLike] | None = None,
    metrics: Iterable[str] = DEFAULT_METRICS,
    *,
    predict_from: PredictFrom = "image",
    top_k: int = 1,
    groups: Groups = None,
    unknown: Predictions | None = None,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
    tuning: object = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> Evaluation:
    """Evaluate methods by metrics, with intervals and the paired difference of each method to a baseline.

    The baseline is 'msr', or the first method without it; `compare` takes any baseline. Methods that need fitting are
    fitted on images set apart; only the other images are judged.

    Parameters
    ----------
    preds
        Labeled predictions.
    methods
        Names of methods, optionally with options, like 'max-logit-pnorm?on=views'; or your own confidences by name,
        float [N] each (with `unknown`, the images of `preds` first). By default 'msr'; with at least two views also
        'mean', 'bootstrap' and 'blend'; and 'learned' if there are `tuning` images to fit it on.
    metrics
        Names of metrics, like 'auroc' or 'risk_at:0.8'.
    predict_from
        Whether the class is predicted from the 'image' itself or from the mean over 'views'.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    groups
        "class" to also evaluate each class separately; or one label per image, or several lists of labels by name.
    unknown
        Predictions for unknown images, which belong to none of the classes (out-of-distribution images). They count as
        errors, so 'aurc' is over wrong and unknown images together. The group 'known images' has the metrics without
        them; 'unknown detection' has the AUROC and FPR95 for separating unknown from known images.
    level, resamples, seed
        Confidence level of the percentile intervals, the number of resamples of the images, shared by all methods, and
        their random seed.
    tuning
        Positions or a mask bool [N] of images that were used to choose or fit something. Methods are fitted on them;
        they are not judged. By default, if a method needs fitting, a quarter of the images, at most 1,000.
    execution
        Whether to show progress bars.
    """
    if not preds.has_labels:
        raise MetricError("the predictions have no labels", repair=Repair("pass {labels}", labels=ANY))
    check_resampling(level, resamples, seed)
    resampling: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    n_unknown = 0 if unknown is None else unknown.n_images
    warn_about_setup(preds)
    own = _check_own(methods, preds.n_images + n_unknown) if isinstance(methods, Mapping) else None
    names = methods if own is None else ()
    fitted = FittedMethods.fit(preds, names, tuning=tuning, predict_from=predict_from, top_k=top_k)
    selected = select_groups(groups, preds.n_images, fitted.judged)
    judged = fitted.select_judged(preds)
    means: dict[str, Float64Array] = {}
    passes = len(fitted.options) + 1 + (len(PREDICTED_FROM) if preds.n_views > 1 else 0)
    with judged.show_progress("confidences", passes, enabled=execution.progress) as watched:
        correct = {one: watched.correct(predict_from=one, top_k=top_k) for one in PREDICTED_FROM}
        confidences = {text: fitted.compute_together(watched, unknown, text) for text in fitted.options}
        if preds.n_views > 1:
            means = {one: confidence(watched, METHOD, predict_from=one, top_k=top_k) for one in PREDICTED_FROM}
    if own is not None:
        images = np.append(fitted.judged, np.arange(preds.n_images, preds.n_images + n_unknown))
        confidences = {name: values[images] for name, values in own.items()}
    if not confidences:
        raise MetricError("is empty; pass at least one method, such as 'mean'", argument="methods")
    baseline = "msr" if "msr" in confidences else next(iter(confidences))
    made = make_groups(judged.labels, correct[predict_from], selected, n_unknown, preds.class_names)
    entries = {
        group: {name: (is_correct, values[chosen]) for name, values in confidences.items()}
        for group, (chosen, is_correct) in made.items()
    }
    scores = [name for name in fitted.options if not find_method(name).is_probability]
    common: dict[str, Any] = {"baseline": baseline, "scores": scores, "progress": execution.progress, **resampling}
    rows = estimate_metrics(entries, metrics, **common)
    if n_unknown:
        known = np.arange(judged.n_images + n_unknown) < judged.n_images
        detection = {name: (known, values) for name, values in confidences.items()}
        rows += estimate_metrics({UNKNOWN_DETECTION: detection}, UNKNOWN_METRICS, **common)
    compared = None
    if means:
        both: dict[str, Any] = {one: (correct[one], means[one]) for one in PREDICTED_FROM}
        result = Comparison.from_confidences(both, ["accuracy", "aurc"], execution=execution, **resampling)
        compared = PredictFromComparison(result.rows)
    return Evaluation(
        rows,
        baseline,
        predict_from,
        top_k,
        preds.n_views,
        accuracy_from_image=float(correct["image"].mean()),
        accuracy_from_views=float(correct["views"].mean()),
        tuning_images=len(fitted.tuning),
        image_or_views=compared,
        notes=fitted.notes,
        **resampling,
    )


def make_groups(
    labels: IntArray,
    correct: BoolArray,
    selected: str | dict[str, Array] | None,
    n_unknown: int,
    class_names: tuple[str, ...] | None,
) -> dict[str, tuple[IntArray, BoolArray]]:
    """Return the images of each group, int64 [n], and which of them count as correct, bool [n], by name.

    `labels` and `correct`, int64 [N] and bool [N], and the groups from `select_groups` are for known images; the
    `n_unknown` others follow them.
    """
    everything = np.arange(len(labels) + n_unknown)
    made = {ALL_IMAGES: (everything, np.append(correct, np.zeros(n_unknown, dtype=np.bool_)))}
    if n_unknown:
        made[KNOWN_IMAGES] = everything[: len(labels)], correct
    by_name = {"class": labels} if isinstance(selected, str) else selected or {}
    for prefix, values in by_name.items():
        for value in dict.fromkeys(sorted(values.tolist(), key=lambda one: (str(type(one)), one))):
            members = np.flatnonzero(values == value)
            name = f"{prefix} {format_class(class_names, value) if isinstance(selected, str) else value}"
            if name in (*made, UNKNOWN_DETECTION):
                raise MetricError(f"duplicate group {name!r}", repair=Repair("rename {groups}", groups=ANY))
            made[name] = members, correct[members]
    return made


def select_groups(groups: Groups, n_images: int, images: IntArray) -> str | dict[str, Array] | None:
    """Validate groups, and select those of some of `n_images` images: 'class', None, or labels by name. int64 [n]"""
    if groups is None or isinstance(groups, str):
        if groups in (None, "class"):
            return groups
        raise MetricError("is unknown; expected 'class', or one label per image", argument="groups", value=groups)
    selected = {}
    for name, values in (groups if isinstance(groups, Mapping) else {"group": groups}).items():
        labels = np.asarray(values)
        if labels.shape != (n_images,):
            raise MetricError(f"groups {name!r} has shape {labels.shape}; expected one label for {n_images} images.")
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            raise MetricError(f"groups {name!r} is NaN for image {np.isnan(labels).argmax()}; expected a label.")
        selected[name] = labels[images]
    return selected


def _check_own(confidences: Mapping[str, ArrayLike], n_images: int) -> dict[str, Float64Array]:
    """Return confidences that were computed elsewhere. float64 [N] each"""
    checked = {name: np.asarray(values, dtype=np.float64) for name, values in confidences.items()}
    for name, values in checked.items():
        if len(values) != n_images:
            raise MetricError(f"method {name!r} has {len(values)} values for {n_images} images, expected one each.")
        rank(np.ones(len(values), dtype=np.bool_), values)
    return checked
