"""`load_decider`: an exported ONNX file, which classifies and decides by itself, opened as safely as a classifier."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array, as_pixels, default_ids, describe_image_fault
from secondlook.classifiers import OnnxFile, Preprocessing, check_device, run_limited
from secondlook.decisions.adaptive_looks import LookedGroup, take_first_views
from secondlook.decisions.export_record import (
    INPUT_NAME,
    TOP_K_OUTPUT,
    ExportRecord,
    check_session,
    invalid_file,
    read_record,
)
from secondlook.decisions.loaded_policy import DEFAULT_LEVEL, ImageDecision, choose_class_names
from secondlook.decisions.policy_classifier import split_members
from secondlook.decisions.rows import FileDecisions, make_decisions
from secondlook.errors import ClassifierError, DecisionError, reject_failures, shorten_reason
from secondlook.policies import Policy, check_threshold_transfers, has_onnx_suffix
from secondlook.predictions import BatchSize, choose_batch_size
from secondlook.progress import Advance, ignore_progress
from secondlook.sources import read_image

_FIELDS = FileDecisions._fields[1:]
"""Outputs beside the label, which are called as the fields are."""


class OnnxDecider:
    """An exported file that decides about images; `load_decider` opens one.

    Attributes
    ----------
    path, digest
        The file, and a digest of its content.
    policy, rule
        The policy in the file, and its rule; without a guarantee if the classifier is not the one of the policy.
    record
        How the file was exported.
    """

    def __init__(
        self, path: Path, digest: str, policy: Policy, record: ExportRecord, session: Any, timeout: float
    ) -> None:
        self.path = path
        self.digest = digest
        self.policy = policy
        self.record = record
        self.rule = policy.rule if record.mismatch is None else replace(policy.rule, guarantee=None)
        self._session = session
        self._timeout = timeout
        self._preprocessing = Preprocessing.from_dict(policy.classifier.preprocessing)

    def decide(self, image: object, *, level: float = DEFAULT_LEVEL, seed: int = 0) -> ImageDecision:
        """Return the predicted class of one image, its confidence, and whether the prediction is accepted.

        Class, confidence, decision and number of looks are those of the file; interval, first look and disagreement
        are computed from the outputs of its looks.

        Parameters
        ----------
        image
            A path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C, H, W].
        level, seed
            Confidence level and random seed of the interval of the confidence over the views.
        """
        decided = self.decide_images(read_image(image)[None])
        class_names = choose_class_names([self.policy.class_names], self.record.classes)
        ((_, preds),) = self.group_by_looks(decided, default_ids(1), class_names)
        (decision,) = make_decisions(self.rule, preds, level=level, seed=seed, decided=decided)
        return ImageDecision.from_row(decision, class_names, self.rule.guarantee)

    def decide_images(
        self, images: Array, *, batch_size: BatchSize = "auto", advance: Advance = ignore_progress
    ) -> FileDecisions:
        """Return what the file decides about images of equal size. uint8, or float32 in [0, 1], [N, H, W, C]

        Pixels become those that the file takes: uint8 is divided by 255, float32 is rounded. `advance` is called with
        the number of images just decided.
        """
        fault = _describe_stack_fault(images) or self.describe_misfit(images.shape[1:])
        if fault is not None:
            raise DecisionError(f"the images {fault}.")
        return self._decide(images, batch_size, advance)

    def _decide(self, images: Array, batch_size: BatchSize, advance: Advance) -> FileDecisions:
        """Run the file on images that fit, batch by batch. [N, H, W, C]"""
        size = self._choose_batch_size(batch_size, images.shape[1:])
        decided = []
        for start in range(0, len(images), size):
            decided.append(self._run(images[start : start + size]))
            advance(len(decided[-1].looks))
        return FileDecisions.join(decided)

    def decide_list(
        self,
        images: Sequence[Array],
        *,
        batch_size: BatchSize = "auto",
        advance: Advance = ignore_progress,
        name_image: Callable[[int], str] = "image {}".format,
    ) -> FileDecisions:
        """Return what the file decides about images [H, W, C] of any size that it takes; equal ones form batches.

        `name_image` returns what messages call the image at a position.
        """
        groups = group_by_shape(images)
        decided = []
        for group in groups:
            stack = np.stack([images[position] for position in group])
            fault = _describe_stack_fault(stack) or self.describe_misfit(stack.shape[1:])
            if fault is not None:
                raise DecisionError(f"the pixels of {name_image(group[0])} {fault}.")
            decided.append(self._decide(stack, batch_size, advance))
        return FileDecisions.join(decided).select(np.argsort(np.concatenate(groups)))

    def describe_misfit(self, shape: tuple[int, ...]) -> str | None:
        """Return how an image of this shape [H, W, C] is not one that the file takes; None where it is."""
        expected = self.record.image_shape
        if not all(size in (None, found) for size, found in zip(expected, shape, strict=True)):
            return (
                f"have {' x '.join(map(str, shape))} pixels (height x width x channels), but {str(self.path)!r} takes "
                f"{self.record.describe_input()}; convert them, or export the policy with image_shape= for them"
            )
        height, width = self._compute_resized_size(shape)
        if (height, width) != shape[:2] and height * width > Preprocessing.MAX_RESIZED_PIXELS:
            return (
                f"have {shape[0]} x {shape[1]} pixels, which {str(self.path)!r} would resize to {height} x {width}; "
                "remove them"
            )
        return None

    def compute_input_size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width of what the classifier gets for an image [H, W, C]."""
        return self._preprocessing.input_size or self._compute_resized_size(shape)

    def _compute_resized_size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width after resizing, before the crop."""
        height, width = shape[:2]
        resize = self._preprocessing.resize
        if isinstance(resize, int):
            return resize * height // min(height, width), resize * width // min(height, width)
        return resize or (height, width)

    def group_by_looks(
        self, decided: FileDecisions, ids: Sequence[str], class_names: tuple[str, ...] | None
    ) -> Iterator[LookedGroup]:
        """Yield the images by the number of looks at them, with the predictions of these looks."""
        for count in np.unique(decided.looks).tolist():
            positions = np.flatnonzero(decided.looks == count)
            outputs = decided.view_outputs[positions, :count]
            chosen = [ids[position] for position in positions.tolist()]
            views = take_first_views(self.policy.views, count)
            yield LookedGroup(positions, split_members(outputs, self.record.outputs, views, chosen, class_names))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.rule.describe_threshold()!r})"

    def _choose_batch_size(self, batch_size: BatchSize, shape: tuple[int, ...]) -> int:
        """Return the number of images [H, W, C] per call of the file, which looks at all views of a batch at once."""
        size = choose_batch_size(batch_size, np.broadcast_to(np.uint8(0), (*self.compute_input_size(shape), shape[2])))
        if batch_size != "auto" or self.record.adaptive:
            return size
        return max(1, size // len(self.policy.views))

    def _run(self, images: Array) -> FileDecisions:
        """Run the file on one batch, and check what it returns. [n, H, W, C]"""
        name = f"decider {str(self.path)!r}"
        label = TOP_K_OUTPUT if self.policy.top_k > 1 else "label"
        pixels = as_pixels(images) if self.record.pixels == "uint8" else _as_floats(images)
        try:
            with _as_decision_errors():
                call = self._session.run, [label, *_FIELDS], {INPUT_NAME: pixels}
                values = run_limited(*call, what=name, timeout=self._timeout, n_images=len(images))
        except DecisionError:
            raise
        except Exception as error:
            raise DecisionError(
                f"{name} failed on images of shape {list(images.shape)}: {shorten_reason(error)}; check the images, or "
                "pass a smaller batch_size= if memory ran out."
            ) from error
        found = FileDecisions(*values)
        self._check_shapes(found, len(images))
        self._check_values(found)
        return found._replace(confidence=self._restore_confidence(found))

    def _check_shapes(self, found: FileDecisions, n_images: int) -> None:
        top_k, n_outputs = self.policy.top_k, self.record.members * self.record.classes
        labels = (n_images,) if top_k == 1 else (n_images, top_k)
        view_outputs, probabilities = (n_images, len(self.policy.views), n_outputs), (n_images, self.record.classes)
        expected = (labels, *[(n_images,)] * 3, view_outputs, probabilities)
        shapes = [np.shape(values) for values in found]
        for name, got, shape in zip(found._fields, shapes, expected, strict=True):
            if got != shape:
                raise self._damaged(f"{name} of shape {list(got)}, expected {list(shape)}")

    def _check_values(self, found: FileDecisions) -> None:
        """Raise for numbers that no policy decides from, so that nothing invalid is handed on."""
        n_classes, n_views, mean = self.record.classes, len(self.policy.views), found.probabilities
        fewest = 1 if self.record.adaptive else n_views
        is_taken = np.arange(n_views) < found.looks[:, None]
        is_valid = {
            f"a predicted class outside of 0 to {n_classes - 1}": (found.labels >= 0) & (found.labels < n_classes),
            "a confidence that is not finite": np.isfinite(found.confidence),
            f"a number of looks outside of {fewest} to {n_views}": (found.looks >= fewest) & (found.looks <= n_views),
            "an output that is not finite": np.isfinite(found.view_outputs).all(axis=2) | ~is_taken,
            "a probability that is not a number from 0 up": np.isfinite(mean) & (mean >= 0),
        }
        for fault, valid in is_valid.items():
            if not valid.all():
                raise self._damaged(f"{fault} for image {int(np.argwhere(~valid)[0][0])} of a batch")

    def _restore_confidence(self, found: FileDecisions) -> Float64Array:
        """Return the confidence such that the rule makes the decisions of the file from it. float64 [n]

        The file decides before it rounds the confidence to float32, which can cross the threshold.
        """
        rounded, accept = found.confidence, found.accept
        values = rounded.astype(np.float64)
        groups = found.labels.reshape(len(values), -1)[:, 0] if self.rule.grouped_by == "class" else None
        thresholds = np.broadcast_to(self.rule.find_thresholds(values.shape, groups), values.shape)
        differs = (values >= thresholds) != accept
        is_wrong = differs & ~(np.abs(values - thresholds) <= np.spacing(np.abs(rounded)))
        if is_wrong.any():
            place = int(np.flatnonzero(is_wrong)[0])
            decision = "accepted" if accept[place] else "rejected"
            raise self._damaged(
                f"image {place} of the batch as {decision} with confidence {values[place]:.6g} at a threshold of "
                f"{thresholds[place]:.6g}"
            )
        return np.where(differs, np.where(accept, thresholds, np.nextafter(thresholds, -np.inf)), values)

    def _damaged(self, found: str) -> DecisionError:
        return DecisionError(f"the decider {str(self.path)!r} returned {found}; export the policy again.")


def load_decider(
    path: str | Path, *, device: str = "auto", threads: int | None = None, timeout: float = OnnxFile.timeout
) -> OnnxDecider:
    """Open an ONNX file that `export_onnx` wrote: `load_decider("decide.onnx").decide(image)`.

    Parameters
    ----------
    path
        The file. One that was damaged or changed after it was exported is an error.
    device
        Where to run it: "auto", "cpu", "cuda" (the first GPU) or "cuda:N".
    threads
        Threads per operator on the CPU; by default all cores.
    timeout
        Seconds that loading, or one batch, may take: a file from elsewhere can contain an endless loop.
    """
    check_device(device)
    if not timeout > 0:  # nor is NaN
        raise DecisionError(f"timeout={timeout:g} must be positive.")
    if not has_onnx_suffix(path):
        raise DecisionError(
            f"{str(path)!r} is not an exported file, which ends in .onnx; make one with export_onnx(policy, out)."
        )
    file = Path(path).expanduser()
    policy = Policy.load(file)
    check_threshold_transfers(policy.method, policy.options)
    onnx_file = OnnxFile(file, str(path), threads, timeout)
    with _as_decision_errors():
        record = read_record(onnx_file.read_metadata(), policy, str(path))
        # ONNX Runtime would open external data, which the checksum does not cover.
        if onnx_file.find_external_data():
            raise invalid_file(str(path), "it keeps external data in other files")
        with reject_failures(f"ONNX Runtime cannot open the decider {str(path)!r}", "export the policy again."):
            session = onnx_file.open_session(device)
        check_session(session, record, policy, str(path))
        with reject_failures(f"the preprocessing in {str(path)!r} is not valid", "export the policy again."):
            return OnnxDecider(file, onnx_file.digest(), policy, record, session, timeout)


@contextmanager
def _as_decision_errors() -> Iterator[None]:
    """Raise the errors of opening or running an ONNX file as `DecisionError`."""
    try:
        yield
    except ClassifierError as error:
        raise DecisionError(str(error)) from error


def _describe_stack_fault(images: Array) -> str | None:
    """Return what is wrong with images [N, H, W, C]; None where nothing is."""
    fault = describe_image_fault(images)
    return "are none, expected at least one" if fault is None and len(images) == 0 else fault


def group_by_shape(images: Sequence[Array]) -> list[list[int]]:
    """Return the positions of images that can be stacked: of equal shape and number type."""
    groups: dict[object, list[int]] = {}
    for position, image in enumerate(images):
        groups.setdefault((image.shape, image.dtype), []).append(position)
    return list(groups.values())


def _as_floats(images: Array) -> Float32Array:
    """Return pixels in [0, 1]. uint8|float32 -> float32 of the same shape"""
    if images.dtype == np.float32:
        return np.ascontiguousarray(images)
    return images.astype(np.float32) / np.float32(255)
