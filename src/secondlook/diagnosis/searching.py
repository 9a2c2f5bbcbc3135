"""`search_views`: choose views from a pool of kept predictions, and say honestly what they gain."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from secondlook.arrays import IntArray
from secondlook.diagnosis import greedy, weighting  # noqa: F401 -- they register
from secondlook.diagnosis.choosing import Chosen, Task, choose
from secondlook.diagnosis.compared_set import ComparedSet, compared_set
from secondlook.diagnosis.diagnosis import Diagnosis, diagnosis_of
from secondlook.diagnosis.folds import Folds, deal_out, held_out_means, held_out_weighted
from secondlook.diagnosis.judging import Gain, Judge
from secondlook.diagnosis.objective import objective_measure
from secondlook.diagnosis.pool import Pool, pool_of
from secondlook.diagnosis.result import SearchResult
from secondlook.diagnosis.strategies import STRATEGIES, find_strategy
from secondlook.errors import DiagnosisError
from secondlook.predictions import Predictions
from secondlook.progress import progress_bar
from secondlook.views import ViewSet, ViewsLike

__all__ = ["STRATEGIES", "SearchWarning", "search_run", "search_views"]

ENOUGH_ERRORS = 20


class SearchWarning(UserWarning):
    """Something about a search that the user should know before trusting it."""


def search_views(
    preds: Predictions,
    budget: int = 12,
    objective: str = "auroc",
    strategy: str = "greedy",
    *,
    preset: ViewsLike | None = None,
    top_k: int = 1,
    folds: int = 5,
    shrinkage: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SearchResult:
    """Return the views to use, the best first look first, chosen from the views of labeled predictions.

    Parameters
    ----------
    preds
        Predictions for the whole pool, on the images set apart for the search.
    budget
        How many views to choose beside the image itself; the classifier is asked once more than that.
    objective
        The metric to make better: 'auroc', 'aurc', 'coverage_at:0.01', 'nll', or any other registered one.
    strategy
        One of `STRATEGIES`.
    preset
        A preset or a set of views to compare with; all of its views must be in the pool. Unless given, the first
        preset whose views are all there. It is kept where it fits the budget and no better set is found.
    folds
        Parts of the images; each is judged by views that were chosen on the others.
    shrinkage
        How strongly the confidence is held to the mean over all sound candidates: 0 believes the labels alone,
        `math.inf` the pool alone. Unless given, it is decided on images that the views are not chosen on.
    """
    if seed < 0:
        raise DiagnosisError(f"seed is {seed}; expected a whole number of at least 0.")
    metric, chosen_strategy = objective_measure(objective), find_strategy(strategy)
    pool = pool_of(preds, top_k, progress=progress)
    _check(pool, budget, folds, shrinkage)
    compared = compared_set(preset, pool.views)
    diagnosis = diagnosis_of(pool)
    _check_budget(budget, len(diagnosis.sane), len(pool.views))
    dealt = deal_out(pool.correct, min(folds, _rarer(pool)), seed)
    task = Task(pool, metric, chosen_strategy, budget + 1, shrinkage, seed)
    with progress_bar(f"searching by {objective}", (len(dealt) + 1) * task.steps, "views", enabled=progress) as advance:
        chosen, *by_fold = _choose_in_threads(replace(task, advance=advance), dealt)
    return _judged(task, dealt, chosen, by_fold, diagnosis, compared)


def search_run(
    run: str | Path,
    *,
    budget: int = 12,
    objective: str = "auroc",
    strategy: str = "greedy",
    preset: ViewsLike | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    curve: str | Path | None = None,
) -> SearchResult:
    """Choose views from the predictions that `collect` kept in a store, write them to `out` and draw `curve`."""
    result = search_views(Predictions.open(run), budget, objective, strategy, preset=preset, seed=seed)
    if out is not None:
        result.write(out)
    if curve is not None:
        result.plot(curve)
    return result


def _choose_in_threads(task: Task, dealt: Folds) -> list[Chosen]:
    """Choose on all images, and on all but each fold; the compiled loops run without the interpreter's lock."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(partial(choose, task), [np.arange(len(dealt.fold)), *dealt.others]))


def _judged(
    task: Task,
    dealt: Folds,
    chosen: Chosen,
    by_fold: list[Chosen],
    diagnosis: Diagnosis,
    compared: ComparedSet | None,
) -> SearchResult:
    """Compare the found views with others on images they were not chosen on."""
    pool, weights = task.pool, chosen.choice.weights
    choices = [one.choice for one in by_fold]
    judge = Judge(task.metric, pool.correct, task.seed)
    means = held_out_means(pool.shares, dealt, choices, task.looks)
    weighted = held_out_weighted(pool.shares, dealt, choices)
    others = _others(pool.views, diagnosis, compared)
    gains = tuple(judge.gain(title, means[-1], pool.mean_confidence(places)) for title, places in others.items())
    return SearchResult(
        found=ViewSet([pool.views[place] for place in chosen.choice.places]),
        kept=_kept(task, diagnosis, compared, gains[0]),
        weights=None if weights is None else tuple(weights.tolist()),
        weighted_gain=None if weighted is None else judge.gain("views that count the same", weighted, means[-1]),
        objective=task.metric.text,
        strategy=task.strategy.name,
        value=judge.value(means[-1]),
        gains=gains,
        preset=None if compared is None else compared.name,
        curve=judge.curve(means),
        suggested_stop=judge.first_as_good_as_the_best(means),
        diagnosis=diagnosis,
        images=len(pool.correct),
        errors=int((~pool.correct).sum()),
        folds=len(dealt),
        shrinkage=chosen.shrinkage,
        seed=task.seed,
    )


def _others(pool: ViewSet, diagnosis: Diagnosis, compared: ComparedSet | None) -> dict[str, IntArray]:
    """Return what the found views are compared with, as places in the pool, by title."""
    place = {text: number for number, text in enumerate(pool.texts)}
    sane = np.array([place[text] for text in diagnosis.sane.texts])
    others = {} if compared is None else {compared.title: compared.places}
    return {**others, f"the mean over all {len(sane)} sane candidates": sane, "the image itself": np.array([0])}


def _kept(task: Task, diagnosis: Diagnosis, compared: ComparedSet | None, gain: Gain) -> ViewSet | None:
    """Return the compared set where it is usable and nothing better was found."""
    if compared is None or gain.verdict == "better" or len(compared.places) > task.looks:
        return None
    texts = [task.pool.views.texts[place] for place in compared.places]
    return None if diagnosis.insane.keys() & set(texts) else ViewSet(texts)


def _rarer(pool: Pool) -> int:
    errors = int((~pool.correct).sum())
    return min(errors, len(pool.correct) - errors)


def _check(pool: Pool, budget: int, folds: int, shrinkage: float | None) -> None:
    images, errors = len(pool.correct), int((~pool.correct).sum())
    if errors == 0:
        raise DiagnosisError(
            f"none of the {images:,} images is answered wrongly, so nothing tells good views from bad ones; "
            "give more labeled images, or use a preset."
        )
    if _rarer(pool) == 1 or errors == images:
        raise DiagnosisError(
            f"{errors:,} of {images:,} images are answered wrongly; expected at least two wrong and two right ones, "
            "to choose on one and judge on the other: give more labeled images."
        )
    if errors < ENOUGH_ERRORS:
        warnings.warn(
            f"only {errors} of {images:,} images are answered wrongly: with fewer than {ENOUGH_ERRORS} errors the "
            "found set is little more than a typical one of the pool, and its gain is hardly known; "
            "give more labeled images.",
            SearchWarning,
            stacklevel=3,
        )
    if folds < 2:
        raise DiagnosisError(f"folds is {folds}; expected at least 2: one to choose on and one to judge on.")
    if shrinkage is not None and not shrinkage >= 0:
        raise DiagnosisError(
            f"shrinkage is {shrinkage}; expected a number from 0 (labels alone) to inf (the pool alone)."
        )
    if budget < 1:
        raise DiagnosisError(f"the budget is {budget}; expected at least 1 view beside the image itself.")


def _check_budget(budget: int, sane: int, views: int) -> None:
    if budget >= sane:
        aside = f", of which {views - sane} were set aside" if sane < views else ""
        raise DiagnosisError(
            f"the budget of {budget} views is above the pool of {views - 1} views beside the image itself{aside}; "
            f"give a budget of at most {sane - 1}, or collect more candidates."
        )
