"""Exported files in the library: the decisions of the file, and no harm from files that are damaged or hostile."""

import hashlib
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from secondlook.arrays import Array
from secondlook.classifiers import Ensemble, OnnxFile, load_classifier
from secondlook.decisions import ExportedFile, ExportRecord, compile_policy, load_policy
from secondlook.decisions.exported_file import MAX_VIEWS, open_exported_file
from secondlook.errors import ClassifierError, DecisionError
from secondlook.onnx_export import export_onnx
from secondlook.policies import Binding, Guarantee, Policy, PolicyWarning, fit_schedule, read_policy
from tests.classifiers.test_damaged_files import N_FILES, damage
from tests.decisions.decider_files import RECORD, make_bright_policy, make_endless_loop, write_decider
from tests.onnx_export.conftest import make_images, make_policy, write_network
from tests.policy_maker import attach

IMAGES = np.random.default_rng(3).integers(0, 256, (9, 1, 1, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
"""Images of one color each. uint8 [9, 4, 4, 3]"""


def open_file(path: Path, **options: Any) -> ExportedFile:
    """Return the plan of the policy in an exported file."""
    if options:
        return open_exported_file(read_policy(path), Binding(path=path), **options)
    plan = compile_policy(load_policy(path))
    assert isinstance(plan, ExportedFile)
    return plan


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any, Policy]]:
    """Exported files by kind, each with the classifier and the policy that it was made from."""
    folder = tmp_path_factory.mktemp("exported")
    files = [write_network(folder / f"{seed}.onnx", seed=seed) for seed in (0, 1)]
    models = [load_classifier(f"onnx:{file}?mean=.5&std=.25") for file in files]
    images = make_images(120)
    made: dict[str, tuple[Path, Any, Policy]] = {}

    def export(kind: str, classifier: Any, rule: Policy, **options: Any) -> None:
        policy, _ = make_policy(classifier, images, rule)
        export_onnx(policy, folder / f"{kind}.onnx", classifier=classifier, **options)
        made[kind] = folder / f"{kind}.onnx", classifier, policy

    _, preds = make_policy(models[0], images, Policy(threshold=0.7, method="mean"))
    schedule = fit_schedule(preds, Policy(threshold=0.7, method="mean"), tolerance=0.02)
    export("plain", models[0], Policy(threshold=0.7, method="mean"))
    export("float32", models[0], Policy(threshold=0.7, method="mean"), pixels="float32")
    export("adaptive", models[0], Policy(threshold=0.7, method="mean", schedule=schedule))
    export("top-2", models[0], Policy(threshold=0.9, method="blend", top_k=2))
    export("ensemble", Ensemble(models), Policy(threshold=0.5, method="mean", predict_from="views"))
    return made


@pytest.mark.parametrize("kind", ["plain", "float32", "adaptive", "top-2", "ensemble"])
def test_decisions_are_those_of_the_policy(exported: dict[str, Any], tmp_path: Path, kind: str) -> None:
    path, classifier, policy = exported[kind]
    policy.save(tmp_path / "policy.json")
    library = load_policy(tmp_path / "policy.json", classifier=classifier)
    decider = load_policy(path)
    assert decider == policy
    images = make_images(20, seed=5)
    if kind == "float32":  # views of pixels that are not whole are not rounded
        images = images.astype(np.float32) / np.float32(255)
    options: dict[str, Any] = {"interval": True, "level": 0.9, "seed": 3}
    for image in images:
        mine, theirs = library.decide(image, **options), decider.decide(image, **options)
        for name, expected in vars(mine).items():
            # A turned or shrunk pixel may be rounded to its neighbor.
            close = pytest.approx(expected, abs=2e-3) if isinstance(expected, float | tuple) else expected
            assert getattr(theirs, name) == close, name
    looks = {decider.decide(image).looks for image in images}
    assert len(looks) > 1 if kind == "adaptive" else looks == {len(policy.views)}


def test_batches_do_not_matter(exported: dict[str, Any]) -> None:
    images = make_images(17, seed=6)
    for kind in ("plain", "adaptive"):
        decider = open_file(exported[kind][0])
        whole = decider.decide_images(images)
        for size in (1, 5, 100):
            found = decider.decide_images(images, batch_size=size)
            for name in whole._fields:
                np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-5)
        with pytest.raises(Exception, match="0"):
            decider.decide_images(images, batch_size=0)


def test_pixels_become_those_of_the_file(exported: dict[str, Any]) -> None:
    images = make_images(5)
    floats = images.astype(np.float32) / np.float32(255)
    whole, real = (open_file(exported[kind][0]) for kind in ("plain", "float32"))
    np.testing.assert_array_equal(whole.decide_images(floats).view_outputs, whole.decide_images(images).view_outputs)
    np.testing.assert_array_equal(real.decide_images(floats).view_outputs, real.decide_images(images).view_outputs)
    rounded = whole.decide_images(np.clip(floats + np.float32(0.4 / 255), 0, 1))
    np.testing.assert_array_equal(rounded.view_outputs, whole.decide_images(images).view_outputs)


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (np.zeros((2, 5, 4, 3), np.uint8), "5 x 4 x 3"),
        (np.zeros((2, 4, 4, 1), np.uint8), "4 x 4 x 1"),
        (np.zeros((4, 4, 3), np.uint8), r"\[4, 4, 3\]"),
        (np.zeros((2, 4, 4, 3), np.float64), "float64"),
        (np.full((2, 4, 4, 3), 2, np.float32), "from 2 to 2"),
        (np.zeros((0, 4, 4, 3), np.uint8), "none"),
        ([[1]], "shape"),
    ],
)
def test_images_that_do_not_fit_are_an_error(tmp_path: Path, images: Any, told: str) -> None:
    decider = open_file(write_decider(tmp_path / "d.onnx"))
    with pytest.raises(DecisionError, match=told):
        decider.decide_images(images)


def test_images_of_several_sizes_keep_their_order(tmp_path: Path) -> None:
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'n.onnx')}?resize=16,16")
    policy, _ = make_policy(classifier, make_images(), Policy(threshold=0.7, method="mean"))
    export_onnx(policy, tmp_path / "d.onnx", classifier=classifier)
    decider = open_file(tmp_path / "d.onnx")
    sides = [16, 20, 16, 31, 20, 16]
    images = [make_images(1, side, seed=number)[0] for number, side in enumerate(sides)]
    images[2] = images[2].astype(np.float32) / np.float32(255)
    together = decider.decide_images(images, batch_size=2)
    for number, image in enumerate(images):
        alone = decider.decide_images(image[None])
        np.testing.assert_allclose(together.view_outputs[number], alone.view_outputs[0], atol=1e-5)


def test_the_rule_decides_as_the_file_where_rounding_crosses_the_threshold(tmp_path: Path) -> None:
    """The confidence of the file is rounded to float32 after it has decided."""
    means = IMAGES.astype(np.float64).mean(axis=(1, 2, 3)) / 255
    exact = np.maximum(means, 1 - means)
    crossed = 0
    for place, confidence in enumerate(exact.tolist()):
        for threshold in (confidence, float(np.nextafter(confidence, 1))):
            policy = make_bright_policy(threshold)
            decided = open_file(write_decider(tmp_path / "d.onnx", policy)).decide_images(IMAGES)
            assert decided.accept[place] == (confidence >= threshold)
            np.testing.assert_array_equal(policy.accept(decided.confidence, method=policy.method), decided.accept)
            np.testing.assert_allclose(decided.confidence, exact, atol=1e-7)
            crossed += bool((np.float32(confidence) >= threshold) != decided.accept[place])
    assert crossed > 3


def test_a_mismatch_at_export_is_no_guarantee(tmp_path: Path) -> None:
    policy = make_bright_policy()
    certified = policy.model_copy(update={"guarantee": Guarantee(risk=0.1, delta=0.1)})
    assert load_policy(write_decider(tmp_path / "d.onnx", certified)).decide(IMAGES[0]).guarantee is not None
    other = load_policy(write_decider(tmp_path / "d.onnx", certified, record={"mismatch": "it is another one"}))
    assert other.decide(IMAGES[0]).guarantee is None
    assert compile_policy(other).policy == certified.model_copy(update={"guarantee": None})


def test_the_policy_in_a_file_is_loaded_like_any_other(tmp_path: Path) -> None:
    policy = make_bright_policy()
    file = write_decider(tmp_path / "d.onnx", policy)
    assert load_policy(file) == read_policy(file) == policy
    assert not read_policy(file).was_changed
    changed = policy.model_dump_json().replace("0.6", "0.5")
    write_decider(file, metadata={Policy.METADATA: changed})
    with pytest.warns(PolicyWarning, match=r"d\.onnx"):
        assert read_policy(file).was_changed


def test_a_classifier_has_no_policy(tmp_path: Path) -> None:
    file = write_network(tmp_path / "n.onnx")
    for load in (read_policy, load_policy):
        with pytest.raises(DecisionError, match=r"n\.onnx.*export a policy"):
            load(file)
    with pytest.raises(DecisionError, match=r"policy\.json"):
        load_policy(tmp_path / "policy.json")


def test_metadata_and_opset_are_read_without_onnx(tmp_path: Path) -> None:
    file = write_decider(tmp_path / "d.onnx", metadata={"other": "Zürich", "empty": ""})
    assert OnnxFile(file, "d").read_metadata() == {
        Policy.METADATA: make_bright_policy().model_dump_json(),
        ExportRecord.METADATA: json.dumps(RECORD),
        "other": "Zürich",
        "empty": "",
        "secondlook.checksum": hashlib.sha256(file.read_bytes()[:-89]).hexdigest(),
    }
    assert OnnxFile(file, "d").read_opset() == 18
    model = onnx.load(file)
    model.opset_import.insert(0, helper.make_opsetid("com.example", 3))
    model.metadata_props.add(key="other", value="later")
    onnx.save(model, file)
    assert OnnxFile(file, "d").read_opset() == 18
    assert OnnxFile(file, "d").read_metadata()["other"] == "later"
    del model.opset_import[:]
    onnx.save(model, file)
    assert OnnxFile(file, "d").read_opset() is None


@pytest.mark.parametrize("content", [b"", b"\x00", b"not a model", b"\x72\x03\x0a\xff\xff"], ids=repr)
def test_what_is_not_a_model_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "d.onnx"
    file.write_bytes(content)
    with pytest.raises(ClassifierError, match=r"d\.onnx"):
        OnnxFile(file, "d.onnx").read_metadata()
    for load in (read_policy, load_policy):
        with pytest.raises(DecisionError, match=r"d\.onnx"):
            load(file)


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "d.onnx"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    for load in (read_policy, load_policy):
        with pytest.raises(DecisionError, match=r"d\.onnx"):
            load(file)


INVALID: dict[str, dict[str, Any]] = {
    "no record": {"metadata": {ExportRecord.METADATA: None}},
    "damaged record": {"metadata": {ExportRecord.METADATA: '{"version": 1'}},
    "record of another version": {"record": {"version": 2}},
    "unknown field": {"record": {"more": 1}},
    "number type": {"record": {"pixels": "float16"}},
    "two members with one output": {"record": {"members": 2}},
    "no classes": {"record": {"classes": 0}},
    "four channels": {"record": {"image_shape": [4, 4, 4]}},
    "another size": {"record": {"image_shape": [5, 4, 3]}},
    "another input type": {"record": {"pixels": "float32"}},
    "adaptive without a schedule": {"record": {"adaptive": True}},
    "damaged policy": {"metadata": {Policy.METADATA: "{}"}},
    "policy that is no JSON": {"metadata": {Policy.METADATA: "["}},
    "no policy": {"metadata": {Policy.METADATA: None}},
    "missing output": {"outputs": {"looks": None}},
    "additional output": {"outputs": {"exact": (TensorProto.DOUBLE, ["batch"])}},
    "output of another type": {
        "nodes": {"confidence": helper.make_node("Identity", ["exact"], ["confidence"])},
        "outputs": {"confidence": (TensorProto.DOUBLE, ["batch"])},
    },
    "output with another number of axes": {
        "nodes": {"label": helper.make_node("ArgMax", ["both"], ["label"], axis=1)},
        "outputs": {"label": (TensorProto.INT64, ["batch", 1])},
    },
    "unknown operator": {"nodes": {"confidence": helper.make_node("Nothing", ["exact"], ["confidence"])}},
    "cycle": {"nodes": {"mean": helper.make_node("Abs", ["bright"], ["mean"])}},
}


@pytest.mark.parametrize("fault", INVALID)
def test_invalid_files_are_not_opened(tmp_path: Path, fault: str) -> None:
    file = write_decider(tmp_path / "d.onnx", **INVALID[fault])
    with pytest.raises(DecisionError, match=r"d\.onnx") as error:
        open_file(file)
    assert len(str(error.value)) < 1000


def cast_to_float(source: str) -> dict[str, Any]:
    return {"confidence": helper.make_node("Cast", [source], ["confidence"], to=TensorProto.FLOAT)}


def cast_probabilities(source: str) -> dict[str, Any]:
    """Replace the probabilities, but not the outputs of looks."""
    return {
        "plain": helper.make_node("Cast", ["both"], ["plain"], to=TensorProto.FLOAT),
        "view_outputs": helper.make_node("Unsqueeze", ["plain", "last_axis"], ["view_outputs"]),
        "probabilities": helper.make_node("Cast", [source], ["probabilities"], to=TensorProto.FLOAT),
    }


LYING: dict[str, dict[str, Any]] = {
    "accepts everything": {"nodes": {"accept": helper.make_node("GreaterOrEqual", ["exact", "dark"], ["accept"])}},
    "rejects everything": {"nodes": {"accept": helper.make_node("Greater", ["exact", "white"], ["accept"])}},
    "class 300": {"nodes": {"label": helper.make_node("Expand", ["many", "count"], ["label"])}},
    "class -1": {"nodes": {"label": helper.make_node("Expand", ["few", "count"], ["label"])}},
    "300 looks": {"nodes": {"looks": helper.make_node("Expand", ["many", "count"], ["looks"])}},
    "no look": {"nodes": {"looks": helper.make_node("Expand", ["few", "count"], ["looks"])}},
    "confidence that is not a number": {"nodes": cast_to_float("not_a_number")},
    "infinite confidence": {"nodes": cast_to_float("infinite")},
    "outputs that are not numbers": {
        "nodes": {"probabilities": helper.make_node("Cast", ["not_numbers"], ["probabilities"], to=TensorProto.FLOAT)}
    },
    "probabilities that are not numbers": {"nodes": cast_probabilities("not_numbers")},
    "infinite probabilities": {"nodes": cast_probabilities("infinite_numbers")},
    "negative probabilities": {"nodes": cast_probabilities("negative")},
    "one row for all images": {"nodes": {"looks": helper.make_node("Identity", ["single"], ["looks"])}},
    "another number of classes": {"record": {"classes": 3}},
    "no such memory": {"nodes": {"bright": helper.make_node("ConstantOfShape", ["huge"], ["bright"])}},
    "fails": {"nodes": {"looks": helper.make_node("Gather", ["single", "count"], ["looks"])}},
}


@pytest.mark.parametrize("fault", LYING)
def test_invalid_results_are_an_error(tmp_path: Path, fault: str) -> None:
    settings = LYING[fault]
    constants = {"many": np.array([300]), "few": np.array([-1]), "huge": np.array([2**45])}
    steps = {
        "zero": helper.make_node("Sub", ["mean", "mean"], ["zero"]),
        "not_a_number": helper.make_node("Div", ["zero", "zero"], ["not_a_number"]),
        "infinite": helper.make_node("Div", ["one", "zero"], ["infinite"]),
        "column": helper.make_node("Unsqueeze", ["not_a_number", "last_axis"], ["column"]),
        "not_numbers": helper.make_node("Add", ["both", "column"], ["not_numbers"]),
        "infinite_column": helper.make_node("Unsqueeze", ["infinite", "last_axis"], ["infinite_column"]),
        "infinite_numbers": helper.make_node("Add", ["both", "infinite_column"], ["infinite_numbers"]),
        "negative": helper.make_node("Neg", ["both"], ["negative"]),
    }
    nodes = {**steps, **settings.get("nodes", {})}
    file = write_decider(tmp_path / "d.onnx", nodes=nodes, constants=constants, record=settings.get("record"))
    with pytest.raises(DecisionError, match=r"d\.onnx") as error:
        open_file(file).decide_images(IMAGES)
    assert len(str(error.value)) < 1000


def test_an_endless_loop_ends_at_the_timeout(tmp_path: Path) -> None:
    nodes = {"looped": make_endless_loop(), "bright": helper.make_node("Div", ["looped", "white"], ["bright"])}
    file = write_decider(tmp_path / "d.onnx", nodes=nodes, constants={"yes": np.array(True)})
    with pytest.raises(DecisionError, match=r"0\.3 seconds"):
        open_file(file, timeout=0.3).decide(IMAGES[0])


def test_loading_ends_at_the_timeout(tmp_path: Path) -> None:
    """ONNX Runtime computes what is constant while it loads a file, here products of large matrices."""
    side, products = 700, 60
    names = [f"product{number}" for number in range(products)]
    nodes = {
        "product0": helper.make_node("ConstantOfShape", ["sides"], ["product0"]),
        **{name: helper.make_node("MatMul", [before, before], [name]) for before, name in pairwise(names)},
        "largest": helper.make_node("ReduceMax", [names[-1]], ["largest"], keepdims=0),
        "exact_largest": helper.make_node("Cast", ["largest"], ["exact_largest"], to=TensorProto.DOUBLE),
        "dark": helper.make_node("Sub", ["exact_largest", "bright"], ["dark"]),
    }
    file = write_decider(tmp_path / "d.onnx", nodes=nodes, constants={"sides": np.array([side, side])})
    with pytest.raises(DecisionError, match=r"d\.onnx.*0\.01 seconds"):
        open_file(file, timeout=0.01)


def test_views_are_read_in_time_and_limited_in_number(tmp_path: Path) -> None:
    names = ("identity", *(f"shift:{number},1" for number in range(MAX_VIEWS)))
    policy = make_bright_policy()

    def write(count: int) -> Path:
        content = {**policy.model_dump(exclude={"checksum", "version"}), "views": names[:count]}
        return write_decider(tmp_path / "d.onnx", Policy.model_validate(content))

    started = time.process_time()
    open_file(write(MAX_VIEWS))
    assert time.process_time() - started < 2, "sets of the first 1, 2, 3 ... views would take 10 seconds"
    with pytest.raises(DecisionError, match=r"1,001 views"):
        open_file(write(MAX_VIEWS + 1))


def test_preprocessing_that_is_not_valid_is_an_error(tmp_path: Path) -> None:
    policy = make_bright_policy()
    for settings in ({"resize": -1}, {"unknown": 1}, {"mean": {"red": 1}}, {"crop": [[1]]}):
        content = policy.model_dump(exclude={"checksum", "version"})
        content["classifier"] = {**content["classifier"], "preprocessing": settings}
        file = write_decider(tmp_path / "d.onnx", Policy.model_validate(content))
        with pytest.raises(DecisionError) as error:
            open_file(file)
        assert len(str(error.value)) < 1000


@pytest.fixture
def resizing(tmp_path: Path) -> ExportedFile:
    """A file that resizes the shorter side to 64 pixels and crops."""
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'n.onnx')}?resize=64&crop=16")
    policy = attach(Policy(threshold=0.7, method="mean"), classifier=classifier, views=("identity", "hflip"))
    export_onnx(policy, tmp_path / "d.onnx", classifier=classifier)
    return open_file(tmp_path / "d.onnx")


def test_images_that_would_become_huge_are_refused(resizing: ExportedFile) -> None:
    strip = np.zeros((1, 60_000, 3), np.uint8)
    with pytest.raises(DecisionError, match=r"1 x 60000.*64 x 3840000"):
        resizing.decide_images(strip[None])
    with pytest.raises(DecisionError, match=r"image 1 .*60000"):
        resizing.decide_images([make_images(1, 20)[0], strip.transpose(1, 0, 2)])
    resizing.check_shape((10, 10_000, 3))
    resizing.check_shape((9000, 9000, 3))  # a large image becomes smaller


def test_batches_are_chosen_by_what_the_classifier_gets(
    resizing: ExportedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = ExportedFile._run

    def count(self: ExportedFile, images: Array) -> Any:
        sizes.append(len(images))
        return run(self, images)

    monkeypatch.setattr(ExportedFile, "_run", count)
    for side in (16, 900):  # by their own size, batches of these would be 8 / 2 views
        sizes.clear()
        resizing.decide_images(np.zeros((20, side, side, 3), np.uint8))
        assert sizes == [20]


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "missing.bin"])
def test_weights_elsewhere_are_not_read(tmp_path: Path, location: str) -> None:
    (tmp_path / "outside.bin").write_bytes(np.array(255.0).tobytes())
    (tmp_path / "inner").mkdir()
    file = write_decider(tmp_path / "inner" / "d.onnx")
    set_external(file, location)
    with pytest.raises(DecisionError, match=r"external data|not in the folder"):
        open_file(file)


def set_external(file: Path, location: str) -> None:
    """Let a constant of the file be kept elsewhere."""
    model = onnx.load(file, load_external_data=False)
    (white,) = (one for one in model.graph.initializer if one.name == "white")
    white.ClearField("raw_data")
    white.data_location = TensorProto.EXTERNAL
    white.external_data.add(key="location", value=location)
    file.write_bytes(OnnxFile.seal(model.SerializeToString()))


def test_weights_beside_the_file_are_not_read(tmp_path: Path) -> None:
    file = write_decider(tmp_path / "d.onnx")
    (tmp_path / "white.bin").write_bytes(np.array(255.0).tobytes())
    set_external(file, "white.bin")
    with pytest.raises(DecisionError, match="external data"):
        open_file(file)


def test_every_flipped_bit_is_an_error(exported: dict[str, Any], tmp_path: Path) -> None:
    content = exported["adaptive"][0].read_bytes()
    file = tmp_path / "d.onnx"
    rng = np.random.default_rng(4)
    places = [*rng.integers(0, 8 * len(content), 400).tolist(), 0, 8 * len(content) - 1]
    for place in places:
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        for load in (load_policy, read_policy):
            with pytest.raises(DecisionError, match=r"d\.onnx"):
                load(file)
    for changed in (content[:-1], content + b"\0", content[: len(content) // 2], content[:-100]):
        file.write_bytes(changed)
        with pytest.raises(DecisionError, match=r"d\.onnx"):
            open_file(file)


@pytest.mark.filterwarnings("ignore::secondlook.policies.PolicyWarning")
def test_damaged_files_with_a_new_checksum_work_or_are_an_error(tmp_path: Path) -> None:
    file = write_decider(tmp_path / "d.onnx")
    content, messages = file.read_bytes(), []
    for number in range(N_FILES):
        file.write_bytes(OnnxFile.seal(damage(content, number)))
        try:
            open_file(file, timeout=5).decide_images(IMAGES)
        except DecisionError as error:
            messages.append(str(error))
    assert len(messages) > N_FILES / 4
    assert max(map(len, messages)) < 1000
