"""Costs of errors and reviews: the threshold with the least expected cost, and a bound on its error rate."""

import math
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, is_number
from secondlook.errors import ANY, DecisionError, Repair
from secondlook.files import FrozenRecord
from secondlook.metrics import Ranking, rank
from secondlook.policies.guarantee import Guarantee

PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PARTS = 10
"""Number of cross-validation folds for the cost."""
RISK_STEPS = 10_000
"""A bound on a risk is rounded up to hundredths of a percent."""


class Costs(FrozenRecord):
    """Cost of an accepted error and of a review, and the mean cost of an image."""

    error: PositiveFinite
    review: PositiveFinite
    per_image: Annotated[float, Field(ge=0)] = 0.0
    """Mean cost of a new image, estimated by cross-validation on the calibration images."""
    accept_all: Annotated[float, Field(ge=0)] = 0.0
    """Mean cost of a calibration image if all are accepted."""

    @classmethod
    def check(cls, error: float | None, review: float | None) -> Self:
        """Return valid costs, or raise an error."""
        for name, value in {"cost_error": error, "cost_review": review}.items():
            if value is None:
                raise DecisionError("both costs are needed", repair=Repair(f"pass {{{name}}}", **{name: ANY}))
            if not is_number(value) or not 0 < value < math.inf:
                fault = "is invalid; expected a finite number above 0, such as 50 for an error and 1 for a review"
                raise DecisionError(fault, argument=name, value=value)
        return cls(error=error, review=review)  # type: ignore[arg-type]  # neither is None

    @property
    def break_even(self) -> float:
        """The error rate among accepted images above which reviewing all of them costs less."""
        return self.review / self.error

    def choose(self, ranking: Ranking) -> int | None:
        """Return the place of the threshold with the least cost; None if reviewing all images costs less."""
        total = self.error * ranking.errors + self.review * (ranking.n_images - ranking.accepted)
        best = int(np.argmin(total))
        return None if total[best] >= self.review * ranking.n_images else best

    def estimate(self, correct: BoolArray, confidence: Float64Array) -> Self:
        """Return the costs with the means per image. bool [N], float64 [N]

        Each fold is decided by the threshold of the other folds. On the images that it was chosen on, a threshold costs
        less than on new images.
        """
        parts, total = np.random.default_rng(0).permutation(len(correct)) % PARTS, 0.0
        for part in range(PARTS):
            judged, threshold = parts == part, math.inf
            if not judged.all():
                ranking = rank(correct[~judged], confidence[~judged])
                best = self.choose(ranking)
                threshold = math.inf if best is None else float(ranking.confidences[best])
            accept = confidence[judged] >= threshold
            total += self.error * int(np.sum(accept & ~correct[judged])) + self.review * int(np.sum(~accept))
        means = {"per_image": total / len(correct), "accept_all": self.error * float(np.mean(~correct))}
        return self.model_copy(update=means)

    def describe(self, guarantee: Guarantee | None) -> list[str]:
        """Return the costs, the savings, and whether the guarantee shows that accepting pays."""
        savings = (self.review - self.per_image, self.accept_all - self.per_image)
        review, accept = (f"{_format_cost(abs(1000 * one))} {'less' if one >= 0 else 'more'}" for one in savings)
        is_shown = guarantee is not None and guarantee.risk <= self.break_even
        shown = "the guarantee shows this" if is_shown else "the guarantee does not show this: label more images"
        rate = f"at most {100 * self.break_even:.3g} % of the accepted images are wrong"
        return [
            f"costs: {self.error:g} per accepted error, {self.review:g} per review",
            f"per 1,000 new images: about {_format_cost(1000 * self.per_image)}, "
            f"{review} than reviewing all and {accept} than accepting all",
            *([f"accepting pays if {rate}; {shown}"] if self.break_even < 1 else []),
        ]


def bound_selected(found: int, others: int, n_thresholds: int, delta: float) -> float:
    """Return an upper bound on the probability of an event, valid for every threshold chosen on the same images.

    The threshold is the confidence of one of `n_thresholds` images and independent of the `others`, of which `found`
    show the event. This is the exact binomial bound of Clopper and Pearson with an equal share of `delta` for each
    image, so it holds for all of them with probability 1 - `delta`.
    """
    from scipy.special import betaincinv

    return 1.0 if found >= others else float(betaincinv(found + 1, others - found, 1 - delta / n_thresholds))


def bound_risk(accepted: int, errors: int, n_images: int, delta: float) -> float:
    """Return a bound on the error rate among accepted images at any threshold of the images, rounded up."""
    bound = bound_selected(errors, accepted - 1, n_images, delta)
    return math.ceil(bound * RISK_STEPS) / RISK_STEPS


def _format_cost(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
