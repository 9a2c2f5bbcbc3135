"""`search_views`: a greedy choice among the usable views of a pool, judged on images it was not made on."""

import warnings
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.diagnosis.diagnosis import Diagnosis, count_views, diagnose_pool, find_choosable
from secondlook.diagnosis.gains import (
    THE_IMAGE,
    CurvePoint,
    Gain,
    compute_gain,
    compute_objective,
    first_within_standard_error,
    measure_performances,
    objective_sign,
)
from secondlook.diagnosis.pool import Pool, read_pool
from secondlook.diagnosis.search_result import SearchResult
from secondlook.errors import DiagnosisError, MetricError
from secondlook.metrics import BoundMetric, parse_metric
from secondlook.predictions import Predictions
from secondlook.progress import Advance, ignore_progress, progress_bar
from secondlook.views import PRESETS, ViewSet, ViewsLike, as_view_set_with_identity

ENOUGH_ERRORS = 20
FOUND = "the found views"


class SearchWarning(UserWarning):
    """A search whose result is uncertain."""


def search_views(
    preds: Predictions,
    budget: int = 12,
    objective: str = "auroc",
    *,
    preset: ViewsLike | None = None,
    top_k: int = 1,
    folds: int = 5,
    seed: int = 0,
    progress: bool = True,
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
    folds
        Number of folds, at least 2.
    seed
        Random seed of the folds and of the resamplings of the images.
    progress
        Whether to show a progress bar if standard error is a terminal.

    Returns
    -------
    SearchResult
        `views` are the views to use, `found` the chosen ones in the order in which they were added.
    """
    metric = parse_objective(objective)
    _check_numbers(budget, folds, seed)
    pool = read_pool(preds, top_k, progress=progress)
    _check_errors(pool.correct)
    name, reference = find_reference(preset, pool.views) or (None, None)
    diagnosis = diagnose_pool(pool)
    budget = _limit_budget(budget, diagnosis)
    fold = assign_folds(pool.correct, folds, seed)
    n_folds = int(fold.max()) + 1
    with progress_bar(f"searching by {objective}", (n_folds + 1) * budget, "views", enabled=progress) as advance:
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
        values = [sign * compute_objective(metric, pool.correct, mean) for mean in means]
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
            f"the predictions lack {count_views(len(missing))} of {name!r}, such as {missing[0]!r}; collect all of "
            "them, or pass another preset=."
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


def _check_numbers(budget: int, folds: int, seed: int) -> None:
    if budget < 1:
        raise DiagnosisError(f"budget is {budget}; expected at least 1 view besides the image itself.")
    if folds < 2:
        raise DiagnosisError(f"folds is {folds}; expected at least 2.")
    if seed < 0:
        raise DiagnosisError(f"seed is {seed}; expected a whole number of at least 0.")


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
            SearchWarning,
            stacklevel=3,
        )


def _limit_budget(budget: int, diagnosis: Diagnosis) -> int:
    """Return the number of views to choose, at most those that are not harmful."""
    n_views, n_harmful = len(diagnosis) - 1, len(diagnosis.harmful)
    if budget > n_views or n_harmful == n_views:
        raise DiagnosisError(
            f"budget is {budget}; expected at most {n_views - n_harmful}, as there are {count_views(n_views)} "
            f"besides the image itself, {n_harmful} of them harmful; lower the budget, or collect more views."
        )
    return min(budget, n_views - n_harmful)
