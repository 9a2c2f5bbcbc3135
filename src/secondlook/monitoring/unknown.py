"""Unknown images: their share among reviewed images, and an alarm for its growth."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array, IntArray, exact_interval
from secondlook.decisions import Answer
from secondlook.files import Count, FrozenRecord, PositiveCount
from secondlook.policies import Reference
from secondlook.tables import format_rate

SMALLEST_PERIOD = 50
"""Rejected images in the shortest period that is compared with all images before it; longer periods double."""

LOWEST_SHARES = (0.25, 0.5, 1.0)
"""The least confident shares of rejected images; each is compared separately.

Reviewers begin with the least confident images. If they review no others, their share is complete.
"""

Label = Annotated[int, Field(ge=min(Answer))]
"""The index of a class, or an `Answer`."""


class RejectedImage(NamedTuple):
    """A rejected image."""

    id: str
    image: PositiveCount
    """Position in the stream, counted from 1."""
    part: Count
    """Index of the first of `LOWEST_SHARES` that contains it, by the confidence of rejected calibration images."""
    label: Label | None = None
    """Label of the reviewer; None until the image is reviewed."""


class UnknownShare(FrozenRecord):
    """Share of unknown images among reviewed ones, and the alarm for its growth among rejected images."""

    reviewed: Count
    """Reviewed images: rejected ones and audits."""
    none_of_these: Count
    low: float
    high: float
    """Exact 95 % interval of their share, if the reviewed images are a random sample of the images to review."""
    bad_images: Count
    cannot_tell: Count
    """Images that reviewers marked 'cannot tell'; they are not in `reviewed`."""
    p_value: float = 1.0
    """P-value of a constant share, valid at any time; the alarm is raised once it is at most alpha."""
    raised_at: Count | None = None
    """Number of images at which the alarm was raised; None without an alarm."""
    since: Count | None = None
    """Image at which the larger share begins, approximately; None without an alarm, as are the shares."""
    share_before: float | None = None
    share_since: float | None = None
    """Share among the reviewed images that were compared, before that image and from it on."""
    compared: float | None = None
    """Share of the rejected images that was compared: 1, or less for the least confident ones only."""

    @property
    def share(self) -> float | None:
        """Share of the reviewed images that show none of the classes; None without reviews."""
        return self.none_of_these / self.reviewed if self.reviewed else None

    def to_dict(self) -> dict[str, object]:
        """Return the counts, the shares and the alarm as JSON values."""
        return {"share": self.share, "raised": self.raised_at is not None, **self.model_dump(mode="json")}

    @property
    def growth(self) -> str:
        """Sentence that describes the growth; empty without an alarm."""
        if self.raised_at is None:
            return ""
        before, since = (format_rate(share or 0.0) for share in (self.share_before, self.share_since))
        which = "rejected images" if self.compared == 1 else "rejected images of low confidence"
        shares = f"{before} of the reviewed {which} before, {since} since image {self.since:,}"
        return (
            f"The share of images of none of the classes has grown: {shares} (alarm after {self.raised_at:,} images)."
        )

    def __str__(self) -> str:
        share = "" if self.share is None else f" ({format_rate(self.share)}, "
        share += f"{format_rate(self.low)} to {format_rate(self.high)})" if share else ""
        state = "not raised" if self.raised_at is None else f"raised after {self.raised_at:,} images"
        others = f"{self.bad_images:,} 'bad image', {self.cannot_tell:,} 'cannot tell'"
        return (
            f"{self.none_of_these:,} of {self.reviewed:,} reviewed images{share}; {others}; "
            f"growth alarm {state} (p-value {self.p_value:.2g})"
        )


def find_cuts(reference: Reference, threshold: float) -> Float64Array:
    """Return the confidences that divide rejected images into the parts of `LOWEST_SHARES`. float64 [parts - 1]"""
    edges, below = np.array(reference.confidence.edges), np.cumsum(reference.confidence.counts)[:-1]
    edges, below = edges[edges < threshold], below[edges < threshold]
    wanted = np.multiply(LOWEST_SHARES[:-1], below[-1] if len(below) else 0)
    return np.append(edges, threshold)[np.searchsorted(below, wanted)]


def judge_unknown(
    rejected: Sequence[RejectedImage], audited: Iterable[int | None], *, alpha: float = 0.05
) -> UnknownShare:
    """Count reviewed labels, and test whether unknown images became more frequent among rejected images.

    `rejected` are all rejected images in the order of the stream, `audited` the labels of audits. If the rejected
    images of a stream are exchangeable, the alarm is ever raised with probability at most `alpha`, for any choice and
    order of reviews (proof in docs/background/monitoring-proofs.md). Audits are counted but not tested, since their
    rate may change.
    """
    labels = [image.label for image in rejected]
    counts = Counter([*labels, *audited])
    cannot_tell = counts[Answer.CANNOT_TELL]
    reviewed, unknown = counts.total() - counts[None] - cannot_tell, counts[Answer.NONE_OF_THESE]
    low, high = exact_interval(unknown, reviewed)
    found = UnknownShare(
        reviewed=reviewed,
        none_of_these=unknown,
        low=low,
        high=high,
        bad_images=counts[Answer.BAD_IMAGE],
        cannot_tell=cannot_tell,
    )
    growths = []
    for part, share in enumerate(LOWEST_SHARES):
        images = [image for image in rejected if image.part <= part]
        is_unknown = np.array([image.label == Answer.NONE_OF_THESE for image in images], dtype=np.bool_)
        is_reviewed = np.array([image.label is not None for image in images], dtype=np.bool_)
        starts, ends, p_values = compare_periods(is_unknown, is_reviewed)
        p_values *= len(LOWEST_SHARES)
        found = found.model_copy(update={"p_value": float(p_values.min(initial=found.p_value))})
        raised = np.flatnonzero(p_values <= alpha)
        if len(raised):
            first = raised[np.lexsort((p_values[raised], ends[raised]))[0]]
            start, before, since = images[starts[first]].image, slice(0, starts[first]), slice(starts[first], None)
            shares = [float(is_unknown[one].sum() / max(1, is_reviewed[one].sum())) for one in (before, since)]
            growths.append((images[ends[first] - 1].image, start, *shares, share))
    names = ("raised_at", "since", "share_before", "share_since", "compared")
    return found.model_copy(update=dict(zip(names, min(growths), strict=True))) if growths else found


def compare_periods(is_unknown: BoolArray, is_reviewed: BoolArray) -> tuple[IntArray, IntArray, Float64Array]:
    """Compare periods of n images with all images before them; return starts, ends and adjusted p-values.

    A period of 50, 100, 200, ... images ends after each multiple of its length. An image that was not reviewed counts
    as unknown before a period and as known in it. Exact hypergeometric (Fisher) p-values are divided by weights, which
    sum to 1 over all possible comparisons. bool [n] each -> int64 [m], int64 [m], float64 [m]
    """
    from scipy.stats import hypergeom  # takes half a second to import

    n_images = len(is_unknown)
    possible, certain = (np.append(0, np.cumsum(counted)) for counted in (is_unknown | ~is_reviewed, is_unknown))
    columns = [np.zeros((3, 0))]
    length, level = SMALLEST_PERIOD, 1
    while 2 * length <= n_images:
        ends = np.arange(2 * length, n_images + 1, length)
        turns = np.arange(1, len(ends) + 1)
        weights = (1 / np.sqrt(turns) - 1 / np.sqrt(turns + 1)) / (level * (level + 1))
        columns.append(np.stack([ends - length, ends, weights]))
        length, level = 2 * length, level + 1
    *places, weight = np.concatenate(columns, axis=1)
    start, end = np.array(places, dtype=np.int64)
    before, latest = possible[start], certain[end] - certain[start]
    # Exact probabilities are slow, and most comparisons show no growth.
    tested = np.flatnonzero(latest * start > before * (end - start))
    start, end, weight, before, latest = (values[tested] for values in (start, end, weight, before, latest))
    return start, end, hypergeom.sf(latest - 1, end, before + latest, end - start) / weight
