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


@pytest.mark.parametrize(("channels_last", "expected"), [(None, False), (False, False), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_and_memory_format_of_a_module_on_the_cpu(
    channels_last: bool | None, expected: bool, dtype: str, torch_module: Any, images: Array, logits: Array
) -> None:
    formats = []

    class Recorder(torch.nn.Conv2d):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            formats.append(inputs.is_contiguous(memory_format=torch.channels_last))
            formats.append(self.weight.is_contiguous(memory_format=torch.channels_last))
            return super().forward(inputs).flatten(start_dim=1)

    recorder, classifier = (
        load_classifier(module, output="logits", channels_last=channels_last, dtype=dtype, device="cpu")
        for module in (Recorder(3, 2, 8), torch_module)
    )
    recorder(images)
    assert formats == [expected, expected]
    np.testing.assert_allclose(classifier(images), logits, atol=0.2 if dtype == "bfloat16" else 1e-4)
    assert torch_module[0].weight.dtype == torch.float32, "the module of the user is not changed"
    assert dtype == "float32" or classifier.digest != load_classifier(torch_module, output="logits").digest
    unknown: dict[str, Any] = {"dtype": "int8", "device": "no-such-device"}
    for option, value in unknown.items():
        with pytest.raises(ClassifierError, match=f"{option}='{value}'"):
            load_classifier(torch_module, output="logits", **{option: value})


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


def test_the_digest_depends_on_weights_and_layers(torch_module: Any) -> None:
    same, other, strided, trained = (copy.deepcopy(torch_module) for _ in range(4))
    other[1] = torch.nn.GELU()
    strided[0].stride = (2, 2)
    with torch.no_grad():
        trained[4].bias[0] += 1
    modules = (torch_module, same, other, strided, trained)
    digests = [load_classifier(module, output="logits").digest for module in modules]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_a_module_that_returns_no_tensor_or_has_fit_and_predict(images: Array) -> None:
    class Pair(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            return inputs, inputs

        def fit(self) -> None: ...

        def predict(self) -> None: ...

    classifier = load_classifier(Pair(), output="logits")
    assert isinstance(classifier, TorchClassifier), "it is not an estimator"
    with pytest.raises(ClassifierError, match="tuple"):
        classifier(images)


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
        ("evil.pt", lambda _: {"0.weight": RunsCode(Path("trace"))}, r"evil\.pt"),
        ("broken.safetensors", None, r"broken\.safetensors"),
        ("gone.pt", None, r"'gone\.pt'"),
    ],
)
def test_weights_that_do_not_fit_are_rejected_and_run_no_code(
    file: str, make: Any, offending: str, factory: str, torch_module: Any
) -> None:
    Path("broken.safetensors").write_bytes(b"x" * 20)
    if make is not None:
        torch.save(make(torch_module.state_dict()), file)
    with pytest.raises(ClassifierError, match=offending):
        load_classifier(factory, output="logits", weights=file)
    assert not Path("trace").exists()
    with pytest.raises(ClassifierError, match="int"):
        load_classifier("torch:tiny_factory:make_number", output="logits")


def test_an_exported_program_has_the_expected_output(
    exported: Path, torch_module: Any, images: Array, logits: Array
) -> None:
    four = torch.export.export(torch_module.eval(), (torch.zeros(4, 3, 8, 8),))
    torch.export.save(four, exported.with_name("four.pt2"))
    for name in ("tiny.pt2", "four.pt2"):
        classifier = load_classifier(f"torch:{exported.with_name(name)}", output="logits")
        assert classifier.preprocessing.input_size == (8, 8)
        np.testing.assert_allclose(classifier(images), logits, atol=1e-4)
        np.testing.assert_allclose(classifier(images[:1]), logits[:1], atol=1e-4)
        moved = load_classifier(f"torch:{exported.with_name(name)}", output="logits", device="cpu")
        np.testing.assert_array_equal(moved(images), classifier(images))


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


def test_other_files_are_rejected(torch_module: Any, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch_module.state_dict(), exported.with_name("state.pt"))
    exported.with_name("noise.pt2").write_bytes(b"noise")
    for name, found in (
        ("state.pt", r"state\.pt.*weights="),
        ("noise.pt2", r"noise\.pt2"),
        ("tiny.pt2?weights=w.pt", "weights="),
        ("tiny.pt2?dtype=float16", "dtype='float16'"),
    ):
        with pytest.raises(ClassifierError, match=found):
            load_classifier(f"torch:{exported.parent}/{name}", output="logits")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'secondlook\[torch\]'"):
        load_classifier("torch:m.pt2", output="logits")


def test_the_prefix_of_data_parallel_is_stripped_only_if_added(tmp_path: Path) -> None:
    for prefix in ("", "module."):
        # A network whose only layer is called like the prefix has it anyway.
        trained, untrained = (torch.nn.ModuleDict({"module": torch.nn.Linear(12, 3)}) for _ in range(2))
        if prefix:
            trained, untrained = trained["module"], untrained["module"]
        torch.save({f"{prefix}{name}": value for name, value in trained.state_dict().items()}, tmp_path / "w.pt")
        loaded = load_classifier(untrained, output="logits", weights=str(tmp_path / "w.pt"))
        assert loaded.digest == load_classifier(trained, output="logits").digest
