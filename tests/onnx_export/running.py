"""Building and running small graphs in tests."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from secondlook.arrays import Array
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor, describe_value


def build_model(
    add: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Mapping[str, Array],
    opset: int = LOWEST_OPSET,
    sizes: Mapping[str, Any] = MappingProxyType({}),
    imports: Sequence[onnx.OperatorSetIdProto] = (),
) -> onnx.ModelProto:
    """Build and check the model of `add(graph, *tensors)`; only the first axis is dynamic by default."""
    graph = Graph(opset)
    added = add(graph, *(Tensor(graph, name, array.dtype) for name, array in inputs.items()))
    tensors = [added] if isinstance(added, Tensor) else list(added)
    results = [graph.rename(tensor, f"output{number}") for number, tensor in enumerate(tensors)]
    described = [
        describe_value(name, array.dtype, sizes.get(name, ["batch", *array.shape[1:]]))
        for name, array in inputs.items()
    ]
    types = [helper.np_dtype_to_tensor_dtype(one.dtype) for one in results]
    outputs = [helper.make_tensor_value_info(one.name, kind, None) for one, kind in zip(results, types, strict=True)]
    model = helper.make_model(
        graph.build("test", described, outputs), opset_imports=imports or [helper.make_opsetid("", opset)], ir_version=9
    )
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model


def run_model(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Run a model with ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(one) for one in session.run(None, dict(inputs))]


def run_graph(add: Callable[..., Any], *inputs: Array, opset: int = LOWEST_OPSET) -> list[Array]:
    """Run the graph of `add(graph, *tensors)` on arrays."""
    named = {f"input{number}": array for number, array in enumerate(inputs)}
    return run_model(build_model(add, named, opset), named)
