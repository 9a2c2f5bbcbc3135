"""The monitoring part of a policy: statistics of its calibration images, audits, and models of accuracy under shift."""

import hashlib
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError
from secondlook.files import Count, FrozenRecord, PositiveCount
from secondlook.tables import TextTable, format_html

MAX_BINS = 100
"""Largest number of bins of a histogram: about a kilobyte each in the policy file."""
EDGE_SHARE = 5
"""One in this number of images chooses the edges of bins; the others are counted."""

# Chosen on CIFAR-10 and resnet20. Compared with uniform audits, finding a doubled error rate needs half the labels if
# errors occur where they were before, and a fifth more labels if the new errors are spread over all accepted images.
ERROR_POWER = 0.75
"""Images are audited with a probability proportional to this power of the error rate at their confidence."""
UNIFORM_SHARE = 0.2
"""Share of the audits that are uniform, to also find errors at unexpected confidences."""

SMALLEST_SHARE = 1e-3
"""Shares closer to 0 or 1 are clipped to this one for log-odds."""

Share = Annotated[float, Field(ge=0, le=1)]


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
        """Count values in random order: every fifth value chooses the edges, and the others are counted.

        Edges and counts are therefore independent, as required by the shift test. float64 [N]
        """
        choosing, counted = split_values(values)
        n_bins = min(MAX_BINS, len(choosing) + 1)
        quantiles = np.quantile(choosing, np.arange(1, n_bins) / n_bins, method="inverted_cdf")
        edges = np.unique([_round(value) for value in quantiles.tolist()])
        counts = np.bincount(np.searchsorted(edges, counted, side="right"), minlength=len(edges) + 1)
        return cls(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()))

    def find_bins(self, values: Float64Array) -> IntArray:
        """Return the bin of each value. float64 [n] -> int64 [n]"""
        return np.searchsorted(self.edges, values, side="right").astype(np.int64)


class Reference(FrozenRecord):
    """Histograms of calibration images, for comparison with new images."""

    images: PositiveCount
    """Number of images in each histogram."""
    methods: PositiveCount = 1
    """Number of methods that were compared on these images."""
    confidence: BinCounts
    errors: tuple[Count, ...] | None
    """Errors among the images of each bin of `confidence`, accepted or not; None without labels."""
    first_look: BinCounts
    """The probability of the predicted class after the first look."""
    disagreement: BinCounts | None
    """None with a single view, or with a schedule."""
    familiarity: BinCounts | None = None
    """None if the policy has no limit of familiarity."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        for histogram in (self.confidence, self.first_look, self.disagreement, self.familiarity):
            if histogram is not None and sum(histogram.counts) != self.images:
                raise ValueError(f"expected {self.images} images in each histogram, got {sum(histogram.counts)}")
        if self.errors is not None:
            counts = self.confidence.counts
            if len(self.errors) != len(counts):
                raise ValueError(f"expected {len(counts)} counts of errors, got {len(self.errors)}")
            if any(wrong > images for wrong, images in zip(self.errors, counts, strict=True)):
                raise ValueError("expected at most as many errors as images in each bin")
        return self

    @classmethod
    def make(
        cls,
        confidence: Float64Array,
        first_look: Float64Array,
        disagreement: Float64Array | None,
        wrong: BoolArray | Float64Array | None,
        familiarity: Float64Array | None = None,
        *,
        methods: int = 1,
    ) -> Self:
        """Return the reference for the values of images. float64 [N] each

        `wrong` marks errors, or has the number of errors that each image represents.
        """
        # Shuffle: the order of images may depend on their content, but the choice of edges must not.
        order = np.random.default_rng(0).permutation(len(confidence))
        confidence, first_look = confidence[order], first_look[order]
        histogram = BinCounts.count(confidence)
        errors = None
        if wrong is not None:
            bins = histogram.find_bins(split_values(confidence)[1])
            found = np.bincount(bins, split_values(wrong[order])[1], minlength=len(histogram.counts))
            errors = tuple(np.minimum(np.rint(found).astype(np.int64), histogram.counts).tolist())
        return cls(
            images=sum(histogram.counts),
            methods=methods,
            confidence=histogram,
            errors=errors,
            first_look=BinCounts.count(first_look),
            disagreement=None if disagreement is None else BinCounts.count(disagreement[order]),
            familiarity=None if familiarity is None else BinCounts.count(familiarity[order]),
        )


def split_values(values: Array) -> tuple[Array, Array]:
    """Return every fifth value, to choose edges from, and the other values, to count. [N] -> [n], [N - n]"""
    is_choosing = np.arange(len(values)) % EDGE_SHARE == 0
    return values[is_choosing], values[~is_choosing]


def _round(value: float) -> float:
    """Round a value to four digits for a small file; above one half, keep three digits of its distance to 1."""
    if 0.5 < value < 1:
        return round(value, 2 - math.floor(math.log10(1 - value)))
    return float(f"{value:.4g}")


# --- Audits ---


class AuditPlan:
    """The audit probability of each accepted image, larger where errors are likelier.

    `rate` is the fraction of the accepted images to audit: the mean probability over the accepted calibration images.
    Without a reference, or without errors in it, all accepted images are equally likely.
    """

    def __init__(self, reference: Reference | None, threshold: float, rate: float) -> None:
        if not 0 < rate <= 1:
            raise DecisionError(f"the audit rate must be above 0 and at most 1, got {rate}.")
        self._edges, self._of_bin = np.empty(0), np.array([float(rate)])
        if reference is not None and reference.errors is not None:
            edges = np.array(reference.confidence.edges)
            # The whole bin that contains the threshold counts as accepted.
            first = int(np.searchsorted(edges, threshold, side="right"))
            images = np.array(reference.confidence.counts[first:], dtype=np.float64)
            errors = np.array(reference.errors[first:], dtype=np.float64)
            if errors.any():
                self._edges, self._of_bin = edges[first:], _spread_audits(images, errors, rate)

    @property
    def smallest(self) -> float:
        """Smallest audit probability of an accepted image."""
        return float(self._of_bin.min())

    def probabilities(self, confidence: Float64Array) -> Float64Array:
        """Return the audit probability of each accepted image. float64 [n] -> float64 [n]"""
        probabilities: Float64Array = self._of_bin[np.searchsorted(self._edges, confidence, side="right")]
        return probabilities

    @staticmethod
    def draw(ids: Sequence[str], seed: int) -> Float64Array:
        """Return a number in [0, 1) for each id; the image is audited if it is below its probability. float64 [n]

        It is a hash of seed and id, so it does not depend on the order of images or on chunks.
        """
        hashes = [hashlib.blake2b(f"{seed}:{image_id}".encode(), digest_size=8).digest() for image_id in ids]
        bits = np.frombuffer(b"".join(hashes), dtype="<u8") >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53


def _spread_audits(images: Float64Array, errors: Float64Array, rate: float) -> Float64Array:
    """Return the probability of each bin, decreasing with confidence; its mean over images is `rate`. float64 [B]"""
    from scipy.optimize import isotonic_regression

    weights = np.maximum(images, np.finfo(float).tiny)  # bins may be empty
    error_rates = isotonic_regression(errors / np.maximum(images, 1), weights=weights, increasing=False).x
    doubt = error_rates**ERROR_POWER
    shares = UNIFORM_SHARE + (1 - UNIFORM_SHARE) * doubt / np.average(doubt, weights=images)
    # Find the factor of the shares that gives this mean if probabilities are clipped at 1.
    low, high = 0.0, 1 / float(shares.min())
    for _ in range(100):
        middle = (low + high) / 2
        is_low = np.average(np.minimum(middle * shares, 1), weights=images) < rate
        low, high = (middle, high) if is_low else (low, middle)
    probabilities: Float64Array = np.minimum(high * shares, 1)
    return probabilities


# --- Shifts ---


class LearnedShift(FrozenRecord):
    """One kind of corruption: its views, from mild to severe, with the measured and the estimated accuracy of each."""

    kind: str
    views: tuple[str, ...] = Field(min_length=1)
    accuracy: tuple[Share, ...]
    estimate: tuple[Share, ...]
    """Estimated accuracy, without learning from this kind."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not len(self.views) == len(self.accuracy) == len(self.estimate):
            raise ValueError("expected an accuracy and an estimate for each view")
        return self


class AccuracyModel(FrozenRecord):
    """Estimates the log-odds of the accuracy of the images of a window.

    The estimate is constant + slope * e + class_weight * d * (clean - e). Here, e is the log-odds of the accuracy of
    calibration images with the same confidences, `clean` is e for the calibration images themselves, and d is the
    distance between the predicted classes and theirs.
    """

    clean: float
    constant: float
    slope: float
    class_weight: float
    error: float = Field(ge=0)
    """90 % quantile of the errors for unseen kinds of corruption, at the accuracy of the calibration images."""

    def estimate(self, expected: float, class_distance: float) -> float:
        """Return the log-odds of the accuracy from e, as a share, and d."""
        log_odds = ShiftModel.to_log_odds(expected)
        return self.constant + self.slope * log_odds + self.class_weight * class_distance * (self.clean - log_odds)

    def compute_spread(self, estimate: float) -> float:
        """Return the size of errors relative to those at the accuracy of the calibration images."""
        return 1 + max(self.constant + self.slope * self.clean - estimate, 0.0)


class RiskModel(FrozenRecord):
    """Log-odds of the accuracy of accepted images from those of all images: constant + slope * log-odds."""

    constant: float
    slope: float
    error: float = Field(ge=0)
    """Like `AccuracyModel.error`."""


class ShiftModel(FrozenRecord):
    """Estimates the accuracy of shifted images from confidences and predicted classes."""

    DEFAULT_IMAGES: ClassVar[int] = 500
    """Number of labeled images to corrupt for learning."""
    MIN_IMAGES: ClassVar[int] = 50
    """Smallest number of images for the accuracy of a corruption."""
    MAX_CLASS_GROUPS: ClassVar[int] = 16
    """Largest number of groups to count predicted classes in, which limits the size of a window of the stream.

    Class c is in group c modulo their number, so neighbors, which are often similar, are in different groups.
    """

    images: PositiveCount
    """Number of images with classified corruptions."""
    class_shares: tuple[Share, ...] = Field(min_length=1, max_length=16)
    """Share of the calibration images with predictions in each group of classes."""
    accuracy: AccuracyModel
    risk: RiskModel | None
    """None if corrupted images are hardly ever accepted."""
    shifts: tuple[LearnedShift, ...] = Field(min_length=1)

    def estimate_accuracy(self, expected: float, class_counts: Float64Array, images: float) -> tuple[float, float]:
        """Return the log-odds of the accuracy of a window, and their error. float, float64 [G], number of images"""
        value = self.accuracy.estimate(expected, self.measure_class_distance(class_counts, self.class_shares, images))
        return value, self.accuracy.error * self.accuracy.compute_spread(value)

    def estimate_accepted(self, accuracy: float) -> tuple[float, float] | None:
        """Return the log-odds of the accuracy of accepted images from those of all images, and their error; or None."""
        if self.risk is None:
            return None
        error = self.risk.error * self.accuracy.compute_spread(accuracy)
        return self.risk.constant + self.risk.slope * accuracy, error

    @staticmethod
    def measure_class_distance(counts: Float64Array, shares: tuple[float, ...], images: float) -> float:
        """Return the Euclidean distance of the shares of classes among images from given shares. float64 [G]

        The expected distance of a random sample is subtracted; `images` is its effective size.
        """
        found = np.asarray(counts, dtype=np.float64) / np.sum(counts)
        squared = float(np.sum((found - shares) ** 2) - (1 - np.sum(found**2)) / images)
        return math.sqrt(max(squared, 0.0))

    @staticmethod
    def to_log_odds(share: float) -> float:
        """Return log(s / (1 - s)) of the share, clipped away from 0 and 1."""
        kept = min(max(share, SMALLEST_SHARE), 1 - SMALLEST_SHARE)
        return math.log(kept / (1 - kept))

    @staticmethod
    def to_share(log_odds: float) -> float:
        """Return the share for log-odds."""
        return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0 else 1 - 1 / (1 + math.exp(log_odds))

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

    def _blocks(self) -> list[object]:
        """Return a text and a table of the estimates for unseen corruptions."""
        pairs = [pair for one in self.shifts for pair in zip(one.accuracy, one.estimate, strict=True)]
        error = sum(abs(accuracy - estimate) for accuracy, estimate in pairs) / len(pairs)
        rows = [("shift", "accuracy", "estimate")]
        rows += [(one.kind, _format_shares(one.accuracy), _format_shares(one.estimate)) for one in self.shifts]
        return [
            f"shifts: learned from {len(pairs)} corruptions of {self.images:,} images, mild to severe",
            TextTable(rows, numbers=True),
            f"The accuracy under an unseen corruption is estimated with an error of {100 * error:.1f} points on "
            "average (an estimate, not a guarantee).",
        ]


def _format_shares(shares: tuple[float, ...]) -> str:
    return "  ".join(f"{100 * share:5.1f} %" for share in shares)
