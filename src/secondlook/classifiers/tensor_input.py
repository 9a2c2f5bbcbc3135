"""What a model file or a server says about its input: layout, size, channels, number type, batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.preprocessing import InputType, Layout, Preprocessing
from secondlook.errors import ClassifierError

CHANNELS = (1, 3)


@dataclass(frozen=True)
class TensorInput:
    """One input tensor of four axes.

    Attributes
    ----------
    name
        The name the model gives it.
    shape
        Its four sizes; None where the model leaves one free.
    dtype
        The numbers it takes.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: InputType

    @property
    def batch(self) -> int | None:
        """Number of images the model insists on, or None where any number will do."""
        return self.shape[0]

    def preprocessing(self, stated_layout: object, spec: str) -> Preprocessing:
        """Return preprocessing for this input; the stated layout counts, or None leaves it to the shape."""
        layout = stated_layout or self._layout(spec)
        channels, height, width = self.shape[1:] if layout == "NCHW" else (self.shape[3], *self.shape[1:3])
        if channels not in (None, *CHANNELS):
            raise ClassifierError(
                f"the input {self.name!r} of {spec!r} has shape {described_shape(self.shape)}, which as {layout} means "
                f"{channels} channels; a classifier takes 1 or 3: set layout= right, or leave it out."
            )
        return Preprocessing(
            layout="NCHW" if layout == "NCHW" else "NHWC",
            channels=channels,
            size=None if height is None or width is None else (height, width),
            input_dtype=self.dtype,
        )

    def _layout(self, spec: str) -> Layout:
        first, last = self.shape[1] in CHANNELS, self.shape[3] in CHANNELS
        if first == last:
            raise ClassifierError(
                f"the input {self.name!r} of {spec!r} has shape {described_shape(self.shape)}, "
                "which does not tell where the channels are; pass layout='NCHW' or layout='NHWC'."
            )
        return "NCHW" if first else "NHWC"


def tensor_input(
    name: str, shape: Sequence[object], number_type: str, types: Mapping[str, InputType], spec: str
) -> TensorInput:
    """Return the description of an input, or say why it does not take images."""
    if number_type not in types:
        raise ClassifierError(
            f"the input {name!r} of {spec!r} takes {number_type}; "
            f"it must take one of {', '.join(types)}: export the model with such an input."
        )
    sizes = tuple(size if isinstance(size, int) and size > 0 else None for size in shape)
    if len(sizes) != 4:
        raise ClassifierError(
            f"the input {name!r} of {spec!r} has shape {described_shape(sizes)}; "
            "an image classifier takes four axes: batch, channels, height and width."
        )
    return TensorInput(name, sizes, types[number_type])


def described_shape(shape: Sequence[int | None]) -> str:
    """Sizes in brackets with a question mark for a free one."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def chosen(names: Sequence[str], wanted: str | None, option: str, spec: str) -> str:
    """Return the wanted name, or the only one there is."""
    if wanted in names or (wanted is None and len(names) == 1):
        return wanted or names[0]
    problem = f"has no {wanted!r}" if wanted is not None else f"leaves open which of {len(names)} to use"
    raise ClassifierError(f"{spec!r} {problem}; pass {option}= one of: {', '.join(map(repr, names)) or '(none)'}.")


def in_batches_of(rows: int | None, inputs: Array, answer: Callable[[Array], Array]) -> Array:
    """Answers to inputs, given in batches of exactly `rows` where the model insists; the last one is filled up."""
    if rows is None or len(inputs) == rows:
        return answer(inputs)
    return np.concatenate([answer(part) for part in full_parts(inputs, rows)])[: len(inputs)]


def parts(inputs: Array, rows: int) -> list[Array]:
    """Return the inputs in parts of at most `rows`."""
    return [inputs[start : start + rows] for start in range(0, len(inputs), rows)]


def full_parts(inputs: Array, rows: int) -> list[Array]:
    """Return the inputs in parts of exactly `rows`; the last one is filled up with its last image."""
    *full, last = parts(inputs, rows)
    return [*full, _filled_up(last, rows)]


def _filled_up(inputs: Array, rows: int) -> Array:
    return inputs if len(inputs) == rows else np.concatenate([inputs, np.repeat(inputs[-1:], rows - len(inputs), 0)])
