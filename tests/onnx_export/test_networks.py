"""Classifiers as ONNX networks: converted, simplified, and embedded in graphs."""

import copy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from secondlook.classifiers import Classifier, FunctionClassifier, OnnxClassifier, load_classifier
from secondlook.classifiers.remote import RemoteClassifier
from secondlook.errors import ClassifierError, ExportError, MissingExtraError
from secondlook.extension import ExportRecord, FileOutputs, SklearnClassifier
from secondlook.onnx_export import networks
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor, describe_value
from secondlook.onnx_export.networks import embed_network, make_networks
from tests.onnx_export.running import build_model, run_model

onnx = pytest.importorskip("onnx")
Array = np.ndarray[Any, Any]

SHARED = Path(__file__).resolve().parents[3] / "shared"
SHAPE = (8, 8, 3)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, *SHAPE), dtype=np.uint8)
WEIGHTS = {
    "kernel": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32),
    "bias": RNG.normal(size=4).astype(np.float32),
    "matrix": RNG.normal(size=(5, 4)).astype(np.float32),
    "offset": RNG.normal(size=5).astype(np.float32),
}
HEADER = '<ir_version: 8, opset_import: ["": 18]>'
LAYERS = """
    features = Conv (images, kernel, bias)
    positive = Relu (features)
    pooled = GlobalAveragePool (positive)
    flat = Flatten (pooled)
    logits = Gemm <transB=1> (flat, matrix, offset)
"""
PLAIN = f"{HEADER} network (float[n, 3, 8, 8] images) => (float[n, 5] logits) {{ {LAYERS} }}"

PLACES = ["graph", "branch", "loop"]


def write_model(file: Path, text: str, change: Callable[[Any], object] = lambda model: None, **weights: Array) -> Path:
    """Write a model in ONNX's own text format, with those of the weights that it names."""
    model = onnx.parser.parse_model(text)
    named = {name: array for name, array in {**WEIGHTS, **weights}.items() if name in text}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in named.items())
    change(model)
    onnx.save(model, file)
    return file


def load_onnx(file: Path, **options: Any) -> Classifier:
    return load_classifier(f"onnx:{file}", output="logits", **options)


def make_network(classifier: Classifier, shape: tuple[int, int, int] = SHAPE) -> Any:
    (network,) = make_networks([classifier], shape)
    return network


def make_inputs(classifier: Classifier, images: Array) -> Array:
    inputs = classifier.preprocessing.normalize(images)
    return inputs.reshape(len(inputs), -1) if isinstance(classifier, SklearnClassifier) else inputs


def run_embedded(networks: Sequence[Any], inputs: Sequence[Array], place: str = "graph") -> list[Array]:
    """Embed networks in a graph, a branch of an If or the body of a Loop, and return their outputs."""

    def add(graph: Graph, *given: Tensor) -> list[Tensor]:
        inner = graph if place == "graph" else Graph(graph.opset, graph)
        outputs = [embed_network(inner, each, inner.use(tensor)) for each, tensor in zip(networks, given, strict=True)]
        assert all(tensor.dtype == np.float32 for tensor in outputs)
        return outputs if place == "graph" else [_surround(graph, inner, outputs[0], place)]

    named = {f"images{number}": array for number, array in enumerate(inputs)}
    return run_model(build_model(add, named, _get_opset(networks[0]), imports=networks[0].opset_import), named)


def _surround(graph: Graph, inner: Graph, output: Tensor, place: str) -> Tensor:
    described = describe_value(output.name, np.float32, [None, None])
    if place == "branch":
        then, other = inner.build("then", [], [described]), Graph(graph.opset, graph)
        nothing = other.op("Identity", np.zeros((0, 0), np.float32))
        otherwise = other.build("else", [], [describe_value(nothing.name, np.float32, [None, None])])
        return graph.op("If", np.array(True), dtype=np.float32, then_branch=then, else_branch=otherwise)
    again = inner.op("Identity", Tensor(inner, "goes_on", np.bool_))
    body = inner.build(
        "body",
        [describe_value("round", np.int64, []), describe_value("goes_on", np.bool_, [])],
        [describe_value(again.name, np.bool_, []), described],
    )
    rounds = graph.op("Loop", graph.constant(2, np.int64), None, dtype=np.float32, body=body)
    return graph.op("ReduceMean", rounds, np.array([0]), keepdims=0)


def _get_opset(network: Any) -> int:
    return next(int(each.version) for each in network.opset_import if each.domain == "")


def check_equal(classifier: Classifier, images: Array = IMAGES, place: str = "graph", atol: float = 1e-5) -> Any:
    """Assert that the embedded network has the outputs of the classifier for batches of 1, 2 and 7 images."""
    network = make_network(classifier, images.shape[1:])
    for count in (1, 2, 7):
        batch = images[:count]
        (found,) = run_embedded([network], [make_inputs(classifier, batch)], place)
        np.testing.assert_allclose(found, classifier(batch), atol=atol)
    return network


# --- ONNX files ---


@pytest.mark.parametrize("place", PLACES)
def test_a_file_has_the_outputs_of_its_classifier(place: str, tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.onnx", PLAIN)
    network = check_equal(load_onnx(file, mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.25)), place=place)
    assert abs(network.ByteSize() - file.stat().st_size) < 100


@pytest.mark.parametrize("place", PLACES)
def test_no_tensor_has_a_name_of_the_exported_file(place: str, tmp_path: Path) -> None:
    text = PLAIN.replace("features", "label").replace("flat", "looks").replace("logits", "probabilities")
    branches = """If (yes) <
        then_branch = then () => (accept) { accept = Relu (label) },
        else_branch = other () => (labels) { confidence = Neg (label) labels = Neg (confidence) }
    >"""
    file = write_model(tmp_path / "m.onnx", text.replace("Relu (label)", branches), yes=np.array(True))
    network = check_equal(load_onnx(file), place=place)
    names = onnx.printer.to_text(network)
    assert not any(
        f" {name} " in names or f"({name}" in names for name in (ExportRecord.INPUT, "label", *FileOutputs._fields)
    )
    members = make_networks([load_onnx(file)] * 2, SHAPE)
    two = run_embedded(members, [make_inputs(load_onnx(file), IMAGES)] * 2)
    np.testing.assert_array_equal(two[0], two[1])


def list_weights_as_inputs(model: Any) -> None:
    model.ir_version = 3
    model.graph.input.extend(describe_value(name, np.float32, array.shape) for name, array in WEIGHTS.items())


OWN_FUNCTION = '<domain: "own", opset_import: ["": 17]> Activation (x) => (y) { z = Relu (x) y = Identity (z) }'
SCALER = "wide = Flatten (pooled) flat = ai.onnx.ml.Scaler <offset=[0.5], scale=[2.0]> (wide)"
MEAN_OF_AXES = ("GlobalAveragePool (positive)", "ReduceMean <axes=[2, 3]> (positive)")
CAST_INPUT = ("features = Conv (images", "as_float = Cast <to=1> (images) features = Conv (as_float")
CAST_OUTPUT = ("logits = Gemm <transB=1> (flat, matrix, offset)", "exact = Gemm <transB=1> (flat, matrix, offset) ")


@pytest.mark.parametrize(
    ("changes", "change", "versions"),
    [
        ([("18", "13"), MEAN_OF_AXES], None, {"": LOWEST_OPSET}),
        ([("18", "17"), MEAN_OF_AXES], None, {"": LOWEST_OPSET}),
        ([("18", "21")], None, {"": 21}),
        ([("18", "8")], list_weights_as_inputs, {"": LOWEST_OPSET}),
        ([('"": 18', '"": 18, "own": 1'), ("Relu", "own.Activation"), ("}", "}" + OWN_FUNCTION)], None, {"": 18}),
        ([('"": 18', '"": 18, "ai.onnx.ml": 3'), ("flat = Flatten (pooled)", SCALER)], None, {"": 18, "ai.onnx.ml": 3}),
        ([("float[n, 3", "uint8[n, 3"), CAST_INPUT], None, {"": 18}),
        (
            [("float[", "float16["), CAST_INPUT, (CAST_OUTPUT[0], f"{CAST_OUTPUT[1]} logits = Cast <to=10> (exact)")],
            None,
            {"": 18},
        ),
    ],
    ids=["opset 13", "opset 17", "newer opset", "weights among inputs", "functions", "domain", "uint8", "float16"],
)
def test_other_forms_of_files(changes: Sequence[tuple[str, str]], change: Any, versions: Any, tmp_path: Path) -> None:
    """Lower opsets are converted, higher ones kept, functions inlined, and inputs and outputs cast to their types."""
    text = PLAIN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = write_model(tmp_path / "m.onnx", text, change or (lambda model: None))
    network = check_equal(load_onnx(file), place="loop", atol=1e-4 if "float16" in text else 1e-5)
    assert {each.domain: each.version for each in network.opset_import} == versions
    assert len(network.graph.input) == 1
    assert not network.functions


def test_only_the_selected_output_is_computed(tmp_path: Path) -> None:
    text = PLAIN.replace("float[n, 5] logits", "float[n, 5] logits, float[n, 5] other")
    softer = "softer = Mul (flat, bias) other = Gemm <transB=1> (softer, matrix, offset) logits = Gemm"
    file = write_model(tmp_path / "m.onnx", text.replace("logits = Gemm", softer))
    other, network = (check_equal(load_onnx(file, output_name=name)) for name in ("other", "logits"))
    assert [each.graph.output[0].name for each in (other, network)] == ["0/other", "0/logits"]
    assert not {"0/softer", "0/other"} & {name for node in network.graph.node for name in node.output}


@pytest.mark.posix
def test_external_data_are_read_through_links(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path / "plain.onnx", PLAIN))
    folder, cache = tmp_path / "blobs", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    for name in ("m.onnx", "w"):
        (cache / name).symlink_to(folder / name)
    for file in (folder / "m.onnx", cache / "m.onnx"):
        classifier = load_onnx(file)
        check_equal(classifier)
        assert isinstance(classifier, OnnxClassifier)
        assert networks.measure_files(classifier) == (folder / "m.onnx").stat().st_size + (folder / "w").stat().st_size


def test_external_data_elsewhere_are_not_read(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.onnx", PLAIN)
    classifier = load_onnx(file)
    (tmp_path / "secret").write_bytes(WEIGHTS["bias"].tobytes())

    def move(model: Any) -> None:
        bias = next(tensor for tensor in model.graph.initializer if tensor.name == "bias")
        onnx.external_data_helper.set_external_data(bias, str(tmp_path / "secret"))
        bias.ClearField("raw_data")

    write_model(file, PLAIN, move)
    with pytest.raises(ClassifierError, match="secret"):
        make_network(classifier)


def make_bias_sparse(model: Any) -> None:
    values = onnx.numpy_helper.from_array(WEIGHTS["bias"][:1], "bias")
    indices = onnx.numpy_helper.from_array(np.array([0]), "indices")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    model.graph.initializer.remove(next(each for each in model.graph.initializer if each.name == "bias"))


@pytest.mark.parametrize(
    ("old", "new", "change", "told"),
    [
        ("[n,", "[4,", None, r"m\.onnx.* 4\b"),
        ("Flatten (pooled)", "Reshape (pooled, shape)", None, r"m\.onnx"),
        ("", "", make_bias_sparse, r"m\.onnx"),
    ],
    ids=["fixed batch size", "batch size that is fixed inside", "sparse weights"],
)
def test_files_that_cannot_be_embedded_are_rejected(old: str, new: str, change: Any, told: str, tmp_path: Path) -> None:
    text = PLAIN.replace(old, new) if old else PLAIN
    file = write_model(tmp_path / "m.onnx", text, change or (lambda model: None), shape=np.array([1, 4]))
    with pytest.raises((ClassifierError, ExportError) if "shape)" in text else ExportError, match=told):
        make_network(load_onnx(file))


def test_replaced_files_and_unknown_opsets_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs are the same within all tolerances, but the policy is for another file."""
    classifier = load_onnx(write_model(tmp_path / "m.onnx", PLAIN))
    write_model(tmp_path / "m.onnx", PLAIN, lambda model: setattr(model, "doc_string", "another one"))
    with pytest.raises(ExportError, match=r"m\.onnx"):
        make_network(classifier)
    older = load_onnx(write_model(tmp_path / "n.onnx", PLAIN.replace("18", "17")))
    monkeypatch.setattr(OnnxClassifier, "is_unchanged", lambda self: True)
    write_model(tmp_path / "n.onnx", PLAIN.replace("18", "9").replace("Relu", "ThresholdedRelu"))
    with pytest.raises(ExportError, match=r"n\.onnx.* 9 .* 18"):
        make_network(older)


@pytest.mark.parametrize(("output", "is_accepted"), [("logits", True), ("probabilities", False)])
def test_probabilities_are_compared_more_closely(
    output: Any, is_accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 1,000 classes has a probability of about 0.001, which a difference of 0.0005 changes a lot."""
    classifier = load_onnx(write_model(tmp_path / "m.onnx", PLAIN))
    expected = np.full((networks.CHECKED_IMAGES, 1000), 1e-3, np.float32)
    monkeypatch.setattr(classifier, "output", output)
    monkeypatch.setattr(type(classifier), "__call__", lambda *_: expected)
    monkeypatch.setattr(networks, "_run", lambda *_: expected + np.float32(5e-4))
    if is_accepted:
        make_network(classifier)
    else:
        with pytest.raises(ExportError, match=r"m\.onnx"):
            make_network(classifier)


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
@pytest.mark.parametrize("name", ["cifar10/resnet20.onnx", "cifar10-jpeg/wrn16-2-seed0.onnx"])
def test_real_networks_have_the_outputs_of_their_classifiers(name: str) -> None:
    with np.load(SHARED / "cifar10" / "test.npz") as data:
        images = data["images"][:16]
    classifier = load_onnx(SHARED / name)
    network = make_network(classifier, (32, 32, 3))
    inputs = make_inputs(classifier, images)
    for place in PLACES:
        np.testing.assert_allclose(run_embedded([network], [inputs], place)[0], classifier(images), atol=1e-4)
    assert network.ByteSize() <= (SHARED / name).stat().st_size


# --- Ensembles ---


def test_members_share_the_opset_and_have_separate_names(tmp_path: Path) -> None:
    texts = [PLAIN.replace("18", "17"), PLAIN, PLAIN.replace("18", "20").replace("Relu", "Elu")]
    files = [write_model(tmp_path / f"{number}.onnx", text) for number, text in enumerate(texts)]
    members = [load_onnx(file, mean=0.1 * number) for number, file in enumerate(files)]
    networks = make_networks(members, SHAPE)
    assert {_get_opset(network) for network in networks} == {20}
    inputs = [make_inputs(member, IMAGES) for member in members]
    for found, member in zip(run_embedded(networks, inputs), members, strict=True):
        np.testing.assert_allclose(found, member(IMAGES), atol=1e-5)


def test_members_with_nested_branches_keep_separate_tensors(tmp_path: Path) -> None:
    branches = """If (yes) <
        then_branch = then () => (kept) {
            kept = If (yes) <
                then_branch = inner_then () => (deep) { scaled = Mul (features, two) deep = Relu (scaled) },
                else_branch = inner_else () => (deep_too) { deep_too = Neg (features) }
            >
        },
        else_branch = other () => (negated) { negated = Neg (features) }
    >"""
    text, yes = PLAIN.replace("Relu (features)", branches), np.array(True)
    factors = [np.array(number, np.float32) for number in (1, 2)]
    members = [load_onnx(write_model(tmp_path / f"{two:g}.onnx", text, two=two, yes=yes)) for two in factors]
    first, second = run_embedded(make_networks(members, SHAPE), [make_inputs(each, IMAGES) for each in members])
    np.testing.assert_allclose(first, members[0](IMAGES), atol=1e-5)
    np.testing.assert_allclose(second, members[1](IMAGES), atol=1e-5)
    assert np.abs(first - second).max() > 0.01


def test_members_too_large_together_are_rejected_before_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [load_onnx(write_model(tmp_path / f"{number}.onnx", PLAIN)) for number in range(3)]
    size = (tmp_path / "0.onnx").stat().st_size
    monkeypatch.setattr(networks, "MAX_BYTES", 2 * size)
    assert len(make_networks(members[:2], SHAPE)) == 2
    monkeypatch.setattr(networks, "_load_file", lambda _: pytest.fail("a file is read"))
    with pytest.raises(ExportError, match=r"0\.onnx.*1\.onnx.*2\.onnx"):
        make_networks(members, SHAPE)


def test_members_with_different_versions_of_other_operators_are_rejected(tmp_path: Path) -> None:
    text = PLAIN.replace("flat = Flatten (pooled)", "wide = Flatten (pooled) flat = ai.onnx.ml.Normalizer (wide)")
    members = []
    for version in (1, 3):
        versions = f'"": 18, "ai.onnx.ml": {version}'
        file = write_model(tmp_path / f"{version}.onnx", text.replace('"": 18', versions))
        members.append(load_onnx(file))
    with pytest.raises(ExportError, match=r"1\.onnx.*ai\.onnx\.ml.* 1\b.* 3\b"):
        make_networks(members, SHAPE)


# --- Torch ---


def make_module(*, probabilities: bool = False, channels_last: bool = False) -> Any:
    """Return a small network with batch normalization and dropout that were trained on noise."""
    torch = pytest.importorskip("torch")

    class Permute(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            return inputs.permute(0, 3, 1, 2)

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *([Permute()] if channels_last else []),
        torch.nn.Conv2d(3, 6, 3, padding=1),
        torch.nn.BatchNorm2d(6),
        torch.nn.ReLU(),
        torch.nn.Dropout(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 5),
        *([torch.nn.Softmax(1)] if probabilities else []),
    )
    shape = (32, 8, 8, 3) if channels_last else (32, 3, 8, 8)
    module.train()(torch.randn(shape) + 1)
    return module


def test_a_module_has_the_outputs_of_its_classifier(capfd: pytest.CaptureFixture[str]) -> None:
    module = make_module()
    before = copy.deepcopy(module.state_dict())
    classifier = load_classifier(module, output="logits", mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.25))
    network = check_equal(classifier, place="loop")
    assert _get_opset(network) == LOWEST_OPSET
    assert all(part.training for part in module.modules())
    assert all((value == before[name]).all() for name, value in module.state_dict().items())
    content = network.SerializeToString()
    assert b".py" not in content
    assert not network.graph.metadata_props, "descriptions of torch, larger than all that is added"
    assert capfd.readouterr() == ("", "")


def test_too_large_a_module_is_rejected_before_it_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = load_classifier(make_module(), output="logits", name="mine")
    monkeypatch.setattr(networks, "MAX_BYTES", 1000)
    monkeypatch.setattr(type(classifier), "copy_for_export", lambda _: pytest.fail("the module is copied"))
    with pytest.raises(ExportError, match="'mine'"):
        make_network(classifier)


def make_module_from_pixels() -> Any:
    """Return a module that takes uint8, and differs in training."""
    torch = pytest.importorskip("torch")

    class FromPixels(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_module()

        def forward(self, inputs: Any) -> Any:
            return self.inner(inputs.float() / 255) * (2 if self.training else 1)

    return FromPixels()


def make_transformer() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    return transformers.ViTForImageClassification(config)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: make_module(probabilities=True, channels_last=True), {"output": "probabilities", "layout": "NHWC"}),
        (make_module, {"output": "logits", "input_dtype": "float16"}),
        (make_module_from_pixels, {"output": "logits", "input_dtype": "uint8"}),
        (make_transformer, {"output": "logits"}),
    ],
    ids=["probabilities, channels last", "half precision", "pixels", "transformers"],
)
def test_other_modules_have_the_outputs_of_their_classifiers(make: Callable[[], Any], options: Any) -> None:
    check_equal(load_classifier(make(), **options))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torch_export_and_torchscript_files(tmp_path: Path) -> None:
    module = make_module().eval()
    torch = sys.modules["torch"]
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "m.pt2")
    check_equal(load_classifier(f"torch:{tmp_path / 'm.pt2'}", output="logits"))
    fixed = torch.export.export(module, (torch.zeros(4, 3, 8, 8),))
    torch.export.save(fixed, tmp_path / "fixed.pt2")
    with pytest.raises(ExportError, match=r"fixed\.pt2.* 4\b"):
        make_network(load_classifier(f"torch:{tmp_path / 'fixed.pt2'}", output="logits"))
    torch.jit.script(make_module(probabilities=True)).save(tmp_path / "m.pt")
    check_equal(load_classifier(f"torch:{tmp_path / 'm.pt'}", output="probabilities"))


def test_non_float32_or_unexportable_modules_are_rejected(
    capfd: pytest.CaptureFixture[str],
) -> None:
    torch = pytest.importorskip("torch")

    class Branching(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            pooled = inputs.mean((2, 3))
            return pooled if pooled.sum() > 0 else -pooled

    for dtype in ("bfloat16", "float64"):
        with pytest.raises(ExportError, match=rf"'mine'.*{dtype}.*dtype='float32'"):
            make_network(load_classifier(make_module(), output="logits", dtype=dtype, name="mine"))
    with pytest.raises(ExportError, match="'mine'") as caught:
        make_network(load_classifier(Branching(), output="logits", name="mine"))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


# --- scikit-learn ---


@pytest.fixture(scope="session")
def digits() -> tuple[Array, Array]:
    """Digits as images, uint8 [N, 8, 8, 1], and their labels."""
    data, labels = load_digits(return_X_y=True)
    return (data.reshape(-1, 8, 8, 1) * 15).astype(np.uint8), labels


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "linear": lambda: LogisticRegression(max_iter=1000),
    "names": lambda: LogisticRegression(max_iter=1000),
    "pipeline": lambda: make_pipeline(StandardScaler(), PCA(20), LogisticRegression()),
    "forest": lambda: RandomForestClassifier(20, random_state=0),
    "network": lambda: MLPClassifier((16,), max_iter=1000, random_state=0),
    "calibrated": lambda: CalibratedClassifierCV(LinearSVC(random_state=0), cv=2),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_has_the_probabilities_of_scikit_learn(name: str, digits: tuple[Array, Array]) -> None:
    pytest.importorskip("skl2onnx")
    images, labels = digits
    targets = np.array(list("abcdefghij"))[labels] if name == "names" else labels
    estimator = ESTIMATORS[name]().fit(images[:400].reshape(400, -1) / np.float32(255), targets[:400])
    classifier = load_classifier(estimator)
    network = make_network(classifier, (8, 8, 1))
    assert _get_opset(network) >= LOWEST_OPSET
    assert len(network.graph.output) == 1
    # Thresholds of trees lie between pixels, and some on other pixels, so the inputs must be equal in every bit.
    inputs = make_inputs(classifier, images[400:])
    (found,) = run_embedded([network], [inputs], "loop")
    np.testing.assert_allclose(found, estimator.predict_proba(inputs), atol=1e-5)


def test_unknown_estimator_is_rejected() -> None:
    pytest.importorskip("skl2onnx")

    class Mine(LogisticRegression):  # type: ignore[misc]
        pass

    estimator = Mine().fit(IMAGES.reshape(7, -1) / 255, [0, 1, 2, 0, 1, 2, 0])
    with pytest.raises(ExportError, match=r"'mine'.*Mine"):
        make_network(load_classifier(estimator, name="mine"))


# --- Unsupported classifiers ---


def test_unsupported_classifier_is_rejected() -> None:
    for kind in (FunctionClassifier, RemoteClassifier):
        classifier = object.__new__(kind)
        classifier.name = "mine"
        with pytest.raises(ExportError, match=rf"'mine'.*{kind.__name__}.*onnx:FILE"):
            make_network(classifier)


@pytest.mark.parametrize(("package", "extra"), [("onnxscript", "export"), ("skl2onnx", "sklearn-onnx")])
def test_a_missing_package_names_its_extra(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = LogisticRegression().fit(IMAGES.reshape(7, -1) / 255, [0, 1, 2, 0, 1, 2, 0])
    classifier = (
        load_classifier(estimator) if package == "skl2onnx" else load_classifier(make_module(), output="logits")
    )
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*secondlook\[{extra}\]"):
        make_network(classifier)
