"""`load_policy`: a policy that decides about one image at a time, with its classifier loaded once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import PrivateAttr

from secondlook.arrays import Array, Float32Array, default_ids
from secondlook.classifiers import check_device
from secondlook.decisions.adaptive_looks import AdaptiveLooks, LookedGroup, take_all_looks
from secondlook.decisions.policy_classifier import MemberOutputs, ResolvedClassifier, resolve_classifier
from secondlook.decisions.rows import Decision, make_decisions
from secondlook.errors import DecisionError
from secondlook.policies import Guarantee, Policy, check_threshold_transfers, has_onnx_suffix
from secondlook.predictions import Inference, Predictions, choose_batch_size, make_inference
from secondlook.sources import read_image
from secondlook.views import ViewSet

DEFAULT_LEVEL = 0.95
"""Confidence level of the interval of a decision."""


@dataclass(frozen=True)
class ImageDecision:
    """The decision about one image."""

    label: int | tuple[int, ...]
    """The predicted class, or the top-k classes, whether accepted or not."""
    class_name: str | None
    """Name of the first predicted class; None if it is unknown."""
    confidence: float
    accept: bool
    interval: tuple[float, float] | None
    """Bootstrap interval of the confidence over the views looked at; None after a single look."""
    guarantee: Guarantee | None
    """What the policy guarantees about accepted images; None if nothing."""
    looks: int
    """Number of views that the image was looked at."""
    first_look: float
    """Probability of the predicted class after the first look."""
    disagreement: float | None
    """How much the looks disagree, from 0 to 1; None after a single look."""

    @classmethod
    def from_row(cls, row: Decision, class_names: tuple[str, ...] | None, guarantee: Guarantee | None) -> Self:
        """Return one of several decisions, with the name of its class and what is guaranteed."""
        first = row.label if isinstance(row.label, int) else row.label[0]
        return cls(
            row.label,
            None if class_names is None else class_names[first],
            row.confidence,
            row.accept,
            row.interval,
            guarantee,
            row.looks,
            row.first_look,
            row.disagreement,
        )


class LoadedPolicy(Policy):
    """A policy that can decide about images; `load_policy` reads one from a file.

    Its classifier is loaded when the first image is decided, and then kept.
    """

    _given: object = PrivateAttr(default=None)
    _folder: Path | None = PrivateAttr(default=None)
    _allow_mismatch: bool = PrivateAttr(default=False)
    _device: str = PrivateAttr(default="auto")
    _decider: "Decider | None" = PrivateAttr(default=None)

    def with_classifier(self, given: object, *, folder: Path | None, allow_mismatch: bool, device: str) -> Self:
        """Return the policy with the arguments that its classifier is resolved from at first use."""
        policy = self.model_copy()
        policy._given, policy._folder, policy._allow_mismatch = given, folder, allow_mismatch
        policy._device = device
        return policy

    @property
    def decider(self) -> "Decider":
        """The policy with its classifier, which is loaded and checked at first use."""
        if self._decider is None or self._decider.policy is not self:  # a copy takes private attributes along
            resolved = resolve_classifier(self, self._given, allow_mismatch=self._allow_mismatch, folder=self._folder)
            self._decider = Decider(self, resolved.on_device(self._device))
        return self._decider

    def decide(self, image: object, *, level: float = DEFAULT_LEVEL, seed: int = 0) -> ImageDecision:
        """Return the predicted class of one image, its confidence, and whether the prediction is accepted.

        The decision is that of `score` for the same image. All views are classified in one call where they fit in a
        batch; with an adaptive policy, one view after another until the image is decided.

        Parameters
        ----------
        image
            A path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C, H, W].
        level, seed
            Confidence level and random seed of the interval of the confidence over the views.
        """
        return self.decider.decide(image, level=level, seed=seed)


def load_policy(
    path: str | Path, *, classifier: object = None, allow_mismatch: bool = False, device: str = "auto"
) -> LoadedPolicy:
    """Read a policy file, for `decide`: `load_policy("policy.json").decide(image)`.

    Parameters
    ----------
    path
        The policy file.
    classifier
        The classifier of the policy, or whatever `load_classifier` accepts. By default it is loaded from the spec in
        the policy, if that is a local ONNX file; everything else must be given, since it may run code.
    allow_mismatch
        Whether to accept a classifier that the policy was not made for; nothing is guaranteed then.
    device
        Where to classify: "auto", "cpu", "cuda" or "cuda:N", see `collect`.
    """
    check_device(device)
    if has_onnx_suffix(path):
        raise DecisionError(
            f"{str(path)!r} is not a policy file: an exported ONNX file decides by itself; open it with load_decider."
        )
    policy = LoadedPolicy.load(path)
    folder = Path(path).parent
    return policy.with_classifier(classifier, folder=folder, allow_mismatch=allow_mismatch, device=device)


def open_policy_classifier(
    policy: Policy | str | Path, loaded: Policy, given: object, *, allow_mismatch: bool
) -> ResolvedClassifier:
    """Return the classifier of a policy, which was given as it is or by its path, and is `loaded`.

    It is the given one, or that of a `LoadedPolicy`, or else the one that the policy names, see `resolve_classifier`.
    """
    if isinstance(policy, LoadedPolicy) and given is None:
        return policy.decider.resolved
    folder = Path(policy).parent if isinstance(policy, str | Path) else None
    return resolve_classifier(loaded, given, allow_mismatch=allow_mismatch, folder=folder)


class Decider:
    """A policy and its classifier, with everything prepared that does not depend on the image."""

    def __init__(self, policy: Policy, resolved: ResolvedClassifier) -> None:
        check_threshold_transfers(policy.method, policy.options)
        self.policy = policy
        self.resolved = resolved
        self.rule = policy.rule if resolved.mismatch is None else replace(policy.rule, guarantee=None)
        self.views = ViewSet(list(policy.views))
        self._classifier = MemberOutputs(resolved.classifier)
        self._class_names = (resolved.classifier.class_names, policy.class_names)

    def decide(self, image: object, *, level: float, seed: int) -> ImageDecision:
        """Decide about one image of any kind that `read_image` takes."""
        ((_, preds),) = self.look(self.fit_image(read_image(image)), default_ids(1))
        (decision,) = make_decisions(self.rule, preds, level=level, seed=seed)
        return ImageDecision.from_row(decision, preds.class_names, self.rule.guarantee)

    def fit_image(self, image: Array) -> Array:
        """Return an image at the input size of the classifier. uint8|float32 [h, w, C] -> [1, H, W, C]"""
        return self._classifier.preprocessing.fit([image])

    def warm_up(self) -> None:
        """Look at a black image, if its shape is known: the first look compiles and allocates what others use."""
        preprocessing = self._classifier.preprocessing
        if preprocessing.input_size is None or preprocessing.channels is None:
            return
        image = np.zeros((1, *preprocessing.input_size, preprocessing.channels), dtype=np.uint8)
        for _, preds in self.look(image, default_ids(1)):
            make_decisions(self.rule, preds, level=DEFAULT_LEVEL, seed=0)

    def look(self, inputs: Array, ids: Sequence[str]) -> list[LookedGroup]:
        """Look at images [N, H, W, C] until they are decided, and return them by the number of looks."""
        inference = self.make_inference(inputs)
        if self.rule.schedule is not None:
            return take_all_looks(AdaptiveLooks(self.rule, ids, self.make_predictions), inputs, inference)
        outputs = inference.classify_views(inputs, self.views.views)
        return [LookedGroup(np.arange(len(inputs)), self.make_predictions(outputs, self.views, ids))]

    def make_inference(self, inputs: Array) -> Inference:
        """Return what classifies views of images of this shape. [N, H, W, C]"""
        return make_inference(self._classifier, choose_batch_size("auto", inputs[0], self._classifier))

    def make_predictions(self, outputs: Float32Array, views: ViewSet, ids: Sequence[str]) -> Predictions:
        """Return outputs float32 [n, V, outputs per look] as predictions."""
        n_classes = outputs.shape[2] // len(self._classifier.members)
        names = choose_class_names(self._class_names, n_classes)
        return self._classifier.as_predictions(outputs, views, ids, names)


def choose_class_names(candidates: Iterable[tuple[str, ...] | None], n_classes: int) -> tuple[str, ...] | None:
    """Return the first names that match the number of classes: folders of new images need not be classes."""
    return next((names for names in candidates if names and len(names) == n_classes), None)
