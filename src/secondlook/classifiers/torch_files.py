"""Files of PyTorch: weights read as data only, exported programs, TorchScript."""

import os
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secondlook.classifiers.preprocessing import InputType
from secondlook.classifiers.tensor_input import TensorInput, tensor_input
from secondlook.errors import ClassifierError, MissingExtraError

if TYPE_CHECKING:
    import torch

INPUT_TYPES: dict[str, InputType] = {"torch.float32": "float32", "torch.float16": "float16", "torch.uint8": "uint8"}
PREFIX = "module."
WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts keep the state dict beside the rest of a checkpoint."""


def load_weights(module: "torch.nn.Module", file: Path, spec: str) -> None:
    """Put the weights of a safetensors file or a state dict into the module; every name must match."""
    if not file.is_file():
        raise ClassifierError(f"weights={str(file)!r} of {spec!r} does not exist; check the path.")
    state = _safetensors(file) if file.suffix == ".safetensors" else _state_dict(file)
    state = _without_prefix(state, module.state_dict())
    missing, unexpected = _compare(state, module.state_dict())
    if missing or unexpected:
        raise ClassifierError(
            f"weights={str(file)!r} do not belong to the module of {spec!r}: "
            f"missing {missing[:3]}, unexpected {unexpected[:3]}; use the weights of this architecture."
        )
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ClassifierError(f"weights={str(file)!r} do not fit {spec!r}: {reason}") from error


def _without_prefix(state: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the state without the prefix that a model trained on several GPUs carries on every name."""
    if any(name.startswith(PREFIX) for name in wanted) or not all(name.startswith(PREFIX) for name in state):
        return state
    return {name.removeprefix(PREFIX): value for name, value in state.items()}


def _compare(state: dict[str, Any], wanted: dict[str, Any]) -> tuple[list[str], list[str]]:
    return [name for name in wanted if name not in state], [name for name in state if name not in wanted]


def _safetensors(file: Path) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtraError("a safetensors file", "safetensors", "torch") from error
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ClassifierError(f"weights={str(file)!r} is not a safetensors file: {error}; check it.") from error


def _state_dict(file: Path) -> dict[str, Any]:
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError) as error:
        raise ClassifierError(
            f"weights={str(file)!r} cannot be read as a plain state dict, and anything else is not loaded because "
            "it could run code; save it with torch.save(module.state_dict(), FILE) or as safetensors."
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ClassifierError(f"weights={str(file)!r} holds {type(state).__name__}, not a state dict.")
    return state


def load_program(file: Path, spec: str, device: str | None) -> tuple["torch.nn.Module", TensorInput | None]:
    """Return the module of a torch.export or TorchScript file, and its input where the file describes it."""
    names = _names_in_archive(file)
    if any("/code/" in f"/{name}" for name in names) and not any(name.endswith(".json") for name in names):
        return _torch_script(file, spec), None
    if file.suffix == ".pt2" and names:
        return _exported(file, names, spec, device)
    raise ClassifierError(
        f"{spec!r} is neither a torch.export file (.pt2) nor TorchScript; "
        "a state dict goes with its factory: 'torch:package.module:factory' and weights=FILE."
    )


def _names_in_archive(file: Path) -> list[str]:
    if not zipfile.is_zipfile(file):
        return []
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def _torch_script(file: Path, spec: str) -> "torch.nn.Module":
    import torch

    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated, which is for whoever made the file to know, not for who uses it.
            warnings.simplefilter("ignore", DeprecationWarning)
            module: torch.nn.Module = torch.jit.load(file, map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise ClassifierError(f"{spec!r} is a damaged TorchScript file: {str(error).splitlines()[0]}") from error
    return module


def _exported(file: Path, names: list[str], spec: str, device: str | None) -> tuple["torch.nn.Module", TensorInput]:
    import torch

    if any("opaque_obj" in Path(name).name or "custom_obj" in Path(name).name for name in names):
        raise ClassifierError(f"{spec!r} holds pickled objects, which could run code; export it from tensors only.")
    try:
        with _data_only():
            program = torch.export.load(file)
    except (RuntimeError, ValueError, AssertionError, KeyError, pickle.UnpicklingError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClassifierError(
            f"{spec!r} cannot be opened as a torch.export file: {reason}; export it again."
        ) from error
    if device is not None:
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return program.module(), _input_of(program, spec)


@contextmanager
def _data_only() -> Iterator[None]:
    """Make torch.load refuse pickled code: torch.export.load falls back to it where the archive asks for it."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before


def _input_of(program: Any, spec: str) -> TensorInput:
    names = list(program.graph_signature.user_inputs)
    if len(names) != 1:
        raise ClassifierError(f"{spec!r} takes {len(names)} inputs; a classifier takes one batch of images.")
    tensor = next(node.meta["val"] for node in program.graph.nodes if node.name == names[0])
    return tensor_input(names[0], list(tensor.shape), str(tensor.dtype), INPUT_TYPES, spec)
