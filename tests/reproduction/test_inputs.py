"""Data sets, classifiers and the TOML file of classifiers."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from reproduction import CLASSIFIERS, DATA_SETS, ReproductionError, reproduce
from reproduction.inputs import read_classifiers

TORCH_MODULE = """
import torch

def network():
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ELU(), nn.Linear(16, 10))
"""


def write_onnx(path: Path, classes: int) -> None:
    """A linear classifier of 32x32 pixels."""
    weights = np.random.default_rng(0).normal(size=(3 * 32 * 32, classes)).astype(np.float32)
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 17]>
        linear (float[batch, 3, 32, 32] images) => (float[batch, {classes}] logits) {{
            flat = Flatten (images)
            logits = MatMul (flat, weights)
        }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    onnx.save(model, path)


def test_data_sets_and_classifiers_are_those_of_the_released_code() -> None:
    sizes = {name: (one.experimental, one.images) for name, one in DATA_SETS.items()}
    assert sizes["cifar10"] == sizes["cifar100"] == (1000, 10_000)
    assert sizes["stl10"] == (1000, 8000)
    assert sizes["svhn"] == (3254, 26_032)
    assert sizes["imagenet"] == (1000, 50_000)
    assert DATA_SETS["svhn"].count_experimental(26_032) == 3254
    assert DATA_SETS["svhn"].count_experimental(80) == 10
    assert DATA_SETS["imagenet"].count_experimental(5) == 1
    specs = {name: one.spec for name, one in CLASSIFIERS.items() if name.startswith("imagenet")}
    models = {"alexnet": "alexnet", "resnet18": "resnet18", "resnext": "resnext101_32x8d"}
    assert specs == {f"imagenet-{name}": f"torchvision:{model}?weights=IMAGENET1K_V1" for name, model in models.items()}


def test_onnx_files_of_the_toml_file_are_used(data_root: Path, tmp_path: Path) -> None:
    text = ""
    for name, classes in (("cifar10-vgg8", 10), ("cifar100-vgg8", 100), ("svhn-vgg8", 10)):
        write_onnx(tmp_path / f"{name}.onnx", classes)
        text += f'[{name}]\nspec = "onnx:{tmp_path}/{name}.onnx"\noutput = "logits"\n'
        text += "mean = [0.5, 0.4, 0.3]\nstd = [9, 9, 9]\n"
    (tmp_path / "classifiers.toml").write_text(text)
    done = reproduce("table2", data_root, tmp_path / "out", tmp_path / "classifiers.toml")
    assert done.has_run
    assert not done.missing


def test_distances_of_torch_are_computed(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elu_network.py").write_text(TORCH_MODULE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classifiers.toml").write_text(
        '[stl10-elu]\nspec = "torch:elu_network:network"\noutput = "logits"\nresize = 32\ncrop = 32\nlayer = "1"\n'
    )
    done = reproduce("table4", data_root, tmp_path / "out", tmp_path / "classifiers.toml")
    methods = {row.method for row in done.results["table4"][0].rows}
    assert methods == {"MSR(x)", "MSR(x,hflip)", "MSR(D)", "BS(D)", "IAD"}
    assert all("stl10-elu" not in item.name for item in done.missing)


def test_invalid_toml_file_is_rejected_and_a_missing_classifier_listed(data_root: Path, tmp_path: Path) -> None:
    for name, content, found in (
        ("c.toml", "[cifar10-vgg8", r"c\.toml"),
        ("nothing.toml", "", r"nothing\.toml"),
        ("c.toml", '[cifar10-vgg9]\nspec = "onnx:x.onnx"\n', r"'cifar10-vgg9'.*c\.toml.*'cifar10-vgg8'"),
        ("c.toml", "[cifar10-vgg8]\nmean = [0.5]\n", r"\[cifar10-vgg8\]"),
    ):
        (tmp_path / "c.toml").write_text(content)
        with pytest.raises(ReproductionError, match=found):
            read_classifiers(tmp_path / name)
    (tmp_path / "c.toml").write_text('[cifar10-vgg8]\nspec = "onnx:nowhere.onnx"\noutput = "logits"\n')
    done = reproduce("table2", data_root, tmp_path / "out", tmp_path / "c.toml")
    item = next(item for item in done.missing if "cifar10-vgg8" in item.name)
    assert "nowhere.onnx" in item.reason


def test_missing_default_file_is_listed_with_its_path(tmp_path: Path) -> None:
    done = reproduce("cifar10-wrn", tmp_path, tmp_path / "out")
    assert str(tmp_path / "wrn16-2-noflip.onnx") in str(done)
