"""Methods that look inside a PyTorch network: distance to training embeddings, and Monte Carlo dropout.

`distance` is the density score of Mandelbaum and Weinshall (2017), "Distance-based Confidence Score for Neural Network
Classifiers"; `mc-dropout` follows Gal and Ghahramani (2016), "Dropout as a Bayesian Approximation".
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from secondlook.arrays import SUM_TOLERANCE, Array, Float32Array, Float64Array, IntArray
from secondlook.errors import ConfidenceError, PredictionsError
from secondlook.estimators.methods import method
from secondlook.estimators.probability_mass import predicted_classes
from secondlook.imports import import_extra
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean

if TYPE_CHECKING:
    import torch

    from secondlook.classifiers import TorchClassifier


@method(
    "distance",
    symbol="IAD",
    summary="fraction of the nearest training embeddings with the predicted class, weighted by proximity",
    needs=("embeddings",),
)
def distance(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    embeddings: Array | None = None,
    train_embeddings: Array | None = None,
    train_labels: Array | None = None,
    neighbors: int = 50,
) -> Float64Array:
    """Return the fraction of sum_j exp(-d_j) from neighbors of the predicted classes. [N, E], [M, E], [M] -> [N]

    d_j is the Euclidean distance to the j-th of the `neighbors` nearest training embeddings.
    """
    own = _check_embeddings(embeddings, "embeddings", preds.n_images)
    train = _check_embeddings(train_embeddings, "train_embeddings", None)
    labels = np.asarray(train_labels)
    if own.shape[1] != train.shape[1] or labels.shape != (len(train),) or labels.dtype.kind not in "iu":
        found = f"{list(own.shape)}, {list(train.shape)} and {labels.dtype} {list(labels.shape)}"
        expected = "expected embeddings [N, E], train_embeddings [M, E] and train_labels, integers [M]"
        raise ConfidenceError(f"the shapes {found} do not match; {expected}.")
    if not 1 <= neighbors <= len(train):
        expected = f"is out of range; expected 1 to {len(train)}, the number of training embeddings"
        raise ConfidenceError(expected, argument="neighbors", value=neighbors)
    from sklearn.neighbors import NearestNeighbors

    distances, nearest = NearestNeighbors(n_neighbors=neighbors, algorithm="brute").fit(train).kneighbors(own)
    classes = predicted_classes(preds, predict_from, top_k)
    return compute_density_score(distances.astype(np.float64), labels[nearest], classes)


def compute_density_score(distances: Float64Array, labels: IntArray, classes: IntArray) -> Float64Array:
    """Return the fraction of the weights exp(-distance) with one of the classes. [n, J], [n, J], [n, k] -> [n]"""
    # Subtracting the smallest distance does not change the fraction, and keeps the weights from underflowing.
    weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
    matches = (labels[:, :, None] == classes[:, None, :]).any(axis=2)
    fraction: Float64Array = (weights * matches).sum(axis=1) / weights.sum(axis=1)
    return fraction


def compute_embeddings(classifier: object, images: Array, *, layer: str, batch_size: int = 256) -> Float32Array:
    """Return the flattened output of one layer of a PyTorch classifier. uint8 [N, H, W, C] -> float32 [N, E]

    `layer` is the name of the layer in `dict(module.named_modules())`, such as 'layer4.1' or 'avgpool'.
    """
    torch_classifier = _load_torch_classifier(classifier)
    outputs: list[Float32Array] = []

    def append_output(_: object, __: object, output: "torch.Tensor") -> None:
        outputs.append(output.detach().flatten(start_dim=1).float().cpu().numpy())

    layers = {name: found for name, found in torch_classifier.module.named_modules() if name}
    if layer not in layers:
        fault = f"{type(torch_classifier.module).__name__} has no layer {layer!r}; known layers: {', '.join(layers)}"
        raise ConfidenceError(f"{fault}.{did_you_mean(layer, layers)}")
    hook = layers[layer].register_forward_hook(append_output)
    try:
        probabilities = _run_in_batches(torch_classifier.probabilities, images, batch_size)
    finally:
        hook.remove()
    embeddings = np.concatenate(outputs)
    if len(embeddings) != len(probabilities):
        fault = f"layer {layer!r} returned {len(embeddings)} rows for {len(probabilities)} images, not one per image"
        raise ConfidenceError(fault, repair="choose another layer")
    return embeddings


@method(
    "mc-dropout",
    symbol="MCD",
    summary="negative variance of the predicted class over passes with dropout active, or the mean",
    needs=("passes",),
)
def mc_dropout(
    preds: Predictions,
    *,
    predict_from: PredictFrom,
    top_k: int,
    passes: Array | None = None,
    statistic: Literal["variance", "mean"] = "variance",
) -> Float64Array:
    """Return -Var_t s_c of the predicted class over the passes t, or its mean. passes [T, N, C] -> [N]

    For k > 1 s_c is the sum over the k predicted classes.
    """
    outputs = np.asarray(passes)
    if outputs.ndim != 3 or outputs.shape[0] < 2 or outputs.shape[1:] != (preds.n_images, preds.n_classes):
        expected = f"[at least 2 passes, {preds.n_images} images, {preds.n_classes} classes]"
        raise ConfidenceError(f"passes has shape {list(outputs.shape)}; expected {expected}.")
    is_valid = (outputs >= 0).all(axis=2) & (np.abs(outputs.sum(axis=2, dtype=np.float64) - 1) <= SUM_TOLERANCE)
    for number, image in np.argwhere(~is_valid)[:1]:
        raise PredictionsError(f"pass {number} of image {image} has no probabilities; expected values >= 0 with sum 1.")
    if statistic not in ("variance", "mean"):
        raise ConfidenceError("is unknown; expected 'variance' or 'mean'", argument="statistic", value=statistic)
    classes = predicted_classes(preds, predict_from, top_k)
    mass = np.array([np.take_along_axis(one, classes, axis=1).sum(axis=1, dtype=np.float64) for one in outputs])
    values: Float64Array = -mass.var(axis=0) if statistic == "variance" else mass.mean(axis=0)
    return values


def compute_mc_dropout_passes(
    classifier: object, images: Array, *, passes: int = 100, seed: int = 0, batch_size: int = 256
) -> Float32Array:
    """Return the probabilities of several passes through a PyTorch classifier with dropout active. [passes, N, C]

    Only dropout layers are switched to training mode: batch normalization keeps its running averages. The passes depend
    on the seed, the images and the batch size; the state of PyTorch's random number generator does not change.
    """
    if passes < 2:
        expected = "is too small; expected at least 2, since one pass has no variance"
        raise ConfidenceError(expected, argument="passes", value=passes)
    torch_classifier = _load_torch_classifier(classifier)
    import torch

    with torch.random.fork_rng(), _activate_dropout(torch_classifier.module):
        torch.manual_seed(seed)
        return np.stack([_run_in_batches(torch_classifier.probabilities, images, batch_size) for _ in range(passes)])


@contextlib.contextmanager
def _activate_dropout(module: "torch.nn.Module") -> Iterator[None]:
    """Switch dropout layers to training mode, and no other layer.

    The classifier calls `module.eval()` for each batch, so each dropout layer is switched just before its forward pass
    and back right after.
    """
    from torch.nn.modules.dropout import _DropoutNd

    layers = [layer for layer in module.modules() if isinstance(layer, _DropoutNd) and layer.p > 0]
    if not layers:
        fault = f"{type(module).__name__} has no dropout layer, so all passes would be equal"
        raise ConfidenceError(fault, repair="use a network with torch.nn.Dropout layers, or another method")
    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(lambda one, *_: setattr(one, "training", True)).remove)
            hooks.callback(layer.register_forward_hook(lambda one, *_: setattr(one, "training", False)).remove)
        yield


def _load_torch_classifier(classifier: object) -> "TorchClassifier":
    from secondlook.classifiers import TorchClassifier, load_classifier

    import_extra("torch", feature="a torch classifier", extra="torch")
    loaded = load_classifier(classifier)
    if not isinstance(loaded, TorchClassifier):
        fault = f"the layers of {type(loaded).__name__} {loaded.name!r} are not accessible"
        raise ConfidenceError(fault, repair="load the classifier from a PyTorch module")
    return loaded


def _run_in_batches(compute: Callable[[Array], Float32Array], images: Array, batch_size: int) -> Float32Array:
    """Return the outputs for all images. [N, H, W, C] -> [N, ...]"""
    if batch_size < 1 or len(images) == 0:
        raise ConfidenceError(f"got {len(images)} images in batches of {batch_size}; expected at least one of each.")
    return np.concatenate([compute(images[start : start + batch_size]) for start in range(0, len(images), batch_size)])


def _check_embeddings(values: Array | None, name: str, n_images: int | None) -> Float64Array:
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind != "f" or (n_images is not None and len(array) != n_images):
        rows = "M" if n_images is None else n_images
        raise ConfidenceError(f"{name} is {array.dtype} {list(array.shape)}; expected floating-point [{rows}, E].")
    if not np.isfinite(array).all():
        row = np.argwhere(~np.isfinite(array))[0][0]
        raise ConfidenceError(f"{name} holds NaN or infinite values, first in row {row}; expected finite numbers.")
    return array.astype(np.float64)
