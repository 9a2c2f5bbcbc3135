"""`Familiarity`: rejects images that look like none of the known ones, whatever their confidence."""

from typing import Annotated, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, exact_interval
from secondlook.estimators import compute_familiarity, fit_familiarity
from secondlook.files import Count, FrozenRecord, PositiveCount
from secondlook.policies.guarantee import Fraction, Probability
from secondlook.predictions import Predictions


class UnknownBound(FrozenRecord):
    """How many example unknown images a policy accepts, and a bound for other images like them."""

    DELTA: ClassVar = 0.05

    images: PositiveCount
    """Examples that were counted: those that nothing was chosen on."""
    accepted: Count
    bound: Fraction
    """With probability 1 - `delta` over the draw of the examples, at most this fraction of such images is accepted."""
    delta: Probability = DELTA
    data: str = ""
    """Spec of the examples."""

    @classmethod
    def count(cls, accepted: BoolArray, data: str = "") -> Self:
        """Return the exact (Clopper-Pearson) bound for examples that are accepted or not. bool [n]"""
        images, found = len(accepted), int(accepted.sum())
        _, bound = exact_interval(found, images, 1 - 2 * cls.DELTA)  # which is one-sided
        return cls(images=images, accepted=found, bound=bound, data=data)

    def __str__(self) -> str:
        level = 100 * (1 - self.delta)
        return (
            f"at most {100 * self.bound:.2g} % of images like the example unknown images are accepted, "
            f"with {level:g} % confidence ({self.accepted:,} of {self.images:,} were)"
        )


class Candidates(NamedTuple):
    """Images that a limit of familiarity is chosen on."""

    preds: Predictions
    is_confident: BoolArray
    """Which of them are confident enough to be accepted. bool [N]"""

    def compute_familiarity(self, weights: tuple[float, ...]) -> Float64Array:
        """Return the familiarity of the confident images, in ascending order. float64 [n]"""
        return np.sort(compute_familiarity(self.preds, weights)[self.is_confident])


class Familiarity(FrozenRecord):
    """Reject images whose familiarity is below `limit`: the classifier's outputs are unlike those of known images.

    The familiarity is that of all looks, or with a schedule that of the first look, so that an unfamiliar image is
    looked at once. It is chosen on tuning images, before anything is certified.
    """

    DEFAULT_BUDGET: ClassVar = 0.02

    limit: float
    """Smallest familiarity that is accepted."""
    weights: tuple[float, ...] = Field(default=(), repr=False)
    """Weights of `gen` and of the mean log-probability of each class; none without examples: `gen` alone."""
    budget: Annotated[float, Field(gt=0, lt=1)]
    """Largest fraction of the `images` that it may have cost."""
    images: PositiveCount
    """Number of tuning images."""
    given_up: Count
    """How many of them a threshold about that of the policy accepts, and the limit rejects."""

    @classmethod
    def choose(cls, known: Candidates, unknown: Candidates | None, budget: float) -> Self:
        """Choose it on tuning images, and on examples of unknown images if there are any.

        Without examples the whole budget is spent. With them, as much of it as gains most: the largest difference
        between the shares of unknown and of known images that are rejected, among those that are confident.
        """
        weights = () if unknown is None else fit_familiarity(known.preds, unknown.preds)
        values, n_known = known.compute_familiarity(weights), known.preds.n_images
        place = min(int(budget * n_known), (len(values) - 1) // 2)  # not most of them where few are confident
        if unknown is not None:
            limits, others = values[: place + 1], unknown.compute_familiarity(weights)
            rejected, lost = (np.searchsorted(each, limits) / max(1, len(each)) for each in (others, values))
            place = int(np.argmax(rejected - lost))
        limit = float(values[place])
        given_up = int(np.searchsorted(values, limit))
        return cls(limit=limit, weights=weights, budget=budget, images=n_known, given_up=given_up)

    def compute(self, preds: Predictions) -> Float64Array:
        """Compute the familiarity of images that were looked at in all views of the predictions. float64 [N]"""
        return compute_familiarity(preds, self.weights)

    def __str__(self) -> str:
        share = 100 * self.given_up / self.images
        source = "learned from the examples" if self.weights else "of known images"
        return (
            f"reject images with a familiarity ({source}) below {self.limit:.6g}, which cost {self.given_up:,} of "
            f"{self.images:,} tuning images ({share:.2g} %)"
        )
