"""Transformers image classifiers: tiny models, compared with their image processors."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Preprocessing, TorchClassifier, load_classifier
from secondlook.classifiers.pretrained import parse_processor
from secondlook.errors import ClassifierError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Array = np.ndarray[Any, Any]


def processors() -> dict[str, Any]:
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    config.id2label = {0: "cat", 1: "dog", 2: "owl"}
    transformers.ResNetForImageClassification(config).eval().save_pretrained(tmp_path)
    processors()["crop"].save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["vit", "crop", "crop_pct", "warp", "twice", "bgr", "raw"])
@pytest.mark.parametrize(("height", "width"), [(33, 47), (40, 25), (33, 38)])
def test_the_preprocessing_equals_the_image_processor(kind: str, height: int, width: int) -> None:
    processor = processors()[kind]
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    preprocessing = parse_processor(processor.to_dict(), kind)
    theirs = processor(images=[image], return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(preprocessing.normalize(preprocessing.fit([image])), theirs, rtol=1e-4, atol=1e-4)


def test_a_saved_model_has_the_same_output_as_in_transformers(folder: Path) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (3, 33, 47, 3), dtype=np.uint8))
    classifier = load_classifier(f"hf:{folder}")
    assert classifier.output == "logits"
    assert classifier.class_names == ("cat", "dog", "owl")
    inputs = processors()["crop"](images=images, return_tensors="pt")
    with torch.inference_mode():
        expected = transformers.AutoModelForImageClassification.from_pretrained(folder)(**inputs).logits.numpy()
    np.testing.assert_allclose(classifier(classifier.preprocessing.fit(images)), expected, atol=1e-4)
    assert classifier.digest == load_classifier(f"hf:{folder}").digest


def test_options_of_torch_are_passed_on(folder: Path, compiled: list[Any]) -> None:
    classifier = load_classifier(f"hf:{folder}", compile=True, cuda_graphs=True, dtype="bfloat16")
    assert isinstance(classifier, TorchClassifier)
    assert {weight.dtype for weight in classifier.module.parameters()} == {torch.bfloat16}
    assert compiled == [classifier.module]


def test_settings_can_be_replaced(folder: Path) -> None:
    assert load_classifier(f"hf:{folder}", mean=0.5).preprocessing.mean == (0.5,)
    plain = load_classifier(f"hf:{folder}", preprocessing=Preprocessing(mean=(0.25,))).preprocessing
    assert plain == Preprocessing(mean=(0.25,), channels=3)


def test_probabilities_are_rejected(folder: Path) -> None:
    with pytest.raises(ClassifierError, match="output='probabilities'"):
        load_classifier(f"hf:{folder}", output="probabilities")


def test_a_folder_without_a_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ClassifierError, match=re.escape(str(tmp_path))):
        load_classifier(f"hf:{tmp_path}")


def test_a_model_without_a_trained_head_is_rejected(folder: Path) -> None:
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    model.base_model.save_pretrained(folder)
    with pytest.raises(ClassifierError, match=r"classifier\."):
        load_classifier(f"hf:{folder}")


def test_a_processor_that_does_more_than_its_settings_is_rejected(folder: Path) -> None:
    from transformers.models.levit.image_processing_pil_levit import LevitImageProcessorPil

    LevitImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(folder)
    with pytest.raises(ClassifierError, match="LevitImageProcessorPil"):
        load_classifier(f"hf:{folder}")


@pytest.mark.parametrize(
    ("settings", "offending"),
    [
        ({"do_pad": True}, "do_pad"),
        ({"do_resize": True, "size": {"longest_edge": 9}}, "size={'longest_edge': 9}"),
        ({"do_resize": True, "size": {"height": 9, "width": 9}, "resample": 17}, "resample=17"),
    ],
)
def test_unsupported_settings_are_rejected(settings: dict[str, Any], offending: str) -> None:
    with pytest.raises(ClassifierError, match=re.escape(offending)):
        parse_processor(settings, "m")


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


def change_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


OWN_MODEL = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForImageClassification": "modeling_own.OwnModel"}


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"model_type": "own", "auto_map": OWN_MODEL}),
        (
            "preprocessor_config.json",
            {"image_processor_type": "Own", "auto_map": {"AutoImageProcessor": "modeling_own.Own"}},
        ),
    ],
)
def test_code_in_a_folder_is_not_run(folder_with_code: Path, file: str, changes: dict[str, object]) -> None:
    change_json(folder_with_code / file, **changes)
    with pytest.raises(ClassifierError, match="trust_remote_code=True"):
        load_classifier(f"hf:{folder_with_code}")
    assert not (folder_with_code / "ran").exists()


def test_code_in_a_folder_is_run_if_the_user_trusts_it(folder_with_code: Path) -> None:
    expected = load_classifier(f"hf:{folder_with_code}?trust_remote_code=false")
    change_json(folder_with_code / "config.json", model_type="own", auto_map=OWN_MODEL)
    classifier = load_classifier(f"hf:{folder_with_code}?trust_remote_code=true")
    assert (folder_with_code / "ran").exists()
    images = expected.preprocessing.fit(np.random.default_rng(0).integers(0, 256, (3, 33, 47, 3), dtype=np.uint8))
    np.testing.assert_array_equal(classifier(images), expected(images))


@pytest.mark.posix
def test_a_folder_with_a_pipe_is_rejected(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ClassifierError, match=r"config\.json.* pipe"):
        load_classifier(f"hf:{folder}")


class RunsCode:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, created: Path) -> None:
        self._created = created

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._created),)


def test_pickled_weights_that_run_code_are_rejected(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.1.bias": RunsCode(folder / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(ClassifierError, match=re.escape(str(folder))):
        load_classifier(f"hf:{folder}")
    assert not (folder / "ran").exists()


def test_pickled_weights_are_loaded_as_data(folder: Path) -> None:
    expected = load_classifier(f"hf:{folder}")
    torch.save(expected.module.state_dict(), folder / "pytorch_model.bin")  # type: ignore[attr-defined]
    (folder / "model.safetensors").unlink()
    assert load_classifier(f"hf:{folder}").digest == expected.digest


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"model_type": 7, "size": 1e999}', b"\xff\xff"])
def test_damaged_files_are_rejected(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(ClassifierError, match=re.escape(str(folder))):
        load_classifier(f"hf:{folder}")
