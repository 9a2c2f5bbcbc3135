"""The input tensor that a model file or a server describes: layout, size, channels, number type, batch size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import CHECK_SIZE
from secondlook.classifiers.preprocessing import InputType, Layout, Preprocessing
from secondlook.errors import ANY, ClassifierError, Repair, shorten_reason

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS = (1, 3)
MAX_PADDED_BYTES = 4 * 2**30
"""Largest batch that is padded to the fixed batch size of a model, which a file or a server can state at will."""


@dataclass(frozen=True)
class ModelInput:
    """An image input with four axes."""

    name: str
    shape: tuple[int | None, ...]
    """Sizes of the four axes; None for a dynamic axis."""
    dtype: InputType

    @classmethod
    def parse(
        cls, inputs: Sequence[tuple[str, Sequence[object], str]], dtypes: Mapping[str, InputType], spec: str
    ) -> "ModelInput":
        """Return the only input of a model, described by name, shape and a number type, which `dtypes` maps to ours."""
        if len(inputs) != 1:
            names = ", ".join(repr(name) for name, _, _ in inputs) or "none described"
            fault = f"{spec!r} has {len(inputs)} inputs ({names}); expected one batch of images"
            raise ClassifierError(fault, repair="export the model, or describe it on the server, with a single input")
        [(name, shape, dtype)] = inputs
        if dtype not in dtypes:
            fault = f"input {name!r} of {spec!r} takes {dtype}; expected one of {', '.join(dtypes)}"
            raise ClassifierError(fault, repair="export the model with such an input")
        sizes = tuple(size if isinstance(size, int) and size > 0 else None for size in shape)
        if len(sizes) != 4:
            fault = f"input {name!r} of {spec!r} has shape {_format_shape(sizes)}"
            raise ClassifierError(f"{fault}; expected four axes: batch, channels, height and width.")
        return cls(name, sizes, dtypes[dtype])

    @property
    def batch_size(self) -> int | None:
        """The fixed number of images per batch, or None if any number is accepted."""
        return self.shape[0]

    def make_preprocessing(self, given_layout: object, spec: str) -> Preprocessing:
        """Return the preprocessing for this input; without a given layout it is inferred from the shape."""
        layout = given_layout or self._infer_layout(spec)
        channels, height, width = self.shape[1:] if layout == "NCHW" else (self.shape[3], *self.shape[1:3])
        if channels not in (None, *CHANNELS):
            fault = f"input {self.name!r} of {spec!r} has {channels} channels in the layout {layout!r}, expected 1 or 3"
            raise ClassifierError(fault, repair=Repair("correct or remove {layout}", layout=ANY))
        return Preprocessing(
            layout="NCHW" if layout == "NCHW" else "NHWC",
            channels=channels,
            size=None if height is None or width is None else (height, width),
            input_dtype=self.dtype,
        )

    def _infer_layout(self, spec: str) -> Layout:
        first, last = self.shape[1] in CHANNELS, self.shape[3] in CHANNELS
        if first == last:
            fault = f"cannot infer the layout of input {self.name!r} of {spec!r} from shape {_format_shape(self.shape)}"
            raise ClassifierError(fault, repair=Repair("pass {layout} or 'NHWC'", layout="NCHW"))
        return "NCHW" if first else "NHWC"


def _format_shape(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def choose_output_name(names: Sequence[str], given: str | None, spec: str) -> str:
    """Return the given output name, or by default the only one."""
    if given in names or (given is None and len(names) == 1):
        return given or names[0]
    problem = f"has no output {given!r}" if given is not None else f"has {len(names)} outputs"
    known = ", ".join(map(repr, names)) or "(none)"
    raise ClassifierError(
        f"{spec!r} {problem}", repair=Repair(f"pass {{output_name}} with one of: {known}", output_name=ANY)
    )


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
        raise ClassifierError(
            f"the model has a fixed batch size of {batch_size}, which is more than {MAX_PADDED_BYTES // 2**30} GB of "
            f"images of shape {list(inputs.shape[1:])}; export it with a smaller or a dynamic batch size."
        )
    *full, last = split_batches(inputs, batch_size)
    shape = (batch_size - len(last), *last.shape[1:])
    padding = np.broadcast_to(last[-1:], shape) if isinstance(last, np.ndarray) else last[-1:].expand(shape)
    return [*full, join([last, padding]) if len(padding) else last]
