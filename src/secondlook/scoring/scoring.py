"""`score`: decide about new images by a policy, go on after a kill, and hand the rejected ones to people."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secondlook.errors import DecisionError
from secondlook.predictions import (
    PROGRESS_UNIT,
    BatchSize,
    Chunking,
    CollectJob,
    choose_batch_size,
    chunk_rows,
    read_first_image,
    run_pipeline,
)
from secondlook.progress import progress_bar
from secondlook.scoring.asked_classifier import MemberOutputs, ResolvedClassifier, resolve_classifier
from secondlook.scoring.deciding import Deciding, Look
from secondlook.scoring.review.asked_exports import AskedExport
from secondlook.scoring.review.pictures import Pictures
from secondlook.scoring.review.rejected_folder import RejectedFolder
from secondlook.scoring.review.review_queue import COLUMNS, ReviewQueue
from secondlook.scoring.score_files import check_place, format_of, write_scores
from secondlook.scoring.score_parts import ScoreParts, ScoringJob
from secondlook.scoring.score_rows import INDEX, Question, schema_of
from secondlook.scoring.score_summary import ScoreSummary
from secondlook.selective import Policy, check_threshold_transfers
from secondlook.sources import OnError, Source, open_source, parse_spec
from secondlook.views import ViewSet

ANSWERS_BYTES = 256 * 2**20
"""About how much the answers of one part may take."""


def score(
    policy: Policy | str | Path,
    data: Any,
    out: str | Path,
    *,
    classifier: object = None,
    per_view: bool = False,
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
    on_error: OnError | None = None,
    look: Look | None = None,
) -> ScoreSummary:
    """Write label, confidence, interval and decision of every image of `data` to `out`.

    A job that was killed goes on where it was when it is started again, and ends with the same bytes.

    Parameters
    ----------
    policy, data, out
        A policy or its file; images, as text, array or source; a .parquet, .csv or .jsonl file.
    classifier
        The classifier of the policy, where it cannot be loaded from the text in there.
    per_view
        Whether to tell the class that each view leads to, and its probability.
    level, seed
        Of the interval around the mean confidence over views.
    rejected, link
        A folder to put rejected images in, by predicted class: copies, or links to the files.
    exports, export_all, image_prefix
        Files for other tools, such as 'label-studio:tasks.json', about the rejected images or about all of them; and
        what to put before an image's id to make its address.
    allow_mismatch
        Take a classifier that the policy was not made for; nothing is guaranteed then.
    on_error
        What to do with an image that cannot be read: "fail" (unless the source says otherwise), or "skip" it.
    look
        Is shown the predictions of the first images.
    """
    made = policy if isinstance(policy, Policy) else Policy.load(policy)
    check_threshold_transfers(made.method, dict(made.options))
    path = Path(out)
    format_of(path)
    check_place(path, "the scores")
    asked_exports = [AskedExport.parse(text) for text in exports]
    _refuse_the_same_file_twice(path, policy, data, asked_exports)
    source = open_source(data, on_error=on_error)
    folder = None if rejected is None else RejectedFolder(Path(rejected), source, link)
    pictures = Pictures(source, folder, image_prefix)
    for one in asked_exports:
        one.check_pictures(pictures, everything=export_all)
    asked = resolve_classifier(made, classifier, allow_mismatch=allow_mismatch)
    scoring = Scoring.of(made, asked, source, Question(made.rule, level, seed, per_view), batch_size)
    with ScoreParts.held(path, scoring.job) as parts:
        if folder is not None:
            folder.check(parts)
        scoring.fill(parts, look, progress=progress)
        scoring.join(parts, path)
        scoring.hand_over(parts, pictures, asked_exports, everything=export_all, progress=progress)
        summary = scoring.summary(parts, path, folder, asked_exports)
        parts.remove()
    return summary


@dataclass(frozen=True)
class Scoring:
    """One scoring, ready to begin: everything is loaded and compared."""

    policy: Policy
    asked: ResolvedClassifier
    source: Source
    question: Question
    side_by_side: MemberOutputs
    class_names: tuple[str, ...] | None
    classes: int
    batch_size: int
    job: ScoringJob

    @classmethod
    def of(
        cls, policy: Policy, asked: ResolvedClassifier, source: Source, question: Question, batch_size: BatchSize
    ) -> "Scoring":
        """Ask about one image, to know the number of classes and how many images fit in memory."""
        side_by_side = MemberOutputs(asked.classifier)
        image = read_first_image(asked.classifier, source)
        answers = side_by_side(image[None]).shape[1]
        classes = answers // len(side_by_side.members)
        names = _names_that_fit((asked.classifier.class_names, policy.class_names, source.class_names), classes)
        job = ScoringJob(
            policy=hashlib.sha256(policy.model_dump_json().encode()).hexdigest(),
            # Parts of a function without a name cannot be told from another's, so they are never taken up again.
            classifier=asked.classifier.digest or f"unnamed {uuid.uuid4().hex}",
            output=asked.classifier.output,
            preprocessing=asked.classifier.preprocessing.to_dict(),
            data=source.digest,
            images=len(source),
            rows=min(chunk_rows(image), max(16, ANSWERS_BYTES // (4 * answers * len(policy.views)))),
            level=question.level,
            seed=question.seed,
            answers=question.per_view,
            class_names=names,
        )
        chosen = choose_batch_size(batch_size, image)
        return cls(policy, asked, source, question, side_by_side, names, classes, chosen, job)

    def fill(self, parts: ScoreParts, look: Look | None, *, progress: bool) -> None:
        """Look at every image that no part is about yet."""
        views = ViewSet(list(self.policy.views))
        source = self.source.without_labels()
        division = Chunking(self.job.images, self.job.rows)
        job = CollectJob(self.side_by_side, source, views, self.batch_size, division)
        keeper = Deciding(parts, self.question, self.side_by_side, source, views, self.class_names, look)
        lacking = parts.images_missing * len(views)
        with progress_bar("scoring", lacking, PROGRESS_UNIT, enabled=progress) as advance, keeper.deciding():
            run_pipeline(job, keeper, advance)

    def join(self, parts: ScoreParts, path: Path) -> None:
        """Write all parts as one file."""
        schema = schema_of(self.question)
        schema = schema.remove(schema.get_field_index(INDEX)).with_metadata(self._circumstances())
        write_scores(path, schema, (part.rows.drop_columns(INDEX).cast(schema) for part in parts.read()))

    def hand_over(
        self,
        parts: ScoreParts,
        pictures: Pictures,
        exports: Sequence[AskedExport],
        *,
        everything: bool,
        progress: bool,
    ) -> None:
        """Put rejected images where people look at them."""
        if pictures.rejected is not None:
            queue = self._queue(parts, everything=False)
            with progress_bar("rejected images", len(queue), "images", enabled=progress) as advance:
                pictures.rejected.fill(queue, parts, advance)
        if exports:
            queue = self._queue(parts, everything=everything)
            for one in exports:
                one.write(queue, pictures)

    def summary(
        self, parts: ScoreParts, path: Path, folder: RejectedFolder | None, exports: Sequence[AskedExport]
    ) -> ScoreSummary:
        """Count what was decided."""
        accepted = images = 0
        skipped: list[tuple[str, str]] = []
        for part in parts.read(["accept"]):
            accepted += int(part.rows["accept"].to_numpy().sum())
            images += len(part.rows)
            skipped += part.skipped
        return ScoreSummary(
            path,
            accepted,
            images - accepted,
            tuple(skipped),
            None if self.asked.mismatch else self.policy.rule.guarantee,
            self.asked.mismatch,
            None if folder is None else folder.path,
            tuple(str(one) for one in exports),
        )

    def _queue(self, parts: ScoreParts, *, everything: bool) -> ReviewQueue:
        names = self.class_names or tuple(str(label) for label in range(self.classes))
        tables = (part.rows for part in parts.read(list(COLUMNS)))
        return ReviewQueue.of(tables, self.source.ids, names, everything=everything)

    def _circumstances(self) -> dict[str, str]:
        """Return how the scores came about, for a format that can carry it."""
        kept = {"policy": json.loads(self.policy.model_dump_json()), "data": self.source.spec}
        options = {"level": self.question.level, "seed": self.question.seed, "mismatch": self.asked.mismatch}
        return {"secondlook.score": json.dumps({**kept, **options}, ensure_ascii=False)}


def _refuse_the_same_file_twice(out: Path, policy: object, data: object, exports: Sequence[AskedExport]) -> None:
    """Say it before hours of work, where what is written would replace what is read, or what else is written."""
    used: dict[Path, str] = {}
    if isinstance(policy, str | Path):
        used[Path(policy).resolve()] = "the policy"
    if isinstance(data, str):
        used[parse_spec(data).path.resolve()] = "the data"
    written = [("the scores", out), *((f"the export {str(one)!r}", one.path) for one in exports)]
    for what, file in written:
        other = used.setdefault(file.resolve(), what)
        if other is not what:
            raise DecisionError(f"{what} would replace {other} at {str(file)!r}; give each a file of its own.")


def _names_that_fit(known: Iterable[tuple[str, ...] | None], classes: int) -> tuple[str, ...] | None:
    """Return the first names that are as many as the classes: folders of new images may mean something else."""
    return next((names for names in known if names and len(names) == classes), None)
