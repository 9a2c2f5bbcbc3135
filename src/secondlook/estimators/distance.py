"""Distance in a network's embedding: do the nearest training images have the predicted class?

The density score of Mandelbaum and Weinshall (2017), "Distance-based Confidence Score for Neural Network Classifiers".
"""

from typing import TYPE_CHECKING

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array, IntArray
from secondlook.errors import ConfidenceError
from secondlook.estimators.networks import in_batches, torch_classifier
from secondlook.estimators.registry import method
from secondlook.estimators.shares import predicted_classes
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import did_you_mean

if TYPE_CHECKING:
    import torch


@method(
    "distance",
    symbol="IAD",
    summary="share of the nearest training embeddings that have the predicted class, near ones counting more",
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
    """Return the share of sum exp(-d_j) that neighbors of the predicted classes hold. [N, E], [M, E], [M] -> [N]

    d_j is the Euclidean distance to the j-th of the `neighbors` nearest training images.
    """
    here = _checked_embeddings(embeddings, "embeddings", preds.n_images)
    there = _checked_embeddings(train_embeddings, "train_embeddings", None)
    labels = np.asarray(train_labels)
    if here.shape[1] != there.shape[1] or labels.shape != (len(there),) or labels.dtype.kind not in "iu":
        raise ConfidenceError(
            f"embeddings {list(here.shape)}, train_embeddings {list(there.shape)} and train_labels {labels.dtype} "
            f"{list(labels.shape)} do not fit; expected [N, E], [M, E] and whole numbers [M]."
        )
    if not 1 <= neighbors <= len(there):
        raise ConfidenceError(
            f"neighbors is {neighbors}; expected 1 to {len(there)}, the number of training embeddings."
        )
    distances, nearest = _nearest(here, there, neighbors)
    return density_share(distances, labels[nearest], predicted_classes(preds, predict_from, top_k))


def density_share(distances: Float64Array, labels: IntArray, classes: IntArray) -> Float64Array:
    """Share of the weights exp(-distance) whose label is among the classes. [n, J], [n, J], [n, k] -> [n]"""
    # The share does not change when all distances shrink alike, and the nearest then weighs 1: nothing vanishes.
    weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
    agrees = (labels[:, :, None] == classes[:, None, :]).any(axis=2)
    share: Float64Array = (weights * agrees).sum(axis=1) / weights.sum(axis=1)
    return share


def embeddings(classifier: object, images: Array, *, layer: str, batch_size: int = 256) -> Float32Array:
    """Return what a layer of a torch classifier gives for each image, flattened. [N, H, W, C] -> [N, E]

    `layer` is the layer's name as in `dict(module.named_modules())`, such as 'layer4.1' or 'avgpool'.
    """
    network = torch_classifier(classifier)
    seen: list[Float32Array] = []

    def keep(_: object, __: object, output: "torch.Tensor") -> None:
        seen.append(output.detach().flatten(start_dim=1).float().cpu().numpy())

    hook = _layer(network.module, layer).register_forward_hook(keep)
    try:
        answers = in_batches(network.probabilities, images, batch_size)
    finally:
        hook.remove()
    if sum(map(len, seen)) != len(answers):
        raise ConfidenceError(
            f"layer {layer!r} ran {len(seen)} times for other rows than the images; choose another layer."
        )
    return np.concatenate(seen)


def _layer(module: "torch.nn.Module", name: str) -> "torch.nn.Module":
    layers: dict[str, torch.nn.Module] = dict(module.named_modules())
    if not name or name not in layers:
        known = ", ".join(filter(None, layers))
        raise ConfidenceError(
            f"{type(module).__name__} has no layer {name!r}; it has: {known}.{did_you_mean(name, filter(None, layers))}"
        )
    return layers[name]


def _nearest(here: Array, there: Array, neighbors: int) -> tuple[Float64Array, IntArray]:
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=neighbors, algorithm="brute").fit(there)
    distances, nearest = search.kneighbors(here)
    return distances.astype(np.float64), nearest


def _checked_embeddings(given: Array | None, name: str, n_images: int | None) -> Float64Array:
    values = np.asarray(given)
    if values.ndim != 2 or values.dtype.kind != "f" or (n_images is not None and len(values) != n_images):
        rows = "M" if n_images is None else n_images
        raise ConfidenceError(f"{name}= is {values.dtype} {list(values.shape)}; expected floating-point [{rows}, E].")
    if not np.isfinite(values).all():
        raise ConfidenceError(
            f"{name}= holds NaN or infinite values, first in row {np.argwhere(~np.isfinite(values))[0][0]}."
        )
    return values.astype(np.float64)
