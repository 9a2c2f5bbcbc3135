"""Inference: views of images become outputs, on the host or on GPUs, in batches that fit in memory."""

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
    """Classifies views of images; the batch size is halved for good when a batch does not fit in memory.

    Images are placed once, then inputs are prepared from them, in another thread where that takes the host's time, and
    started in the order of their outputs.
    """

    outstanding: int
    """Number of batches to start before the outputs of the first are fetched."""

    def __init__(self, classifier: Classifier, batch_size: int) -> None:
        self._classifier = classifier
        self.batch_size = batch_size

    @staticmethod
    def create(classifier: Classifier, batch_size: int) -> "Inference":
        """Return the inference of a classifier: on its GPUs if it has any."""
        return (DeviceInference if classifier.is_accelerated else HostInference)(classifier, batch_size)

    def place(self, images: Any) -> Any:
        """Return images [n, H, W, C] where inputs are made from them; they can be indexed by slices and positions."""
        return images

    @abstractmethod
    def prepare(self, images: Any, views: Sequence[View]) -> Any:
        """Return inputs for views of placed images, one view after another."""

    def join(self, prepared: Sequence[Any]) -> Sequence[Any]:
        """Return several inputs as those that are classified in as few calls as possible, in the same order."""
        return prepared

    @abstractmethod
    def start(self, inputs: Any) -> Fetch:
        """Start to classify inputs, and return what waits for the outputs. -> float32 [V * n, classes]"""

    def group_views(self, views: int, images: int) -> list[range]:
        """Divide the positions of views into groups that fill a batch: several views of few images, one of many."""
        size = max(1, self.batch_size // max(1, images))
        return [range(start, min(start + size, views)) for start in range(0, views, size)]

    def _halve(self, failed_size: int, error: Exception) -> None:
        if failed_size == 1:
            fault = f"the classifier ran out of memory on a single image ({shorten_reason(error)})"
            repair = "use a smaller input size, a smaller classifier or a machine with more memory"
            raise PredictionsError(fault, repair=repair) from error
        self.batch_size = failed_size // 2


class HostInference(Inference):
    """Views are made on the host; the classifier is called with arrays, and its outputs are there at once."""

    outstanding = 0

    def prepare(self, images: Array, views: Sequence[View]) -> Array:
        """Make the views, one after another. [n, H, W, C] -> [V * n, H, W, C]"""
        from secondlook.views import stack_views  # which loads OpenCV

        return stack_views(images, views)

    def join(self, prepared: Sequence[Array]) -> Sequence[Array]:
        """Return all inputs as one."""
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
    """Images are copied to the GPUs of a classifier, which make and classify the views; the host does not wait."""

    outstanding = 2  # so that the next one is ready when one ends

    def place(self, images: Any) -> Any:
        """Start to copy images to the GPUs; there may be none."""
        return self._classifier.upload(images) if len(images) else images

    def prepare(self, images: Any, views: Sequence[View]) -> tuple[Any, Sequence[View]]:
        """Return the images and the views: the views are made when the batch is started."""
        return images, views

    def start(self, inputs: tuple[Any, Sequence[View]]) -> Fetch:
        """Start to make and classify views."""
        fetches: list[Fetch] = []
        due = deque(self._split(*inputs))
        while due:
            images, views = due.popleft()
            if len(images) * len(views) > self.batch_size:  # it was split before the batch size was halved
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
