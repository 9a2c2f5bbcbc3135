"""The one contract of every classifier: a batch of pixels in, checked scores out."""

from abc import ABC, abstractmethod

import numpy as np

from secondlook.arrays import OUTPUTS, Array, Float32Array, Output, softmax
from secondlook.classifiers.answers import check_answers
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.errors import ClassifierError


class Classifier(ABC):
    """A black box with a name, an identity, and a statement of what its answers mean.

    An adapter subclasses it and writes `answer`; everything else, the checks included, is here.

    Attributes
    ----------
    name
        Text for people, the spec it was loaded from where there is one.
    digest
        Hex digest of what the classifier is (its file, its weights, or a name the user gave): the key under which its
        answers may be kept. Empty for a function without a name, whose answers cannot be told from another's.
    output
        What the answers mean: 'logits' or 'probabilities'.
    preprocessing
        How images become the input: `fit` before the views, `normalize` after them.
    n_classes
        Number of classes; None until it is known, from the model or from the first answer.
    class_names
        Names of the classes where the model carries them.
    members
        The classifiers of an ensemble; empty otherwise.
    """

    members: tuple["Classifier", ...] = ()

    def __init__(
        self,
        *,
        name: str,
        digest: str,
        output: Output,
        preprocessing: Preprocessing,
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            raise ClassifierError(
                f"output={output!r} of classifier {name!r} is unknown; state output='logits' or output='probabilities'."
            )
        self.name = name
        self.digest = digest
        self.output: Output = output
        self.preprocessing = preprocessing
        self.n_classes = n_classes
        self.class_names = class_names

    @abstractmethod
    def answer(self, images: Array) -> Array:
        """Scores of a batch, as the model gives them. uint8|float32 [N, H, W, C] -> [N, n_classes]"""

    def __call__(self, images: Array) -> Float32Array:
        """Return checked scores of a batch at the input size. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        self._check_images(images)
        answers = check_answers(
            self.answer(images), rows=len(images), output=self.output, n_classes=self.n_classes, name=self.name
        )
        self.n_classes = answers.shape[1]
        return answers

    def probabilities(self, images: Array) -> Float32Array:
        """Probabilities of a batch, whatever the model gives. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        answers = self(images)
        return softmax(answers).astype(np.float32) if self.output == "logits" else answers

    def _check_images(self, images: Array) -> None:
        if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype not in (np.uint8, np.float32):
            raise ClassifierError(
                f"classifier {self.name!r} got a batch of {images.dtype} {list(images.shape)}; "
                "it takes uint8 or float32 [N, H, W, C] with 1 or 3 channels."
            )
        if len(images) == 0:
            raise ClassifierError(f"classifier {self.name!r} got a batch without images; give it at least one.")
        self.preprocessing.check_size(images.shape[1], images.shape[2])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, output={self.output!r}, preprocessing='{self.preprocessing}')"
