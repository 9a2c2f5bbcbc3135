"""`Graph`: a builder of ONNX graphs, and `Tensor`, a value in a graph with Python operators.

`onnxscript.GraphBuilder` (0.7) cannot replace them: it does not take arrays as constants, does not share equal
operators, reuses names in inner graphs, and its values have no `**`, `<` or `>=`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import helper, numpy_helper

from secondlook.extension import ExportError, SecondLookError, shorten_reason

PREFIX = "sl:"
"""Prefix of our tensor names, which keeps them apart from the classifier; short, since there are many."""

LOWEST_OPSET = 18
"""The first opset with antialiasing in `Resize` and axes in `Pad`."""

_RESULT_TYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(
        ["And", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not", "Or"], np.bool_
    ),
    **dict.fromkeys(["ArgMax", "NonZero", "Shape", "Size"], np.int64),
}
"""Operators with a result type that differs from their first input."""


Operator = Callable[["Tensor", Any], "Tensor"]
Values = Sequence[onnx.ValueInfoProto]


def _operator(kind: str) -> Operator:
    return lambda self, other: self.graph.op(kind, self, other)


def _operators(kind: str) -> tuple[Operator, Operator]:
    """Return an operator, and the same with the tensor on the right."""
    return _operator(kind), lambda self, other: self.graph.op(kind, other, self)


class Tensor:
    """A value in a graph. Python operators add nodes; numbers and arrays become constants of the same type."""

    __array_ufunc__ = None  # `array * tensor` uses __rmul__ of this class

    def __init__(self, graph: "Graph", name: str, dtype: DTypeLike) -> None:
        self.graph = graph
        self.name = name
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    def cast(self, dtype: DTypeLike) -> "Tensor":
        """Convert the values to another type."""
        wanted: np.dtype[Any] = np.dtype(dtype)
        if wanted == self.dtype:
            return self
        return self.graph.op("Cast", self, dtype=wanted, to=helper.np_dtype_to_tensor_dtype(wanted))

    def reduce(self, kind: str, *axes: int, keepdims: int = 0) -> "Tensor":
        """Return the 'Sum', 'Mean' or 'Max' over axes."""
        return self.graph.op(f"Reduce{kind}", self, axes, keepdims=keepdims)

    __add__, __radd__ = _operators("Add")
    __sub__, __rsub__ = _operators("Sub")
    __mul__, __rmul__ = _operators("Mul")
    __truediv__, __rtruediv__ = _operators("Div")
    __pow__ = _operator("Pow")
    __lt__, __ge__ = _operator("Less"), _operator("GreaterOrEqual")
    __and__ = _operator("And")

    def __neg__(self) -> "Tensor":
        return self.graph.op("Neg", self)


class Graph:
    """Nodes and constants of a graph of an opset; names are unique, including its inner graphs.

    `outer` is the graph that contains this one as a branch or as the body of a loop. Constants of inner graphs belong
    to the outermost graph, so that each is stored once.
    """

    def __init__(self, opset: int, outer: "Graph | None" = None) -> None:
        self.opset = opset
        self.outer = outer
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.described: dict[str, onnx.ValueInfoProto] = {}
        """Shapes of tensors of this graph that shape inference cannot find, by name."""
        self._constants: dict[tuple[object, ...], Tensor] = {}
        self._known: dict[tuple[bytes, int], list[Tensor]] = {}
        """Results by operator and number of results, so that equal operators are shared."""
        self._numbers: Iterator[int] = count() if outer is None else outer._numbers

    def use(self, outer: Tensor) -> Tensor:
        """Return a tensor of an outer graph for use in this one."""
        return Tensor(self, outer.name, outer.dtype)

    def constant(self, value: Any, dtype: DTypeLike | None = None) -> Tensor:
        """Return a constant; equal ones are stored once."""
        if self.outer is not None:
            return self.use(self.outer.constant(value, dtype))
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.make_name()
            self.initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = Tensor(self, name, array.dtype)
        return self._constants[key]

    def op(self, kind: str, *inputs: Any, dtype: DTypeLike | None = None, **attributes: Any) -> Tensor:
        """Add an ONNX operator, such as 'Floor', with its attributes, and return its result.

        Inputs are tensors, numbers, arrays, or None for an unused optional input. Single numbers and float arrays
        become constants of the type of the first tensor; integer lists and arrays become int64. The result has the
        type of the first tensor, or boolean or int64 if the operator implies it.
        """
        (result,) = self.op_with_outputs(kind, *inputs, dtypes=[dtype], **attributes)
        return result

    def op_with_outputs(self, kind: str, *inputs: Any, dtypes: Sequence[Any], **attributes: Any) -> list[Tensor]:
        """Add an operator with one result per type; None means the type as in `op`."""
        first = next((one for one in inputs if isinstance(one, Tensor)), None)
        node = helper.make_node(kind, [self._name_input(one, first) for one in inputs], [], **attributes)
        # An inner graph may contain the weights of a network, which are too large for a key.
        has_inner_graph = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        key = None if has_inner_graph else (node.SerializeToString(deterministic=True), len(dtypes))
        if key is not None and key in self._known:
            return self._known[key]
        implied = _RESULT_TYPES.get(kind, first.dtype if first is not None else np.float32)
        results = [Tensor(self, self.make_name(), implied if dtype is None else dtype) for dtype in dtypes]
        node.output.extend(result.name for result in results)
        self.nodes.append(node)
        if key is not None:
            self._known[key] = results
        return results

    def rename(self, tensor: Tensor, name: str) -> Tensor:
        """Return the same values under a given name, such as that of an output."""
        self.nodes.append(helper.make_node("Identity", [tensor.name], [name]))
        return Tensor(self, name, tensor.dtype)

    def make_name(self) -> str:
        """Return an unused name."""
        return f"{PREFIX}{next(self._numbers):x}"

    def build(self, name: str, inputs: Values, outputs: Values) -> onnx.GraphProto:
        """Return the finished graph."""
        described = list(self.described.values())
        return helper.make_graph(self.nodes, name, inputs, outputs, self.initializers, value_info=described)

    def _name_input(self, value: Any, first: Tensor | None) -> str:
        if value is None:
            return ""
        if isinstance(value, Tensor):
            return value.name
        array = np.asarray(value)
        if array.dtype.kind == "f" or (array.ndim == 0 and array.dtype.kind != "b"):
            array = array.astype(np.float32 if first is None else first.dtype)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64)
        return self.constant(array).name


def describe_value(name: str, dtype: DTypeLike, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    """Return the description of an input or output; dynamic sizes have a name, or None."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))


@contextmanager
def describe_failures(problem: str, repair: str) -> Iterator[None]:
    """Raise all exceptions of a library as an `ExportError`: problem, the first cause, repair."""
    try:
        yield
    except SecondLookError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(f"{problem}: {shorten_reason(cause)}; {repair}") from error
