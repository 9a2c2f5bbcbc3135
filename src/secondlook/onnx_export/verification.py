"""`verify_decider`: compare an exported file with the library, image by image."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import is_number, is_whole_number
from secondlook.classifiers import Preprocessing
from secondlook.decisions import (
    Decider,
    FileDecisions,
    OnnxDecider,
    compute_confidence,
    group_by_shape,
    load_decider,
    open_policy_classifier,
)
from secondlook.errors import DecisionError
from secondlook.onnx_export.verification_result import (
    DEFAULT_DIFFERENCE,
    Cause,
    ComparedDecision,
    DifferingImage,
    Verification,
)
from secondlook.operations import Blur, Filter, Frame, Warp
from secondlook.policies import Policy, Rule
from secondlook.predictions import BatchSize, Predictions, chunk_rows, find_first_image, read_ahead
from secondlook.progress import progress_bar
from secondlook.sources import Batch, OnError, Source, open_source
from secondlook.views import Blur, Filter, Frame, View, Warp

BLOCK_IMAGES = 128
"""Largest number of images that are compared together."""

MAX_KEPT = 1000
"""Differing images that are kept: the ones that are hardest to explain."""


def verify_decider(
    decider: OnnxDecider | str | Path,
    policy: Policy | str | Path,
    data: Any,
    *,
    classifier: object = None,
    tolerance: float = DEFAULT_DIFFERENCE,
    limit: int | None = None,
    batch_size: BatchSize = "auto",
    device: str = "auto",
    on_error: OnError | None = None,
    progress: bool = True,
) -> Verification:
    """Compare what an exported file and the library decide about images.

    It passes if no confidence or probability differs by more than `tolerance`, and every image with another class,
    decision or number of looks is within `tolerance` of a tie of classes, of the threshold, or of a limit of its
    schedule. A file that takes float32 does not round the pixels of views, as the library does for uint8 images, so
    that such files are to be compared on float32 images.

    Parameters
    ----------
    decider
        The file that `export_onnx` wrote, or what `load_decider` returns.
    policy
        The policy that was exported, or the path of its file.
    data
        Images: anything that `open_source` accepts; labels are not needed.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy.
    tolerance
        Largest difference of a confidence, and of a probability.
    limit
        Number of images to compare, spread over the data; all by default.
    batch_size
        Number of images per call of the file.
    device
        Where to run the file and the classifier: "auto", "cpu", "cuda" or "cuda:N".
    on_error
        What to do with an image that cannot be read: "fail" (by default) or "skip".
    progress
        Whether to show a progress bar.
    """
    _check_arguments(tolerance, limit)
    file = decider if isinstance(decider, OnnxDecider) else load_decider(decider, device=device)
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    if loaded.checksum != file.policy.checksum:
        raise DecisionError(
            f"{str(file.path)!r} was exported from another policy ({file.policy.identity}) than this one "
            f"({loaded.identity}); pass the policy that was exported, or export this one."
        )
    resolved = open_policy_classifier(policy, loaded, classifier, allow_mismatch=file.record.mismatch is not None)
    library = Decider(loaded, resolved.on_device(device))
    source = open_source(data, on_error=on_error).without_labels()
    source = source if limit is None else source.spread(limit)
    comparison = _Comparison(library.rule, tolerance, _interpolates(loaded))
    with (
        progress_bar("comparing", len(source), "images", enabled=progress) as advance,
        closing(_read_blocks(source)) as batches,
    ):
        for batch in batches:
            decided = file.decide_list(batch.images, batch_size=batch_size)
            for positions, preds in _look(library, batch):
                comparison.add(preds, decided.select(np.asarray(positions)))
                advance(len(positions))
    return comparison.summarize(file.path, len(source) - comparison.images)


def _check_arguments(tolerance: object, limit: object) -> None:
    if not (is_number(tolerance) and tolerance >= 0):
        expected = f"is invalid; expected a number from 0 up, such as {DEFAULT_DIFFERENCE:g}"
        raise DecisionError(expected, argument="tolerance", value=tolerance)
    if limit is not None and not (is_whole_number(limit) and limit > 0):
        raise DecisionError("is invalid; expected a number of images, at least 1", argument="limit", value=limit)


def _interpolates(policy: Policy) -> bool:
    """Whether images or views are made of pixels that are computed in between, which each engine rounds by itself."""
    preprocessing = Preprocessing.from_dict(policy.classifier.preprocessing)
    if preprocessing.resize is not None and preprocessing.interpolation != "nearest":
        return True
    frame = Frame(*(preprocessing.input_size or (64, 64)), 3)
    operations = (one for view in policy.views for one in View.parse(view).plan(frame))
    return any(isinstance(one, Warp | Blur | Filter) for one in operations)


def _read_blocks(source: Source) -> Generator[Batch, None, None]:
    """Return the images of a source, some at a time, read ahead in a thread."""
    _, image = find_first_image(source)
    size = max(source.threads, chunk_rows(image, BLOCK_IMAGES))
    return read_ahead(lambda: source.batches(size), 1)


def _look(library: Decider, batch: Batch) -> Iterator[tuple[list[int], Predictions]]:
    """Look at the images of a block with the library; yield positions and predictions by the number of looks."""
    fitted = [library.fit_image(image)[0] for image in batch.images]
    for group in group_by_shape(fitted):
        inputs = np.stack([fitted[position] for position in group])
        for positions, preds in library.look(inputs, [batch.ids[position] for position in group]):
            yield [group[position] for position in positions.tolist()], preds


@dataclass
class _Comparison:
    """Counts and differing images so far."""

    rule: Rule
    tolerance: float
    interpolates: bool
    images: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("labels", "decisions", "looks"), 0))
    compared: int = 0
    total: float = 0.0
    largest: float = 0.0
    largest_probability: float = 0.0
    unexplained: int = 0
    differing: list[DifferingImage] = field(default_factory=list)

    def add(self, preds: Predictions, decided: FileDecisions) -> None:
        """Add images that the library looked at in all views of `preds`, and what the file decided about them."""
        confidence = compute_confidence(self.rule, preds)
        probabilities = np.concatenate([block.mean(axis=1) for _, block in preds.blocks()])
        library = FileDecisions(
            preds.predicted(self.rule.predict_from, self.rule.top_k),
            confidence,
            self.rule.accept_images(preds, confidence),
            np.full(len(preds), preds.n_views),
            decided.view_outputs,
            probabilities,
        )
        labels = (library.labels != decided.labels).reshape(len(preds), -1).any(axis=1)
        looks, decisions = library.looks != decided.looks, library.accept != decided.accept
        differences = np.abs(confidence - decided.confidence)[~labels & ~looks]
        self.images += len(preds)
        self.compared += len(differences)
        self.total += float(differences.sum())
        self.largest = max(self.largest, float(differences.max(initial=0.0)))
        differences = np.abs(probabilities - decided.probabilities)[~looks]
        self.largest_probability = max(self.largest_probability, float(differences.max(initial=0.0)))
        for name, differs in {"labels": labels, "decisions": decisions, "looks": looks}.items():
            self.counts[name] += int(differs.sum())
        for position in np.flatnonzero(labels | looks | decisions).tolist():
            self._add_differing(preds, library, decided, position)

    def _add_differing(self, preds: Predictions, library: FileDecisions, decided: FileDecisions, position: int) -> None:
        mine, theirs = (ComparedDecision.select(each, position) for each in (library, decided))
        first = np.ravel(mine.label)[:1]
        threshold = self.rule.find_thresholds((1,), first if self.rule.grouped_by == "class" else None)
        to_threshold = float(np.abs(mine.confidence - np.asarray(threshold)).min())
        cause: Cause = "decision"
        distance, one = to_threshold, preds.select(images=[position])
        if mine.looks != theirs.looks:
            cause, distance = "looks", self._measure_limit(one, min(mine.looks, theirs.looks))
        elif mine.label != theirs.label:
            cause, distance = "class", self._measure_tie(one, np.ravel(mine.label), np.ravel(theirs.label))
        self.unexplained += not distance <= self.tolerance
        self.differing.append(DifferingImage(preds.ids[position], mine, theirs, to_threshold, cause, distance))
        if len(self.differing) > 2 * MAX_KEPT:
            self.differing = self._list_differing()

    def _measure_limit(self, preds: Predictions, looks: int) -> float:
        """Return how far the estimate of an image was from the next limit after some looks, in the library."""
        schedule = self.rule.schedule
        assert schedule is not None, "all images have the same number of looks without a schedule"
        estimate = schedule.estimate(looks, self.rule.compute_running(preds)[:, looks - 1])
        limits = np.array(schedule.limits(self.rule.threshold))[:, looks - 1]
        return float(np.abs(estimate - limits).min())

    def _measure_tie(self, preds: Predictions, classes: Any, others: Any) -> float:
        """Return how much the probabilities differ of classes that were predicted by one and not by the other."""
        views = slice(0, 1) if self.rule.predict_from == "image" else slice(None)
        means = np.concatenate([block[:, views].mean(axis=1) for _, block in preds.blocks()])[0]
        return float(np.abs(means[classes] - means[others]).max())

    def _list_differing(self) -> list[DifferingImage]:
        return sorted(self.differing, key=lambda image: -image.distance)[:MAX_KEPT]

    def summarize(self, path: Path, skipped: int) -> Verification:
        """Return the result."""
        return Verification(
            path=path,
            images=self.images,
            skipped=skipped,
            tolerance=self.tolerance,
            differing_labels=self.counts["labels"],
            differing_decisions=self.counts["decisions"],
            differing_looks=self.counts["looks"],
            largest_difference=self.largest,
            mean_difference=self.total / max(1, self.compared),
            largest_probability_difference=self.largest_probability,
            unexplained=self.unexplained,
            interpolates=self.interpolates,
            differing=tuple(self._list_differing()),
        )
