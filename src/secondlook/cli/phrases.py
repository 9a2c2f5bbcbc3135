"""Sentences of the library that name arguments in their text and not yet in fields: `views=` becomes `--views`.

This module, its import and its call in `wording.word` go when the last of these sentences has fields.
"""

import re

from secondlook.errors import ANY, NameArgument, name_in_python

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


def rewrite(message: str, name_argument: NameArgument) -> str:
    """Return a message with the arguments in its text named by `name_argument`."""
    for phrase, said in PHRASES.items():
        message = message.replace(phrase, said)
    named = _ARGUMENT.sub(lambda match: _name(match, name_argument), message)
    return re.sub(r"(?<!\S)(--[a-z-]+ \S+), (?=--)", r"\1 ", named)  # options to paste have no commas between them


def _name(match: re.Match[str], name_argument: NameArgument) -> str:
    name, value, verb = match["name"], _parse(match["value"]), match["pass"] or ""
    named = name_argument(name, value)
    if named == name_in_python(name, value):
        return match[0]
    return named.replace("no --", "omit --", 1) if verb and value is False else f"{verb}{named}"


def _parse(text: str) -> object:
    """Return a value as it is typed on the command line: (height, width) as HEIGHT,WIDTH."""
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("("):
        items = [item.strip() for item in text[1:-1].split(",") if item.strip()]
        return tuple(item.upper() if item.isidentifier() else item for item in items)
    return text.strip("'") if text else ANY
