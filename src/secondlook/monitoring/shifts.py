"""Shifts: corruptions of images, written as views, that show a classifier what happens when images degrade."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import IntArray
from secondlook.classifiers import Classifier
from secondlook.errors import MonitoringError
from secondlook.monitoring.shift_fit import LabeledScores, ShiftedScores, learn_shift_model
from secondlook.policies import DEFAULT_SHIFT_IMAGES, MIN_SHIFT_IMAGES, Policy, ShiftModel
from secondlook.predictions import BatchSize, Execution, Predictions, collect, read_first_image
from secondlook.sources import Source, Subset
from secondlook.views import ViewSet

SMALL_SIDE = 32
"""Side of the images that the strengths below are for."""


def list_shifts(side: int) -> dict[str, tuple[str, ...]]:
    """Return the views of each kind of shift, from mild to severe, for images with a shorter side of `side` pixels.

    Fine details of large images are larger than those of small ones, though not in proportion: what destroys them
    grows with the square root of the side.
    """
    detail = math.sqrt(side / SMALL_SIDE)
    return {
        "noise": tuple(f"noise:{sigma * detail:.3g}" for sigma in (6, 12, 20)),
        "blur": tuple(f"blur:{sigma * detail:.3g}" for sigma in (0.64, 0.96, 1.44)),
        "resolution": tuple(_lose_pixels(1 + lost * detail) for lost in (1 / 3, 2 / 3, 11 / 9)),
        "contrast": ("contrast:0.5", "contrast:0.3", "contrast:0.15"),
        "dark": ("brightness:0.5", "brightness:0.3", "brightness:0.15"),
        "bright": ("brightness:1.5", "brightness:2", "brightness:3"),
        "pale": ("gamma:0.5", "gamma:0.3", "gamma:0.2"),
        "zoom out": ("zoom:0.75", "zoom:0.6", "zoom:0.45"),
        "zoom in": ("zoom:1.25", "zoom:1.5", "zoom:2"),
        "rotation": ("rotate:12", "rotate:22", "rotate:35"),
    }


def _lose_pixels(factor: float) -> str:
    """Return the view that shrinks an image and enlarges it again."""
    return f"zoom:{1 / factor:.4g}+zoom:{1 / float(f'{1 / factor:.4g}'):.4g}"


def compose_views(shift: str, views: tuple[str, ...]) -> tuple[str, ...]:
    """Return the views of an image that was corrupted before."""
    return tuple(shift if view == "identity" else f"{shift}+{view}" for view in views)


def learn_shifts(
    policy: Policy,
    classifier: Classifier,
    source: Source,
    preds: Predictions,
    *,
    images: int = DEFAULT_SHIFT_IMAGES,
    seed: int = 0,
    store: Path | None = None,
    batch_size: BatchSize = "auto",
    device: str = "auto",
    progress: bool = True,
) -> ShiftModel:
    """Classify corrupted versions of labeled images, and learn how the scores of a policy tell their accuracy.

    Parameters
    ----------
    policy, classifier
        The policy, and the classifier that it was made for.
    source
        Labeled images, of which as many as `images` are drawn with `seed`.
    preds
        Predictions with labels for the images that the policy was calibrated on, as they are.
    store
        Folder to store outputs in, so that an interrupted job resumes; by default they are kept in memory.
    batch_size, device, progress
        As for `collect`.
    """
    if policy.reference is None:
        raise MonitoringError("the policy does not tell how its calibration images looked; calibrate again.")
    sample = draw_images(source, images, seed)
    shifted = collect_shifts(
        policy, classifier, sample, store=store, batch_size=batch_size, device=device, progress=progress
    )
    return learn_shift_model(policy.reference, preds.n_classes, score_images(policy, preds), shifted)


def collect_shifts(
    policy: Policy,
    classifier: Classifier,
    source: Source,
    *,
    store: Path | None = None,
    batch_size: BatchSize = "auto",
    device: str = "auto",
    progress: bool = True,
) -> list[ShiftedScores]:
    """Return the scores of corrupted versions of all images of a source; the arguments are those of `learn_shifts`."""
    shifts = list_shifts(int(min(read_first_image(classifier, source).shape[:2])))
    composed = {shift: compose_views(shift, policy.views) for views in shifts.values() for shift in views}
    collected = collect(
        classifier,
        source,
        ViewSet(["identity", *(view for views in composed.values() for view in views)]),
        store=store,
        execution=Execution(batch_size=batch_size, device=device, progress=progress),
    )
    return [
        ShiftedScores(kind, shift, score_images(policy, _look_through(collected, composed[shift], policy.views)))
        for kind, views in shifts.items()
        for shift in views
    ]


def count_looks(policy: Policy, images: int) -> int:
    """Return how many views `learn_shifts` classifies for a policy."""
    shifts = list_shifts(SMALL_SIDE)
    return images * (1 + sum(map(len, shifts.values())) * len(policy.views))


def draw_images(source: Source, images: int, seed: int) -> Source:
    """Return some of the images of a source, all different, drawn at random."""
    if source.labels is None:
        raise MonitoringError("shifts can be learned from labeled images only; calibrate on labeled images.")
    distinct = np.delete(np.arange(len(source)), source.find_duplicates())
    if min(images, len(distinct)) < MIN_SHIFT_IMAGES:
        raise MonitoringError(
            f"shifts are learned from {min(images, len(distinct))} images, which is too few; expected at least "
            f"{MIN_SHIFT_IMAGES} labeled images: calibrate on more, or pass a larger images=."
        )
    drawn: IntArray = np.sort(np.random.default_rng(seed).permutation(distinct)[:images])
    return Subset(source, drawn, source.spec, source.on_error)


def score_images(policy: Policy, preds: Predictions) -> LabeledScores:
    """Return the scores that a policy gives to labeled images, looked at as often as it would."""
    rule = policy.rule
    looked = rule.look(preds)
    predicted = looked.predicted.reshape(preds.n_images, -1)
    return LabeledScores(
        looked.confidence,
        predicted[:, 0],
        rule.accept_images(preds, looked.confidence),
        (predicted == preds.labels[:, None]).any(axis=1),
        preds.labels,
    )


def _look_through(preds: Predictions, composed: tuple[str, ...], views: tuple[str, ...]) -> Predictions:
    """Return the predictions for corrupted images under the names that the views have for other images."""
    if preds.members:
        return Predictions(members=[_look_through(one, composed, views) for one in preds.members], views=list(views))
    chosen = preds.select(views=["identity", *composed])
    outputs: Mapping[str, Any] = (
        {"logits": chosen.logits[:, 1:]} if chosen.has_logits else {"probabilities": chosen.probabilities[:, 1:]}
    )
    return Predictions(**outputs, views=list(views), labels=preds.labels, ids=preds.ids, class_names=preds.class_names)
