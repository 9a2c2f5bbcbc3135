"""ONNX files as classifiers, run by ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secondlook.arrays import Array, Output
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.digests import digest_of_files, digest_with, existing_file, external_data_files
from secondlook.classifiers.preprocessing import InputType
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.classifiers.tensor_input import TensorInput, chosen, in_batches_of, tensor_input
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

INPUT_TYPES: dict[str, InputType] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
}
SAID_BY_NAME: dict[str, Output] = {"logits": "logits", "probabilities": "probabilities"}
"""Names of outputs that say what the output is: whoever exported the model stated it there."""

PREFERRED_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class OnnxClassifier(Classifier):
    """An ONNX Runtime session with one image input; layout, size, number type and batch are the model's own."""

    def __init__(self, session: Any, file: Path, statement: LoadOptions, output_name: str | None) -> None:
        self._session = session
        self._input = _image_input(session, statement.spec)
        output = _score_output(session, output_name, statement.spec)
        self._output_name = output.name
        several = len(session.get_outputs()) > 1
        n_classes = output.shape[-1] if len(output.shape) == 2 else None
        super().__init__(
            name=statement.shown_name,
            digest=digest_with(
                digest_of_files([file, *external_data_files(file)]), output_name=output.name if several else None
            ),
            output=statement.output or SAID_BY_NAME.get(output.name) or statement.stated_output(),
            preprocessing=statement.preprocessing(self._input.preprocessing(statement.layout, statement.spec)),
            n_classes=n_classes if isinstance(n_classes, int) else None,
        )

    @property
    def providers(self) -> list[str]:
        """The ONNX Runtime providers in use, first choice first."""
        return list(self._session.get_providers())

    def answer(self, images: Array) -> Array:
        """Scores of the chosen output. uint8|float32 [N, H, W, C] -> [N, n_classes]"""
        return in_batches_of(self._input.batch, self.preprocessing.normalize(images), self._run)

    def _run(self, inputs: Array) -> Array:
        from onnxruntime.capi import onnxruntime_pybind11_state as failures

        try:
            scores: Array = self._session.run([self._output_name], {self._input.name: inputs})[0]
        except (failures.Fail, failures.InvalidArgument, failures.RuntimeException) as error:
            raise ClassifierError(
                f"classifier {self.name!r} failed on an input of {list(inputs.shape)}: {str(error).splitlines()[0]}; "
                "check the size and layout of the images (resize=, crop=, layout=)."
            ) from error
        return scores


@model_scheme(
    "onnx",
    form="onnx:FILE",
    says="ONNX file, run by ONNX Runtime; output= must be stated unless the model's output is named so",
)
def open_onnx(
    target: str,
    statement: LoadOptions,
    *,
    output_name: str | None = None,
    providers: str | Sequence[str] | None = None,
    threads: int | None = None,
) -> Classifier:
    """Open an ONNX file.

    Parameters
    ----------
    target
        Path of the file.
    statement
        What the user states.
    output_name
        The output that holds the scores, where there are several.
    providers
        ONNX Runtime providers, first choice first; CUDA where available, then CPU, by default.
    threads
        Threads within one operation; all cores by default.
    """
    file = existing_file(target, statement.spec)
    return OnnxClassifier(_session(file, statement.spec, providers, threads), file, statement, output_name)


def _session(file: Path, spec: str, providers: str | Sequence[str] | None, threads: int | None) -> Any:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as failures

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    unreadable = (failures.Fail, failures.InvalidProtobuf, failures.InvalidGraph, failures.NotImplemented)
    other = (failures.InvalidArgument, failures.NoSuchFile, failures.RuntimeException)
    chosen_providers = _providers(providers, onnxruntime.get_available_providers())
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=chosen_providers)
    except (*unreadable, *other) as error:
        reason = str(error).splitlines()[0]
        raise ClassifierError(f"{spec!r} cannot be opened by ONNX Runtime: {reason}; check or re-export it.") from error


def _providers(wanted: str | Sequence[str] | None, available: list[str]) -> list[str]:
    if wanted is None:
        return [provider for provider in PREFERRED_PROVIDERS if provider in available]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in available:
            raise ClassifierError(
                f"providers= names {name!r}, which this ONNX Runtime does not have; "
                f"available: {', '.join(available)}.{did_you_mean(name, available)}"
            )
    return names


def _image_input(session: Any, spec: str) -> TensorInput:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise ClassifierError(
            f"{spec!r} takes {len(inputs)} inputs ({', '.join(repr(each.name) for each in inputs)}); "
            "a classifier takes one batch of images: export it with a single input."
        )
    return tensor_input(inputs[0].name, inputs[0].shape, inputs[0].type, INPUT_TYPES, spec)


def _score_output(session: Any, wanted: str | None, spec: str) -> Any:
    outputs = {each.name: each for each in session.get_outputs()}
    output = outputs[chosen(list(outputs), wanted, "output_name", spec)]
    if not output.type.startswith("tensor("):
        raise ClassifierError(
            f"the output {output.name!r} of {spec!r} is {output.type}, not an array; "
            "choose another with output_name=, or export without the map (zipmap=False)."
        )
    return output
