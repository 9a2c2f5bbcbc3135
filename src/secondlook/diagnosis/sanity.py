"""Which views of a pool may be chosen: what breaks the classifier is set aside, what weakens it is taken last."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array, IntArray
from secondlook.diagnosis.agreement import agreement_of, reason_of_disagreement
from secondlook.diagnosis.pool import Pool

MOST_ACCURACY_LOST = 0.25
"""A view on which the accuracy falls by more than this share breaks the classifier."""
CLEAR_LOSS = 2.0
"""Standard errors by which a mean must fall to count as lower."""


@dataclass(frozen=True)
class Sanity:
    """Whether a view breaks the classifier (`reason`) or measurably weakens it (`weakness`), and by how much."""

    reason: str | None
    weakness: str | None
    loss: float
    """How far the mean output of the right class falls, in standard errors of the difference; 0 without labels."""

    @property
    def is_sound(self) -> bool:
        """Whether the view neither breaks nor weakens the classifier."""
        return self.reason is None and self.weakness is None


def sanity_of(pool: Pool, place: int) -> Sanity:
    """Look at one view of the pool; the identity is always sound."""
    if place == 0:
        return Sanity(None, None, 0.0)
    reason = reason_of_disagreement(agreement_of(pool, place))
    if pool.right is None or pool.truth is None:
        return Sanity(reason, None, 0.0)
    reason = reason or _reason_of_accuracy(pool.right[0].astype(np.float64), pool.right[place].astype(np.float64))
    # The output of the right class tells sooner than the accuracy: it moves before the answer flips.
    loss = _fall(pool.truth[0], pool.truth[place])
    weakness = None
    if reason is None and loss > CLEAR_LOSS:
        before, after = pool.truth[0].mean(), pool.truth[place].mean()
        weakness = f"the mean output of the right class falls from {before:.3f} to {after:.3f}."
    return Sanity(reason, weakness, loss)


def worth_choosing(pool: Pool, budget: int) -> IntArray:
    """Return the sound views; where these are fewer than the budget, also the least weak of the others. int64 [n]

    The identity comes first, the others in their order.
    """
    sanity = [sanity_of(pool, place) for place in range(len(pool.views))]
    sound = [place for place, one in enumerate(sanity) if one.is_sound]
    weak = [place for place, one in enumerate(sanity) if one.reason is None and one.weakness is not None]
    least_weak = sorted(weak, key=lambda place: sanity[place].loss)[: max(0, budget - len(sound))]
    return np.array(sorted([*sound, *least_weak]))


def _reason_of_accuracy(right: Float64Array, right_of_view: Float64Array) -> str | None:
    before, after = float(right.mean()), float(right_of_view.mean())
    if before - after <= MOST_ACCURACY_LOST * before or _fall(right, right_of_view) <= CLEAR_LOSS:
        return None
    return f"the accuracy falls from {100 * before:.1f} % to {100 * after:.1f} %."


def _fall(before: Float64Array, after: Float64Array) -> float:
    """Return how far the mean falls on the same images, in standard errors. [N] each"""
    lost = before - after
    deviation = float(lost.std())
    return 0.0 if deviation == 0 else float(lost.mean()) / deviation * len(lost) ** 0.5
