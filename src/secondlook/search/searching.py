"""`search_views`: choose views from a pool of kept predictions, and say honestly what they gain."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secondlook.arrays import IntArray
from secondlook.errors import SearchError
from secondlook.metrics import Measure
from secondlook.predictions.asked_views import AskedViews
from secondlook.predictions.predictions import Predictions
from secondlook.progress import progress_bar
from secondlook.search import greedy, weighting  # noqa: F401 -- they register
from secondlook.search.compared_set import ComparedSet, compared_set
from secondlook.search.diagnosis import diagnosis_of
from secondlook.search.folds import CrossFitted, cross_fit, fold_of_each
from secondlook.search.judging import Gain, Judge
from secondlook.search.objective import Objective, objective_measure
from secondlook.search.pool import Pool, pool_of
from secondlook.search.result import SearchResult
from secondlook.search.sanity import worth_choosing
from secondlook.search.strategies import STRATEGIES, Choice, Question, Strategy, find_strategy
from secondlook.views import ViewSet

__all__ = ["STRATEGIES", "SearchWarning", "search_run", "search_views"]

ENOUGH_ERRORS = 20


class SearchWarning(UserWarning):
    """Something about a search that the user should know before trusting it."""


@dataclass(frozen=True, eq=False)
class _Task:
    """What stays the same over all folds."""

    pool: Pool
    metric: Measure
    strategy: Strategy
    budget: int
    shrinkage: float | None
    seed: int
    advance: Callable[[int], None]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """What was chosen on some images, and how far the objective was shrunk for it."""

    choice: Choice
    shrinkage: float | None


def search_views(
    preds: Predictions,
    budget: int = 12,
    objective: str = "auroc",
    strategy: str = "greedy",
    *,
    preset: AskedViews | None = None,
    k: int = 1,
    folds: int = 5,
    shrinkage: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SearchResult:
    """Return the views to use, the best first look first, chosen from the views of labelled predictions.

    Parameters
    ----------
    preds
        Predictions for the whole pool, on the images set apart for the search.
    budget
        How many views to choose, the identity among them: as often is the classifier asked for each image.
    objective
        The metric to make better: 'auroc', 'aurc', 'coverage_at:0.01', 'nll', or any other registered one.
    strategy
        One of `STRATEGIES`.
    preset
        A preset or a set of views to compare with; all of its views must be in the pool. Unless given, the first
        preset whose views are all there.
    folds
        Parts of the images; each is judged by views that were chosen on the others.
    shrinkage
        How strongly the confidence is held to the mean over all sound candidates: 0 believes the labels alone,
        `math.inf` the pool alone. Unless given, it is decided on images that the views are not chosen on.
    """
    metric, chosen_strategy = objective_measure(objective), find_strategy(strategy)
    pool = pool_of(preds, k)
    _check(pool, budget, folds, shrinkage)
    compared = compared_set(preset, pool.views)
    diagnosis = diagnosis_of(pool)
    _check_budget(budget, len(diagnosis.sane), len(pool.views))
    folds_ = deal_out(pool.correct, min(folds, _rarer(pool)), seed)
    with progress_bar(f"searching by {objective}", _steps(len(folds_), budget, shrinkage), "views", enabled=progress) as advance:
        task = _Task(pool, metric, chosen_strategy, budget, shrinkage, seed, advance)
        with ThreadPoolExecutor() as threads:  # the compiled loops run without the interpreter's lock
            final, *by_fold = threads.map(lambda images: _choose(task, images), [np.arange(len(pool.correct)), *folds_.others])
    return _judged(task, folds_, final, [one.choice for one in by_fold], diagnosis, compared)


def search_run(
    run: str | Path,
    *,
    budget: int = 12,
    objective: str = "auroc",
    strategy: str = "greedy",
    preset: AskedViews | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    curve: str | Path | None = None,
) -> SearchResult:
    """Choose views from the predictions kept in a run, write them to `out` and draw `curve`: `secondlook search`."""
    result = search_views(Predictions.open(run), budget, objective, strategy, preset=preset, seed=seed)
    if out is not None:
        result.write(out)
    if curve is not None:
        result.plot(curve)
    return result


def _choose(task: _Task, images: IntArray, advance: Callable[[int], None]) -> Choice:
    """Choose on some of the images only: whatever looks at labels looks at theirs alone."""
    seen = task.pool.on(images)
    places = worth_choosing(seen, task.budget)
    shares = np.ascontiguousarray(seen.shares[places])
    objective = Objective(task.metric, seen.correct, shares, task.shrinkage)
    choice = task.strategy.choose(Question(shares, seen.correct, objective, min(task.budget, len(places)), advance))
    return Choice(places[choice.places], choice.weights)


def _gains(
    judge: Judge, pool: Pool, fitted: CrossFitted, compared: ComparedSet | None, sane: IntArray
) -> tuple[Gain, ...]:
    found = fitted.confidences[-1]
    others = [] if compared is None else [(compared.title, compared.places)]
    others += [(f"the mean over all {len(sane)} sane candidates", sane), ("the image itself", np.array([0]))]
    return tuple(judge.gain(title, found, pool.mean_confidence(places)) for title, places in others)


def _weighted_gain(judge: Judge, fitted: CrossFitted) -> Gain | None:
    if fitted.weighted is None:
        return None
    return judge.gain("the same views, counting the same", fitted.weighted, fitted.confidences[-1])


def _places(views: ViewSet, among: ViewSet) -> IntArray:
    place = {text: number for number, text in enumerate(among.texts)}
    return np.array([place[text] for text in views.texts])


def _rarer(pool: Pool) -> int:
    errors = int((~pool.correct).sum())
    return min(errors, len(pool.correct) - errors)


def _check(pool: Pool, budget: int, folds: int, shrinkage: float) -> None:
    images, errors = len(pool.correct), int((~pool.correct).sum())
    if errors == 0:
        raise SearchError(
            f"none of the {images:,} images is answered wrongly, so nothing tells good views from bad ones; "
            "give more labelled images, or use a preset."
        )
    if _rarer(pool) == 1 or errors == images:
        raise SearchError(
            f"{errors:,} of {images:,} images are answered wrongly; expected at least two wrong and two right ones, "
            "to choose on one and judge on the other: give more labelled images."
        )
    if errors < ENOUGH_ERRORS:
        warnings.warn(
            f"only {errors} of {images:,} images are answered wrongly: with fewer than {ENOUGH_ERRORS} errors the "
            "found set is little more than a typical one of the pool, and its gain is hardly known; "
            "give more labelled images.",
            SearchWarning,
            stacklevel=3,
        )
    if folds < 2:
        raise SearchError(f"folds is {folds}; expected at least 2: one to choose on and one to judge on.")
    if not shrinkage >= 0:
        raise SearchError(f"shrinkage is {shrinkage}; expected a number from 0 (labels alone) to inf (the pool alone).")
    if budget < 2:
        raise SearchError(f"the budget is {budget}; expected at least 2 views, the image itself among them.")


def _check_budget(budget: int, sane: int, views: int) -> None:
    if budget > sane:
        aside = f", of which {views - sane} were set aside" if sane < views else ""
        raise SearchError(
            f"the budget of {budget} views is above the pool of {views} views{aside}; "
            f"give a budget of at most {sane}, or collect more candidates."
        )
