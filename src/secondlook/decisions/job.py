"""`score`: decide about new images with a policy, resume after an interruption, and write the review queue."""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from secondlook.arrays import Array, is_whole_number
from secondlook.classifiers import Classifier, check_device
from secondlook.decisions.adaptive_looks import choose_chunk_rows
from secondlook.decisions.chunk_scorers import ChunkScoring, OnPredictions, RowWriter
from secondlook.decisions.chunk_worker import EngineUse, LoadScorer, compute_on_engine
from secondlook.decisions.chunks import ScoreChunks
from secondlook.decisions.decider_job import DeciderJob
from secondlook.decisions.destinations import Destination, parse_destination
from secondlook.decisions.exports import ExportFile
from secondlook.decisions.loaded_policy import choose_class_names, open_policy_classifier
from secondlook.decisions.onnx_decider import OnnxDecider, load_decider
from secondlook.decisions.policy_classifier import MemberOutputs, ResolvedClassifier
from secondlook.decisions.review import ImageLocations, RejectedFolder
from secondlook.decisions.rows import RowOptions, row_schema
from secondlook.decisions.scoring_job import OUTPUT_BYTES, ScoringJob, make_job_record
from secondlook.decisions.summary import ScoreSummary
from secondlook.errors import DecisionError, SourceError
from secondlook.policies import Policy, check_threshold_transfers, has_onnx_suffix
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
from secondlook.sources import OnError, Source, open_source
from secondlook.specs import parse_spec
from secondlook.views import ViewSet


def score(
    policy: Policy | OnnxDecider | str | Path,
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
) -> ScoreSummary:
    """Write predicted class, confidence, interval and decision of every image of `data` to `out`.

    If the policy has a schedule, each image is looked at only until it is decided.

    Progress is saved: called again with the same arguments, an interrupted job resumes and ends with the same bytes.

    Parameters
    ----------
    policy
        A policy, or the path of its file; or an exported file that decides by itself: what `load_decider` returns, or
        a path that ends in '.onnx'. Classes, confidences and decisions are those of the file then, and `classifier`,
        `allow_mismatch` and `engine` do not go with it.
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
        Number of images per call of the classifier, or of an exported file, which looks at all views of them.
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
    opened = _open_policy(policy, classifier, device, engine, allow_mismatch=allow_mismatch)
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
    options = RowOptions(opened.rule, level, seed, per_view, audit)
    job: ScoringJob
    if isinstance(opened, OnnxDecider):
        job = DeciderJob.prepare(opened, source, options, batch_size, part_size)
    else:
        assert not isinstance(policy, OnnxDecider), "which is returned when it is opened"
        resolved = open_policy_classifier(policy, opened, classifier, allow_mismatch=allow_mismatch)
        job = ClassifierJob.prepare(
            opened, resolved, source, options, batch_size, part_size, device=device, engine=engine
        )
    if not overwrite:
        destination.check_replaceable(job.metadata, source.ids)
        for export in () if destination.has_scores() else export_files:
            export.check_new(str(destination))
    with destination.open_chunks(job.record, job.metadata, overwrite=overwrite) as chunks:
        if folder is not None:
            folder.check(chunks)
        use = job.compute_chunks(chunks, on_first_predictions, progress=progress)
        destination.write(chunks, row_schema(options), overwrite=overwrite)
        job.write_review(chunks, locations, export_files, include_accepted=export_all, progress=progress)
        summary = job.summarize(chunks.totals, destination, folder, export_files, use)
        destination.close(chunks)
    return summary


@dataclass(frozen=True)
class ClassifierJob(ScoringJob):
    """A scoring job with a classifier."""

    resolved: ResolvedClassifier
    """The classifier on no device yet, as an engine sends it to its workers."""
    classifier: MemberOutputs
    """The classifier in this process."""
    image: Array
    """The first image at the input size. [H, W, C]"""
    batch_size: BatchSize
    device: str
    engine: Engine | None

    @classmethod
    def prepare(
        cls,
        policy: Policy,
        resolved: ResolvedClassifier,
        source: Source,
        options: RowOptions,
        batch_size: BatchSize,
        part_size: int | None = None,
        *,
        device: str = "auto",
        engine: Engine | None = None,
    ) -> "ClassifierJob":
        """Run the classifier on one image, to find the number of classes and how many images fit in memory."""
        # The workers of an engine put the classifier on devices of their own, and here it sees one image only.
        here = resolved.on_device(device if engine is None else "cpu").classifier
        classifier = MemberOutputs(here)
        image = read_first_image(here, source)
        part_size = part_size or (None if engine is None else engine.part_size)
        n_outputs = classifier(image[None]).shape[1]
        n_classes = n_outputs // len(classifier.members)
        candidates = (resolved.classifier.class_names, policy.class_names, source.class_names)
        class_names = choose_class_names(candidates, n_classes)
        rows = min(_chunk_rows(policy, image, classifier), max(16, OUTPUT_BYTES // (4 * n_outputs * len(policy.views))))
        record = make_job_record(
            policy,
            source,
            options,
            class_names,
            # Functions without a name cannot be told apart, so a job with one is never resumed.
            classifier=resolved.classifier.digest or f"unnamed {uuid.uuid4().hex}",
            output=resolved.classifier.output,
            preprocessing=resolved.classifier.preprocessing.to_dict(),
            rows=part_size or rows,
        )
        known = (policy, resolved.mismatch, source, options, class_names, n_classes, record)
        return cls(*known, resolved, classifier, image, batch_size, device, engine)

    def compute_chunks(
        self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None, *, progress: bool
    ) -> EngineUse | None:
        """Compute every chunk that is missing, in this process or by the workers of the engine."""
        if self.engine is not None:
            return compute_on_engine(
                self.engine, self._make_worker(chunks), chunks, self.source.without_labels(), progress=progress
            )
        self._compute_here(chunks, on_first_predictions, progress=progress)
        return None

    def _compute_here(self, chunks: ScoreChunks, on_first_predictions: OnPredictions | None, *, progress: bool) -> None:
        views = ViewSet(list(self.policy.views))
        batch_size = choose_batch_size(self.batch_size, self.image, self.classifier)
        job = CollectJob(self.classifier, self.source.without_labels(), views, batch_size, chunks.chunking)
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

    def _make_worker(self, chunks: ScoreChunks) -> LoadScorer:
        """Return what scores the chunks of this job in another process."""
        return LoadScorer(
            self.policy.model_dump_json(),
            self.resolved.classifier,
            self.device,
            self.batch_size,
            self.image,
            chunks.record,
            chunks.metadata,
        )


def _open_policy(
    policy: Policy | OnnxDecider | str | Path,
    classifier: object,
    device: str,
    engine: Engine | None,
    *,
    allow_mismatch: bool,
) -> Policy | OnnxDecider:
    """Return a policy, or an exported file, which does not go with some arguments."""
    if isinstance(policy, Policy) or not (isinstance(policy, OnnxDecider) or has_onnx_suffix(policy)):
        loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
        check_threshold_transfers(loaded.method, loaded.options)
        return loaded
    if classifier is not None or allow_mismatch:
        name = "classifier=" if classifier is not None else "allow_mismatch="
        raise DecisionError(f"{name} is given, but an exported file has its classifier inside; omit {name}.")
    if engine is not None:
        raise DecisionError("an engine cannot run an exported file; omit engine=, or score with the policy itself.")
    if not isinstance(policy, OnnxDecider):
        return load_decider(policy, device=device)
    if device != "auto":
        raise DecisionError(f"device={device!r} is given, but the file is open already; pass device= to load_decider.")
    return policy


def _chunk_rows(policy: Policy, image: Array, classifier: Classifier) -> int:
    return chunk_rows(image) if policy.schedule is None else choose_chunk_rows(image, classifier)


def _check_part_size(part_size: int | None) -> None:
    if part_size is not None and (not is_whole_number(part_size) or part_size < 1):
        raise DecisionError(f"part_size is {part_size!r}; expected the number of images per chunk, at least 1.")


def _check_paths_differ(destination: Destination, policy: object, data: object, exports: Sequence[ExportFile]) -> None:
    """Raise an error if an output would replace an input or another output."""
    used: dict[str, str] = {}
    if isinstance(policy, str | Path | OnnxDecider):
        used[os.path.realpath(policy.path if isinstance(policy, OnnxDecider) else policy)] = "the policy"
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
