"""ONNX models, run by ONNX Runtime on the CPU or on GPUs."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from secondlook.arrays import OUTPUTS, Array
from secondlook.classifiers.classifier import (
    Classifier,
    describe_failure,
    digest_with_options,
    find_model_file,
    run_in_batches,
)
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.onnx_file import CPU_PROVIDER, DEFAULT_TIMEOUT, OnnxFile, list_session_gpus, sees_gpus
from secondlook.classifiers.preprocessing import InputType, ModelInput, choose_output_name
from secondlook.errors import ANY, ClassifierError, Repair, reject_failures
from secondlook.threads import count_threads

if TYPE_CHECKING:
    from torch import Tensor

    from secondlook.classifiers.device import DeviceWorkers

INPUT_TYPES: dict[str, InputType] = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8"}

MIN_PART = 8
"""Minimum number of images per thread when a batch is split."""


@dataclass(frozen=True)
class SessionRun:
    """Calls a session with arrays or torch tensors, within a time limit."""

    session: Any
    model_input: ModelInput
    output_name: str
    name: str
    """Name of the classifier, for messages."""
    timeout: float
    """Time limit for one batch, in seconds."""

    def __call__(self, inputs: Array) -> Array:
        """Return the output of the model for an array. -> [n, classes]"""
        outputs: list[Array] = self._run(inputs, self.session.run, [self.output_name], {self.model_input.name: inputs})
        return outputs[0]

    def run_tensor(self, inputs: "Tensor") -> "Tensor":
        """Return the output of the model for a tensor, read from its device. -> [n, classes] on the host"""
        import torch

        inputs = inputs.contiguous()  # keep a reference: the session gets only the address
        if inputs.is_cuda:
            # A session has its own stream and waits for it at the end, but it does not wait for the views.
            torch.cuda.current_stream(inputs.device).synchronize()
        binding = self.session.io_binding()
        place = (inputs.device.type, inputs.device.index or 0)
        content = (np.dtype(self.model_input.dtype), tuple(inputs.shape), inputs.data_ptr())
        binding.bind_input(self.model_input.name, *place, *content)
        binding.bind_output(self.output_name)
        self._run(inputs, self.session.run_with_iobinding, binding)
        return torch.from_numpy(binding.copy_outputs_to_cpu()[0])

    def _run(self, inputs: "Array | Tensor", *call: Any) -> Any:
        what = f"classifier {self.name!r}"
        try:
            return OnnxFile.run_limited(*call, what=what, timeout=self.timeout, n_images=len(inputs))
        except ClassifierError:
            raise
        except Exception as error:
            raise describe_failure(self.name, inputs, error) from error


def split_run(whole: SessionRun, part: SessionRun, n_parts: int) -> Callable[[Array], Array]:
    """Return a call that splits large batches among threads; for a small batch, all threads share each operator.

    Threads that share operators wait for each other after each one; the parts of a batch do not. But for parts of a
    few images, the overhead of the threads is larger than the gain.
    """
    threads = ThreadPoolExecutor(n_parts - 1, thread_name_prefix="secondlook-part")

    def run(inputs: Array) -> Array:
        if len(inputs) < MIN_PART * n_parts:
            return whole(inputs)
        first, *others = np.array_split(inputs, n_parts)
        started = [threads.submit(part, other) for other in others]
        return np.concatenate([part(first), *(one.result() for one in started)])

    return run


class PlacedSession(NamedTuple):
    """A session on its device, the function that calls it, and GPU workers if torch can make views there."""

    first: SessionRun
    run: Callable[[Array], Array]
    workers: "DeviceWorkers | None" = None


class OnnxClassifier(Classifier):
    """An ONNX Runtime session; `model_input` has the layout, size, number type and batch size of its image input."""

    def __init__(
        self, onnx_file: OnnxFile, options: LoadOptions, output_name: str | None, providers: Sequence[str] | None
    ) -> None:
        self._onnx_file = onnx_file
        self._files_digest = onnx_file.digest()  # first: it checks the paths of external data
        session = onnx_file.open_with([CPU_PROVIDER] if providers is None else providers)
        inputs = [(each.name, each.shape, each.type) for each in session.get_inputs()]
        self.model_input = ModelInput.parse(inputs, INPUT_TYPES, options.spec)
        output = _select_output(session, output_name, options.spec)
        self.output_name = output.name
        declared = next((kind for kind in OUTPUTS if kind == output.name), None)
        has_several_outputs = len(session.get_outputs()) > 1
        n_classes = output.shape[-1] if len(output.shape) == 2 else None
        super().__init__(
            name=options.display_name,
            digest=digest_with_options(self._files_digest, output_name=output.name if has_several_outputs else None),
            output=options.output or declared or options.require_output(),
            preprocessing=options.override(self.model_input.make_preprocessing(options.layout, options.spec)),
            n_classes=n_classes if isinstance(n_classes, int) else None,
        )
        self._device = "auto"
        # device='auto' keeps the given providers; without providers, this is the CPU session.
        self._known = {"cpu" if providers is None else "auto": self._place_sessions([session])}
        """Sessions by requested device, shared by copies of the classifier."""

    @property
    def file(self) -> Path:
        """The file of the model."""
        return self._onnx_file.path

    def list_files(self) -> list[Path]:
        """Return the file of the model, and the files with its external data."""
        return [self.file, *self._onnx_file.find_external_data()]

    def is_unchanged(self) -> bool:
        """Whether the file and its external data are unchanged since the model was loaded."""
        return self._onnx_file.digest() == self._files_digest

    @property
    def session(self) -> Any:
        """The session, on the first GPU if there are several."""
        return self._placed.first.session

    @property
    def providers(self) -> list[str]:
        """The ONNX Runtime providers in use, in order of preference."""
        return list(self.session.get_providers())

    @property
    def workers(self) -> "DeviceWorkers | None":  # type: ignore[override]
        """The sessions on GPUs where torch can make the views; None elsewhere."""
        return self._placed.workers

    def on_device(self, device: str) -> "OnnxClassifier":
        """Return the classifier on 'auto', 'cpu', 'cuda' (all GPUs that torch sees) or 'cuda:N'."""
        self.check_device(device)
        if device in ("auto", self._device):
            return self
        self._place(device)  # raises now if the device cannot be used
        moved = copy.copy(self)
        moved._device = device
        return moved

    def split_batches(self) -> "OnnxClassifier":
        """Return the model with a second CPU session of one thread per call; on GPUs, the model itself."""
        n_parts = count_threads()
        is_divided = self.model_input.batch_size is not None  # into batches of a fixed size
        if self.providers != [CPU_PROVIDER] or self._onnx_file.threads is not None or is_divided or n_parts == 1:
            return self
        whole, one_thread = self._placed.first, replace(self._onnx_file, threads=1)
        part = replace(whole, session=one_thread.open_session("cpu"))
        split = copy.copy(self)
        split._device, split._known = "cpu", {"cpu": PlacedSession(whole, split_run(whole, part, n_parts))}
        return split

    def forward(self, images: Array) -> Array:
        """Return the selected output of the model. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        inputs, run = self.preprocessing.normalize(images), self._placed.run
        return np.asarray(run_in_batches(inputs, self.model_input.batch_size, run))

    @property
    def _placed(self) -> PlacedSession:
        return self._place(self._device)

    def _place(self, device: str) -> PlacedSession:
        if device in self._known:
            return self._known[device]
        if device == "auto":
            try:
                placed = self._place("cuda")
            except ClassifierError:  # ONNX Runtime cannot use a GPU
                placed = self._place("cpu")
        else:
            gpus = [] if device == "cpu" else list_session_gpus(device)
            sessions = [self._onnx_file.open_session(gpu) for gpu in gpus or ["cpu"]]
            placed = self._place_sessions(sessions, gpus if sees_gpus() else ())
        self._known[device] = placed
        return placed

    def _place_sessions(self, sessions: Sequence[Any], gpus: Sequence[str] = ()) -> PlacedSession:
        """Return sessions with their calls; on GPUs visible to torch, workers make the views."""
        described = (self.model_input, self.output_name, self.name, self._onnx_file.timeout)
        runs = [SessionRun(session, *described) for session in sessions]
        if not gpus:
            return PlacedSession(runs[0], runs[0])
        import torch

        from secondlook.classifiers.device import DeviceModel, DeviceWorkers

        dtype, batch_size = getattr(torch, self.model_input.dtype), self.model_input.batch_size
        models = [
            DeviceModel(torch.device(gpu), run.run_tensor, dtype, batch_size=batch_size)
            for gpu, run in zip(gpus, runs, strict=True)
        ]
        return PlacedSession(runs[0], runs[0], DeviceWorkers(models))


@model_scheme(
    "onnx",
    form="onnx:FILE",
    summary="ONNX file, run by ONNX Runtime; ?output= is required unless the model's output is named after its kind",
    is_data_only=True,
)
def open_onnx(
    location: str,
    options: LoadOptions,
    *,
    output_name: str | None = None,
    providers: str | Sequence[str] | None = None,
    threads: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Classifier:
    """Open an ONNX file. `device='auto'` keeps the `providers` of the user."""
    if not timeout > 0:  # rejects NaN
        raise ClassifierError(f"of {options.spec!r} must be positive", argument="timeout", value=timeout)
    onnx_file = OnnxFile(find_model_file(location, options.spec), options.spec, threads, timeout)
    names = [providers] if isinstance(providers, str) else providers
    with reject_failures(f"ONNX Runtime cannot open {options.spec!r}", "check or re-export the file."):
        return OnnxClassifier(onnx_file, options, output_name, names)


def _select_output(session: Any, given: str | None, spec: str) -> Any:
    outputs = {each.name: each for each in session.get_outputs()}
    output = outputs[choose_output_name(list(outputs), given, spec)]
    if not output.type.startswith("tensor("):
        repair = Repair("pass another {output_name}, or export the model with zipmap=False", output_name=ANY)
        raise ClassifierError(f"output {output.name!r} of {spec!r} is {output.type}, not a tensor", repair=repair)
    return output
