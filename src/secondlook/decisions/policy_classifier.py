"""The classifier of a policy: loading it from its spec, comparing it with the policy, and running its members."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import OUTPUTS, Array, Float32Array, Output
from secondlook.classifiers import MODELS, Classifier, Fetch, Preprocessing, load_classifier, split_credentials
from secondlook.errors import ANY, ClassifierError, DecisionError, Repair, SecondLookError
from secondlook.policies import Policy
from secondlook.specs import MEMBER_SEPARATOR, Spec, parse_spec
from secondlook.views import View

REMOTE_LOCATION = re.compile(r"[\\/]([\\/]|\?\?)|.*://")
"""A URL or a Windows path that starts with a server name; opening such a path sends credentials to the server."""


@dataclass(frozen=True)
class ResolvedClassifier:
    """A loaded classifier; if the guarantee of the policy does not hold for it, `mismatch` is the reason."""

    classifier: Classifier
    mismatch: str | None

    def on_device(self, device: str) -> "ResolvedClassifier":
        """Return a copy with the classifier on a device, see `Classifier.on_device`."""
        return replace(self, classifier=self.classifier.on_device(device))

    def split_batches(self) -> "ResolvedClassifier":
        """Return a copy with a classifier that splits batches, see `Classifier.split_batches`."""
        return replace(self, classifier=self.classifier.split_batches())


def resolve_classifier(
    policy: Policy, given: object, *, allow_mismatch: bool, offer: str | None = "", folder: Path | None = None
) -> ResolvedClassifier:
    """Load the given classifier, or that of the policy if None, and compare it with the policy.

    A spec inherits missing options from the policy if they are harmless. A relative path in the policy is looked up in
    the working directory and in `folder`, the folder of the policy file; a file name alone only in `folder`. A
    classifier that the policy was not made for is an error unless `allow_mismatch` is set. The error then suggests
    `allow_mismatch`, as an argument of the call that begins with `offer`, if given; None omits the suggestion.
    """
    specs: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if given is None:
        classifier = _load_from_policy(policy, folder)
    elif policy.classifier is not None and specs and all(isinstance(spec, str) for spec in specs):
        classifier = _load_models(specs, policy)
    else:
        classifier = load_classifier(given)
    mismatch = policy.find_mismatch(classifier)
    if mismatch is not None and not allow_mismatch:
        if offer is not None and isinstance(mismatch.repair, Repair):
            alternative = "use it without the guarantee: {allow_mismatch}"
            mismatch.repair = mismatch.repair.otherwise(alternative, of=offer, allow_mismatch=True)
        raise mismatch
    return ResolvedClassifier(classifier, None if mismatch is None else mismatch.fault)


def can_load_classifier(policy: Policy) -> bool:
    """Whether the classifier of a policy may be loaded automatically, because all its models are local data files."""
    try:
        return bool(_parse_data_only(policy))
    except SecondLookError:
        return False


def _load_from_policy(policy: Policy, folder: Path | None) -> Classifier:
    """Load the classifier named in a policy; if several files have its name, load the one the policy was made for."""
    others: list[Classifier] = []
    failures: list[ClassifierError] = []
    for specs in _find_places(policy, folder):
        try:
            classifier = _load_models([str(spec) for spec in specs], policy)
        except ClassifierError as error:
            failures.append(error)
            continue
        if policy.find_mismatch(classifier) is None:
            return classifier
        others.append(classifier)
    if not others:
        raise _describe_failure(failures[0])
    return others[0]


def _describe_failure(error: ClassifierError) -> DecisionError:
    fault = f"cannot load the classifier of the policy: {str(error).rstrip('.')}"
    return DecisionError(fault, repair=Repair("pass {classifier}", classifier=ANY))


def _find_places(policy: Policy, folder: Path | None) -> list[list[Spec]]:
    """Return the specs of a policy's models, as found in the working directory and in the folder of the policy.

    In that folder, a model is also found by its file name alone, since both may be moved to another machine. Nothing is
    opened; a model that is not a local data file is an error.
    """
    name = policy.known_classifier.name
    if ":" not in name:
        fault = f"the classifier {name!r} of the policy is a Python object, which is not part of the policy"
        repair = Repair("use {classifier}", of="policy.bind(" if folder is None else "", classifier=ANY)
        raise DecisionError(fault, repair=repair)
    try:
        specs = _parse_data_only(policy)
    except ClassifierError as error:
        raise _describe_failure(error) from None
    if folder is None:
        return [specs]
    beside = [replace(spec, location=str(folder / spec.path)) for spec in specs]
    by_name = [replace(spec, location=str(folder / spec.path.name)) for spec in specs]
    places = {tuple(spec.path.absolute() for spec in place): place for place in (specs, beside, by_name)}
    if len(places) == 1:
        return [specs]
    existing = [place for paths, place in places.items() if all(map(os.path.exists, paths))]
    if not existing:
        missing = next(spec for spec in specs if not os.path.exists(spec.path))  # noqa: PTH110
        absent = f"neither in the working directory {str(Path.cwd())!r} nor beside the policy in {str(folder)!r}"
        repair = Repair("copy it to one of them, or pass {classifier}", classifier=ANY)
        raise DecisionError(f"the model {missing.location!r} of the policy is {absent}", repair=repair)
    return existing


def _load_models(specs: Sequence[str], policy: Policy) -> Classifier:
    """Load a model, or an ensemble from the specs of its members."""
    models = inherit_options(specs, policy)
    loaded = [load_classifier(spec, default_output=output) for spec, output in models]
    if len(loaded) == 1:
        return loaded[0]
    return load_classifier(loaded, name=MEMBER_SEPARATOR.join(member.name for member in loaded))


def _parse_data_only(policy: Policy) -> list[Spec]:
    """Return the specs of a policy's models, which must be local data files; nothing is opened or imported.

    Anything else is an error, since the policy may be untrusted.
    """
    specs = []
    for text in policy.known_classifier.name.split(MEMBER_SEPARATOR):
        spec = parse_spec(text, ClassifierError)
        refused = sorted(set(spec.options) - set(select_harmless_options(spec)))
        if not MODELS.find(spec.scheme, f" in {str(spec)!r}").is_data_only:
            reason = f"{spec.scheme!r} may run code or send images to a server"
        elif REMOTE_LOCATION.match(spec.location):
            reason = f"{spec.location!r} may be on a server"
        elif refused:
            reason = f"{refused[0]}={spec.options[refused[0]]!r} may do more than read the file"
        else:
            specs.append(spec)
            continue
        fault = f"the classifier {split_credentials(text)[0]!r} of the policy is not loaded, since {reason}"
        raise DecisionError(fault, repair=Repair("if you trust it, pass {classifier}", classifier=ANY))
    return specs


class MemberOutputs(Classifier):
    """A classifier, or all members of an ensemble with their outputs side by side.

    An interval needs the outputs of every member, not only their mean. Each view of an image is made once for all
    members.
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
        """Compute and check the outputs of all members. -> float32 [N, members * classes]"""
        outputs: Float32Array = self.forward(images)
        self.n_classes = outputs.shape[1]
        return outputs

    @property
    def is_accelerated(self) -> bool:
        """Whether all members are on the same GPUs, which then make the views once for all of them."""
        workers = [member.workers for member in self.members]
        devices = {None if one is None else one.devices for one in workers}
        return devices != {None} and len(devices) == 1

    def upload(self, images: Any) -> Any:
        """Start to copy images at input size to the GPUs. uint8|float32 [N, H, W, C]"""
        return self.members[0].upload(images)

    def start(self, images: Any, views: Sequence[View]) -> Fetch:
        """Start to classify views with all members. -> float32 [V * n, members * classes]"""
        fetches = [member.start(images, views) for member in self.members]
        return lambda: np.concatenate([fetch() for fetch in fetches], axis=1)

    def find_batch_size(self, image: Array) -> int | None:
        """Return the number of images [H, W, C] that fill the GPUs and fit in their memory; None if unknown."""
        sizes = [member.find_batch_size(image) for member in self.members] if self.is_accelerated else []
        return min((size for size in sizes if size is not None), default=None)


# --- Options that a model inherits from the policy ---

_DESCRIPTIONS = ("output", "name", "output_name", "dtype", "channels_last", "n_classes")
HARMLESS_OPTIONS = frozenset([*_DESCRIPTIONS, *(each.name for each in fields(Preprocessing))])
"""Options that a policy may set to any value: they describe the outputs and the preprocessing of a model."""

HARMLESS_VALUES: Mapping[str, frozenset[str]] = {
    # Thousands of threads exhaust the memory of the process.
    "threads": frozenset(str(threads) for threads in range(1, 65)),
    "timeout": frozenset(str(seconds) for seconds in range(1, 601)),  # at most the default
    # ONNX Runtime has providers that call a server or write files.
    "providers": frozenset(
        ["CPUExecutionProvider", "CUDAExecutionProvider", "CUDAExecutionProvider,CPUExecutionProvider"]
    ),
}
"""Options that a policy may set to these values only."""

INPUT_FORMAT = ("size", "channels", "layout", "input_dtype")
"""Preprocessing settings that are read from the input of a model, and therefore not inherited by another model."""


def select_harmless_options(spec: Spec) -> dict[str, str]:
    """Return the options of a policy's classifier that can neither run code, nor write files, nor reach a server."""
    return {
        name: value
        for name, value in spec.options.items()
        if name in HARMLESS_OPTIONS or value in HARMLESS_VALUES.get(name, ())
    }


def inherit_options(specs: Sequence[str], policy: Policy) -> list[tuple[str, Output | None]]:
    """Add missing harmless options of a policy to the specs of models; return each with its kind of output, if known.

    Members of an ensemble inherit from the members of the policy in order. If their number differs, each inherits the
    options that are equal in all members of the policy.
    """
    originals = [_parse_leniently(text) for text in policy.known_classifier.name.split(MEMBER_SEPARATOR)]
    first, *others = originals
    # The record of an ensemble does not apply to each member.
    recorded, output = ({}, None) if others else (_recorded_settings(policy), policy.known_classifier.output)
    if len(specs) != len(originals):
        options = first.options.items()
        shared = {name: value for name, value in options if all(o.options.get(name) == value for o in others)}
        originals = [Spec(first.scheme, first.location, shared)] * len(specs)
    return [_inherit(text, original, recorded, output) for text, original in zip(specs, originals, strict=True)]


def _inherit(
    text: str, original: Spec, recorded: Mapping[str, str], output: Output | None
) -> tuple[str, Output | None]:
    if ":" not in text:
        return text, None  # rejected with a hint when it is loaded
    spec, shown = parse_spec(text, ClassifierError), split_credentials(text)[0]
    scheme = MODELS.find(spec.scheme, f" in {shown!r}")
    options = dict(recorded) if not scheme.describes_itself else {}
    if spec.scheme == original.scheme:
        options |= select_harmless_options(original)
    elif scheme.describes_itself:
        return text, None
    stated = options.pop("output", output)
    # Policies store locations without the user name and password of a URL.
    if (spec.scheme, parse_spec(shown, ClassifierError).location) != (original.scheme, original.location):
        # The name identifies a function or a remote model, so another model must not inherit it.
        options.pop("name", None)
    kept = {name: value for name, value in options.items() if name in scheme.known_options}
    merged = Spec(spec.scheme, spec.location, {**kept, **spec.options})
    return str(merged), next((output for output in OUTPUTS if output == stated), None)


def _parse_leniently(name: str) -> Spec:
    """Parse the name of a policy's classifier, which is not a spec if the model was made in Python."""
    try:
        return parse_spec(name, ClassifierError)
    except ClassifierError:
        return Spec("", name)


def _recorded_settings(policy: Policy) -> dict[str, str]:
    """Return the preprocessing of a policy as options, since it may be missing in the spec if it was set in Python."""
    recorded, default = Preprocessing.from_dict(policy.known_classifier.preprocessing), Preprocessing()
    settings = {}
    for name in (each.name for each in fields(Preprocessing) if each.name not in INPUT_FORMAT):
        value = getattr(recorded, name)
        if value != getattr(default, name):
            settings[name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return settings
