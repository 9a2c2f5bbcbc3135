"""The shift alarm: an anytime-valid test that a stream of images still looks like the calibration images."""

import math
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from secondlook.arrays import Float64Array, IntArray
from secondlook.files import Count, FrozenRecord
from secondlook.imports import import_extra
from secondlook.policies import Reference

# Bets and start times were chosen on corrupted CIFAR-10 images and resnet20; validity does not depend on them.
POWERS = (0.7, 0.9, 1.2, 1.6, 3.0)
"""The bets are the densities a (1 - p) ** (a - 1) and a p ** (a - 1) of a p-value, for each power a.

Powers above 1 detect a change of all images, powers below 1 a change of a few.
"""
START_SPAN, START_DECAY = 30.0, 0.25
"""After t images, (1 + t / START_SPAN) ** -START_DECAY of the initial capital is still reserved for a later shift."""
_SCALE_BITS = 256
_SCALE = 2.0**_SCALE_BITS


class StatisticState(FrozenRecord):
    """State of the bets on one statistic of the images."""

    counts: tuple[Count, ...]
    """Images of the stream in each bin of the reference."""
    capital: tuple[Annotated[float, Field(ge=0)], ...]
    """Capital on each density, in units of 2 ** scale."""
    scale: tuple[Count, ...]


class AlarmState(FrozenRecord):
    """Complete state of a shift alarm; resuming from it is exact."""

    images: Count
    evidence: float
    """Log of the evidence of a shift after the last image."""
    raised_at: Count | None
    """Number of images after which the evidence was first large enough for an alarm; None if it never was."""
    statistics: dict[str, StatisticState]


class ShiftAlarm:
    """Test without labels whether images still look like the calibration images, valid at every moment.

    Each image is ranked among the calibration images and all earlier images of the stream. Without a shift, these
    ranks (conformal p-values) are independent and uniform. The test bets against that; large capital is evidence of a
    shift. It reaches 1 / alpha with probability at most `alpha`, however long the stream.

    The statistics are confidence and disagreement (adaptive policies: the first look alone), and familiarity if the
    policy has a limit for it. They share alpha equally. If the method was chosen from several on the calibration
    images, these share alpha, too. `seed` breaks ties.
    """

    def __init__(self, reference: Reference, *, is_adaptive: bool, alpha: float = 0.05, seed: int = 0) -> None:
        names = [*(["first_look"] if is_adaptive else ["confidence", "disagreement"]), "familiarity"]
        self._histograms = {name: getattr(reference, name) for name in names if getattr(reference, name) is not None}
        self._log_share = -math.log(len(self._histograms))
        self._seed = seed
        self.limit = math.log(reference.methods / alpha)
        """Log of the evidence at which the alarm is raised."""
        zeros = (0,) * (2 * len(POWERS))
        statistics = {
            name: StatisticState(counts=(0,) * len(histogram.counts), capital=zeros, scale=zeros)
            for name, histogram in self._histograms.items()
        }
        self.state = AlarmState(images=0, evidence=self._log_share, raised_at=None, statistics=statistics)
        """The state after the last image, for `resume`."""

    def update(
        self,
        confidence: Float64Array,
        first_look: Float64Array,
        disagreement: Float64Array | None,
        familiarity: Float64Array | None = None,
    ) -> Float64Array:
        """Add images to the stream and return the log of the evidence after each. float64 [n] each

        A NaN disagreement or familiarity is left out of that statistic. The result does not depend on how the stream
        is split into updates.
        """
        n_images, before = len(confidence), self.state
        values = {"confidence": confidence, "first_look": first_look}
        for name, given in (("disagreement", disagreement), ("familiarity", familiarity)):
            values[name] = np.full(n_images, np.nan) if given is None else given
        # Tie-breaking numbers inside (0, 1), one per image of the stream.
        bits = np.random.PCG64(self._seed).advance(before.images).random_raw(n_images) >> np.uint64(12)
        uniforms = (bits.astype(np.float64) + 0.5) * 2.0**-52
        evidence, statistics = np.empty((len(self._histograms), n_images)), {}
        for (name, histogram), row in zip(self._histograms.items(), evidence, strict=True):
            statistic, order = before.statistics[name], -1 if name == "disagreement" else 1
            # Images of the reference and of the stream in each bin, the most suspicious bin first. [B]
            counts = np.add(histogram.counts, statistic.counts)[::order].astype(np.int64)
            capital, scale = np.reshape(statistic.capital, (-1, 2)), np.reshape(statistic.scale, (-1, 2))
            bins = histogram.find_bins(np.asarray(values[name], dtype=np.float64))
            bins = np.where(np.isnan(values[name]), -1, bins if order > 0 else len(counts) - 1 - bins)
            p_values = _compile(rank_images)(bins, uniforms, counts)
            _compile(_bet)(p_values, before.images, np.array(POWERS), capital, scale, row)
            statistics[name] = StatisticState(
                counts=tuple((counts[::order] - histogram.counts).tolist()),
                capital=tuple(capital.ravel().tolist()),
                scale=tuple(scale.ravel().tolist()),
            )
        # The maximum instead of the mean: p-values of different statistics may be dependent.
        total: Float64Array = evidence.max(axis=0) + self._log_share
        reached, raised_at = np.flatnonzero(total >= self.limit), before.raised_at
        if raised_at is None and len(reached):
            raised_at = before.images + int(reached[0]) + 1
        self.state = AlarmState(
            images=before.images + n_images,
            evidence=float(total[-1]) if n_images else before.evidence,
            raised_at=raised_at,
            statistics=statistics,
        )
        return total

    @property
    def leading_statistic(self) -> str:
        """The statistic with the largest capital."""
        with np.errstate(divide="ignore"):
            won = {name: np.max(np.log2(one.capital) + one.scale) for name, one in self.state.statistics.items()}
        return max(won, key=lambda name: won[name])

    def resume(self, state: AlarmState) -> None:
        """Resume from the state of an alarm with the same arguments; KeyError or ValueError if it does not fit."""
        for name, expected in self.state.statistics.items():
            found = state.statistics[name]
            for field in ("counts", "capital", "scale"):
                if len(getattr(found, field)) != len(getattr(expected, field)):
                    raise ValueError(f"expected {len(getattr(expected, field))} numbers in {field} of {name}")
        self.state = state


# ---- Compiled loops (a NumPy form in logs took 3.1 to 3.8 times as long, and differed in the last digits)


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    numba = import_extra("numba", feature="the shift alarm", extra="fast")  # takes a second to import
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compiled


def rank_images(bins: IntArray, uniforms: Float64Array, counts: IntArray) -> Float64Array:
    """Return the rank of each image among the counted ones as a fraction inside (0, 1), and count it. float64 [n]

    Images without a value have bin -1 (bins is int64 [n]) and rank NaN; uniforms [n] break ties. Modifies counts
    int64 [B], the images in each bin, in place.
    """
    p_values, n_counted = np.full(len(bins), np.nan), counts.sum()
    for i in range(len(bins)):
        if bins[i] < 0:
            continue
        below = 0
        for other in range(bins[i]):
            below += counts[other]
        p_value = (below + uniforms[i] * (counts[bins[i]] + 1)) / (n_counted + 1)
        # Rounding must not reach 1, where some densities are infinite; they are at 0 as well, but uniforms are above.
        p_values[i] = min(p_value, 1 - 2.0**-53)
        counts[bins[i]] += 1
        n_counted += 1
    return p_values


def _bet(
    p_values: Float64Array,
    first_image: int,
    powers: Float64Array,
    capital: Float64Array,
    scale: IntArray,
    evidence: Float64Array,
) -> None:
    """Bet on one statistic of n more images, and write the log of the total capital after each to `evidence` [n].

    p_values [n] are NaN for images without a value; `first_image` is the number of earlier images. Modifies in place:
    capital [K, 2] on each density, in units of 2 ** scale, int64 [K, 2], which prevents overflow.
    """
    waiting = (1 + first_image / START_SPAN) ** -START_DECAY
    for i in range(len(p_values)):
        waiting_before, waiting = waiting, (1 + (first_image + i + 1) / START_SPAN) ** -START_DECAY
        entering = (waiting_before - waiting) / (2 * len(powers))
        top = scale.max()
        total = math.ldexp(waiting, -top)
        for k in range(len(powers)):
            for side in range(2):
                capital[k, side] += math.ldexp(entering, -scale[k, side])
                if not math.isnan(p_values[i]):
                    rank = p_values[i] if side else 1 - p_values[i]
                    capital[k, side] *= powers[k] * rank ** (powers[k] - 1)
                total += math.ldexp(capital[k, side], scale[k, side] - top)
                # Powers of two rescale without rounding.
                if capital[k, side] > _SCALE:
                    scale[k, side] += _SCALE_BITS
                    capital[k, side] /= _SCALE
                elif scale[k, side] > 0 and capital[k, side] < 1:
                    scale[k, side] -= _SCALE_BITS
                    capital[k, side] *= _SCALE
        evidence[i] = math.log(total) + top * math.log(2.0)
