"""`Network`: a classifier as an ONNX model that is simplified and checked, and can be embedded in a graph."""

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.extension import (
    INPUT_NAME,
    Array,
    Classifier,
    ExportError,
    FileOutputs,
    OnnxClassifier,
    Output,
    SklearnClassifier,
    import_extra,
)
from secondlook.onnx_export.conversion import (
    check_sizes,
    compute_file_size,
    describe_failures,
    iterate_graphs,
    iterate_inner,
    load_or_convert,
)
from secondlook.onnx_export.graph import LOWEST_OPSET, PREFIX, Graph, Tensor

if TYPE_CHECKING:
    import onnx

RESERVED_NAMES = (INPUT_NAME, "label", *FileOutputs._fields)
"""Input and outputs of an exported file, which tensors of a network must not be called."""

BATCH_NAME = "looks"
"""Name of the number of images that a network gets: those of the batch, times the views that are made of each."""

LOWEST_IR_VERSION = 8
"""The version of the file format that came with the lowest opset; before version 4, weights are inputs as well."""

CHECKED_IMAGES = 3
"""Random images on which a network is compared with its classifier: more than torch was shown, and not 1."""

RELATIVE_TOLERANCE = 1e-3
"""Largest difference between the outputs of a network and of its classifier, relative to these."""
TOLERANCES: dict[Output, float] = {"logits": 1e-3, "probabilities": 1e-5}
"""The same absolutely: most probabilities of many classes are so small that a larger one would allow any of them."""


@dataclass(frozen=True)
class Network:
    """A classifier as an ONNX model, ready to be embedded."""

    model: "onnx.ModelProto"
    """Has one input, one output and a dynamic batch axis, contains its weights, and uses no functions of its own."""
    takes_features: bool
    """Whether the input is [n, H * W * C], flattened from NHWC, instead of images."""
    n_classes: int
    """Number of classes; the output is [n, n_classes]."""
    size: int
    """Bytes of the classifier as a file of its own."""


def make_networks(members: Sequence[Classifier], image_shape: tuple[int, int, int]) -> list[Network]:
    """Convert the members of an ensemble, or a single classifier, to ONNX models, all with the same opset.

    `image_shape` is height, width and channels at input size.
    """
    import_extra("onnx", feature="export to ONNX", extra="export")
    check_sizes(members)
    # Not pixels: thresholds of trees are pixels as well, and a rounding error would decide on which side these are.
    images = np.random.default_rng(0).random((CHECKED_IMAGES, *image_shape), dtype=np.float32)
    models = [_simplify(load_or_convert(member, images), member.name) for member in members]
    opset = max(LOWEST_OPSET, *(get_versions(model)[""] for model in models))
    models = [_convert_opset(model, opset, member.name) for model, member in zip(models, members, strict=True)]
    _check_versions(models, members)
    return [_make_network(model, member, images) for model, member in zip(models, members, strict=True)]


def embed_network(graph: Graph, network: Network, inputs: Tensor, prefix: str = "") -> Tensor:
    """Add the nodes and weights of a network to a graph, and return its output, float32 [n, n_classes].

    `inputs` are normalized images in the layout of the classifier, or features. `prefix` is put before the names of its
    tensors to tell the members of an ensemble apart; by default they keep their names, so that the file stays small.
    """
    embedded = _add_prefix(network.model.graph, prefix) if prefix else network.model.graph
    (network_input,), (output,) = embedded.input, embedded.output
    given = inputs.cast(_get_dtype(network_input))
    _name_batch(graph, given, network_input)
    graph.rename(given, network_input.name)
    graph.nodes.extend(embedded.node)
    graph.initializers.extend(embedded.initializer)
    return graph.tensor(output.name, _get_dtype(output)).cast(np.float32)


def _name_batch(graph: Graph, inputs: Tensor, network_input: "onnx.ValueInfoProto") -> None:
    """Give the number of images in the input of a network a name.

    Without it, ONNX Runtime cannot tell that tensors inside of the network have the same size, and copies them where it
    would add to them in place: a ResNet-50 takes 4 % longer. The name must be at the tensor that becomes the input,
    since ONNX Runtime replaces the input by it.
    """
    from onnx import ValueInfoProto

    if not any(inputs.name in node.output for node in graph.nodes):  # an input, or of an outer graph
        return
    described = ValueInfoProto()
    described.CopyFrom(network_input)
    described.name = inputs.name
    for place, size in enumerate(described.type.tensor_type.shape.dim):
        if place == 0:
            size.dim_param = BATCH_NAME
        elif not size.HasField("dim_value"):
            size.Clear()
    graph.described[inputs.name] = described


def _add_prefix(graph: "onnx.GraphProto", prefix: str) -> "onnx.GraphProto":
    """Return a copy with a prefix before all names. `onnx.compose` misses those in branches of branches."""
    from onnx import GraphProto

    copied = GraphProto()
    copied.CopyFrom(graph)
    _rename_tensors(copied, lambda name: f"{prefix}{name}")
    for each in iterate_graphs(copied):
        for node in each.node:
            node.name = f"{prefix}{node.name}" if node.name else ""
    return copied


def _get_dtype(value: "onnx.ValueInfoProto") -> "np.dtype[Any]":
    from onnx import helper

    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return dtype


# --- Simplification ---


def _simplify(model: "onnx.ModelProto", name: str) -> "onnx.ModelProto":
    """Return a model with its last output only, and without functions, descriptions, and what is not used."""
    from onnx import inliner, shape_inference

    model.ir_version = max(model.ir_version, LOWEST_IR_VERSION)
    if model.functions:
        with describe_failures(f"cannot inline the functions of classifier {name!r}", "export it without functions."):
            # Functions of another opset are converted, for which the types of all tensors must be known.
            model = inliner.inline_local_functions(shape_inference.infer_shapes(model), convert_version=True)
    graph = model.graph
    if any(each.sparse_initializer for each in iterate_graphs(graph)):
        raise ExportError(f"classifier {name!r} has sparse weights, which are not supported; save them as dense ones.")
    weights = {tensor.name for tensor in graph.initializer}
    _keep(graph.input, [value.name not in weights for value in graph.input])
    del graph.output[:-1]
    _remove_unused(graph)
    _remove_descriptions(graph)
    _rename_tensors(graph, lambda tensor: _choose_name(tensor, name))
    _set_versions(model)
    return model


def _keep(items: MutableSequence[Any], is_kept: Sequence[bool]) -> None:
    for index in reversed(range(len(items))):
        if not is_kept[index]:
            del items[index]


def _remove_unused(graph: "onnx.GraphProto") -> None:
    """Remove what the output does not need: ONNX Runtime would compute it."""
    needed = {value.name for value in graph.output}
    is_kept = []
    for node in reversed(graph.node):
        is_kept.append(not needed.isdisjoint(node.output))
        if is_kept[-1]:
            needed.update(node.input)
            needed.update(name for inner in iterate_inner(node) for each in inner.node for name in each.input)
            needed.discard("")  # stands for an optional input or output that is not used
    _keep(graph.node, is_kept[::-1])
    _keep(graph.initializer, [tensor.name in needed for tensor in graph.initializer])


def _remove_descriptions(graph: "onnx.GraphProto") -> None:
    """Remove shapes, which may be those of one batch size, and stack traces with the paths of someone's machine."""
    for each in iterate_graphs(graph):
        each.ClearField("value_info")
        for item in (each, *each.node, *each.initializer):
            item.ClearField("doc_string")
            item.ClearField("metadata_props")


def _rename_tensors(graph: "onnx.GraphProto", choose_name: Callable[[str], str]) -> None:
    """Rename all tensors of a graph, and of those inside of it."""
    for each in iterate_graphs(graph):
        for value in (*each.input, *each.output, *each.initializer):
            value.name = choose_name(value.name)
        for node in each.node:
            for names in (node.input, node.output):
                # An empty one stands for an optional input or output that is not used.
                names[:] = [name and choose_name(name) for name in names]


def _choose_name(name: str, classifier: str) -> str:
    """Return another name for a tensor that is called like an input or output of the exported file."""
    if name.startswith(PREFIX):
        raise ExportError(
            f"classifier {classifier!r} has a tensor {name!r}, so it is itself an exported policy; pass the classifier "
            "that the policy was made for."
        )
    return f"{PREFIX}network/{name}" if name in RESERVED_NAMES else name


def _set_versions(model: "onnx.ModelProto") -> None:
    """Import each set of operators once, and only those in use."""
    from onnx import helper

    used = {"", *(node.domain for graph in iterate_graphs(model.graph) for node in graph.node)}
    versions = {domain: version for domain, version in get_versions(model).items() if domain in used}
    model.ClearField("opset_import")
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())


def get_versions(model: "onnx.ModelProto") -> dict[str, int]:
    """Return the version of each set of operators; '' are those of ONNX itself."""
    stated = {"" if each.domain == "ai.onnx" else each.domain: each.version for each in model.opset_import}
    return {"": LOWEST_OPSET, **stated}


def _convert_opset(model: "onnx.ModelProto", opset: int, name: str) -> "onnx.ModelProto":
    from onnx import checker, version_converter

    own = get_versions(model)[""]
    problem = f"cannot convert classifier {name!r} from opset {own} to {opset}"
    with describe_failures(problem, f"export it again with opset {opset}."):
        converted = model if own == opset else version_converter.convert_version(model, opset)
        _remove_descriptions(converted.graph)
        checker.check_model(converted)
    return converted


# --- Checks ---


def _check_versions(models: "Sequence[onnx.ModelProto]", members: Sequence[Classifier]) -> None:
    """Raise if members use different versions of operators outside of ONNX itself, which cannot be converted."""
    versions = [get_versions(model) for model in models]
    for found, member in zip(versions, members, strict=True):
        for domain, version in found.items():
            highest = max(each.get(domain, 0) for each in versions)
            if version != highest:
                raise ExportError(
                    f"member {member.name!r} has operators of {domain!r} in version {version}, and another member in "
                    f"version {highest}; export all members with the same version."
                )


def _make_network(model: "onnx.ModelProto", classifier: Classifier, images: Array) -> Network:
    size = compute_file_size(classifier) if isinstance(classifier, OnnxClassifier) else model.ByteSize()
    expected = classifier(images)
    network = Network(model, isinstance(classifier, SklearnClassifier), expected.shape[1], size)
    _check_outputs(network, classifier, images, expected)
    return network


def _check_outputs(network: Network, classifier: Classifier, images: Array, expected: Array) -> None:
    """Raise if a network has other outputs than its classifier."""
    problem = f"classifier {classifier.name!r} fails in ONNX Runtime on a batch of {len(images)} images"
    with describe_failures(problem, "check that its batch axis is dynamic, and export it again."):
        found = _run(network, classifier.preprocessing.normalize(images))
    atol = TOLERANCES[classifier.output]
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=RELATIVE_TOLERANCE, atol=atol):
        raise ExportError(
            f"classifier {classifier.name!r} has other outputs as an ONNX model than by itself, so its conversion to "
            "ONNX is not faithful; convert it yourself, and calibrate a policy for 'onnx:FILE'."
        )


def _run(network: Network, inputs: Array) -> Array:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    content = network.model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    features = inputs.reshape(len(inputs), -1) if network.takes_features else inputs
    features = features.astype(_get_dtype(network.model.graph.input[0]))
    outputs: Array = session.run(None, {session.get_inputs()[0].name: features})[0]
    return outputs
