"""Classifiers as ONNX models as they come: ONNX files, torch modules and scikit-learn estimators."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secondlook.extension import (
    Array,
    Classifier,
    ExportError,
    FunctionClassifier,
    OnnxClassifier,
    RemoteClassifier,
    Repair,
    SecondLookError,
    SklearnClassifier,
    TorchClassifier,
    import_extra,
    shorten_reason,
)
from secondlook.onnx_export.graph import LOWEST_OPSET

if TYPE_CHECKING:
    import onnx
    import torch

MAX_BYTES = 1_900_000_000
"""Largest weights: protobuf limits a file to 2 GB."""

EXAMPLE_IMAGES = 2
"""Images in the example that torch traces a module with; of 1, torch would make a fixed batch size."""

KINDS: dict[type[Classifier], str] = {FunctionClassifier: "a Python function", RemoteClassifier: "a remote model"}
"""Classifiers that cannot be converted, in words."""


def load_or_convert(classifier: Classifier, images: Array) -> "onnx.ModelProto":
    """Return a classifier, not an ensemble, as an ONNX model whose last output is the one in use.

    `images` are any at input size, uint8|float32 [n, H, W, C].
    """
    if isinstance(classifier, OnnxClassifier):
        return _load_file(classifier)
    if isinstance(classifier, TorchClassifier):
        return _convert_module(classifier, classifier.preprocessing.normalize(images[:EXAMPLE_IMAGES]))
    if isinstance(classifier, SklearnClassifier):
        return _convert_estimator(classifier, n_features=images[0].size)
    kind = KINDS.get(type(classifier), type(classifier).__name__)
    raise ExportError(
        f"classifier {classifier.name!r} is {kind}, which cannot be part of an ONNX file; export the model itself to "
        "ONNX, and calibrate a policy for 'onnx:FILE'."
    )


def check_sizes(members: Sequence[Classifier]) -> None:
    """Raise if the members are too large for one file, each or together, before any of them is converted."""
    sizes = [_compute_size(member) for member in members]
    owners = [f"classifier {member.name!r} has" for member in members]
    owners.append(f"the {len(members)} members of the ensemble have together")
    for size, owner in zip([*sizes, sum(sizes)], owners, strict=True):
        if size > MAX_BYTES:
            raise ExportError(
                f"{owner} {size / 1e9:.1f} GB of weights, but an ONNX file has at most {MAX_BYTES / 1e9:.1f} GB; use a "
                "smaller classifier."
            )


def _compute_size(classifier: Classifier) -> int:
    """Return the bytes of the weights as far as they are known before the conversion."""
    if isinstance(classifier, TorchClassifier):
        return sum(weight.nbytes for weight in _list_weights(classifier.module))
    return compute_file_size(classifier) if isinstance(classifier, OnnxClassifier) else 0


def compute_file_size(classifier: OnnxClassifier) -> int:
    """Return the bytes of a model's file, and of those with its external data."""
    return sum(file.stat().st_size for file in classifier.list_files())


def iterate_graphs(graph: "onnx.GraphProto") -> "Iterator[onnx.GraphProto]":
    """Yield a graph, and all graphs inside of it: branches and bodies of loops."""
    yield graph
    for node in graph.node:
        yield from iterate_inner(node)


def iterate_inner(node: "onnx.NodeProto") -> "Iterator[onnx.GraphProto]":
    """Yield all graphs inside of a node."""
    for attribute in node.attribute:
        for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from iterate_graphs(inner)


@contextlib.contextmanager
def describe_failures(problem: str, repair: str) -> Iterator[None]:
    """Raise whatever a library raises as an `ExportError`: problem, the first cause, repair."""
    try:
        yield
    except SecondLookError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(f"{problem}: {shorten_reason(cause)}; {repair}") from error


# --- ONNX files ---


def _load_file(classifier: OnnxClassifier) -> "onnx.ModelProto":
    import onnx

    _check_batch_size(classifier.model_input.batch_size, classifier.name)
    files = classifier.list_files()
    with describe_failures(f"cannot read classifier {classifier.name!r}", "check or re-export the file."):
        model = onnx.load(classifier.file, load_external_data=False)
        for tensor in _iterate_tensors(model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                _load_external_data(tensor, files)
    if not classifier.is_unchanged():
        raise ExportError(
            f"the file of classifier {classifier.name!r} was changed after it was loaded; load it again, so that it is "
            "compared with the policy."
        )
    # The output in use comes last.
    outputs = sorted(model.graph.output, key=lambda output: output.name == classifier.output_name)
    model.graph.ClearField("output")
    model.graph.output.extend(outputs)
    return model


def _iterate_tensors(model: "onnx.ModelProto") -> "Iterator[onnx.TensorProto]":
    """Yield the tensors that can be external data: weights, and constants of nodes."""
    graphs = list(iterate_graphs(model.graph))
    for graph in graphs:
        yield from graph.initializer
    for node in (node for part in (*graphs, *model.functions) for node in part.node):
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else attribute.tensors


def _load_external_data(tensor: "onnx.TensorProto", files: Sequence[Path]) -> None:
    """Read the values of a tensor. `onnx.load` would not read those of a model in a cache, which are links."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = files[0].parent / entries["location"]
    if file not in files:
        raise ValueError(f"the weights {tensor.name!r} are not in the folder of the model")
    with file.open("rb") as stream:
        stream.seek(int(entries.get("offset", 0)))
        tensor.raw_data = stream.read(int(entries.get("length", -1)))
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _check_batch_size(batch_size: int | None, name: str) -> None:
    if batch_size is not None:
        raise ExportError(
            f"classifier {name!r} has a fixed batch size of {batch_size}, but the batch axis of a network to export "
            "must be dynamic; export it again with a dynamic batch axis."
        )


# --- Torch ---


def _convert_module(classifier: TorchClassifier, inputs: Array) -> "onnx.ModelProto":
    import_extra("onnxscript", feature="export of a torch classifier to ONNX", extra="export")
    import torch

    _check_batch_size(classifier.batch_size, classifier.name)
    module = classifier.copy_for_export()
    _check_weights(module, classifier.name)
    example = torch.from_numpy(inputs.copy())  # raw pixels may be read-only
    example = example.float() if example.is_floating_point() else example
    problem = f"torch cannot export classifier {classifier.name!r} to ONNX"
    repair = "change the module, or export it yourself and calibrate a policy for 'onnx:FILE'."
    with describe_failures(problem, repair), _silence_torch():
        return _export_module(module, example)


def _export_module(module: "torch.nn.Module", example: "torch.Tensor") -> "onnx.ModelProto":
    import onnx
    import torch

    options: dict[str, Any] = {"opset_version": LOWEST_OPSET, "verbose": False}
    if isinstance(module, torch.jit.ScriptModule):
        written = io.BytesIO()
        options |= {"input_names": ["inputs"], "dynamic_axes": {"inputs": {0: "batch"}}, "dynamo": False}
        torch.onnx.export(module, (example,), written, **options)  # type: ignore[arg-type]
        return onnx.load_model_from_string(written.getvalue())
    options |= {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},), "dynamo": True}
    program = torch.onnx.export(module, (example,), **options)
    assert program is not None, "a program is returned if no file is given"
    return program.model_proto


def _list_weights(module: "torch.nn.Module") -> "list[torch.Tensor]":
    import torch

    return [value for value in module.state_dict().values() if isinstance(value, torch.Tensor)]


def _check_weights(module: "torch.nn.Module", name: str) -> None:
    import torch

    for weight in _list_weights(module):
        if weight.is_floating_point() and weight.dtype != torch.float32:
            raise ExportError(
                f"classifier {name!r} has weights of {weight.dtype}, but torch modules are exported in float32",
                repair=Repair("load it with {dtype}, and calibrate a policy for that", dtype="float32"),
            )


@contextlib.contextmanager
def _silence_torch() -> Iterator[None]:
    """Suppress warnings and log messages, and the code that torch prints if it cannot export it."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# --- scikit-learn ---


def _convert_estimator(classifier: SklearnClassifier, n_features: int) -> "onnx.ModelProto":
    """Return a model with the outputs label and probabilities."""
    feature = "export of a scikit-learn classifier to ONNX"
    skl2onnx = import_extra("skl2onnx", feature=feature, extra="sklearn-onnx")
    from skl2onnx.common.data_types import FloatTensorType

    problem = f"skl2onnx cannot convert classifier {classifier.name!r} to ONNX"
    repair = "use an estimator that it supports, or convert it yourself and calibrate a policy for 'onnx:FILE'."
    with describe_failures(problem, repair), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: onnx.ModelProto = skl2onnx.convert_sklearn(
            classifier.estimator,
            initial_types=[("features", FloatTensorType([None, n_features]))],
            options={"zipmap": False},
            target_opset=LOWEST_OPSET,
        )
    return model
