"""`compile_policy`: a policy with its classifier as a plan, with everything prepared that does not depend on images."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from secondlook.arrays import Array, Float32Array, default_ids
from secondlook.classifiers import OnnxFile
from secondlook.decisions.decision import (
    DEFAULT_LEVEL,
    Decision,
    FileOutputs,
    decide_block,
    decides_blocks,
    make_decisions,
)
from secondlook.decisions.looking import LookedGroup, Looking
from secondlook.decisions.policy_classifier import MemberOutputs, ResolvedClassifier, resolve_classifier, split_members
from secondlook.errors import DecisionError
from secondlook.estimators import Block
from secondlook.policies import Binding, Policy, read_policy
from secondlook.predictions import (
    DEFAULT_EXECUTION,
    DecodedChunk,
    Execution,
    Inference,
    Predictions,
    choose_batch_size,
    chunk_rows,
    read_ahead,
    read_first_image,
)
from secondlook.sources import Source, read_image
from secondlook.views import ViewSet

ADAPTIVE_CHUNK_ROWS = 4096
"""Largest number of images that are looked at together: so many that the few open ones still fill a batch."""
CHUNK_ROWS_ON_GPU = 16_384
CHUNK_BYTES_ON_GPU = 512 * 2**20
"""Approximate size of the decoded images of a chunk for GPUs, whose batches are larger."""
LOOKED_PIXELS = 2**27
"""Approximate number of pixels of all looks of a chunk on the CPU: what is lost of a job that is killed."""
OUTPUT_BYTES = 256 * 2**20
"""Approximate memory for the outputs of one chunk."""
MIN_CHUNK_ROWS = 16

_FIRST_ID = default_ids(1)


class LookedChunk:
    """The images of one chunk that were looked at, and what an exported file decided about them, if it did."""

    def __init__(self, chunk: DecodedChunk, groups: Iterable[LookedGroup], decided: FileOutputs | None = None) -> None:
        self.number, self.indices, self.skipped = chunk.number, chunk.indices, chunk.skipped
        self.groups = groups
        """By the number of looks; consumed once."""
        self.decided = decided


class Plan:
    """A policy compiled with its classifier: views, method, schedule and classifier, ready to look at images.

    Attributes
    ----------
    given, policy
        The policy as it was given, and in force: without a guarantee if the classifier is not the one of the policy.
    mismatch
        Why the guarantee of the policy does not hold; None if it does.
    views
        The views in the order of looks.
    members, kinds, name_candidates
        The classifier, or the members of the ensemble; what each outputs; and what may be the names of the classes.
    """

    def __init__(self, policy: Policy, resolved: ResolvedClassifier, execution: Execution = DEFAULT_EXECUTION) -> None:
        policy.check_transfers()
        self.resolved = resolved
        self.mismatch = resolved.mismatch
        self.given = policy
        self.policy = policy if resolved.mismatch is None else policy.model_copy(update={"guarantee": None})
        self.views = policy.parse_views()
        self.execution = execution
        classifier = resolved.classifier
        self.members = classifier.members or (classifier,)
        self.classifier = MemberOutputs(classifier) if classifier.members else classifier
        self.kinds = [member.output for member in self.members]
        self.name_candidates = (classifier.class_names, policy.class_names)
        self._class_names: dict[int, tuple[str, ...] | None] = {}
        self._decides_blocks = decides_blocks(self.policy)
        self._fitting_shape: tuple[int, ...] | None = None
        """Shape of an image that was used as it is: most images have that of the one before."""
        self._inference: tuple[object, Inference | None] = None, None

    # --- Single images ---

    def decide(self, image: object, *, interval: bool = False, level: float = DEFAULT_LEVEL, seed: int = 0) -> Decision:
        """Decide about one image of any kind that `read_image` takes."""
        looking, policy = Looking(self, self.fit_image(read_image(image))), self.policy
        if interval or not self._decides_blocks:
            ((_, preds),) = looking.groups()
            return make_decisions(policy, preds, level=level if interval else None, seed=seed).make_row(0)
        block = Block.predict(looking.finish(), self.kinds, policy.predict_from, policy.top_k)
        return decide_block(policy, block, _FIRST_ID, self._find_class_names(block.outputs[0].shape[2])).make_row(0)

    def fit_image(self, image: Array) -> Array:
        """Return an image at the input size of the classifier. uint8|float32 [h, w, C] -> [1, H, W, C]"""
        if image.shape == self._fitting_shape:
            return image[None]
        if self.classifier.preprocessing.keeps(image.shape):
            self._fitting_shape = image.shape
        return self.classifier.preprocessing.fit([image])

    def warm_up(self) -> None:
        """Look at a black image, if its shape is known: the first look compiles and allocates what others use."""
        preprocessing = self.classifier.preprocessing
        if preprocessing.input_size is not None and preprocessing.channels is not None:
            self.decide(np.zeros((*preprocessing.input_size, preprocessing.channels), dtype=np.uint8), interval=True)

    # --- What the loop needs ---

    def find_inference(self, images: Any, batch_size: int | None = None) -> Inference:
        """Return what classifies views of images of this shape, [n, H, W, C]; the latest one is used again."""
        key = images.shape[1:], batch_size
        latest, inference = self._inference
        if inference is None or key != latest:
            if batch_size is None:
                batch_size = choose_batch_size(self.execution.batch_size, images[0], self.classifier)
            inference = Inference.create(self.classifier, batch_size)
            self._inference = key, inference
        return inference

    def make_predictions(
        self, outputs: Float32Array, ids: Sequence[str] | None = None, class_names: tuple[str, ...] | None = None
    ) -> Predictions:
        """Return the outputs of the first looks, float32 [n, looks, outputs per look], as predictions."""
        names = class_names or self._find_class_names(outputs.shape[2] // len(self.members))
        views = take_first_views(self.policy.views, outputs.shape[1])
        return split_members(outputs, self.kinds, views, ids or default_ids(len(outputs)), names)

    def _find_class_names(self, n_classes: int) -> tuple[str, ...] | None:
        if n_classes not in self._class_names:
            self._class_names[n_classes] = choose_class_names(self.name_candidates, n_classes)
        return self._class_names[n_classes]

    # --- Sources, chunk by chunk ---

    @property
    def progress_per_image(self) -> int:
        """How much progress an image is: all its looks, or with a schedule one, since their number is not known."""
        return len(self.views) if self.policy.schedule is None else 1

    def choose_chunk_rows(self, image: Array, n_outputs: int) -> int:
        """Return the number of images [H, W, C] that are looked at, and saved, together."""
        looks, pixels = len(self.views), image.shape[0] * image.shape[1]
        if self.classifier.is_accelerated:
            rows = chunk_rows(image, CHUNK_ROWS_ON_GPU, CHUNK_BYTES_ON_GPU)
        else:
            most = None if self.policy.schedule is None else ADAPTIVE_CHUNK_ROWS
            rows = min(chunk_rows(image, most) if most else chunk_rows(image), LOOKED_PIXELS // (looks * pixels))
        return max(min(rows, OUTPUT_BYTES // (4 * n_outputs * looks)), MIN_CHUNK_ROWS)

    def look_at_chunks(
        self,
        source: Source,
        chunks: Sequence[tuple[int, range]],
        *,
        batch_size: int | Literal["auto"] = "auto",
        advance: Callable[[int], None] = lambda n: None,
        class_names: tuple[str, ...] | None = None,
    ) -> Generator[LookedChunk, None, None]:
        """Look at chunks of a source, given by number and indices, which are read ahead; close it to stop.

        GPUs get two chunks at a time: while the host finds the open images of one, they classify the other. `advance`
        is called with the number of looks just taken, or with a schedule, of images just decided.
        """
        n_active = 2 if self.classifier.is_accelerated else 1
        active: list[tuple[DecodedChunk, Looking, Iterator[int]]] = []
        size = choose_batch_size(batch_size, read_first_image(self.classifier, source), self.classifier)

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

        with closing(self._read_chunks(source, chunks)) as decoded:
            for chunk in decoded:
                looking = Looking(self, chunk.images, size)
                active.append((replace(chunk, images=chunk.images[:0]), looking, looking.run()))
                while len(active) == n_active:
                    yield from finish_first()
            while active:
                yield from finish_first()

    def _read_chunks(self, source: Source, chunks: Sequence[tuple[int, range]]) -> Generator[DecodedChunk, None, None]:
        return read_ahead(
            lambda: (DecodedChunk.decode(self.classifier, source, number, indices) for number, indices in chunks), 1
        )


def compile_policy(policy: Policy) -> Any:
    """Return the plan of a policy, whose classifier is loaded and checked at first use, and then kept."""
    owner, plan = policy._plan
    if owner is not policy:
        plan = open_plan(policy, policy._binding)
        policy._plan = policy, plan
    return plan


def open_plan(policy: Policy, binding: Binding) -> Any:
    """Return a new plan of a policy."""
    if OnnxFile.has_suffix(binding.path) and binding.classifier is None:
        from secondlook.decisions.exported_file import open_exported_file

        return open_exported_file(policy, binding)
    folder = None if binding.path is None else binding.path.parent
    resolved = resolve_classifier(policy, binding.classifier, allow_mismatch=binding.allow_mismatch, folder=folder)
    return Plan(policy, resolved.on_device(binding.execution.device), binding.execution)


def load_policy(
    path: str | Path,
    *,
    classifier: object = None,
    allow_mismatch: bool = False,
    execution: Execution = DEFAULT_EXECUTION,
) -> Policy:
    """Open a policy file, or an ONNX file that `export_onnx` wrote: `load_policy("policy.json").decide(image)`.

    A policy that was changed after it was written has no guarantee; an exported file that was changed is an error.

    Parameters
    ----------
    path
        The file: a policy (.json), or an exported file (.onnx), which has its classifier inside.
    classifier
        The classifier of the policy, or whatever `load_classifier` accepts. By default it is loaded from the spec in
        the policy, if that is a local ONNX file; everything else must be given, since it may run code.
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
    compile_policy(bound)  # so that a file that cannot be run is an error here
    return bound


def check_classifier_is_inside(**given: object) -> None:
    """Raise an error for an argument that is not None: an exported file has its classifier inside."""
    for name, value in given.items():
        if value is not None:
            raise DecisionError(
                "does not go with an exported file, which has its classifier inside", argument=name, repair="omit it"
            )


def choose_class_names(candidates: Iterable[tuple[str, ...] | None], n_classes: int) -> tuple[str, ...] | None:
    """Return the first names that match the number of classes: folders of new images need not be classes."""
    return next((names for names in candidates if names and len(names) == n_classes), None)


@lru_cache(maxsize=1024)
def take_first_views(views: tuple[str, ...], looks: int) -> ViewSet:
    """Return the views of the first looks. All sets of hundreds of views would take seconds, so none is made ahead."""
    return ViewSet(list(views[:looks]))
