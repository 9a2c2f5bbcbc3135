"""Loading a classifier from a text, a function, a model object, or a list of these."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from secondlook.arrays import Output
from secondlook.classifiers import (
    function,
    huggingface,
    onnx_file,
    remote,
    sklearn_estimator,
    timm_model,
    torch_model,
    torchvision_model,
)
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.ensemble import Ensemble
from secondlook.classifiers.option_values import check_value, read_value
from secondlook.classifiers.preprocessing import SETTINGS, Preprocessing
from secondlook.classifiers.schemes import MODELS, LoadOptions, ModelScheme, checked_output
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

ADAPTERS = (onnx_file, torch_model, sklearn_estimator, huggingface, timm_model, torchvision_model, remote, function)
"""The modules whose import registers the schemes."""

SUFFIXES = {".onnx": "onnx", ".pt2": "torch", ".pt": "torch", ".pth": "torch", ".joblib": "sklearn", ".pkl": "sklearn"}
"""What a file without a scheme probably is, for the hint in the message."""


def load_classifier(
    spec: object,
    *,
    output: Output | None = None,
    name: str | None = None,
    preprocessing: Preprocessing | None = None,
    **options: Any,
) -> Classifier:
    """Return a classifier for a text, a function, a torch module, an estimator, or a list of these (an ensemble).

    Parameters
    ----------
    spec
        A text such as `onnx:FILE`, with options behind `?` where wanted (`onnx:m.onnx?output=logits&mean=.5&std=.5`); a
        function from a uint8 batch [N, H, W, C] to an array [N, classes]; a torch module; an estimator with
        `predict_proba`; a `Classifier`, returned as it is.
    output
        What the answers mean, 'logits' or 'probabilities', where the format does not say it itself.
    name
        A name for people; also the identity of a function or a remote model under which its answers are kept. In a
        text (`function:package.module:answer?name=v1`) it is the identity alone, and the text stays the name.
    preprocessing
        All preprocessing settings at once, instead of the classifier's own; what the model insists on (its input's
        size, channels and number type) stays.
    options
        Single preprocessing settings (resize, crop, interpolation, scale, mean, std, color, layout, gray, ...) and
        the options of the scheme.
    """
    stated: dict[str, Any] = {"output": output, "preprocessing": preprocessing, **options}
    if isinstance(spec, list | tuple):
        return Ensemble([load_classifier(each, **stated) for each in spec], name=name)
    if isinstance(spec, Classifier):
        return _as_it_is(spec, {"name": name, **stated})
    if isinstance(spec, str):
        return _from_text(spec, {"name": name, **stated})
    return _from_object(spec, {"name": name, **stated})


def _as_it_is(classifier: Classifier, options: Mapping[str, object]) -> Classifier:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ClassifierError(
            f"classifier {classifier.name!r} is loaded already, so {given[0]}= comes too late; "
            "give it where the classifier is loaded."
        )
    return classifier


def _from_text(text: str, keywords: Mapping[str, object]) -> Classifier:
    scheme = _scheme_of(text)
    address, _, query = text.partition("?")
    target = address if scheme.name.startswith("http") else address.partition(":")[2]
    in_text = _options_in(query, text, scheme)
    given = {name: value for name, value in keywords.items() if value is not None}
    for name in in_text.keys() & given.keys():
        raise ClassifierError(f"{name}= is given twice, in {text!r} and as an argument; give it once.")
    return _open(scheme, target, text, {**in_text, **given}, name_in_spec="name" in in_text)


def _scheme_of(text: str) -> ModelScheme:
    name, colon, _ = text.partition(":")
    if colon and name in MODELS:
        return MODELS[name]
    forms = ", ".join(scheme.form for scheme in MODELS.values())
    suggested = SUFFIXES.get(Path(text.partition("?")[0]).suffix)
    hint = f" Did you mean {f'{suggested}:{text}'!r}?" if suggested and not colon else did_you_mean(name, MODELS)
    raise ClassifierError(f"{text!r} does not name a classifier; known forms: {forms}.{hint}")


def _from_object(target: object, options: Mapping[str, object]) -> Classifier:
    # A function comes last, because many models can be called as well.
    for scheme in sorted(MODELS.values(), key=lambda scheme: scheme.name == "function"):
        if scheme.recognizes is not None and scheme.recognizes(target):
            given = {name: value for name, value in options.items() if value is not None}
            return _open(scheme, target, _described(target), given)
    hint = f" Write it as a text with its scheme, such as 'onnx:{target}'." if isinstance(target, Path) else ""
    raise ClassifierError(
        f"{_described(target)} is not a classifier: it can neither be called on a batch nor has it predict_proba; "
        f"give a text, a function, a torch module or an estimator.{hint}"
    )


def _described(target: object) -> str:
    named = getattr(target, "__qualname__", None)
    return f"{type(target).__module__}.{type(target).__qualname__}" if named is None else f"function {named}"


def _open(
    scheme: ModelScheme, target: object, spec: str, options: Mapping[str, Any], *, name_in_spec: bool = False
) -> Classifier:
    _check_names(options, scheme, spec)
    output = checked_output(options.get("output"))
    for name, hint in _hints(scheme).items():
        check_value(name, options.get(name), hint, spec)
    statement = LoadOptions(
        spec=spec,
        output=output,
        name=options.get("name"),
        name_in_spec=name_in_spec,
        settings={name: value for name, value in options.items() if name in SETTINGS},
        replacement=options.get("preprocessing"),
    )
    own = {name: value for name, value in options.items() if name in scheme.options}
    return scheme.open(target, statement, **own)


def _check_names(options: Mapping[str, object], scheme: ModelScheme, spec: str) -> None:
    known = ["output", "name", "preprocessing", *scheme.options, *SETTINGS]
    for name in options:
        if name not in known:
            raise ClassifierError(
                f"unknown option {name!r} for {spec!r}; known: {', '.join(known)}.{did_you_mean(name, known)}"
            )


def _options_in(query: str, spec: str, scheme: ModelScheme) -> dict[str, object]:
    options: dict[str, object] = {}
    hints = _hints(scheme)
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or name in options:
            raise ClassifierError(f"{part!r} in {spec!r} is not one option=value of its own; join options with '&'.")
        options[name] = read_value(unquote(value), hints.get(name))
    return options


def _hints(scheme: ModelScheme) -> dict[str, object]:
    """Return the types of all options but the preprocessing settings, which check themselves."""
    return {"output": str, "name": str | None, "preprocessing": Preprocessing | None, **scheme.options}
