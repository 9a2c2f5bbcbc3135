"""Exported ONNX files, which classify and decide by themselves: their validation and safe execution."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from secondlook.arrays import Array, Float64Array, Output, as_pixels, round_down_to_power_of_two, validate_pixels
from secondlook.classifiers import OnnxFile, Preprocessing
from secondlook.decisions.decision import FileOutputs
from secondlook.decisions.looking import LookedChunk, LookedGroup, group_by_shape
from secondlook.decisions.plan import LOOKED_PIXELS, MIN_CHUNK_ROWS, OUTPUT_BYTES, CompiledPolicy
from secondlook.errors import ANY, ClassifierError, DecisionError, Repair, reject_failures, shorten_reason
from secondlook.files import FrozenRecord, PositiveCount, describe_invalid
from secondlook.policies import Binding, Policy
from secondlook.predictions import (
    DecodedChunk,
    choose_batch_size,
    chunk_rows,
    find_first_image,
    read_ahead,
)
from secondlook.progress import Advance, ignore_progress
from secondlook.sources import Source

MAX_CHUNK_ROWS = 256
_NO_IMAGES = np.empty((0, 1, 1, 1), dtype=np.uint8)

MAX_VIEWS = 1000
"""Limit of views; without it, an untrusted file could list views that take minutes to read."""

PixelType = Literal["uint8", "float32"]

_TYPES = {
    "uint8": "tensor(uint8)",
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    "int64": "tensor(int64)",
    "bool": "tensor(bool)",
}
_OUTPUT_FORMS: Mapping[str, tuple[str, int]] = {
    "label": ("int64", 1),
    "confidence": ("float32", 1),
    "accept": ("bool", 1),
    "probabilities": ("float32", 2),
    "looks": ("int64", 1),
    "view_outputs": ("float32", 3),
    "labels": ("int64", 2),
    "familiarity": ("float64", 1),
}
"""Number type and number of axes of each output, in order; two of them depend on the policy."""


class ExportRecord(FrozenRecord):
    """How a file was exported; stored in its metadata as JSON."""

    METADATA: ClassVar = "secondlook.export"
    """Key of the record in the metadata."""
    INPUT: ClassVar = "images"
    """Name of the input."""

    version: Literal[1] = 1
    secondlook: str
    """Version of the package that wrote the file."""
    pixels: PixelType
    """Number type of the images that the file takes."""
    image_shape: tuple[PositiveCount | None, PositiveCount | None, Literal[1, 3] | None]
    """Height, width and channels of the images; None if variable."""
    members: PositiveCount
    outputs: tuple[Output, ...]
    """Kind of output of each member."""
    classes: Annotated[PositiveCount, Field(ge=2)]
    adaptive: bool
    """Whether looking at an image stops once it is decided."""
    mismatch: str | None = None
    """Why the guarantee of the policy does not hold, if it was exported with another classifier."""

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if len(self.outputs) != self.members:
            raise ValueError(f"expected a kind of output for each of {self.members} members, got {list(self.outputs)}")
        return self

    @staticmethod
    def list_outputs(policy: Policy) -> tuple[str, ...]:
        """Return the names of the outputs of an exported policy, in order."""
        left_out = {"labels": policy.top_k == 1, "familiarity": policy.familiarity is None}
        return tuple(name for name in _OUTPUT_FORMS if not left_out.get(name))

    def describe_input(self) -> str:
        """Describe the number type and the shape of the input images."""
        sizes = ", ".join("any" if size is None else str(size) for size in self.image_shape)
        return f"{self.pixels} [batch, {sizes}] (height, width, channels)"


class ExportedFile(CompiledPolicy):
    """An exported file that decides about images; `load_policy` and `compile_policy` create it from an ONNX file.

    The file computes class, confidence, decision and number of looks. Interval, first look and disagreement are
    computed from the outputs of its looks. `record` describes how the file at `path` was exported.
    """

    def __init__(
        self, path: Path, digest: str, policy: Policy, record: ExportRecord, session: Any, timeout: float
    ) -> None:
        described = policy.known_classifier.model_copy(update={"digest": digest})
        super().__init__(policy, described, record.mismatch, record.outputs, (policy.class_names,))
        self.path, self.record = path, record
        self.metadata = {"decider": digest}
        self._session, self._timeout = session, timeout
        self._preprocessing = Preprocessing.from_dict(policy.known_classifier.preprocessing)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.policy.describe_threshold()!r})"

    def look_at_images(self, images: Sequence[Array], ids: Sequence[str] | None = None) -> Iterator[LookedGroup]:
        """Let the file decide about images of any size; yield them by the number of looks."""
        return self._group(self.decide_images(images), ids)

    def decide_images(
        self,
        images: Sequence[Array] | Array,
        *,
        batch_size: int | Literal["auto"] = "auto",
        advance: Advance = ignore_progress,
        names: Sequence[str] = (),
    ) -> FileOutputs:
        """Return the outputs of the file for images [H, W, C]; images of equal shape form batches.

        Pixels, uint8 or float32 in [0, 1], are converted to the number type of the file: uint8 is divided by 255,
        float32 is rounded. `advance` is called with the number of images just decided. Messages use the `names` of
        images.
        """
        if len(images) == 0:
            raise DecisionError("there are no images, expected at least one.")
        arrays = [np.asarray(image) for image in images]
        groups, decided = group_by_shape(arrays), []
        for group in groups:
            name = f"the pixels of {names[group[0]] if names else f'image {group[0]}'}"
            # With a single group, positions in messages are those of the given images.
            together = "the images" if len(groups) == 1 else name
            pixels = validate_pixels(np.stack([arrays[place] for place in group]), together, DecisionError)
            self.check_shape(pixels.shape[1:], name)
            size = self._choose_batch_size(batch_size, pixels.shape[1:])
            for start in range(0, len(pixels), size):
                decided.append(self._run(pixels[start : start + size]))
                advance(len(decided[-1].looks))
        return FileOutputs.join(decided).select(np.argsort(np.concatenate(groups)))

    def check_shape(self, shape: tuple[int, ...], name: str = "the images") -> None:
        """Raise an error unless the file accepts images of this shape [H, W, C]."""
        expected = self.record.image_shape
        if not all(size in (None, found) for size, found in zip(expected, shape, strict=True)):
            fault = f"{name} have {' x '.join(map(str, shape))} pixels (height x width x channels)"
            repair = Repair("convert them, or export the policy for them with {image_shape}", image_shape=ANY)
            taken = f"{str(self.path)!r} takes {self.record.describe_input()}"
            raise DecisionError(f"{fault}, but {taken}", repair=repair)
        height, width = self._compute_resized_size(shape)
        if (height, width) != shape[:2] and height * width > Preprocessing.MAX_RESIZED_PIXELS:
            fault = f"{name} have {shape[0]} x {shape[1]} pixels, which {str(self.path)!r} would resize to"
            raise DecisionError(f"{fault} {height} x {width}", repair="remove them")

    def _compute_resized_size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width after resizing, before the crop."""
        height, width = shape[:2]
        resize = self._preprocessing.resize
        if isinstance(resize, int):
            return resize * height // min(height, width), resize * width // min(height, width)
        return resize or (height, width)

    def _compute_input_size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return self._preprocessing.input_size or self._compute_resized_size(shape)

    def _group(
        self, decided: FileOutputs, ids: Sequence[str] | None = None, class_names: tuple[str, ...] | None = None
    ) -> Iterator[LookedGroup]:
        for group in self.group_by_looks(decided.view_outputs, decided.looks, ids, class_names):
            yield group._replace(decided=decided.select(group.positions))

    def measure(self, source: Source) -> tuple[int, int]:
        """Return the number of classes, and of images per chunk, from the sizes of an image and its outputs."""
        id_, image = find_first_image(source)
        self.check_shape(image.shape, f"the pixels of image {id_!r} of {source.spec!r}")
        height, width = self._compute_input_size(image.shape)
        n_views, output_bytes = len(self.policy.views), 4 * self.record.members * self.record.classes
        rows = min(LOOKED_PIXELS // (height * width * n_views), OUTPUT_BYTES // (output_bytes * n_views))
        return self.record.classes, max(MIN_CHUNK_ROWS, min(MAX_CHUNK_ROWS, round_down_to_power_of_two(rows)))

    def look_at_chunks(
        self,
        source: Source,
        chunks: Sequence[tuple[int, range]],
        *,
        batch_size: int | Literal["auto"] = "auto",
        advance: Advance = ignore_progress,
        class_names: tuple[str, ...] | None = None,
    ) -> Generator[LookedChunk, None, None]:
        """Let the file decide about chunks of a source, which are read ahead; close the iterator to stop."""
        block_size = max(source.threads, chunk_rows(find_first_image(source)[1], MAX_CHUNK_ROWS))

        def read_blocks() -> Iterator[Any]:
            for _, requested in chunks:
                yield from source.batches(block_size, requested.start, requested.stop)
                yield None  # the end of the chunk

        with closing(read_ahead(read_blocks, 1)) as read:
            for number, requested in chunks:
                indices, decided = [np.empty(0, dtype=np.int64)], []
                while (batch := next(read)) is not None:
                    names = [f"image {id_!r} of {source.spec!r}" for id_ in batch.ids]
                    decided.append(
                        self.decide_images(batch.images, batch_size=batch_size, advance=advance, names=names)
                    )
                    indices.append(batch.indices)
                chunk = DecodedChunk.create(source, number, requested, np.concatenate(indices), _NO_IMAGES)
                advance(len(chunk.skipped))
                ids = [source.ids[index] for index in chunk.indices.tolist()]
                groups = self._group(FileOutputs.join(decided), ids, class_names) if decided else iter(())
                yield LookedChunk(chunk, groups)

    def _choose_batch_size(self, batch_size: int | Literal["auto"], shape: tuple[int, ...]) -> int:
        """Return the number of images [H, W, C] per call; the file classifies all views of a batch at once."""
        size = choose_batch_size(batch_size, np.broadcast_to(np.uint8(0), (*self._compute_input_size(shape), shape[2])))
        if batch_size != "auto" or self.record.adaptive:
            return size
        return max(1, size // len(self.policy.views))

    def _run(self, images: Array) -> FileOutputs:
        """Run the file on one batch and validate its outputs. [n, H, W, C]"""
        name = f"decider {str(self.path)!r}"
        fields = FileOutputs._fields[1:] if self.policy.familiarity is not None else FileOutputs._fields[1:-1]
        outputs = ["labels" if self.policy.top_k > 1 else "label", *fields]
        if self.record.pixels == "uint8":
            pixels = as_pixels(images)
        elif images.dtype == np.float32:
            pixels = np.ascontiguousarray(images)
        else:
            pixels = images.astype(np.float32) / np.float32(255)
        call = self._session.run, outputs, {ExportRecord.INPUT: pixels}
        try:
            with _as_decision_errors():
                values = OnnxFile.run_limited(*call, what=name, timeout=self._timeout, n_images=len(images))
        except DecisionError:
            raise
        except Exception as error:
            fault = f"{name} failed on images of shape {list(images.shape)}: {shorten_reason(error)}"
            repair = Repair("check the images, or pass a smaller {batch_size} if memory ran out", batch_size=ANY)
            raise DecisionError(fault, repair=repair) from error
        found = FileOutputs(*values)
        self._check_shapes(found, len(images))
        self._check_values(found)
        return found._replace(confidence=self._restore_confidence(found))

    def _check_shapes(self, found: FileOutputs, n_images: int) -> None:
        top_k, n_outputs = self.policy.top_k, self.record.members * self.record.classes
        labels = (n_images,) if top_k == 1 else (n_images, top_k)
        view_outputs, probabilities = (n_images, len(self.policy.views), n_outputs), (n_images, self.record.classes)
        expected = (labels, *[(n_images,)] * 3, view_outputs, probabilities, (n_images,))
        for name, values, shape in zip(found._fields, found, expected, strict=True):
            if values is not None and np.shape(values) != shape:
                raise self._damaged(f"{name} of shape {list(np.shape(values))}, expected {list(shape)}")

    def _check_values(self, found: FileOutputs) -> None:
        """Raise an error for invalid numbers."""
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
        if found.familiarity is not None:
            is_valid["a familiarity that is not finite"] = np.isfinite(found.familiarity)
        for fault, valid in is_valid.items():
            if not valid.all():
                raise self._damaged(f"{fault} for image {int(np.argwhere(~valid)[0][0])} of a batch")

    def _restore_confidence(self, found: FileOutputs) -> Float64Array:
        """Return confidences from which the rule makes the same decisions as the file. float64 [n]

        The file decides before it rounds the confidence to float32, which can cross the threshold.
        """
        rounded, accept = found.confidence, found.accept
        values = rounded.astype(np.float64)
        groups = found.labels.reshape(len(values), -1)[:, 0] if self.policy.grouped_by == "class" else None
        thresholds = np.broadcast_to(self.policy.find_thresholds(values.shape, groups), values.shape)
        familiar = self.policy.is_familiar(found.familiarity)
        if familiar is None:
            familiar = np.ones_like(accept)
        # Unfamiliar images are rejected at any confidence, so theirs remain unchanged.
        reaches = np.where(familiar, accept, values >= thresholds)
        differs = (values >= thresholds) != reaches
        is_wrong = differs & ~(np.abs(values - thresholds) <= np.spacing(np.abs(rounded))) | (accept & ~familiar)
        if is_wrong.any():
            place = int(np.flatnonzero(is_wrong)[0])
            decision = "accepted" if accept[place] else "rejected"
            numbers = f"confidence {values[place]:.6g} at a threshold of {thresholds[place]:.6g}"
            if not familiar[place]:
                numbers = "a familiarity below its limit"
            raise self._damaged(f"image {place} of the batch as {decision} with {numbers}")
        return np.where(differs, np.where(reaches, thresholds, np.nextafter(thresholds, -np.inf)), values)

    def _damaged(self, found: str) -> DecisionError:
        return DecisionError(f"the decider {str(self.path)!r} returned {found}; export the policy again.")


def open_exported_file(policy: Policy, binding: Binding, timeout: float = OnnxFile.timeout) -> ExportedFile:
    """Open an ONNX file that `export_onnx` wrote; its policy and checksum were read before.

    Loading it and every batch may take up to `timeout` seconds each: an untrusted file may contain an endless loop.
    """
    file = binding.path
    assert file is not None, "the policy was read from a file"
    policy.check_transfers()
    onnx_file = OnnxFile(file, str(file), None, timeout)
    problem = f"{str(file)!r} is not a valid exported file"
    with _as_decision_errors(), reject_failures(problem, "export the policy again", DecisionError):
        record = _read_record(onnx_file.read_metadata(), policy)
        # The checksum does not cover external data, which ONNX Runtime would open.
        if onnx_file.find_external_data():
            raise ValueError("it stores external data in other files")
        session = onnx_file.open_session(binding.execution.device)
        _check_session(session, record, policy)
        return ExportedFile(file, onnx_file.digest(), policy, record, session, timeout)


def _read_record(metadata: Mapping[str, str], policy: Policy) -> ExportRecord:
    """Return the record in the metadata of a file; it must match the policy in the file."""
    if ExportRecord.METADATA not in metadata:
        raise ValueError(f"it has no metadata {ExportRecord.METADATA!r}")
    try:
        record = ExportRecord.model_validate_json(metadata[ExportRecord.METADATA])
    except ValidationError as error:
        raise ValueError(f"{ExportRecord.METADATA}: {describe_invalid(error)}") from None
    n_views, n_groups, n_classes = len(policy.views), len(policy.groups), record.classes
    faults = {
        f"it has {n_views:,} views, more than {MAX_VIEWS:,}": n_views > MAX_VIEWS,
        f"adaptive is {record.adaptive}, unlike its policy": record.adaptive != (policy.schedule is not None),
        f"it has {n_classes} classes, but {n_groups} thresholds": n_groups not in (0, n_classes),
        f"it has {n_classes} classes, but predicts {policy.top_k} of them": policy.top_k > n_classes,
    }
    for fault, is_found in faults.items():
        if is_found:
            raise ValueError(fault)
    return record


def _check_session(session: Any, record: ExportRecord, policy: Policy) -> None:
    """Raise an error unless the input and outputs of a session match the record and the policy."""
    inputs = session.get_inputs()
    found = [*inputs, *session.get_outputs()]
    outputs = {name: _OUTPUT_FORMS[name] for name in ExportRecord.list_outputs(policy)}
    expected = {ExportRecord.INPUT: (record.pixels, 4), **outputs}
    if len(inputs) != 1 or [one.name for one in found] != list(expected):
        names, wanted = (", ".join(map(repr, each)) for each in ([one.name for one in found], expected))
        raise ValueError(f"its input and outputs are {names}, expected {wanted}")
    for one, (dtype, axes) in zip(found, expected.values(), strict=True):
        if (one.type, len(one.shape)) != (_TYPES[dtype], axes):
            fault = f"is {one.type} with {len(one.shape)} axes, expected {_TYPES[dtype]} with {axes}"
            raise ValueError(f"{one.name!r} {fault}")
    sizes = [size if isinstance(size, int) else None for size in inputs[0].shape[1:]]
    if any(size not in (None, stated) for size, stated in zip(sizes, record.image_shape, strict=True)):
        raise ValueError(f"it takes images of shape {sizes}, but states {list(record.image_shape)}")


@contextmanager
def _as_decision_errors() -> Iterator[None]:
    """Raise the errors of opening or running an ONNX file as `DecisionError`."""
    try:
        yield
    except ClassifierError as error:
        raise DecisionError.from_error(error) from error
