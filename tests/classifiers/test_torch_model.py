"""Torch modules, factories with weights, torch.export files and TorchScript files."""

import copy
import io
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import TorchClassifier, load_classifier
from secondlook.errors import ClassifierError, MissingExtraError
from tests.classifiers.conftest import RunsCode

torch = pytest.importorskip("torch")

FACTORY = """
import torch
def make():
    parts = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(4, 5))
def make_number():
    return 3
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tiny_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny_factory", raising=False)
    return "torch:tiny_factory:make"


@pytest.fixture
def exported(torch_module: Any, tmp_path: Path) -> Path:
    free = {"input": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(torch_module.eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "tiny.pt2")
    return tmp_path / "tiny.pt2"


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_module_has_the_expected_output(channels_last: bool, torch_module: Any, images: Array, logits: Array) -> None:
    classifier = load_classifier(torch_module, output="logits", channels_last=channels_last)
    np.testing.assert_allclose(classifier(images), logits, atol=1e-4)


def test_training_flags_are_restored(images: Array) -> None:
    parts = torch.nn.Flatten(), torch.nn.BatchNorm1d(192), torch.nn.Dropout(), torch.nn.Linear(192, 3)
    module = torch.nn.Sequential(*parts).train()
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    classifier = load_classifier(module, output="logits")
    np.testing.assert_array_equal(classifier(images), classifier(images))
    with pytest.raises(ClassifierError, match=r"\[7, 1, 8, 8\]"):
        classifier(images[..., :1])
    assert [part.training for part in module.modules()] == [True, True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_another_dtype_leaves_the_module_unchanged(torch_module: Any, images: Array, logits: Array) -> None:
    plain = load_classifier(torch_module, output="logits")
    half = load_classifier(torch_module, output="logits", dtype="bfloat16", device="cpu")
    np.testing.assert_allclose(half(images), logits, atol=0.2)
    assert torch_module[0].weight.dtype == torch.float32
    assert half.digest != plain.digest
    with pytest.raises(ClassifierError, match="dtype='int8'"):
        load_classifier(torch_module, output="logits", dtype="int8")
    with pytest.raises(ClassifierError, match="device='no-such-device'"):
        load_classifier(torch_module, output="logits", device="no-such-device")


def test_the_digest_depends_on_weights_and_layers(torch_module: Any) -> None:
    def digest(module: Any) -> str:
        return load_classifier(module, output="logits").digest

    other, before = copy.deepcopy(torch_module), digest(torch_module)
    assert digest(other) == before
    other[1] = torch.nn.GELU()
    assert digest(other) != before
    strided = copy.deepcopy(torch_module)
    strided[0].stride = (2, 2)
    assert digest(strided) != before
    with torch.no_grad():
        torch_module[4].bias[0] += 1
    assert digest(torch_module) != before


def test_outputs_that_are_not_a_tensor_are_rejected(images: Array) -> None:
    class Pair(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            return inputs, inputs

    with pytest.raises(ClassifierError, match="tuple"):
        load_classifier(Pair(), output="logits")(images)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_factory_loads_weights(
    suffix: str, wrapped: bool, factory: str, torch_module: Any, images: Array, logits: Array, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    file = tmp_path / f"weights{suffix}"
    state = torch_module.state_dict()
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save({"state_dict": {f"module.{name}": each for name, each in state.items()}} if wrapped else state, file)
    classifier = load_classifier(factory, output="logits", weights=str(file))
    np.testing.assert_allclose(classifier(images), logits, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "make", "offending"),
    [
        ("more.pt", lambda state: {**state, "9.extra": state["4.bias"]}, r"\['9\.extra'\]"),
        ("wide.pt", lambda state: {**state, "4.bias": torch.zeros(7)}, r"4\.bias"),
        ("list.pt", lambda _: [1, 2], r"list\.pt.* list"),
        ("broken.safetensors", None, r"broken\.safetensors"),
        ("gone.pt", None, r"'gone\.pt'"),
    ],
)
def test_weights_that_do_not_fit_are_rejected(
    file: str, make: Any, offending: str, factory: str, torch_module: Any, tmp_path: Path
) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 20)
    if make is not None:
        torch.save(make(torch_module.state_dict()), tmp_path / file)
    with pytest.raises(ClassifierError, match=offending):
        load_classifier(factory, output="logits", weights=file)


def test_code_in_weights_is_not_run_nor_other_factories_used(factory: str, tmp_path: Path) -> None:
    torch.save({"0.weight": RunsCode(tmp_path / "trace")}, tmp_path / "evil.pt")
    with pytest.raises(ClassifierError, match=r"evil\.pt"):
        load_classifier(factory, output="logits", weights=str(tmp_path / "evil.pt"))
    assert not (tmp_path / "trace").exists()
    with pytest.raises(ClassifierError, match="int"):
        load_classifier("torch:tiny_factory:make_number", output="logits")


def test_an_exported_program_has_the_expected_output(
    exported: Path, torch_module: Any, images: Array, logits: Array
) -> None:
    classifier = load_classifier(f"torch:{exported}", output="logits")
    assert classifier.preprocessing.input_size == (8, 8)
    np.testing.assert_allclose(classifier(images), logits, atol=1e-4)
    np.testing.assert_allclose(classifier(images[:1]), logits[:1], atol=1e-4)
    moved = load_classifier(f"torch:{exported}", output="logits", device="cpu")
    np.testing.assert_array_equal(moved(images), classifier(images))
    with pytest.raises(ClassifierError, match="dtype='float16'"):
        load_classifier(f"torch:{exported}", output="logits", dtype="float16")
    four = torch.export.export(torch_module.eval(), (torch.zeros(4, 3, 8, 8),))
    torch.export.save(four, exported.with_name("four.pt2"))
    fixed = load_classifier(f"torch:{exported.with_name('four.pt2')}", output="logits")
    np.testing.assert_allclose(fixed(images), logits, atol=1e-4)


def test_code_in_an_exported_program_is_not_run(exported: Path, tmp_path: Path) -> None:
    """torch.export.load falls back to plain unpickling, for example for the sample inputs."""
    evil = io.BytesIO()
    torch.save(RunsCode(tmp_path / "trace"), evil)
    with zipfile.ZipFile(exported) as good, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, evil.getvalue() if "sample_inputs" in name else good.read(name))
    with pytest.raises(ClassifierError, match=r"evil\.pt2"):
        load_classifier(f"torch:{tmp_path / 'evil.pt2'}", output="logits")
    assert not (tmp_path / "trace").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    with zipfile.ZipFile(exported, "a") as archive:
        archive.writestr("tiny/data/constants/opaque_obj_0", pickle.dumps(RunsCode(tmp_path / "trace")))
    with pytest.raises(ClassifierError, match=r"tiny\.pt2.*pickle"):
        load_classifier(f"torch:{exported}", output="logits")


def test_other_files_are_rejected(torch_module: Any, exported: Path, tmp_path: Path) -> None:
    torch.save(torch_module.state_dict(), tmp_path / "state.pt")
    with pytest.raises(ClassifierError, match=r"state\.pt.*weights="):
        load_classifier(f"torch:{tmp_path / 'state.pt'}", output="logits")
    (tmp_path / "noise.pt2").write_bytes(b"noise")
    with pytest.raises(ClassifierError, match=r"noise\.pt2"):
        load_classifier(f"torch:{tmp_path / 'noise.pt2'}", output="logits")
    with pytest.raises(ClassifierError, match="weights="):
        load_classifier(f"torch:{exported}", output="logits", weights="w.pt")


def test_a_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'secondlook\[torch\]'"):
        load_classifier("torch:m.pt2", output="logits")


def test_a_module_with_fit_and_predict_is_not_an_estimator(images: Array) -> None:
    class Trainable(torch.nn.Sequential):  # type: ignore[misc, name-defined]
        def fit(self) -> None: ...

        def predict(self) -> None: ...

    module = Trainable(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    assert isinstance(load_classifier(module, output="logits"), TorchClassifier)


class Wrapping(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A network whose only layer is called `module`, like the prefix that torch.nn.DataParallel adds."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(12, 3)


def test_the_prefix_of_data_parallel_is_stripped_only_if_added(tmp_path: Path) -> None:
    for trained, untrained, prefix in (
        (Wrapping(), Wrapping(), ""),
        (torch.nn.Linear(12, 3), torch.nn.Linear(12, 3), "module."),
    ):
        torch.save({f"{prefix}{name}": value for name, value in trained.state_dict().items()}, tmp_path / "w.pt")
        loaded = load_classifier(untrained, output="logits", weights=str(tmp_path / "w.pt"))
        assert loaded.digest == load_classifier(trained, output="logits").digest


def test_compile_is_passed_on(torch_module: Any, images: Array, compiled: list[Any]) -> None:
    plain = load_classifier(torch_module, output="logits")
    assert compiled == []
    classifier = load_classifier(torch_module, output="logits", compile=True, cuda_graphs=True)
    assert compiled == [torch_module]
    np.testing.assert_array_equal(classifier(images), plain(images))
    assert classifier.digest == plain.digest


@pytest.mark.parametrize(("channels_last", "expected"), [(None, False), (False, False), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_format_on_the_cpu_is_changed_on_request_only(
    channels_last: bool | None, expected: bool, dtype: str, images: Array
) -> None:
    formats = []

    class Recorder(torch.nn.Conv2d):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            formats.append(inputs.is_contiguous(memory_format=torch.channels_last))
            formats.append(self.weight.is_contiguous(memory_format=torch.channels_last))
            return super().forward(inputs).flatten(start_dim=1)

    classifier = load_classifier(Recorder(3, 2, 8), output="logits", channels_last=channels_last, dtype=dtype)
    classifier(images)
    assert formats == [expected, expected]
