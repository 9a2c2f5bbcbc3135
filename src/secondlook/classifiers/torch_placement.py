"""Torch modules on devices: number type, memory format, compilation, CUDA graphs, and the workers of GPUs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secondlook.classifiers.device import DeviceModel, DeviceWorkers, list_gpus
from secondlook.errors import ClassifierError

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")
"""Number types to compute with; 'tf32' is float32 whose products are rounded to 11 bits, which GPUs compute faster."""

MAX_GRAPHS = 4
"""Number of batch sizes for which CUDA graphs are kept; each holds the memory of a batch."""


@dataclass(frozen=True)
class Placement:
    """How a module runs; None keeps its own device or dtype, or leaves the choice of the memory format."""

    device: str | None = None
    dtype: str | None = None
    channels_last: bool | None = None
    compile: bool = False
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ClassifierError(f"unknown dtype={self.dtype!r}; expected one of {', '.join(DTYPES)}.")

    @property
    def is_device_chosen(self) -> bool:
        """Whether the user chose a device."""
        return self.device not in (None, "auto")

    @property
    def changes_weights(self) -> bool:
        """Whether the weights get another dtype or memory format."""
        return self.dtype is not None or bool(self.channels_last)

    def move(self, module: torch.nn.Module, device: str | None) -> torch.nn.Module:
        """Move a module to a device (None: where it is), to the dtype and to the memory format."""
        dtype = None if self.dtype is None else getattr(torch, self.dtype.replace("tf32", "float32"))
        try:
            module = module.to(device=device, dtype=dtype)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ClassifierError(
                f"device={device!r} is not available: {reason}; pass device='cpu' or another device."
            ) from error
        return module.to(memory_format=torch.channels_last) if self.uses_channels_last(module) else module  # type: ignore[call-overload]

    def uses_channels_last(self, module: torch.nn.Module) -> bool:
        """Whether inputs are channels-last: as chosen, or else where it is faster: on GPUs, except in float32."""
        if self.channels_last is not None:
            return self.channels_last
        weight = find_weight(module)
        return weight is not None and weight.is_cuda and (self.dtype == "tf32" or weight.element_size() == 2)


def find_weight(module: torch.nn.Module) -> Tensor | None:
    """Return the first weight that is a real number; it tells the device and dtype of a module."""
    return next((value for value in module.parameters() if value.is_floating_point()), None)


class PlacedModule:
    """A module on its device, or a copy of it on each of several GPUs.

    `run` takes inputs on the device of the (first) module. `workers` are the modules on GPUs; None elsewhere.
    """

    def __init__(
        self,
        make_module: Callable[[str | None], torch.nn.Module],
        device: str | None,
        placement: Placement,
        *,
        name: str,
        takes_pixels: bool,
        batch_size: int | None,
    ) -> None:
        gpus = list_gpus(device) if device is not None and device.startswith("cuda") else [device]
        runs = [ModuleRun(make_module(gpu), placement, name) for gpu in gpus]
        self.module = runs[0].module
        self.run = runs[0]
        self.workers: DeviceWorkers | None = None
        if is_on_gpu(self.module):
            models = [each.to_device_model(takes_pixels=takes_pixels, batch_size=batch_size) for each in runs]
            self.workers = DeviceWorkers(models)


def is_on_gpu(module: torch.nn.Module) -> bool:
    """Whether a module is on a GPU, where it makes the views itself."""
    weight = find_weight(module)
    return weight is not None and weight.is_cuda


class ModuleRun:
    """A call of a module in eval mode, compiled or as CUDA graphs if that was asked for."""

    def __init__(self, module: torch.nn.Module, placement: Placement, name: str) -> None:
        self.module = module
        self.channels_last = placement.uses_channels_last(module)
        self._name = name
        self._forward: Callable[[Tensor], Any] = torch.compile(module) if placement.compile else module
        self._call: Callable[[Tensor], Tensor] = self._run
        if placement.cuda_graphs and is_on_gpu(module):
            self._call = GraphedCall(self._run)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the output of the module. [n, C, H, W] -> [n, classes]"""
        with _eval_mode(self.module):
            return self._call(inputs)

    def run_as_it_is(self, inputs: Tensor) -> Tensor:
        """Return the output of the module, neither compiled nor as a graph."""
        with _eval_mode(self.module):
            return extract_tensor(self.module(inputs), self._name)

    def _run(self, inputs: Tensor) -> Tensor:
        return extract_tensor(self._forward(inputs), self._name)

    def to_device_model(self, *, takes_pixels: bool, batch_size: int | None) -> DeviceModel:
        """Return the module as one that gets its views on its device."""
        weight = find_weight(self.module)
        assert weight is not None, "a module on a GPU has weights"
        dtype = torch.uint8 if takes_pixels else weight.dtype
        return DeviceModel(weight.device, self, dtype, self.channels_last, batch_size, self.run_as_it_is)


def extract_tensor(outputs: Any, name: str) -> Tensor:
    """Return the output tensor: the output itself, or the `logits` of a transformers output."""
    values = getattr(outputs, "logits", outputs)
    if not isinstance(values, Tensor):
        raise ClassifierError(
            f"classifier {name!r} returned {type(outputs).__name__}, not a tensor; "
            "wrap the module so that forward returns one tensor [images, classes]."
        )
    return values


class SingleOutput(torch.nn.Module):
    """A module that returns the output tensor of another one, see `extract_tensor`."""

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.module = module
        self._name = name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output tensor. [n, C, H, W] -> [n, classes]"""
        return extract_tensor(self.module(inputs), self._name)


def make_exportable(module: torch.nn.Module, name: str) -> torch.nn.Module:
    """Set a module to eval mode, and return it as one that returns a tensor; TorchScript stays TorchScript."""
    exportable = module if isinstance(module, torch.jit.ScriptModule) else SingleOutput(module, name)
    for submodule in exportable.modules():
        submodule.training = False  # `eval` does not exist for modules of torch.export
    return exportable


class GraphedCall:
    """A function of a tensor whose kernels are recorded once per batch size and then started together.

    That takes the host out of small models and batches, whose kernels are shorter than it takes to start them.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        self._seen: set[torch.Size] = set()
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the output for inputs; a batch size is recorded when it comes a second time."""
        shape = inputs.shape
        if shape not in self._graphs:
            if shape not in self._seen or len(self._graphs) == MAX_GRAPHS:
                self._seen.add(shape)
                return self._function(inputs)
            self._graphs[shape] = self._record(inputs)
        graph, graph_inputs, graph_outputs = self._graphs[shape]
        graph_inputs.copy_(inputs)
        graph.replay()
        return graph_outputs.clone()

    def _record(self, inputs: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        graph = torch.cuda.CUDAGraph()
        graph_inputs = inputs.clone(memory_format=torch.preserve_format)
        # Other threads copy images to the GPU meanwhile, which must not end the recording.
        recording = torch.cuda.graph(graph, capture_error_mode="thread_local")
        with torch.cuda.device(inputs.device), recording:
            graph_outputs = self._function(graph_inputs)
        return graph, graph_inputs, graph_outputs


@contextmanager
def use_exact_arithmetic(dtype: str | None) -> Iterator[None]:
    """Use deterministic algorithms of cuDNN, and TF32 for dtype='tf32' only."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before, allowed = products.allow_tf32, dtype == "tf32"
    with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=allowed):
        products.allow_tf32 = allowed
        try:
            yield
        finally:
            products.allow_tf32 = before


@contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Set all submodules to eval mode, and afterwards restore the flag of each: frozen layers stay frozen."""
    training = [submodule for submodule in module.modules() if submodule.training]
    for submodule in training:
        submodule.training = False
    try:
        yield
    finally:
        for submodule in training:
            submodule.training = True
