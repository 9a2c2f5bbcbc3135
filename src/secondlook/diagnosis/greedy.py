"""Greedy strategies: forward, with views taken again, and with single views exchanged at the end."""

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.diagnosis.strategies import Choice, Question, strategy

LEAST_GAIN = 1e-9
"""A swap must gain more than rounding can."""
PASSES = 2
"""Rounds of swaps at most."""


@strategy("greedy", "take the view that helps the chosen ones most, one after the other")
def greedy(question: Question) -> Choice:
    """Choose forward, each view at most once."""
    everything = np.arange(1, len(question.shares))
    return Choice(_forward(question, everything, question.budget))


@strategy("greedy-replace", "as greedy, but a view may be taken again and then counts more")
def greedy_with_replacement(question: Question) -> Choice:
    """Choose forward twice as many looks as the budget has views; no more distinct views than the budget."""
    counts = np.zeros(len(question.shares), dtype=np.int64)
    counts[0] = 1
    order, total = [0], question.shares[0].copy()
    for taken in range(1, 2 * question.budget):
        full = len(order) == question.budget
        candidates = np.array(order) if full else np.arange(len(counts))
        best = _best(question, total, candidates, taken + 1)
        order += [best] if best not in order else []
        counts[best] += 1
        total += question.shares[best]
    question.advance(question.budget)
    return Choice(np.array(order), counts[order] / counts.sum())


@strategy("swap", "greedy, then exchange single views as long as that helps")
def greedy_with_swaps(question: Question) -> Choice:
    """Choose forward, then exchange one chosen view for another; ordered anew at the end."""
    chosen = _forward(question, np.arange(1, len(question.shares)), question.budget).tolist()
    for _ in range(PASSES):
        before = list(chosen)
        for place in range(1, len(chosen)):
            chosen[place] = _best_in_place_of(question, chosen, place)
        if chosen == before:
            break
    return Choice(_forward(question, np.array(chosen[1:], dtype=np.int64), len(chosen)))


def _forward(question: Question, candidates: IntArray, budget: int) -> IntArray:
    chosen, total = [0], question.shares[0].copy()
    while len(chosen) < budget:
        left = np.setdiff1d(candidates, chosen)
        chosen.append(_best(question, total, left, len(chosen) + 1))
        total += question.shares[chosen[-1]]
        question.advance(1)
    return np.array(chosen)


def _best(question: Question, total: Float64Array, candidates: IntArray, views: int) -> int:
    """Return the candidate that helps most; of equals the first, which is the gentlest in a proposed pool."""
    return int(candidates[np.argmax(question.objective.with_each(total, candidates, views))])


def _best_in_place_of(question: Question, chosen: list[int], place: int) -> int:
    others = [one for one in chosen if one != chosen[place]]
    candidates = np.setdiff1d(np.arange(1, len(question.shares)), others)
    total = question.shares[others].sum(axis=0)
    values = question.objective.with_each(total, candidates, len(chosen))
    best = int(np.argmax(values))
    gain = values[best] - values[np.flatnonzero(candidates == chosen[place])[0]]
    return int(candidates[best]) if gain > LEAST_GAIN else chosen[place]
