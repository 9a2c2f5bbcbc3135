"""What came of a scoring, in a few lines for people and as JSON for machines."""

from dataclasses import dataclass
from pathlib import Path

from secondlook.selective import Guarantee

SKIPPED_TOLD = 20


@dataclass(frozen=True)
class ScoreSummary:
    """How many images were accepted, rejected and skipped, what is guaranteed, and where things are."""

    out: Path
    accepted: int
    rejected: int
    skipped: tuple[tuple[str, str], ...]
    """The id of each image that could not be read, and why."""
    guarantee: Guarantee | None
    mismatch: str | None
    """Why a guarantee of the policy does not hold, where another classifier was insisted on."""
    rejected_folder: Path | None = None
    exports: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """How many images were decided about."""
        return self.accepted + self.rejected

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON can hold it."""
        return {
            "out": str(self.out),
            "images": self.images,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "skipped": [{"id": name, "reason": reason} for name, reason in self.skipped],
            "guarantee": None if self.guarantee is None else str(self.guarantee),
            "mismatch": self.mismatch,
            "rejected_folder": None if self.rejected_folder is None else str(self.rejected_folder),
            "exports": list(self.exports),
        }

    def __str__(self) -> str:
        share = 100 * self.accepted / self.images
        lines = [
            f"{self.images:,} images: {self.accepted:,} accepted ({share:.4g} %), {self.rejected:,} rejected, "
            f"{len(self.skipped):,} skipped",
            f"guarantee: {self._guarantee()}",
            *(f"skipped: {name}: {reason}" for name, reason in self.skipped[:SKIPPED_TOLD]),
        ]
        if len(self.skipped) > SKIPPED_TOLD:
            lines.append(f"skipped: {len(self.skipped) - SKIPPED_TOLD:,} more; --json lists all")
        return "\n".join([*lines, "", *self._places()])

    def _guarantee(self) -> str:
        if self.mismatch is not None:
            return f"none, since {self.mismatch}"
        return "none" if self.guarantee is None else str(self.guarantee)

    def _places(self) -> list[str]:
        folder = [] if self.rejected_folder is None else [f"Rejected images in {self.rejected_folder}"]
        return [f"Scores in {self.out}", *folder, *(f"For review: {text}" for text in self.exports)]
