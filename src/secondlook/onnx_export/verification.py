"""`verify_export`: compare an exported file with the library, image by image."""

import heapq
import math
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from secondlook.extension import (
    DEFAULT_EXECUTION,
    Array,
    Blur,
    DecisionError,
    Decisions,
    Execution,
    ExportedFile,
    FileOutputs,
    Filter,
    Frame,
    OnnxFile,
    Plan,
    Policy,
    Predictions,
    TextTable,
    Warp,
    chunk_rows,
    compile_policy,
    find_first_image,
    format_html,
    is_number,
    is_whole_number,
    load_policy,
    make_decisions,
    open_source,
    progress_bar,
    read_ahead,
)
from secondlook.onnx_export.export import compile_with_classifier

DEFAULT_MAX_DIFFERENCE = 1e-3
"""Default for the largest difference of a confidence; in few images, a view rounds a pixel to its neighbor."""

ROUNDING_DIFFERENCE = 5e-3
"""Largest difference that rounded pixels alone can cause; adaptive files differ most, since single looks count most."""

BLOCK_IMAGES = 128
MAX_KEPT, MAX_LISTED = 1000, 20
"""Maximum numbers of differing images to keep and to print: those with the largest distance."""

Cause = Literal["decision", "class", "looks", "familiarity"]
CLOSE_TO: dict[Cause, str] = {
    "decision": "threshold",
    "class": "tie of classes",
    "looks": "limit to look again",
    "familiarity": "limit of familiarity",
}


@dataclass(frozen=True)
class ComparedDecision:
    """One of two decisions about an image."""

    label: int | list[int]
    confidence: float
    accept: bool
    looks: int

    def __str__(self) -> str:
        label = ",".join(map(str, np.ravel(self.label)))
        looks = f"{self.looks} look{'s' * (self.looks != 1)}"
        return f"{'accept' if self.accept else 'reject'} {label}, {self.confidence:.6f}, {looks}"


def _list_compared(decided: Decisions | FileOutputs) -> tuple[Array, ...]:
    """Return the fields of `ComparedDecision` for all images."""
    return decided.labels, decided.confidence, decided.accept, decided.looks


@dataclass(frozen=True)
class DifferingImage:
    """An image with another class, decision or number of looks in the file than in the library."""

    id: str
    library: ComparedDecision
    file: ComparedDecision
    threshold_distance: float
    """Distance of the library's confidence from the threshold; infinite if the class accepts nothing."""
    cause: Cause
    """First difference: the familiarity, the number of looks, the class, or the decision."""
    distance: float
    """Distance of the library from the other result: from the threshold, a tie of classes, or a limit."""

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; an infinite distance is None."""
        distance = self.threshold_distance if math.isfinite(self.threshold_distance) else None
        return {**asdict(self), "threshold_distance": distance}


@dataclass(frozen=True)
class Verification:
    """Result of `verify_export`."""

    path: Path
    """The exported file."""
    images: int
    """Number of images that were compared."""
    skipped: int
    """Number of images that could not be read."""
    max_difference: float
    differing_labels: int
    differing_decisions: int
    differing_looks: int
    largest_difference: float
    """Largest difference of the confidence, among images with the same class and number of looks."""
    mean_difference: float
    unexplained: int
    """Number of differing images with a distance above `max_difference`."""
    differing: tuple[DifferingImage, ...]
    """The differing images, largest distance first; at most 1,000."""
    largest_probability_difference: float = 0.0
    """Largest difference of the probability of any class, among images with the same number of looks."""
    interpolates: bool = False
    """Whether the policy resizes images, or has views that interpolate pixels."""

    @property
    def passed(self) -> bool:
        """Whether file and library agree, except for rounding."""
        largest = max(self.largest_difference, self.largest_probability_difference)
        return largest <= self.max_difference and self.unexplained == 0

    @property
    def verdict(self) -> str:
        """The result as a sentence."""
        if self.passed:
            return "passed: the file and the library agree"
        what = "confidence" if self.largest_difference > self.max_difference else "probability"
        fault = f"a {what} differs by more than {self.max_difference:g}"
        if self.unexplained:
            fault = f"{self.unexplained:,} differing images are more than {self.max_difference:g} from a tie or limit"
        distances = [image.distance for image in self.differing]
        largest = max(self.largest_difference, self.largest_probability_difference, *distances)
        if self.interpolates and largest <= ROUNDING_DIFFERENCE:
            cause = "the policy resizes or interpolates images, and rounding of these pixels causes differences"
            fault += f"; {cause} up to about {ROUNDING_DIFFERENCE:g}, so allow this difference"
        return f"failed: {fault}"

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        images = [image.to_dict() for image in self.differing]
        return {**vars(self), "path": str(self.path), "passed": self.passed, "differing": images}

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._list_parts()))

    def _repr_html_(self) -> str:
        return format_html(self._list_parts())

    def _list_parts(self) -> list[str | TextTable]:
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        lines = [
            f"{self.images:,} images compared{skipped}: {self.differing_decisions:,} decisions, "
            f"{self.differing_labels:,} classes and {self.differing_looks:,} numbers of looks differ",
            f"confidence: differs by at most {self.largest_difference:.3g}, by {self.mean_difference:.3g} on average "
            f"(allowed {self.max_difference:g})",
            f"probabilities: differ by at most {self.largest_probability_difference:.3g}",
            self.verdict,
        ]
        rows = [("image", "library", "file", "to threshold", "differs in")]
        for image in self.differing[:MAX_LISTED]:
            near = f"{image.cause}, {image.distance:.3g} from a {CLOSE_TO[image.cause]}"
            rows.append((image.id, str(image.library), str(image.file), f"{image.threshold_distance:.3g}", near))
        return ["\n".join(lines), *([TextTable(rows)] if self.differing else [])]


def verify_export(
    path: str | Path,
    policy: Policy | str | Path,
    data: Any,
    *,
    classifier: object = None,
    max_difference: float = DEFAULT_MAX_DIFFERENCE,
    limit: int | None = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> Verification:
    """Compare the decisions of an exported file and of the library.

    It passes if no confidence or probability differs by more than `max_difference`, and every image with another class,
    decision or number of looks is within `max_difference` of a tie of classes, of the threshold, or of a limit of
    familiarity or of its schedule. Compare a file with float32 input on float32 images: it does not round the pixels of
    views, but the library does so for uint8 images.

    Parameters
    ----------
    path
        The file written by `export_onnx`.
    policy
        The exported policy, or the path of its file.
    data
        Images: anything that `open_source` accepts; labels are not needed.
    classifier
        The classifier of the policy, if it cannot be loaded from the spec in the policy.
    max_difference
        Largest difference of a confidence, and of a probability.
    limit
        Number of images to compare, spread over the data; all by default.
    execution
        Where and how to run the file and the classifier.
    """
    if not OnnxFile.has_suffix(path):
        raise DecisionError(f"{str(path)!r} is not an exported file; pass an ONNX file written by export_onnx.")
    if not (is_number(max_difference) and max_difference >= 0):
        fault = f"is invalid; expected a number of at least 0, such as {DEFAULT_MAX_DIFFERENCE:g}"
        raise DecisionError(fault, argument="max_difference", value=max_difference)
    if limit is not None and not (is_whole_number(limit) and limit > 0):
        raise DecisionError("is invalid; expected a number of images, at least 1", argument="limit", value=limit)
    file = compile_policy(load_policy(path, execution=execution))
    assert isinstance(file, ExportedFile), "its policy came from the file"
    plan = compile_with_classifier(policy, classifier, execution, allow_mismatch=file.mismatch is not None)
    if not plan.given.decides_like(file.given):
        fault = f"{str(file.path)!r} was exported from another policy ({file.given.identity}) than this one"
        repair = "pass the policy that was exported, or export this one"
        raise DecisionError(f"{fault} ({plan.given.identity})", repair=repair)
    source = open_source(data, on_error=execution.on_error).without_labels()
    source = source if limit is None else source.spread(limit)
    block_size = max(source.threads, chunk_rows(find_first_image(source)[1], BLOCK_IMAGES))
    found = _Differences(plan.policy, max_difference)
    with (
        progress_bar("comparing", len(source), "images", enabled=execution.progress) as advance,
        closing(read_ahead(lambda: source.batches(block_size), 1)) as batches,
    ):
        for batch in batches:
            decided = file.decide_images(batch.images, batch_size=execution.batch_size)
            for positions, preds, _ in plan.look_at_images(batch.images, batch.ids):
                found.add(preds, decided.select(positions))
                advance(len(positions))
    labels, decisions, looks = np.concatenate(found.differs, axis=1)
    confidences = np.concatenate(found.confidences)
    return Verification(
        path=file.path,
        images=len(looks),
        skipped=len(source) - len(looks),
        max_difference=max_difference,
        differing_labels=int(labels.sum()),
        differing_decisions=int(decisions.sum()),
        differing_looks=int(looks.sum()),
        largest_difference=float(confidences.max(initial=0.0)),
        mean_difference=float(confidences.sum()) / max(1, len(confidences)),
        unexplained=found.unexplained,
        differing=tuple(found.images),
        largest_probability_difference=found.largest_probability,
        interpolates=_interpolates(plan),
    )


def _interpolates(plan: Plan) -> bool:
    """Whether images or views have interpolated pixels, which each engine rounds in its own way."""
    preprocessing = plan.classifier.preprocessing
    if preprocessing.resize is not None and preprocessing.interpolation != "nearest":
        return True
    frame = Frame(*(preprocessing.input_size or (64, 64)), 3)
    operations = (one for view in plan.views for one in view.plan(frame))
    return any(isinstance(one, Warp | Blur | Filter) for one in operations)


class _Differences:
    """Differences between the library and a file so far."""

    def __init__(self, policy: Policy, max_difference: float) -> None:
        self.policy, self.max_difference = policy, max_difference
        self.differs: list[Array] = []
        """Which images differ in class, decision and number of looks. bool [3, n] each"""
        self.confidences: list[Array] = []
        """Differences of the confidence of images with the same class and number of looks."""
        self.largest_probability, self.unexplained = 0.0, 0
        self.images: list[DifferingImage] = []

    def add(self, preds: Predictions, decided: FileOutputs) -> None:
        """Add images: the predictions of the library in all views of `preds`, and the decisions of the file."""
        library = make_decisions(self.policy, preds)
        pairs = zip(_list_compared(library), _list_compared(decided), strict=True)
        labels, _, decisions, looks = ((one != other).reshape(len(preds), -1).any(axis=1) for one, other in pairs)
        self.differs.append(np.array([labels, decisions, looks]))
        self.confidences.append(np.abs(library.confidence - decided.confidence)[~labels & ~looks])
        probabilities = np.abs(_compute_mean(preds) - decided.probabilities)[~looks]
        self.largest_probability = max(self.largest_probability, float(probabilities.max(initial=0.0)))
        differing, to_limit = [], self._measure_familiarity(library, decided)
        for position in np.flatnonzero(labels | looks | decisions).tolist():
            values = ([one[position].tolist() for one in _list_compared(each)] for each in (library, decided))
            mine, theirs = (ComparedDecision(*each) for each in values)
            differing.append(self._explain(preds.select(images=[position]), mine, theirs, to_limit[position]))
        self.unexplained += sum(not image.distance <= self.max_difference for image in differing)
        self.images = heapq.nlargest(MAX_KEPT, [*self.images, *differing], key=lambda image: image.distance)

    def _measure_familiarity(self, library: Decisions, decided: FileOutputs) -> Array:
        """Return the distance from the familiarity limit, NaN if both are on the same side of it. float64 [n]"""
        if self.policy.familiarity is None or library.familiarity is None:
            return np.full(len(library), np.nan)
        is_other = library.is_familiar != self.policy.is_familiar(decided.familiarity)
        return np.where(is_other, np.abs(library.familiarity - self.policy.familiarity.limit), np.nan)

    def _explain(
        self, preds: Predictions, mine: ComparedDecision, theirs: ComparedDecision, to_limit: float
    ) -> DifferingImage:
        """Return the cause of a difference, and the distance of the library from the other result."""
        first = np.ravel(mine.label)[:1]
        threshold = self.policy.find_thresholds((1,), first if self.policy.grouped_by == "class" else None)
        to_threshold = float(np.abs(mine.confidence - np.asarray(threshold)).min())
        cause: Cause = "decision"
        distance = to_threshold
        if mine.looks == theirs.looks and mine.label != theirs.label:
            means = _compute_mean(preds, slice(0, 1) if self.policy.predict_from == "image" else slice(None))[0]
            tie = means[np.ravel(mine.label)] - means[np.ravel(theirs.label)]
            cause, distance = "class", float(np.abs(tie).max())
        elif not np.isnan(to_limit):
            cause, distance = "familiarity", float(to_limit)
        elif mine.looks != theirs.looks:
            cause, distance = "looks", self._measure_limit(preds, min(mine.looks, theirs.looks))
        return DifferingImage(preds.ids[0], mine, theirs, to_threshold, cause, distance)

    def _measure_limit(self, preds: Predictions, looks: int) -> float:
        """Return the distance of the library's estimate from the next limit after `looks` looks."""
        schedule = self.policy.schedule
        assert schedule is not None, "all images have the same number of looks without a schedule"
        estimate = schedule.estimate(looks, self.policy.compiled.running(preds)[:, looks - 1])
        limits = np.array(schedule.limits(self.policy.threshold))[:, looks - 1]
        return float(np.abs(estimate - limits).min())


def _compute_mean(preds: Predictions, views: slice = slice(None)) -> Array:
    """Return the mean probabilities over views. float [N, C]"""
    return np.concatenate([block[:, views].mean(axis=1) for _, block in preds.blocks()])
