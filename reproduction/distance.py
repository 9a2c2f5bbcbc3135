"""Activation distances (IAD), a baseline of the paper that needs the activations of a PyTorch network.

The density score of Mandelbaum and Weinshall (2017), "Distance-based Confidence Score for Neural Network Classifiers".
"""

from typing import TYPE_CHECKING

import numpy as np

from secondlook.arrays import Array, Float32Array, Float64Array, IntArray
from secondlook.classifiers import Classifier, TorchClassifier
from secondlook.errors import ConfidenceError

if TYPE_CHECKING:
    import torch

NEIGHBORS = 50


def compute_distance_confidence(
    embeddings: Array, train_embeddings: Array, train_labels: IntArray, classes: IntArray, neighbors: int = NEIGHBORS
) -> Float64Array:
    """Return the fraction of sum_j exp(-d_j) from neighbors of the predicted class. [N, E], [M, E], [M], [N] -> [N]

    d_j is the Euclidean distance to the j-th of the `neighbors` nearest training embeddings.
    """
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=min(neighbors, len(train_embeddings)), algorithm="brute").fit(
        train_embeddings
    )
    distances, nearest = search.kneighbors(embeddings)
    # Subtracting the smallest distance does not change the fraction, and keeps the weights from underflowing.
    weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
    matches = train_labels[nearest] == classes[:, None]
    fraction: Float64Array = (weights * matches).sum(axis=1) / weights.sum(axis=1)
    return fraction


def compute_embeddings(classifier: Classifier, images: Array, layer: str, batch_size: int = 256) -> Float32Array:
    """Return the flattened output of one layer of a PyTorch classifier. uint8 [N, H, W, C] -> float32 [N, E]

    `layer` is the name of the layer in `dict(module.named_modules())`, for example 'layer4.1' or 'avgpool'.
    """
    if not isinstance(classifier, TorchClassifier):
        fault = f"the layers of {type(classifier).__name__} {classifier.name!r} are not accessible"
        raise ConfidenceError(fault, repair="load the classifier from a PyTorch module")
    outputs: list[Float32Array] = []

    def append_output(_: object, __: object, output: "torch.Tensor") -> None:
        outputs.append(output.detach().flatten(start_dim=1).float().cpu().numpy())

    layers = {name: found for name, found in classifier.module.named_modules() if name}
    if layer not in layers:
        fault = f"{type(classifier.module).__name__} has no layer {layer!r}; known layers: {', '.join(layers)}"
        raise ConfidenceError(f"{fault}.")
    hook = layers[layer].register_forward_hook(append_output)
    try:
        for start in range(0, len(images), batch_size):
            classifier.probabilities(images[start : start + batch_size])
    finally:
        hook.remove()
    return np.concatenate(outputs)
