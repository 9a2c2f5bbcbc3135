"""Small CIFAR-10 networks as torch modules: read from ONNX files, or with random weights."""

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Operation = nn.Module | tuple[Callable[..., Any], tuple[Any, ...]]
"""Computes a node from its tensors: a module with weights, or a function and its further arguments."""


def load_network(path: str | Path) -> nn.Module:
    """Load an ONNX classifier with one input and one output as a torch module in eval mode.

    Only the operators in `OPERATORS` are supported. The forward of the module is generated code like that of a module
    written by hand: `torch.compile` traces it, and a tensor is freed after its last use.
    """
    import onnx

    graph = onnx.load(str(path)).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (images,) = (value.name for value in graph.input if value.name not in constants)
    (logits,) = (value.name for value in graph.output)
    layers, code = nn.Module(), torch.fx.Graph()
    tensors = {images: code.placeholder("images")}
    for index, node in enumerate(graph.node):
        if node.op_type not in OPERATORS:
            raise ValueError(f"{path}: unknown operator {node.op_type!r}; known operators: {', '.join(OPERATORS)}")
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        read = OPERATORS[node.op_type]
        operation = read(*(constants[name] for name in node.input if name in constants), **attributes)
        inputs = tuple(tensors[name] for name in node.input if name in tensors)
        if isinstance(operation, nn.Module):
            name = f"{node.op_type.lower()}_{index}"
            layers.add_module(name, operation)
            tensors[node.output[0]] = code.call_module(name, inputs)
        else:
            function, arguments = operation
            tensors[node.output[0]] = code.call_function(function, (*inputs, *arguments))
    code.output(tensors[logits])
    return torch.fx.GraphModule(layers, code, class_name="OnnxNetwork").eval()


# --- ONNX operators: constant inputs and attributes -> operation ---


def _read_conv(
    weight: np.ndarray,
    *bias: np.ndarray,
    pads: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    auto_pad: bytes = b"NOTSET",
    **_: object,
) -> Operation:
    if auto_pad != b"NOTSET" or pads[:2] != pads[2:]:
        raise ValueError(f"Conv with pads {pads} and auto_pad {auto_pad!r}; expected the same pads on both sides")
    n_outputs, n_inputs, *size = weight.shape
    options: dict[str, Any] = {"stride": tuple(strides), "padding": tuple(pads[:2]), "dilation": tuple(dilations)}
    module = nn.Conv2d(n_inputs * group, n_outputs, tuple(size), groups=group, bias=bool(bias), **options)
    return _set_weights(module, ("weight", "bias"), (weight, *bias))


def _read_batch_normalization(*weights: np.ndarray, epsilon: float = 1e-5, **_: object) -> Operation:
    module = nn.BatchNorm2d(len(weights[0]), eps=epsilon)
    return _set_weights(module, ("weight", "bias", "running_mean", "running_var"), weights)


def _read_gemm(weight: np.ndarray, bias: np.ndarray, **attributes: float) -> Operation:
    if attributes.get("alpha", 1) != 1 or attributes.get("beta", 1) != 1 or attributes.get("transA", 0):
        raise ValueError(f"Gemm with {attributes}; expected alpha and beta 1, and transA 0")
    weight = weight if attributes.get("transB", 0) else weight.T
    return _set_weights(nn.Linear(weight.shape[1], weight.shape[0]), ("weight", "bias"), (weight, bias))


def _set_weights(module: nn.Module, names: Sequence[str], weights: Sequence[np.ndarray]) -> nn.Module:
    state = {name: torch.from_numpy(weight.copy()) for name, weight in zip(names, weights, strict=False)}
    module.load_state_dict(state, strict=False)
    return module


def _read_pad(pads: np.ndarray, *, mode: bytes = b"constant") -> Operation:
    if mode != b"constant":
        raise ValueError(f"Pad with mode {mode!r}; expected constant")
    # ONNX lists the pads before every axis, then those after it; torch lists both of the last axis first.
    pairs = pads.reshape(2, -1).T[::-1]
    # The files pad the shortcut of every block, mostly by zero, which torch would copy.
    return (nn.functional.pad, (pairs.ravel().tolist(),)) if pads.any() else nn.Identity()


def _read_slice(starts: np.ndarray, ends: np.ndarray, axes: np.ndarray, steps: np.ndarray) -> Operation:
    slices = [slice(None)] * (int(axes.max()) + 1)
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        slices[axis] = slice(start, end, step)
    return operator.getitem, (tuple(slices),)


def _read_reduce_mean(axes: np.ndarray, *, keepdims: int = 1, **_: object) -> Operation:
    return torch.mean, (axes.tolist(), bool(keepdims))


OPERATORS: dict[str, Callable[..., Operation]] = {
    "Conv": _read_conv,
    "BatchNormalization": _read_batch_normalization,
    "Gemm": _read_gemm,
    "Pad": _read_pad,
    "Slice": _read_slice,
    "ReduceMean": _read_reduce_mean,
    "Relu": lambda: (torch.relu, ()),
    "Add": lambda: (torch.add, ()),
}


# --- Random weights ---


class WideResNet(nn.Module):
    """A wide residual network for small images, with batch normalizations folded into the convolutions before them.

    An ONNX file of the network has the same form; one normalization remains after each sum.
    """

    def __init__(self, depth: int, width: int, n_classes: int) -> None:
        super().__init__()
        n_blocks = (depth - 4) // 6
        channels = [16 * width * 2**stage for stage in range(3) for _ in range(n_blocks)]
        strides = [2 if stage and not block else 1 for stage in range(3) for block in range(n_blocks)]
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(
            *(
                WideBlock(before, after, stride, is_first=index == 0)
                for index, (before, after, stride) in enumerate(zip([16, *channels], channels, strides, strict=False))
            )
        )
        self.norm = nn.BatchNorm2d(channels[-1])
        self.linear = nn.Linear(channels[-1], n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits. [N, 3, H, W] -> [N, n_classes]"""
        maps = self.norm(self.blocks(self.conv(images)))
        logits: Tensor = self.linear(torch.relu(maps).mean((2, 3)))
        return logits


class WideBlock(nn.Module):
    """Two convolutions and a shortcut; the normalization of the first block is folded into the first convolution."""

    def __init__(self, before: int, after: int, stride: int, *, is_first: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if is_first else nn.BatchNorm2d(before)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else None
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps. [N, before, H, W] -> [N, after, H / stride, W / stride]"""
        active = torch.relu(self.norm(maps))
        shortcut = maps if self.shortcut is None else self.shortcut(active)
        added: Tensor = self.conv2(torch.relu(self.conv1(active))) + shortcut
        return added


def make_wide_resnet(depth: int = 16, width: int = 2, n_classes: int = 10, seed: int = 0) -> nn.Module:
    """Return a wide residual network with random weights in eval mode: speed does not depend on the weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return WideResNet(depth, width, n_classes).eval()
