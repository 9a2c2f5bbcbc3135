"""Pretrained models of timm and torchvision, with stand-ins that have the interface of the packages."""

import enum
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Preprocessing, TorchClassifier, load_classifier
from secondlook.errors import ClassifierError

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
CONFIG = {
    "input_size": (3, 8, 8),
    "interpolation": "bicubic",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.2, 0.2),
    "crop_pct": 0.9,
    "crop_mode": "center",
}


def tiny(classes: int = 5) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, classes))


@pytest.fixture
def create_model_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Install a timm with one model; return the calls of `create_model`."""
    calls: list[dict[str, Any]] = []

    def create_model(name: str, pretrained: bool = False, num_classes: int = 5) -> Any:
        calls.append({"name": name, "pretrained": pretrained, "num_classes": num_classes})
        if pretrained and name == "tiny.offline":
            raise RuntimeError("cannot reach the hub")
        return tiny(num_classes)

    timm, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    timm.create_model, timm.data = create_model, data  # type: ignore[attr-defined]
    timm.is_model = lambda name: name.partition(".")[0] == "tiny"  # type: ignore[attr-defined]
    timm.list_models = lambda: ["tiny"]  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda model: CONFIG  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return calls


def test_timm_model_with_pretrained_weights(create_model_calls: list[dict[str, Any]], images: Array) -> None:
    classifier = load_classifier("timm:tiny.in1k")
    assert create_model_calls == [{"name": "tiny.in1k", "pretrained": True, "num_classes": 5}]
    assert classifier.preprocessing == Preprocessing(
        resize=8, crop=8, interpolation="bicubic", channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2)
    )
    assert classifier(images).shape == (7, 5)
    assert classifier.output == "logits"


def test_timm_model_with_weights_from_a_file(
    create_model_calls: list[dict[str, Any]], images: Array, tmp_path: Path
) -> None:
    trained = tiny(4)
    with torch.no_grad():
        trained[2].bias += 3
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    classifier = load_classifier("timm:tiny", weights=str(tmp_path / "w.pt"), n_classes=4)
    assert create_model_calls == [{"name": "tiny", "pretrained": False, "num_classes": 4}]
    same = load_classifier(trained, output="logits", preprocessing=classifier.preprocessing)
    np.testing.assert_array_equal(classifier(images), same(images))


def test_timm_errors(create_model_calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClassifierError, match=r"'timm:tinny'.* Did you mean 'tiny'"):
        load_classifier("timm:tinny")
    with pytest.raises(ClassifierError, match="cannot reach the hub"):
        load_classifier("timm:tiny.offline")
    monkeypatch.setitem(CONFIG, "crop_mode", "border")
    with pytest.raises(ClassifierError, match=r"crop_mode='border'.* 8 x 8"):
        load_classifier("timm:tiny")
    monkeypatch.setitem(CONFIG, "crop_mode", "squash")
    assert load_classifier("timm:tiny").preprocessing.resize == (8, 8)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ClassifierError, match="pip install timm"):
        load_classifier("timm:tiny")


class Interpolation(enum.Enum):
    BILINEAR = "bilinear"


class Transforms:
    resize_size, crop_size = [9], [8]
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.2, 0.2]
    interpolation = Interpolation.BILINEAR


class Entry:
    def __init__(self, name: str) -> None:
        self.name, self.meta = name, {"categories": list("abcde")}

    def transforms(self) -> Any:
        return Transforms()


class TinyWeights(enum.Enum):
    IMAGENET1K_V1 = Entry("v1")
    IMAGENET1K_V2 = Entry("v2")
    DEFAULT = IMAGENET1K_V2

    @property
    def meta(self) -> Any:
        return self.value.meta

    def transforms(self) -> Any:
        return self.value.transforms()


@pytest.fixture
def get_model_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Install a torchvision with one model; return the calls of `get_model`."""
    calls: list[tuple[str, Any]] = []

    def get_model(name: str, weights: Any = None, num_classes: int = 5) -> Any:
        calls.append((name, weights))
        return tiny(num_classes)

    torchvision, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    torchvision.models, models.get_model = models, get_model  # type: ignore[attr-defined]
    models.list_models = lambda module: ["tiny", "googlenet"]  # type: ignore[attr-defined]
    models.get_model_weights = lambda name: TinyWeights  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return calls


def test_torchvision_model_with_pretrained_weights(get_model_calls: list[tuple[str, Any]], images: Array) -> None:
    classifier = load_classifier("torchvision:tiny")
    assert get_model_calls == [("tiny", TinyWeights.IMAGENET1K_V2)]
    assert classifier.preprocessing == Preprocessing(
        resize=9, crop=8, channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2)
    )
    assert classifier.class_names == tuple("abcde")
    assert classifier(images).shape == (7, 5)
    load_classifier("torchvision:tiny?weights=IMAGENET1K_V1")
    assert get_model_calls[1] == ("tiny", TinyWeights.IMAGENET1K_V1)


def test_torchvision_model_with_weights_from_a_file(get_model_calls: list[tuple[str, Any]], tmp_path: Path) -> None:
    torch.save(tiny(3).state_dict(), tmp_path / "w.pt")
    classifier = load_classifier("torchvision:tiny", weights=str(tmp_path / "w.pt"), n_classes=3)
    assert get_model_calls == [("tiny", None)]
    assert classifier.class_names is None


def test_torchvision_errors(
    get_model_calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ClassifierError, match=r"'torchvision:tinny'.* Did you mean 'tiny'"):
        load_classifier("torchvision:tinny")
    with pytest.raises(ClassifierError, match=r"'IMAGENET1K_V3'.*IMAGENET1K_V1, IMAGENET1K_V2"):
        load_classifier("torchvision:tiny", weights="IMAGENET1K_V3")
    (tmp_path / "w.pt").touch()
    with pytest.raises(ClassifierError, match="'torchvision:googlenet'"):
        load_classifier("torchvision:googlenet", weights=str(tmp_path / "w.pt"))
    monkeypatch.delattr(Transforms, "crop_size")
    with pytest.raises(ClassifierError, match="crop_size"):
        load_classifier("torchvision:tiny")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ClassifierError, match="pip install torchvision"):
        load_classifier("torchvision:tiny")


def test_pickles_that_timm_loads_do_not_run_code(
    create_model_calls: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a model on the Hub, timm itself calls torch.load with weights_only=False."""

    class RunsCode:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"weight": RunsCode()}, tmp_path / "model.bin")
    monkeypatch.setattr("timm.create_model", lambda *_, **__: torch.load(tmp_path / "model.bin", weights_only=False))
    with pytest.raises(ClassifierError, match="'timm:hf-hub:someone/model'"):
        load_classifier("timm:hf-hub:someone/model")
    assert not (tmp_path / "ran").exists()
    assert not create_model_calls


@pytest.mark.usefixtures("create_model_calls", "get_model_calls")
@pytest.mark.parametrize("spec", ["timm:tiny.in1k", "torchvision:tiny"])
def test_options_of_torch_are_passed_on(spec: str, images: Array, compiled: list[Any]) -> None:
    plain, classifier = load_classifier(spec), load_classifier(f"{spec}?compile=true&cuda_graphs=yes")
    assert isinstance(classifier, TorchClassifier)
    assert compiled == [classifier.module]
    np.testing.assert_array_equal(classifier(images), plain(images))
    other = load_classifier(spec, device="cpu", dtype="bfloat16", channels_last=True)
    assert isinstance(other, TorchClassifier)
    assert {weight.dtype for weight in other.module.parameters()} == {torch.bfloat16}
