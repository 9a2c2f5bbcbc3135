"""Looking at a stream of images: those that are decided leave, and new ones join the next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from secondlook.arrays import Array, BoolArray, Float32Array
from secondlook.decisions.adaptive_looks import take_first_views
from secondlook.decisions.loaded_policy import Decider
from secondlook.decisions.onnx_decider import group_by_shape

Key = TypeVar("Key")


class LookedImage(NamedTuple, Generic[Key]):
    """An image that needs no further look."""

    key: Key
    outputs: Float32Array
    """Outputs of the looks in their order, float32 [looks, outputs per look]."""


class LookStep(NamedTuple, Generic[Key]):
    """What came of one step."""

    looked: list[LookedImage[Key]]
    failed: list[tuple[Key, Exception]]
    """The images on which the classifier failed, with what it raised."""


@dataclass(eq=False)
class _OpenImage(Generic[Key]):
    key: Key
    id: str
    pixels: Array
    """At the input size. [1, H, W, C]"""
    outputs: Float32Array | None = None
    """Outputs of the looks so far; those to come are as the first. float32 [max_looks, outputs per look]"""
    looks: int = 0


class LookStream(Generic[Key]):
    """Images that are looked at until they are decided, several in one batch, whatever the number of their looks.

    With a schedule, a step looks once at every image: the first time at one, the fifth time at another. So batches are
    full although most images are decided after the first look, and none waits for the last look of others. Without a
    schedule, a step takes all looks. The decisions are those of `Decider.look`.
    """

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._open: list[_OpenImage[Key]] = []

    def __len__(self) -> int:
        """Return the number of images that are not decided."""
        return len(self._open)

    @property
    def keys(self) -> list[Key]:
        """The keys of images that are not decided."""
        return [image.key for image in self._open]

    def add(self, key: Key, id_: str, pixels: Array) -> None:
        """Add an image at the input size, for the next step. [1, H, W, C]"""
        self._open.append(_OpenImage(key, id_, pixels))

    def look(self) -> LookStep[Key]:
        """Look at all images, and return those that are decided; one that fails does not spoil the others."""
        step: LookStep[Key] = LookStep([], [])
        due, self._open = self._open, []
        for places in group_by_shape([image.pixels for image in due]):
            self._look_together([due[place] for place in places], step)
        return step

    def _look_together(self, images: list[_OpenImage[Key]], step: LookStep[Key]) -> None:
        before = [image.looks for image in images]
        try:
            is_open = self._take_looks(images)
        except Exception as error:  # noqa: BLE001 - a classifier may raise anything
            if len(images) == 1:
                step.failed.append((images[0].key, error))
                return
            for image, looks in zip(images, before, strict=True):
                image.looks = looks
                self._look_together([image], step)
            return
        for image, needs_look in zip(images, is_open.tolist(), strict=True):
            if needs_look:
                self._open.append(image)
            else:
                assert image.outputs is not None, "it was looked at"
                step.looked.append(LookedImage(image.key, image.outputs[: image.looks]))

    def _take_looks(self, images: Sequence[_OpenImage[Key]]) -> BoolArray:
        """Look at images of one shape, and return which of them need another look. bool [n]"""
        pixels = np.concatenate([image.pixels for image in images])
        inference, schedule = self._decider.make_inference(pixels), self._decider.rule.schedule
        if schedule is None:
            views = self._decider.views.views
            for image, outputs in zip(images, inference.classify_views(pixels, views), strict=True):
                image.outputs, image.looks = outputs, len(views)
            return np.zeros(len(images), dtype=np.bool_)
        ahead = [take_first_views(schedule.views, image.looks + 1).views[-1] for image in images]
        for image, output in zip(images, inference.classify_one_view_each(pixels, ahead), strict=True):
            if image.outputs is None:
                image.outputs = np.repeat(output[None], schedule.max_looks, axis=0)
            image.outputs[image.looks] = output
            image.looks += 1
        return self._find_open(images)

    def _find_open(self, images: Sequence[_OpenImage[Key]]) -> BoolArray:
        """Return which images need another look by the schedule. bool [n]

        The running confidence after some looks does not depend on later ones, so it is computed for all images at once,
        as if all had been looked at equally often.
        """
        rule = self._decider.rule
        assert rule.schedule is not None, "images stay open only with a schedule"
        looks = np.array([image.looks for image in images])
        views = take_first_views(rule.schedule.views, int(looks.max()))
        outputs = np.stack([image.outputs[: len(views)] for image in images if image.outputs is not None])
        running = rule.compute_running(self._decider.make_predictions(outputs, views, [image.id for image in images]))
        return rule.schedule.is_open(looks, running[np.arange(len(images)), looks - 1], rule.threshold)
