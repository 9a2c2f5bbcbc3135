"""Small classifiers and policies to export."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.policies import Policy
from secondlook.predictions import Execution, Predictions, collect
from tests.policy_maker import attach

VIEWS = "identity hflip shift:1,0 shift:-1,2 rotate:5 gamma:0.8 zoom:1.1+contrast:1.2"
N_CLASSES = 4
MEAN = Policy(threshold=0.5, method="mean")


def write_network(
    path: Path, *, side: int | None = 16, channels: int = 3, seed: int = 0, n_classes: int = N_CLASSES
) -> Path:
    """Write a small convolutional network whose predictions depend on position, color and contrast."""
    generator = np.random.default_rng(seed)
    first = generator.normal(0, 0.6, (8, channels, 3, 3)).astype(np.float32)
    last = generator.normal(0, 0.8, (8 * 16, n_classes)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "first"], ["edges"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["edges"], ["active"]),
        helper.make_node("AveragePool", ["active"], ["pooled"], kernel_shape=[4, 4], strides=[4, 4])
        if side == 16
        else helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("MatMul", ["features", "last"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", channels, side, side])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", n_classes])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(last if side == 16 else last[:8], "last")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def make_images(count: int = 40, side: int = 16, channels: int = 3, seed: int = 1) -> Array:
    """Return smooth images with some noise. uint8 [N, H, W, C]"""
    generator = np.random.default_rng(seed)
    coarse = generator.random((count, 4, 4, channels)).repeat(side // 4 + 1, 1).repeat(side // 4 + 1, 2)
    noisy = coarse[:, :side, :side] + generator.normal(0, 0.05, (count, side, side, channels))
    return (255 * np.clip(noisy, 0, 1)).astype(np.uint8)


def order_views(rule: Policy, views: tuple[str, ...]) -> tuple[str, ...]:
    """Return the views in the order of looks."""
    return views if rule.schedule is None else tuple(rule.schedule.views)


def make_policy(classifier: Classifier, images: Any, rule: Policy, views: str = VIEWS) -> tuple[Policy, Predictions]:
    """Return the policy of a rule, and the predictions for images."""
    preds = collect(classifier, images, views, execution=Execution(progress=False))
    policy = attach(rule, classifier=classifier, views=order_views(rule, preds.views.texts))
    return policy, preds


@pytest.fixture
def network_file(tmp_path: Path) -> Path:
    return write_network(tmp_path / "network.onnx")


@pytest.fixture
def policy(classifier: Classifier) -> Policy:
    return make_policy(classifier, make_images(1), MEAN)[0]


@pytest.fixture
def classifier(network_file: Path) -> Classifier:
    return load_classifier(f"onnx:{network_file}?mean=.5&std=.25")
