"""PyTorch models: modules, factories with weights, torch.export files and TorchScript files."""

import copy
import hashlib
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from secondlook.arrays import Array, Output
from secondlook.classifiers.classifier import (
    Classifier,
    check_regular_file,
    describe_failure,
    digest_files,
    digest_with_options,
    find_model_file,
    run_in_batches,
)
from secondlook.classifiers.loading import LoadOptions, import_object, model_scheme
from secondlook.classifiers.preprocessing import InputType, ModelInput, Preprocessing
from secondlook.errors import ANY, LONGEST_REASON, ClassifierError, Repair, reject_failures
from secondlook.imports import import_extra
from secondlook.views import View

if TYPE_CHECKING:
    import torch

    from secondlook.classifiers.device import DeviceWorkers, PlacedModule

INPUT_TYPES: dict[str, InputType] = {"torch.float32": "float32", "torch.float16": "float16", "torch.uint8": "uint8"}
DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")
"""Number types to compute with; 'tf32' is float32 with products rounded to 11 bits, which is faster on GPUs."""


class Placement(TypedDict, total=False):
    """Options of all torch model schemes: how to run a module."""

    device: str | None
    """'cuda' for all GPUs, 'cuda:N', 'cpu', 'auto', or another torch device; by default that of the module."""
    dtype: str | None
    """Number type to compute with, see `DTYPES`; by default that of the module."""
    channels_last: bool | None
    """Whether to use this memory format; by default on GPUs if it is faster."""
    compile: bool
    cuda_graphs: bool


class TorchClassifier(Classifier):
    """A torch module, run in eval and inference mode; its training flags are restored afterwards.

    On GPUs, views are made there as well, with deterministic algorithms and without TF32.
    """

    def __init__(
        self,
        get_module: "Callable[[str | None], torch.nn.Module]",
        options: LoadOptions,
        placement: Placement,
        *,
        digest: str,
        output: Output,
        preprocessing: Preprocessing,
        batch_size: int | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        """Wrap the module from `get_module(device)` (None: unchanged); `batch_size` is its fixed batch size, if any."""
        super().__init__(
            name=options.display_name,
            digest=digest_with_options(digest, dtype=placement.get("dtype")),
            output=output,
            preprocessing=options.override(preprocessing),
            class_names=class_names,
        )
        self._get_module, self._placement, self.batch_size = get_module, placement, batch_size
        self._known: dict[str | None, PlacedModule] = {}
        """Modules by requested device, shared by copies of the classifier."""
        device = placement.get("device")
        self._is_device_chosen = device not in (None, "auto")
        """Whether the user chose the device; device='auto' then keeps it."""
        self._device = self._resolve(device) if device == "auto" else device
        self._placed = self._place(self._device)

    def __getstate__(self) -> dict[str, Any]:
        """Omit the modules on devices; they are placed again after unpickling."""
        return {name: value for name, value in vars(self).items() if name not in ("_known", "_placed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _known={})
        self._placed = self._place(self._device)

    @property
    def module(self) -> "torch.nn.Module":
        """The network, for methods that register hooks."""
        return self._placed.module

    def copy_for_export(self) -> "torch.nn.Module":
        """Return a copy of the network on the CPU, in eval mode, that returns one tensor. [n, ...] -> [n, n_classes]"""
        import torch

        from secondlook.classifiers.device import SingleOutput, move_module

        module = move_module(self._get_module("cpu"), "cpu", self._placement)
        exportable = module if isinstance(module, torch.jit.ScriptModule) else SingleOutput(module, self.name)
        for submodule in exportable.modules():
            submodule.training = False  # `eval` does not exist for modules of torch.export
        return exportable

    @property
    def workers(self) -> "DeviceWorkers | None":  # type: ignore[override]
        """The modules on GPUs; None if the module is elsewhere."""
        return self._placed.workers

    def on_device(self, device: str) -> "TorchClassifier":
        """Return the classifier with a copy of the module on 'auto', 'cpu', 'cuda' (all GPUs) or 'cuda:N'."""
        self.check_device(device)
        chosen = self._device if device == "auto" and self._is_device_chosen else self._resolve(device)
        is_chosen = self._is_device_chosen or device != "auto"
        if (chosen, is_chosen) == (self._device, self._is_device_chosen):
            return self
        moved = copy.copy(self)
        moved._device, moved._placed, moved._is_device_chosen = chosen, self._place(chosen), is_chosen
        return moved

    def _resolve(self, device: str) -> str | None:
        """Return the device for the module; for 'auto' the GPUs if it is not on one; None to leave it in place."""
        import torch

        from secondlook.classifiers.device import find_weight, list_gpus

        weight = find_weight(self._place(None).module)
        own = "cpu" if weight is None else str(weight.device)
        if device == "auto":
            return "cuda" if torch.cuda.is_available() and own == "cpu" else None
        return None if (["cpu"] if device == "cpu" else list_gpus(device)) == [own] else device

    def _place(self, device: str | None) -> "PlacedModule":
        from secondlook.classifiers.device import PlacedModule

        if device not in self._known:
            described = (self.name, self.preprocessing.input_dtype, self.batch_size)
            self._known[device] = PlacedModule(self._get_module, device, self._placement, *described)
        return self._known[device]

    def forward(self, images: Array) -> Array:
        """Return the output of the module. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        if self.workers is None:
            outputs: Array = run_in_batches(self.preprocessing.normalize(images), self.batch_size, self._run)
            return outputs
        # One GPU only: methods register hooks on its module.
        first = self.workers.first
        return first.start(first.upload(self.preprocessing.convert_channels(images)), [View()], self.preprocessing)()

    def _run(self, inputs: Array) -> Array:
        try:
            return self._placed.run_on_host(inputs)
        except RuntimeError as error:
            raise describe_failure(self.name, inputs, error) from error


def _is_torch_module(target: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


@model_scheme(
    "torch",
    form="torch:FILE.pt2 or torch:package.module:factory",
    summary="PyTorch module, factory with ?weights=FILE, torch.export file or TorchScript file; ?output= is required",
    extra="torch",
    recognizes=_is_torch_module,
)
def open_torch(
    target: Any, options: LoadOptions, *, weights: str | None = None, **placement: Unpack[Placement]
) -> Classifier:
    """Open a module, `package.module:factory`, or a torch.export or TorchScript file; no code in `weights` runs."""
    output = options.require_output()
    check_placement(placement)
    if isinstance(target, str) and ":" not in target:
        if weights is not None:
            repair = Repair("remove {weights}", weights=ANY)
            raise ClassifierError(f"{options.spec!r} is a file that contains its weights", repair=repair)
        return _open_file(find_model_file(target, options.spec), options, placement)
    found = import_object(target, options.spec) if isinstance(target, str) else target
    module = found if _is_torch_module(found) or not callable(found) else found()
    if not _is_torch_module(module):
        fault = f"{options.spec!r} returned {type(module).__name__}, not a torch.nn.Module"
        raise ClassifierError(fault, repair="pass a class or function that returns a module")
    if weights is not None:
        module = module if isinstance(target, str) else copy.deepcopy(module)
        load_weights(module, Path(weights), options.spec)
    is_shared = weights is None
    return wrap_module(module, options, placement, is_shared=is_shared, output=output, preprocessing=Preprocessing())


def check_placement(placement: Placement) -> None:
    """Raise if these options are invalid, or if torch is not installed."""
    import_extra("torch", feature="a torch classifier", extra="torch")
    if placement.get("device") is not None:
        placement["device"] = str(placement["device"])  # a torch.device is one too
    if placement.get("dtype") not in (None, *DTYPES):
        fault = f"is unknown; expected one of {', '.join(DTYPES)}"
        raise ClassifierError(fault, argument="dtype", value=placement["dtype"])


def wrap_module(
    module: "torch.nn.Module", options: LoadOptions, placement: Placement, *, is_shared: bool = False, **described: Any
) -> TorchClassifier:
    """Return a classifier for a module; a module owned by the user (`is_shared`) is copied before moving it."""
    changes_weights = placement.get("dtype") is not None or bool(placement.get("channels_last"))
    get_module = partial(_copy_to_move, module, is_shared and changes_weights)
    return TorchClassifier(get_module, options, placement, digest=_digest_module(module), **described)


def _copy_to_move(module: "torch.nn.Module", is_changed: bool, device: str | None) -> "torch.nn.Module":
    return copy.deepcopy(module) if device is not None or is_changed else module


def _digest_module(module: "torch.nn.Module") -> str:
    """Return the hex sha256 of a module: its class, layers, and the name, shape, dtype and bytes of every weight."""
    import torch

    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}".encode())
    # Hash the printed layers, because strides and activations have no weights.
    digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(module)).encode())
    for name, value in module.state_dict().items():
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            # A view as bytes works for every dtype, including bfloat16, which NumPy lacks.
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()


def load_weights(module: "torch.nn.Module", file: Path, spec: str) -> None:
    """Load a safetensors file or a state dict into a module; the names of all weights must match."""
    check_regular_file(file, f"the weights file {str(file)!r} of {spec!r}")
    state, expected = _read_weights(file), module.state_dict()
    prefix = "module."  # added by torch.nn.DataParallel
    if all(name.startswith(prefix) for name in state) and not any(name.startswith(prefix) for name in expected):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    if missing or unexpected:
        fault = f"the weights {str(file)!r} do not fit {spec!r}: missing {missing[:3]}, unexpected {unexpected[:3]}"
        raise ClassifierError(fault, repair="use weights of the same architecture")
    try:
        module.load_state_dict(state)
    except Exception as error:
        fault = f"the weights {str(file)!r} do not fit {spec!r}: {' '.join(str(error).split())[:LONGEST_REASON]}"
        raise ClassifierError(fault, repair="use weights of the same architecture") from error


def _read_weights(file: Path) -> dict[str, Any]:
    import torch

    if file.suffix == ".safetensors":
        load_file = import_extra("safetensors.torch", feature="a safetensors file", extra="torch").load_file
        with reject_failures(f"the weights file {str(file)!r} is not a safetensors file", "check the file."):
            return dict(load_file(file))
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        fault = f"the weights file {str(file)!r} is no plain state dict, and no other pickle is loaded: it can run code"
        repair = "save it with torch.save(module.state_dict(), FILE) or as safetensors"
        raise ClassifierError(fault, repair=repair) from error
    for key in ("state_dict", "model", "model_state_dict"):  # as training scripts save checkpoints
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        fault = f"the weights file {str(file)!r} contains {type(state).__name__}, not a state dict"
        raise ClassifierError(fault, repair="save it with torch.save(module.state_dict(), FILE)")
    return state


def _open_file(file: Path, options: LoadOptions, placement: Placement) -> Classifier:
    """Open a torch.export or TorchScript file."""
    spec = options.spec
    with reject_failures(f"cannot open {spec!r} as a torch.export or TorchScript file", "save it again."):
        module, model_input = _load_program(file, spec, None)
    preprocessing = Preprocessing()
    if model_input is not None:
        preprocessing = model_input.make_preprocessing(options.layout, spec)
        if placement.get("dtype") not in (None, "tf32"):
            repair = Repair("remove {dtype}", dtype=placement["dtype"])
            raise ClassifierError(f"{spec!r} was exported with a fixed dtype", repair=repair)
    return TorchClassifier(
        # A program contains its device, so load it again for another one.
        lambda device: module if device is None else _load_program(file, spec, device)[0],
        options,
        placement,
        digest=digest_files([file]),
        output=options.require_output(),
        preprocessing=preprocessing,
        batch_size=None if model_input is None else model_input.batch_size,
    )


def _load_program(file: Path, spec: str, device: str | None) -> tuple["torch.nn.Module", ModelInput | None]:
    """Return the module of a torch.export or TorchScript file, and its input if the file describes it."""
    import torch

    names = []
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            names, damaged = archive.namelist(), archive.testzip()
        if damaged is not None:  # a damaged file may crash torch
            raise ClassifierError(f"{spec!r} is damaged: the checksum of its part {damaged!r} is wrong; copy it again.")
    if any("/code/" in f"/{name}" for name in names) and not any(name.endswith(".json") for name in names):
        with warnings.catch_warnings():
            # The deprecation of TorchScript concerns writing files, not reading them.
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(file, map_location="cpu"), None  # type: ignore[no-untyped-call]
    if file.suffix != ".pt2" or not names:
        repair = Repair("for a state dict pass 'torch:package.module:factory' and {weights}", weights=ANY)
        raise ClassifierError(f"{spec!r} is neither a torch.export file (.pt2) nor a TorchScript file", repair=repair)
    if any("opaque_obj" in Path(name).name or "custom_obj" in Path(name).name for name in names):
        raise ClassifierError(f"{spec!r} contains pickled objects, which can run code; export it from tensors only.")
    with force_weights_only():
        program = torch.export.load(file)
    if device is not None:
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    names = program.graph_signature.user_inputs
    tensors = [(node.name, node.meta["val"]) for node in program.graph.nodes if node.name in names]
    described = [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    return program.module(), ModelInput.parse(described, INPUT_TYPES, spec)


@contextmanager
def force_weights_only() -> Iterator[None]:
    """Prevent torch.load from running pickled code, even if a library calls it with weights_only=False."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = {name: value for name, value in os.environ.items() if name == key}
    os.environ[key] = "1"
    try:
        yield
    finally:
        del os.environ[key]
        os.environ.update(before)
