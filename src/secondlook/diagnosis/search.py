"""`search_views`: a greedy choice among the usable views of a pool, judged on images it was not made on."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_whole_number
from secondlook.diagnosis.diagnosis import Diagnosis, Pool, count_views, diagnose_pool, find_choosable, read_pool
from secondlook.errors import ANY, DiagnosisError, MetricError, Repair
from secondlook.metrics import (
    BoundMetric,
    Interval,
    Ranking,
    parse_metric,
    percentile_interval,
    resample_metrics,
)
from secondlook.predictions import DEFAULT_EXECUTION, Execution, Predictions
from secondlook.progress import Advance, ignore_progress, progress_bar
from secondlook.tables import TextTable, format_difference, format_difference_interval, format_html, format_value
from secondlook.views import PRESETS, ViewSet, ViewsLike, ViewWarning, as_view_set_with_identity

ENOUGH_ERRORS = 20
LEVEL = 0.95
RESAMPLES = 200
"""Confidence level and number of resamplings of the intervals of gains."""
FOUND = "the found views"
THE_IMAGE = "the image alone"
MAX_HARMFUL_LINES = 10
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Gain:
    """The found views compared with other views on the same images; a positive gain is better."""

    over: str
    value: float
    """Objective of the views compared with."""
    gain: float
    interval: Interval | None
    """Interval of the gain; None where the objective is undefined on too many resamplings of the images."""

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """'unclear' if the interval contains zero or is missing."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "unclear"
        return "better" if self.interval.low > 0 else "worse"

    def __str__(self) -> str:
        """Return the gain with its interval, or 'same'."""
        return f"{format_difference(self.gain)} {self.format_interval()}".rstrip()

    def format_interval(self) -> str:
        """Return the interval, or "" where it is missing or empty."""
        return "" if self.interval is None else format_difference_interval(self.interval.low, self.interval.high)


@dataclass(frozen=True)
class CurvePoint:
    """Objective with a number of views besides the image itself, and its gain over the image alone."""

    views: int
    value: float
    gain: Gain


@dataclass(frozen=True, eq=False)
class Performance:
    """Objective of one confidence, and its values on resamplings of the images, NaN where undefined. float64 [R]"""

    value: float
    resampled: Float64Array


def objective_sign(metric: BoundMetric) -> int:
    """Return 1 for a metric whose higher values are better, else -1."""
    return 1 if metric.metric.better == "higher" else -1


def measure_performances(
    metric: BoundMetric, correct: BoolArray, confidences: Sequence[Float64Array], seed: int
) -> list[Performance]:
    """Return the performance of each confidence, all on the same resamplings of the images. bool [N], float64 [N]"""
    # A mean of probabilities may round to slightly more than 1.
    entries = {str(index): (correct, np.clip(values, 0.0, 1.0)) for index, values in enumerate(confidences)}

    def metric_of(_: str, ranking: Ranking) -> list[float]:
        try:
            return [metric.compute(ranking)]
        except MetricError:  # a resampling without errors
            return [math.nan]

    resampled = resample_metrics(entries, metric_of, RESAMPLES, seed)
    return [Performance(metric(*entry), resampled[name][:, 0]) for name, entry in entries.items()]


def compute_gain(metric: BoundMetric, found: Performance, other: Performance, over: str) -> Gain:
    """Compare two performances on the same images."""
    sign = objective_sign(metric)
    interval = percentile_interval(sign * (found.resampled - other.resampled), LEVEL)
    return Gain(over, other.value, sign * (found.value - other.value), interval)


def first_within_standard_error(metric: BoundMetric, performances: Sequence[Performance]) -> int:
    """Return the first position that is worse than the best one by at most one standard error of the difference."""
    values = objective_sign(metric) * np.array([one.value for one in performances])
    best = performances[int(np.argmax(values))]
    errors = [float(np.nanstd(best.resampled - one.resampled)) for one in performances]
    return int(np.argmax(values.max() - values <= np.nan_to_num(errors)))


@dataclass(frozen=True)
class SearchResult:
    """The result of `search_views`. `print` shows all of it, `write` saves the views to use, `plot` draws the gains."""

    found: ViewSet
    """The identity and the chosen views, in the order in which they were chosen: the most useful first."""
    kept: ViewSet | None
    """The preset, if it is used: no better views were found, or only worse ones than the image alone."""
    used: str
    """Name of the views to use: 'the found views', "the preset 'cifar10'", 'the image alone', ..."""
    views: ViewSet
    """The views to use."""
    worse: dict[str, Gain]
    """Views that would be preferred but are worse than the image alone, by name, with their gain over it."""
    objective: str
    value: float
    """Objective of the found views on images they were not chosen on."""
    gains: tuple[Gain, ...]
    """Gains of the found views over the preset (if any), the mean over all usable views, and the image alone."""
    preset: str | None
    curve: tuple[CurvePoint, ...]
    """Objective and gain with 0, 1, 2, ... chosen views besides the image itself."""
    suggested_stop: int
    """The fewest found views that are worse than the best number of them by at most one standard error."""
    diagnosis: Diagnosis
    images: int
    errors: int
    folds: int
    seed: int

    @property
    def verdict(self) -> str:
        """One sentence on whether better views were found, and which views to use."""
        sample = f"on {self.images:,} images with {self.errors:,} errors"
        if self.worse:
            gains = " and ".join(f"{name} ({self._describe(gain)})" for name, gain in self.worse.items())
            return f"Worse than {THE_IMAGE} {sample}: {gains}; {self._advice()}."
        first = self.gains[0]
        if first.verdict == "better":
            return f"The found views are better than {first.over}: {self._describe(first)}."
        return (
            f"The found views are not clearly better than {first.over}: {self._describe(first)} {sample}; "
            f"{self._advice()}."
        )

    def _describe(self, gain: Gain) -> str:
        return f"the same {self.objective}" if str(gain) == "same" else f"{self.objective} {gain}"

    def _advice(self) -> str:
        if self.kept is not None:
            return f"{self.used} is kept"
        if self.worse:
            return f"use {self.used}"
        if self.preset is not None:
            return f"{self.gains[0].over} exceeds the budget or has harmful views, so the found views are used"
        if len(self.views) < len(self.diagnosis.usable):
            return "the found views need fewer classifier calls"
        return "the found views are used"

    def write(self, path: str | Path) -> Path:
        """Write the views to use to a .txt file, which can be passed wherever views are expected."""
        lines = [f"# {self._summary()}", f"# {self.verdict}", *self.views.texts, ""]
        return _write(Path(path), (".txt",), lambda target: target.write_text("\n".join(lines), encoding="utf-8"))

    def plot(self, path: str | Path) -> Path:
        """Draw the gain over the number of views to a .png, .svg or .pdf file."""
        return _write(Path(path), PLOT_SUFFIXES, self._draw)

    def _draw(self, path: Path) -> None:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        views = [point.views for point in self.curve]
        gains = [point.gain.gain for point in self.curve]
        ends = [point.gain.interval or Interval(point.gain.gain, point.gain.gain) for point in self.curve]
        lows, highs = [one.low for one in ends], [one.high for one in ends]
        axes.fill_between(views, lows, highs, color="#0072b2", alpha=0.15, linewidth=0)
        axes.plot(views, gains, "o-", color="#0072b2", label="found views, on held-out images")
        for gain, color in zip(self.gains[:-1], ("#d55e00", "#009e73"), strict=False):
            axes.axhline(gains[-1] - gain.gain, color=color, linestyle="--", label=gain.over)
        axes.axvline(self.suggested_stop, color="#666666", linestyle=":", label="suggested stop")
        axes.set(
            xlabel="views besides the image itself",
            ylabel=f"gain in {self.objective} over {self.curve[0].value:.4f}",
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize="small")
        figure.savefig(path, dpi=150)

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain values for JSON."""
        return {
            **asdict(self),
            "found": list(self.found.texts),
            "kept": None if self.kept is None else list(self.kept.texts),
            "views": list(self.views.texts),
            "diagnosis": self.diagnosis.to_dict(),
            "verdict": self.verdict,
        }

    def _blocks(self) -> list[object]:
        rows = [["view", "views", self.objective, "gain", "interval"]]
        for text, point in zip(self.found.texts, self.curve, strict=False):
            gain = format_difference(point.gain.gain)
            rows.append([text, str(point.views), format_value(point.value), gain, point.gain.format_interval()])
        return [
            f"{self._summary()}:",
            TextTable(rows, numbers=True),
            f"On held-out images ({self.folds} folds, {100 * LEVEL:g} % intervals) {self.objective} is "
            f"{format_value(self.value)}:",
            *(f"  {_compare(gain)} {gain.over} ({format_value(gain.value)})" for gain in self.gains),
            f"Suggested stop: {count_views(self.suggested_stop)} besides the image itself.",
            self.verdict,
            *self.diagnosis.describe_harmful(MAX_HARMFUL_LINES),
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

    def _summary(self) -> str:
        chosen, candidates = len(self.found) - 1, len(self.diagnosis) - 1
        return (
            f"{chosen} of {count_views(candidates)} ({len(self.diagnosis.harmful)} harmful) chosen by {self.objective} "
            f"on {self.images:,} images with {self.errors:,} errors, seed {self.seed}"
        )


def _write(target: Path, suffixes: Sequence[str], write: Callable[[Path], object]) -> Path:
    """Write a file whose name must have one of the suffixes."""
    if target.suffix not in suffixes:
        raise DiagnosisError(f"cannot write {str(target)!r}; expected a file name that ends in {', '.join(suffixes)}.")
    try:
        write(target)
    except OSError as error:
        raise DiagnosisError(f"cannot write {str(target)!r}: {error.strerror}.") from None
    return target


def _compare(gain: Gain) -> str:
    word, link = ("", "as") if format_difference(gain.gain) == "same" else ("gain ", "over")
    return f"{word}{gain} {link}"


def search_views(
    preds: Predictions,
    budget: int = 12,
    objective: str = "auroc",
    *,
    preset: ViewsLike | None = None,
    top_k: int = 1,
    folds: int = 5,
    seed: int = 0,
    execution: Execution = DEFAULT_EXECUTION,
) -> SearchResult:
    """Choose views greedily from the views of labeled predictions, and compare them with a preset.

    Starting from the image itself, the view that improves the objective of the mean confidence most is added until the
    budget is reached. Gains are measured by cross-fitting: each fold of the images is judged with views that were
    diagnosed and chosen without it.

    Parameters
    ----------
    preds
        Labeled predictions of all candidate views.
    budget
        Number of views to choose besides the image itself.
    objective
        Metric to improve, such as 'auroc', 'aurc', 'coverage_at:0.01' or 'nll'.
    preset
        Preset or views to compare with; all of the views must be in the predictions. By default the first preset whose
        views are all there. It is kept if it fits the budget, has no harmful views, and no better views are found.
        Views that are worse than the image alone are never returned: the next of the found views, the preset, all
        usable views (within the budget) and the image alone takes their place.
    top_k
        A prediction is correct if the label is among the k most probable classes.
    folds, seed
        Number of folds, at least 2, and random seed of the folds and of the resamplings of the images.
    execution
        Whether to show a progress bar.
    """
    metric = parse_objective(objective)
    for number, value, least in (("budget", budget, 1), ("folds", folds, 2), ("seed", seed, 0)):
        check_whole_number(number, value, least)
    pool = read_pool(preds, top_k, progress=execution.progress)
    _check_errors(pool.correct)
    name, reference = find_reference(preset, pool.views) or (None, None)
    diagnosis = diagnose_pool(pool)
    budget = _limit_budget(budget, diagnosis)
    fold = assign_folds(pool.correct, folds, seed)
    n_folds = int(fold.max()) + 1
    with progress_bar(
        f"searching by {objective}", (n_folds + 1) * budget, "views", enabled=execution.progress
    ) as advance:
        chosen = choose_greedily(pool, metric, budget + 1, advance)
        means = compute_held_out_means(pool, metric, fold, budget + 1, advance)
    sets = _name_sets(ViewSet([pool.views[position] for position in chosen]), name, reference, diagnosis.usable)
    others = list(sets)[1:]
    confidences = [*means, *(pool.mean_confidence(sets[other].texts) for other in others)]
    performances = measure_performances(metric, pool.correct, confidences, seed)
    by_number, by_name = performances[: budget + 1], dict(zip(sets, performances[budget:], strict=True))
    gains = tuple(compute_gain(metric, by_name[FOUND], by_name[other], other) for other in others)
    over_image = {one: compute_gain(metric, by_name[one], by_name[THE_IMAGE], THE_IMAGE) for one in sets}
    order = _order_sets(sets, None if reference is None else gains[0], diagnosis, budget)
    worse = list(takewhile(lambda one: over_image[one].verdict == "worse", order))
    used = order[len(worse)]  # at least the image alone, which is not worse than itself
    return SearchResult(
        found=sets[FOUND],
        kept=reference if sets[used] is reference else None,
        used=used,
        views=sets[used],
        worse={one: over_image[one] for one in worse},
        objective=metric.text,
        value=by_number[-1].value,
        gains=gains,
        preset=name,
        curve=tuple(
            CurvePoint(views, one.value, compute_gain(metric, one, by_number[0], THE_IMAGE))
            for views, one in enumerate(by_number)
        ),
        suggested_stop=first_within_standard_error(metric, by_number),
        diagnosis=diagnosis,
        images=len(pool.correct),
        errors=int((~pool.correct).sum()),
        folds=n_folds,
        seed=seed,
    )


def _name_sets(found: ViewSet, preset: str | None, reference: ViewSet | None, usable: ViewSet) -> dict[str, ViewSet]:
    """Return the found views and the views to compare them with, by name; the image alone is the last."""
    sets = {FOUND: found}
    if reference is not None:
        sets[f"the preset {preset!r}" if preset in PRESETS else str(preset)] = reference
    if len(usable) > 1:
        sets[f"the mean over all {len(usable)} usable views"] = usable
    return {**sets, THE_IMAGE: ViewSet("identity")}


def _order_sets(
    sets: Mapping[str, ViewSet], over_reference: Gain | None, diagnosis: Diagnosis, budget: int
) -> list[str]:
    """Return the names of the sets that can be used, the preferred one first and the image alone last.

    The reference goes before the found views unless they are better. It may have harmful views only where it is
    nevertheless measured to be better than the found views.
    """
    fitting = [name for name, views in sets.items() if len(views) <= budget + 1]
    harmless = [name for name in fitting if diagnosis.harmful.keys().isdisjoint(sets[name].texts)]
    if over_reference is None or over_reference.verdict == "better":
        return harmless
    keepable = fitting if over_reference.verdict == "worse" else harmless
    return list(dict.fromkeys([*(name for name in keepable if name == over_reference.over), *harmless]))


def choose_greedily(pool: Pool, metric: BoundMetric, n_views: int, advance: Advance = ignore_progress) -> IntArray:
    """Return positions of views in the order of a greedy forward search that starts with the identity. -> int64 [v]

    Among equally good views the first is chosen, which is the mildest of candidate views.
    """
    choosable = find_choosable(pool, n_views)
    mass, sign = pool.class_mass[choosable], objective_sign(metric)
    chosen, total = [0], mass[0].copy()
    while len(chosen) < min(n_views, len(choosable)):
        remaining = [row for row in range(len(choosable)) if row not in chosen]
        means = ((total + mass[row]) / (len(chosen) + 1) for row in remaining)
        values = [sign * metric(pool.correct, np.clip(mean, 0.0, 1.0)) for mean in means]
        chosen.append(remaining[int(np.argmax(values))])
        total += mass[chosen[-1]]
        advance(1)
    return choosable[chosen]


def assign_folds(correct: BoolArray, folds: int, seed: int) -> IntArray:
    """Assign images to folds at random, stratified by correctness. bool [N] -> int64 [N]

    There are as many folds as errors, or as correct images, where these are fewer than `folds`.
    """
    n_folds = min(folds, int(correct.sum()), int((~correct).sum()))
    generator = np.random.default_rng(seed)
    fold = np.empty(len(correct), dtype=np.int64)
    for kind in (True, False):
        members = generator.permutation(np.flatnonzero(correct == kind))
        fold[members] = np.arange(len(members)) % n_folds
    return fold


def compute_held_out_means(
    pool: Pool, metric: BoundMetric, fold: IntArray, n_views: int, advance: Advance = ignore_progress
) -> Float64Array:
    """Return the mean over the first 1 .. n_views views chosen without the fold of each image. -> float64 [n_views, N]

    Where fewer views can be chosen, the last mean is repeated.
    """
    means = np.empty((n_views, len(fold)))
    for number in range(int(fold.max()) + 1):
        held_out = np.flatnonzero(fold == number)
        chosen = choose_greedily(pool.select(fold != number), metric, n_views, advance)
        last = np.minimum(np.arange(n_views), len(chosen) - 1)
        totals = np.cumsum(pool.class_mass[chosen][:, held_out], axis=0)
        means[:, held_out] = totals[last] / (last + 1)[:, None]
    return means


def find_reference(preset: ViewsLike | None, pool: ViewSet) -> tuple[str, ViewSet] | None:
    """Return the views to compare with and their name: by default the first preset whose views are all in the pool."""
    if preset is None:
        complete = (name for name in PRESETS if set(_preset_views(name).texts) <= set(pool.texts))
        name = next(complete, None)
        return None if name is None else (name, _preset_views(name))
    if isinstance(preset, str) and preset in PRESETS:
        name, views = preset, _preset_views(preset)
    else:
        views = as_view_set_with_identity(preset)
        name = str(preset) if isinstance(preset, str | Path) else f"the given {count_views(len(views))}"
    missing = [text for text in views.texts if text not in pool.texts]
    if missing:
        raise DiagnosisError(
            f"the predictions lack {count_views(len(missing))} of {name!r}, such as {missing[0]!r}",
            repair=Repair("collect all of them, or pass another {preset}", preset=ANY),
        )
    return name, views


def _preset_views(name: str) -> ViewSet:
    """Return the views of a preset without the warning that opening it by name may raise."""
    return ViewSet(PRESETS[name].views.split())


def parse_objective(text: str) -> BoundMetric:
    """Parse the metric to improve."""
    try:
        metric = parse_metric(text)
    except MetricError as error:
        raise DiagnosisError(f"objective {text!r} cannot be used: {error}") from None
    if metric.metric.name == "accuracy":
        raise DiagnosisError(
            "objective 'accuracy' does not depend on the views, as the class is predicted from the image itself; "
            "choose another metric, such as 'auroc'."
        )
    return metric


def check_whole_number(argument: str, value: object, least: int, most: int | None = None) -> None:
    """Raise unless an argument is a whole number within bounds."""
    if not is_whole_number(value) or value < least or (most is not None and value > most):
        expected = f"at least {least}" if most is None else f"{least} to {most}"
        fault = f"is out of range; expected a whole number, {expected}"
        raise DiagnosisError(fault, argument=argument, value=value)


def _check_errors(correct: BoolArray) -> None:
    images, errors = len(correct), int((~correct).sum())
    if min(errors, images - errors) < 2:
        raise DiagnosisError(
            f"{errors:,} of {images:,} predictions are wrong; choosing views needs at least two wrong and two correct "
            "ones; collect more labeled images, or use a preset."
        )
    if errors < ENOUGH_ERRORS:
        warnings.warn(
            f"only {errors} of {images:,} predictions are wrong; with fewer than {ENOUGH_ERRORS} errors the choice of "
            "views is mostly noise and its gain uncertain; collect more labeled images.",
            ViewWarning,
            stacklevel=3,
        )


def _limit_budget(budget: int, diagnosis: Diagnosis) -> int:
    """Return the number of views to choose, at most those that are not harmful."""
    n_views, n_harmful = len(diagnosis) - 1, len(diagnosis.harmful)
    if budget > n_views or n_harmful == n_views:
        raise DiagnosisError(
            f"is too large; expected at most {n_views - n_harmful}, as there are {count_views(n_views)} besides the "
            f"image itself, {n_harmful} of them harmful; lower the budget, or collect more views",
            argument="budget",
            value=budget,
        )
    return min(budget, n_views - n_harmful)
