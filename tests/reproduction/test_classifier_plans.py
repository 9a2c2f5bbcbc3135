"""The TOML file that says which classifier stands for which column."""

from pathlib import Path

import numpy as np
import pytest

from reproduction import reproduce
from reproduction.classifier_plans import CLASSIFIERS, read_classifiers
from secondlook.errors import ExperimentError

TORCH_MODULE = """
import torch

def network():
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ELU(), nn.Linear(16, 10))
"""


def write_onnx(path: Path, classes: int) -> None:
    """A linear classifier of 32x32 pixels."""
    import onnx
    from onnx import TensorProto, helper

    weights = np.random.default_rng(0).normal(size=(3 * 32 * 32, classes)).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_onnx_files_named_in_the_toml_stand_for_the_columns(data_root: Path, tmp_path: Path) -> None:
    text = ""
    for key, classes in (("cifar10-vgg8", 10), ("cifar100-vgg8", 100), ("svhn-vgg8", 10)):
        write_onnx(tmp_path / f"{key}.onnx", classes)
        text += f'[{key}]\nspec = "onnx:{tmp_path}/{key}.onnx"\noutput = "logits"\n'
        text += "mean = [0.5, 0.4, 0.3]\nstd = [9, 9, 9]\n"
    (tmp_path / "classifiers.toml").write_text(text)
    done = reproduce("table2", data_root, tmp_path / "out", tmp_path / "classifiers.toml")
    assert done.has_run
    assert not done.missing


def test_the_activation_distances_of_a_torch_network_are_computed(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elu_network.py").write_text(TORCH_MODULE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classifiers.toml").write_text(
        '[stl10-elu]\nspec = "torch:elu_network:network"\noutput = "logits"\nresize = 32\ncrop = 32\nlayer = "1"\n'
    )
    done = reproduce("table4", data_root, tmp_path / "out", tmp_path / "classifiers.toml")
    assert {row.method for row in done.findings["table4"][0].rows} == {
        "MSR(x)",
        "MSR(x,hflip)",
        "MSR(D)",
        "BS(D)",
        "IAD",
    }
    assert all("stl10-elu" not in gap.what for gap in done.missing)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[cifar10-vgg8")
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_classifiers(tmp_path / "c.toml")
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_classifiers(tmp_path / "nothing.toml")


def test_an_unknown_key_is_answered_with_the_closest_one(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[cifar10-vgg9]\nspec = "onnx:x.onnx"\n')
    with pytest.raises(ExperimentError, match="Did you mean 'cifar10-vgg8'"):
        read_classifiers(tmp_path / "c.toml")


def test_a_table_without_a_spec_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[cifar10-vgg8]\nmean = [0.5]\n")
    with pytest.raises(ExperimentError, match="no text spec"):
        read_classifiers(tmp_path / "c.toml")


def test_a_classifier_that_does_not_load_is_listed(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[cifar10-vgg8]\nspec = "onnx:nowhere.onnx"\noutput = "logits"\n')
    done = reproduce("table2", data_root, tmp_path / "out", tmp_path / "c.toml")
    gap = next(gap for gap in done.missing if "cifar10-vgg8" in gap.what)
    assert "nowhere.onnx" in gap.why


def test_torchvision_names_stand_for_the_columns_of_imagenet() -> None:
    specs = {key: plan.spec for key, plan in CLASSIFIERS.items() if key.startswith("imagenet")}
    assert specs == {
        "imagenet-alexnet": "torchvision:alexnet?weights=IMAGENET1K_V1",
        "imagenet-resnet18": "torchvision:resnet18?weights=IMAGENET1K_V1",
        "imagenet-resnext": "torchvision:resnext101_32x8d?weights=IMAGENET1K_V1",
    }


def test_a_default_file_that_is_not_there_is_named_with_its_place(tmp_path: Path) -> None:
    done = reproduce("cifar10-wrn", tmp_path, tmp_path / "out")
    assert f"put {tmp_path / 'wrn16-2-noflip.onnx'} (2.8 MB)" in str(done)
