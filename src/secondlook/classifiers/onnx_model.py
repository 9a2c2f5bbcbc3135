"""ONNX files, run by ONNX Runtime on the CPU or on GPUs."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from secondlook.arrays import Array, Output
from secondlook.classifiers.classifier import (
    Classifier,
    check_device,
    digest_files,
    digest_with_options,
    find_model_file,
    reject_failures,
)
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.model_input import ModelInput, check_single_input, choose_output_name, run_in_batches
from secondlook.classifiers.onnx_file import find_external_data
from secondlook.classifiers.onnx_session import (
    CPU_PROVIDER,
    DEFAULT_TIMEOUT,
    OnnxSessions,
    SessionRun,
    list_session_gpus,
    sees_gpus,
)
from secondlook.classifiers.preprocessing import InputType
from secondlook.classifiers.threads import count_threads
from secondlook.errors import ClassifierError

if TYPE_CHECKING:
    from secondlook.classifiers.device import DeviceWorkers

INPUT_TYPES: dict[str, InputType] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
}
OUTPUTS_BY_NAME: dict[str, Output] = {"logits": "logits", "probabilities": "probabilities"}
"""Names of model outputs that declare their kind."""


class PlacedSession(NamedTuple):
    """A session on its device, and the workers of GPUs if torch can make the views there."""

    run: SessionRun
    workers: "DeviceWorkers | None" = None


class OnnxClassifier(Classifier):
    """An ONNX Runtime session with one image input; layout, size, number type and batch size come from the model.

    Attributes
    ----------
    model_input, output_name
        The input of the model and the output in use.
    """

    def __init__(
        self,
        sessions: OnnxSessions,
        files: Sequence[Path],
        options: LoadOptions,
        output_name: str | None,
        providers: Sequence[str] | None,
        timeout: float,
    ) -> None:
        self._sessions = sessions
        self._files_digest = digest_files(files)
        session = sessions.open() if providers is None else sessions.open(providers)
        self.model_input = _describe_input(session, options.spec)
        output = _select_output(session, output_name, options.spec)
        self.output_name = output.name
        self._timeout = timeout
        has_several_outputs = len(session.get_outputs()) > 1
        n_classes = output.shape[-1] if len(output.shape) == 2 else None
        super().__init__(
            name=options.display_name,
            digest=digest_with_options(
                self._files_digest,
                output_name=output.name if has_several_outputs else None,
            ),
            output=options.output or OUTPUTS_BY_NAME.get(output.name) or options.require_output(),
            preprocessing=options.override(self.model_input.make_preprocessing(options.layout, options.spec)),
            n_classes=n_classes if isinstance(n_classes, int) else None,
        )
        self._device = "auto"
        # Given providers are kept by device='auto', and the session without any is the one on the CPU.
        self._known = {"cpu" if providers is None else "auto": PlacedSession(self._make_run(session))}
        """The session by the device that was asked for; copies of the classifier share it."""

    @property
    def file(self) -> Path:
        """The file that the model was loaded from."""
        return self._sessions.file

    def is_unchanged(self) -> bool:
        """Whether the file, and those with external data, are still those that the model was loaded from."""
        files = [self.file, *find_external_data(self.file, self.name)]
        return digest_files(files) == self._files_digest

    @property
    def session(self) -> Any:
        """The session itself, on the first GPU if there are several."""
        return self._placed.run.session

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
        check_device(device)
        if device in ("auto", self._device):
            return self
        moved = copy.copy(self)
        moved._device = device
        self._place(device)  # now, since it may be impossible
        return moved

    def split_batches(self) -> "OnnxClassifier":
        """Return the model with a second session on the CPU, of one thread per call; itself on GPUs."""
        n_parts = count_threads()
        is_divided = self.model_input.batch_size is not None  # by the model itself, into batches of a fixed size
        if self.providers != [CPU_PROVIDER] or self._sessions.threads is not None or is_divided or n_parts == 1:
            return self
        part = self._make_run(replace(self._sessions, threads=1).open())
        split = copy.copy(self)
        split._known = {"cpu": PlacedSession(self._placed.run.split(part, n_parts))}
        split._device = "cpu"
        return split

    def forward(self, images: Array) -> Array:
        """Return the selected output of the model. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        return run_in_batches(self.preprocessing.normalize(images), self.model_input.batch_size, self._placed.run)

    @property
    def _placed(self) -> PlacedSession:
        return self._place(self._device)

    def _place(self, device: str) -> PlacedSession:
        if device not in self._known:
            self._known[device] = self._open(device)
        return self._known[device]

    def _open(self, device: str) -> PlacedSession:
        if device == "cpu":
            return PlacedSession(self._make_run(self._sessions.open()))
        if device == "auto":
            try:
                return self._place("cuda")
            except ClassifierError:  # there is no GPU that ONNX Runtime can use
                return self._place("cpu")
        gpus = list_session_gpus(device)
        runs = [self._make_run(self._sessions.open_on_gpu(gpu, device)) for gpu in gpus]
        return PlacedSession(runs[0], _make_workers(runs, gpus) if sees_gpus() else None)

    def _make_run(self, session: Any) -> SessionRun:
        return SessionRun(session, self.model_input, self.output_name, self.name, self._timeout)


def _make_workers(runs: Sequence[SessionRun], gpus: Sequence[str]) -> "DeviceWorkers":
    import torch

    from secondlook.classifiers.device import DeviceWorkers

    return DeviceWorkers([run.to_device_model(torch.device(gpu)) for run, gpu in zip(runs, gpus, strict=True)])


@model_scheme(
    "onnx",
    form="onnx:FILE",
    summary="ONNX file, run by ONNX Runtime; output= is required unless the model's output is named after its kind",
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
    """Open an ONNX file.

    Parameters
    ----------
    location
        Path of the file.
    options
        Options common to all model schemes.
    output_name
        The output to use if there are several.
    providers
        ONNX Runtime providers in order of preference, which device='auto' keeps; by default CUDA if available, then
        CPU.
    threads
        Threads per operator; by default all cores.
    timeout
        Seconds that loading, or one batch, may take.
    """
    if not timeout > 0:  # nor is NaN
        raise ClassifierError(f"timeout={timeout:g} of {options.spec!r} must be positive.")
    file = find_model_file(location, options.spec)
    # ONNX Runtime opens external data, so their paths are checked before.
    files = [file, *find_external_data(file, options.spec)]
    names = [providers] if isinstance(providers, str) else providers
    with reject_failures(f"ONNX Runtime cannot open {options.spec!r}", "check or re-export the file."):
        return OnnxClassifier(OnnxSessions(file, threads, timeout), files, options, output_name, names, timeout)


def _describe_input(session: Any, spec: str) -> ModelInput:
    inputs = session.get_inputs()
    check_single_input([each.name for each in inputs], spec)
    return ModelInput.parse(inputs[0].name, inputs[0].shape, inputs[0].type, INPUT_TYPES, spec)


def _select_output(session: Any, given: str | None, spec: str) -> Any:
    outputs = {each.name: each for each in session.get_outputs()}
    output = outputs[choose_output_name(list(outputs), given, spec)]
    if not output.type.startswith("tensor("):
        raise ClassifierError(
            f"output {output.name!r} of {spec!r} is {output.type}, not a tensor; "
            "pass another output_name=, or export the model without the map (zipmap=False)."
        )
    return output
