"""Audits: which accepted images are marked for review, with known probabilities."""

import hashlib
from collections.abc import Sequence

import numpy as np

from secondlook.arrays import Float64Array
from secondlook.errors import DecisionError
from secondlook.policies.reference import Reference

# Chosen on CIFAR-10 and resnet20: a doubled error rate is found with half the labels of even audits if errors are where
# they were before, and with a fifth more labels if the new ones are anywhere among accepted images.
ERROR_POWER = 0.75
"""Images are audited in proportion to this power of the error rate at their confidence."""
UNIFORM_SHARE = 0.2
"""Share of the audits that are spread evenly, so that errors are also found where none were expected."""


class AuditPlan:
    """The probability with which each accepted image is audited: larger where errors are likelier.

    Parameters
    ----------
    reference
        How the calibration images looked. Without it, or without errors in it, all accepted images are equally likely.
    threshold
        Confidence from which images are accepted.
    rate
        Fraction of the accepted images to audit: the mean probability over the accepted calibration images.
    """

    def __init__(self, reference: Reference | None, threshold: float, rate: float) -> None:
        if not 0 < rate <= 1:
            raise DecisionError(f"the audit rate must be above 0 and at most 1, got {rate}.")
        self._edges, self._of_bin = np.empty(0), np.array([float(rate)])
        if reference is not None and reference.errors is not None:
            edges = np.array(reference.confidence.edges)
            # The bin that the threshold falls into counts as accepted, with all its images.
            first = int(np.searchsorted(edges, threshold, side="right"))
            images = np.array(reference.confidence.counts[first:], dtype=np.float64)
            errors = np.array(reference.errors[first:], dtype=np.float64)
            if errors.any():
                self._edges, self._of_bin = edges[first:], _spread_audits(images, errors, rate)

    @property
    def smallest(self) -> float:
        """Smallest probability that an accepted image can have."""
        return float(self._of_bin.min())

    def probabilities(self, confidence: Float64Array) -> Float64Array:
        """Return the probability that each accepted image is audited. float64 [n] -> float64 [n]"""
        probabilities: Float64Array = self._of_bin[np.searchsorted(self._edges, confidence, side="right")]
        return probabilities


def draw_audits(ids: Sequence[str], seed: int) -> Float64Array:
    """Return a number in [0, 1) for each id: an accepted image is audited if it is below its probability. float64 [n]

    It is a hash of seed and id, so that it does not depend on the order of images or on how they are divided.
    """
    hashes = [hashlib.blake2b(f"{seed}:{image_id}".encode(), digest_size=8).digest() for image_id in ids]
    bits = np.frombuffer(b"".join(hashes), dtype="<u8") >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _spread_audits(images: Float64Array, errors: Float64Array, rate: float) -> Float64Array:
    """Return the probability of each bin, which falls with confidence; its mean over images is `rate`. float64 [B]"""
    from scipy.optimize import isotonic_regression

    weights = np.maximum(images, np.finfo(float).tiny)  # bins may be empty
    error_rates = isotonic_regression(errors / np.maximum(images, 1), weights=weights, increasing=False).x
    doubt = error_rates**ERROR_POWER
    shares = UNIFORM_SHARE + (1 - UNIFORM_SHARE) * doubt / np.average(doubt, weights=images)
    return _scale_to_mean(shares, images, rate)


def _scale_to_mean(shares: Float64Array, images: Float64Array, mean: float) -> Float64Array:
    """Return min(1, factor * shares) with the factor that gives this mean over images. float64 [B] each"""
    low, high = 0.0, 1 / float(shares.min())
    for _ in range(100):
        middle = (low + high) / 2
        is_low = np.average(np.minimum(middle * shares, 1), weights=images) < mean
        low, high = (middle, high) if is_low else (low, middle)
    scaled: Float64Array = np.minimum(high * shares, 1)
    return scaled
