"""Classifiers as ONNX networks: converted from ONNX files, torch modules and scikit-learn, simplified and embedded.

A network is an ONNX model with one input, one output and a dynamic batch axis, which contains its weights and no
function definitions.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import checker, helper, inliner, shape_inference, version_converter

from secondlook.extension import (
    Array,
    Classifier,
    ExportError,
    OnnxClassifier,
    Output,
    Repair,
    SklearnClassifier,
    TorchClassifier,
    import_extra,
)
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor, describe_failures

if TYPE_CHECKING:
    import torch

BATCH_NAME = "looks"
"""Name of the batch axis of a network: images of the batch times views per image."""

LOWEST_IR_VERSION = 8
"""The file format version of the lowest opset; before version 4, weights are also inputs."""

CHECKED_IMAGES = 3
"""Number of random images on which a network is compared with its classifier; not 1, and more than the example."""

RELATIVE_TOLERANCE = 1e-3
"""Largest relative difference between the outputs of a network and of its classifier."""
TOLERANCES: dict[Output, float] = {"logits": 1e-3, "probabilities": 1e-5}
"""Largest absolute difference; small for probabilities, since most are near 0 with many classes."""

MAX_BYTES = 1_900_000_000
"""Maximum size of the weights: protobuf limits a file to 2 GB."""

EXAMPLE_IMAGES = 2
"""Number of example images for tracing a torch module; with 1, torch would fix the batch size."""


def make_networks(members: Sequence[Classifier], image_shape: tuple[int, int, int]) -> list[onnx.ModelProto]:
    """Convert the members of an ensemble, or a single classifier, to networks, all with the same opset.

    `image_shape` is height, width and channels at input size. All names in a network begin with the number of its
    member, which makes them unique in the exported file.
    """
    _check_size(members)
    # Not uint8 pixels: thresholds of trees may equal a pixel value, and a rounding error would change the branch.
    images = np.random.default_rng(0).random((CHECKED_IMAGES, *image_shape), dtype=np.float32)
    models = [_simplify(_load_or_convert(member, images), member.name) for member in members]
    opset = max(LOWEST_OPSET, *(get_versions(model)[""] for model in models))
    models = [_convert_opset(model, opset, member.name) for model, member in zip(models, members, strict=True)]
    _check_versions(models, members)
    for number, (model, member) in enumerate(zip(models, members, strict=True)):
        _add_prefix(model.graph, f"{number}/")
        _check_outputs(model, member, images)
    return models


def embed_network(graph: Graph, network: onnx.ModelProto, inputs: Tensor) -> Tensor:
    """Add the nodes and weights of a network to a graph, and return its output, float32 [n, n_classes].

    `inputs` are normalized images in the layout of the classifier, or features.
    """
    embedded = network.graph
    (network_input,), (output,) = embedded.input, embedded.output
    given = inputs.cast(_get_dtype(network_input))
    _name_batch(graph, given, network_input)
    graph.rename(given, network_input.name)
    graph.nodes.extend(embedded.node)
    graph.initializers.extend(embedded.initializer)
    return Tensor(graph, output.name, _get_dtype(output)).cast(np.float32)


def _name_batch(graph: Graph, inputs: Tensor, network_input: onnx.ValueInfoProto) -> None:
    """Name the batch axis of the input of a network.

    Otherwise ONNX Runtime does not know that tensors in the network have the same size, and copies them instead of
    adding in place: a ResNet-50 takes 4 % longer. The name belongs to the tensor that becomes the input, since ONNX
    Runtime replaces the input by it.
    """
    if not any(inputs.name in node.output for node in graph.nodes):  # a graph input, or from an outer graph
        return
    described = onnx.ValueInfoProto()
    described.CopyFrom(network_input)
    described.name = inputs.name
    for place, size in enumerate(described.type.tensor_type.shape.dim):
        if place == 0:
            size.dim_param = BATCH_NAME
        elif not size.HasField("dim_value"):
            size.Clear()
    graph.described[inputs.name] = described


def _get_dtype(value: onnx.ValueInfoProto) -> "np.dtype[Any]":
    return np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


# --- Simplification ---


def _simplify(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Keep only the last output of a model, and remove functions, descriptions and unused parts."""
    model.ir_version = max(model.ir_version, LOWEST_IR_VERSION)
    if model.functions:
        with describe_failures(f"cannot inline the functions of classifier {name!r}", "export it without functions."):
            # Converting functions of another opset requires the types of all tensors.
            model = inliner.inline_local_functions(shape_inference.infer_shapes(model), convert_version=True)
    graph = model.graph
    if any(each.sparse_initializer for each in iterate_graphs(graph)):
        raise ExportError(f"classifier {name!r} has sparse weights, which are not supported; save them as dense ones.")
    weights = {tensor.name for tensor in graph.initializer}
    _keep(graph.input, [value.name not in weights for value in graph.input])
    del graph.output[:-1]
    _remove_unused(graph)
    _remove_descriptions(graph)
    # Imports each operator set once, and only if it is used.
    used = {"", *(node.domain for each in iterate_graphs(graph) for node in each.node)}
    imports = [helper.make_opsetid(*one) for one in get_versions(model).items() if one[0] in used]
    model.ClearField("opset_import")
    model.opset_import.extend(imports)
    return model


def _keep(items: MutableSequence[Any], is_kept: Sequence[bool]) -> None:
    for index in reversed(range(len(items))):
        if not is_kept[index]:
            del items[index]


def _remove_unused(graph: onnx.GraphProto) -> None:
    """Remove unused nodes and weights: ONNX Runtime would compute them."""
    needed = {value.name for value in graph.output}
    is_kept = []
    for node in reversed(graph.node):
        is_kept.append(not needed.isdisjoint(node.output))
        if is_kept[-1]:
            needed.update(node.input)
            needed.update(name for inner in _iterate_inner(node) for each in inner.node for name in each.input)
            needed.discard("")  # an unused optional input or output
    _keep(graph.node, is_kept[::-1])
    _keep(graph.initializer, [tensor.name in needed for tensor in graph.initializer])


def _remove_descriptions(graph: onnx.GraphProto) -> None:
    """Remove shapes, which may contain a fixed batch size, and stack traces, which contain local paths."""
    for each in iterate_graphs(graph):
        each.ClearField("value_info")
        for item in (each, *each.node, *each.initializer):
            item.ClearField("doc_string")
            item.ClearField("metadata_props")


def _add_prefix(graph: onnx.GraphProto, prefix: str) -> None:
    """Add a prefix to all names. `onnx.compose` would miss names in nested branches."""
    for each in iterate_graphs(graph):
        for item in (*each.input, *each.output, *each.initializer, *each.node):
            item.name = item.name and f"{prefix}{item.name}"
        for node in each.node:
            for names in (node.input, node.output):
                # An empty name is an unused optional input or output.
                names[:] = [name and f"{prefix}{name}" for name in names]


def get_versions(model: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each operator set; '' is the one of ONNX itself."""
    stated = {"" if each.domain == "ai.onnx" else each.domain: each.version for each in model.opset_import}
    return {"": LOWEST_OPSET, **stated}


def _convert_opset(model: onnx.ModelProto, opset: int, name: str) -> onnx.ModelProto:
    own = get_versions(model)[""]
    problem = f"cannot convert classifier {name!r} from opset {own} to {opset}"
    with describe_failures(problem, f"export it again with opset {opset}."):
        converted = model if own == opset else version_converter.convert_version(model, opset)
        _remove_descriptions(converted.graph)
        checker.check_model(converted)
    return converted


def iterate_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its inner graphs: branches and loop bodies."""
    yield graph
    for node in graph.node:
        yield from _iterate_inner(node)


def _iterate_inner(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from iterate_graphs(inner)


# --- Checks ---


def _check_size(members: Sequence[Classifier]) -> None:
    """Raise if the members are too large for one file."""
    size = sum(measure_files(member) for member in members if isinstance(member, OnnxClassifier))
    modules = (member.module for member in members if isinstance(member, TorchClassifier))
    size += sum(weight.nbytes for module in modules for weight in _list_weights(module))
    if size > MAX_BYTES:
        names = " + ".join(repr(member.name) for member in members)
        fault = f"classifier {names} has {size / 1e9:.1f} GB of weights"
        raise ExportError(f"{fault}, but an ONNX file has at most {MAX_BYTES / 1e9:.1f} GB; use a smaller one.")


def measure_files(classifier: OnnxClassifier) -> int:
    """Return the total size of the files of a classifier in bytes."""
    return sum(file.stat().st_size for file in classifier.list_files())


def _check_batch_size(batch_size: int | None, name: str) -> None:
    if batch_size is not None:
        fault = f"classifier {name!r} has a fixed batch size of {batch_size}"
        raise ExportError(fault, repair="export it again with a dynamic batch axis")


def _check_versions(models: Sequence[onnx.ModelProto], members: Sequence[Classifier]) -> None:
    """Raise if members use different versions of operators from other domains, which cannot be converted."""
    versions = [get_versions(model) for model in models]
    for found, member in zip(versions, members, strict=True):
        for domain, version in found.items():
            highest = max(each.get(domain, 0) for each in versions)
            if version != highest:
                fault = f"member {member.name!r} has operators of {domain!r} in version {version}, another in {highest}"
                raise ExportError(fault, repair="export all members with the same version")


def _check_outputs(network: onnx.ModelProto, classifier: Classifier, images: Array) -> None:
    expected, inputs = classifier(images), classifier.preprocessing.normalize(images)
    inputs = inputs.reshape(len(inputs), -1) if isinstance(classifier, SklearnClassifier) else inputs
    problem = f"classifier {classifier.name!r} fails in ONNX Runtime on a batch of {len(images)} images"
    with describe_failures(problem, "check that its batch axis is dynamic, and export it again."):
        found = _run(network, inputs)
    atol = TOLERANCES[classifier.output]
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=RELATIVE_TOLERANCE, atol=atol):
        fault = f"classifier {classifier.name!r} has different outputs after its conversion to ONNX"
        raise ExportError(fault, repair="convert it yourself, and calibrate a policy for 'onnx:FILE'")


def _run(network: onnx.ModelProto, inputs: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(network.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = network.graph.input[0]
    outputs: Array = session.run(None, {given.name: inputs.astype(_get_dtype(given))})[0]
    return outputs


# --- Conversion ---


def _load_or_convert(classifier: Classifier, images: Array) -> onnx.ModelProto:
    """Return an ONNX model with the used output last; `images` are example images at input size, [n, H, W, C]."""
    if isinstance(classifier, OnnxClassifier):
        return _load_file(classifier)
    if isinstance(classifier, TorchClassifier):
        return _convert_module(classifier, classifier.preprocessing.normalize(images[:EXAMPLE_IMAGES]))
    if isinstance(classifier, SklearnClassifier):
        return _convert_estimator(classifier, n_features=images[0].size)
    fault = f"classifier {classifier.name!r} of type {type(classifier).__name__} cannot be exported to ONNX"
    raise ExportError(fault, repair="export the model itself to ONNX, and calibrate a policy for 'onnx:FILE'")


def _load_file(classifier: OnnxClassifier) -> onnx.ModelProto:
    _check_batch_size(classifier.model_input.batch_size, classifier.name)
    with describe_failures(f"cannot read classifier {classifier.name!r}", "check or re-export the file."):
        model = onnx.load(classifier.file, load_external_data=False)
        _load_external_data(model, classifier)
    if not classifier.is_unchanged():
        fault = f"the file of classifier {classifier.name!r} changed after it was loaded"
        raise ExportError(fault, repair="load it again, to compare it with the policy")
    # The used output comes last.
    outputs = sorted(model.graph.output, key=lambda output: output.name == classifier.output_name)
    model.graph.ClearField("output")
    model.graph.output.extend(outputs)
    return model


def _load_external_data(model: onnx.ModelProto, classifier: OnnxClassifier) -> None:
    """Read external weights and node constants. `onnx.load` rejects links, which models in a cache consist of."""
    files, graphs = classifier.list_files(), list(iterate_graphs(model.graph))
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    for attribute in (each for part in (*graphs, *model.functions) for node in part.node for each in node.attribute):
        tensors += [attribute.t] if attribute.HasField("t") else attribute.tensors
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        file = files[0].parent / entries["location"]
        if file not in files:
            raise ValueError(f"the weights {tensor.name!r} are not in the folder of the model")
        with file.open("rb") as stream:
            stream.seek(int(entries.get("offset", 0)))
            tensor.raw_data = stream.read(int(entries.get("length", -1)))
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _convert_module(classifier: TorchClassifier, inputs: Array) -> onnx.ModelProto:
    import_extra("onnxscript", feature="export of a torch classifier to ONNX", extra="export")
    import torch

    _check_batch_size(classifier.batch_size, classifier.name)
    module = classifier.copy_for_export()
    for weight in _list_weights(module):
        if weight.is_floating_point() and weight.dtype != torch.float32:
            fault = f"classifier {classifier.name!r} has {weight.dtype} weights, but export needs float32"
            repair = Repair("load it with {dtype}, and calibrate a policy for it", dtype="float32")
            raise ExportError(fault, repair=repair)
    example = torch.from_numpy(inputs.copy())  # raw pixels may be read-only
    example = example.float() if example.is_floating_point() else example
    options: dict[str, Any] = {"opset_version": LOWEST_OPSET, "verbose": False}
    problem = f"torch cannot export classifier {classifier.name!r} to ONNX"
    advice = "change the module, or export it yourself and calibrate a policy for 'onnx:FILE'."
    with describe_failures(problem, advice), _silence_torch():
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


@contextlib.contextmanager
def _silence_torch() -> Iterator[None]:
    """Suppress warnings, log messages, and the source code that torch prints when an export fails."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _convert_estimator(classifier: SklearnClassifier, n_features: int) -> onnx.ModelProto:
    """Return an ONNX model with the outputs label and probabilities."""
    skl2onnx = import_extra("skl2onnx", feature="export of a scikit-learn classifier to ONNX", extra="sklearn-onnx")
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
