"""`score`: decide about new images with a policy, resume after an interruption, and write the review queue.

To add an option of `score`, add a field of `RowOptions` and an argument of `score`.
"""

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_number
from secondlook.classifiers import Classifier, OnnxFile
from secondlook.decisions.chunks import Destination, JobRecord, ScoreChunks
from secondlook.decisions.decision import (
    DEFAULT_LEVEL,
    ClassProbability,
    Decision,
    Decisions,
    FileOutputs,
    LookPrediction,
    as_nullable,
    make_decisions,
)
from secondlook.decisions.formats import check_replaceable
from secondlook.decisions.looking import LookedChunk
from secondlook.decisions.plan import CompiledPolicy, Plan, check_classifier_is_inside, compile_policy, open_plan
from secondlook.decisions.policy_classifier import ResolvedClassifier
from secondlook.decisions.review import ExportFile, ImageLocations, Review, ReviewQueue
from secondlook.decisions.summary import EngineUse, ScoreSummary
from secondlook.errors import DecisionError, SourceError
from secondlook.policies import AuditPlan, Policy, read_policy
from secondlook.predictions import DEFAULT_EXECUTION, ChunkStore, Engine, Execution, Predictions, skip_by_default
from secondlook.progress import IMAGES_X_VIEWS, Advance, progress_bar
from secondlook.sources import Source, open_source
from secondlook.specs import parse_spec

if TYPE_CHECKING:
    import pyarrow as pa

OnPredictions = Callable[[Predictions], None]

MAX_LIKELY = 9
"""Largest number of likely classes in a decision."""

NO_REVIEW = Review()

COLUMN_TYPES: Mapping[str, str] = {
    "id": "string",
    "label": "int64",
    "labels": "list<int64>",
    "class": "string",
    "confidence": "double",
    "low": "double",
    "high": "double",
    "accept": "bool",
    "familiarity": "double",
    "rejection": "string",
    "looks": "int64",
    "first_look": "double",
    "disagreement": "double",
    "audit": "bool",
    "audit_probability": "double",
    "reason": "string",
    "view_labels": "list<int64>",
    "view_probabilities": "list<double>",
}
"""All columns of rows in order, with the names of their Arrow types; `RowOptions.columns` has those of a job."""


@dataclass(frozen=True)
class RowOptions:
    """How rows are computed: policy, confidence level of the interval, random seed and optional columns."""

    policy: Policy
    level: float | None = DEFAULT_LEVEL
    """None for no interval."""
    seed: int = 0
    per_view: bool = False
    """Whether rows list the predictions of each view."""
    audit: float | None = None
    """Fraction of the accepted images to mark for review; None for none."""

    def __post_init__(self) -> None:
        if self.level is not None and not 0 < self.level < 1:
            fault = "is out of range; expected a number between 0 and 1, such as 0.95"
            raise DecisionError(fault, argument="level", value=self.level)
        if self.seed < 0:
            raise DecisionError("is negative; expected a whole number from 0 up", argument="seed", value=self.seed)
        if self.audit is not None and not (is_number(self.audit) and 0 < self.audit <= 1):
            fault = "is out of range; expected the fraction of accepted images to review, such as 0.01"
            raise DecisionError(fault, argument="audit", value=self.audit)

    @property
    def settings(self) -> dict[str, Any]:
        """All options except the policy, by name; they identify a job and are sent to its workers."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "policy"}

    @property
    def metadata(self) -> dict[str, object]:
        """The options stored in score files; the columns show the others."""
        audit = {} if self.audit is None else {"audit": self.audit}
        return {"level": self.level, "seed": self.seed, **audit}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the rows."""
        left_out = {
            *(["labels"] if self.policy.top_k == 1 else []),
            *(["familiarity", "rejection"] if self.policy.familiarity is None else []),
            *(["audit", "audit_probability"] if self.audit is None else []),
            *([] if self.per_view else ["view_labels", "view_probabilities"]),
        }
        return tuple(name for name in COLUMN_TYPES if name not in left_out)

    def compute_rows(self, preds: Predictions, decided: FileOutputs | None = None) -> "pa.Table":
        """Return the rows for images with predictions for all their looks, or with outputs of an exported file."""
        decisions = make_decisions(self.policy, preds, level=self.level, seed=self.seed, decided=decided)
        values = dict(decisions.columns)
        if self.audit is not None:
            values["audit"], probabilities = self._draw_audits(decisions, self.seed)
            values["audit_probability"] = as_nullable(probabilities)
        if self.per_view:
            values["view_labels"], values["view_probabilities"] = (list(rows) for rows in _predict_per_view(preds))
        return make_row_table(self.columns, values, len(preds))

    def make_rows(self, chunk: LookedChunk) -> "pa.Table":
        """Return the rows of all images of a chunk in order; skipped images are not accepted."""
        import pyarrow as pa

        skipped, indices = chunk.read.skipped, chunk.read.indices
        never = [False] * len(skipped)
        values = {"accept": never, "audit": never, "looks": [0] * len(skipped)}
        values |= {"id": [image.id for image in skipped], "reason": [image.reason for image in skipped]}
        places = [np.array([image.index for image in skipped], dtype=np.int64)]
        tables = [make_row_table(self.columns, values, len(skipped))]
        for positions, preds, decided in chunk.groups:
            places.append(indices[positions])
            tables.append(self.compute_rows(preds, decided))
        return pa.concat_tables(tables).take(np.argsort(np.concatenate(places)))

    def detail(self, preds: Predictions, *, audit_seed: int) -> list[Decision]:
        """Decide about each image, with all details for reviewers; audits have a separate random seed."""
        decisions = make_decisions(self.policy, preds, level=self.level, seed=self.seed)
        marked, probabilities = self._draw_audits(decisions, audit_seed)
        view_classes, view_probabilities = (values.tolist() for values in _predict_per_view(preds))
        means = np.concatenate([block.mean(axis=1) for _, block in preds.blocks()])
        firsts, texts = decisions.first_labels.tolist(), preds.views.texts
        return [
            decisions.make_row(
                place,
                audit=bool(marked[place]),
                audit_probability=None if np.isnan(probabilities[place]) else float(probabilities[place]),
                likely=rank_classes(means[place], firsts[place]),
                views=tuple(map(LookPrediction, texts, view_classes[place], view_probabilities[place])),
            )
            for place in range(len(decisions))
        ]

    @cached_property
    def _audit_plan(self) -> AuditPlan | None:
        return None if self.audit is None else AuditPlan(self.policy.reference, self.policy.threshold, self.audit)

    def _draw_audits(self, decisions: Decisions, seed: int) -> tuple[BoolArray, Float64Array]:
        """Draw the images to mark for review, bool [N], and return their probabilities, float64 [N].

        The probability is NaN for rejected images, and for all images without an audit.
        """
        probabilities = np.full(len(decisions), np.nan)
        if self._audit_plan is None:
            return np.zeros(len(decisions), dtype=np.bool_), probabilities
        probabilities[decisions.accept] = self._audit_plan.probabilities(decisions.confidence[decisions.accept])
        # A comparison with NaN is False.
        return AuditPlan.draw(decisions.ids, seed) < probabilities, probabilities


def rank_classes(means: Float64Array, first: int) -> tuple[ClassProbability, ...]:
    """Return the likeliest classes, starting with `first`. float64 [C]"""
    order = [first, *(one for one in np.argsort(-means, kind="stable").tolist() if one != first)]
    return tuple(ClassProbability(one, float(means[one])) for one in order[:MAX_LIKELY])


def _predict_per_view(preds: Predictions) -> tuple[IntArray, Float64Array]:
    """Return the predicted class of each view, and its probability. int64 [N, V], float64 [N, V]"""
    classes = np.empty((preds.n_images, preds.n_views), dtype=np.int64)
    probabilities = np.empty((preds.n_images, preds.n_views))
    for rows, block in preds.blocks():
        classes[rows] = block.argmax(axis=2)
        probabilities[rows] = block.max(axis=2)
    return classes, probabilities


def make_row_table(columns: Sequence[str], values: Mapping[str, Any], n_rows: int) -> "pa.Table":
    """Return a table of rows; columns without values are null."""
    import pyarrow as pa

    lists = {"list<int64>": pa.list_(pa.int64()), "list<double>": pa.list_(pa.float64())}
    arrays = {}
    for name in columns:
        kind = lists.get(COLUMN_TYPES[name]) or pa.type_for_alias(COLUMN_TYPES[name])
        arrays[name] = pa.array(values[name], kind) if name in values else pa.nulls(n_rows, kind)
    return pa.table(arrays)


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

    If the policy has a schedule, looking at an image stops once it is decided.

    Progress is saved: call it again with the same arguments to resume; the result is the same to the byte.

    Parameters
    ----------
    policy
        A policy, the path of its file, or the path of an exported ONNX file, which runs in this process.
    data
        Images: anything that `open_source` accepts.
    out
        A .parquet, .csv or .jsonl file; or a folder of Parquet parts, local or at a URL like 's3://bucket/scores', to
        which each part is written once it is computed.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy. A spec inherits options for
        outputs and preprocessing from the policy. To use another classifier, pass `load_policy(path, classifier=...,
        allow_mismatch=True)` as the policy.
    per_view
        Whether to list the predicted class and its probability for each view that was classified.
    audit
        Fraction of accepted images to mark for review, for example 0.01. They are drawn at random, with a larger
        probability at low confidence, and join the rejected images in `review`. From their labels, `Monitor` tests
        whether the guarantee still holds.
    level, seed
        Confidence level of the interval of the confidence over views, None for no interval; random seed of the interval
        and of the audit.
    review
        Where to put rejected images.
    overwrite
        Whether to replace an existing file `out` with other content, or existing exports if `out` does not exist. Not
        needed to write the same scores again.
    execution
        Where and how to classify. With an engine, unreadable images are skipped by default; their rows have the reason.
    on_first_predictions
        Called once, with the predictions of the first chunk. Not called with an engine, nor for an adaptive policy,
        which has no predictions for all views.
    """
    destination = Destination.parse(out)
    exports = [ExportFile.parse(text) for text in review.exports]
    _check_paths_differ(destination, policy, data, exports)
    plan = _open_plan(policy, classifier, execution)
    source = open_source(data, on_error=execution.on_error)
    if execution.engine is not None and execution.on_error is None:
        source = skip_by_default(source, data)
    locations = ImageLocations(source, review)
    for export in exports:
        export.check_images(locations)
    job = ScoringJob(plan, source, RowOptions(plan.policy, level, seed, per_view, audit), execution)
    if not overwrite:
        if destination.file is not None:  # a folder is checked when its chunks are opened
            check_replaceable(destination.file, job.metadata, source.ids)
        for export in () if destination.has_scores() else exports:
            export.check_new(destination.name)
    opened = ScoreChunks.open(destination, job.record, job.metadata, overwrite=overwrite, check=locations.check_folder)
    with opened as chunks:
        use = job.compute_chunks(chunks, on_first_predictions)
        destination.write(chunks, make_row_table(job.options.columns, {}, 0).schema, overwrite=overwrite)
        job.write_review(chunks, locations, exports)
        totals, schedule = chunks.totals, plan.policy.schedule
        guarantee_text = plan.policy.guarantee_text if plan.mismatch is None else f"none, since {plan.mismatch}"
        chunks.finish()
    return ScoreSummary(
        out=destination.path or destination.name,
        accepted=totals.accepted,
        rejected=totals.images - totals.accepted,
        skipped=totals.skipped,
        guarantee=plan.policy.guarantee,
        guarantee_text=guarantee_text,
        mismatch=plan.mismatch,
        rejected_folder=locations.folder,
        exports=tuple(map(str, exports)),
        looks=totals.looks,
        views=len(plan.policy.views) if schedule is None else schedule.full_looks,
        is_adaptive=schedule is not None,
        use=use,
        audited=None if audit is None else totals.audited,
        unfamiliar=None if plan.policy.familiarity is None else totals.unfamiliar,
    )


class ScoringJob:
    """A scoring job. It classifies one image to find the number of classes and the memory per image."""

    def __init__(self, plan: CompiledPolicy, source: Source, options: RowOptions, execution: Execution) -> None:
        self.plan, self.source, self.options, self.execution = plan, source, options, execution
        self.n_classes, rows = plan.measure(source)
        self.class_names = plan.find_class_names(self.n_classes, source.class_names)
        if execution.engine is not None:
            rows = execution.engine.part_size
        depends: dict[str, Any] = {
            "policy": hashlib.sha256(plan.given.model_dump_json(exclude={"made", "checksum"}).encode()).hexdigest(),
            # Unnamed functions cannot be distinguished, so their jobs are never resumed.
            "classifier": plan.described.digest or f"unnamed {uuid.uuid4().hex}",
            "output": plan.described.output,
            "preprocessing": plan.described.preprocessing,
            "data": source.digest,
            "class_names": self.class_names,
            **options.settings,
        }
        self.record = JobRecord(images=len(source), rows=execution.part_size or rows, **depends)
        stored = {
            "policy": json.loads(plan.given.model_dump_json()),
            "data": source.spec,
            **options.metadata,
            "mismatch": plan.mismatch,
            **plan.metadata,
        }
        self.metadata = {"secondlook.score": json.dumps(stored, ensure_ascii=False)}

    def compute_chunks(self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None) -> EngineUse | None:
        """Compute every missing chunk, in this process or by the workers of the engine."""
        source, engine = self.source.without_labels(), self.execution.engine
        n_images = sum(len(indices) for _, indices in chunks.missing)
        total = n_images * (1 if engine is not None else self.plan.progress_per_image)
        unit = IMAGES_X_VIEWS if total > n_images else "images"
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
            # Rows are computed and written in the background, one chunk at a time, to limit memory.
            with closing(looked), ThreadPoolExecutor(1, thread_name_prefix="secondlook-score") as thread:
                pending = thread.submit(lambda: None)
                for chunk in looked:
                    if on_first_predictions is not None and self.plan.policy.schedule is None:
                        groups = list(chunk.groups)
                        chunk = chunk._replace(groups=groups)
                        if groups:
                            on_first_predictions(groups[0].preds)
                            on_first_predictions = None
                    pending.result()
                    pending = thread.submit(self._write_chunk, chunks, chunk)
                pending.result()
        return None

    def _write_chunk(self, chunks: ScoreChunks, chunk: LookedChunk) -> None:
        number, rows = chunk.read.number, self.options.make_rows(chunk)
        chunks.write(number, ChunkStore.encode(chunks.record.digest, number, rows, self.metadata))

    def _compute_on_engine(self, engine: Engine, chunks: ScoreChunks, source: Source, advance: Advance) -> EngineUse:
        if self.plan.resolved is None:
            repair = "omit it, or score with the policy itself"
            raise DecisionError("cannot run an exported file", argument="engine", repair=repair)
        use, start = EngineUse(), time.monotonic()
        numbers = [number for number, _ in chunks.missing]
        load_worker = partial(
            load_scorer,
            self.plan.policy.model_dump_json(),
            self.plan.resolved.classifier,
            execution=replace(self.execution, engine=None, progress=False),
            settings=self.options.settings,
            class_names=self.class_names,
            job=chunks.record.digest,
            metadata=self.metadata,
        )
        with closing(engine.compute_chunks(load_worker, source, chunks.chunking, numbers)) as computed:
            for chunk in computed if numbers else ():
                chunks.write(chunk.number, chunk.content)
                n_images = len(chunks.chunking.indices_of(chunk.number))
                use.add(chunk, n_images)
                advance(n_images)
        use.seconds = time.monotonic() - start
        return use

    def write_review(self, chunks: ScoreChunks, locations: ImageLocations, exports: Sequence[ExportFile]) -> None:
        """Write the folder of rejected images and the exports."""

        def make_queue(*, include_accepted: bool) -> ReviewQueue:
            names = self.class_names or tuple(str(label) for label in range(self.n_classes))
            return ReviewQueue.from_rows(chunks.read(), self.source.ids, names, include_accepted=include_accepted)

        if locations.folder is not None:
            queue = make_queue(include_accepted=False)
            with progress_bar("rejected images", len(queue), "images", enabled=self.execution.progress) as advance:
                locations.fill_folder(queue, chunks, advance)
        if exports:
            queue = make_queue(include_accepted=locations.review.export_all)
            for export in exports:
                export.write(queue, locations)


def load_scorer(
    policy_text: str,
    classifier: Classifier,
    execution: Execution,
    settings: Mapping[str, Any],
    class_names: tuple[str, ...] | None,
    job: str,
    metadata: Mapping[str, str],
) -> Callable[[int, Source], bytes]:
    """Return a function that scores a chunk from its images, for a worker that received the arguments by pickle."""
    policy = Policy.model_validate_json(policy_text)
    resolved = ResolvedClassifier(classifier.on_device(execution.device), None)
    plan, options = Plan(policy, resolved, execution), RowOptions(policy, **settings)

    def score_chunk(number: int, images: Source) -> bytes:
        size, chunks = execution.batch_size, [(number, range(len(images)))]
        (chunk,) = plan.look_at_chunks(images, chunks, batch_size=size, class_names=class_names)
        return ChunkStore.encode(job, number, options.make_rows(chunk), metadata)

    return score_chunk


def _open_plan(policy: Policy | str | Path, classifier: object, execution: Execution) -> CompiledPolicy:
    """Return a compiled policy, for this process or for the workers of an engine."""
    if isinstance(policy, Policy):
        if classifier is None and execution.engine is None and execution.device == "auto":
            return compile_policy(policy)  # like `decide`
        bound = policy.bind(classifier)
    else:
        if OnnxFile.has_suffix(policy):
            check_classifier_is_inside(classifier=classifier)
        bound = read_policy(policy).bind(classifier, path=Path(policy).expanduser())
    # The workers of an engine choose their own devices; this process classifies a single image.
    here = replace(execution, device="cpu") if execution.engine is not None else execution
    return open_plan(bound, replace(bound._binding, execution=here))


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
    outputs = [(f"the export {str(export)!r}", path) for export in exports for path in export.paths]
    for what, target in outputs if out is None else [("the scores", out), *outputs]:
        other = used.setdefault(os.path.realpath(target), what)
        if other is not what:
            raise DecisionError(f"{what} would replace {other} at {str(target)!r}; choose different files.")
