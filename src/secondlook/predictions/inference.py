"""Inference: classify views of images on the host or on GPUs, in batches that fit in memory."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import Classifier, Fetch
from secondlook.errors import PredictionsError, shorten_reason
from secondlook.predictions.batching import is_out_of_memory
from secondlook.views import View


class Inference(ABC):
    """Classifies views of images; a batch that does not fit in memory halves the batch size permanently.

    Images are placed once. Inputs are prepared from them, in another thread if the host does that work, and started in
    the order of their outputs.
    """

    outstanding: int
    """Number of batches to start before fetching the outputs of the first."""

    def __init__(self, classifier: Classifier, batch_size: int) -> None:
        self._classifier = classifier
        self.batch_size = batch_size

    @staticmethod
    def create(classifier: Classifier, batch_size: int) -> "Inference":
        """Return the inference of a classifier: on its GPUs if it has any."""
        return (DeviceInference if classifier.is_accelerated else HostInference)(classifier, batch_size)

    def place(self, images: Any) -> Any:
        """Put images [n, H, W, C] on the device that makes the inputs; supports slices and positions as indices."""
        return images

    @abstractmethod
    def prepare(self, images: Any, views: Sequence[View]) -> Any:
        """Return inputs for views of placed images, one view after another."""

    def join(self, prepared: Sequence[Any]) -> Sequence[Any]:
        """Combine inputs to classify them in as few calls as possible, in the same order."""
        return prepared

    @abstractmethod
    def start(self, inputs: Any) -> Fetch:
        """Start to classify inputs, and return a function that waits for the outputs. -> float32 [V * n, classes]"""

    def group_views(self, views: int, images: int) -> list[range]:
        """Divide the positions of views into groups that fill a batch: several views of few images, or one of many."""
        size = max(1, self.batch_size // max(1, images))
        return [range(start, min(start + size, views)) for start in range(0, views, size)]

    def _halve(self, failed_size: int, error: Exception) -> None:
        if failed_size == 1:
            fault = f"the classifier ran out of memory on a single image ({shorten_reason(error)})"
            repair = "use a smaller input size, a smaller classifier or a machine with more memory"
            raise PredictionsError(fault, repair=repair) from error
        self.batch_size = failed_size // 2


class HostInference(Inference):
    """Makes views on the host, and calls the classifier synchronously with arrays."""

    outstanding = 0

    def prepare(self, images: Array, views: Sequence[View]) -> Array:
        """Make the views, one after another. [n, H, W, C] -> [V * n, H, W, C]"""
        from secondlook.views import stack_views  # loads OpenCV

        return stack_views(images, views)

    def join(self, prepared: Sequence[Array]) -> Sequence[Array]:
        """Concatenate all inputs."""
        return [prepared[0] if len(prepared) == 1 else np.concatenate(prepared)]

    def start(self, inputs: Array) -> Fetch:
        """Classify inputs."""
        outputs: list[Float32Array] = []
        done = 0
        while done < len(inputs):
            batch = inputs[done : done + self.batch_size]
            try:
                outputs.append(self._classifier(batch))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(len(batch), error)
            else:
                done += len(batch)
        joined = outputs[0] if len(outputs) == 1 else np.concatenate(outputs)
        return lambda: joined


class DeviceInference(Inference):
    """Copies images to the classifier's GPUs, which make and classify the views asynchronously."""

    outstanding = 2  # keeps the GPU busy

    def place(self, images: Any) -> Any:
        """Start to copy images to the GPUs; there may be none."""
        return self._classifier.upload(images) if len(images) else images

    def prepare(self, images: Any, views: Sequence[View]) -> tuple[Any, Sequence[View]]:
        """Return the images and the views; `start` makes the views."""
        return images, views

    def start(self, inputs: tuple[Any, Sequence[View]]) -> Fetch:
        """Start to make and classify views."""
        fetches: list[Fetch] = []
        due = deque(self._split(*inputs))
        while due:
            images, views = due.popleft()
            if len(images) * len(views) > self.batch_size:  # split before the batch size was halved
                due.extendleft(reversed(self._split(images, views)))
                continue
            try:
                fetches.append(self._classifier.start(images, views))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(len(images) * len(views), error)
                due.appendleft((images, views))
        return fetches[0] if len(fetches) == 1 else lambda: np.concatenate([fetch() for fetch in fetches])

    def _split(self, images: Any, views: Sequence[View]) -> list[tuple[Any, Sequence[View]]]:
        """Split views of images into batches, in the order of their outputs."""
        size = self.batch_size
        if len(images) <= size:
            return [(images, views[group.start : group.stop]) for group in self.group_views(len(views), len(images))]
        starts = range(0, len(images), size)
        return [(images[start : start + size], [view]) for view in views for start in starts]
