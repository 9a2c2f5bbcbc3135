"""Torch modules, factories, exported programs and TorchScript."""

import io
import os
import pickle
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import load_classifier
from secondlook.errors import ClassifierError, MissingExtraError

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]

FACTORY = """
import torch
def make():
    parts = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(4, 5))
def nothing():
    return 3
"""


def expected(network: Any, images: Array) -> Array:
    logits: Array = network.logits(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    return logits


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
def test_a_module(channels_last: bool, torch_module: Any, network: Any, images: Array) -> None:
    classifier = load_classifier(torch_module, output="logits", channels_last=channels_last)
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=1e-4)


def test_training_flags_come_back_as_each_was(images: Array) -> None:
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(192), torch.nn.Dropout(), torch.nn.Linear(192, 3)
    )
    module.train()
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    classifier = load_classifier(module, output="logits")
    np.testing.assert_array_equal(classifier(images), classifier(images))
    assert [part.training for part in module.modules()] == [True, True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_flags_come_back_after_a_failure_too(images: Array) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 3)).train()
    with pytest.raises(ClassifierError, match=r"failed on an input of \[7, 3, 8, 8\].*check the size and layout"):
        load_classifier(module, output="logits")(images)
    assert module.training


def test_another_dtype_is_set_on_a_copy(torch_module: Any, network: Any, images: Array) -> None:
    plain = load_classifier(torch_module, output="logits")
    half = load_classifier(torch_module, output="logits", dtype="bfloat16", device="cpu")
    np.testing.assert_allclose(half(images), expected(network, images), atol=0.2)
    assert torch_module[0].weight.dtype == torch.float32
    assert half.digest != plain.digest
    with pytest.raises(ClassifierError, match="dtype='int8' is unknown; allowed: float32"):
        load_classifier(torch_module, output="logits", dtype="int8")


def test_a_device_that_is_not_there_is_said(torch_module: Any) -> None:
    with pytest.raises(ClassifierError, match=r"device='no-such-device' cannot be used: .*choose 'cpu'"):
        load_classifier(torch_module, output="logits", device="no-such-device")


def test_the_output_must_be_stated(torch_module: Any) -> None:
    with pytest.raises(ClassifierError, match="pass output='logits' or output='probabilities'"):
        load_classifier(torch_module)


def test_the_digest_is_that_of_the_weights(torch_module: Any) -> None:
    before = load_classifier(torch_module, output="logits").digest
    assert load_classifier(torch_module, output="logits").digest == before
    with torch.no_grad():
        torch_module[4].bias[0] += 1
    assert load_classifier(torch_module, output="logits").digest != before


def test_answers_that_are_no_tensor_are_said(images: Array) -> None:
    class Pair(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            return inputs, inputs

    with pytest.raises(ClassifierError, match="answered tuple, not a tensor; wrap the module"):
        load_classifier(Pair(), output="logits")(images)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_factory_with_weights(
    suffix: str, wrapped: bool, factory: str, torch_module: Any, network: Any, images: Array, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    file = tmp_path / f"weights{suffix}"
    state = torch_module.state_dict()
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save({"state_dict": {f"module.{name}": each for name, each in state.items()}} if wrapped else state, file)
    classifier = load_classifier(factory, output="logits", weights=str(file))
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=1e-4)


def test_weights_of_another_architecture_are_said(factory: str, torch_module: Any, tmp_path: Path) -> None:
    state = torch_module.state_dict()
    torch.save({**state, "9.extra": state["4.bias"]}, tmp_path / "more.pt")
    with pytest.raises(ClassifierError, match=r"missing \[\], unexpected \['9.extra'\]"):
        load_classifier(factory, output="logits", weights=str(tmp_path / "more.pt"))
    torch.save({**state, "4.bias": torch.zeros(7)}, tmp_path / "wide.pt")
    with pytest.raises(ClassifierError, match=r"do not fit .* size mismatch for 4.bias"):
        load_classifier(factory, output="logits", weights=str(tmp_path / "wide.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ClassifierError, match="holds list, not a state dict"):
        load_classifier(factory, output="logits", weights=str(tmp_path / "list.pt"))
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(ClassifierError, match="is not a safetensors file"):
        load_classifier(factory, output="logits", weights=str(tmp_path / "broken.safetensors"))
    with pytest.raises(ClassifierError, match=r"weights='gone\.pt' of .* does not exist"):
        load_classifier(factory, output="logits", weights="gone.pt")


class Malice:
    """An object whose unpickling leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._trace),)


def test_weights_that_hold_code_are_not_run(factory: str, tmp_path: Path) -> None:
    torch.save({"0.weight": Malice(tmp_path / "trace")}, tmp_path / "evil.pt")
    with pytest.raises(ClassifierError, match="anything else is not loaded because it could run code"):
        load_classifier(factory, output="logits", weights=str(tmp_path / "evil.pt"))
    assert not (tmp_path / "trace").exists()


def test_a_factory_that_makes_something_else_is_said(factory: str) -> None:
    with pytest.raises(ClassifierError, match=r"gave int, not a torch\.nn\.Module"):
        load_classifier("torch:tiny_factory:nothing", output="logits")


def test_an_exported_program(exported: Path, network: Any, images: Array) -> None:
    classifier = load_classifier(f"torch:{exported}", output="logits")
    assert classifier.preprocessing.input_size == (8, 8)
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=1e-4)
    np.testing.assert_allclose(classifier(images[:1]), expected(network, images[:1]), atol=1e-4)
    moved = load_classifier(f"torch:{exported}", output="logits", device="cpu")
    np.testing.assert_array_equal(moved(images), classifier(images))
    with pytest.raises(ClassifierError, match="leave dtype='float16' out"):
        load_classifier(f"torch:{exported}", output="logits", dtype="float16")


def test_an_exported_program_with_a_fixed_batch(torch_module: Any, network: Any, images: Array, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(torch_module.eval(), (torch.zeros(4, 3, 8, 8),)), tmp_path / "four.pt2")
    classifier = load_classifier(f"torch:{tmp_path / 'four.pt2'}", output="logits")
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=1e-4)


def test_an_exported_program_that_holds_code_is_not_run(exported: Path, tmp_path: Path) -> None:
    """torch.export.load itself falls back to plain unpickling; the example inputs are where such code would sit."""
    evil = io.BytesIO()
    torch.save(Malice(tmp_path / "trace"), evil)
    with zipfile.ZipFile(exported) as good, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, evil.getvalue() if "sample_inputs" in name else good.read(name))
    with pytest.raises(ClassifierError, match=r"cannot be opened as a torch.export file"):
        load_classifier(f"torch:{tmp_path / 'evil.pt2'}", output="logits")
    assert not (tmp_path / "trace").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    with zipfile.ZipFile(exported, "a") as archive:
        archive.writestr("tiny/data/constants/opaque_obj_0", pickle.dumps(Malice(tmp_path / "trace")))
    with pytest.raises(ClassifierError, match="holds pickled objects, which could run code"):
        load_classifier(f"torch:{exported}", output="logits")


def test_torch_script(torch_module: Any, network: Any, images: Array, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch_module), tmp_path / "tiny.pt")
    classifier = load_classifier(f"torch:{tmp_path / 'tiny.pt'}", output="logits")
    np.testing.assert_allclose(classifier(images), expected(network, images), atol=1e-4)


def test_files_that_are_neither_are_said(torch_module: Any, exported: Path, tmp_path: Path) -> None:
    torch.save(torch_module.state_dict(), tmp_path / "state.pt")
    with pytest.raises(ClassifierError, match=r"neither a torch.export file .* a state dict goes with its factory"):
        load_classifier(f"torch:{tmp_path / 'state.pt'}", output="logits")
    (tmp_path / "noise.pt2").write_bytes(b"noise")
    with pytest.raises(ClassifierError, match=r"neither a torch.export file"):
        load_classifier(f"torch:{tmp_path / 'noise.pt2'}", output="logits")
    with pytest.raises(ClassifierError, match="is a file with its own weights"):
        load_classifier(f"torch:{exported}", output="logits", weights="w.pt")


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'secondlook\[torch\]'"):
        load_classifier("torch:m.pt2", output="logits")


def test_networks_that_differ_beside_their_weights_are_told_apart() -> None:
    first = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=1), torch.nn.ReLU())
    second = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.GELU())
    second.load_state_dict(first.state_dict())
    same = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=1), torch.nn.ReLU())
    same.load_state_dict(first.state_dict())
    digests = [load_classifier(one, output="logits").digest for one in (first, second, same)]
    assert digests[0] == digests[2] != digests[1]


class Wrapping(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A network that calls its only part `module`, as torch calls what it spreads over several GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(12, 3)

    def forward(self, images: Any) -> Any:
        return self.module(images.flatten(1))


def test_weights_of_a_part_called_module_and_of_several_gpus_are_loaded(tmp_path: Path) -> None:
    torch.save(Wrapping().state_dict(), tmp_path / "own.pt")
    load_classifier(Wrapping(), output="logits", weights=str(tmp_path / "own.pt"))
    plain = torch.nn.Linear(12, 3)
    torch.save({f"module.{name}": value for name, value in plain.state_dict().items()}, tmp_path / "spread.pt")
    load_classifier(plain, output="logits", weights=str(tmp_path / "spread.pt"))


@pytest.mark.parametrize("content", [b"hello", b"", b"(", b"I1\n2", b"PK\x03\x04aaaa"])
def test_what_is_no_weights_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "weights.pt").write_bytes(content)
    with pytest.raises(ClassifierError, match=r"weights='.*weights\.pt' cannot be read as a plain state dict"):
        load_classifier(torch.nn.Linear(12, 3), output="logits", weights=str(tmp_path / "weights.pt"))
