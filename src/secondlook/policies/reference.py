"""The reference of a policy: how its calibration images looked, as histograms that new images are compared with."""

import math
from typing import Self

import numpy as np
from pydantic import model_validator

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.files import Count, FrozenRecord, PositiveCount

MAX_BINS = 100
"""Largest number of bins of a histogram: about a kilobyte each in the policy file."""
EDGE_SHARE = 5
"""One of so many images chooses the edges of bins, and the others are counted."""


class BinCounts(FrozenRecord):
    """Counts of values between edges: bin i holds the values from edge i - 1 up to, not including, edge i."""

    edges: tuple[float, ...]
    counts: tuple[Count, ...]

    @model_validator(mode="after")
    def _check_bins(self) -> Self:
        if len(self.counts) != len(self.edges) + 1:
            raise ValueError(f"expected one more count than edges, got {len(self.counts)} and {len(self.edges)}")
        if any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("expected ascending edges")
        return self

    @classmethod
    def count(cls, values: Float64Array) -> Self:
        """Count values whose order is random: every fifth one chooses the edges, and the others are counted.

        So edges and counts are independent of each other, as the test of a shift requires. float64 [N]
        """
        choosing, counted = split_values(values)
        n_bins = min(MAX_BINS, len(choosing) + 1)
        quantiles = np.quantile(choosing, np.arange(1, n_bins) / n_bins, method="inverted_cdf")
        edges = np.unique([_round(value) for value in quantiles.tolist()])
        return cls(edges=tuple(edges.tolist()), counts=tuple(_count_bins(edges, counted).tolist()))

    def find_bins(self, values: Float64Array) -> IntArray:
        """Return the bin of each value. float64 [n] -> int64 [n]"""
        return np.searchsorted(self.edges, values, side="right").astype(np.int64)


class Reference(FrozenRecord):
    """The confidence and the disagreement of calibration images, which new images are compared with."""

    images: PositiveCount
    """Number of images in each histogram."""
    methods: PositiveCount = 1
    """Number of methods that the one of the policy was chosen from on these images."""
    confidence: BinCounts
    errors: tuple[Count, ...] | None
    """Errors among the images of each bin of `confidence`, accepted or not; None without labels."""
    first_look: BinCounts
    """The probability of the predicted class after the first look."""
    disagreement: BinCounts | None
    """None with a single view, or if images are looked at until they are decided."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        histograms = [self.confidence, self.first_look, *([self.disagreement] if self.disagreement else [])]
        for histogram in histograms:
            if sum(histogram.counts) != self.images:
                raise ValueError(f"expected {self.images} images in each histogram, got {sum(histogram.counts)}")
        if self.errors is not None:
            if len(self.errors) != len(self.confidence.counts):
                raise ValueError(f"expected {len(self.confidence.counts)} counts of errors, got {len(self.errors)}")
            if any(wrong > images for wrong, images in zip(self.errors, self.confidence.counts, strict=True)):
                raise ValueError("expected at most as many errors as images in each bin")
        return self


def make_reference(
    confidence: Float64Array,
    first_look: Float64Array,
    disagreement: Float64Array | None,
    wrong: BoolArray | Float64Array | None,
    *,
    methods: int = 1,
) -> Reference:
    """Return the reference of images, given what their rows hold. float64 [N] each

    `wrong` says which images are wrong, or how many wrong images each stands for; `methods` is the number of methods
    that the one of the policy was chosen from on these images.
    """
    # Which images choose the edges must not depend on what they look like, as their order may.
    order = np.random.default_rng(0).permutation(len(confidence))
    confidence, first_look = confidence[order], first_look[order]
    histogram = BinCounts.count(confidence)
    errors = None
    if wrong is not None:
        bins = histogram.find_bins(split_values(confidence)[1])
        found = np.bincount(bins, split_values(wrong[order])[1], minlength=len(histogram.counts))
        errors = tuple(np.minimum(np.rint(found).astype(np.int64), histogram.counts).tolist())
    return Reference(
        images=sum(histogram.counts),
        methods=methods,
        confidence=histogram,
        errors=errors,
        first_look=BinCounts.count(first_look),
        disagreement=None if disagreement is None else BinCounts.count(disagreement[order]),
    )


def split_values(values: Array) -> tuple[Array, Array]:
    """Return every fifth value, which edges are chosen from, and the others, which are counted. [N] -> [n], [N - n]"""
    is_choosing = np.arange(len(values)) % EDGE_SHARE == 0
    return values[is_choosing], values[~is_choosing]


def _round(value: float) -> float:
    """Return a value with few digits, so that the file stays small: three of what is missing to 1 above one half."""
    if 0.5 < value < 1:
        return round(value, 2 - math.floor(math.log10(1 - value)))
    return float(f"{value:.4g}")


def _count_bins(edges: Float64Array, values: Float64Array) -> IntArray:
    """Count the values in each bin. float64 [B - 1], [n] -> int64 [B]"""
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1).astype(np.int64)
