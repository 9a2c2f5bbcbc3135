"""ONNX files: metadata, opset, external data and checksum, and their ONNX Runtime sessions."""

import hashlib
import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from secondlook.classifiers.classifier import check_regular_file, digest_files
from secondlook.errors import ANY, ClassifierError, Repair, reject_failures, shorten_reason
from secondlook.registry import did_you_mean
from secondlook.threads import find_thread_limit

DEFAULT_TIMEOUT = 600.0
"""Time limit for loading or for one batch, in seconds; a model can contain an endless loop."""

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
CUDA_OPTIONS = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
"""No TF32, and no choice of algorithms by measured speed, which is not reproducible."""

MAX_FILE_BYTES = 2**31 - 1
"""The limit of protobuf; larger ONNX models keep weights in external data."""

MESSAGES = {
    "Model": "graph:7 Graph, opset_import:8* Opset, metadata_props:14* Entry, training_info:20* Training, "
    "functions:25* Function",
    "Graph": "node:1* Node, initializer:5* Tensor, sparse_initializer:15* SparseTensor",
    "Training": "initialization:1 Graph, algorithm:2 Graph",
    "Function": "node:7* Node, attribute_proto:11* Attribute",
    "Node": "attribute:5* Attribute",
    "Attribute": "t:5 Tensor, g:6 Graph, tensors:10* Tensor, graphs:11* Graph, sparse_tensor:22 SparseTensor, "
    "sparse_tensors:23* SparseTensor",
    "SparseTensor": "values:1 Tensor, indices:2 Tensor",
    "Tensor": "external_data:13* Entry, data_location:14* int32",
    "Entry": "key:1 bytes, value:2 bytes",
    "Opset": "domain:1 bytes, version:2 int64",
}
"""The used part of onnx.proto: name and number of each field, a star if it is repeated, and its type.

Text is read as bytes, and `data_location` as repeated, so that a malicious file cannot hide values.
"""
EXTERNAL = 1


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file, possibly untrusted; damage raises `ClassifierError`."""

    path: Path
    spec: str
    """Name in messages."""
    threads: int | None = None
    """Threads per operator on the CPU; None for all cores available to the process."""
    timeout: float = DEFAULT_TIMEOUT
    """Time limit for loading, in seconds."""

    @staticmethod
    def has_suffix(path: object) -> bool:
        """Whether an object is the path of an ONNX file, by its suffix."""
        return isinstance(path, str | Path) and Path(path).suffix.lower() == ".onnx"

    def read_metadata(self) -> dict[str, str]:
        """Return the metadata as texts by key; the last one wins for duplicate keys."""
        with self._reject_damage():
            return {entry.key.decode(): entry.value.decode() for entry in self._parse().metadata_props}

    def read_opset(self) -> int | None:
        """Return the version of the standard ONNX operators; None if the model does not declare it."""
        with self._reject_damage():
            opsets = self._parse().opset_import
            return next((int(each.version) for each in opsets if each.domain in (b"", b"ai.onnx")), None)

    def find_external_data(self) -> list[Path]:
        """Return the files with external weights, sorted by name.

        Each must be a regular file in the folder of the model: an untrusted model must not read other files.
        """
        with self._reject_damage():
            used: dict[str, bool] = {}
            for tensor in _iterate_tensors(self._parse()):
                for entry in tensor.external_data:
                    if entry.key == b"location":
                        location = entry.value.decode()
                        used[location] = used.get(location, False) or EXTERNAL in tensor.data_location
        # In a cache, the model and its weights can be links to files in one other folder.
        folders, found = [self.path.parent.resolve(), self.path.resolve().parent], []
        for location in sorted(used):
            file, is_relative = self.path.parent / location, _is_relative(location)
            if used[location]:
                if not is_relative or not any(file.resolve().is_relative_to(folder) for folder in folders):
                    fault = f"{self.spec!r} keeps weights in {location[:300]!r}, outside the folder of the model"
                    raise ClassifierError(fault, repair="save the model with its external data beside it")
                check_regular_file(file, f"external data {location[:300]!r} of {self.spec!r}")
            if used[location] or (is_relative and file.is_file()):
                found.append(file)
        return found

    def digest(self) -> str:
        """Return the digest of the file and its external data."""
        return digest_files([self.path, *self.find_external_data()])

    def is_sealed(self) -> bool:
        """Whether the file ends with the checksum added by `seal`."""
        content = memoryview(self.path.read_bytes())
        start = max(len(content) - len(_make_seal(b"")), 0)
        return content[start:] == _make_seal(content[:start])

    @staticmethod
    def seal(content: bytes) -> bytes:
        """Return a serialized model with a checksum of all its bytes as the last entry of its metadata."""
        return content + _make_seal(content)

    def _parse(self) -> Any:
        check_regular_file(self.path, repr(self.spec))
        if not 0 < self.path.stat().st_size <= MAX_FILE_BYTES:
            raise ValueError(f"it is empty or has more than {MAX_FILE_BYTES:,} bytes")
        return _load_message_classes()["Model"].FromString(self.path.read_bytes())

    def _reject_damage(self) -> Any:
        return reject_failures(f"{self.spec!r} is not an ONNX file", "check or re-export the file.")

    def open_session(self, device: str) -> Any:
        """Return a session on 'cpu', 'cuda' (the first GPU), 'cuda:N', or 'auto' (a GPU if possible)."""
        if device == "cpu":
            return self.open_with([CPU_PROVIDER])
        if device == "auto":
            try:
                return self.open_session("cuda")
            except ClassifierError:  # ONNX Runtime cannot use a GPU
                return self.open_session("cpu")
        number = list_session_gpus(device)[0].partition(":")[2] or "0"
        try:
            # By default, ONNX Runtime prints an error and falls back to the CPU; allow that only for some operators.
            cuda = (CUDA_PROVIDER, {**CUDA_OPTIONS, "device_id": number})
            session = self._create([cuda, CPU_PROVIDER], is_deterministic=True, enable_fallback=0)
            if CUDA_PROVIDER not in session.get_providers():
                raise OSError(f"the CUDA libraries for {CUDA_PROVIDER} are missing")
        except ClassifierError:
            raise
        except Exception as error:
            fault = f"cannot be used by ONNX Runtime: {shorten_reason(error)}"
            repair = Repair("install the matching versions of CUDA and cuDNN, or pass {device}", device="cpu")
            raise ClassifierError(fault, argument="device", value=device, repair=repair) from error
        return session

    def open_with(self, providers: Sequence[str]) -> Any:
        """Return a session with providers in order of preference."""
        import onnxruntime

        available = onnxruntime.get_available_providers()
        for name in providers:
            if name not in available:
                known = f"{', '.join(available)}.{did_you_mean(name, available)}"
                raise ClassifierError(f"provider {name!r} is not available in this ONNX Runtime; available: {known}")
        return self._create(list(providers))

    def _create(self, providers: Sequence[Any], *, is_deterministic: bool = False, **settings: Any) -> Any:
        """Create a session within the time limit: ONNX Runtime computes constants while loading."""
        import onnxruntime

        options, stopped = onnxruntime.SessionOptions(), threading.Event()
        # Not the .ort format, in which external data would not be detected.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.use_deterministic_compute = is_deterministic
        threads = find_thread_limit() if self.threads is None else self.threads
        if threads is not None:
            options.intra_op_num_threads = threads

        def stop() -> None:
            stopped.set()
            if hasattr(options, "set_load_cancellation_flag"):  # checked between passes over the graph
                options.set_load_cancellation_flag(True)

        try:
            with TIME_LIMITS.limit(self.timeout, stop):
                return onnxruntime.InferenceSession(str(self.path), options, providers=providers, **settings)
        except Exception as error:
            if not stopped.is_set():
                raise
            fault = f"loading {str(self.path)!r} was stopped after {self.timeout:g} seconds"
            repair = Repair("if the model is only large, pass a larger {timeout}", timeout=ANY)
            raise ClassifierError(fault, repair=repair) from error

    @staticmethod
    def run_limited(call: Callable[..., Any], *arguments: Any, what: str, timeout: float, n_images: int) -> Any:
        """Return `call(*arguments, run_options)` of a session; stop it after `timeout` seconds and raise an error."""
        import onnxruntime

        run_options = onnxruntime.RunOptions()
        try:
            with TIME_LIMITS.limit(timeout, partial(setattr, run_options, "terminate", True)):
                return call(*arguments, run_options)
        except Exception as error:
            if not run_options.terminate:
                raise
            fault = f"{what} was stopped after {timeout:g} seconds on a batch of {n_images} images"
            repair = Repair("pass a larger {timeout}, or check the model for an endless loop", timeout=ANY)
            raise ClassifierError(fault, repair=repair) from error


def _is_relative(location: str) -> bool:
    """Return whether a location stays in its folder on all systems: no drive, root, '..' or null character."""
    paths = (PurePosixPath(location), PureWindowsPath(location))
    return bool(location) and "\0" not in location and not any(path.anchor or ".." in path.parts for path in paths)


def _make_seal(content: bytes | memoryview) -> bytes:
    """Return a serialized model that contains only the checksum; appending it to a model merges both."""
    entry = {"key": b"secondlook.checksum", "value": hashlib.sha256(content).hexdigest().encode()}
    return bytes(_load_message_classes()["Model"](metadata_props=[entry]).SerializeToString())


def _iterate_tensors(message: Any) -> Iterator[Any]:
    """Yield all tensors in a message; protobuf limits the depth of nesting."""
    if message.DESCRIPTOR.name == "Tensor":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _iterate_tensors(inner)


@cache
def _load_message_classes() -> dict[str, Any]:
    """Return the message classes of `MESSAGES` by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="onnx.proto", package="onnx", syntax="proto2")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for field in fields.split(", "):
            place, kind = field.split()
            name, number = place.rstrip("*").split(":")
            described.field.add(
                name=name,
                number=int(number),
                label=kinds.LABEL_REPEATED if place.endswith("*") else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if kind in MESSAGES else getattr(kinds, f"TYPE_{kind.upper()}"),
                type_name=f".onnx.{kind}" if kind in MESSAGES else None,
            )
    pool = descriptor_pool.DescriptorPool()  # separate: the onnx package has the same message names
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"onnx.{name}") for name in MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def list_session_gpus(device: str) -> list[str]:
    """Return the GPUs of sessions for 'cuda' or 'cuda:N'; without torch, 'cuda' is the first GPU."""
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        fault = f"is not available: this ONNX Runtime has no {CUDA_PROVIDER}"
        repair = Repair("install onnxruntime-gpu, or pass {device}", device="cpu")
        raise ClassifierError(fault, argument="device", value=device, repair=repair)
    if not sees_gpus():
        return [device]
    from secondlook.classifiers.device import list_gpus

    return list_gpus(device)


def sees_gpus() -> bool:
    """Whether torch is installed and sees a GPU to make views on."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


class TimeLimits:
    """Stops calls after a time limit, from another thread.

    One thread watches all calls: on busy cores, starting and joining a thread per call takes longer than the call. The
    thread is a daemon and only waits in Python, so the interpreter can exit at any time.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all calls, and the thread."""
        self._changed = threading.Condition()
        self._calls: dict[object, tuple[float, Callable[[], object]]] = {}
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop` if the block takes longer than `seconds`."""
        call, deadline = object(), time.monotonic() + seconds
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, daemon=True, name="secondlook-time-limits")
                thread.start()  # may fail; the thread waits for the lock
                self._thread = thread
            elif deadline < self._wakes_at:
                self._changed.notify()
            self._calls[call] = (deadline, stop)
        try:
            yield
        finally:
            with self._changed:
                self._calls.pop(call, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call, (deadline, stop) in list(self._calls.items()):
                    if deadline <= now:
                        del self._calls[call]
                        stop()
                self._wakes_at = min((deadline for deadline, _ in self._calls.values()), default=math.inf)
                self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))


TIME_LIMITS = TimeLimits()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TIME_LIMITS.reset)  # threads do not survive a fork
