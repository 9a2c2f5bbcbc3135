"""Networks read from ONNX files compute what ONNX Runtime computes."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from measurement import CIFAR10, CIFAR10_MEAN, CIFAR10_STD
from networks import OPERATORS, load_network, make_wide_resnet

WIDE_RESNET = CIFAR10.parent / "cifar10-jpeg" / "wrn16-2-seed0.onnx"


def run_onnx(path: Path, images: np.ndarray) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def run_torch(network: Any, images: np.ndarray) -> Any:
    with torch.inference_mode():
        return network(torch.from_numpy(images)).numpy()


def save_model(path: Path, nodes: list[Any], sizes: tuple[list[Any], list[Any]], constants: list[Any]) -> Path:
    """Write an ONNX file with an input x and an output y of so many values."""
    make = onnx.helper.make_tensor_value_info
    values = [make(name, onnx.TensorProto.FLOAT, ["batch", *size]) for name, size in zip("xy", sizes, strict=True)]
    graph = onnx.helper.make_graph(nodes, "tiny", values[:1], values[1:], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    """An ONNX file with every operator, odd sizes, and every option that `networks` reads away from its default."""
    rng = np.random.default_rng(0)
    constants = {
        "weight": rng.normal(size=(4, 3, 3, 5)),
        "bias": rng.normal(size=4),
        "grouped": rng.normal(size=(8, 2, 3, 3)),
        "scale": rng.normal(size=8),
        "offset": rng.normal(size=8),
        "mean": rng.normal(size=8),
        "var": rng.uniform(0.5, 2, size=8),
        "pads": np.array([0, 1, 2, 3, 0, 4, 0, 1]),
        "no_pads": np.zeros(8, np.int64),
        "starts": np.array([1, 0]),
        "ends": np.array([np.iinfo(np.int64).max, 7]),
        "axes": np.array([3, 2]),
        "steps": np.array([2, 1]),
        "kept": np.array([2]),
        "dropped": np.array([2, 3]),
        "out_weight": rng.normal(size=(13, 6)),
        "out_bias": rng.normal(size=6),
    }
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "weight", "bias"], ["a"], pads=[1, 2, 1, 2], strides=[1, 2], kernel_shape=[3, 5]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "grouped"], ["c"], group=2, dilations=[2, 1]),
        node("BatchNormalization", ["c", "scale", "offset", "mean", "var"], ["d"], epsilon=0.5),
        node("Pad", ["d", "no_pads"], ["e"]),
        node("Add", ["d", "e"], ["f"]),
        node("Pad", ["f", "pads"], ["g"], mode="constant"),
        node("Slice", ["g", "starts", "ends", "axes", "steps"], ["h"]),
        node("ReduceMean", ["h", "kept"], ["i"], keepdims=1),
        node("ReduceMean", ["i", "dropped"], ["j"], keepdims=0),
        node("Gemm", ["j", "out_weight", "out_bias"], ["y"]),
    ]
    stored = [
        onnx.numpy_helper.from_array(value if value.dtype == np.int64 else value.astype(np.float32), name)
        for name, value in constants.items()
    ]
    return save_model(tmp_path / "tiny.onnx", nodes, ([3, 11, 12], [6]), stored)


IMAGES = np.random.default_rng(1).normal(size=(5, 3, 11, 12)).astype(np.float32)


def test_every_operator_computes_what_onnx_runtime_computes_wherever_it_is_moved(tiny_file: Path) -> None:
    assert {node.op_type for node in onnx.load(str(tiny_file)).graph.node} == set(OPERATORS)
    unknown = [onnx.helper.make_node("Sigmoid", ["x"], ["y"])]
    with pytest.raises(ValueError, match="Sigmoid"):
        load_network(save_model(tiny_file.with_name("unknown.onnx"), unknown, ([3], [3]), []))
    network: Any = load_network(tiny_file)
    assert not any(module.training for module in network.modules())
    np.testing.assert_allclose(run_torch(network, IMAGES), run_onnx(tiny_file, IMAGES), atol=1e-4)
    moved = copy.deepcopy(network).to(dtype=torch.float64, memory_format=torch.channels_last)
    assert {value.dtype for value in moved.state_dict().values() if value.is_floating_point()} == {torch.float64}
    weights = [value for value in moved.state_dict().values() if value.ndim == 4]
    assert weights
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in weights)
    outputs = run_torch(moved, IMAGES.astype(np.float64))
    np.testing.assert_allclose(outputs, run_torch(network, IMAGES), atol=1e-4)


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.parametrize("make", [load_network, lambda _: make_wide_resnet(10, 1)], ids=["onnx", "wide_resnet"])
def test_networks_are_traced_whole(make: Any, tiny_file: Path) -> None:
    network = make(tiny_file)
    traced = torch.compile(network, backend="eager", fullgraph=True)
    np.testing.assert_allclose(run_torch(traced, IMAGES), run_torch(network, IMAGES), atol=1e-5)


@pytest.mark.parametrize("path", [CIFAR10 / "resnet20.onnx", WIDE_RESNET], ids=lambda path: path.stem)
def test_cifar10_files_compute_what_onnx_runtime_computes(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    with np.load(CIFAR10 / "test.npz") as archive:
        pixels = archive["images"][:32]
    images = ((pixels / 255 - CIFAR10_MEAN) / CIFAR10_STD).astype(np.float32).transpose(0, 3, 1, 2).copy()
    np.testing.assert_allclose(run_torch(load_network(path), images), run_onnx(path, images), atol=1e-4)


def test_wide_resnet_is_that_of_its_seed_with_the_weights_of_the_file() -> None:
    first, same, other = (make_wide_resnet(10, 1, 7, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["conv.weight"], other["conv.weight"])
    assert first["linear.weight"].shape == (7, 64)
    if not WIDE_RESNET.is_file():
        pytest.skip(f"{WIDE_RESNET} is missing")
    networks = make_wide_resnet(), load_network(WIDE_RESNET)
    shapes = [sorted(tuple(value.shape) for value in one.state_dict().values()) for one in networks]
    strides = [[each.stride for each in one.modules() if isinstance(each, torch.nn.Conv2d)] for one in networks]
    assert (shapes[0], strides[0]) == (shapes[1], strides[1])
