"""Monte-Carlo dropout: the same image through a network several times, with other units left out each time."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array
from secondlook.errors import ConfidenceError
from secondlook.estimators.networks import in_batches, torch_classifier
from secondlook.estimators.registry import method
from secondlook.estimators.shares import predicted_classes
from secondlook.predictions import PredictFrom, Predictions, check_output_values

if TYPE_CHECKING:
    import torch

Statistic = Literal["variance", "mean"]


@method(
    "mc-dropout",
    symbol="MCD",
    summary="negative variance of the predicted class over passes with dropout active, or their mean",
    needs=("passes",),
)
def mc_dropout(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    passes: Array | None = None,
    statistic: Statistic = "variance",
) -> Float64Array:
    """Return -Var_t s_c of the predicted class over the passes, or its mean. passes [T, N, C] -> [N]

    For k > 1 s_c is the sum over the k predicted classes.
    """
    outputs = _checked_passes(passes, preds)
    if statistic not in ("variance", "mean"):
        raise ConfidenceError(f"statistic is {statistic!r}; expected 'variance' or 'mean'.")
    classes = predicted_classes(preds, predict_from, top_k)
    shares = np.array([np.take_along_axis(one, classes, axis=1).sum(axis=1, dtype=np.float64) for one in outputs])
    values: Float64Array = -shares.var(axis=0) if statistic == "variance" else shares.mean(axis=0)
    return values


def mc_dropout_passes(
    classifier: object, images: Array, *, passes: int = 100, seed: int = 0, batch_size: int = 256
) -> Float32Array:
    """Run the images through a torch classifier several times with dropout active. [N, H, W, C] -> [passes, N, classes]

    The result holds probabilities. Only dropout layers are switched on: batch normalization keeps its averages. The
    same seed, images and batch size give the same passes; torch's own generator stays as it was.
    """
    if passes < 2:
        raise ConfidenceError(f"passes is {passes}; expected at least 2, since one pass has no variance.")
    network = torch_classifier(classifier)
    import torch

    with torch.random.fork_rng(), _dropout_active(network.module):
        torch.manual_seed(seed)
        return np.stack([in_batches(network.probabilities, images, batch_size) for _ in range(passes)])


@contextlib.contextmanager
def _dropout_active(module: "torch.nn.Module") -> Iterator[None]:
    """Let dropout layers leave units out though the classifier is evaluated; everything else stays as it is.

    The classifier switches its module to evaluation for each call, so each dropout layer is switched just before it
    is run and back right after.
    """
    from torch.nn.modules.dropout import _DropoutNd

    layers = [part for part in module.modules() if isinstance(part, _DropoutNd) and part.p > 0]
    if not layers:
        raise ConfidenceError(
            f"{type(module).__name__} has no dropout layer, so all passes would be equal; "
            "use another confidence, or a network with torch.nn.Dropout in it."
        )
    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(_switch_on).remove)
            hooks.callback(layer.register_forward_hook(_switch_off).remove)
        yield


def _switch_on(layer: "torch.nn.Module", _: object) -> None:
    layer.training = True


def _switch_off(layer: "torch.nn.Module", _: object, __: object) -> None:
    layer.training = False


def _checked_passes(passes: Array | None, preds: Predictions) -> Array:
    outputs = np.asarray(passes)
    if outputs.ndim != 3 or outputs.shape[0] < 2 or outputs.shape[1:] != (preds.n_images, preds.n_classes):
        raise ConfidenceError(
            f"passes= has shape {list(outputs.shape)}; expected [at least 2 passes, {preds.n_images} images, "
            f"{preds.n_classes} classes], as mc_dropout_passes makes it."
        )
    texts = [f"pass {number}" for number in range(len(outputs))]
    check_output_values(outputs.swapaxes(0, 1), "probabilities", texts)
    return outputs
