"""Messages of the library in the language of the command line: `views=` becomes `--views`."""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

OPTION_OF_ARGUMENT = {
    "classifier": "model",
    "methods": "method",
    "metrics": "metric",
    "exports": "export",
    "store": "out",
}
"""Arguments of the library whose command-line option has another name."""

PHRASES = {
    "labels= with an array": "an .npz file with labels",
    "pass labels= when creating or collecting them": "use labeled images",
    "pass labels= when collecting them": "use labeled images",
    "pass labels= to them": "use labeled images",
    "pass labels=": "use labeled images",
    "pass logits= (or output='logits')": "pass output='logits'",
    "collect from a classifier with output='logits'": "evaluate a model with ?output=logits",
    "collect from Ensemble([...]) or pass Predictions(members=...)": "evaluate with several --model",
    "collect with more views": "evaluate with more --views",
    "pass views='auto'": "evaluate with --views auto",
    "pass tuning= with some of them": "use more labeled images",
    "pass more images, or say with tuning= which of them to set apart": "evaluate more images",
    "risk= names": "--class-risk names",
    "or None for all views": "or omit it for all views",
    "passes=; compute them with compute_mc_dropout_passes(classifier, images)": (
        "dropout passes, which are available in Python only"
    ),
    "embeddings=, train_embeddings= and train_labels=; "
    "compute them with compute_embeddings(classifier, images, layer=...)": (
        "embeddings, which are available in Python only"
    ),
    "load_classifier(..., name='v1') or ?name=v1 in its spec, or omit store=": "?name=v1 behind the model",
    "expected a folder written by collect(store=...)": "expected a folder that secondlook evaluate wrote",
    ", or open other views with views=": "",
    "pass rejected=FOLDER": "pass --rejected DIR",
    "serve with audit=0.05": "start secondlook serve with --audit 0.05",
    "mean= and std= to load_classifier": "--mean and --std",
    "make one first with 'secondlook token add'": (
        "make one first with: secondlook token add NAME --role admin --data-dir DIR"
    ),
    "open it with load_decider": "pass it to: secondlook score --decider FILE",
    "export_onnx(policy, out)": "secondlook export",
    "export the policy with image_shape= for them": "export the policy with --image-shape for them",
    "save it with torch.save(module.state_dict(), FILE)": "save its state dict",
}
"""Sentences that name Python calls, or arguments without an option, and what they say on the command line."""

_ARGUMENT = re.compile(
    r"(?<![\w?&.'\"/-])(?P<pass>pass )?(?P<name>[a-z][a-z_]*)="
    r"(?P<value>'[^']*'|\([^()]*\)|-?\d+(?:\.\d+)?(?:e-?\d+)?|[A-Za-z]\w*|)(?=[\s,;:)]|\.(?!\.)|$)"
)


def list_flags(command: Any) -> dict[str, str]:
    """Return the long options of a command by the names of its parameters, such as {"on_error": "--on-error"}."""
    options = ((one.name, flag) for one in command.params for flag in one.opts if flag.startswith("--"))
    return {name: flag for name, flag in options if name is not None}


def name_options(message: str, flags: Mapping[str, str]) -> str:
    """Return a message of the library with its arguments named as options of a command.

    `flags` are the options of the command by the names of its parameters, as `list_flags` returns them. Other
    options of models and sources become part of their specs, `?name=value`, or `--model-option name=value` where the
    command has it.
    """
    for phrase, said in PHRASES.items():
        message = message.replace(phrase, said)
    known = set(flags.values())
    renamed = {name: f"--{option}" for name, option in OPTION_OF_ARGUMENT.items() if f"--{option}" in known}
    # What the command line calls a model is a classifier in the library, where `model=` is an option of remote models.
    same = {name: flag for name, flag in flags.items() if name != "model"}
    named = _ARGUMENT.sub(lambda match: _name_option(match, {**renamed, **same}), message)
    return re.sub(r"(?<!\S)(--[a-z-]+ \S+), (?=--)", r"\1 ", named)  # options to paste have no commas between them


def _name_option(match: re.Match[str], flags: Mapping[str, str]) -> str:
    name, value, verb = match["name"], _format_value(match["value"]), match["pass"] or ""
    flag = flags.get(name)
    if flag is not None and value == "false":
        return f"omit {flag}" if verb else f"no {flag}"
    if flag is not None:
        return f"{verb}{flag}" if value in ("", "true") else f"{verb}{flag} {value}"
    if name in _model_options() and "--model-option" in flags.values():
        return f"{verb}--model-option {name}={value or 'VALUE'}"
    if name in _model_options() | _source_options():
        return f"{verb}?{name}={value or 'VALUE'}"
    return match[0]


def _format_value(text: str) -> str:
    """Return a Python value as it is typed on the command line: (height, width) as HEIGHT,WIDTH, True as true."""
    if text in ("True", "False"):
        return text.lower()
    if text.startswith("("):
        items = [item.strip() for item in text[1:-1].split(",") if item.strip()]
        return ",".join(item.upper() if item.isidentifier() else item for item in items)
    return text.strip("'")


@cache
def _model_options() -> frozenset[str]:
    from secondlook.classifiers import MODELS

    return frozenset(name for scheme in MODELS.values() for name in scheme.known_options)


@cache
def _source_options() -> frozenset[str]:
    from secondlook.sources import SOURCES, open_source

    common = inspect.signature(open_source).parameters.keys()
    # In messages, these are arguments for images in memory; in specs, they name columns and arrays.
    of_memory = {"data", "labels", "class_names", "image", "images"}
    return frozenset((common | {name for scheme in SOURCES.values() for name in scheme.options}) - of_memory)
