"""`search_views`: a greedy choice among the usable views of a pool, judged on images it was not made on."""

import warnings
from pathlib import Path

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.diagnosis.diagnosis import Diagnosis, diagnose_pool, find_choosable
from secondlook.diagnosis.gains import (
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
THE_IMAGE = "the image alone"


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
    _check_budget(budget, diagnosis)
    fold = assign_folds(pool.correct, folds, seed)
    n_folds = int(fold.max()) + 1
    with progress_bar(f"searching by {objective}", (n_folds + 1) * budget, "views", enabled=progress) as advance:
        chosen = choose_views(pool, metric, budget + 1, advance)
        means = compute_held_out_means(pool, metric, fold, budget + 1, advance)
    others = {
        f"the mean over all {len(diagnosis.usable)} usable views": diagnosis.usable,
        THE_IMAGE: ViewSet("identity"),
    }
    if reference is not None:
        others = {f"the preset {name!r}" if name in PRESETS else str(name): reference, **others}
    confidences = [*means, *(pool.mean_confidence(views.texts) for views in others.values())]
    performances = measure_performances(metric, pool.correct, confidences, seed)
    by_number, by_views = performances[: budget + 1], performances[budget + 1 :]
    gains = tuple(compute_gain(metric, by_number[-1], one, over) for over, one in zip(others, by_views, strict=True))
    return SearchResult(
        found=ViewSet([pool.views[position] for position in chosen]),
        kept=reference if _is_kept(reference, gains[0], diagnosis, budget) else None,
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


def _is_kept(reference: ViewSet | None, gain: Gain, diagnosis: Diagnosis, budget: int) -> bool:
    """Return whether the reference may be used and no better views were found."""
    if reference is None or gain.verdict == "better":
        return False
    return len(reference) <= budget + 1 and diagnosis.harmful.keys().isdisjoint(reference.texts)


def choose_views(pool: Pool, metric: BoundMetric, n_views: int, advance: Advance = ignore_progress) -> IntArray:
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
        chosen = choose_views(pool.select(fold != number), metric, n_views, advance)
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
        name = str(preset) if isinstance(preset, str | Path) else f"the given {len(views)} views"
    missing = [text for text in views.texts if text not in pool.texts]
    if missing:
        raise DiagnosisError(
            f"{len(missing)} of the {len(views)} views of {name!r} are not in the predictions, such as {missing[0]!r}; "
            "collect them too, or pass another preset=."
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


def _check_budget(budget: int, diagnosis: Diagnosis) -> None:
    n_harmful = len(diagnosis.harmful)
    most = len(diagnosis) - n_harmful - 1
    if budget > most:
        raise DiagnosisError(
            f"budget is {budget}; expected at most {most}, as {n_harmful} of the {len(diagnosis) - 1} views besides "
            "the image itself are harmful; lower the budget, or collect more views."
        )
