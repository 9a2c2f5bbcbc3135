"""Exported ONNX files, which classify and decide by themselves: what they must be, and how they are run safely."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from secondlook.arrays import (
    Array,
    Float32Array,
    Float64Array,
    Output,
    as_pixels,
    check_pixels,
    default_ids,
    round_down_to_power_of_two,
)
from secondlook.classifiers import OnnxFile, Preprocessing
from secondlook.decisions.decision import DEFAULT_LEVEL, Decision, FileOutputs, make_decisions
from secondlook.decisions.looking import LookedGroup
from secondlook.decisions.plan import (
    LOOKED_PIXELS,
    MIN_CHUNK_ROWS,
    OUTPUT_BYTES,
    LookedChunk,
    choose_class_names,
    take_first_views,
)
from secondlook.decisions.policy_classifier import split_members
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
from secondlook.sources import Source, read_image

MAX_CHUNK_ROWS = 256
_NO_IMAGES = np.empty((0, 1, 1, 1), dtype=np.uint8)

EXPORT_METADATA = "secondlook.export"
"""Key of the metadata of an exported file that has the `ExportRecord` as JSON."""

INPUT_NAME = "images"
OUTPUT_NAMES = ("label", "confidence", "accept", "probabilities", "looks", "view_outputs")
"""Outputs of every exported file, in this order."""
TOP_K_OUTPUT = "labels"
"""Another output at the end, for top_k > 1."""

MAX_VIEWS = 1000
"""Views of a file; a file from elsewhere could name so many that they take minutes to read."""

PixelType = Literal["uint8", "float32"]

_TYPES = {"uint8": "tensor(uint8)", "float32": "tensor(float)", "int64": "tensor(int64)", "bool": "tensor(bool)"}
_OUTPUT_FORMS: Mapping[str, tuple[str, int]] = {
    "label": ("int64", 1),
    "confidence": ("float32", 1),
    "accept": ("bool", 1),
    "probabilities": ("float32", 2),
    "looks": ("int64", 1),
    "view_outputs": ("float32", 3),
    TOP_K_OUTPUT: ("int64", 2),
}
"""Number type and number of axes of each output."""


class ExportRecord(FrozenRecord):
    """How a file was exported; its metadata has the record as JSON."""

    version: Literal[1] = 1
    secondlook: str
    """Version of the package that wrote the file."""
    pixels: PixelType
    """Number type of the images that the file takes."""
    image_shape: tuple[PositiveCount | None, PositiveCount | None, Literal[1, 3] | None]
    """Height, width and channels of the images; None for those that may vary."""
    members: PositiveCount
    outputs: tuple[Output, ...]
    """Kind of output of each member."""
    classes: Annotated[PositiveCount, Field(ge=2)]
    adaptive: bool
    """Whether an image is looked at only until it is decided."""
    mismatch: str | None = None
    """Why the guarantee of the policy does not hold, if it was exported with another classifier."""

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if len(self.outputs) != self.members:
            raise ValueError(f"expected a kind of output for each of {self.members} members, got {list(self.outputs)}")
        return self

    def describe_input(self) -> str:
        """Return number type and shape of the images that the file takes, in words."""
        sizes = ", ".join("any" if size is None else str(size) for size in self.image_shape)
        return f"{self.pixels} [batch, {sizes}] (height, width, channels)"


def list_outputs(policy: Policy) -> tuple[str, ...]:
    """Return the outputs of a file that a policy is exported to, in their order."""
    return (*OUTPUT_NAMES, TOP_K_OUTPUT) if policy.top_k > 1 else OUTPUT_NAMES


def read_record(metadata: Mapping[str, str], policy: Policy, path: str) -> ExportRecord:
    """Return the record in the metadata of a file, which must fit the policy in the file."""
    if EXPORT_METADATA not in metadata:
        raise invalid_file(path, f"it has no metadata {EXPORT_METADATA!r}")
    try:
        record = ExportRecord.model_validate_json(metadata[EXPORT_METADATA])
    except ValidationError as error:
        raise invalid_file(path, f"{EXPORT_METADATA}: {describe_invalid(error)}") from None
    if len(policy.views) > MAX_VIEWS:
        raise invalid_file(path, f"it has {len(policy.views):,} views, more than {MAX_VIEWS:,}")
    if record.adaptive != (policy.schedule is not None):
        raise invalid_file(path, f"adaptive is {record.adaptive}, unlike its policy")
    if policy.groups and len(policy.groups) != record.classes:
        raise invalid_file(path, f"it has {record.classes} classes, but {len(policy.groups)} thresholds")
    if policy.top_k > record.classes:
        raise invalid_file(path, f"it has {record.classes} classes, but predicts {policy.top_k} of them")
    return record


def check_session(session: Any, record: ExportRecord, policy: Policy, path: str) -> None:
    """Raise an error unless input and outputs of a session are those of a file with this record and policy."""
    inputs = session.get_inputs()
    found = [*inputs, *session.get_outputs()]
    expected = {INPUT_NAME: (record.pixels, 4), **{name: _OUTPUT_FORMS[name] for name in list_outputs(policy)}}
    if len(inputs) != 1 or [one.name for one in found] != list(expected):
        names, wanted = (", ".join(map(repr, each)) for each in ([one.name for one in found], expected))
        raise invalid_file(path, f"its input and outputs are {names}, expected {wanted}")
    for one, (dtype, axes) in zip(found, expected.values(), strict=True):
        if (one.type, len(one.shape)) != (_TYPES[dtype], axes):
            raise invalid_file(
                path, f"{one.name!r} is {one.type} with {len(one.shape)} axes, expected {_TYPES[dtype]} with {axes}"
            )
    sizes = [size if isinstance(size, int) else None for size in inputs[0].shape[1:]]
    if any(size not in (None, stated) for size, stated in zip(sizes, record.image_shape, strict=True)):
        raise invalid_file(path, f"it takes images of shape {sizes}, but states {list(record.image_shape)}")


def invalid_file(path: str, fault: str) -> DecisionError:
    """Return the error for a file that is not what `export_onnx` writes."""
    return DecisionError(f"{path!r} is not a valid exported file: {fault}; export the policy again.")


_FIELDS = FileOutputs._fields[1:]
"""Outputs beside the label, which are called as the fields are."""


class ExportedFile:
    """An exported file that decides about images: the plan of a policy that `load_policy` opened from it.

    Attributes
    ----------
    path, digest
        The file, and a digest of its content.
    given, policy, mismatch
        The policy in the file, and in force; and why its guarantee does not hold, None if it does.
    record
        How the file was exported.
    """

    def __init__(
        self, path: Path, digest: str, policy: Policy, record: ExportRecord, session: Any, timeout: float
    ) -> None:
        self.path = path
        self.digest = digest
        self.mismatch = record.mismatch
        self.given = policy
        self.policy = policy if record.mismatch is None else policy.model_copy(update={"guarantee": None})
        self.record = record
        self._session = session
        self._timeout = timeout
        self.name_candidates = (policy.class_names,)
        self._preprocessing = Preprocessing.from_dict(policy.known_classifier.preprocessing)

    def decide(self, image: object, *, interval: bool = False, level: float = DEFAULT_LEVEL, seed: int = 0) -> Decision:
        """Decide about one image of any kind that `read_image` takes.

        Class, confidence, decision and number of looks are those of the file; interval, first look and disagreement
        are computed from the outputs of its looks.
        """
        decided = self.decide_images(read_image(image)[None])
        ((_, preds),) = self.group_by_looks(decided)
        shown = level if interval else None
        return make_decisions(self.policy, preds, level=shown, seed=seed, decided=decided).make_row(0)

    def decide_images(
        self,
        images: Array,
        *,
        batch_size: int | Literal["auto"] = "auto",
        advance: Advance = ignore_progress,
        name: str = "the images",
    ) -> FileOutputs:
        """Return what the file decides about images of equal size. uint8, or float32 in [0, 1], [N, H, W, C]

        Pixels become those that the file takes: uint8 is divided by 255, float32 is rounded. `advance` is called with
        the number of images just decided; messages call the images `name`.
        """
        check_pixels(images, name, DecisionError)
        if len(images) == 0:
            raise DecisionError(f"{name} are none, expected at least one.")
        self.check_shape(images.shape[1:], name)
        size = self._choose_batch_size(batch_size, images.shape[1:])
        decided = []
        for start in range(0, len(images), size):
            decided.append(self._run(images[start : start + size]))
            advance(len(decided[-1].looks))
        return FileOutputs.join(decided)

    def decide_list(
        self, images: Sequence[Array], *, name_image: Callable[[int], str] = "image {}".format, **options: Any
    ) -> FileOutputs:
        """Return what the file decides about images [H, W, C] of any size that it takes; equal ones form batches.

        `name_image` returns what messages call the image at a position; `options` are those of `decide_images`.
        """
        groups = group_by_shape(images)
        decided = [
            self.decide_images(
                np.stack([images[place] for place in group]), name=f"the pixels of {name_image(group[0])}", **options
            )
            for group in groups
        ]
        return FileOutputs.join(decided).select(np.argsort(np.concatenate(groups)))

    def check_shape(self, shape: tuple[int, ...], name: str = "the images") -> None:
        """Raise an error unless images of this shape [H, W, C] are those that the file takes."""
        expected = self.record.image_shape
        if not all(size in (None, found) for size, found in zip(expected, shape, strict=True)):
            raise DecisionError(
                f"{name} have {' x '.join(map(str, shape))} pixels (height x width x channels), but {str(self.path)!r} "
                f"takes {self.record.describe_input()}",
                repair=Repair("convert them, or export the policy with {image_shape} for them", image_shape=ANY),
            )
        height, width = self._compute_resized_size(shape)
        if (height, width) != shape[:2] and height * width > Preprocessing.MAX_RESIZED_PIXELS:
            raise DecisionError(
                f"{name} have {shape[0]} x {shape[1]} pixels, which {str(self.path)!r} would resize to {height} x "
                f"{width}; remove them."
            )

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
        self, decided: FileOutputs, ids: Sequence[str] | None = None, class_names: tuple[str, ...] | None = None
    ) -> Iterator[LookedGroup]:
        """Yield the images by the number of looks at them, with the predictions of these looks."""
        ids = default_ids(len(decided.looks)) if ids is None else ids
        class_names = class_names or choose_class_names(self.name_candidates, self.record.classes)
        for count in np.unique(decided.looks).tolist():
            positions = np.flatnonzero(decided.looks == count)
            outputs = decided.view_outputs[positions, :count]
            chosen = [ids[position] for position in positions.tolist()]
            views = take_first_views(self.policy.views, count)
            yield LookedGroup(positions, split_members(outputs, self.record.outputs, views, chosen, class_names))

    # --- Sources, chunk by chunk ---

    progress_per_image = 1
    """How much progress an image is."""

    def check_first_image(self, source: Source) -> Array:
        """Return the first image of a source, which must fit the file. [H, W, C]"""
        id_, image = find_first_image(source)
        self.check_shape(image.shape, f"the pixels of {_name_image(source, [id_], 0)}")
        return image

    def choose_chunk_rows(self, image: Array) -> int:
        """Return the number of images [H, W, C] per chunk, by the size of what the classifier gets and gives."""
        height, width = self.compute_input_size(image.shape)
        n_views, output_bytes = len(self.policy.views), 4 * self.record.members * self.record.classes
        rows = min(LOOKED_PIXELS // (height * width * n_views), OUTPUT_BYTES // (output_bytes * n_views))
        return max(MIN_CHUNK_ROWS, min(MAX_CHUNK_ROWS, round_down_to_power_of_two(rows)))

    def look_at_chunks(
        self,
        source: Source,
        chunks: Sequence[tuple[int, range]],
        *,
        batch_size: int | Literal["auto"] = "auto",
        advance: Advance = ignore_progress,
        class_names: tuple[str, ...] | None = None,
    ) -> Generator[LookedChunk, None, None]:
        """Let the file decide about chunks of a source, which are read ahead; close it to stop.

        `advance` is called with the number of images just decided.
        """
        _, image = find_first_image(source)
        block_size = max(source.threads, chunk_rows(image, MAX_CHUNK_ROWS))

        def read_blocks() -> Iterator[Any]:
            for _, requested in chunks:
                yield from source.batches(block_size, requested.start, requested.stop)
                yield None  # the end of the chunk

        with closing(read_ahead(read_blocks, 1)) as read:
            for number, requested in chunks:
                indices, decided = [np.empty(0, dtype=np.int64)], []
                while (batch := next(read)) is not None:
                    decided.append(
                        self.decide_list(
                            batch.images,
                            batch_size=batch_size,
                            advance=advance,
                            name_image=partial(_name_image, source, batch.ids),
                        )
                    )
                    indices.append(batch.indices)
                chosen = np.concatenate(indices)
                chunk = DecodedChunk.create(source, number, requested, chosen, _NO_IMAGES)
                advance(len(chunk.skipped))
                if not decided:
                    yield LookedChunk(chunk, ())
                    continue
                outputs = FileOutputs.join(decided)
                all_ids = [source.ids[index] for index in chosen.tolist()]
                yield LookedChunk(chunk, self.group_by_looks(outputs, all_ids, class_names), outputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.policy.describe_threshold()!r})"

    def _choose_batch_size(self, batch_size: int | Literal["auto"], shape: tuple[int, ...]) -> int:
        """Return the number of images [H, W, C] per call of the file, which looks at all views of a batch at once."""
        size = choose_batch_size(batch_size, np.broadcast_to(np.uint8(0), (*self.compute_input_size(shape), shape[2])))
        if batch_size != "auto" or self.record.adaptive:
            return size
        return max(1, size // len(self.policy.views))

    def _run(self, images: Array) -> FileOutputs:
        """Run the file on one batch, and check what it returns. [n, H, W, C]"""
        name = f"decider {str(self.path)!r}"
        label = TOP_K_OUTPUT if self.policy.top_k > 1 else "label"
        pixels = as_pixels(images) if self.record.pixels == "uint8" else _as_floats(images)
        try:
            with _as_decision_errors():
                call = self._session.run, [label, *_FIELDS], {INPUT_NAME: pixels}
                values = OnnxFile.run_limited(*call, what=name, timeout=self._timeout, n_images=len(images))
        except DecisionError:
            raise
        except Exception as error:
            raise DecisionError(
                f"{name} failed on images of shape {list(images.shape)}: {shorten_reason(error)}",
                repair=Repair("check the images, or pass a smaller {batch_size} if memory ran out", batch_size=ANY),
            ) from error
        found = FileOutputs(*values)
        self._check_shapes(found, len(images))
        self._check_values(found)
        return found._replace(confidence=self._restore_confidence(found))

    def _check_shapes(self, found: FileOutputs, n_images: int) -> None:
        top_k, n_outputs = self.policy.top_k, self.record.members * self.record.classes
        labels = (n_images,) if top_k == 1 else (n_images, top_k)
        view_outputs, probabilities = (n_images, len(self.policy.views), n_outputs), (n_images, self.record.classes)
        expected = (labels, *[(n_images,)] * 3, view_outputs, probabilities)
        shapes = [np.shape(values) for values in found]
        for name, got, shape in zip(found._fields, shapes, expected, strict=True):
            if got != shape:
                raise self._damaged(f"{name} of shape {list(got)}, expected {list(shape)}")

    def _check_values(self, found: FileOutputs) -> None:
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

    def _restore_confidence(self, found: FileOutputs) -> Float64Array:
        """Return the confidence such that the rule makes the decisions of the file from it. float64 [n]

        The file decides before it rounds the confidence to float32, which can cross the threshold.
        """
        rounded, accept = found.confidence, found.accept
        values = rounded.astype(np.float64)
        groups = found.labels.reshape(len(values), -1)[:, 0] if self.policy.grouped_by == "class" else None
        thresholds = np.broadcast_to(self.policy.find_thresholds(values.shape, groups), values.shape)
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


def open_exported_file(policy: Policy, binding: Binding, timeout: float = OnnxFile.timeout) -> ExportedFile:
    """Open an ONNX file that `export_onnx` wrote, whose policy and checksum were read before.

    Loading it, and every batch, may take `timeout` seconds: a file from elsewhere can contain an endless loop.
    """
    file = binding.path
    assert file is not None, "it is the file that the policy is from"
    policy.check_transfers()
    onnx_file = OnnxFile(file, str(file), None, timeout)
    with _as_decision_errors():
        record = read_record(onnx_file.read_metadata(), policy, str(file))
        # ONNX Runtime would open external data, which the checksum does not cover.
        if onnx_file.find_external_data():
            raise invalid_file(str(file), "it keeps external data in other files")
        with reject_failures(f"ONNX Runtime cannot open the exported file {str(file)!r}", "export the policy again."):
            session = onnx_file.open_session(binding.execution.device)
        check_session(session, record, policy, str(file))
        with reject_failures(f"the preprocessing in {str(file)!r} is not valid", "export the policy again."):
            return ExportedFile(file, onnx_file.digest(), policy, record, session, timeout)


@contextmanager
def _as_decision_errors() -> Iterator[None]:
    """Raise the errors of opening or running an ONNX file as `DecisionError`."""
    try:
        yield
    except ClassifierError as error:
        raise DecisionError.from_error(error) from error


def _name_image(source: Source, ids: Sequence[str], place: int) -> str:
    return f"image {ids[place]!r} of {source.spec!r}"


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
