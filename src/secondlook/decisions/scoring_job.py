"""`ScoringJob`: what scoring jobs share, whether a classifier or an exported file is run."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from secondlook.arrays import Output
from secondlook.decisions.chunk_scorers import OnPredictions
from secondlook.decisions.chunk_worker import EngineUse
from secondlook.decisions.chunks import JobRecord, ScoreChunks, Totals
from secondlook.decisions.destinations import Destination
from secondlook.decisions.exports import ExportFile
from secondlook.decisions.review import QUEUE_COLUMNS, ImageLocations, RejectedFolder, ReviewQueue
from secondlook.decisions.rows import AUDIT, RowOptions
from secondlook.decisions.summary import ScoreSummary
from secondlook.policies import Policy
from secondlook.progress import progress_bar
from secondlook.sources import Source

OUTPUT_BYTES = 256 * 2**20
"""Approximate memory for the outputs of one chunk."""


def make_job_record(
    policy: Policy,
    source: Source,
    options: RowOptions,
    class_names: tuple[str, ...] | None,
    *,
    classifier: str,
    output: Output,
    preprocessing: dict[str, object],
    rows: int,
) -> JobRecord:
    """Return the identity of a job; `classifier` is a digest of what classifies, `rows` the images per chunk."""
    return JobRecord(
        policy=hashlib.sha256(policy.model_dump_json().encode()).hexdigest(),
        classifier=classifier,
        output=output,
        preprocessing=preprocessing,
        data=source.digest,
        images=len(source),
        rows=rows,
        level=options.level,
        seed=options.seed,
        per_view=options.per_view,
        class_names=class_names,
        audit=options.audit,
    )


@dataclass(frozen=True)
class ScoringJob(ABC):
    """A scoring job that is ready to run: policy, classifier and source are loaded and checked."""

    policy: Policy
    mismatch: str | None
    """Why the guarantee of the policy does not hold, if the classifier is not its own."""
    source: Source
    options: RowOptions
    class_names: tuple[str, ...] | None
    n_classes: int
    record: JobRecord

    @abstractmethod
    def compute_chunks(
        self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None, *, progress: bool
    ) -> EngineUse | None:
        """Compute every chunk that is missing; return what the workers of an engine did, if there is one."""

    def write_review(
        self,
        chunks: ScoreChunks,
        locations: ImageLocations,
        exports: Sequence[ExportFile],
        *,
        include_accepted: bool,
        progress: bool,
    ) -> None:
        """Write the folder of rejected images and the exports."""
        if locations.rejected is not None:
            queue = self._make_queue(chunks, include_accepted=False)
            with progress_bar("rejected images", len(queue), "images", enabled=progress) as advance:
                locations.rejected.fill(queue, chunks, advance)
        if exports:
            queue = self._make_queue(chunks, include_accepted=include_accepted)
            for export in exports:
                export.write(queue, locations)

    def summarize(
        self,
        totals: Totals,
        destination: Destination,
        folder: RejectedFolder | None,
        exports: Sequence[ExportFile],
        use: EngineUse | None,
    ) -> ScoreSummary:
        """Return the counts of accepted, rejected and skipped images, and of looks, with all that was written."""
        return ScoreSummary(
            destination.find_path() or str(destination),
            totals.accepted,
            totals.images - totals.accepted,
            totals.skipped,
            None if self.mismatch else self.policy.rule.guarantee,
            self.mismatch,
            None if folder is None else folder.path,
            tuple(str(export) for export in exports),
            self.policy.guarantee_text,
            totals.looks,
            len(self.policy.views) if self.policy.schedule is None else self.policy.schedule.full_looks,
            self.policy.schedule is not None,
            use,
            None if self.options.audit is None else totals.audited,
        )

    def _make_queue(self, chunks: ScoreChunks, *, include_accepted: bool) -> ReviewQueue:
        class_names = self.class_names or tuple(str(label) for label in range(self.n_classes))
        tables = chunks.read([*QUEUE_COLUMNS, *([] if self.options.audit is None else [AUDIT])])
        return ReviewQueue.from_rows(tables, self.source.ids, class_names, include_accepted=include_accepted)

    @property
    def origin(self) -> dict[str, str]:
        """What else than the policy decided, for the metadata."""
        return {}

    @property
    def metadata(self) -> dict[str, str]:
        """The policy, the data and the options, for formats that can store them."""
        content = {
            "policy": json.loads(self.policy.model_dump_json()),
            "data": self.source.spec,
            "level": self.options.level,
            "seed": self.options.seed,
            **({} if self.options.audit is None else {"audit": self.options.audit}),
            "mismatch": self.mismatch,
            **self.origin,
        }
        return {"secondlook.score": json.dumps(content, ensure_ascii=False)}
