"""`score`: decide about new images with a policy, resume after an interruption, and write the review queue."""

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.classifiers import Classifier, OnnxFile
from secondlook.decisions.chunks import Destination, JobRecord, ScoreChunks
from secondlook.decisions.decision import (
    DEFAULT_LEVEL,
    RowOptions,
    compute_rows,
    join_rows,
    make_skipped_rows,
    row_schema,
)
from secondlook.decisions.exported_file import ExportedFile
from secondlook.decisions.exports import ExportFile
from secondlook.decisions.plan import (
    LookedChunk,
    Plan,
    check_classifier_is_inside,
    choose_class_names,
    compile_policy,
    open_plan,
)
from secondlook.decisions.policy_classifier import ResolvedClassifier
from secondlook.decisions.review import QUEUE_COLUMNS, ImageLocations, RejectedFolder, ReviewQueue
from secondlook.decisions.summary import EngineUse, ScoreSummary
from secondlook.errors import DecisionError, SourceError
from secondlook.policies import Policy, read_policy
from secondlook.predictions import (
    DEFAULT_EXECUTION,
    ChunkStore,
    ClassifierRecord,
    Engine,
    Execution,
    Predictions,
    read_first_image,
    skip_by_default,
)
from secondlook.progress import IMAGES_X_VIEWS, progress_bar
from secondlook.sources import Source, open_source
from secondlook.specs import parse_spec

if TYPE_CHECKING:
    import pyarrow as pa

OnPredictions = Callable[[Predictions], None]


@dataclass(frozen=True)
class Review:
    """What `score` hands to people: a folder of rejected images, and files for labeling tools.

    Attributes
    ----------
    rejected, link
        A folder for rejected images, sorted by predicted class, and whether to link the files instead of copying them.
    exports, export_all, image_prefix
        Files for labeling tools, such as 'label-studio:tasks.json'; whether they include accepted images; and a prefix
        that is put before the id of an image to make its URL.
    """

    rejected: str | Path | None = None
    link: bool = False
    exports: Sequence[str] = field(default_factory=tuple)
    export_all: bool = False
    image_prefix: str | None = None


NO_REVIEW = Review()


def score(
    policy: Policy | str | Path,
    data: Any,
    out: str | Path,
    *,
    classifier: object = None,
    per_view: bool = False,
    audit: float | None = None,
    level: float | None = DEFAULT_LEVEL,
    seed: int = 0,
    review: Review = NO_REVIEW,
    overwrite: bool = False,
    execution: Execution = DEFAULT_EXECUTION,
    on_first_predictions: OnPredictions | None = None,
) -> ScoreSummary:
    """Write predicted class, confidence, interval and decision of every image of `data` to `out`.

    If the policy has a schedule, each image is looked at only until it is decided.

    Progress is saved: called again with the same arguments, an interrupted job resumes and ends with the same bytes.

    Parameters
    ----------
    policy
        A policy, or the path of its file; or the path of an exported ONNX file, which decides by itself and runs in
        this process.
    data
        Images: anything that `open_source` accepts.
    out
        A .parquet, .csv or .jsonl file; or a folder, local or at a URL such as 's3://bucket/scores', for Parquet parts
        that are written as they are computed.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy. A spec inherits the options
        of the policy that it lacks, as far as they describe outputs and preprocessing. For another classifier than the
        policy's, pass `load_policy(path, classifier=..., allow_mismatch=True)` as the policy.
    per_view
        Whether to list the predicted class of each view looked at and its probability.
    audit
        Mark about this fraction of the accepted images for review, such as 0.01, at random and likelier where doubt is
        larger; `Monitor` tells from the reviewed ones whether the guarantee still holds. They join the rejected images
        in `review`.
    level, seed
        Confidence level of the interval of the confidence over views, None for no interval; and the random seed of the
        interval and of the audit.
    review
        Where rejected images go.
    overwrite
        Whether to replace an existing file `out` that has other content, or exports where `out` does not exist; the
        same scores may be written again.
    execution
        Where and how to classify. With an engine, images that cannot be read are skipped by default: their rows have
        the reason.
    on_first_predictions
        Called once, with the predictions of the first chunk; never for an adaptive policy, which has no predictions
        for all views, and never with an engine.
    """
    destination = Destination.parse(out)
    exports = [ExportFile.parse(text) for text in review.exports]
    _check_paths_differ(destination, policy, data, exports)
    plan = _open_plan(policy, classifier, execution)
    source = open_source(data, on_error=execution.on_error)
    if execution.engine is not None and execution.on_error is None:
        source = skip_by_default(source, data)
    folder = None if review.rejected is None else RejectedFolder(Path(review.rejected), source, review.link)
    locations = ImageLocations(source, folder, review.image_prefix)
    for export in exports:
        export.check_images(locations, include_accepted=review.export_all)
    job = ScoringJob.prepare(plan, source, RowOptions(plan.policy, level, seed, per_view, audit), execution)
    if not overwrite:
        destination.check_replaceable(job.metadata, source.ids)
        for export in () if destination.has_scores() else exports:
            export.check_new(str(destination))
    with destination.open_chunks(job.record, job.metadata, overwrite=overwrite) as chunks:
        if folder is not None:
            folder.check(chunks)
        use = job.compute_chunks(chunks, on_first_predictions)
        destination.write(chunks, row_schema(job.options.columns), overwrite=overwrite)
        job.write_review(chunks, locations, exports, include_accepted=review.export_all)
        summary = job.summarize(chunks, destination, folder, exports, use)
        destination.close(chunks)
    return summary


@dataclass(frozen=True, eq=False)
class ScoringJob:
    """A scoring job that is ready to run: plan and source are loaded and checked."""

    plan: Plan | ExportedFile
    source: Source
    options: RowOptions
    execution: Execution
    class_names: tuple[str, ...] | None
    n_classes: int
    record: JobRecord

    @classmethod
    def prepare(
        cls, plan: Plan | ExportedFile, source: Source, options: RowOptions, execution: Execution
    ) -> "ScoringJob":
        """Look at one image, to find the number of classes and how many images fit in memory."""
        if isinstance(plan, ExportedFile):
            classifier, described = plan.digest, plan.policy.known_classifier
            n_classes, rows = plan.record.classes, plan.choose_chunk_rows(plan.check_first_image(source))
        else:
            # Functions without a name cannot be told apart, so a job with one is never resumed.
            classifier = plan.classifier.digest or f"unnamed {uuid.uuid4().hex}"
            described = ClassifierRecord.describe(plan.resolved.classifier)
            image = read_first_image(plan.classifier, source)
            n_outputs = plan.classifier(image[None]).shape[1]
            n_classes, rows = n_outputs // len(plan.members), plan.choose_chunk_rows(image, n_outputs)
        rows = execution.part_size or (rows if execution.engine is None else execution.engine.part_size)
        class_names = choose_class_names((*plan.name_candidates, source.class_names), n_classes)
        record = JobRecord(
            policy=hashlib.sha256(plan.given.model_dump_json(exclude={"made", "checksum"}).encode()).hexdigest(),
            classifier=classifier,
            output=described.output,
            preprocessing=described.preprocessing,
            data=source.digest,
            images=len(source),
            rows=rows,
            level=options.level,
            seed=options.seed,
            per_view=options.per_view,
            class_names=class_names,
            audit=options.audit,
        )
        return cls(plan, source, options, execution, class_names, n_classes, record)

    @property
    def metadata(self) -> dict[str, str]:
        """The policy, the data and the options, for formats that can store them."""
        content = {
            "policy": json.loads(self.plan.given.model_dump_json()),
            "data": self.source.spec,
            "level": self.options.level,
            "seed": self.options.seed,
            **({} if self.options.audit is None else {"audit": self.options.audit}),
            "mismatch": self.plan.mismatch,
            **({"decider": self.plan.digest} if isinstance(self.plan, ExportedFile) else {}),
        }
        return {"secondlook.score": json.dumps(content, ensure_ascii=False)}

    def compute_chunks(self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None) -> EngineUse | None:
        """Compute every chunk that is missing, in this process or by the workers of the engine."""
        source, engine = self.source.without_labels(), self.execution.engine
        total = chunks.missing_images * (1 if engine is not None else self.plan.progress_per_image)
        unit = IMAGES_X_VIEWS if total > chunks.missing_images else "images"
        with progress_bar("scoring", total, unit, enabled=self.execution.progress) as advance:
            if engine is not None:
                return self._compute_on_engine(engine, chunks, source, advance)
            looked = self.plan.look_at_chunks(
                source,
                chunks.missing,
                batch_size=self.execution.batch_size,
                advance=advance,
                class_names=self.class_names,
            )
            # Rows are computed and written in the background, one chunk at a time, so that memory stays bounded.
            with closing(looked), ThreadPoolExecutor(1, thread_name_prefix="secondlook-score") as thread:
                pending: Future[None] | None = None
                for chunk in looked:
                    if on_first_predictions is not None and self.plan.policy.schedule is None:
                        chunk.groups = list(chunk.groups)
                        if chunk.groups:
                            on_first_predictions(chunk.groups[0].preds)
                            on_first_predictions = None
                    if pending is not None:
                        pending.result()
                    pending = thread.submit(_write_chunk, chunks, self.options, chunk)
                if pending is not None:
                    pending.result()
        return None

    def _compute_on_engine(
        self, engine: Engine, chunks: ScoreChunks, source: Source, advance: Callable[[int], None]
    ) -> EngineUse:
        if isinstance(self.plan, ExportedFile):
            raise DecisionError(
                "cannot run an exported file", argument="engine", repair="omit it, or score with the policy itself"
            )
        use, start = EngineUse(), time.monotonic()
        numbers = [number for number, _ in chunks.missing]
        worker = LoadScorer(
            self.plan.policy.model_dump_json(),
            self.plan.resolved.classifier,
            replace(self.execution, engine=None, progress=False),
            {name: getattr(self.options, name) for name in ("level", "seed", "per_view", "audit")},
            self.class_names,
            chunks.record.digest,
            chunks.metadata,
        )
        with closing(engine.compute_chunks(worker, source, chunks.chunking, numbers)) as computed:
            for chunk in computed if numbers else ():
                chunks.write(chunk.number, chunk.content)
                n_images = len(chunks.chunking.indices_of(chunk.number))
                use.add(chunk, n_images)
                advance(n_images)
        return replace(use, seconds=time.monotonic() - start)

    def write_review(
        self,
        chunks: ScoreChunks,
        locations: ImageLocations,
        exports: Sequence[ExportFile],
        *,
        include_accepted: bool,
    ) -> None:
        """Write the folder of rejected images and the exports."""
        if locations.rejected is not None:
            queue = self._make_queue(chunks, include_accepted=False)
            with progress_bar("rejected images", len(queue), "images", enabled=self.execution.progress) as advance:
                locations.rejected.fill(queue, chunks, advance)
        if exports:
            queue = self._make_queue(chunks, include_accepted=include_accepted)
            for export in exports:
                export.write(queue, locations)

    def _make_queue(self, chunks: ScoreChunks, *, include_accepted: bool) -> ReviewQueue:
        class_names = self.class_names or tuple(str(label) for label in range(self.n_classes))
        tables = chunks.read([*QUEUE_COLUMNS, *([] if self.options.audit is None else ["audit"])])
        return ReviewQueue.from_rows(tables, self.source.ids, class_names, include_accepted=include_accepted)

    def summarize(
        self,
        chunks: ScoreChunks,
        destination: Destination,
        folder: RejectedFolder | None,
        exports: Sequence[ExportFile],
        use: EngineUse | None,
    ) -> ScoreSummary:
        """Return the counts of accepted, rejected and skipped images, and of looks, with all that was written."""
        totals, policy = chunks.totals, self.plan.policy
        return ScoreSummary(
            out=destination.path or str(destination),
            accepted=totals.accepted,
            rejected=totals.images - totals.accepted,
            skipped=totals.skipped,
            guarantee=policy.guarantee,
            guarantee_text=policy.guarantee_text if self.plan.mismatch is None else f"none, since {self.plan.mismatch}",
            mismatch=self.plan.mismatch,
            rejected_folder=None if folder is None else folder.path,
            exports=tuple(str(export) for export in exports),
            looks=totals.looks,
            views=len(policy.views) if policy.schedule is None else policy.schedule.full_looks,
            is_adaptive=policy.schedule is not None,
            use=use,
            audited=None if self.options.audit is None else totals.audited,
        )


@dataclass(frozen=True, eq=False)
class LoadScorer:
    """Loads what scores chunks in another process; everything that it needs can be pickled."""

    policy: str
    """The policy as JSON."""
    classifier: Classifier
    execution: Execution
    options: Mapping[str, Any]
    """Those of `RowOptions`."""
    class_names: tuple[str, ...] | None
    job: str
    """Identity of the job."""
    metadata: Mapping[str, str]

    def __call__(self) -> Callable[[int, Source], bytes]:
        """Put the classifier on the device of this process; return what scores a chunk, given its images only."""
        policy = Policy.model_validate_json(self.policy)
        resolved = ResolvedClassifier(self.classifier.on_device(self.execution.device), None)
        plan, options = Plan(policy, resolved, self.execution), RowOptions(policy, **self.options)

        def score_chunk(number: int, images: Source) -> bytes:
            chunks = [(number, range(len(images)))]
            looked = plan.look_at_chunks(
                images, chunks, batch_size=self.execution.batch_size, class_names=self.class_names
            )
            (chunk,) = looked
            return ChunkStore.encode(self.job, number, _make_rows(options, chunk), self.metadata)

        return score_chunk


def _write_chunk(chunks: ScoreChunks, options: RowOptions, chunk: LookedChunk) -> None:
    chunks.write(chunk.number, chunks.encode(chunk.number, _make_rows(options, chunk)))


def _make_rows(options: RowOptions, chunk: LookedChunk) -> "pa.Table":
    """Return the rows of all images of a chunk in their order, and of those that could not be read."""
    tables = []
    for positions, preds in chunk.groups:
        given = None if chunk.decided is None else chunk.decided.select(positions)
        tables.append((chunk.indices[positions], compute_rows(options, preds, given)))
    unread = make_skipped_rows(options, [(image.id, image.reason) for image in chunk.skipped])
    tables.append((np.array([image.index for image in chunk.skipped], dtype=np.int64), unread))
    return join_rows(options, tables)


def _open_plan(policy: Policy | str | Path, classifier: object, execution: Execution) -> Plan | ExportedFile:
    """Return the plan of a policy, for this process or for the workers of an engine."""
    if isinstance(policy, Policy):
        if classifier is None and execution.engine is None and execution.device == "auto":
            plan: Plan | ExportedFile = compile_policy(policy)  # as `decide` does
            return plan
        bound = policy.bind(classifier)
    else:
        if OnnxFile.has_suffix(policy):
            check_classifier_is_inside(classifier=classifier)
        bound = read_policy(policy).bind(classifier, path=Path(policy).expanduser())
    # The workers of an engine put the classifier on devices of their own, and here it sees one image only.
    here = replace(execution, device="cpu") if execution.engine is not None else execution
    opened: Plan | ExportedFile = open_plan(bound, replace(bound._binding, execution=here))
    return opened


def _check_paths_differ(destination: Destination, policy: object, data: object, exports: Sequence[ExportFile]) -> None:
    """Raise an error if an output would replace an input or another output."""
    used: dict[str, str] = {}
    bound = policy._binding.path if isinstance(policy, Policy) else policy
    if isinstance(bound, str | Path):
        used[os.path.realpath(bound)] = "the policy"
    if isinstance(data, str | Path):
        spec = str(data)
        used[os.path.realpath(parse_spec(spec, SourceError).path if ":" in spec else spec)] = "the data"
    out = destination.path
    outputs = [
        *([] if out is None else [("the scores", out)]),
        *((f"the export {str(export)!r}", path) for export in exports for path in export.paths),
    ]
    for what, target in outputs:
        other = used.setdefault(os.path.realpath(target), what)
        if other is not what:
            raise DecisionError(f"{what} would replace {other} at {str(target)!r}; choose different files.")
