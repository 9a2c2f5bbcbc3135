"""ONNX files, run by ONNX Runtime."""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secondlook.arrays import Array, Output
from secondlook.classifiers.classifier import Classifier, digest_files, digest_with_options, find_model_file
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.model_input import (
    ModelInput,
    check_single_input,
    choose_output_name,
    describe_failure,
    run_in_batches,
)
from secondlook.classifiers.preprocessing import InputType
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

INPUT_TYPES: dict[str, InputType] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
}
OUTPUTS_BY_NAME: dict[str, Output] = {"logits": "logits", "probabilities": "probabilities"}
"""Names of model outputs that declare their kind."""

DEFAULT_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class OnnxClassifier(Classifier):
    """An ONNX Runtime session with one image input; layout, size, number type and batch size come from the model."""

    def __init__(self, session: Any, file: Path, options: LoadOptions, output_name: str | None) -> None:
        self._session = session
        self._input = _describe_input(session, options.spec)
        output = _select_output(session, output_name, options.spec)
        self._output_name = output.name
        has_several_outputs = len(session.get_outputs()) > 1
        n_classes = output.shape[-1] if len(output.shape) == 2 else None
        super().__init__(
            name=options.display_name,
            digest=digest_with_options(
                digest_files([file, *_find_external_data(file)]),
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
        from onnxruntime.capi import onnxruntime_pybind11_state as failures

        try:
            values: Array = self._session.run([self._output_name], {self._input.name: inputs})[0]
        except (failures.Fail, failures.InvalidArgument, failures.RuntimeException) as error:
            raise ClassifierError(describe_failure(self.name, inputs, error)) from error
        return values


@model_scheme(
    "onnx",
    form="onnx:FILE",
    summary="ONNX file, run by ONNX Runtime; output= is required unless the model's output is named after its kind",
)
def open_onnx(
    location: str,
    options: LoadOptions,
    *,
    output_name: str | None = None,
    providers: str | Sequence[str] | None = None,
    threads: int | None = None,
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
    """
    file = find_model_file(location, options.spec)
    return OnnxClassifier(_create_session(file, options.spec, providers, threads), file, options, output_name)


def _create_session(file: Path, spec: str, providers: str | Sequence[str] | None, threads: int | None) -> Any:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as failures

    session_options = onnxruntime.SessionOptions()
    if threads is not None:
        session_options.intra_op_num_threads = threads
    invalid_model = (failures.Fail, failures.InvalidProtobuf, failures.InvalidGraph, failures.NotImplemented)
    others = (failures.InvalidArgument, failures.NoSuchFile, failures.RuntimeException)
    chosen = _choose_providers(providers, onnxruntime.get_available_providers())
    try:
        return onnxruntime.InferenceSession(str(file), session_options, providers=chosen)
    except (*invalid_model, *others) as error:
        reason = str(error).splitlines()[0]
        raise ClassifierError(f"ONNX Runtime cannot open {spec!r}: {reason}; check or re-export the file.") from error


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


def _find_external_data(model: Path) -> list[Path]:
    """Return the files beside an ONNX model that hold its weights, sorted by name.

    The model lists them in protobuf pairs ("location", path). Their bytes are searched for, because parsing the model
    would need the onnx package and memory for all weights.
    """
    key = b"\x0a\x08location\x12"
    if model.stat().st_size == 0:
        return []
    names = set()
    with model.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = content.find(key)
        while position >= 0:
            names.add(_read_protobuf_string(content, position + len(key)))
            position = content.find(key, position + len(key))
    return [model.parent / name for name in sorted(names) if (model.parent / name).is_file()]


def _read_protobuf_string(content: mmap.mmap, position: int) -> str:
    """Return the string at a position, where its length comes first as a varint."""
    length, shift = 0, 0
    while content[position] >= 128:
        length |= (content[position] & 127) << shift
        position, shift = position + 1, shift + 7
    length |= content[position] << shift
    return content[position + 1 : position + 1 + length].decode("utf-8", errors="replace").replace("\0", "")
