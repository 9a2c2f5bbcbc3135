"""`compile_policy` joins a policy with its classifier and prepares everything that does not depend on images."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float32Array, IntArray, Output, default_ids
from secondlook.classifiers import ImageShapeError, OnnxFile
from secondlook.decisions.decision import DEFAULT_LEVEL, Decision, Decisions, make_decisions
from secondlook.decisions.looking import LookedChunk, LookedGroup, Looking, group_by_shape
from secondlook.decisions.policy_classifier import MemberOutputs, ResolvedClassifier, resolve_classifier
from secondlook.errors import DecisionError, Repair
from secondlook.estimators import Block, compare_looks
from secondlook.policies import Binding, Policy, read_policy
from secondlook.predictions import (
    DEFAULT_EXECUTION,
    BatchSize,
    ClassifierRecord,
    DecodedChunk,
    Execution,
    Inference,
    Predictions,
    choose_batch_size,
    chunk_rows,
    read_ahead,
    read_first_image,
)
from secondlook.progress import Advance, ignore_progress
from secondlook.sources import Source, read_image
from secondlook.views import ViewSet

ADAPTIVE_CHUNK_ROWS = 4096
"""Largest number of images per chunk; large enough for the few open images to fill a batch."""
LOOKED_PIXELS = 2**27
"""Approximate number of pixels of all looks of a chunk on the CPU; limits the work lost when a job is killed."""
OUTPUT_BYTES = 256 * 2**20
"""Approximate memory for the outputs of one chunk."""
MIN_CHUNK_ROWS = 16

_FIRST_ID = default_ids(1)


@contextmanager
def _keep_preprocessing() -> Iterator[None]:
    """Extend the advice on unsuitable images: the policy does not apply to another preprocessing."""
    try:
        yield
    except ImageShapeError as error:
        if isinstance(error.repair, Repair):
            advice = "convert the images as for the calibration, or calibrate again:"
            error.repair.text = f"{advice} {error.repair.text}"
        raise


class CompiledPolicy(ABC):
    """A policy that is ready to decide about images: a `Plan` with its classifier, or an `ExportedFile`.

    Attributes
    ----------
    given, policy
        The policy as given, and the policy in force, which has no guarantee if the classifier is not that of the
        policy.
    mismatch
        Why the guarantee of the policy does not hold; None if it does.
    described, kinds
        The record of the classifier, and the kind of output of the classifier or of each member.
    """

    resolved: ResolvedClassifier | None = None
    """The classifier; None for an exported file."""
    metadata: Mapping[str, object] = {}
    """Additional metadata of score files."""
    progress_per_image = 1
    """Steps of progress per image."""

    def __init__(
        self,
        policy: Policy,
        described: ClassifierRecord,
        mismatch: str | None,
        kinds: Sequence[Output],
        names: Sequence[tuple[str, ...] | None],
    ) -> None:
        policy.check_transfers()
        self.given, self.described, self.mismatch, self.kinds = policy, described, mismatch, kinds
        self.policy = policy if mismatch is None else policy.model_copy(update={"guarantee": None, "unknown": None})
        self._names = names

    def decide(self, image: object, *, interval: bool = False, level: float = DEFAULT_LEVEL, seed: int = 0) -> Decision:
        """Decide about one image: anything that `read_image` accepts."""
        ((_, preds, decided),) = self.look_at_images([read_image(image)])
        shown = level if interval else None
        return make_decisions(self.policy, preds, level=shown, seed=seed, decided=decided).make_row(0)

    @abstractmethod
    def look_at_images(self, images: Sequence[Array], ids: Sequence[str] | None = None) -> Iterator[LookedGroup]:
        """Look at images of any size, [h, w, C] each; yield them by input size and number of looks."""

    @abstractmethod
    def look_at_chunks(
        self,
        source: Source,
        chunks: Sequence[tuple[int, range]],
        *,
        batch_size: BatchSize = "auto",
        advance: Advance = ignore_progress,
        class_names: tuple[str, ...] | None = None,
    ) -> Generator[LookedChunk, None, None]:
        """Look at chunks of a source, given by number and indices, which are read ahead; close the iterator to stop.

        `advance` is called with the number of looks just taken, or of images just decided if an image is one step.
        """

    @abstractmethod
    def measure(self, source: Source) -> tuple[int, int]:
        """Return the number of classes, and of images per chunk."""

    def find_class_names(self, n_classes: int, *others: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return the first names that match the number of classes; folders of new images may not be classes."""
        for names in (*self._names, *others):
            if names and len(names) == n_classes:
                return names
        return None

    def make_predictions(
        self, outputs: Float32Array, ids: Sequence[str] | None = None, class_names: tuple[str, ...] | None = None
    ) -> Predictions:
        """Return the outputs of the first looks, float32 [n, looks, members * classes], as predictions."""
        n_members = len(self.kinds)
        names = class_names or self.find_class_names(outputs.shape[2] // n_members)
        views, ids = take_first_views(self.policy.views, outputs.shape[1]), ids or default_ids(len(outputs))
        members = [
            Predictions.from_outputs(own, kind, views, ids=ids, class_names=names)
            for kind, own in zip(self.kinds, np.split(outputs, n_members, axis=2), strict=True)
        ]
        return members[0] if n_members == 1 else Predictions(members=members, views=views)

    def group_by_looks(
        self,
        outputs: Float32Array,
        looks: IntArray,
        ids: Sequence[str] | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> Iterator[LookedGroup]:
        """Yield images by number of looks. float32 [n, V, outputs per look], int64 [n]"""
        for count in np.unique(looks).tolist():
            positions = np.flatnonzero(looks == count)
            is_all = len(positions) == len(looks) and count == outputs.shape[1]
            chosen = None if ids is None else [ids[place] for place in positions.tolist()]
            part = outputs if is_all else outputs[positions, :count]
            yield LookedGroup(positions, self.make_predictions(part, chosen, class_names))


class Plan(CompiledPolicy):
    """A policy compiled with its classifier, or the `members` of its ensemble; `views` are in the order of looks."""

    def __init__(self, policy: Policy, resolved: ResolvedClassifier, execution: Execution = DEFAULT_EXECUTION) -> None:
        classifier = resolved.classifier
        self.resolved: ResolvedClassifier = resolved
        self.execution = execution
        self.members = classifier.members or (classifier,)
        self.classifier = MemberOutputs(classifier) if classifier.members else classifier
        names = (classifier.class_names, policy.class_names)
        kinds = [member.output for member in self.members]
        super().__init__(policy, ClassifierRecord.describe(classifier), resolved.mismatch, kinds, names)
        self.views = policy.parse_views()
        if policy.schedule is None:  # otherwise the number of looks varies
            self.progress_per_image = len(self.views)
        others = (policy.schedule, policy.grouped_by, policy.familiarity)
        self._decides_blocks = all(one is None for one in others) and policy.compiled.takes_blocks
        self._fitting_shape: tuple[int, ...] | None = None
        """Shape of the last image that needed no resizing; most images have the same shape."""
        self._inference: tuple[object, Inference | None] = None, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the inputs of compilation."""
        return type(self), (self.given, self.resolved, self.execution)

    def decide(self, image: object, *, interval: bool = False, level: float = DEFAULT_LEVEL, seed: int = 0) -> Decision:
        """Decide about one image: anything that `read_image` accepts."""
        if interval or not self._decides_blocks:
            return super().decide(image, interval=interval, level=level, seed=seed)
        # Like `make_decisions`, without a table of predictions.
        policy, outputs = self.policy, Looking(self, self.fit_image(read_image(image))).finish()
        block = Block.predict(outputs, self.kinds, policy.predict_from, policy.top_k)
        first_look, disagreement = compare_looks(block.outputs, policy.top_k)  # before a method modifies them
        confidence = policy.compiled.compute_block(block)
        return Decisions(
            ids=_FIRST_ID,
            labels=block.classes[:, 0] if policy.top_k == 1 else block.classes,
            confidence=confidence,
            accept=policy.accept_values(confidence),
            looks=np.full(1, len(self.views)),
            first_look=first_look,
            disagreement=disagreement,
            class_names=self.find_class_names(outputs.shape[2] // len(self.kinds)),
            guarantee=policy.guarantee,
        ).make_row(0)

    def look_at_images(self, images: Sequence[Array], ids: Sequence[str] | None = None) -> Iterator[LookedGroup]:
        """Look at images of any size, [h, w, C] each; yield them by input size and number of looks."""
        fitted = [self.fit_image(image) for image in images]
        ids = ids or default_ids(len(images))
        for places in map(np.array, group_by_shape(fitted)):
            looking = Looking(self, np.concatenate([fitted[place] for place in places]))
            for group in looking.groups([ids[place] for place in places]):
                yield group._replace(positions=places[group.positions])

    def fit_image(self, image: Array) -> Array:
        """Return an image at the input size of the classifier. uint8|float32 [h, w, C] -> [1, H, W, C]"""
        if image.shape == self._fitting_shape:
            return image[None]
        if self.classifier.preprocessing.keeps(image.shape):
            self._fitting_shape = image.shape
        with _keep_preprocessing():
            return self.classifier.preprocessing.fit([image])

    def make_black_image(self) -> Array | None:
        """Return a black image at the input size, uint8 [H, W, C]; None if the classifier does not fix its shape."""
        size, channels = self.classifier.preprocessing.input_size, self.classifier.preprocessing.channels
        return None if size is None or channels is None else np.zeros((*size, channels), dtype=np.uint8)

    def find_inference(self, images: Any, batch_size: int | None = None) -> Inference:
        """Return the inference for views of images of this shape, [n, H, W, C]; the latest one is reused."""
        key = images.shape[1:], batch_size
        latest, inference = self._inference
        if inference is None or key != latest:
            if batch_size is None:
                batch_size = choose_batch_size(self.execution.batch_size, images[0], self.classifier)
            inference = Inference.create(self.classifier, batch_size)
            self._inference = key, inference
        return inference

    @_keep_preprocessing()
    def read_first_image(self, source: Source) -> Array:
        """Return the first readable image at the input size, [H, W, C]."""
        return read_first_image(self.classifier, source)

    def measure(self, source: Source) -> tuple[int, int]:
        """Return the number of classes, from the first image, and of images per chunk."""
        image = self.read_first_image(source)
        n_outputs = self.classifier(image[None]).shape[1]
        return n_outputs // len(self.members), self.choose_chunk_rows(image, n_outputs)

    def choose_chunk_rows(self, image: Array, n_outputs: int) -> int:
        """Return the number of images [H, W, C] per chunk."""
        looks, pixels = len(self.views), image.shape[0] * image.shape[1]
        if self.classifier.is_accelerated:  # GPUs need larger batches
            rows = chunk_rows(image, 16_384, 512 * 2**20)
        else:
            most = None if self.policy.schedule is None else ADAPTIVE_CHUNK_ROWS
            rows = min(chunk_rows(image, most) if most else chunk_rows(image), LOOKED_PIXELS // (looks * pixels))
        return max(min(rows, OUTPUT_BYTES // (4 * n_outputs * looks)), MIN_CHUNK_ROWS)

    def look_at_chunks(
        self,
        source: Source,
        chunks: Sequence[tuple[int, range]],
        *,
        batch_size: BatchSize = "auto",
        advance: Advance = ignore_progress,
        class_names: tuple[str, ...] | None = None,
    ) -> Generator[LookedChunk, None, None]:
        """Look at chunks of a source, given by number and indices, which are read ahead; close the iterator to stop.

        GPUs work on two chunks: they classify one while the host finds the open images of the other.
        """
        n_active = 2 if self.classifier.is_accelerated else 1
        active: list[tuple[DecodedChunk, Looking, Iterator[int]]] = []
        size = choose_batch_size(batch_size, self.read_first_image(source), self.classifier)

        def finish_first() -> Iterator[LookedChunk]:
            chunk, looking, run = active.pop(0)
            n_open = len(looking)
            n_looks = next(run, None)
            if self.policy.schedule is not None:
                advance(n_open - len(looking))
            elif n_looks:
                advance(n_looks)
            if n_looks is None:
                advance(len(chunk.skipped) * self.progress_per_image)
                ids = [source.ids[index] for index in chunk.indices.tolist()]
                yield LookedChunk(chunk, looking.groups(ids, class_names))
            else:
                active.append((chunk, looking, run))

        def decode() -> Iterator[DecodedChunk]:
            with _keep_preprocessing():
                for number, indices in chunks:
                    yield DecodedChunk.decode(self.classifier, source, number, indices)

        with closing(read_ahead(decode, 1)) as decoded:
            for chunk in decoded:
                looking = Looking(self, chunk.images, size)
                active.append((replace(chunk, images=chunk.images[:0]), looking, looking.run()))
                while len(active) == n_active:
                    yield from finish_first()
            while active:
                yield from finish_first()


def compile_policy(policy: Policy) -> CompiledPolicy:
    """Return a policy ready to decide; its classifier is loaded and checked at first use and then cached."""
    owner, compiled = policy._plan
    if owner is not policy:
        compiled = open_plan(policy, policy._binding)
        policy._plan = policy, compiled
    known: CompiledPolicy = compiled
    return known


def open_plan(policy: Policy, binding: Binding) -> CompiledPolicy:
    """Return a newly compiled policy."""
    if OnnxFile.has_suffix(binding.path) and binding.classifier is None:
        from secondlook.decisions.exported_file import open_exported_file

        return open_exported_file(policy, binding)
    folder = None if binding.path is None else binding.path.parent
    call = "policy.bind(classifier, " if folder is None else "load_policy(path, classifier=classifier, "
    resolved = resolve_classifier(
        policy, binding.classifier, allow_mismatch=binding.allow_mismatch, offer=call, folder=folder
    )
    return Plan(policy, resolved.on_device(binding.execution.device), binding.execution)


def load_policy(
    path: str | Path,
    *,
    classifier: object = None,
    allow_mismatch: bool = False,
    execution: Execution = DEFAULT_EXECUTION,
) -> Policy:
    """Open a policy file, or an ONNX file from `export_onnx`: `load_policy("policy.json").decide(image)`.

    A modified policy file loses its guarantee; a modified exported file is an error.

    Parameters
    ----------
    path
        A policy (.json), or an exported file (.onnx), which contains its classifier.
    classifier
        The classifier of the policy: anything that `load_classifier` accepts. By default it is loaded from the spec in
        the policy if that is a local ONNX file; other models may run code and must be passed explicitly.
    allow_mismatch
        Whether to accept a classifier that the policy was not made for; nothing is guaranteed then.
    execution
        Where and how to classify.
    """
    policy = read_policy(path)
    if not OnnxFile.has_suffix(path):
        return policy.bind(classifier, path=Path(path).expanduser(), allow_mismatch=allow_mismatch, execution=execution)
    check_classifier_is_inside(classifier=classifier, allow_mismatch=allow_mismatch or None)
    bound = policy.bind(path=Path(path).expanduser(), execution=execution)
    compile_policy(bound)  # raise errors of the file now
    return bound


def check_classifier_is_inside(**given: object) -> None:
    """Raise an error for an argument that is not None, since an exported file contains its classifier."""
    for name, value in given.items():
        if value is not None:
            fault = "cannot be used with an exported file, which contains its classifier"
            raise DecisionError(fault, argument=name, repair="omit it")


@lru_cache(maxsize=1024)
def take_first_views(views: tuple[str, ...], looks: int) -> ViewSet:
    """Return the views of the first looks; cached on demand, since all prefixes of hundreds of views take seconds."""
    return ViewSet(list(views[:looks]))
