"""`score`: decide about new images with a policy, resume after an interruption, and write the review queue."""

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from secondlook.arrays import Array, is_whole_number
from secondlook.classifiers import Classifier, check_device
from secondlook.errors import DecisionError, SourceError
from secondlook.predictions import (
    PROGRESS_UNIT,
    BatchSize,
    CollectJob,
    Engine,
    SaveTimer,
    choose_batch_size,
    chunk_rows,
    read_first_image,
    skip_by_default,
)
from secondlook.progress import progress_bar
from secondlook.scoring.adaptive_looks import choose_chunk_rows
from secondlook.scoring.chunk_scorers import ChunkScoring, OnPredictions, RowWriter
from secondlook.scoring.chunk_worker import EngineUse, LoadScorer, compute_on_engine
from secondlook.scoring.chunks import JobRecord, ScoreChunks, Totals
from secondlook.scoring.destinations import Destination, parse_destination
from secondlook.scoring.exports import ExportFile
from secondlook.scoring.loaded_policy import LoadedPolicy, choose_class_names
from secondlook.scoring.policy_classifier import MemberOutputs, ResolvedClassifier, resolve_classifier
from secondlook.scoring.review import QUEUE_COLUMNS, ImageLocations, RejectedFolder, ReviewQueue
from secondlook.scoring.rows import AUDIT, RowOptions, row_schema
from secondlook.selective import Guarantee, Policy, check_threshold_transfers
from secondlook.sources import OnError, Source, open_source
from secondlook.specs import parse_spec
from secondlook.views import ViewSet

OUTPUT_BYTES = 256 * 2**20
"""Approximate memory for the outputs of one chunk."""

LISTED_SKIPPED = 20
"""Number of skipped images that the text of a summary lists."""


def score(
    policy: Policy | str | Path,
    data: Any,
    out: str | Path,
    *,
    classifier: object = None,
    per_view: bool = False,
    audit: float | None = None,
    level: float = 0.95,
    seed: int = 0,
    rejected: str | Path | None = None,
    link: bool = False,
    exports: Sequence[str] = (),
    export_all: bool = False,
    image_prefix: str | None = None,
    batch_size: BatchSize = "auto",
    progress: bool = True,
    allow_mismatch: bool = False,
    overwrite: bool = False,
    on_error: OnError | None = None,
    on_first_predictions: OnPredictions | None = None,
    device: str = "auto",
    engine: Engine | None = None,
    part_size: int | None = None,
) -> "ScoreSummary":
    """Write predicted class, confidence, interval and decision of every image of `data` to `out`.

    If the policy has a schedule, each image is looked at only until it is decided.

    Progress is saved: called again with the same arguments, an interrupted job resumes and ends with the same bytes.

    Parameters
    ----------
    policy
        A policy, or the path of its file.
    data
        Images: anything that `open_source` accepts.
    out
        A .parquet, .csv or .jsonl file; or a folder, local or at a URL such as 's3://bucket/scores', for Parquet parts
        that are written as they are computed.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy. A spec inherits the options
        of the policy that it lacks, as far as they describe outputs and preprocessing.
    per_view
        Whether to list the predicted class of each view looked at and its probability.
    audit
        Mark about this fraction of the accepted images for review, such as 0.01, at random and likelier where doubt is
        larger; `Monitor` tells from the reviewed ones whether the guarantee still holds. They join the rejected images
        in `rejected` and `exports`.
    level, seed
        Confidence level of the interval of the mean confidence over views, and the random seed of the interval and of
        the audit.
    rejected, link
        A folder for rejected images, sorted by predicted class, and whether to link the files instead of copying them.
    exports, export_all, image_prefix
        Files for labeling tools, such as 'label-studio:tasks.json'; whether they include accepted images; and a prefix
        that is put before the id of an image to make its URL.
    batch_size
        Number of images per call of the classifier.
    progress
        Whether to show a progress bar.
    allow_mismatch
        Whether to accept a classifier that the policy was not made for; nothing is guaranteed then.
    overwrite
        Whether to replace an existing file `out` that has other content, or files of `exports` where `out` does not
        exist; the same scores may be written again.
    on_error
        What to do with an image that cannot be read: "fail" (by default) or "skip" (by default with an engine), which
        leaves a row with the reason.
    on_first_predictions
        Called once, with the predictions of the first chunk; never for an adaptive policy, which has no predictions
        for all views, and never with an engine.
    device
        Where to classify: "auto", "cpu", "cuda" (all GPUs) or "cuda:N", see `collect`.
    engine
        Where chunks are computed: by default in this process, with `RayEngine` on a cluster. The rows are the same.
    part_size
        Number of images per chunk; by default chosen by the size of the images, or by the engine. A job that resumes
        keeps its own.
    """
    check_device(device)
    _check_part_size(part_size)
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    check_threshold_transfers(loaded.method, loaded.options)
    destination = parse_destination(out)
    export_files = [ExportFile.parse(text) for text in exports]
    _check_paths_differ(destination, policy, data, export_files)
    source = open_source(data, on_error=on_error)
    if engine is not None and on_error is None:
        source = skip_by_default(source, data)
    folder = None if rejected is None else RejectedFolder(Path(rejected), source, link)
    locations = ImageLocations(source, folder, image_prefix)
    for export in export_files:
        export.check_images(locations, include_accepted=export_all)
    if isinstance(policy, LoadedPolicy) and classifier is None:
        resolved = policy.decider.resolved
    else:
        beside = None if isinstance(policy, Policy) else Path(policy).parent
        resolved = resolve_classifier(loaded, classifier, allow_mismatch=allow_mismatch, folder=beside)
    options = RowOptions(loaded.rule, level, seed, per_view, audit)
    # The workers of an engine put the classifier on devices of their own, and here it sees one image only.
    here = resolved.on_device(device if engine is None else "cpu")
    rows = part_size or (None if engine is None else engine.part_size)
    job = ScoringJob.prepare(loaded, here, source, options, batch_size, rows)
    if not overwrite:
        destination.check_replaceable(job.metadata, source.ids)
        for export in () if destination.has_scores() else export_files:
            export.check_new(str(destination))
    with destination.open_chunks(job.record, job.metadata, overwrite=overwrite) as chunks:
        if folder is not None:
            folder.check(chunks)
        use = None
        if engine is None:
            job.compute_chunks(chunks, on_first_predictions, progress=progress)
        else:
            load_worker = job.make_worker(resolved.classifier, chunks, device, batch_size)
            use = compute_on_engine(engine, load_worker, chunks, source.without_labels(), progress=progress)
        destination.write(chunks, row_schema(options), overwrite=overwrite)
        job.write_review(chunks, locations, export_files, include_accepted=export_all, progress=progress)
        summary = job.summarize(chunks.totals, destination, folder, export_files, use)
        destination.close(chunks)
    return summary


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
    mismatch: str | None
    """Why the guarantee of the policy does not hold, if it was used with another classifier."""
    rejected_folder: Path | None = None
    exports: tuple[str, ...] = ()
    guarantee_of_policy: str = "none"
    """The guarantee of the policy in words, or 'none' with the reason."""
    looks: int = 0
    """Number of looks at all images together."""
    views: int = 1
    """Number of looks at each image if every one had all of them."""
    is_adaptive: bool = False
    """Whether the policy has a schedule, so that an image is looked at only until it is decided."""
    use: EngineUse | None = None
    """What the workers of an engine did; None if the images were scored in this process."""
    audited: int | None = None
    """Number of accepted images that are marked for review; None without an audit."""

    @property
    def images(self) -> int:
        """Number of accepted and rejected images."""
        return self.accepted + self.rejected

    @property
    def mean_looks(self) -> float:
        """Mean number of looks at an image."""
        return self.looks / self.images if self.images else 0.0

    @property
    def guarantee_text(self) -> str:
        """The guarantee in words, or 'none' with the reason."""
        return self.guarantee_of_policy if self.mismatch is None else f"none, since {self.mismatch}"

    def to_dict(self) -> dict[str, object]:
        """Return the summary as JSON values."""
        return {
            "out": str(self.out),
            "images": self.images,
            "accepted": self.accepted,
            "rejected": self.rejected,
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
        percentage = 100 * self.accepted / max(1, self.images)
        lines = [
            f"{self.images:,} images: {self.accepted:,} accepted ({percentage:.4g} %), {self.rejected:,} rejected, "
            f"{len(self.skipped):,} skipped",
            *([] if self.audited is None else [f"audit: {self.audited:,} of the accepted images are to be reviewed"]),
            *([self._describe_looks()] if self.is_adaptive else []),
            *(() if self.use is None else self.use.describe()),
            f"guarantee: {self.guarantee_text}",
            *(f"skipped: {id_}: {reason}" for id_, reason in self.skipped[:LISTED_SKIPPED]),
        ]
        if len(self.skipped) > LISTED_SKIPPED:
            lines.append(f"skipped: {len(self.skipped) - LISTED_SKIPPED:,} more")
        return "\n".join([*lines, "", *self._list_files()])

    def _describe_looks(self) -> str:
        saved = 100 * (1 - self.mean_looks / self.views)
        return (
            f"looks: {self.mean_looks:.2f} of {self.views} on average, which saves {saved:.1f} % of the forward passes"
        )

    def _list_files(self) -> list[str]:
        folder = [] if self.rejected_folder is None else [f"Rejected images: {self.rejected_folder}"]
        return [f"Scores: {self.out}", *folder, *(f"Review queue: {export}" for export in self.exports)]


@dataclass(frozen=True)
class ScoringJob:
    """A scoring job that is ready to run: policy, classifier and source are loaded and checked."""

    policy: Policy
    resolved: ResolvedClassifier
    source: Source
    options: RowOptions
    classifier: MemberOutputs
    class_names: tuple[str, ...] | None
    n_classes: int
    batch_size: int
    image: Array
    """The first image at the input size. [H, W, C]"""
    record: JobRecord

    @classmethod
    def prepare(
        cls,
        policy: Policy,
        resolved: ResolvedClassifier,
        source: Source,
        options: RowOptions,
        batch_size: BatchSize,
        part_size: int | None = None,
    ) -> "ScoringJob":
        """Run the classifier on one image, to find the number of classes and how many images fit in memory."""
        classifier = MemberOutputs(resolved.classifier)
        image = read_first_image(resolved.classifier, source)
        n_outputs = classifier(image[None]).shape[1]
        n_classes = n_outputs // len(classifier.members)
        candidates = (resolved.classifier.class_names, policy.class_names, source.class_names)
        class_names = choose_class_names(candidates, n_classes)
        record = JobRecord(
            policy=hashlib.sha256(policy.model_dump_json().encode()).hexdigest(),
            # Functions without a name cannot be told apart, so a job with one is never resumed.
            classifier=resolved.classifier.digest or f"unnamed {uuid.uuid4().hex}",
            output=resolved.classifier.output,
            preprocessing=resolved.classifier.preprocessing.to_dict(),
            data=source.digest,
            images=len(source),
            rows=part_size
            or min(
                _chunk_rows(policy, image, classifier), max(16, OUTPUT_BYTES // (4 * n_outputs * len(policy.views)))
            ),
            level=options.level,
            seed=options.seed,
            per_view=options.per_view,
            class_names=class_names,
            audit=options.audit,
        )
        chosen = choose_batch_size(batch_size, image, classifier)
        return cls(policy, resolved, source, options, classifier, class_names, n_classes, chosen, image, record)

    def compute_chunks(
        self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None, *, progress: bool
    ) -> None:
        """Compute every chunk that is missing."""
        views = ViewSet(list(self.policy.views))
        job = CollectJob(self.classifier, self.source.without_labels(), views, self.batch_size, chunks.chunking)
        make_predictions = partial(self.classifier.as_predictions, class_names=self.class_names)
        with RowWriter(chunks, self.options, SaveTimer()).run() as writer:
            scoring = ChunkScoring(job, chunks, writer, self.options.rule, make_predictions)
            if self.policy.schedule is None:
                total, unit = chunks.missing_images * len(views), PROGRESS_UNIT
                with progress_bar("scoring", total, unit, enabled=progress) as advance:
                    scoring.compute_all_looks(on_first_predictions, advance)
            else:
                with progress_bar("scoring", chunks.missing_images, "images", enabled=progress) as advance:
                    scoring.compute_adaptively(advance)

    def make_worker(
        self, classifier: Classifier, chunks: ScoreChunks, device: str, batch_size: BatchSize
    ) -> LoadScorer:
        """Return what scores the chunks of this job in another process, with a classifier that is on no device yet."""
        policy = self.policy.model_dump_json()
        return LoadScorer(policy, classifier, device, batch_size, self.image, chunks.record, chunks.metadata)

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
            None if self.resolved.mismatch else self.policy.rule.guarantee,
            self.resolved.mismatch,
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
    def metadata(self) -> dict[str, str]:
        """The policy, the data and the options, for formats that can store them."""
        content = {
            "policy": json.loads(self.policy.model_dump_json()),
            "data": self.source.spec,
            "level": self.options.level,
            "seed": self.options.seed,
            **({} if self.options.audit is None else {"audit": self.options.audit}),
            "mismatch": self.resolved.mismatch,
        }
        return {"secondlook.score": json.dumps(content, ensure_ascii=False)}


def _chunk_rows(policy: Policy, image: Array, classifier: Classifier) -> int:
    return chunk_rows(image) if policy.schedule is None else choose_chunk_rows(image, classifier)


def _check_part_size(part_size: int | None) -> None:
    if part_size is not None and (not is_whole_number(part_size) or part_size < 1):
        raise DecisionError(f"part_size is {part_size!r}; expected the number of images per chunk, at least 1.")


def _check_paths_differ(destination: Destination, policy: object, data: object, exports: Sequence[ExportFile]) -> None:
    """Raise an error if an output would replace an input or another output."""
    used: dict[str, str] = {}
    if isinstance(policy, str | Path):
        used[os.path.realpath(policy)] = "the policy"
    if isinstance(data, str | Path):
        spec = str(data)
        used[os.path.realpath(parse_spec(spec, SourceError).path if ":" in spec else spec)] = "the data"
    out = destination.find_path()
    outputs = [
        *([] if out is None else [("the scores", out)]),
        *((f"the export {str(export)!r}", path) for export in exports for path in export.paths),
    ]
    for what, path in outputs:
        other = used.setdefault(os.path.realpath(path), what)
        if other is not what:
            raise DecisionError(f"{what} would replace {other} at {str(path)!r}; choose different files.")
