"""The classifier of a policy: loaded from its spec, compared with the policy, its members run side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import ClassifierError, DecisionError
from secondlook.predictions import Predictions
from secondlook.selective import Policy
from secondlook.specs import MEMBER_SEPARATOR, parse_spec
from secondlook.views import ViewSet

CODE_SCHEMES = ("function", "sklearn")
"""Schemes that load Python code or a pickle."""


@dataclass(frozen=True)
class ResolvedClassifier:
    """A loaded classifier. `mismatch` tells why the guarantee of the policy does not hold for it, if it does not."""

    classifier: Classifier
    mismatch: str | None


def resolve_classifier(policy: Policy, given: object, *, allow_mismatch: bool) -> ResolvedClassifier:
    """Load the given classifier, or that of the policy if None, and compare it with the policy.

    A classifier that the policy was not made for is an error unless `allow_mismatch` is set.
    """
    classifier = _load_from_policy(policy.classifier.name) if given is None else load_classifier(given)
    if not allow_mismatch:
        policy.check(classifier)
    mismatch = policy.find_mismatch(classifier)
    return ResolvedClassifier(classifier, None if mismatch is None else mismatch.reason)


def _load_from_policy(name: str) -> Classifier:
    texts = name.split(MEMBER_SEPARATOR)
    try:
        _check_no_code(texts)
        if len(texts) == 1:
            return load_classifier(name)
        return load_classifier([load_classifier(text) for text in texts], name=name)
    except ClassifierError as error:
        raise DecisionError(
            f"cannot load the classifier of the policy: {str(error).rstrip('.')}; pass it as classifier=."
        ) from None


def _check_no_code(texts: Sequence[str]) -> None:
    """Raise an error for a spec that loads Python code or a pickle: a policy is data, and may come from a stranger."""
    for text in texts:
        spec = parse_spec(text, ClassifierError)
        is_factory = spec.scheme == "torch" and ":" in spec.location and not Path(spec.location).is_file()
        if spec.scheme in CODE_SCHEMES or is_factory:
            raise DecisionError(
                f"the policy names the classifier {text!r}, and loading it runs code; if you trust it, pass it as "
                "classifier=."
            )


class MemberOutputs(Classifier):
    """A classifier, or all members of an ensemble, with the outputs of the members side by side.

    An interval resamples the outputs of every member, so their mean is not enough; computed together, every view of an
    image is made once for all members.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(
            name=classifier.name,
            digest=classifier.digest,
            output=classifier.output,
            preprocessing=classifier.preprocessing,
        )
        self.members = classifier.members or (classifier,)

    def forward(self, images: Array) -> Array:
        """Compute the outputs of all members. uint8|float32 [N, H, W, C] -> float32 [N, members * classes]"""
        return np.concatenate([member(images) for member in self.members], axis=1)

    def __call__(self, images: Array) -> Float32Array:
        """Compute the outputs of all members, each of which checks its own. -> float32 [N, members * classes]"""
        outputs: Float32Array = self.forward(images)
        self.n_classes = outputs.shape[1]
        return outputs

    def as_predictions(
        self, outputs: Float32Array, views: ViewSet, ids: list[str], class_names: tuple[str, ...] | None
    ) -> Predictions:
        """Return the outputs of all members, float32 [N, V, members * classes], as predictions."""
        tables = [
            Predictions(**{member.output: member_outputs}, views=views, ids=ids, class_names=class_names)
            for member, member_outputs in zip(self.members, np.split(outputs, len(self.members), axis=2), strict=True)
        ]
        return tables[0] if len(tables) == 1 else Predictions(members=tables, views=views)
