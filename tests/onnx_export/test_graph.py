"""`Graph`: equal constants and operators are stored once, and different ones are never merged."""

from typing import Any

import numpy as np

from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor, describe_value
from tests.onnx_export.running import run_graph


def build_branch(graph: Graph, images: Tensor, factor: float) -> Any:
    inner = Graph(graph.opset, graph)
    result = inner.use(images) * factor
    return inner.build("branch", [], [describe_value(result.name, np.float32, [None, 2])])


def test_constants_of_inner_graphs_are_stored_once_in_the_outermost() -> None:
    images = np.arange(6, dtype=np.float32).reshape(3, 2)
    outer: list[Graph] = []

    def add(graph: Graph, tensor: Tensor) -> Tensor:
        outer.append(graph)
        branches = {"then_branch": build_branch(graph, tensor, 3.0), "else_branch": build_branch(graph, tensor, 3.0)}
        assert not any(branch.initializer for branch in branches.values())
        return graph.op("If", np.array(True), dtype=np.float32, **branches) + 3.0

    np.testing.assert_array_equal(run_graph(add, images)[0], images * 3 + 3)
    assert len(outer[0].initializers) == 2  # the condition, and 3.0


def test_equal_operators_are_shared_except_with_inner_graphs() -> None:
    graph = Graph(LOWEST_OPSET)
    images = Tensor(graph, "images", np.float32)
    first = graph.op("ReduceMean", images, np.array([1]), keepdims=0)
    assert graph.op("ReduceMean", images, np.array([1]), keepdims=0) is first
    assert graph.op("ReduceMean", images, np.array([1]), keepdims=1) is not first
    assert graph.op("ReduceMean", images, np.array([2]), keepdims=0) is not first
    values = np.zeros(3000, dtype=np.float32)
    changed = values.copy()
    changed[1500] = 1
    assert repr(values) == repr(changed), "NumPy shows the ends only"
    long, other, again = (graph.op("Constant", value_floats=one) for one in (values, changed, values))
    assert long is again
    assert long is not other
    assert len(graph.nodes) == 5
    condition, branches = np.array(True), ("then_branch", "else_branch")
    built = [build_branch(graph, images, factor) for factor in (1.0, 2.0, 2.0)]
    results = [graph.op("If", condition, **dict.fromkeys(branches, branch)) for branch in built]
    assert len({result.name for result in results}) == 3
