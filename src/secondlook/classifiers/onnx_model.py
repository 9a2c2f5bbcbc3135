"""ONNX files, run by ONNX Runtime."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from secondlook.arrays import Array, Output
from secondlook.classifiers.classifier import (
    Classifier,
    digest_files,
    digest_with_options,
    find_model_file,
    reject_failures,
)
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.model_input import (
    ModelInput,
    check_single_input,
    choose_output_name,
    describe_failure,
    run_in_batches,
)
from secondlook.classifiers.onnx_file import find_external_data
from secondlook.classifiers.preprocessing import InputType
from secondlook.classifiers.time_limits import TIME_LIMITS
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

INPUT_TYPES: dict[str, InputType] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
}
OUTPUTS_BY_NAME: dict[str, Output] = {"logits": "logits", "probabilities": "probabilities"}
"""Names of model outputs that declare their kind."""

DEFAULT_TIMEOUT = 600.0
"""Seconds that one batch may take; a model can contain an endless loop."""

DEFAULT_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class OnnxClassifier(Classifier):
    """An ONNX Runtime session with one image input; layout, size, number type and batch size come from the model."""

    def __init__(
        self, session: Any, files: Sequence[Path], options: LoadOptions, output_name: str | None, timeout: float
    ) -> None:
        self._session = session
        self._timeout = timeout
        self._input = _describe_input(session, options.spec)
        output = _select_output(session, output_name, options.spec)
        self._output_name = output.name
        has_several_outputs = len(session.get_outputs()) > 1
        n_classes = output.shape[-1] if len(output.shape) == 2 else None
        super().__init__(
            name=options.display_name,
            digest=digest_with_options(
                digest_files(files),
                output_name=output.name if has_several_outputs else None,
            ),
            output=options.output or OUTPUTS_BY_NAME.get(output.name) or options.require_output(),
            preprocessing=options.override(self._input.make_preprocessing(options.layout, options.spec)),
            n_classes=n_classes if isinstance(n_classes, int) else None,
        )

    @property
    def providers(self) -> list[str]:
        """The ONNX Runtime providers in use, in order of preference."""
        return list(self._session.get_providers())

    def forward(self, images: Array) -> Array:
        """Return the selected output of the model. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        return run_in_batches(self.preprocessing.normalize(images), self._input.batch_size, self._run)

    def _run(self, inputs: Array) -> Array:
        import onnxruntime

        run_options = onnxruntime.RunOptions()
        try:
            with TIME_LIMITS.limit(self._timeout, partial(setattr, run_options, "terminate", True)):
                values: Array = self._session.run([self._output_name], {self._input.name: inputs}, run_options)[0]
        except Exception as error:
            if run_options.terminate:
                raise ClassifierError(
                    f"classifier {self.name!r} was stopped after {self._timeout:g} seconds on a batch of {len(inputs)} "
                    "images; if the model is not in an endless loop, pass a larger timeout= or use a smaller batch."
                ) from error
            raise ClassifierError(describe_failure(self.name, inputs, error)) from error
        return values


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
        ONNX Runtime providers in order of preference; by default CUDA if available, then CPU.
    threads
        Threads per operator; by default all cores.
    timeout
        Seconds that one batch may take.
    """
    if timeout <= 0:
        raise ClassifierError(f"timeout={timeout:g} of {options.spec!r} must be positive.")
    file = find_model_file(location, options.spec)
    # ONNX Runtime opens external data, so their paths are checked before.
    files = [file, *find_external_data(file, options.spec)]
    with reject_failures(f"ONNX Runtime cannot open {options.spec!r}", "check or re-export the file."):
        session = _create_session(file, providers, threads)
        return OnnxClassifier(session, files, options, output_name, timeout)


def _create_session(file: Path, providers: str | Sequence[str] | None, threads: int | None) -> Any:
    import onnxruntime

    session_options = onnxruntime.SessionOptions()
    # Not the other format of ONNX Runtime (.ort), in which external data would not be found.
    session_options.add_session_config_entry("session.load_model_format", "ONNX")
    if threads is not None:
        session_options.intra_op_num_threads = threads
    chosen = _choose_providers(providers, onnxruntime.get_available_providers())
    return onnxruntime.InferenceSession(str(file), session_options, providers=chosen)


def _choose_providers(given: str | Sequence[str] | None, available: list[str]) -> list[str]:
    if given is None:
        return [provider for provider in DEFAULT_PROVIDERS if provider in available]
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in available:
            raise ClassifierError(
                f"provider {name!r} in providers= is not available in this ONNX Runtime; "
                f"available: {', '.join(available)}.{did_you_mean(name, available)}"
            )
    return names


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
