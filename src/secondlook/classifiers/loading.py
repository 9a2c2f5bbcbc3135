"""Load classifiers: the registry of model schemes, their options, and `load_classifier`."""

import base64
import inspect
import pkgutil
import platform
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from secondlook.arrays import OUTPUTS, Output, is_number, is_whole_number
from secondlook.classifiers.classifier import Classifier, Ensemble
from secondlook.classifiers.preprocessing import SETTINGS, Preprocessing
from secondlook.errors import ANY, ClassifierError, Repair, shorten_reason
from secondlook.registry import Registry, did_you_mean
from secondlook.specs import Spec, parse_spec

SCHEME_OF_SUFFIX = {".onnx": "onnx", **dict.fromkeys((".pt2", ".pt", ".pth"), "torch")}
SCHEME_OF_SUFFIX |= dict.fromkeys((".joblib", ".pkl"), "sklearn")
URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)", re.IGNORECASE)
HOST_AND_PORT = re.compile(r"(\[[^\]@]*\]|[^:@\[\]]*)(:[0-9]*)?")
COMMON_OPTIONS = {"output": str, "default_output": str, "name": str, "preprocessing": Preprocessing}
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
CHECKED_TYPES: dict[object, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("an integer", is_whole_number),
    float: ("a finite number", is_number),
    # A pathlib.Path or a torch.device can be used as a string.
    str: ("a string", lambda value: isinstance(value, str) or not isinstance(value, Real | Collection)),
    Sequence: ("a list", lambda value: isinstance(value, Sequence)),
    Mapping: ("a mapping", lambda value: isinstance(value, Mapping)),
    Preprocessing: ("a Preprocessing object, not a spec", lambda value: isinstance(value, Preprocessing)),
}
"""The checked option types, with name and test; openers check values of other types."""


@dataclass(frozen=True)
class LoadOptions:
    """The options of all model schemes, as given to `load_classifier`."""

    spec: str
    """The spec, or a description of the object, for messages; also the default name."""
    scheme: str = ""
    output: Output | None = None
    default_output: Output | None = None
    name: str | None = None
    name_in_spec: bool = False
    """Whether the spec contains the name, so that the spec alone can load the classifier again."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Individual preprocessing settings."""
    preprocessing: Preprocessing | None = None
    authorization: str | None = field(default=None, repr=False)
    """HTTP authorization from the user name and password of a URL (removed from `spec`), or None."""

    @property
    def display_name(self) -> str:
        """The given name; the spec if there is none, or if the spec contains it."""
        return self.spec if self.name is None or self.name_in_spec else self.name

    def require_output(self) -> Output:
        """Return the kind of output of a model that does not declare it; raise if the user did not pass it."""
        output = self.output or self.default_output
        if output is None:
            fault = f"cannot tell whether {self.spec!r} outputs logits or probabilities"
            raise ClassifierError(fault, repair=Repair("pass {output} or 'probabilities'", output="logits"))
        return output

    def expect_output(self, known: Output) -> Output:
        """Return the fixed kind of output of a scheme; raise if the user declared the other one."""
        if self.output not in (None, known):
            fault, repair = f"is wrong, since {self.spec!r} outputs {known}", Repair("remove {output}", output=ANY)
            raise ClassifierError(fault, argument="output", value=self.output, repair=repair)
        return known

    @property
    def changed_settings(self) -> tuple[str, ...]:
        """Names of all preprocessing settings passed by the user."""
        return (*self.settings, *(self.preprocessing or Preprocessing()).list_changes())

    @property
    def layout(self) -> object:
        """The layout passed by the user, or None."""
        return self.settings.get("layout") or (self.preprocessing.layout if self.preprocessing else None)

    def override(self, own: Preprocessing) -> Preprocessing:
        """Apply the user's settings to the model's own preprocessing, except where the model has requirements."""
        if self.preprocessing is not None:
            given = self.preprocessing
            size, channels = given.size or own.size, given.channels or own.channels
            own = replace(given, size=size, channels=channels, input_dtype=own.input_dtype)
        return own.with_settings(self.settings)


Opener = Callable[..., Classifier]


@dataclass(frozen=True)
class ModelScheme:
    """One kind of model that can be loaded."""

    name: str
    """The text before the colon of a spec."""
    form: str
    """The form of a spec, with placeholders."""
    summary: str
    open: Opener
    """`open(target, options, **scheme_options)`; `target` is the location of the spec, or the object."""
    extra: str | None = None
    """The required optional dependencies, or None."""
    recognizes: Callable[[object], bool] | None = None
    """Whether an object is of this kind; None if this kind is only loaded from specs."""
    is_data_only: bool = False
    """Whether loading and running a model only reads local data: no code of the file runs, and nothing leaves the
    machine. Untrusted files, like a policy, may load only models of this kind."""
    describes_itself: bool = False
    """Whether its models include their preprocessing, so that none is inherited."""

    @property
    def options(self) -> Mapping[str, object]:
        """The options of this scheme and their types: all keyword-only parameters of `open`, unpacked ones included."""
        hints, found = get_type_hints(self.open), dict[str, object]()
        for each in inspect.signature(self.open).parameters.values():
            if each.kind is each.KEYWORD_ONLY:
                found[each.name] = hints.get(each.name)
            elif each.kind is each.VAR_KEYWORD:  # **name: Unpack[SomeTypedDict]
                for group in get_args(hints.get(each.name)):
                    found |= get_type_hints(group)
        return found

    @property
    def known_options(self) -> tuple[str, ...]:
        """The names of all options for models of this scheme."""
        return (*COMMON_OPTIONS, *self.options, *SETTINGS)


MODELS: Registry[ModelScheme] = Registry("model scheme", ClassifierError)


def model_scheme(name: str, *, form: str, summary: str, **fields: Any) -> Callable[[Opener], Opener]:
    """Register the decorated function as the opener of a model scheme; `fields` are those of `ModelScheme`."""

    def register(opener: Opener) -> Opener:
        MODELS.add(ModelScheme(name, form, summary, opener, **fields))
        return opener

    return register


def load_classifier(
    spec: object,
    *,
    output: Output | None = None,
    default_output: Output | None = None,
    name: str | None = None,
    preprocessing: Preprocessing | None = None,
    **options: Any,
) -> Classifier:
    """Load a classifier from a spec, a function, a torch module or an estimator; load an ensemble from a list of them.

    Parameters
    ----------
    spec
        A spec like `onnx:FILE`, optionally with options (`onnx:m.onnx?output=logits&mean=.5&std=.5`); a function
        from a uint8 batch [N, H, W, C] to an array [N, classes]; a torch module; an estimator with `predict_proba`; or
        a `Classifier`, which is returned unchanged.
    output
        'logits' or 'probabilities'; required if the format does not declare it.
    default_output
        The fallback if neither `output` nor the model specifies it.
    name
        Display name. For a function or a remote model, it also identifies stored outputs. In a spec
        (`function:package.module:predict?name=v1`) it only identifies outputs; the spec is displayed.
    preprocessing
        Replaces all preprocessing settings of the model, except the size, channels and number type required by its
        input.
    options
        Individual preprocessing settings (resize, crop, interpolation, scale, mean, std, color, layout, gray, ...) and
        the options of the model scheme.
    """
    given = {"output": output, "default_output": default_output, "preprocessing": preprocessing, **options}
    given = {key: value for key, value in given.items() if value is not None}
    if isinstance(spec, list | tuple):
        return Ensemble([load_classifier(member, **given) for member in spec], name=name)
    if name is not None:
        given["name"] = name
    if not isinstance(spec, Classifier):
        return _load_spec(spec, given) if isinstance(spec, str) else _load_object(spec, given)
    if given:
        fault = f"cannot be changed, since classifier {spec.name!r} is already loaded; pass it when loading it"
        raise ClassifierError(fault, argument=next(iter(given)))
    return spec


def split_credentials(text: str) -> tuple[str, str | None]:
    """Return a spec without the user name and password of its URL, and the authorization made from them."""
    found = URL.match(text)
    if found is None:
        return text, None
    credentials, at, host = found["authority"].rpartition("@")
    if not HOST_AND_PORT.fullmatch(host):
        # Do not show the text: an apparent port may be the start of a password with a slash.
        fault = "the URL of a remote model has an invalid host or port (not shown, since it may contain a password)"
        repair = "expected http://HOST:PORT/..., with '/', '?', '#' and '@' percent-encoded in user name and password"
        raise ClassifierError(fault, repair=repair)
    if not at:
        return text, None
    user, _, password = credentials.partition(":")
    token = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
    return f"{text[: found.start('authority')]}{host}{text[found.end() :]}", f"Basic {token}"


def _load_spec(text: str, given: Mapping[str, object]) -> Classifier:
    # First, so that no message, name or digest below can contain them.
    text, authorization = split_credentials(text)
    if ":" not in text:
        suggested = SCHEME_OF_SUFFIX.get(Path(text.partition("?")[0]).suffix)
        hint = f" Did you mean {f'{suggested}:{text}'!r}?" if suggested else ""
        forms = ", ".join(scheme.form for scheme in MODELS.values())
        raise ClassifierError(f"{text!r} has no model scheme; known: {forms}.{hint}")
    spec = parse_spec(text, ClassifierError)
    scheme = MODELS.find(spec.scheme, f" in {text!r}")
    types = {**COMMON_OPTIONS, **scheme.options}
    in_spec = {name: _parse_value(value, types.get(name)) for name, value in spec.options.items()}
    for name in in_spec.keys() & given.keys():
        raise ClassifierError(f"duplicate option {name!r}: in {text!r} and as an argument; pass it once.")
    options = {**in_spec, **given}
    loaded = _open(scheme, spec.location, text, options, name_in_spec="name" in in_spec, authorization=authorization)
    if spec.path.exists():  # other processes may run in other folders
        spec = replace(spec, location=str(spec.path.absolute()))
    loaded.reload = partial(_load_again, spec, options, loaded.name, loaded.digest, authorization)
    return loaded


def _load_again(
    spec: Spec, options: Mapping[str, object], name: str, digest: str, authorization: str | None
) -> Classifier:
    """Load a classifier in another process or on another machine, which must have the same file."""
    where = f"on the machine {platform.node()!r}"
    try:
        context = {"name_in_spec": True, "authorization": authorization}
        loaded = _open(MODELS.find(spec.scheme), spec.location, str(spec), options, **context)
    except ClassifierError as error:
        raise ClassifierError.from_error(error, f"{where}: ") from error
    if loaded.digest != digest:
        fault = f"classifier {name!r} is different {where} (digest {loaded.digest[:12]} instead of {digest[:12]})"
        raise ClassifierError(fault, repair="copy the same file there")
    loaded.name = name
    loaded.reload = partial(_load_again, spec, options, name, digest, authorization)
    return loaded


def _load_object(target: object, given: Mapping[str, object]) -> Classifier:
    name = getattr(target, "__qualname__", None)
    described = f"{type(target).__module__}.{type(target).__qualname__}" if name is None else f"function {name}"
    # Check functions last, because many models are callable.
    for scheme in sorted(MODELS.values(), key=lambda scheme: scheme.name == "function"):
        if scheme.recognizes is not None and scheme.recognizes(target):
            return _open(scheme, target, described, given)
    hint = f" For a file, pass a spec like 'onnx:{target}'." if isinstance(target, Path) else ""
    expected = f"pass a spec, a function, a torch module or an estimator with predict_proba.{hint}"
    raise ClassifierError(f"{described} is not a classifier; {expected}")


def _open(scheme: ModelScheme, target: object, spec: str, given: Mapping[str, Any], **context: Any) -> Classifier:
    """Check the user's options, and open a model; `context` are other fields of `LoadOptions`."""
    known = scheme.known_options
    for name in given:
        if name not in known:
            listed = f"{', '.join(known)}.{did_you_mean(name, known)}"
            raise ClassifierError(f"unknown option {name!r} for {spec!r}; known: {listed}")
    for name in ("output", "default_output"):
        if given.get(name) not in (None, *OUTPUTS):
            fault = f"for {spec!r} is unknown; expected 'logits' or 'probabilities'"
            raise ClassifierError(fault, argument=name, value=given[name])
    for name, hint in {**COMMON_OPTIONS, **scheme.options}.items():
        value, types = given.get(name), _allowed_types(hint)
        is_checked = value is not None and types <= CHECKED_TYPES.keys()
        if is_checked and not any(CHECKED_TYPES[each][1](value) for each in types):
            expected = " or ".join(text for each, (text, _) in CHECKED_TYPES.items() if each in types)
            raise ClassifierError(f"of {spec!r} has the wrong type; expected {expected}", argument=name, value=value)

    def select(names: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name in names}

    options = LoadOptions(spec, scheme.name, settings=select(SETTINGS), **select(COMMON_OPTIONS), **context)
    return scheme.open(target, options, **select(scheme.options))


def _parse_value(text: str, hint: object) -> object:
    """Return the value of an option in a spec; `_open` rejects text that does not fit the type."""
    types = _allowed_types(hint)
    if types == {str}:
        return text
    if types == {bool}:
        return BOOLEANS.get(text.lower(), text)
    if "," in text:
        return tuple(_parse_value(item, None) for item in text.split(","))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _allowed_types(hint: object) -> set[object]:
    """Return the types of a type hint without None and type parameters: {Sequence} for `Sequence[str] | None`."""
    hints = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return {get_origin(each) or each for each in hints if each is not type(None)}


def import_object(location: str, spec: str) -> Any:
    """Import `package.module:name`, also from the current folder."""
    if not location.partition(":")[2]:
        raise ClassifierError(f"{spec!r} does not name an object in a module; expected package.module:name.")
    # Models are often defined in the current folder, which is not on the path of a command-line tool.
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return pkgutil.resolve_name(location)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        fault = f"{spec!r} cannot be imported: {shorten_reason(error)}"
        raise ClassifierError(fault, repair="check the name, install the module or run in its folder") from error
    finally:
        sys.path.remove(folder)
