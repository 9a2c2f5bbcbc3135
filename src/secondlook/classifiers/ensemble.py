"""The ensemble: several classifiers that answer together, the mean of their probabilities."""

from collections.abc import Sequence

import numpy as np

from secondlook.arrays import Array
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.digests import digest_of
from secondlook.errors import ClassifierError


class Ensemble(Classifier):
    """Classifiers with the same input geometry and classes; its answers are the mean of their probabilities.

    Members may normalize differently (mean, std, layout); what happens before the views must be the same.
    """

    def __init__(self, members: Sequence[Classifier], *, name: str | None = None) -> None:
        if not members:
            raise ClassifierError("an ensemble needs at least one member; got none.")
        for member in members:
            _check_fits(member, members[0])
        super().__init__(
            name=name or "ensemble of " + ", ".join(member.name for member in members),
            digest=_digest_of(members),
            output="probabilities",
            preprocessing=members[0].preprocessing,
            n_classes=next((member.n_classes for member in members if member.n_classes is not None), None),
            class_names=next((member.class_names for member in members if member.class_names is not None), None),
        )
        self.members = tuple(members)

    def answer(self, images: Array) -> Array:
        """Mean over members of their probabilities. uint8|float32 [N, H, W, C] -> float32 [N, n_classes]"""
        total = np.zeros(1)
        for member in self.members:
            answers = member.probabilities(images).astype(np.float64)
            _check_classes(member, answers.shape[1], self.members[0])
            total = total + answers
        return (total / len(self.members)).astype(np.float32)


def _digest_of(members: Sequence[Classifier]) -> str:
    """Return the digest of all members; an ensemble with a member of unknown identity has none itself."""
    if not all(member.digest for member in members):
        return ""
    return digest_of("ensemble", [[member.digest, member.preprocessing.digest, member.output] for member in members])


def _check_fits(member: Classifier, first: Classifier) -> None:
    if member.members:
        raise ClassifierError(
            f"{member.name!r} is an ensemble itself; give its members, so that each counts once in the mean."
        )
    if member.n_classes is not None:
        _check_classes(member, member.n_classes, first)
    mine, theirs = member.preprocessing, first.preprocessing
    for setting, value in mine.geometry.items():
        if value != theirs.geometry[setting]:
            raise ClassifierError(
                f"members of an ensemble look at the same pixels, but {setting} is {value!r} for {member.name!r} and "
                f"{theirs.geometry[setting]!r} for {first.name!r}; set {setting}= alike for all."
            )
    if None not in (mine.input_size, theirs.input_size) and mine.input_size != theirs.input_size:
        raise ClassifierError(
            f"members of an ensemble share one input size, but {member.name!r} takes {mine.input_size} and "
            f"{first.name!r} takes {theirs.input_size}; use models of one input size."
        )


def _check_classes(member: Classifier, n_classes: int, first: Classifier) -> None:
    if first.n_classes is not None and n_classes != first.n_classes:
        raise ClassifierError(
            f"members of an ensemble share their classes, but {member.name!r} has {n_classes} and "
            f"{first.name!r} has {first.n_classes}; use models of the same classes."
        )
