"""Pretrained models: tiny ones of transformers, and of stand-ins with the interface of timm and torchvision."""

import enum
import json
import os
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing, TorchClassifier, load_classifier
from secondlook.errors import ClassifierError
from tests.classifiers.conftest import RunsCode

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def processors() -> dict[str, Any]:
    pytest.importorskip("transformers")
    from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
    from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
    from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil
    from transformers.models.mobilevit.image_processing_pil_mobilevit import MobileViTImageProcessorPil
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    square = {"height": 16, "width": 16}
    return {
        "vit": ViTImageProcessorPil(size=square),
        "crop": BitImageProcessorPil(size={"shortest_edge": 20}, crop_size=square, do_center_crop=True),
        "crop_pct": ConvNextImageProcessorPil(size={"shortest_edge": 16}, crop_pct=0.875),
        "warp": ConvNextImageProcessorPil(size={"shortest_edge": 384}),
        "twice": EfficientNetImageProcessorPil(size=square, rescale_factor=1 / 127.5, rescale_offset=True),
        "bgr": MobileViTImageProcessorPil(size={"shortest_edge": 20}, crop_size=square),
        "raw": ViTImageProcessorPil(size=square, do_rescale=False, do_normalize=False),
    }


@pytest.fixture(scope="session")
def saved(processors: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    config.id2label = {0: "cat", 1: "dog", 2: "owl"}
    transformers.ResNetForImageClassification(config).eval().save_pretrained(path)
    processors["crop"].save_pretrained(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A folder with a model and its processor, which a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.mark.parametrize("kind", ["vit", "crop", "crop_pct", "warp", "twice", "bgr", "raw"])
def test_the_preprocessing_equals_the_image_processor(kind: str, processors: dict[str, Any], folder: Path) -> None:
    processors[kind].save_pretrained(folder)
    preprocessing = load_classifier(f"hf:{folder}").preprocessing
    for height, width in ((33, 47), (40, 25), (33, 38)):
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        theirs = processors[kind](images=[image], return_tensors="np")["pixel_values"]
        np.testing.assert_allclose(preprocessing.normalize(preprocessing.fit([image])), theirs, rtol=1e-4, atol=1e-4)


def test_a_saved_model_has_the_same_output_as_in_transformers(saved: Path, processors: dict[str, Any]) -> None:
    import transformers

    images = list(np.random.default_rng(0).integers(0, 256, (3, 33, 47, 3), dtype=np.uint8))
    classifier = load_classifier(f"hf:{saved}")
    assert classifier.output == "logits"
    assert classifier.class_names == ("cat", "dog", "owl")
    inputs = processors["crop"](images=images, return_tensors="pt")
    with torch.inference_mode():
        expected = transformers.AutoModelForImageClassification.from_pretrained(saved)(**inputs).logits.numpy()
    np.testing.assert_allclose(classifier(classifier.preprocessing.fit(images)), expected, atol=1e-4)
    assert classifier.digest == load_classifier(f"hf:{saved}").digest


def test_settings_can_be_replaced_but_not_the_output_nor_the_head(folder: Path, tmp_path: Path) -> None:
    import transformers

    assert load_classifier(f"hf:{folder}", mean=0.5).preprocessing.mean == (0.5,)
    plain = load_classifier(f"hf:{folder}", preprocessing=Preprocessing(mean=(0.25,))).preprocessing
    assert plain == Preprocessing(mean=(0.25,), channels=3)
    with pytest.raises(ClassifierError, match="output='probabilities'"):
        load_classifier(f"hf:{folder}", output="probabilities")
    transformers.AutoModelForImageClassification.from_pretrained(folder).base_model.save_pretrained(folder)
    for place, found in ((folder, r"classifier\."), (tmp_path, re.escape(str(tmp_path)))):  # its head is not trained
        with pytest.raises(ClassifierError, match=found):
            load_classifier(f"hf:{place}")


def change_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def folder_with_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model folder whose code writes the file `ran`; a question on stdin fails the test."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on stdin"))
    # transformers copies trusted code to this folder.
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "modeling_own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import BitImageProcessorPil, ResNetConfig, ResNetForImageClassification\n"
        f"Path({str(folder / 'ran')!r}).touch()\n"
        "class OwnConfig(ResNetConfig):\n    model_type = 'own'\n"
        "class OwnModel(ResNetForImageClassification):\n    config_class = OwnConfig\n"
    )
    return folder


OWN_CLASSES = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForImageClassification": "modeling_own.OwnModel"}
OWN_MODEL = {"model_type": "own", "auto_map": OWN_CLASSES}
OWN_PROCESSOR = {"image_processor_type": "Own", "auto_map": {"AutoImageProcessor": "modeling_own.Own"}}


@pytest.mark.parametrize(
    ("settings", "offending"),
    [
        ({"do_pad": True}, "do_pad"),
        ({"size": {"longest_edge": 9}}, "size={'longest_edge': 9}"),
        ({"resample": 17}, "resample=17"),
        ({"image_processor_type": "LevitImageProcessorPil"}, "LevitImageProcessorPil"),  # does more than its settings
        (OWN_PROCESSOR, "trust_remote_code=True"),
        (OWN_MODEL, "trust_remote_code=True"),
    ],
)
def test_unsupported_processors_and_code_are_rejected(
    folder_with_code: Path, settings: dict[str, Any], offending: str
) -> None:
    change_json(folder_with_code / ("config.json" if settings is OWN_MODEL else "preprocessor_config.json"), **settings)
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        load_classifier(f"hf:{folder_with_code}")
    assert not (folder_with_code / "ran").exists()


def test_code_in_a_folder_is_run_if_the_user_trusts_it(folder_with_code: Path) -> None:
    expected = load_classifier(f"hf:{folder_with_code}?trust_remote_code=false")
    change_json(folder_with_code / "config.json", **OWN_MODEL)
    classifier = load_classifier(f"hf:{folder_with_code}?trust_remote_code=true")
    assert (folder_with_code / "ran").exists()
    images = expected.preprocessing.fit(np.random.default_rng(0).integers(0, 256, (3, 33, 47, 3), dtype=np.uint8))
    np.testing.assert_array_equal(classifier(images), expected(images))


def test_pickled_weights_are_loaded_as_data(folder: Path) -> None:
    expected = load_classifier(f"hf:{folder}")
    (folder / "model.safetensors").unlink()
    torch.save(expected.module.state_dict(), folder / "pytorch_model.bin")  # type: ignore[attr-defined]
    assert load_classifier(f"hf:{folder}").digest == expected.digest
    torch.save({"classifier.1.bias": RunsCode(folder / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(ClassifierError, match=re.escape(str(folder))):
        load_classifier(f"hf:{folder}")
    assert not (folder / "ran").exists()


PIPE = pytest.param(None, marks=pytest.mark.posix)


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"model_type": 7, "size": 1e999}', b"\xff\xff", PIPE])
def test_damaged_files_and_pipes_are_rejected(folder: Path, file: str, content: bytes | None) -> None:
    (folder / file).unlink()
    if content is None:
        os.mkfifo(folder / file)
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(ClassifierError, match=rf"{file}.* pipe" if content is None else re.escape(str(folder))):
        load_classifier(f"hf:{folder}")


# --- timm and torchvision ---

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.2, 0.2)
CONFIG: dict[str, Any] = {"input_size": (3, 8, 8), "interpolation": "bicubic", "mean": MEAN, "std": STD}
CONFIG |= {"crop_pct": 0.9, "crop_mode": "center"}


def tiny(classes: int = 5) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, classes))


@pytest.fixture
def create_model_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, bool, int]]:
    """Install a timm with one model; return the calls of `create_model`."""
    calls: list[tuple[str, bool, int]] = []

    def create_model(name: str, pretrained: bool = False, num_classes: int = 5) -> Any:
        calls.append((name, pretrained, num_classes))
        if pretrained and name == "tiny.offline":
            raise RuntimeError("cannot reach the hub")
        # For a model on the Hub, timm itself calls torch.load with weights_only=False.
        return torch.load(tmp_path / "hub.bin", weights_only=False) if ":" in name else tiny(num_classes)

    timm, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    timm.create_model, timm.data = create_model, data  # type: ignore[attr-defined]
    timm.is_model = lambda name: name.partition(".")[0] == "tiny"  # type: ignore[attr-defined]
    timm.list_models = lambda: ["tiny"]  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda model: CONFIG  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return calls


def test_timm_model(create_model_calls: list[tuple[str, bool, int]], images: Array, tmp_path: Path) -> None:
    classifier = load_classifier("timm:tiny.in1k")
    assert classifier.preprocessing == Preprocessing(
        resize=8, crop=8, interpolation="bicubic", channels=3, mean=MEAN, std=STD
    )
    assert classifier(images).shape == (7, 5)
    assert classifier.output == "logits"
    trained = tiny(4)
    with torch.no_grad():
        trained[2].bias += 3
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    from_file = load_classifier("timm:tiny", weights=str(tmp_path / "w.pt"), n_classes=4)
    assert create_model_calls == [("tiny.in1k", True, 5), ("tiny", False, 4)]
    same = load_classifier(trained, output="logits", preprocessing=classifier.preprocessing)
    np.testing.assert_array_equal(from_file(images), same(images))


@pytest.mark.usefixtures("create_model_calls", "get_model_calls")
@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("timm:tinny", r"'timm:tinny'.* Did you mean 'tiny'"),
        ("timm:tiny.offline", "cannot reach the hub"),
        ("timm:hf-hub:someone/model", "'timm:hf-hub:someone/model'"),
        ("torchvision:tinny", r"'torchvision:tinny'.* Did you mean 'tiny'"),
        ("torchvision:tiny?weights=IMAGENET1K_V3", r"'IMAGENET1K_V3'.*IMAGENET1K_V1, IMAGENET1K_V2"),
        ("torchvision:googlenet?weights=w.pt", r"'torchvision:googlenet\?weights=w\.pt'"),
    ],
)
def test_unknown_models_and_weights(spec: str, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.pt").touch()
    torch.save({"weight": RunsCode(Path("ran"))}, "hub.bin")
    with pytest.raises(ClassifierError, match=found):
        load_classifier(spec)
    assert not Path("ran").exists()


@pytest.mark.usefixtures("create_model_calls", "get_model_calls")
def test_unsupported_settings_and_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIG, "crop_mode", "border")
    with pytest.raises(ClassifierError, match=r"crop_mode='border'.* 8 x 8"):
        load_classifier("timm:tiny")
    monkeypatch.setitem(CONFIG, "crop_mode", "squash")
    assert load_classifier("timm:tiny").preprocessing.resize == (8, 8)
    monkeypatch.delattr(Transforms, "crop_size")
    with pytest.raises(ClassifierError, match="crop_size"):
        load_classifier("torchvision:tiny")
    for library in ("timm", "torchvision"):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ClassifierError, match=f"pip install {library}"):
            load_classifier(f"{library}:tiny")


class Interpolation(enum.Enum):
    BILINEAR = "bilinear"


class Transforms:
    resize_size, crop_size = [9], [8]
    mean, std = list(MEAN), list(STD)
    interpolation = Interpolation.BILINEAR


class TinyWeights(enum.Enum):
    IMAGENET1K_V1 = "v1"
    IMAGENET1K_V2 = "v2"
    DEFAULT = IMAGENET1K_V2

    @property
    def meta(self) -> Any:
        return {"categories": list("abcde")}

    def transforms(self) -> Any:
        return Transforms()


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


def test_torchvision_model(get_model_calls: list[tuple[str, Any]], images: Array, tmp_path: Path) -> None:
    classifier = load_classifier("torchvision:tiny")
    assert classifier.preprocessing == Preprocessing(resize=9, crop=8, channels=3, mean=MEAN, std=STD)
    assert classifier.class_names == tuple("abcde")
    assert classifier(images).shape == (7, 5)
    load_classifier("torchvision:tiny?weights=IMAGENET1K_V1")
    torch.save(tiny(3).state_dict(), tmp_path / "w.pt")
    from_file = load_classifier("torchvision:tiny", weights=str(tmp_path / "w.pt"), n_classes=3)
    assert from_file.class_names is None
    weights = [TinyWeights.IMAGENET1K_V2, TinyWeights.IMAGENET1K_V1, None]
    assert get_model_calls == [("tiny", each) for each in weights]


@pytest.mark.usefixtures("create_model_calls", "get_model_calls")
@pytest.mark.parametrize("scheme", ["timm:tiny.in1k", "torchvision:tiny", "hf", "module"])
def test_options_of_torch_are_passed_on(scheme: str, saved: Path, compiled: list[Any]) -> None:
    spec: Any = {"hf": f"hf:{saved}", "module": tiny()}.get(scheme, scheme)
    plain = load_classifier(spec, output="logits")
    assert compiled == []
    if scheme == "module":
        classifier = load_classifier(spec, output="logits", compile=True, cuda_graphs=True)
    else:
        classifier = load_classifier(f"{spec}?compile=true&cuda_graphs=yes")
    assert isinstance(classifier, TorchClassifier)
    assert compiled == [spec if scheme == "module" else classifier.module]
    assert classifier.digest == plain.digest
    images = plain.preprocessing.fit(np.random.default_rng(0).integers(0, 256, (3, 33, 47, 3), dtype=np.uint8))
    np.testing.assert_array_equal(classifier(images), plain(images))
    other = load_classifier(spec, output="logits", device="cpu", dtype="bfloat16", channels_last=True)
    assert isinstance(other, TorchClassifier)
    assert {weight.dtype for weight in other.module.parameters()} == {torch.bfloat16}
