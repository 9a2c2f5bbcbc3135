"""An exported file written by hand, and what an attacker or an accident could make of it.

It takes images uint8 [batch, 4, 4, 3], looks once, and predicts 1 (bright) with the probability mean / 255, else 0.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_node

from secondlook.classifiers import OnnxFile, load_classifier
from secondlook.decisions import ExportedFile, compile_policy, load_policy
from secondlook.policies import Policy
from tests.policy_maker import attach

RECORD: dict[str, Any] = {
    "version": 1,
    "secondlook": "0.1.0",
    "pixels": "uint8",
    "image_shape": [4, 4, 3],
    "members": 1,
    "outputs": ["probabilities"],
    "classes": 2,
    "adaptive": False,
    "mismatch": None,
}
COLORS = np.random.default_rng(3).integers(0, 256, (9, 1, 1, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
"""Images of one color each. uint8 [9, 4, 4, 3]"""
OUTPUTS: dict[str, tuple[int, list[Any]]] = {
    "label": (TensorProto.INT64, ["batch"]),
    "confidence": (TensorProto.FLOAT, ["batch"]),
    "accept": (TensorProto.BOOL, ["batch"]),
    "probabilities": (TensorProto.FLOAT, ["batch", 2]),
    "looks": (TensorProto.INT64, ["batch"]),
    "view_outputs": (TensorProto.FLOAT, ["batch", 1, 2]),
}


def make_bright_policy(threshold: float = 0.6, views: Sequence[str] = ("identity",), **classifier: Any) -> Policy:
    """Return the policy of the file; what is said about its classifier need not be valid."""
    loaded = load_classifier(_classify, name="bright", output="probabilities")
    policy = attach(Policy(threshold=threshold, method="msr"), classifier=loaded, views=("identity",), made="then")
    content = {**policy.model_dump(exclude={"checksum", "version"}), "views": tuple(views)}
    content["classifier"] = {**content["classifier"], **classifier}
    return Policy.model_validate(content)


def _classify(images: Any) -> Any:
    bright = images.mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - bright, bright], axis=1)


NODES = """
values = Cast<to = 11>(images)
mean = ReduceMean<keepdims = 0>(values, pixel_axes)
bright = Div(mean, white)
dark = Sub(one, bright)
bright_column = Unsqueeze(bright, last_axis)
dark_column = Unsqueeze(dark, last_axis)
both = Concat<axis = 1>(dark_column, bright_column)
exact = ReduceMax<keepdims = 0>(both, last_axis)
label = ArgMax<axis = 1, keepdims = 0>(both)
confidence = Cast<to = 1>(exact)
accept = GreaterOrEqual(exact, threshold)
probabilities = Cast<to = 1>(both)
count = Shape(mean)
looks = Expand(single, count)
view_outputs = Unsqueeze(probabilities, last_axis)
"""
"""The operators of the file; a cast to 1 is one to float32, and to 11 to float64."""


def open_file(path: Path) -> ExportedFile:
    plan = compile_policy(load_policy(path))
    assert isinstance(plan, ExportedFile)
    return plan


def write_decider(
    path: Path,
    policy: Policy | None = None,
    *,
    nodes: str = "",
    outputs: Mapping[str, tuple[int, list[Any]] | None] | None = None,
    constants: Mapping[str, Any] | None = None,
    record: Mapping[str, object] | None = None,
    metadata: Mapping[str, str | None] | None = None,
) -> Path:
    """Write the file. The arguments add or replace lines of `NODES`, outputs and metadata; None omits."""
    policy = policy or make_bright_policy()
    initializers = {
        "pixel_axes": np.array([1, 2, 3]),
        "last_axis": np.array([1]),
        "white": np.array(255.0),
        "one": np.array(1.0),
        "threshold": np.array(policy.threshold),
        "single": np.array([1]),
        **(constants or {}),
    }
    described = {**OUTPUTS, **(outputs or {})}
    graph = helper.make_graph(
        _sort({line.split()[0]: parse_node(line) for line in f"{NODES}{nodes}".splitlines() if line}),
        "decide",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", 4, 4, 3])],
        [helper.make_tensor_value_info(name, *form) for name, form in described.items() if form is not None],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    stored = {
        "secondlook.policy": policy.model_dump_json(),
        "secondlook.export": json.dumps({**RECORD, **(record or {})}),
        **(metadata or {}),
    }
    helper.set_model_props(model, {key: value for key, value in stored.items() if value is not None})
    path.write_bytes(OnnxFile.seal(model.SerializeToString()))
    return path


def _sort(nodes: Mapping[str, NodeProto]) -> list[NodeProto]:
    """Return nodes such that each comes after those whose results it uses, as far as that is possible."""
    waiting, ordered = dict(nodes), []
    while ready := [name for name, node in waiting.items() if not set(node.input) & waiting.keys()]:
        ordered += [waiting.pop(name) for name in ready]
    return [*ordered, *waiting.values()]
