"""`secondlook info`: what is this file or folder, and how did it come about?"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from secondlook.cli import options
from secondlook.errors import SecondLookError

Facts = Mapping[str, object]


def info(
    what: Annotated[str, typer.Argument(metavar="RUN|POLICY|MODEL", help="A run, a policy file, or a model's text.")],
    as_json: options.Json = False,
) -> None:
    """Tell what a run, a policy or a model is.

    Example: secondlook info policy.json
    """
    facts = facts_about(what)
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, default=str))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, _shown(value))
    Console(highlight=False, markup=False).print(table)


def facts_about(what: str) -> Facts:
    """Return what can be said about it, by name."""
    path = Path(what)
    if path.is_dir():
        return _about_run(path)
    if path.is_file() and path.suffix == ".json":
        return _about_policy(path)
    if path.is_file() and path.suffix == ".onnx":
        return _about_model(f"onnx:{what}")
    if ":" in what:
        return _about_model(what)
    raise SecondLookError(
        f"{what!r} is neither the folder of a run, nor a policy (.json), nor a model such as onnx:FILE; check the path."
    )


def _about_run(path: Path) -> Facts:
    from secondlook.runs import Run

    run = Run.open(path)
    record, preds = run.record, run.predictions
    return {
        "what": "a run of secondlook evaluate",
        "classifier": record.classifier.name,
        "classifier digest": record.classifier.digest,
        "answers": record.classifier.output,
        "preprocessing": record.classifier.preprocessing,
        "images": record.data.spec,
        "images digest": record.data.digest,
        "predictions": f"{preds.n_images:,} images x {preds.n_views} views x {preds.n_classes} classes",
        "accuracy by x": round(float(preds.correct(predict_from="image").mean()), 4),
        "accuracy by D": round(float(preds.correct(predict_from="views").mean()), 4),
        "views": list(record.views),
        "skipped": [f"{name}: {reason}" for name, reason in preds.skipped],
        "warnings": list(record.warnings),
        "secondlook": record.secondlook,
        "again": run.command,
    }


def _about_policy(path: Path) -> Facts:
    from secondlook.selective import Policy

    policy = Policy.load(path)
    seen = policy.calibration
    return {
        "what": "a policy",
        "rule": f"accept where {policy.method} >= {policy.threshold:.6g}",
        "guarantee": policy.guarantee.text,
        "class by": policy.predict_from,
        "leading classes": policy.top_k,
        "classifier": policy.classifier.name,
        "classifier digest": policy.classifier.digest,
        "preprocessing": policy.classifier.preprocessing,
        "views": list(policy.views),
        "calibrated on": "nothing" if seen is None else f"{seen.images:,} images of {seen.data}",
        "seen there": "" if seen is None else f"{seen.accepted:,} accepted, {seen.errors} of them wrong",
        "made": policy.made,
        "secondlook": policy.secondlook,
    }


def _about_model(text: str) -> Facts:
    from secondlook.classifiers import load_classifier

    model = load_classifier(text)
    return {
        "what": "a classifier",
        "classifier": model.name,
        "digest": model.digest,
        "answers": model.output,
        "classes": model.n_classes if model.n_classes is not None else "known after the first answer",
        "preprocessing": model.preprocessing.to_dict(),
    }


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None)
    if isinstance(value, list):
        return "\n".join(str(item) for item in value) or "none"
    return str(value)
