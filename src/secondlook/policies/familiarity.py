"""`Familiarity`: rejects images that look unlike all known images, at any confidence."""

from typing import Annotated, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, exact_interval
from secondlook.estimators import compute_familiarity, fit_familiarity
from secondlook.files import Count, FrozenRecord, PositiveCount
from secondlook.policies.guarantee import Fraction, Probability
from secondlook.predictions import Predictions


class UnknownBound(FrozenRecord):
    """Number of example unknown images that a policy accepts, and a bound for similar images."""

    DELTA: ClassVar = 0.05

    images: PositiveCount
    """Number of examples, none of which was used to choose anything."""
    accepted: Count
    bound: Fraction
    """Bound on the accepted fraction of similar images, with probability 1 - `delta` over the draw of the examples."""
    delta: Probability = DELTA
    data: str = ""
    """Spec of the examples."""

    @classmethod
    def count(cls, accepted: BoolArray, data: str = "") -> Self:
        """Return the exact (Clopper-Pearson) bound for examples that are accepted or not. bool [n]"""
        images, found = len(accepted), int(accepted.sum())
        _, bound = exact_interval(found, images, 1 - 2 * cls.DELTA)  # one-sided
        return cls(images=images, accepted=found, bound=bound, data=data)

    def __str__(self) -> str:
        level = 100 * (1 - self.delta)
        return (
            f"at most {100 * self.bound:.2g} % of images like the example unknown images are accepted, "
            f"with {level:g} % confidence ({self.accepted:,} of {self.images:,} were)"
        )


class Candidates(NamedTuple):
    """Images to choose a limit of familiarity on."""

    preds: Predictions
    is_confident: BoolArray
    """Whether each image is confident enough to be accepted. bool [N]"""

    def compute_familiarity(self, weights: tuple[float, ...]) -> Float64Array:
        """Return the familiarity of the confident images, in ascending order. float64 [n]"""
        return np.sort(compute_familiarity(self.preds, weights)[self.is_confident])


class Familiarity(FrozenRecord):
    """Reject images whose familiarity is below `limit`: the classifier's outputs are unlike those for known images.

    The familiarity is computed from all looks, or with a schedule from the first look, so unfamiliar images need a
    single look. It is chosen on tuning images, before anything is certified.
    """

    DEFAULT_BUDGET: ClassVar = 0.02

    limit: float
    """Smallest familiarity that is accepted."""
    weights: tuple[float, ...] = Field(default=(), repr=False)
    """Weights of `gen` and of the mean log-probability of each class; empty without examples, for `gen` alone."""
    budget: Annotated[float, Field(gt=0, lt=1)]
    """Largest fraction of the `images` that the limit may reject."""
    images: PositiveCount
    """Number of tuning images."""
    given_up: Count
    """Number of tuning images accepted at about the threshold of the policy, but rejected by the limit."""

    @classmethod
    def choose(cls, known: Candidates, unknown: Candidates | None, budget: float) -> Self:
        """Choose weights and limit on tuning images, and on examples of unknown images if there are any.

        Without examples, the whole budget is used. With examples, the limit maximizes the difference between the
        rejected fractions of confident unknown images and of confident known images.
        """
        weights = () if unknown is None else fit_familiarity(known.preds, unknown.preds)
        values, n_known = known.compute_familiarity(weights), known.preds.n_images
        place = min(int(budget * n_known), (len(values) - 1) // 2)  # at most half, if few are confident
        if unknown is not None:
            limits, others = values[: place + 1], unknown.compute_familiarity(weights)
            rejected, lost = (np.searchsorted(each, limits) / max(1, len(each)) for each in (others, values))
            place = int(np.argmax(rejected - lost))
        limit = float(values[place])
        given_up = int(np.searchsorted(values, limit))
        return cls(limit=limit, weights=weights, budget=budget, images=n_known, given_up=given_up)

    def compute(self, preds: Predictions) -> Float64Array:
        """Compute the familiarity of images from all views of the predictions. float64 [N]"""
        return compute_familiarity(preds, self.weights)

    def __str__(self) -> str:
        share = 100 * self.given_up / self.images
        source = "learned from the examples" if self.weights else "of known images"
        return (
            f"reject images with a familiarity ({source}) below {self.limit:.6g}, which cost {self.given_up:,} of "
            f"{self.images:,} tuning images ({share:.2g} %)"
        )
