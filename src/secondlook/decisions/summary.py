"""`ScoreSummary`: the result of a scoring job."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from secondlook.policies import Guarantee
from secondlook.predictions import ComputedChunk

LISTED_WORKERS = 16
"""Largest number of workers listed in the text."""
LISTED_SKIPPED = 20
"""Largest number of skipped images listed in the text."""


@dataclass
class WorkerUse:
    """Work done by one worker, or by all workers of an engine."""

    images: int = 0
    chunks: int = 0
    seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Images per second of work."""
        return self.images / self.seconds if self.seconds else 0.0


@dataclass
class EngineUse(WorkerUse):
    """Work done by an engine and each of its workers, by name; without the work of an interrupted job before."""

    workers: dict[str, WorkerUse] = field(default_factory=dict)

    def add(self, chunk: ComputedChunk, n_images: int) -> None:
        """Count a chunk."""
        worker = self.workers.setdefault(chunk.worker, WorkerUse())
        worker.seconds += chunk.seconds
        for use in (self, worker):
            use.images += n_images
            use.chunks += 1

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        workers = [
            {"name": name, **asdict(worker), "images_per_second": worker.images_per_second}
            for name, worker in sorted(self.workers.items())
        ]
        speed = self.images_per_second
        return {"computed": self.images, "seconds": self.seconds, "images_per_second": speed, "workers": workers}

    def describe(self) -> Iterator[str]:
        """Yield a line about all workers, then one per worker."""
        if not self.workers:
            yield "computed: nothing, since all chunks were finished before"
            return
        count = f"{len(self.workers)} worker{'s' * (len(self.workers) != 1)}"
        speed = f"{self.images_per_second:,.0f} images/s"
        yield f"computed: {self.images:,} images in {self.seconds:,.1f} s by {count}, {speed}"
        for name, worker in sorted(self.workers.items())[:LISTED_WORKERS]:
            yield f"  {name}: {worker.images:,} images, {worker.images_per_second:,.0f} images/s of work"
        if len(self.workers) > LISTED_WORKERS:
            yield f"  {len(self.workers) - LISTED_WORKERS:,} more workers"


@dataclass(frozen=True)
class ScoreSummary:
    """Result of `score`: counts of images, the guarantee, and the files that were written."""

    out: Path | str
    """The file or folder of the scores, or its URL."""
    accepted: int
    rejected: int
    skipped: tuple[tuple[str, str], ...]
    """Id of each image that could not be read, and the reason."""
    guarantee: Guarantee | None
    guarantee_text: str
    """The guarantee as text, or 'none' with the reason."""
    mismatch: str | None
    """Why the guarantee of the policy does not hold, if it was used with another classifier."""
    rejected_folder: Path | None = None
    exports: tuple[str, ...] = ()
    looks: int = 0
    """Total number of looks."""
    views: int = 1
    """Number of looks per image without early stopping."""
    is_adaptive: bool = False
    """Whether the policy has a schedule, so that looking at an image stops once it is decided."""
    use: EngineUse | None = None
    """Work done by the workers of an engine; None if the images were scored in this process."""
    audited: int | None = None
    """Number of accepted images that are marked for review; None without an audit."""
    unfamiliar: int | None = None
    """Rejected images that look unlike all known images; None if the policy has no limit of familiarity."""

    @property
    def images(self) -> int:
        """Number of accepted and rejected images."""
        return self.accepted + self.rejected

    @property
    def mean_looks(self) -> float:
        """Mean number of looks at an image."""
        return self.looks / self.images if self.images else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the summary as JSON values."""
        return {
            "out": str(self.out),
            "images": self.images,
            "accepted": self.accepted,
            "rejected": self.rejected,
            **({} if self.unfamiliar is None else {"unfamiliar": self.unfamiliar}),
            **({} if self.audited is None else {"audited": self.audited}),
            "skipped": [{"id": id_, "reason": reason} for id_, reason in self.skipped],
            "mean_looks": self.mean_looks,
            "views": self.views,
            "guarantee": None if self.guarantee is None else str(self.guarantee),
            "guarantee_text": self.guarantee_text,
            "mismatch": self.mismatch,
            "rejected_folder": None if self.rejected_folder is None else str(self.rejected_folder),
            "exports": list(self.exports),
            **({} if self.use is None else self.use.to_dict()),
        }

    def __str__(self) -> str:
        return "\n".join(self._list_lines())

    def _list_lines(self) -> Iterator[str]:
        percentage = 100 * self.accepted / max(1, self.images)
        accepted = f"{self.accepted:,} accepted ({percentage:.4g} %)"
        rejected = f"{self.rejected:,} rejected"
        if self.unfamiliar is not None:
            rejected += f" ({self.unfamiliar:,} of them unfamiliar)"
        yield f"{self.images:,} images: {accepted}, {rejected}, {len(self.skipped):,} skipped"
        if self.audited is not None:
            yield f"audit: {self.audited:,} of the accepted images are marked for review"
        if self.is_adaptive:
            saved = f"saves {100 * (1 - self.mean_looks / self.views):.1f} % of the forward passes"
            yield f"looks: {self.mean_looks:.2f} of {self.views} on average, which {saved}"
        if self.use is not None:
            yield from self.use.describe()
        yield f"guarantee: {self.guarantee_text}"
        yield from (f"skipped: {id_}: {reason}" for id_, reason in self.skipped[:LISTED_SKIPPED])
        if len(self.skipped) > LISTED_SKIPPED:
            yield f"skipped: {len(self.skipped) - LISTED_SKIPPED:,} more"
        yield ""
        yield f"Scores: {self.out}"
        if self.rejected_folder is not None:
            yield f"Rejected images: {self.rejected_folder}"
        yield from (f"Review queue: {export}" for export in self.exports)
