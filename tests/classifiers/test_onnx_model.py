"""ONNX files: the input is read from the model, and models that do not fit are rejected."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError

SHARED = Path(__file__).resolve().parents[3] / "shared"
Array = np.ndarray[Any, Any]
Write = Callable[..., Path]


def expected(network: Any, images: Array) -> Array:
    logits: Array = network.logits(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    return logits


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (("n", 3, 8, 8), "FLOAT"),
        (("n", 3, "h", "w"), "FLOAT"),
        (("n", 8, 8, 3), "FLOAT"),
        ((4, 3, 8, 8), "FLOAT"),
        ((1, 3, 8, 8), "FLOAT"),
        ((7, 3, 8, 8), "FLOAT"),
        (("n", 8, 8, 3), "UINT8"),
        (("n", 3, 8, 8), "FLOAT16"),
    ],
)
def test_the_input_is_read_from_the_model(
    shape: tuple[object, ...], dtype: str, make_onnx: Write, network: Any, images: Array, tmp_path: Path
) -> None:
    classifier = load_classifier(f"onnx:{make_onnx(network, tmp_path / 'm', shape=shape, dtype=dtype)}?output=logits")
    assert classifier.n_classes == 5
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=2e-2 if dtype == "FLOAT16" else 1e-4)


def test_an_ambiguous_layout_is_required(make_onnx: Write, network: Any, images: Array, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", "c", "h", "w"))
    with pytest.raises(ClassifierError, match=r"'images'.*\[\?, \?, \?, \?\]"):
        load_classifier(f"onnx:{file}", output="logits")
    file_of_known_layout = make_onnx(network, tmp_path / "known.onnx", shape=("n", 3, 8, 8))
    with pytest.raises(ClassifierError, match=r"8 channels.*'NHWC'"):
        load_classifier(f"onnx:{file_of_known_layout}", output="logits", layout="NHWC")
    classifier = load_classifier(f"onnx:{file}", output="logits", layout="NCHW")
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=1e-4)


def test_an_output_is_selected_by_name(make_onnx: Write, network: Any, images: Array, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8), extra=True)
    with pytest.raises(ClassifierError, match="'logits', 'softmax'"):
        load_classifier(f"onnx:{file}", output="logits")
    logits = load_classifier(f"onnx:{file}", output="logits", output_name="logits")
    softmax = load_classifier(f"onnx:{file}", output="probabilities", output_name="softmax")
    np.testing.assert_allclose(softmax(images), logits.probabilities(images), atol=1e-5)
    assert softmax.digest != logits.digest


def test_the_kind_of_output_is_required(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8), extra=True)
    with pytest.raises(ClassifierError, match=re.escape(str(file))):
        load_classifier(f"onnx:{file}", output_name="softmax")


def test_an_output_named_logits_declares_its_kind(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    assert load_classifier(f"onnx:{file}").output == "logits"
    assert load_classifier(f"onnx:{file}", output="probabilities").output == "probabilities"


def test_a_wrong_kind_of_output_is_rejected(make_onnx: Write, network: Any, images: Array, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    with pytest.raises(ClassifierError, match="'logits'"):
        load_classifier(f"onnx:{file}", output="probabilities")(images)


def test_images_of_another_shape_are_rejected(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    classifier = load_classifier(
        f"onnx:{make_onnx(network, tmp_path / 'm.onnx', shape=('n', 3, 8, 8))}", output="logits"
    )
    with pytest.raises(ClassifierError, match=r"9 x 9.* 8 x 8"):
        classifier(np.zeros((1, 9, 9, 3), np.uint8))
    with pytest.raises(ClassifierError, match="gray='repeat'"):
        classifier(np.zeros((1, 8, 8, 1), np.uint8))


def test_images_too_small_for_a_dynamic_size_are_rejected(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, "h", "w"))
    with pytest.raises(ClassifierError, match=r"\[1, 3, 1, 1\]"):
        load_classifier(f"onnx:{file}", output="logits")(np.zeros((1, 1, 1, 3), np.uint8))


def test_settings_that_do_not_fit_the_model_are_rejected(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    with pytest.raises(ClassifierError, match=r"8 x 8.* 9 x 9"):
        load_classifier(f"onnx:{file}", output="logits", crop=9)


def test_threads_and_providers_are_applied(make_onnx: Write, network: Any, images: Array, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    one = load_classifier(f"onnx:{file}", output="logits", threads=1, providers="CPUExecutionProvider")
    assert one.providers == ["CPUExecutionProvider"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(one(images), expected(network, images), atol=1e-4)
    with pytest.raises(ClassifierError, match=r"'CPUExecutionProvidr'.* Did you mean 'CPUExecutionProvider'"):
        load_classifier(f"onnx:{file}", output="logits", providers=["CPUExecutionProvidr"])


def test_a_file_that_is_not_a_model_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(ClassifierError, match=r"m\.onnx"):
        load_classifier(f"onnx:{tmp_path / 'm.onnx'}", output="logits")


def test_inputs_that_do_not_take_images_are_rejected(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    def write(inputs: Any, node: Any) -> Path:
        described = [helper.make_tensor_value_info(*each) for each in inputs]
        scores = [helper.make_tensor_value_info("scores", inputs[0][1], None)]
        graph = helper.make_graph([node], "g", described, scores)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
        return tmp_path / "m.onnx"

    two = [("a", TensorProto.FLOAT, ["n", 3, 8, 8]), ("b", TensorProto.FLOAT, ["n", 3, 8, 8])]
    file = write(two, helper.make_node("Add", ["a", "b"], ["scores"]))
    with pytest.raises(ClassifierError, match=r"2 inputs \('a', 'b'\)"):
        load_classifier(f"onnx:{file}", output="logits")
    file = write([("a", TensorProto.FLOAT, ["n", 64])], helper.make_node("Relu", ["a"], ["scores"]))
    with pytest.raises(ClassifierError, match=r"'a'.*\[\?, 64\]"):
        load_classifier(f"onnx:{file}", output="logits")
    file = write([("a", TensorProto.INT64, ["n", 3, 8, 8])], helper.make_node("Neg", ["a"], ["scores"]))
    with pytest.raises(ClassifierError, match=r"'a'.*tensor\(int64\).*tensor\(float\)"):
        load_classifier(f"onnx:{file}", output="logits")


def test_the_digest_is_the_sha256_of_the_file(
    make_onnx: Write, network: Any, make_network: Any, tmp_path: Path
) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    digest = load_classifier(f"onnx:{file}", output="logits").digest
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    other = make_onnx(make_network(seed=9), tmp_path / "other.onnx", shape=("n", 3, 8, 8))
    assert load_classifier(f"onnx:{other}", output="logits").digest != digest


def test_external_weights_are_part_of_the_digest(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    import onnx

    file = make_onnx(network, tmp_path / "m.onnx", shape=("n", 3, 8, 8))
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = load_classifier(f"onnx:{file}", output="logits").digest
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    assert load_classifier(f"onnx:{file}", output="logits").digest != before


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_resnet20_reaches_its_accuracy_on_cifar10() -> None:
    with np.load(SHARED / "cifar10" / "test.npz") as data:
        images, labels = data["images"][:1000], data["labels"][:1000]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    classifier = load_classifier(f"onnx:{SHARED}/cifar10/resnet20.onnx", output="logits", mean=mean, std=std)
    predicted = classifier(classifier.preprocessing.fit(images)).argmax(axis=1)
    assert abs((predicted == labels).mean() - 0.917) < 0.015
