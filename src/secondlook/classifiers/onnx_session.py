"""Sessions of ONNX Runtime: on the CPU, with given providers or on GPUs, and how they are called."""

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import shorten_reason
from secondlook.classifiers.model_input import ModelInput, describe_failure
from secondlook.classifiers.threads import find_thread_limit
from secondlook.classifiers.time_limits import TIME_LIMITS
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from secondlook.classifiers.device import DeviceModel

DEFAULT_TIMEOUT = 600.0
"""Seconds that loading, or one batch, may take; a model can contain an endless loop."""

MIN_PART = 8
"""Number of images in the smallest part of a batch that a thread gets for itself."""

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
CUDA_OPTIONS = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
"""float32 is computed without TF32, and algorithms are not chosen by their speed, which may differ the next time."""


@dataclass(frozen=True)
class OnnxSessions:
    """Creates the sessions of a file."""

    file: Path
    threads: int | None = None
    """Threads per operator on the CPU; None for all cores, or as many as the process is limited to."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that loading may take."""

    def open(self, providers: Sequence[str] = (CPU_PROVIDER,)) -> Any:
        """Return a session with providers in order of preference."""
        _check_providers(providers)
        return self._create(list(providers), self._make_options())

    def open_on_device(self, device: str) -> Any:
        """Return a session on 'cpu', 'cuda' (the first GPU), 'cuda:N', or for 'auto' on a GPU if it can be used."""
        if device == "auto":
            try:
                return self.open_on_device("cuda")
            except ClassifierError:  # there is no GPU that ONNX Runtime can use
                return self.open()
        return self.open() if device == "cpu" else self.open_on_gpu(list_session_gpus(device)[0], device)

    def open_on_gpu(self, gpu: str, device: str) -> Any:
        """Return a session on the GPU 'cuda:N'; operators that the provider lacks run on the CPU.

        `device` is what the user asked for.
        """
        options = self._make_options()
        options.use_deterministic_compute = True
        cuda = (CUDA_PROVIDER, {**CUDA_OPTIONS, "device_id": gpu.partition(":")[2]})
        try:
            # By default, ONNX Runtime prints an error, and uses the CPU.
            session = self._create([cuda, CPU_PROVIDER], options, enable_fallback=0)
        except ClassifierError:
            raise
        except Exception as error:
            raise ClassifierError(
                f"device={device!r} cannot be used by ONNX Runtime: {shorten_reason(error)}; pass another device, or "
                "device='cpu'."
            ) from error
        if CUDA_PROVIDER not in session.get_providers():
            raise ClassifierError(
                f"device={device!r} cannot be used: ONNX Runtime did not find the CUDA libraries that its "
                f"{CUDA_PROVIDER} needs; install CUDA and cuDNN in the versions that it was built for, or pass "
                "device='cpu'."
            )
        return session

    def _make_options(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Not the other format of ONNX Runtime (.ort), in which external data would not be found.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        threads = find_thread_limit() if self.threads is None else self.threads
        if threads is not None:
            options.intra_op_num_threads = threads
        return options

    def _create(self, providers: Sequence[Any], options: Any, **settings: Any) -> Any:
        import onnxruntime

        with self._limit_loading(options):
            return onnxruntime.InferenceSession(str(self.file), options, providers=providers, **settings)

    @contextmanager
    def _limit_loading(self, options: Any) -> Iterator[None]:
        """Stop a session that takes too long to load: ONNX Runtime computes what is constant while it loads.

        It looks for the flag between two passes over the graph only, and older versions have none.
        """
        if not hasattr(options, "set_load_cancellation_flag"):
            yield
            return
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            options.set_load_cancellation_flag(True)

        try:
            with TIME_LIMITS.limit(self.timeout, stop):
                yield
        except Exception as error:
            if not stopped.is_set():
                raise
            raise ClassifierError(
                f"loading {str(self.file)!r} was stopped after {self.timeout:g} seconds; if the model is only large, "
                "pass a larger timeout=."
            ) from error


def _check_providers(names: Sequence[str]) -> None:
    import onnxruntime

    available = onnxruntime.get_available_providers()
    for name in names:
        if name not in available:
            raise ClassifierError(
                f"provider {name!r} in providers= is not available in this ONNX Runtime; "
                f"available: {', '.join(available)}.{did_you_mean(name, available)}"
            )


def list_session_gpus(device: str) -> list[str]:
    """Return the GPUs of sessions for 'cuda' or 'cuda:N', or say why there are none.

    Only torch tells which GPUs there are. Without it 'cuda' is the first one.
    """
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise ClassifierError(
            f"device={device!r} is not available: this ONNX Runtime has no {CUDA_PROVIDER}; install onnxruntime-gpu, "
            "or pass device='cpu'."
        )
    if sees_gpus():
        from secondlook.classifiers.device import list_gpus

        return list_gpus(device)
    return ["cuda:0" if device == "cuda" else device]


def sees_gpus() -> bool:
    """Whether torch is installed and sees a GPU, so that views can be made there."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@contextmanager
def limit_session(what: str, timeout: float, n_images: int) -> Iterator[Any]:
    """Yield the options of a call that stop it after `timeout` seconds, which is an error; others are passed on."""
    import onnxruntime

    run_options = onnxruntime.RunOptions()
    try:
        with TIME_LIMITS.limit(timeout, partial(setattr, run_options, "terminate", True)):
            yield run_options
    except Exception as error:
        if run_options.terminate:
            raise ClassifierError(
                f"{what} was stopped after {timeout:g} seconds on a batch of {n_images} images; if the model is not in "
                "an endless loop, pass a larger timeout= or use a smaller batch."
            ) from error
        raise


@dataclass(frozen=True)
class SessionRun:
    """A call of a session with arrays or with tensors of torch; a model can contain an endless loop.

    Attributes
    ----------
    session
        The session of ONNX Runtime.
    model_input, output_name
        The input of the model and the output to use.
    name
        Name of the classifier, for messages.
    timeout
        Seconds that one batch may take.
    """

    session: Any
    model_input: ModelInput
    output_name: str
    name: str
    timeout: float

    def __call__(self, inputs: Array) -> Array:
        """Return the output of the model for an array. -> [n, classes]"""
        with self._limit_time(inputs) as run_options:
            values: Array = self.session.run([self.output_name], {self.model_input.name: inputs}, run_options)[0]
        return values

    def run_tensor(self, inputs: "Tensor") -> "Tensor":
        """Return the output of the model for a tensor, which is read where it is. -> [n, classes] on the host"""
        import torch

        inputs = inputs.contiguous()  # under a name, since the session gets no more than its address
        if inputs.is_cuda:
            # A session has a stream of its own. It waits for that itself at the end, but not for the views before.
            torch.cuda.current_stream(inputs.device).synchronize()
        with self._limit_time(inputs) as run_options:
            binding = self.session.io_binding()
            binding.bind_input(
                self.model_input.name,
                inputs.device.type,
                inputs.device.index or 0,
                np.dtype(self.model_input.dtype),
                tuple(inputs.shape),
                inputs.data_ptr(),
            )
            binding.bind_output(self.output_name)
            self.session.run_with_iobinding(binding, run_options)
            return torch.from_numpy(binding.copy_outputs_to_cpu()[0])

    def to_device_model(self, device: "torch.device") -> "DeviceModel":
        """Return the session as a model that gets its views on its device."""
        import torch

        from secondlook.classifiers.device import DeviceModel

        dtype = getattr(torch, self.model_input.dtype)
        return DeviceModel(device, self.run_tensor, dtype, batch_size=self.model_input.batch_size)

    def split(self, part: "SessionRun", n_parts: int) -> "SplitRun":
        """Return the call that gives the parts of a batch to another session, which uses one thread for each."""
        return SplitRun(**vars(self), part=part, n_parts=n_parts)

    @contextmanager
    def _limit_time(self, inputs: "Array | Tensor") -> Iterator[Any]:
        try:
            with limit_session(f"classifier {self.name!r}", self.timeout, len(inputs)) as run_options:
                yield run_options
        except ClassifierError:
            raise
        except Exception as error:
            raise ClassifierError(describe_failure(self.name, inputs, error)) from error


@dataclass(frozen=True)
class SplitRun(SessionRun):
    """A call that gives the parts of a batch to several threads; a smaller batch has all threads together.

    Threads that share the work of every operator wait for each other after each; the parts of a batch do not. But parts
    of a few images take less time than it takes to hand them to the threads.

    Attributes
    ----------
    part
        The call for a part, whose session uses the thread that calls it.
    n_parts
        Number of parts, one for each core.
    """

    part: SessionRun
    n_parts: int

    def __call__(self, inputs: Array) -> Array:
        """Return the output of the model for an array. -> [n, classes]"""
        if len(inputs) < MIN_PART * self.n_parts:
            return super().__call__(inputs)
        first, *others = np.array_split(inputs, self.n_parts)
        started = [self._threads.submit(self.part, other) for other in others]
        return np.concatenate([self.part(first), *(one.result() for one in started)])

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.n_parts - 1, thread_name_prefix="secondlook-part")
