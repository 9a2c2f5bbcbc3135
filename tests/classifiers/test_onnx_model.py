"""ONNX files: the input is read from the model, and models that do not fit are rejected."""

import gc
import hashlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import Classifier, OnnxFile, load_classifier, onnx_model
from secondlook.classifiers.classifier import digest_values
from secondlook.classifiers.onnx_model import OnnxClassifier, SessionRun
from secondlook.errors import ClassifierError
from secondlook.views import View, ViewSet, apply_view

SHARED = Path(__file__).resolve().parents[3] / "shared"
Array = np.ndarray[Any, Any]
Write = Callable[..., Path]
SHAPE = ("n", 3, 8, 8)


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


class TestSplitBatches:
    @pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
    def test_outputs_are_those_of_whole_batches(
        self, make_onnx: Write, network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
    ) -> None:
        monkeypatch.setattr(onnx_model, "count_threads", lambda: n_threads)
        whole = load_classifier(f"onnx:{make_onnx(network, tmp_path / 'm', shape=SHAPE)}?output=logits")
        split = whole.split_batches()
        assert (split is whole) == (n_threads == 1)
        assert split.digest == whole.digest
        monkeypatch.setattr(onnx_model, "MIN_PART", 2)
        images = np.random.default_rng(0).integers(0, 256, (35, 8, 8, 3), dtype=np.uint8)
        for count in range(1, 36):
            np.testing.assert_array_equal(split(images[:count]), whole(images[:count]))
        assert split.on_device("auto") is split

    def test_each_part_has_a_thread(
        self, make_onnx: Write, network: Any, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnx_model, "count_threads", lambda: 3)
        sizes: list[int] = []
        threads = set()

        def record(run: SessionRun, inputs: Array) -> Array:
            sizes.append(len(inputs))
            threads.add(threading.get_ident())
            barrier.wait(60)
            outputs: Array = run.session.run([run.output_name], {run.model_input.name: inputs})[0]
            return outputs

        split = load_classifier(f"onnx:{make_onnx(network, tmp_path / 'm', shape=SHAPE)}?output=logits").split_batches()
        barrier = threading.Barrier(3)
        monkeypatch.setattr(SessionRun, "__call__", record)
        many = np.concatenate([images] * 4)
        split(many[:25])
        assert sorted(sizes) == [8, 8, 9]
        assert len(threads) == 3
        sizes, barrier = [], threading.Barrier(1)
        split(many[:23])  # too few for three parts of eight
        assert sizes == [23]

    @pytest.mark.parametrize("options", ["threads=2", "providers=CPUExecutionProvider&threads=1"])
    def test_threads_that_the_user_chose_are_kept(
        self, make_onnx: Write, network: Any, tmp_path: Path, options: str
    ) -> None:
        model = load_classifier(f"onnx:{make_onnx(network, tmp_path / 'm', shape=SHAPE)}?output=logits&{options}")
        assert model.split_batches() is model

    def test_batches_of_a_fixed_size_are_not_split(
        self, make_onnx: Write, network: Any, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnx_model, "count_threads", lambda: 2)
        model = load_classifier(f"onnx:{make_onnx(network, tmp_path / 'm', shape=(4, 3, 8, 8))}?output=logits")
        assert model.split_batches() is model

    def test_members_of_an_ensemble_split_batches(
        self, make_onnx: Write, network: Any, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnx_model, "count_threads", lambda: 2)
        monkeypatch.setattr(onnx_model, "MIN_PART", 1)
        spec = f"onnx:{make_onnx(network, tmp_path / 'm', shape=SHAPE)}?output=logits"
        ensemble = load_classifier([spec, spec])
        split = ensemble.split_batches()
        assert (split.digest, split.name) == (ensemble.digest, ensemble.name)
        assert all(one is not other for one, other in zip(split.members, ensemble.members, strict=True))
        np.testing.assert_array_equal(split(images), ensemble(images))


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


def field(number: int, content: bytes | int) -> bytes:
    """Return a protobuf field."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def model_with_external_data(location: bytes, *, is_external: int = 1, more: bytes = b"") -> bytes:
    """Return a model [n, 3, 8, 8] -> [n, 3] plus three external floats, whose location is written value-first."""
    entry = field(2, location) + field(1, b"location")
    weights = b"".join([field(1, 3), field(2, 1), field(8, b"w"), field(13, entry), field(14, is_external), more])
    pool = field(1, b"images") + field(2, b"pooled") + field(4, b"GlobalAveragePool")
    flatten = field(1, b"pooled") + field(2, b"flat") + field(4, b"Flatten")
    add = field(1, b"flat") + field(1, b"w") + field(2, b"logits") + field(4, b"Add")
    sizes = [field(2, b"n"), *(field(1, size) for size in (3, 8, 8))]
    images = field(1, b"images") + field(
        2, field(1, field(1, 1) + field(2, b"".join(field(1, each) for each in sizes)))
    )
    logits = field(1, b"logits") + field(2, field(1, field(1, 1)))
    graph = b"".join([field(1, pool), field(1, flatten), field(1, add), field(2, b"g"), field(5, weights)])
    return field(1, 8) + field(7, graph + field(11, images) + field(12, logits)) + field(8, field(2, 17))


def load_with_weights(folder: Path, location: str, **options: Any) -> Any:
    (folder / "m.onnx").write_bytes(model_with_external_data(location.encode(), **options))
    return load_classifier(f"onnx:{folder / 'm.onnx'}", output="logits")


def test_external_weights_are_found_in_any_order_of_fields(tmp_path: Path, images: Array) -> None:
    weights = np.array([1, 2, 3], np.float32)
    weights.tofile(tmp_path / "weights.bin")
    before = load_with_weights(tmp_path, "weights.bin")
    np.testing.assert_allclose(before(images), images.mean(axis=(1, 2)) / 255 + weights, atol=1e-5)
    content = bytearray(weights.tobytes())
    content[5] ^= 1
    (tmp_path / "weights.bin").write_bytes(content)
    assert load_with_weights(tmp_path, "weights.bin").digest != before.digest
    expected = [(tmp_path / name).read_bytes() for name in ("m.onnx", "weights.bin")]
    digests = [hashlib.sha256(each).hexdigest() for each in expected]
    assert load_with_weights(tmp_path, "weights.bin").digest == digest_values(*digests)


def test_external_weights_are_found_in_every_message(tmp_path: Path) -> None:
    """In branches and attributes of nodes, in functions and in sparse tensors, not only beside the graph."""
    tensor = field(13, field(1, b"location") + field(2, b"NAME")) + field(14, 1)
    places = {
        "initializer": field(7, field(5, tensor)),
        "attribute": field(7, field(1, field(5, field(5, tensor)))),
        "branch": field(7, field(1, field(5, field(6, field(1, field(5, field(10, tensor))))))),
        "function": field(25, field(7, field(5, field(11, field(5, tensor))))),
        "sparse": field(7, field(15, field(1, tensor)) + field(15, field(2, tensor))),
        "training": field(20, field(1, field(5, tensor))),
    }
    for place, content in places.items():
        (tmp_path / "m.onnx").write_bytes(content)
        (tmp_path / "NAME").write_bytes(place.encode())
        assert OnnxFile(tmp_path / "m.onnx", "m").find_external_data() == [tmp_path / "NAME"]


@pytest.mark.parametrize("options", [{}, {"is_external": 1 + 2**32}, {"more": field(14, 7)}])
@pytest.mark.parametrize(
    "location",
    ["/etc/hostname", "../secret", "a/../../secret", "..\\secret", "C:\\secret", "", "*/_ORT_MEM_ADDR_/*", "a\0b"],
)
def test_external_weights_elsewhere_are_rejected(location: str, options: dict[str, Any], tmp_path: Path) -> None:
    """ONNX Runtime rejects most of them itself; none may get that far."""
    (tmp_path / "secret").write_bytes(bytes(12))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(model_with_external_data(location.encode(), **options))
    with pytest.raises(ClassifierError, match="'onnx:m'"):
        OnnxFile(folder / "m.onnx", "onnx:m").find_external_data()


def test_a_tensor_in_several_pieces_is_read_as_a_whole(tmp_path: Path) -> None:
    """Protobuf merges the pieces of a message, so that neither alone shows that a file elsewhere is read."""
    where, is_external = field(13, field(1, b"location") + field(2, b"/etc/hostname")), field(14, 1)
    (tmp_path / "m.onnx").write_bytes(field(7, field(1, field(5, field(5, where) + field(5, is_external)))))
    with pytest.raises(ClassifierError, match="/etc/hostname"):
        OnnxFile(tmp_path / "m.onnx", "m").find_external_data()


def test_deeply_nested_graphs_are_rejected(tmp_path: Path) -> None:
    graph = b""
    for _ in range(200):
        graph = field(1, field(5, field(6, graph)))
    (tmp_path / "m.onnx").write_bytes(field(7, graph))
    with pytest.raises(ClassifierError, match="'m' is not an ONNX file"):
        OnnxFile(tmp_path / "m.onnx", "m").find_external_data()


def test_files_that_protobuf_cannot_read_are_rejected(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(2**31)  # a sparse file
    with pytest.raises(ClassifierError, match="2,147,483,647 bytes"):
        OnnxFile(tmp_path / "m.onnx", "m").find_external_data()


def test_seal_is_the_last_entry_of_the_metadata(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=SHAPE)
    content = file.read_bytes()
    checksum = hashlib.sha256(content).hexdigest().encode()
    entry = field(1, b"secondlook.checksum") + field(2, checksum)
    assert OnnxFile.seal(content) == content + field(14, entry)
    assert not OnnxFile(file, "m").is_sealed()
    file.write_bytes(OnnxFile.seal(content))
    assert OnnxFile(file, "m").is_sealed()
    file.write_bytes(OnnxFile.seal(content)[:-1])
    assert not OnnxFile(file, "m").is_sealed()
    file.write_bytes(b"")
    assert not OnnxFile(file, "m").is_sealed()


@pytest.mark.posix
def test_links_to_external_weights_elsewhere_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (folder / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ClassifierError, match=r"'weights\.bin'.*folder"):
        load_with_weights(folder, "weights.bin")


@pytest.mark.posix
def test_links_of_a_cache_are_followed(tmp_path: Path) -> None:
    """The Hugging Face Hub keeps files in one folder and links to them from another."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(model_with_external_data(b"weights.bin"))
    (tmp_path / "blobs" / "2").write_bytes(bytes(12))
    for name, blob in (("m.onnx", "1"), ("weights.bin", "2")):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / blob)
    model = tmp_path / "snapshot" / "m.onnx"
    assert OnnxFile(model, "m").find_external_data() == [tmp_path / "snapshot" / "weights.bin"]


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["named pipe", "folder", "device"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    place = {"named pipe": tmp_path / "pipe", "folder": tmp_path, "device": Path("/dev/zero")}[kind]
    if kind == "named pipe":
        os.mkfifo(place)
    for spec in (f"onnx:{place}", f"torch:{place}", f"sklearn:{place}?trust_pickle=true"):
        with pytest.raises(ClassifierError, match=kind):
            load_classifier(spec, output="probabilities")
    if kind == "named pipe":
        with pytest.raises(ClassifierError, match=kind):
            load_with_weights(tmp_path, "pipe")


def write_endless_loop(file: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    true = helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["before"], ["go_on"]), helper.make_node("Relu", ["values"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("before", TensorProto.BOOL, []),
            helper.make_tensor_value_info("values", TensorProto.FLOAT, None),
        ],
        [true, helper.make_tensor_value_info("next", TensorProto.FLOAT, None)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Loop", ["", "yes", "flat"], ["logits"], body=body),
        ],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.array(True), "yes")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), file)
    return file


def test_an_endless_loop_ends_at_the_timeout(tmp_path: Path, images: Array) -> None:
    write_endless_loop(tmp_path / "m.onnx")
    classifier = load_classifier(f"onnx:{tmp_path / 'm.onnx'}?timeout=0.3")
    with pytest.raises(ClassifierError, match=r"0\.3 seconds"):
        classifier(images)
    with pytest.raises(ClassifierError, match="timeout=0"):
        load_classifier(f"onnx:{tmp_path / 'm.onnx'}?timeout=0")


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_resnet20_reaches_its_accuracy_on_cifar10() -> None:
    with np.load(SHARED / "cifar10" / "test.npz") as data:
        images, labels = data["images"][:1000], data["labels"][:1000]
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    classifier = load_classifier(f"onnx:{SHARED}/cifar10/resnet20.onnx", output="logits", mean=mean, std=std)
    predicted = classifier(classifier.preprocessing.fit(images)).argmax(axis=1)
    assert abs((predicted == labels).mean() - 0.917) < 0.015


# --- Devices ---

COPIES = ViewSet("identity hflip shift:1,-2 hflip+shift:0,1").views
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def load_onnx(spec: str, **options: Any) -> OnnxClassifier:
    classifier = load_classifier(spec, **options)
    assert isinstance(classifier, OnnxClassifier)
    return classifier


def accelerate(classifier: OnnxClassifier, models: int = 1) -> OnnxClassifier:
    """Let the session get its inputs from torch, on the CPU in place of a GPU."""
    pytest.importorskip("torch")
    session = classifier.session
    classifier._known["auto"] = classifier._place_sessions([session] * models, ["cpu"] * models)
    return classifier


def classify_on_host(classifier: Classifier, images: Array, views: tuple[View, ...]) -> Array:
    return np.concatenate([classifier(apply_view(images, view)) for view in views])


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "UINT8"])
@pytest.mark.parametrize("shape", [("n", 3, 8, 8), ("n", 8, 8, 3), ("n", 3, "h", "w"), (4, 3, 8, 8), (64, 8, 8, 3)])
@pytest.mark.parametrize("models", [1, 2])
def test_inputs_from_torch_give_the_outputs_of_the_host(
    shape: tuple[object, ...], dtype: str, models: int, make_onnx: Write, network: Any, images: Array, tmp_path: Path
) -> None:
    file = make_onnx(network, tmp_path / "m.onnx", shape=shape, dtype=dtype)
    settings = {} if dtype == "UINT8" else {"mean": (0.3, 0.4, 0.5), "std": (0.2, 0.3, 0.25)}
    classifier = load_onnx(f"onnx:{file}", color="BGR", **settings)
    expected = classify_on_host(classifier, images, COPIES)
    accelerate(classifier, models)
    found = classifier.start(classifier.upload(images), COPIES)()
    np.testing.assert_allclose(found, expected, atol=1e-2 if dtype == "FLOAT16" else 1e-5)
    assert abs(expected).max() > 0.1


def test_gray_images_from_torch_give_the_outputs_of_the_host(
    make_onnx: Write, make_network: Any, tmp_path: Path
) -> None:
    gray = np.random.default_rng(2).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    file = make_onnx(make_network(channels=1), tmp_path / "m.onnx", shape=("n", 1, 8, 8))
    classifier = load_onnx(f"onnx:{file}", mean=0.4, std=0.3)
    expected = classify_on_host(classifier, gray, COPIES)
    accelerate(classifier)
    np.testing.assert_allclose(classifier.start(classifier.upload(gray), COPIES)(), expected, atol=1e-5)


def test_input_stays_in_memory_while_the_session_runs(
    make_onnx: Write, network: Any, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session gets an address only; a tensor that is not contiguous is copied to one nobody else holds."""
    torch = pytest.importorskip("torch")
    classifier = load_onnx(f"onnx:{make_onnx(network, tmp_path / 'm.onnx', shape=('n', 3, 8, 8))}")
    session = classifier.session
    run_with_iobinding = session.run_with_iobinding
    overwritten: list[Any] = []

    def overwrite_free_memory(*arguments: Any) -> None:
        gc.collect()
        overwritten.extend(torch.full((7, 3, 8, 8), 1e6) for _ in range(64))
        run_with_iobinding(*arguments)

    monkeypatch.setattr(session, "run_with_iobinding", overwrite_free_memory)
    pixels_last = torch.from_numpy(images.astype(np.float32) / 255)
    outputs = classifier._placed.first.run_tensor(pixels_last.permute(0, 3, 1, 2))
    assert overwritten
    np.testing.assert_allclose(outputs.numpy(), expected(network, images), atol=1e-4)


def test_time_limit_holds_for_inputs_from_torch(tmp_path: Path, images: Array) -> None:
    classifier = accelerate(load_onnx(f"onnx:{write_endless_loop(tmp_path / 'm.onnx')}?timeout=0.3"))
    with pytest.raises(ClassifierError, match=r"0\.3 seconds on a batch of 7 images"):
        classifier.start(classifier.upload(images), COPIES[:1])()


def test_failure_with_inputs_from_torch_is_one_sentence(make_onnx: Write, network: Any, tmp_path: Path) -> None:
    classifier = accelerate(load_onnx(f"onnx:{make_onnx(network, tmp_path / 'm.onnx', shape=('n', 3, 'h', 'w'))}"))
    with pytest.raises(ClassifierError, match=r"failed on an input of shape \[1, 3, 1, 1\]"):
        classifier.start(classifier.upload(np.zeros((1, 1, 1, 3), np.uint8)), COPIES[:1])()


class CudaSessions:
    """Sessions on the CPU that ONNX Runtime would have on GPUs; `made` are the providers of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, finds_libraries: bool = True, gpus: int = 1) -> None:
        import onnxruntime

        self.made: list[Any] = []
        self._create = onnxruntime.InferenceSession
        self._finds_libraries = finds_libraries
        self._gpus = gpus
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: CUDA)
        monkeypatch.setattr(onnxruntime, "InferenceSession", self)

    def __call__(self, file: str, options: Any, *, providers: list[Any], **settings: Any) -> Any:
        self.made.append(providers)
        session = self._create(file, options, providers=["CPUExecutionProvider"])
        if providers != ["CPUExecutionProvider"]:
            assert settings == {"enable_fallback": 0}  # which would print, and hide the error
            if int(providers[0][1]["device_id"]) >= self._gpus:
                raise RuntimeError("CUDA failure 101: invalid device ordinal ; GPU=7\nsecond line")
            session.get_providers = lambda: CUDA if self._finds_libraries else CUDA[1:]
        return session


@pytest.fixture
def spec(make_onnx: Write, network: Any, tmp_path: Path) -> str:
    return f"onnx:{make_onnx(network, tmp_path / 'm.onnx', shape=('n', 3, 8, 8))}"


@pytest.fixture
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch, if it is installed, see no GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_cuda_needs_its_provider(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    classifier = load_onnx(spec)
    for device in ("cuda", "cuda:3"):
        with pytest.raises(ClassifierError, match=f"device='{device}'.*install onnxruntime-gpu, or pass device='cpu'"):
            classifier.on_device(device)
    with pytest.raises(ClassifierError, match="device='gpu' is unknown"):
        classifier.on_device("gpu")
    assert classifier.on_device("auto") is classifier
    assert classifier.workers is None
    assert classifier.on_device("cpu").providers == ["CPUExecutionProvider"]


@pytest.mark.usefixtures("without_gpus")
def test_cuda_without_torch_is_reached_from_the_host(spec: str, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = load_onnx(spec)(images)
    sessions = CudaSessions(monkeypatch, gpus=2)
    classifier = load_onnx(spec)
    for device, number in (("cuda", "0"), ("cuda:1", "1")):
        moved = classifier.on_device(device)
        assert moved.providers == CUDA
        assert not moved.is_accelerated
        assert moved.digest == classifier.digest
        (name, options), other = sessions.made[-1]
        assert [name, other] == CUDA
        assert options["device_id"] == number
        assert options["use_tf32"] == "0"
        np.testing.assert_array_equal(moved(images), outputs)
        assert moved.on_device(device) is moved
        assert moved.on_device("auto") is moved
    made = len(sessions.made)
    assert classifier.on_device("cpu").providers == CUDA[1:]
    assert classifier.on_device("cuda").providers == CUDA
    assert len(sessions.made) == made


@pytest.mark.usefixtures("without_gpus")
def test_auto_uses_cuda_where_it_is_available(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CudaSessions(monkeypatch)
    assert load_onnx(spec).on_device("auto").providers == CUDA
    chosen = load_onnx(spec, providers="CPUExecutionProvider")
    assert chosen.on_device("auto").providers == CUDA[1:]
    assert chosen.on_device("cuda").providers == CUDA
    assert chosen.on_device("cuda").on_device("auto").providers == CUDA
    assert load_onnx(spec).on_device("cpu").on_device("auto").providers == CUDA[1:]


@pytest.mark.usefixtures("without_gpus")
def test_cpu_opens_no_session_on_a_gpu(spec: str, images: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = CudaSessions(monkeypatch)
    load_onnx(spec).on_device("cpu")(images)
    assert sessions.made == [["CPUExecutionProvider"]]


@pytest.mark.usefixtures("without_gpus")
def test_missing_cuda_libraries_are_an_error_unless_auto(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    CudaSessions(monkeypatch, finds_libraries=False)
    with pytest.raises(ClassifierError, match=r"device='cuda' .*CUDA libraries.*device='cpu'"):
        load_onnx(spec).on_device("cuda")
    classifier = load_onnx(spec).on_device("auto")
    assert classifier.providers == CUDA[1:]
    assert not classifier.is_accelerated
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("without_gpus")
def test_gpu_that_does_not_exist_is_one_sentence(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CudaSessions(monkeypatch)
    with pytest.raises(ClassifierError, match=r"device='cuda:7' .*invalid device ordinal.*device='cpu'") as caught:
        load_onnx(spec).on_device("cuda:7")
    assert "\n" not in str(caught.value)
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ClassifierError, match=r"device='cuda:7' does not exist; this machine has cuda:0, cuda:1"):
        load_onnx(spec).on_device("cuda:7")


def test_each_gpu_has_a_session(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    sessions = CudaSessions(monkeypatch, gpus=2)
    classifier = load_onnx(spec)
    for device, devices in (("cuda", ("cuda:0", "cuda:1")), ("cuda:1", ("cuda:1",)), ("auto", ("cuda:0", "cuda:1"))):
        workers = classifier.on_device(device).workers
        assert workers is not None
        assert workers.devices == devices
    assert [made[0][1]["device_id"] for made in sessions.made if made != CUDA[1:]] == ["0", "1", "1"]
