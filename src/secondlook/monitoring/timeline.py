"""The timeline of a stream: sums over windows of images, of which there are never many."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secondlook.arrays import BoolArray, Float64Array
from secondlook.files import Count, FrozenRecord, PositiveCount
from secondlook.monitoring.estimates import AccuracyEstimate

MAX_WINDOWS = 400
"""When there are more, windows are merged in pairs."""


class WindowSums(FrozenRecord):
    """Counts of the images of a window, and sums over them."""

    images: PositiveCount
    accepted: Count
    auditable: Count
    """Accepted images that could have been audited."""
    compared: Count
    """Images with more than one look, which have a disagreement."""
    confidence: float
    disagreement: float
    features: tuple[float, ...]
    accepted_features: tuple[float, ...]
    evidence: float
    """Logarithm of the evidence of a shift after the last image."""

    def merge(self, later: "WindowSums") -> "WindowSums":
        """Return both windows as one."""
        return WindowSums(
            images=self.images + later.images,
            accepted=self.accepted + later.accepted,
            auditable=self.auditable + later.auditable,
            compared=self.compared + later.compared,
            confidence=self.confidence + later.confidence,
            disagreement=self.disagreement + later.disagreement,
            features=add_up(self.features, later.features),
            accepted_features=add_up(self.accepted_features, later.accepted_features),
            evidence=later.evidence,
        )


@dataclass(frozen=True, eq=False)
class WindowRows:
    """What a timeline needs to know of n images."""

    confidence: Float64Array
    disagreement: Float64Array
    """NaN after a single look. float64 [n]"""
    accept: BoolArray
    auditable: BoolArray
    features: Float64Array
    """What accuracy is estimated from. float64 [n, F]"""
    evidence: Float64Array
    """Logarithm of the evidence of a shift after each image. float64 [n]"""


@dataclass(frozen=True)
class TimelineWindow:
    """A window of the stream, with what is known about its images."""

    start: int
    """Number of images before it."""
    images: int
    accepted: int
    confidence: float
    """Mean over the images."""
    disagreement: float | None
    """Mean over the images with more than one look; None if there are none."""
    estimate: AccuracyEstimate | None
    log10_evidence: float
    """Evidence of a shift after its last image, as a power of ten."""
    audit_low: float | None
    audit_high: float | None
    """Bounds of the risk from the audits up to its end; None without any."""

    @property
    def coverage(self) -> float:
        """Share of the images that were accepted."""
        return self.accepted / self.images

    def to_dict(self) -> dict[str, Any]:
        """Return the window as JSON values."""
        names = ("start", "images", "accepted", "coverage", "confidence", "disagreement", "log10_evidence")
        ends = [f"{name}{end}" for name in ("accuracy", "risk") for end in ("", "_low", "_high")]
        return {
            **{name: getattr(self, name) for name in names},
            **{f"estimated_{end}": None if self.estimate is None else getattr(self.estimate, end) for end in ends},
            "audited_risk_low": self.audit_low,
            "audited_risk_high": self.audit_high,
        }


class Timeline:
    """Windows of equally many images; only the last one may have fewer.

    Where images are added makes no difference: sums are computed one image after another, whatever was added together.
    """

    def __init__(self, size: int, windows: Sequence[WindowSums] = ()) -> None:
        self.size = size
        self.windows = list(windows)

    def add(self, rows: WindowRows) -> None:
        """Add images to the last window, and to as many new ones as they fill."""
        is_compared = np.isfinite(rows.disagreement)
        columns = np.column_stack(
            [
                rows.confidence,
                np.where(is_compared, rows.disagreement, 0.0),
                rows.features,
                np.where(rows.accept[:, None], rows.features, 0.0),
            ]
        )
        n_features, start = rows.features.shape[1], 0
        while start < len(columns):
            last = self._open_window()
            filled = 0 if last is None else last.images
            part = slice(start, start + self.size - filled)
            before = np.zeros(columns.shape[1]) if last is None else np.array(_list_sums(last))
            confidence, disagreement, *features = _accumulate(before, columns[part])
            window = WindowSums(
                images=filled + len(columns[part]),
                accepted=(last.accepted if last else 0) + int(rows.accept[part].sum()),
                auditable=(last.auditable if last else 0) + int(rows.auditable[part].sum()),
                compared=(last.compared if last else 0) + int(is_compared[part].sum()),
                confidence=confidence,
                disagreement=disagreement,
                features=tuple(features[:n_features]),
                accepted_features=tuple(features[n_features:]),
                evidence=float(rows.evidence[part][-1]),
            )
            self.windows[len(self.windows) - (last is not None) :] = [window]
            start += len(columns[part])

    def _open_window(self) -> WindowSums | None:
        """Return the last window if it has room for an image; otherwise make room for another window."""
        if self.windows and self.windows[-1].images < self.size:
            return self.windows[-1]
        if len(self.windows) == MAX_WINDOWS:
            pairs = zip(self.windows[::2], self.windows[1::2], strict=True)
            self.windows = [first.merge(second) for first, second in pairs]
            self.size *= 2
        return None


def add_up(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """Return the sum of two vectors."""
    return tuple(one + other for one, other in zip(first, second, strict=True))


def _list_sums(window: WindowSums) -> list[float]:
    return [window.confidence, window.disagreement, *window.features, *window.accepted_features]


def _accumulate(before: Float64Array, columns: Float64Array) -> list[float]:
    """Add rows to sums one after another, unlike `sum`, whose order depends on their number. [S], [n, S] -> [S]"""
    sums: list[float] = np.add.accumulate(np.vstack([before, columns]), axis=0)[-1].tolist()
    return sums
