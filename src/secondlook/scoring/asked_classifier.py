"""The classifier that a policy asks: loaded from its text, compared with the policy, its members side by side."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ClassifierError, DecisionError
from secondlook.predictions import Predictions
from secondlook.selective import Policy
from secondlook.specs import MEMBER_SEPARATOR
from secondlook.views import ViewSet


@dataclass(frozen=True)
class ResolvedClassifier:
    """A classifier, and why the guarantee of the policy does not hold with it, where it does not."""

    classifier: Classifier
    mismatch: str | None


def resolve_classifier(policy: Policy, given: object, *, allow_mismatch: bool) -> ResolvedClassifier:
    """Return the classifier to ask: the given one, or that of the policy. Another one must be insisted on."""
    classifier = _loaded(policy.classifier.name) if given is None else load_classifier(given)
    try:
        policy.check(classifier)
    except DecisionError as error:
        if not allow_mismatch:
            raise
        return ResolvedClassifier(classifier, str(error).partition(";")[0])
    return ResolvedClassifier(classifier, None)


def _loaded(name: str) -> Classifier:
    texts = name.split(MEMBER_SEPARATOR)
    for text in texts:
        if _runs_code(text):
            raise DecisionError(
                f"the policy names the classifier {text!r}, and loading it runs code; say that you trust it by giving "
                "it yourself, as --model or classifier=."
            )
    try:
        if len(texts) == 1:
            return load_classifier(name)
        return load_classifier([load_classifier(text) for text in texts], name=name)
    except ClassifierError as error:
        raise DecisionError(
            f"the classifier of the policy cannot be loaded: {str(error).rstrip('.')}; "
            "give it yourself, as --model or classifier=."
        ) from None


def _runs_code(text: str) -> bool:
    """Whether a text leads to Python code or a pickle: a policy may come from elsewhere, and is data."""
    scheme, _, target = text.partition("?")[0].partition(":")
    is_factory = scheme == "torch" and ":" in target and not Path(target).is_file()
    return scheme in ("function", "sklearn") or is_factory


class MemberOutputs(Classifier):
    """One classifier, or the members of an ensemble, asked together: their answers one beside the other.

    An interval draws from every member, so their mean is not enough; asked together, they look at each image once.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(
            name=classifier.name,
            digest=classifier.digest,
            output=classifier.output,
            preprocessing=classifier.preprocessing,
        )
        self.members = classifier.members or (classifier,)

    def answer(self, images: Array) -> Array:
        """Answers of all members. uint8|float32 [N, H, W, C] -> float32 [N, members * classes]"""
        return np.concatenate([member(images) for member in self.members], axis=1)

    def __call__(self, images: Array) -> Float32Array:
        """Return what the members answer; each has checked its own. -> float32 [N, members * classes]"""
        answers: Float32Array = self.answer(images)
        self.n_classes = answers.shape[1]
        return answers

    def predictions(
        self, answers: Float32Array, views: ViewSet, ids: list[str], class_names: tuple[str, ...] | None
    ) -> Predictions:
        """Wrap answers of all members, float32 [N, V, members * classes]."""
        tables = [
            Predictions(**{member.output: of_member}, views=views, ids=ids, class_names=class_names)
            for member, of_member in zip(self.members, np.split(answers, len(self.members), axis=2), strict=True)
        ]
        return tables[0] if len(tables) == 1 else Predictions(members=tables, views=views)
