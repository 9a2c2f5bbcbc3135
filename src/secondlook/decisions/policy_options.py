"""Options of a policy's classifier: those that cannot act, and how a model given in its place inherits them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from secondlook.arrays import OUTPUTS, Output
from secondlook.classifiers import MODELS, Preprocessing, split_credentials
from secondlook.errors import ClassifierError
from secondlook.policies import Policy
from secondlook.specs import MEMBER_SEPARATOR, Spec, parse_spec

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

INPUT_FORMAT = ("size", "channels", "layout", "input_dtype")
"""Preprocessing settings that a model's own input determines, so that they are not those of another model."""


@dataclass(frozen=True)
class DescribedModel:
    """A spec with all that is known about its model; `default_output` is for a model that does not tell its output."""

    spec: str
    default_output: Output | None = None


def select_harmless_options(spec: Spec) -> dict[str, str]:
    """Return the options of a policy's classifier that can neither run code, nor write files, nor reach a server."""
    return {
        name: value
        for name, value in spec.options.items()
        if name in HARMLESS_OPTIONS or value in HARMLESS_VALUES.get(name, ())
    }


def inherit_options(specs: Sequence[str], policy: Policy) -> list[DescribedModel]:
    """Return the specs of models that are used with a policy, each with the harmless options of the policy it lacks.

    Members of an ensemble inherit from the members of the policy in the same order. With another number of members,
    each inherits what all members of the policy agree on.
    """
    originals = [_parse_leniently(text) for text in policy.classifier.name.split(MEMBER_SEPARATOR)]
    shared = Spec(originals[0].scheme, originals[0].location, _common_options(originals))
    # The record of an ensemble is not that of each of its members.
    recorded = _recorded_settings(policy) if len(originals) == 1 else {}
    output = policy.classifier.output if len(originals) == 1 else None
    same_order = originals if len(originals) == len(specs) else [shared] * len(specs)
    return [_inherit(text, original, recorded, output) for text, original in zip(specs, same_order, strict=True)]


def _inherit(text: str, original: Spec, recorded: Mapping[str, str], output: Output | None) -> DescribedModel:
    if ":" not in text:
        return DescribedModel(text)  # rejected with a hint when it is loaded
    spec = parse_spec(text, ClassifierError)
    scheme = MODELS.find(spec.scheme, f" in {split_credentials(text)[0]!r}")
    is_same_scheme = spec.scheme == original.scheme
    options = dict(recorded) if not scheme.describes_itself else {}
    if is_same_scheme:
        options |= select_harmless_options(original)
    elif scheme.describes_itself:
        return DescribedModel(text)
    stated = options.pop("output", output)
    if (spec.scheme, _location(text)) != (original.scheme, original.location):
        # A function or a remote model is identified by its name, which another one must not borrow.
        options.pop("name", None)
    kept = {name: value for name, value in options.items() if name in scheme.known_options}
    merged = Spec(spec.scheme, spec.location, {**kept, **spec.options})
    return DescribedModel(str(merged), next((output for output in OUTPUTS if output == stated), None))


def _location(text: str) -> str:
    """Return the location of a spec without the user name and password of a URL, as policies store it."""
    return parse_spec(split_credentials(text)[0], ClassifierError).location


def _parse_leniently(name: str) -> Spec:
    """Parse the name of a policy's classifier; that of a model made in Python need not be a spec."""
    try:
        return parse_spec(name, ClassifierError)
    except ClassifierError:
        return Spec("", name)


def _common_options(specs: Sequence[Spec]) -> dict[str, str]:
    """Return the options that all specs have with the same value."""
    first, *others = specs
    return {name: value for name, value in first.options.items() if all(o.options.get(name) == value for o in others)}


def _recorded_settings(policy: Policy) -> dict[str, str]:
    """Return the preprocessing of a policy as options: it may have been given in Python, and not in the spec."""
    recorded, default = Preprocessing.from_dict(policy.classifier.preprocessing), Preprocessing()
    names = [each.name for each in fields(Preprocessing) if each.name not in INPUT_FORMAT]
    values = {name: getattr(recorded, name) for name in names if getattr(recorded, name) != getattr(default, name)}
    return {
        name: ",".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }
