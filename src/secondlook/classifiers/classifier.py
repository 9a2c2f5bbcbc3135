"""The base class of all classifiers: a batch of pixels in, validated outputs out; and ensembles."""

import hashlib
import json
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np

from secondlook.arrays import (
    OUTPUTS,
    SUM_TOLERANCE,
    Array,
    Float32Array,
    Output,
    are_probabilities,
    is_text,
    softmax,
    to_host,
)
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.errors import ANY, ClassifierError, Repair, shorten_reason
from secondlook.sources import OnError, Source, open_source
from secondlook.views import View

if TYPE_CHECKING:
    from torch import Tensor

    from secondlook.classifiers.device import DeviceWorkers, PlacedImages

CHECK_SIZE = Repair("check {resize}, {crop} and {layout} of the images", resize=ANY, crop=ANY, layout=ANY)

Fetch = Callable[[], Float32Array]
"""Waits for outputs and returns them. float32 [n, classes]"""

MAX_PADDED_BYTES = 4 * 2**30
"""Maximum size of a padded batch; a file or a server may declare any fixed batch size."""


class Classifier(ABC):
    """A black box with a name, an identity and a declared kind of output.

    Subclasses implement `forward`; this class validates outputs and converts them to probabilities.

    Attributes
    ----------
    name
        Display name; by default the spec, if there is one.
    digest
        Hex digest that identifies the classifier (from its file, its weights, or a name given by the user), and its
        stored outputs. Empty for a function without a name, which cannot be identified.
    output
        Kind of output: 'logits' or 'probabilities'.
    preprocessing
        Steps from images to the model's input: `fit` runs before the views, `normalize` after them.
    n_classes
        Number of classes; None until known from the model or from its first output.
    class_names
        Names of the classes, if the model has them.
    has_integer_names
        Whether the names are integers, for example 1 to 10. Integer labels are then names, not class indices.
    members
        Members of an ensemble; empty for a single classifier.
    workers
        Models on GPUs that make the views there; None if the host makes the views.
    reload
        Loads the classifier in another process; None if it was not loaded from a spec, and is pickled instead.
    """

    has_integer_names: bool = False
    members: tuple["Classifier", ...] = ()
    workers: "DeviceWorkers | None" = None
    reload: "Callable[[], Classifier] | None" = None

    def __init__(
        self,
        *,
        name: str,
        digest: str,
        output: Output,
        preprocessing: Preprocessing,
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            fault = f"for classifier {name!r} is unknown; expected 'logits' or 'probabilities'"
            raise ClassifierError(fault, argument="output", value=output)
        self.name = name
        self.digest = digest
        self.output: Output = output
        self.preprocessing = preprocessing
        self.n_classes = n_classes
        self.class_names = class_names

    def __reduce_ex__(self, protocol: SupportsIndex) -> "str | tuple[Any, ...]":
        """Pickle the spec of a classifier instead of its sessions and connections, if it was loaded from a spec."""
        return super().__reduce_ex__(protocol) if self.reload is None else (self.reload, ())

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    @abstractmethod
    def forward(self, images: Array) -> Array:
        """Return the raw output of the model. uint8|float32 [N, H, W, C] -> [N, n_classes]"""

    def __call__(self, images: Array) -> Float32Array:
        """Return the validated output for images at input size. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        is_batch = images.ndim == 4 and images.shape[3] in (1, 3) and len(images) > 0
        if not is_batch or images.dtype not in (np.uint8, np.float32):
            fault = f"classifier {self.name!r} got a {images.dtype} batch of shape {list(images.shape)}"
            raise ClassifierError(f"{fault}; expected uint8 or float32 [N, H, W, 1 or 3] with at least one image.")
        self.preprocessing.check_size(images.shape[1], images.shape[2])
        return self._validate(self.forward(images), len(images))

    def probabilities(self, images: Array) -> Float32Array:
        """Return probabilities, even if the output is logits. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        values = self(images)
        return softmax(values).astype(np.float32) if self.output == "logits" else values

    def open_labeled(self, data: Any, labels: Any = None, on_error: OnError | None = None) -> Source:
        """Open images; class names among the labels refer to the classifier's class names, if any."""
        if labels is not None and self.has_integer_names and to_host(labels).dtype.kind in "iu":
            labels = to_host(labels).astype(np.str_)
        named = self.class_names if labels is not None and is_text(labels) else None
        source = open_source(data, labels=labels, class_names=named, on_error=on_error)
        return source.with_class_names(self.class_names) if self.has_integer_names and self.class_names else source

    @staticmethod
    def check_device(device: object) -> None:
        """Raise for a text that is not a device."""
        if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            hint = ". Did you mean 'cuda'?" if str(device).lower().startswith(("gpu", "cuda")) else ""
            fault = f"is unknown; expected 'auto', 'cpu', 'cuda' or 'cuda:N'{hint}"
            raise ClassifierError(fault, argument="device", value=device)

    def on_device(self, device: str) -> "Classifier":
        """Return the classifier on a device: 'auto', 'cpu', 'cuda' (all GPUs) or 'cuda:N'.

        'auto' keeps an explicitly chosen device, and otherwise uses the GPUs if possible.
        """
        if device not in ("auto", "cpu"):
            self.check_device(device)
            fault = f"cannot be used: classifier {self.name!r} does not support GPUs; only torch and ONNX models do"
            repair = Repair("pass {device} to keep its device", device="auto")
            raise ClassifierError(fault, argument="device", value=device, repair=repair)
        return self

    def split_batches(self) -> "Classifier":
        """Return the classifier with batches split among cores, if supported: faster, but with more memory."""
        return self

    @property
    def is_accelerated(self) -> bool:
        """Whether models on GPUs make the views, with `upload` and `start`."""
        return self.workers is not None

    def upload(self, images: "Array | Tensor") -> "PlacedImages":
        """Start to copy images at input size to the GPUs. uint8|float32 [N, H, W, C]"""
        assert self.workers is not None, "upload is for accelerated classifiers"
        if isinstance(images, np.ndarray):
            images = self.preprocessing.convert_channels(images)
        self.preprocessing.check_size(images.shape[1], images.shape[2])
        return self.workers.upload(images)

    def start(self, images: "PlacedImages", views: Sequence[View]) -> Fetch:
        """Start to classify views on the GPUs; the outputs are float32 [V * n, n_classes], one view after another."""
        assert self.workers is not None, "start is for accelerated classifiers"
        n_inputs = len(views) * len(images)
        with self._describe_device_failures(n_inputs):
            fetch = self.workers.start(images, views, self.preprocessing)

        def fetch_validated() -> Float32Array:
            with self._describe_device_failures(n_inputs):
                outputs = fetch()
            return self._validate(outputs, n_inputs)

        return fetch_validated

    def find_batch_size(self, image: Array) -> int | None:
        """Return how many images [H, W, C] fill the GPUs and fit in their memory; None without GPUs."""
        return None if self.workers is None else self.workers.find_batch_size(image, self.preprocessing)

    @contextmanager
    def _describe_device_failures(self, n_inputs: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            fault = f"classifier {self.name!r} failed on a GPU with {n_inputs} inputs: {shorten_reason(error)}"
            raise ClassifierError(fault, repair=CHECK_SIZE) from error

    def _validate(self, values: Array, n_images: int) -> Float32Array:
        outputs = validate_output(
            values, n_images=n_images, output=self.output, n_classes=self.n_classes, name=self.name
        )
        self.n_classes = outputs.shape[1]
        return outputs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, output={self.output!r}, preprocessing='{self.preprocessing}')"


class Ensemble(Classifier):
    """The mean of the probabilities of several classifiers.

    Members must agree on the classes and on the preprocessing before the views; mean, std and layout may differ.
    """

    def __init__(self, members: Sequence[Classifier], *, name: str | None = None) -> None:
        if not members:
            raise ClassifierError("an ensemble needs at least one member; got an empty list.")
        for member in members:
            _check_member(member, member.n_classes, members[0])
        digests = [[each.digest, each.preprocessing.digest, each.output] for each in members]
        super().__init__(
            name=name or "ensemble of " + ", ".join(member.name for member in members),
            digest=digest_values("ensemble", digests) if all(member.digest for member in members) else "",
            output="probabilities",
            preprocessing=members[0].preprocessing,
            n_classes=next((member.n_classes for member in members if member.n_classes is not None), None),
            class_names=next((member.class_names for member in members if member.class_names is not None), None),
        )
        self.members = tuple(members)
        named = [member for member in members if member.class_names is not None]
        self.has_integer_names = bool(named) and named[0].has_integer_names

    def on_device(self, device: str) -> Classifier:
        """Return the ensemble with all members on a device."""
        moved = [member.on_device(device) for member in self.members]
        is_same = all(one is other for one, other in zip(moved, self.members, strict=True))
        return self if is_same else Ensemble(moved, name=self.name)

    def split_batches(self) -> Classifier:
        """Return the ensemble of members that split batches."""
        return Ensemble([member.split_batches() for member in self.members], name=self.name)

    def forward(self, images: Array) -> Array:
        """Return the mean probabilities of the members. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        total = np.zeros(1)
        for member in self.members:
            probabilities = member.probabilities(images).astype(np.float64)
            _check_member(member, probabilities.shape[1], self.members[0])
            total = total + probabilities
        return (total / len(self.members)).astype(np.float32)


def _check_member(member: Classifier, n_classes: int | None, first: Classifier) -> None:
    if member.members:
        raise ClassifierError(f"member {member.name!r} is itself an ensemble; pass its members instead.")
    mine, theirs = member.preprocessing, first.preprocessing
    compared = [(name, value, theirs.geometry[name]) for name, value in mine.geometry.items()]
    # An unknown value of one member counts as equal.
    compared.append(("input size", mine.input_size or theirs.input_size, theirs.input_size or mine.input_size))
    compared.append(("n_classes", n_classes or first.n_classes, first.n_classes or n_classes))
    for name, one, other in compared:
        if one != other:
            both = f"{one!r} for {member.name!r} and {other!r} for {first.name!r}"
            raise ClassifierError(f"{name} is {both}; the members of an ensemble must agree.")


def validate_output(values: object, *, n_images: int, output: Output, n_classes: int | None, name: str) -> Float32Array:
    """Return the output of a classifier as float32 [n_images, n_classes]; raise if it is not as declared."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        found = f"{type(values).__name__} with dtype {array.dtype}"
        raise ClassifierError(f"classifier {name!r} returned {found}; expected a numeric array [images, classes].")
    if array.ndim != 2 or len(array) != n_images or array.shape[1] < 2:
        fault = f"classifier {name!r} returned an array of shape {list(array.shape)} for {n_images} images"
        raise ClassifierError(f"{fault}; expected [images, classes], for a binary classifier [1 - p, p] per image.")
    if array.shape[1] != (n_classes or array.shape[1]):
        raise ClassifierError(f"classifier {name!r} returned {array.shape[1]} classes; expected {n_classes} as before.")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        fault = f"classifier {name!r} returned {array[row, column]} for image {row} of the batch, class {column}"
        advice = "check its weights, its dtype (float16 overflows above 65504) and the preprocessing"
        raise ClassifierError(fault, repair=advice)
    declared = f"classifier {name!r} was declared to output {output}"
    if output == "logits":
        if len(array) > 1 and are_probabilities(array):  # a single row may sum to 1 by chance
            fault = f"{declared}, but all {len(array)} rows of the batch lie in [0, 1] and sum to 1"
            raise ClassifierError(fault, repair=Repair("pass {output}", output="probabilities"))
        return array
    sums, lowest = array.sum(axis=1, dtype=np.float64), float(array.min())
    worst = int(np.abs(sums - 1).argmax())
    if lowest < -1e-6:  # smaller rounding errors become 0
        repair = Repair("these look like logits: pass {output}", output="logits")
        raise ClassifierError(f"{declared}, but returned {lowest:.6g}", repair=repair)
    if abs(sums[worst] - 1) > SUM_TOLERANCE:
        fault = f"{declared}, but row {worst} of the batch sums to {sums[worst]:.6g} instead of 1"
        text = "pass {output} if these are logits, or normalize each row; export a multi-label model without sigmoid"
        raise ClassifierError(fault, repair=Repair(text, output="logits"))
    return np.maximum(array, 0, out=array if array.flags.writeable else None) if lowest < 0 else array


def run_in_batches(
    inputs: Any, batch_size: int | None, run: Callable[[Any], Any], join: Callable[..., Any] = np.concatenate
) -> Any:
    """Run a model on an array or a tensor, in padded batches of exactly `batch_size` if the model has a fixed one."""
    if batch_size is None or len(inputs) == batch_size:
        return run(inputs)
    return join([run(batch) for batch in split_padded(inputs, batch_size, join)])[: len(inputs)]


def describe_failure(name: str, inputs: "Array | Tensor", error: Exception) -> ClassifierError:
    """Return the error of a model that fails on its input."""
    fault = f"classifier {name!r} failed on an input of shape {list(inputs.shape)}: {shorten_reason(error)}"
    return ClassifierError(fault, repair=CHECK_SIZE)


def split_batches(inputs: Any, batch_size: int) -> list[Any]:
    """Split inputs into batches of at most `batch_size`."""
    return [inputs[start : start + batch_size] for start in range(0, len(inputs), batch_size)]


def split_padded(inputs: Any, batch_size: int, join: Callable[..., Any] = np.concatenate) -> list[Any]:
    """Split inputs into batches of exactly `batch_size`; the last one is padded with copies of its last image."""
    if batch_size * inputs[0].nbytes > MAX_PADDED_BYTES:
        size = f"{batch_size}, more than {MAX_PADDED_BYTES // 2**30} GB of images of shape {list(inputs.shape[1:])}"
        raise ClassifierError(f"the model has a fixed batch size of {size}; export it with a smaller or a dynamic one.")
    *full, last = split_batches(inputs, batch_size)
    shape = (batch_size - len(last), *last.shape[1:])
    padding = np.broadcast_to(last[-1:], shape) if isinstance(last, np.ndarray) else last[-1:].expand(shape)
    return [*full, join([last, padding]) if len(padding) else last]


def find_model_file(location: str, spec: str) -> Path:
    """Return the path of an existing model file."""
    file = Path(location).expanduser()
    check_regular_file(file, f"file {location!r} of {spec!r}")
    return file


def check_regular_file(file: Path, what: str) -> None:
    """Raise unless a path is a regular file: opening a pipe or a device may block forever."""
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        fault = f"{what} does not exist or cannot be read ({shorten_reason(error)})"
        raise ClassifierError(fault, repair="check the path") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a named pipe, a socket or a device"
        raise ClassifierError(f"{what} is {kind}, not a regular file; pass the path of the model file itself.")


def digest_files(files: Iterable[Path]) -> str:
    """Return the hex sha256 of one file, or the digest of the digests of several."""
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else digest_values(*digests)


def digest_values(*values: object) -> str:
    """Return the hex sha256 of values, serialized as JSON."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def digest_with_options(digest: str, **options: object) -> str:
    """Return a digest that also depends on the options that are not None, since they change the outputs."""
    given = {name: value for name, value in options.items() if value is not None}
    return digest_values(digest, given) if given else digest
