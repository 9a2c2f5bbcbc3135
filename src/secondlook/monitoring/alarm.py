"""The shift alarm: an anytime-valid test that a stream of images still looks like the calibration images."""

import math
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import MonitoringError
from secondlook.files import Count, FrozenRecord
from secondlook.policies import BinCounts, Reference

# Bets and start times were chosen on corrupted CIFAR-10 images and resnet20; validity does not depend on them.
POWERS = (0.7, 0.9, 1.2, 1.6, 3.0)
"""The bets are the densities a (1 - p) ** (a - 1) and a p ** (a - 1) of a p-value, for each power a.

Powers above 1 find that all images change, powers below 1 that a few do.
"""
START_SPAN, START_DECAY = 30.0, 0.25
"""After t images, (1 + t / START_SPAN) ** -START_DECAY of the initial capital still waits for a later shift."""


class StatisticState(FrozenRecord):
    """What the alarm knows about one statistic."""

    counts: tuple[Count, ...]
    """Images of the stream in each bin of the reference."""
    capital: tuple[Annotated[float, Field(ge=0)], ...]
    """Capital at work on each density, in units of 2 ** scale."""
    scale: tuple[Count, ...]


class AlarmState(FrozenRecord):
    """All that a shift alarm needs to resume, to the last bit."""

    images: Count
    evidence: float
    raised_at: Count | None
    statistics: dict[str, StatisticState]


class _Statistic(NamedTuple):
    """One statistic of images and the bets on it. The arrays change in place."""

    histogram: BinCounts
    is_descending: bool
    """Whether large values are the suspicious ones: bins are then numbered from the largest value down."""
    counts: IntArray
    """Images of the reference and of the stream in each bin. [B]"""
    capital: Float64Array
    """Capital at work on each density, in units of 2 ** scale. [K, 2]"""
    scale: IntArray
    """[K, 2]"""

    def find_bins(self, values: Float64Array) -> IntArray:
        """Return the bin of each value, -1 for NaN. float64 [n] -> int64 [n]"""
        bins = self.histogram.find_bins(values)
        if self.is_descending:
            bins = len(self.counts) - 1 - bins
        bins[np.isnan(values)] = -1
        return bins


class ShiftAlarm:
    """A test that images still look like the calibration images, without labels, valid at every moment.

    Each image is ranked among the calibration images and all earlier images of the stream; while nothing changes, these
    ranks (conformal p-values) are independent and uniform. Capital is bet against that, and much capital is evidence of
    a shift: it reaches 1 / alpha with a probability of at most `alpha`, however long the stream.

    The confidence and the disagreement are tested, each with half of alpha; if images are looked at until they are
    decided, the first look alone. (Testing the first look as a third statistic gained nothing: it reacts later than
    the disagreement.) If the method was chosen from several on the calibration images, they share alpha.

    Parameters
    ----------
    reference
        How the calibration images looked, from the policy.
    is_adaptive
        Whether the policy has a schedule of looks.
    alpha
        Largest probability of a false alarm over the whole stream.
    seed
        Random seed of the numbers that break ties.
    """

    def __init__(self, reference: Reference, *, is_adaptive: bool, alpha: float = 0.05, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise MonitoringError(f"alpha= must be between 0 and 1, got {alpha}.")
        if is_adaptive:
            histograms = {"first_look": reference.first_look}
        else:
            histograms = {"confidence": reference.confidence}
            if reference.disagreement is not None:
                histograms["disagreement"] = reference.disagreement
        self._statistics = {name: _start_statistic(name, histogram) for name, histogram in histograms.items()}
        self._log_share = -math.log(len(self._statistics))
        self._seed = seed
        self.limit = math.log(reference.methods / alpha)
        """Log of the evidence at which the alarm is raised."""
        self.images = 0
        """Number of images so far."""
        self.evidence = self._log_share
        """Log of the evidence of a shift after the last image."""
        self.raised_at: int | None = None
        """Number of images after which the evidence was first large enough for an alarm; None if it never was."""

    def update(
        self, confidence: Float64Array, first_look: Float64Array, disagreement: Float64Array | None
    ) -> Float64Array:
        """Add images to the stream and return the log of the evidence after each. float64 [n] each

        An image whose disagreement is NaN is left out of that statistic. The result does not depend on how the stream
        is divided into updates.
        """
        from secondlook.monitoring.alarm_kernel import bet_on_p_values

        n_images = len(confidence)
        missing = np.full(n_images, np.nan)
        values = {
            "confidence": confidence,
            "first_look": first_look,
            "disagreement": missing if disagreement is None else disagreement,
        }
        uniforms = _draw_uniforms(self._seed, self.images, n_images)
        evidence = np.empty((len(self._statistics), n_images))
        for (name, statistic), row in zip(self._statistics.items(), evidence, strict=True):
            bet_on_p_values(
                statistic.find_bins(np.asarray(values[name], dtype=np.float64)),
                uniforms,
                self.images,
                START_SPAN,
                START_DECAY,
                np.array(POWERS),
                statistic.counts,
                statistic.capital,
                statistic.scale,
                row,
            )
        # The largest share and not the mean: p-values of one statistic need not be independent of those of another.
        total: Float64Array = evidence.max(axis=0) + self._log_share
        reached = np.flatnonzero(total >= self.limit)
        if self.raised_at is None and len(reached):
            self.raised_at = self.images + int(reached[0]) + 1
        self.images += n_images
        if n_images:
            self.evidence = float(total[-1])
        return total

    @property
    def state(self) -> AlarmState:
        """The state after the last image, for `resume`."""
        return AlarmState(
            images=self.images,
            evidence=self.evidence,
            raised_at=self.raised_at,
            statistics={name: _save_statistic(statistic) for name, statistic in self._statistics.items()},
        )

    @classmethod
    def resume(
        cls, reference: Reference, state: AlarmState, *, is_adaptive: bool, alpha: float = 0.05, seed: int = 0
    ) -> Self:
        """Return the alarm that had this state; the other arguments must be those that it was made with."""
        alarm = cls(reference, is_adaptive=is_adaptive, alpha=alpha, seed=seed)
        bins = {name: len(statistic.counts) for name, statistic in alarm._statistics.items()}
        if {name: len(statistic.counts) for name, statistic in state.statistics.items()} != bins:
            raise MonitoringError(
                f"the state of the shift alarm has the statistics {', '.join(state.statistics)}, which do not fit "
                f"those of the policy ({', '.join(bins)}); resume with the policy that the state was made with."
            )
        alarm.images, alarm.evidence, alarm.raised_at = state.images, state.evidence, state.raised_at
        for name, statistic in alarm._statistics.items():
            _restore_statistic(statistic, state.statistics[name])
        return alarm


def _start_statistic(name: str, histogram: BinCounts) -> _Statistic:
    """Return a statistic before the first image."""
    is_descending = name == "disagreement"
    counts = np.array(histogram.counts[::-1] if is_descending else histogram.counts, dtype=np.int64)
    shape = (len(POWERS), 2)
    return _Statistic(histogram, is_descending, counts, np.zeros(shape), np.zeros(shape, dtype=np.int64))


def _save_statistic(statistic: _Statistic) -> StatisticState:
    counts = statistic.counts[::-1] if statistic.is_descending else statistic.counts
    return StatisticState(
        counts=tuple((counts - np.array(statistic.histogram.counts)).tolist()),
        capital=tuple(statistic.capital.ravel().tolist()),
        scale=tuple(statistic.scale.ravel().tolist()),
    )


def _restore_statistic(statistic: _Statistic, state: StatisticState) -> None:
    if not len(state.capital) == len(state.scale) == statistic.capital.size:
        raise MonitoringError(
            f"the state of the shift alarm has {len(state.capital)} bets, expected {statistic.capital.size}; it is of "
            "another version of secondlook, so start a new one."
        )
    statistic.counts[:] += np.array(state.counts[::-1] if statistic.is_descending else state.counts)
    statistic.capital[:] = np.array(state.capital).reshape(statistic.capital.shape)
    statistic.scale[:] = np.array(state.scale).reshape(statistic.scale.shape)


def _draw_uniforms(seed: int, first: int, count: int) -> Float64Array:
    """Return the numbers inside (0, 1) that break the ties of images from number `first` on. float64 [count]"""
    bits = np.random.PCG64(seed).advance(first).random_raw(count) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52
