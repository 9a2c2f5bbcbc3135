"""Torch modules on devices, and models on GPUs that make and classify views asynchronously."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from secondlook.arrays import Array, Float32Array, IntArray, round_down_to_power_of_two
from secondlook.classifiers.classifier import Fetch, run_in_batches
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.errors import ClassifierError, Repair, shorten_reason
from secondlook.views import View, write_normalized_view

if TYPE_CHECKING:
    from secondlook.classifiers.torch_model import Placement

PIXELS_PER_GPU_BATCH = 2**25
MAX_BATCH_SIZE = 8192
"""Large enough to fill the chip with the smallest networks."""
MEMORY_SHARE = 0.7
"""Share of the free memory of a GPU that a batch may take."""
PROBED_IMAGES = 8
MAX_GRAPHS = 4
"""Number of batch sizes with a CUDA graph; each graph holds the memory of a batch."""


def list_gpus(device: str) -> list[str]:
    """Return the GPUs of 'cuda' (all GPUs) or 'cuda:N', or raise if they are not available."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if not gpus:
        fault = f"is not available: torch {torch.__version__} sees no CUDA device"
        repair = Repair("pass {device}, or install a torch build for CUDA and its driver", device="cpu")
        raise ClassifierError(fault, argument="device", value=device, repair=repair)
    if device not in ("cuda", *gpus):
        raise ClassifierError(f"does not exist; this machine has {', '.join(gpus)}", argument="device", value=device)
    return gpus if device == "cuda" else [device]


@dataclass(frozen=True)
class DeviceModel:
    """A model on one device."""

    device: torch.device
    run: Callable[[Tensor], Tensor]
    """Maps the model's input on the device to its output [n, classes], on the device or on the host."""
    dtype: torch.dtype
    """Number type of the input; raw pixels for `torch.uint8`."""
    channels_last: bool = False
    batch_size: int | None = None
    """The fixed batch size of the model, or None."""
    probe: Callable[[Tensor], Tensor] | None = None
    """Like `run`, but never compiled, to measure the memory of a few images; None for `run` itself."""


@dataclass(frozen=True, eq=False)
class PlacedImages:
    """Images on one or several devices: image i is on device i modulo their number. Indexed by slice or positions."""

    shards: Sequence[Tensor]
    """The images of each device, [n, H, W, C] each."""
    places: Sequence[IntArray]
    """Positions of the images of each device among all images, int64 [n] each."""

    def __len__(self) -> int:
        return sum(map(len, self.places))

    def __getitem__(self, key: slice | IntArray) -> "PlacedImages":
        positions = np.arange(len(self))[key]
        if len(self.shards) == 1:
            rows = key if isinstance(key, slice) else torch.from_numpy(positions).to(self.shards[0].device)
            return PlacedImages([self.shards[0][rows]], [np.arange(len(positions))])
        shards, places = [], []
        for shard, all_places in zip(self.shards, self.places, strict=True):
            is_here = np.isin(positions, all_places)
            rows = torch.from_numpy(np.searchsorted(all_places, positions[is_here])).to(shard.device)
            shards.append(shard[rows])
            places.append(np.flatnonzero(is_here))
        return PlacedImages(shards, places)


class DeviceWorkers:
    """One model per GPU; in parallel, each makes and classifies the views of its share of the images."""

    def __init__(self, models: Sequence[DeviceModel], dtype: str | None = None) -> None:
        self.models = tuple(models)
        self.dtype = dtype
        """The number type chosen by the user, see `Placement`."""
        used = self.models if len(self.models) > 1 else ()  # a single model needs no thread, and can be pickled
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"secondlook-{model.device}") for model in used]
        self._batch_sizes: dict[tuple[int, ...], int] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the models."""
        return tuple(str(model.device) for model in self.models)

    @property
    def first(self) -> "DeviceWorkers":
        """The first worker alone."""
        return DeviceWorkers(self.models[:1], self.dtype)

    def upload(self, images: "Array | Tensor") -> PlacedImages:
        """Start to copy images to the devices. uint8|float32 [N, H, W, C] on the host or on a device"""
        count = len(self.models)
        with torch.inference_mode():
            shards = [_copy_to(model.device, images[first::count]) for first, model in enumerate(self.models)]
        return PlacedImages(shards, [np.arange(first, len(images), count) for first in range(count)])

    def start(self, images: PlacedImages, views: Sequence[View], preprocessing: Preprocessing) -> Fetch:
        """Start to classify views of images; the outputs are float32 [V * n, classes], one view after another."""
        with use_exact_arithmetic(self.dtype):
            if len(self.models) == 1:
                return _start(self.models[0], images.shards[0], views, preprocessing)
            used = [number for number, shard in enumerate(images.shards) if len(shard)]
            started = [
                self._threads[number].submit(_start, self.models[number], images.shards[number], views, preprocessing)
                for number in used
            ]
            wait(started)  # also if one fails
        fetches = {number: one.result() for number, one in zip(used, started, strict=True)}

        def fetch() -> Float32Array:
            found = {
                number: one().reshape(len(views), len(images.places[number]), -1) for number, one in fetches.items()
            }
            outputs = np.empty((len(views), len(images), found[used[0]].shape[2]), dtype=np.float32)
            for number, values in found.items():
                outputs[:, images.places[number]] = values
            return outputs.reshape(len(views) * len(images), -1)

        return fetch

    def find_batch_size(self, image: Array, preprocessing: Preprocessing) -> int:
        """Return how many images [H, W, C] fill all devices, and fit in their memory."""
        if image.shape not in self._batch_sizes:
            wanted = min(MAX_BATCH_SIZE, max(1, PIXELS_PER_GPU_BATCH // (image.shape[0] * image.shape[1])))
            for model in self.models:
                if model.device.type == "cuda" and wanted > PROBED_IMAGES:
                    with use_exact_arithmetic(self.dtype):
                        wanted = min(wanted, _count_fitting(model, image, preprocessing))
            self._batch_sizes[image.shape] = round_down_to_power_of_two(wanted) * len(self.models)
        return self._batch_sizes[image.shape]


def _start(model: DeviceModel, images: Tensor, views: Sequence[View], preprocessing: Preprocessing) -> Fetch:
    with torch.inference_mode():
        inputs = _make_inputs(model, images, views, preprocessing)
        return _start_download(run_in_batches(inputs, model.batch_size, model.run, torch.cat))


def _count_fitting(model: DeviceModel, image: Array, preprocessing: Preprocessing) -> int:
    """Return how many images fit in the free memory, estimated from a few images; at least 1."""
    few = torch.zeros((PROBED_IMAGES, *image.shape), dtype=torch.uint8, device=model.device)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    try:
        _start(replace(model, run=model.probe or model.run), few, [View()], preprocessing)()
    except torch.OutOfMemoryError:
        return 1
    taken = torch.cuda.max_memory_allocated(model.device) - before
    free, _ = torch.cuda.mem_get_info(model.device)
    unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return max(1, int(MEMORY_SHARE * (free + unused) * PROBED_IMAGES / max(1, taken)))


def _copy_to(device: torch.device, images: "Array | Tensor") -> Tensor:
    """Copy images to a device; from the host through pinned memory, to copy asynchronously."""
    if isinstance(images, Tensor):
        return images.to(device).contiguous()
    dtype = torch.uint8 if images.dtype == np.uint8 else torch.float32
    staged = torch.empty(images.shape, dtype=dtype, pin_memory=device.type == "cuda")
    staged.numpy()[...] = images
    return staged.to(device, non_blocking=True)


def _make_inputs(model: DeviceModel, images: Tensor, views: Sequence[View], preprocessing: Preprocessing) -> Tensor:
    """Return the model's input for views of images. [n, H, W, C] -> [V * n, C, H, W] or [V * n, H, W, C]"""
    n_images, height, width, channels = images.shape
    make_empty = partial(torch.empty, dtype=model.dtype, device=images.device)
    if preprocessing.layout == "NHWC" or model.channels_last:
        pixels_last = make_empty((len(views) * n_images, height, width, channels))
    else:
        pixels_last = make_empty((len(views) * n_images, channels, height, width)).permute(0, 2, 3, 1)
    factor, offset = _make_factor_and_offset(preprocessing, images.device, channels)
    factor = factor if images.dtype == torch.uint8 else factor * 255
    for place, view in enumerate(views):
        target = pixels_last[place * n_images : (place + 1) * n_images]
        write_normalized_view(images, view, factor, offset, target, is_bgr=preprocessing.color == "BGR")
    return pixels_last if preprocessing.layout == "NHWC" else pixels_last.permute(0, 3, 1, 2)


@lru_cache(maxsize=256)
def _make_factor_and_offset(preprocessing: Preprocessing, device: torch.device, channels: int) -> tuple[Tensor, Tensor]:
    """Return the factor and the offset of pixels for each channel, float32 [C] each."""
    factor, offset = (np.broadcast_to(each.reshape(-1), channels).copy() for each in preprocessing.factor_and_offset)
    return torch.from_numpy(factor).to(device), torch.from_numpy(offset).to(device)


def _start_download(outputs: Tensor) -> Fetch:
    """Start to copy outputs to the host."""
    if outputs.device.type != "cuda":
        values: Float32Array = outputs.to("cpu", torch.float32).numpy()
        return lambda: values
    with torch.cuda.device(outputs.device):
        host = torch.empty(outputs.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(outputs.float(), non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

    def fetch() -> Float32Array:
        done.synchronize()
        return host.numpy().copy()  # pinned memory is scarce

    return fetch


# --- Torch modules ---


def move_module(module: torch.nn.Module, device: str | None, placement: "Placement") -> torch.nn.Module:
    """Move a module to a device (None: where it is), to the dtype and to the memory format."""
    given = placement.get("dtype")
    dtype = None if given is None else getattr(torch, given.replace("tf32", "float32"))
    try:
        module = module.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:
        fault = f"is not available: {shorten_reason(error)}"
        repair = Repair("pass {device} or another one", device="cpu")
        raise ClassifierError(fault, argument="device", value=device, repair=repair) from error
    return module.to(memory_format=torch.channels_last) if uses_channels_last(module, placement) else module  # type: ignore[call-overload]


def uses_channels_last(module: torch.nn.Module, placement: "Placement") -> bool:
    """Whether inputs are channels-last: as chosen by the user, otherwise on GPUs except in float32."""
    chosen, weight = placement.get("channels_last"), find_weight(module)
    if chosen is not None or weight is None:
        return bool(chosen)
    return weight.is_cuda and (placement.get("dtype") == "tf32" or weight.element_size() == 2)


def find_weight(module: torch.nn.Module) -> Tensor | None:
    """Return the first floating-point weight, which has the device and dtype of a module."""
    return next((value for value in module.parameters() if value.is_floating_point()), None)


def is_on_gpu(module: torch.nn.Module) -> bool:
    """Whether a module is on a GPU."""
    weight = find_weight(module)
    return weight is not None and weight.is_cuda


class PlacedModule:
    """A module on its device, with `workers` for a copy on each GPU; None on other devices.

    The device None leaves a module in place; `described` are arguments of `make_device_model`.
    """

    def __init__(
        self,
        get_module: Callable[[str | None], torch.nn.Module],
        device: str | None,
        placement: "Placement",
        *described: Any,
    ) -> None:
        gpus = list_gpus(device) if device is not None and device.startswith("cuda") else [device]
        modules = [move_module(get_module(gpu), gpu, placement) for gpu in gpus]
        models = [make_device_model(module, placement, *described) for module in modules]
        self.module, self._model, self._dtype = modules[0], models[0], placement.get("dtype")
        self.workers = DeviceWorkers(models, self._dtype) if is_on_gpu(modules[0]) else None

    def run_on_host(self, inputs: Array) -> Array:
        """Return the output for inputs of the host. -> float32 [n, classes]"""
        model = self._model
        memory_format = torch.channels_last if model.channels_last else torch.preserve_format
        with torch.inference_mode(), use_exact_arithmetic(self._dtype):
            # torch.from_numpy does not accept pixels from a read-only file.
            tensor = torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())
            outputs = model.run(tensor.to(model.device, model.dtype, memory_format=memory_format))
            values: Array = outputs.to("cpu", torch.float32).numpy()
        return values


def make_device_model(
    module: torch.nn.Module, placement: "Placement", name: str, input_dtype: str, batch_size: int | None
) -> DeviceModel:
    """Return a module in eval mode as a model, optionally compiled or as CUDA graphs."""
    weight = find_weight(module)
    device = torch.device("cpu") if weight is None else weight.device
    dtype = getattr(torch, input_dtype) if weight is None or input_dtype == "uint8" else weight.dtype
    forward: Callable[[Tensor], Any] = torch.compile(module) if placement.get("compile") else module

    def call(inputs: Tensor) -> Tensor:
        return extract_tensor(forward(inputs), name)

    graphed = GraphedCall(call) if placement.get("cuda_graphs") and is_on_gpu(module) else call

    def run(inputs: Tensor) -> Tensor:
        with _eval_mode(module):
            return graphed(inputs)

    def probe(inputs: Tensor) -> Tensor:
        with _eval_mode(module):
            return extract_tensor(module(inputs), name)

    return DeviceModel(device, run, dtype, uses_channels_last(module, placement), batch_size, probe)


def extract_tensor(outputs: Any, name: str) -> Tensor:
    """Return the output tensor: the output itself, or the `logits` of a transformers output."""
    values = getattr(outputs, "logits", outputs)
    if not isinstance(values, Tensor):
        kind = type(outputs).__name__
        raise ClassifierError(f"classifier {name!r} returned {kind}; wrap its module so that it returns one tensor.")
    return values


class SingleOutput(torch.nn.Module):
    """Wraps a module to return its output tensor, see `extract_tensor`."""

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.module, self._name = module, name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output tensor. [n, C, H, W] -> [n, classes]"""
        return extract_tensor(self.module(inputs), self._name)


class GraphedCall:
    """A function of a tensor that records its kernels once per batch size, and then starts them together.

    This removes the host overhead for small models and batches, where starting a kernel takes longer than the kernel.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function
        self._seen: set[torch.Size] = set()
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the output for inputs; the second batch of a size is recorded."""
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
        # Other threads copy images to the GPU at the same time; that must not end the recording.
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
