"""What a monitor remembers of a stream, as it is stored in a file."""

from typing import Any, Literal

from pydantic import Field

from secondlook.files import Count, FrozenRecord, PositiveCount, SealedRecord
from secondlook.monitoring.alarm import AlarmState
from secondlook.monitoring.timeline import WindowSums


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

    def to_dict(self) -> dict[str, Any]:
        """Return the image as JSON values."""
        return {"wrong": self.wrong, **self.model_dump(mode="json")}


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


class DoubtfulImage(StreamImage):
    """An accepted image about which there was much doubt."""

    @property
    def rank(self) -> tuple[float, float, int]:
        """Where the image stands in a list of doubtful images, smallest first: by disagreement, then by confidence."""
        return -(self.disagreement or 0.0), self.confidence, self.image


class ReadFile(FrozenRecord):
    """A file of scores that was read."""

    name: str
    size: Count
    digest: str
    images: Count


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
    doubtful: tuple[DoubtfulImage, ...]
    files: tuple[ReadFile, ...] = ()
    """The files of scores that were read, if the stream came from files."""
