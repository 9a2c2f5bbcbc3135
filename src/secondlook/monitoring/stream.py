"""What a monitor remembers of a stream: sums over windows, some images, and the files that were read."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from secondlook.arrays import Float64Array
from secondlook.files import Count, FrozenRecord, PositiveCount, SealedRecord
from secondlook.monitoring.alarm import AlarmState
from secondlook.monitoring.scores import ScoreRows

MAX_WINDOWS = 400
"""When there are more, windows are merged in pairs."""
SUMS = ("images", "accepted", "auditable", "compared", "confidence", "disagreement")
"""Counts and sums of a window, before those of the features."""


class StreamImage(FrozenRecord):
    """An accepted image that is remembered."""

    id: str
    image: PositiveCount
    """Which image of the stream it is, counted from 1."""
    predicted: tuple[Count, ...]
    confidence: float
    disagreement: float | None

    @property
    def wrong(self) -> bool | None:
        """Whether the prediction was found to be wrong; None if nobody knows."""
        return None

    @property
    def doubt(self) -> tuple[float, float, int]:
        """Sort key that puts the most doubtful images first: by disagreement, then by confidence."""
        return -(self.disagreement or 0.0), self.confidence, self.image

    def to_dict(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the image as JSON values, with classes by their names if these are given."""
        content = {"wrong": self.wrong, **self.model_dump(mode="json")}
        if class_names is not None:
            content["predicted"] = [class_names[one] for one in content["predicted"]]
            if content.get("label") is not None:
                content["label"] = class_names[content["label"]]
        return content


class AuditRecord(StreamImage):
    """An accepted image that was marked for review."""

    accepted: PositiveCount
    """Which of the accepted images that could have been marked it is, counted from 1."""
    probability: float = Field(gt=0, le=1)
    label: Count | None = None
    """The class that a person found; None until the image is reviewed."""

    @property
    def wrong(self) -> bool | None:
        """Whether none of the predicted classes is the label; None until the image is reviewed."""
        return None if self.label is None else self.label not in self.predicted


class ReadFile(FrozenRecord):
    """A file of scores that was read."""

    name: str
    size: Count
    digest: str
    images: Count


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

    @classmethod
    def add_up(cls, parts: Sequence[list[float]] | Float64Array, evidence: float) -> "WindowSums":
        """Return a window from the sums of its parts, or the values of its images, in the order of `sums`. [n, S]

        They are added one after another, unlike `sum`, whose order depends on their number.
        """
        sums = np.add.accumulate(np.asarray(parts, dtype=np.float64))[-1].tolist()
        counts: dict[str, Any] = dict(zip(SUMS, sums, strict=False))
        features, accepted_features = np.reshape(sums[len(SUMS) :], (2, -1)).tolist()
        return cls(**counts, features=features, accepted_features=accepted_features, evidence=evidence)

    @classmethod
    def join(cls, windows: Sequence["WindowSums"]) -> "WindowSums":
        """Return windows in a row as one."""
        return cls.add_up([window.sums for window in windows], windows[-1].evidence)

    @property
    def sums(self) -> list[float]:
        """All counts and sums in a row."""
        return [*(getattr(self, name) for name in SUMS), *self.features, *self.accepted_features]


class MonitorState(SealedRecord):
    """All that a monitor remembers, as it is stored in a file."""

    format: Literal["secondlook monitor"] = "secondlook monitor"
    version: Literal[1] = 1
    policy: str
    """Checksum of the policy."""
    alpha: float = Field(gt=0, lt=1)
    window: PositiveCount
    burn_in: Count
    seed: Count
    skipped: Count
    smallest_probability: float | None = Field(gt=0, le=1)
    """Smallest probability of an audit; None without audits."""
    shift: AlarmState
    window_size: PositiveCount
    """Images per window by now; windows are merged in pairs when there are too many."""
    windows: tuple[WindowSums, ...]
    audited: tuple[AuditRecord, ...]
    doubtful: tuple[StreamImage, ...]
    files: tuple[ReadFile, ...] = ()
    """The files of scores that were read, if the stream came from files."""


class Timeline:
    """Windows of equally many images; only the last one may have fewer.

    Where images are added makes no difference: sums are computed one image after another, whatever was added together.
    """

    def __init__(self, size: int, windows: Sequence[WindowSums] = ()) -> None:
        self.size = size
        self.windows = list(windows)

    def count(self, name: str) -> int:
        """Return a count over all windows, such as that of `images`."""
        return sum(getattr(window, name) for window in self.windows)

    def add(self, rows: ScoreRows, features: Float64Array, evidence: Float64Array) -> None:
        """Add images to the last window, and to as many new ones as they fill.

        `features` is what accuracy is estimated from, float64 [n, F], and `evidence` the logarithm of the evidence of a
        shift after each image, float64 [n].
        """
        is_compared = np.isfinite(rows.disagreement)
        counts = [np.ones(len(rows)), rows.accept, rows.is_auditable, is_compared]
        sums = [rows.confidence, np.where(is_compared, rows.disagreement, 0.0)]
        values = np.column_stack([*counts, *sums, features, np.where(rows.accept[:, None], features, 0.0)])
        start = 0
        while start < len(rows):
            last = self._pop_open_window()
            stop = min(start + self.size - (last.images if last else 0), len(rows))
            parts = np.vstack([last.sums, values[start:stop]]) if last else values[start:stop]
            self.windows.append(WindowSums.add_up(parts, float(evidence[stop - 1])))
            start = stop

    def _pop_open_window(self) -> WindowSums | None:
        """Remove and return the last window if it has room for an image; otherwise make room for another window."""
        if self.windows and self.windows[-1].images < self.size:
            return self.windows.pop()
        if len(self.windows) == MAX_WINDOWS:
            self.windows = [WindowSums.join(self.windows[place : place + 2]) for place in range(0, MAX_WINDOWS, 2)]
            self.size *= 2
        return None
