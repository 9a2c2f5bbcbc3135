"""PyTorch models as classifiers: a module, a factory with weights, an exported program, or TorchScript."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secondlook.arrays import Array
from secondlook.classifiers import torch_files
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.digests import digest_of_files, digest_of_module, digest_with, existing_file
from secondlook.classifiers.naming import imported
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.classifiers.tensor_input import in_batches_of
from secondlook.errors import ClassifierError, MissingExtraError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16", "float64")


class TorchClassifier(Classifier):
    """A torch module, called in eval and inference mode; its training flags come back as they were.

    `module` is the network itself, for methods that hook into it.
    """

    def __init__(
        self,
        module: "torch.nn.Module",
        statement: LoadOptions,
        *,
        digest: str,
        preprocessing: Preprocessing,
        rows: int | None = None,
        channels_last: bool = False,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(
            name=statement.shown_name,
            digest=digest,
            output=statement.stated_output(),
            preprocessing=preprocessing,
            class_names=class_names,
        )
        self.module = module
        self._rows = rows
        self._channels_last = channels_last

    def answer(self, images: Array) -> Array:
        """Scores as the module gives them. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        inputs = self.preprocessing.normalize(images)
        with _evaluating(self.module):
            return in_batches_of(self._rows, inputs, self._run)

    def _run(self, inputs: Array) -> Array:
        import torch

        try:
            with torch.inference_mode():
                # Raw pixels may come straight from a read-only file, which torch does not take.
                tensor = torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())
                answers = self.module(self._on_device(tensor))
                scores: Array = _scores_in(answers, self.name).to("cpu", torch.float32).numpy()
        except RuntimeError as error:
            raise ClassifierError(
                f"classifier {self.name!r} failed on an input of {list(inputs.shape)}: {str(error).splitlines()[0]}; "
                "check the size and layout of the images (resize=, crop=, layout=)."
            ) from error
        return scores

    def _on_device(self, inputs: "torch.Tensor") -> "torch.Tensor":
        import torch

        like = next((value for value in self.module.parameters() if value.is_floating_point()), None)
        memory_format = torch.channels_last if self._channels_last else torch.preserve_format
        if like is None:
            return inputs.contiguous(memory_format=torch.channels_last) if self._channels_last else inputs
        dtype = like.dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.to(like.device, dtype, memory_format=memory_format)


def _scores_in(answers: Any, name: str) -> "torch.Tensor":
    """Return the tensor of scores: the answer itself, or the `logits` of a transformers output."""
    import torch

    scores = getattr(answers, "logits", answers)
    if not isinstance(scores, torch.Tensor):
        raise ClassifierError(
            f"classifier {name!r} answered {type(answers).__name__}, not a tensor; "
            "wrap the module so that its forward gives one tensor [images, classes]."
        )
    return scores


@contextmanager
def _evaluating(module: "torch.nn.Module") -> Iterator[None]:
    """Set every submodule to eval, and back to what each was: a frozen part of a training model stays frozen."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _is_torch_module(target: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


@model_scheme(
    "torch",
    form="torch:FILE.pt2 or torch:package.module:factory",
    says="PyTorch module, factory with weights=, torch.export file or TorchScript file; output= must be stated",
    extra="torch",
    recognizes=_is_torch_module,
)
def open_torch(
    target: Any,
    statement: LoadOptions,
    *,
    weights: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool = False,
) -> Classifier:
    """Open a torch model.

    Parameters
    ----------
    target
        A module, `package.module:factory`, or the path of a torch.export or TorchScript file.
    statement
        What the user states.
    weights
        Safetensors file or state dict for the factory's module, loaded as data only.
    device, dtype
        Where and in which numbers to compute; as the module is by default. Another one is set on a copy.
    channels_last
        Keep images in memory with the channels last, which is faster on some devices.
    """
    statement.stated_output()
    require_torch()
    if isinstance(target, str) and ":" not in target:
        if weights is not None:
            raise ClassifierError(f"{statement.spec!r} is a file with its own weights, so weights= has no place.")
        return _from_file(existing_file(target, statement.spec), statement, device, dtype, channels_last)
    module = module_made_by(target, statement.spec) if isinstance(target, str) else target
    if weights is not None:
        if not isinstance(target, str):
            module = copy.deepcopy(module)
        torch_files.load_weights(module, Path(weights), statement.spec)
    return classifier_of(
        module, statement, Preprocessing(), device=device, dtype=dtype, channels_last=channels_last, own=weights is None
    )


def classifier_of(
    module: "torch.nn.Module",
    statement: LoadOptions,
    preprocessing: Preprocessing,
    *,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool = False,
    own: bool = True,
    class_names: tuple[str, ...] | None = None,
) -> TorchClassifier:
    """Return a classifier of a module; one that belongs to the user (`own`) is copied before it is moved."""
    digest = digest_with(digest_of_module(module), dtype=dtype)
    if own and (device is not None or dtype is not None or channels_last):
        module = copy.deepcopy(module)
    return TorchClassifier(
        moved(module, device, dtype, channels_last),
        statement,
        digest=digest,
        preprocessing=statement.preprocessing(preprocessing),
        channels_last=channels_last,
        class_names=class_names,
    )


def moved(module: "torch.nn.Module", device: str | None, dtype: str | None, channels_last: bool) -> "torch.nn.Module":
    """Return the module on a device, in a number type and a memory format."""
    import torch

    if dtype is not None and dtype not in DTYPES:
        raise ClassifierError(f"dtype={dtype!r} is unknown; allowed: {', '.join(DTYPES)}.")
    try:
        module = module.to(device=device, dtype=None if dtype is None else getattr(torch, dtype))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ClassifierError(
            f"device={device!r} cannot be used: {reason}; choose 'cpu' or one that is there."
        ) from error
    return module.to(memory_format=torch.channels_last) if channels_last else module  # type: ignore[call-overload]


def require_torch() -> None:
    """Raise with the extra's name where torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a torch classifier", "torch", "torch") from error


def module_made_by(address: str, spec: str) -> Any:
    """Return the module that a factory at `package.module:factory` makes, or the one that is there."""
    import torch

    found = imported(address, spec)
    made = found if isinstance(found, torch.nn.Module) or not callable(found) else found()
    if not isinstance(made, torch.nn.Module):
        raise ClassifierError(
            f"{spec!r} gave {type(made).__name__}, not a torch.nn.Module; name a class or function that makes one."
        )
    return made


def _from_file(
    file: Path, statement: LoadOptions, device: str | None, dtype: str | None, channels_last: bool
) -> Classifier:
    module, image_input = torch_files.load_program(file, statement.spec, device)
    preprocessing = Preprocessing()
    if image_input is not None:
        preprocessing = image_input.preprocessing(statement.layout, statement.spec)
        if dtype is not None:
            raise ClassifierError(f"{statement.spec!r} was exported with its own numbers; leave dtype={dtype!r} out.")
    return TorchClassifier(
        moved(module, device, dtype, channels_last),
        statement,
        digest=digest_with(digest_of_files([file]), dtype=dtype),
        preprocessing=statement.preprocessing(preprocessing),
        rows=None if image_input is None else image_input.batch,
        channels_last=channels_last,
    )
