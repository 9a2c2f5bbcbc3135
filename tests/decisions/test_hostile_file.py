"""Exported files that are damaged or hostile: an error, and no harm."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from secondlook.classifiers import OnnxFile, load_classifier
from secondlook.decisions import ExportedFile, ExportRecord, load_policy
from secondlook.decisions.exported_file import MAX_VIEWS, open_exported_file
from secondlook.errors import ClassifierError, DecisionError
from secondlook.onnx_export import export_onnx
from secondlook.policies import Binding, Policy, PolicyWarning, read_policy
from tests.classifiers.test_damaged_files import N_FILES, damage
from tests.decisions.conftest import make_policy
from tests.decisions.decider_files import COLORS, RECORD, make_bright_policy, open_file, write_decider
from tests.onnx_export.conftest import write_network

LOADS = (read_policy, load_policy)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "d.onnx"


def open_in(file: Path, timeout: float) -> ExportedFile:
    return open_exported_file(read_policy(file), Binding(path=file), timeout=timeout)


def check_not_opened(file: Path, match: str = r"d\.onnx", loads: Any = (open_file,)) -> None:
    for load in loads:
        with pytest.raises(DecisionError, match=match) as error:
            load(file)
        assert len(str(error.value)) < 1000


def test_policy_metadata_and_opset_are_read(file: Path) -> None:
    policy = make_bright_policy()
    write_decider(file, policy)
    assert load_policy(file) == read_policy(file) == policy
    assert not read_policy(file).was_changed
    changed = policy.model_dump_json().replace("0.6", "0.5")
    write_decider(file, metadata={Policy.METADATA: changed})
    with pytest.warns(PolicyWarning, match=r"d\.onnx"):
        assert read_policy(file).was_changed
    write_decider(file, metadata={"other": "Zürich", "empty": ""})
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


def test_files_without_a_policy_are_rejected(file: Path, tmp_path: Path) -> None:
    check_not_opened(write_network(tmp_path / "n.onnx"), r"n\.onnx.*export a policy", LOADS)
    check_not_opened(tmp_path / "policy.json", r"policy\.json", LOADS)
    for content in (b"", b"\x00", b"not a model", b"\x72\x03\x0a\xff\xff"):
        file.write_bytes(content)
        with pytest.raises(ClassifierError, match=r"d\.onnx"):
            OnnxFile(file, "d.onnx").read_metadata()
        check_not_opened(file, loads=LOADS)


@pytest.mark.posix
@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, os.mkfifo], ids=["missing", "folder", "pipe"])
def test_only_regular_files_are_opened(file: Path, make: Any) -> None:
    make(file)
    check_not_opened(file, loads=LOADS)


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
        "nodes": "confidence = Identity(exact)",
        "outputs": {"confidence": (TensorProto.DOUBLE, ["batch"])},
    },
    "output with another number of axes": {
        "nodes": "label = ArgMax<axis = 1>(both)",
        "outputs": {"label": (TensorProto.INT64, ["batch", 1])},
    },
    "unknown operator": {"nodes": "confidence = Nothing(exact)"},
    **{
        f"preprocessing {settings}": {"policy": make_bright_policy(preprocessing=settings)}
        for settings in ({"resize": -1}, {"unknown": 1}, {"mean": {"red": 1}}, {"crop": [[1]]})
    },
    "cycle": {"nodes": "mean = Abs(bright)"},
}


@pytest.mark.parametrize("fault", INVALID)
def test_invalid_files_are_not_opened(file: Path, fault: str) -> None:
    check_not_opened(write_decider(file, **INVALID[fault]), "." if "preprocessing" in fault else r"d\.onnx")


NUMBERS = """
zero = Sub(mean, mean)
not_a_number = Div(zero, zero)
infinite = Div(one, zero)
column = Unsqueeze(not_a_number, last_axis)
not_numbers = Add(both, column)
infinite_column = Unsqueeze(infinite, last_axis)
infinite_numbers = Add(both, infinite_column)
negative = Neg(both)
"""
PLAIN = "plain = Cast<to = 1>(both)\nview_outputs = Unsqueeze(plain, last_axis)\n"
"""Outputs of looks that are not the probabilities."""
LYING = {
    "accepts everything": "accept = GreaterOrEqual(exact, dark)",
    "rejects everything": "accept = Greater(exact, white)",
    "class 300": "label = Expand(many, count)",
    "class -1": "label = Expand(few, count)",
    "300 looks": "looks = Expand(many, count)",
    "no look": "looks = Expand(few, count)",
    "confidence that is not a number": "confidence = Cast<to = 1>(not_a_number)",
    "infinite confidence": "confidence = Cast<to = 1>(infinite)",
    "outputs that are not numbers": "probabilities = Cast<to = 1>(not_numbers)",
    "probabilities that are not numbers": f"{PLAIN}probabilities = Cast<to = 1>(not_numbers)",
    "infinite probabilities": f"{PLAIN}probabilities = Cast<to = 1>(infinite_numbers)",
    "negative probabilities": f"{PLAIN}probabilities = Cast<to = 1>(negative)",
    "one row for all images": "looks = Identity(single)",
    "another number of classes": "",
    "no such memory": "bright = ConstantOfShape(huge)",
    "fails": "looks = Gather(single, count)",
}


@pytest.mark.parametrize("fault", LYING)
def test_invalid_results_are_an_error(file: Path, fault: str) -> None:
    constants = {"many": np.array([300]), "few": np.array([-1]), "huge": np.array([2**45])}
    record = {"classes": 3} if fault == "another number of classes" else {}
    write_decider(file, nodes=NUMBERS + LYING[fault], constants=constants, record=record)
    check_not_opened(file, loads=[lambda path: open_file(path).decide_images(COLORS)])


@pytest.mark.parametrize(
    "fault", ["Sub(zero, one)", "Identity(not_a_number)", "Identity(number)", "Cast<to = 1>(one)", ""]
)
def test_invalid_familiarity_is_an_error(file: Path, fault: str) -> None:
    """It accepts unfamiliar images, or its familiarity is not a number, has another shape or type, or is not there."""
    policy = make_bright_policy().replace(familiarity={"limit": 0.5, "budget": 0.1, "images": 9, "given_up": 0})
    outputs: dict[str, Any] = {"familiarity": (TensorProto.DOUBLE, ["batch"])}
    options: dict[str, Any] = {"outputs": outputs, "constants": {"number": np.array([1.0])}}
    write_decider(file, policy, nodes=f"{NUMBERS}familiarity = Add(zero, one)", **options)
    assert {one.rejection for one in map(load_policy(file).decide, COLORS)} == {None, "unsure"}
    if not fault:
        options["outputs"] = {}
    write_decider(file, policy, nodes=f"{NUMBERS}familiarity = {fault or 'Add(zero, one)'}", **options)
    check_not_opened(file, loads=[lambda path: open_file(path).decide_images(COLORS)])


def test_loading_and_endless_loops_end_at_the_timeout(file: Path) -> None:
    """ONNX Runtime computes what is constant while it loads a file, here products of large matrices."""
    products = "\n".join(f"p{number} = MatMul(p{number - 1}, p{number - 1})" for number in range(1, 60))
    largest = "largest = ReduceMax<keepdims = 0>(p59)\nexact_largest = Cast<to = 11>(largest)"
    nodes = f"p0 = ConstantOfShape(sides)\n{products}\n{largest}\ndark = Sub(exact_largest, bright)"
    write_decider(file, nodes=nodes, constants={"sides": np.array([700, 700])})
    with pytest.raises(DecisionError, match=r"d\.onnx.*0\.01 seconds"):
        open_in(file, 0.01)
    body = "body = steps (int64 step, bool before, double[] inner) => (bool go_on, double[] next)"
    loop = f"looped = Loop<{body} {{ go_on = Identity(before) next = Abs(inner) }}>(, yes, mean)"
    write_decider(file, nodes=f"{loop}\nbright = Div(looped, white)", constants={"yes": np.array(True)})
    with pytest.raises(DecisionError, match=r"0\.3 seconds"):
        open_in(file, 0.3).decide(COLORS[0])


def test_views_are_read_in_time_and_limited_in_number(file: Path) -> None:
    """Sets of the first 1, 2, 3 ... views would take calls in the square of their number."""
    names = ("identity", *(f"shift:{number},1" for number in range(MAX_VIEWS)))
    calls: list[str] = []
    write_decider(file, make_bright_policy(views=names[:MAX_VIEWS]))
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        open_file(file)
    finally:
        sys.setprofile(None)
    assert sum("secondlook" in name for name in calls) < 100 * MAX_VIEWS
    check_not_opened(write_decider(file, make_bright_policy(views=names)), "1,001 views")


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "missing.bin", "white.bin"])
def test_weights_in_other_files_are_not_read(tmp_path: Path, location: str) -> None:
    (tmp_path / "inner").mkdir()
    for path in (tmp_path / "outside.bin", tmp_path / "inner" / "white.bin"):
        path.write_bytes(np.array(255.0).tobytes())
    file = write_decider(tmp_path / "inner" / "d.onnx")
    model = onnx.load(file, load_external_data=False)
    (white,) = (one for one in model.graph.initializer if one.name == "white")
    white.ClearField("raw_data")
    white.data_location = TensorProto.EXTERNAL
    white.external_data.add(key="location", value=location)
    file.write_bytes(OnnxFile.seal(model.SerializeToString()))
    check_not_opened(file, "external data" if location == "white.bin" else r"external data|not in the folder")


def test_every_flipped_bit_is_an_error(tmp_path: Path, file: Path) -> None:
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'n.onnx')}")
    export_onnx(make_policy(classifier), tmp_path / "whole.onnx", classifier=classifier)
    content = (tmp_path / "whole.onnx").read_bytes()
    places = np.random.default_rng(4).integers(0, 8 * len(content), 400).tolist()
    for place in (*places, 0, 8 * len(content) - 1):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        check_not_opened(file, loads=LOADS)
    for changed in (content[:-1], content + b"\0", content[: len(content) // 2], content[:-100]):
        file.write_bytes(changed)
        check_not_opened(file)


@pytest.mark.filterwarnings("ignore::secondlook.policies.PolicyWarning")
def test_damaged_files_with_a_new_checksum_work_or_are_an_error(file: Path) -> None:
    content, messages = write_decider(file).read_bytes(), []
    for number in range(N_FILES):
        file.write_bytes(OnnxFile.seal(damage(content, number)))
        try:
            open_in(file, 120).decide_images(COLORS)
        except DecisionError as error:
            messages.append(str(error))
    assert len(messages) > N_FILES / 4
    assert max(map(len, messages)) < 1000
