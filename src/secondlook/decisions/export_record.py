"""What an exported ONNX file must be: the names, types and shapes of its input and outputs, and its record."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from secondlook.arrays import Output
from secondlook.errors import DecisionError
from secondlook.files import FrozenRecord, PositiveCount, describe_invalid
from secondlook.policies import Policy

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
    if policy.classes is not None and len(policy.classes.thresholds) != record.classes:
        raise invalid_file(path, f"it has {record.classes} classes, but {len(policy.classes.thresholds)} thresholds")
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
