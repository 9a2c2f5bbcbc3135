"""The classifier of a policy: loaded from its spec, compared with the policy, its members run side by side."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from secondlook.arrays import Array, Float32Array
from secondlook.classifiers import MODELS, Classifier, Preprocessing, load_classifier, split_credentials
from secondlook.errors import ClassifierError, DecisionError
from secondlook.predictions import Predictions
from secondlook.selective import Policy
from secondlook.specs import MEMBER_SEPARATOR, Spec, parse_spec
from secondlook.views import ViewSet

HARMLESS_OPTIONS = frozenset(
    [
        "output",
        "name",
        "output_name",
        "dtype",
        "channels_last",
        "n_classes",
        *(each.name for each in fields(Preprocessing)),
    ]
)
"""Options that a policy may set to any value: they describe the outputs and the preprocessing of a model."""

HARMLESS_VALUES: Mapping[str, frozenset[str]] = {
    # Every thread takes memory, and thousands of them end the process.
    "threads": frozenset(str(threads) for threads in range(1, 65)),
    "timeout": frozenset(str(seconds) for seconds in range(1, 601)),  # at most the default
    # ONNX Runtime has providers that call a server or write files.
    "providers": frozenset(
        ["CPUExecutionProvider", "CUDAExecutionProvider", "CUDAExecutionProvider,CPUExecutionProvider"]
    ),
}
"""Options that a policy may set to these values only."""

REMOTE_LOCATION = re.compile(r"[\\/]([\\/]|\?\?)|.*://")
"""A URL or a path of Windows that starts with the name of a server; opening the latter tells it who the user is."""


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


def select_harmless_options(spec: Spec) -> dict[str, str]:
    """Return the options of a policy's classifier that can neither run code, nor write files, nor reach a server."""
    return {
        name: value
        for name, value in spec.options.items()
        if name in HARMLESS_OPTIONS or value in HARMLESS_VALUES.get(name, ())
    }


def _load_from_policy(name: str) -> Classifier:
    texts = name.split(MEMBER_SEPARATOR)
    try:
        for text in texts:
            _check_data_only(text)
        if len(texts) == 1:
            return load_classifier(name)
        return load_classifier([load_classifier(text) for text in texts], name=name)
    except ClassifierError as error:
        raise DecisionError(
            f"cannot load the classifier of the policy: {str(error).rstrip('.')}; pass it as classifier=."
        ) from None


def _check_data_only(text: str) -> None:
    """Raise an error unless a spec names a local file that is data: a policy may come from a stranger."""
    reason = _find_danger(parse_spec(text, ClassifierError))
    if reason is not None:
        shown = split_credentials(text)[0]
        raise DecisionError(
            f"the classifier {shown!r} of the policy is not loaded, since {reason}; if you trust it, pass it as "
            "classifier=."
        )


def _find_danger(spec: Spec) -> str | None:
    """Return why a policy may not load a spec by itself, or None; nothing is opened or imported."""
    if not MODELS.find(spec.scheme, f" in {str(spec)!r}").is_data_only:
        return f"{spec.scheme!r} may run code or send images to a server"
    if REMOTE_LOCATION.match(spec.location):
        return f"{spec.location!r} may be on a server"
    refused = sorted(set(spec.options) - set(select_harmless_options(spec)))
    if refused:
        return f"{refused[0]}={spec.options[refused[0]]!r} may do more than read the file"
    return None


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
