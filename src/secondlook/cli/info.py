"""`info` describes a run, a policy, an exported file or a model; `list` and `views` show the choices."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from secondlook.classifiers import MODELS, OnnxFile, Preprocessing, load_classifier
from secondlook.cli import options
from secondlook.decisions import EXPORTS, SCORE_FORMATS, ExportedFile, compile_policy, load_policy
from secondlook.diagnosis import candidate_views
from secondlook.errors import SecondLookError, ViewError
from secondlook.estimators import METHODS
from secondlook.metrics import METRICS
from secondlook.policies import Policy, read_policy
from secondlook.predictions import Execution
from secondlook.registry import Registry
from secondlook.sources import SOURCES, UnreadableImageError, read_image
from secondlook.tables import describe_prediction, escape_controls
from secondlook.views import PRESETS, STEPS, ViewSet, contact_sheet

REGISTRIES: Mapping[str, Mapping[str, Registry[Any]]] = {
    "methods": {"method": METHODS},
    "metrics": {"metric": METRICS},
    "views": {"preset": PRESETS, "step": STEPS},
    "models": {"model": MODELS},
    "sources": {"source": SOURCES},
    "exports": {"export": EXPORTS, "score file": SCORE_FORMATS},
}
"""The registries of each kind, by the titles of their columns."""


def info(
    what: Annotated[
        str,
        Argument(
            metavar="RUN|POLICY|EXPORT|MODEL",
            help="Run folder, policy file, exported file, or model such as onnx:FILE.",
        ),
    ],
    as_json: options.Json = False,
) -> None:
    """Describe a run, a policy, an exported file or a model.

    Example: secondlook info policy.json
    """
    facts = describe(what)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if name != "summary":
            text = "\n".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
            table.add_row(name, escape_controls(text))
    Console(highlight=False, markup=False).print(table)
    if "summary" in facts:  # below, so that its tables have room
        typer.echo(escape_controls(f"\n{facts['summary']}"))


def describe(what: str) -> dict[str, object]:
    """Describe a run folder, a policy file, an exported file or a model, as values by name."""
    path = Path(what)
    if path.is_dir():
        return _describe_run(path)
    if path.is_file() and path.suffix == ".json":
        return _describe_policy(read_policy(path))
    if path.is_file() and path.suffix == ".onnx":
        is_exported = Policy.METADATA in OnnxFile(path, str(path)).read_metadata()
        return _describe_exported_file(path) if is_exported else _describe_model(f"onnx:{path}")
    if ":" in what:
        return _describe_model(what)
    raise SecondLookError(f"{what!r} is not a run folder, a policy (.json) or a model like onnx:FILE.")


def _describe_run(path: Path) -> dict[str, object]:
    from secondlook.report import open_run

    run = open_run(path)
    record, preds = run.record, run.predictions
    return {
        "what": "run of secondlook evaluate",
        **run.facts,
        "predictions": f"{preds.n_images:,} images x {preds.n_views} views x {preds.n_classes} classes",
        "accuracy from image": round(float(preds.correct("image").mean()), 4),
        "accuracy from views": round(float(preds.correct("views").mean()), 4),
        "views": list(record.views),
        "choice of views": str(record.view_choice or "as given"),
        "tuning images": f"{len(record.tuning):,}, not judged" if record.tuning else "none",
        "skipped": [f"{id_}: {reason}" for id_, reason in run.skipped],
        "warnings": list(record.warnings),
        "command": run.command,
    }


def _describe_policy(policy: Policy) -> dict[str, object]:
    classifier, calibration, reference = policy.classifier, policy.calibration, policy.reference
    shifts = "" if policy.shifts is None else f", and estimates from {len(policy.shifts.shifts)} kinds of shifts"
    return {
        "what": "policy",
        "file": "changed after it was written"
        if policy.was_changed
        else "not damaged; a checksum does not detect forgery",
        "guarantee": policy.guarantee_text,
        "options": [f"{name} = {value}" for name, value in policy.options.items()],
        "prediction": describe_prediction(policy.predict_from, policy.top_k),
        "classifier": classifier.name if classifier else "unknown, since the policy was made from arrays",
        "classifier digest": classifier.digest if classifier else "unknown",
        "preprocessing": str(Preprocessing.from_dict(classifier.preprocessing)) if classifier else "unknown",
        "views": list(policy.views),
        "schedule": policy.schedule.describe_fit() if policy.schedule else "all views of every image",
        "calibrated on": f"{calibration.images:,} images of {calibration.data}" if calibration else "nothing",
        "monitoring": f"a reference of {reference.images:,} images{shifts}" if reference else "no reference",
        "secondlook": policy.secondlook,
        "summary": str(policy),
    }


def _describe_exported_file(path: Path) -> dict[str, object]:
    exported = compile_policy(load_policy(path, execution=Execution("cpu")))
    assert isinstance(exported, ExportedFile), "its policy came from the file"
    record = exported.record
    looks = "adaptive, until the decision is clear" if record.adaptive else "all views of every image"
    facts = {
        **_describe_policy(exported.policy),
        "what": "exported file: a classifier, its views and the decision in one ONNX file",
        "input": f"{record.INPUT}: {record.describe_input()}",
        "outputs": ", ".join(record.list_outputs(exported.policy)),
        "pixels": "0 to 255" if record.pixels == "uint8" else "0 to 1",
        "classes of the output": record.classes,
        "computes": looks,
        "opset": OnnxFile(path, str(path)).read_opset(),
        "size": f"{path.stat().st_size:,} bytes",
        "exported by": f"secondlook {record.secondlook}",
    }
    return facts if record.mismatch is None else {**facts, "guarantee": f"none, since {record.mismatch}"}


def _describe_model(spec: str) -> dict[str, object]:
    model = load_classifier(spec)
    return {
        "what": "classifier",
        "classifier": model.name,
        "digest": model.digest,
        "output": model.output,
        "classes": model.n_classes if model.n_classes is not None else "known after the first call",
        "preprocessing": str(model.preprocessing),
    }


def list_kind(
    kind: Annotated[
        Literal["methods", "metrics", "views", "models", "sources", "exports"], Argument(help="Kind of things to list.")
    ],
    as_json: options.Json = False,
) -> None:
    """List the available methods, metrics, views, models, sources or exports.

    Example: secondlook list metrics
    """
    registries = REGISTRIES[kind]
    if as_json:
        typer.echo(json.dumps({title: registry.to_rows() for title, registry in registries.items()}, indent=2))
        return
    for title, registry in registries.items():
        table = Table(title, "summary", box=None, pad_edge=False)
        for record in registry.values():
            table.add_row(escape(record.form), escape(record.summary))
            if warning := getattr(record, "warning", None):
                table.add_row("", f"[yellow]{escape(warning)}[/]")
        Console().print(table)


views = typer.Typer(help="Draw views of an image, or propose candidate views.", no_args_is_help=True)


@views.command("show")
def show_views(
    views: Annotated[str, Argument(metavar="SET", help=options.VIEWS_HELP)],
    image: Annotated[Path, Argument(metavar="IMAGE", help="Image file: JPEG, PNG, WebP, BMP or TIFF.")],
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Image file to write.", show_default="IMAGE-views.png")
    ] = None,
    paper: Annotated[bool, Option("--paper", help="Also print the views in the notation of the paper.")] = False,
    max_pixels: Annotated[int, Option(metavar="N", min=1, help=options.MAX_PIXELS_HELP)] = 100_000_000,
) -> None:
    """Draw all views of an image, with their text.

    Example: secondlook views show natural photo.jpg -o sheet.png
    """
    view_set, target = ViewSet(views), out or Path(f"{image.stem}-views.png")
    try:
        pixels = read_image(image, max_pixels=max_pixels, max_bytes=3 * max_pixels)
    except UnreadableImageError as error:
        repair = "make it smaller, or raise --max-pixels" if error.limit is not None else "repair it"
        raise ViewError(f"image {image} cannot be read: {error.reason}; {repair}.") from None
    sheet = contact_sheet(pixels, view_set)
    try:
        sheet.save(target)
    except (OSError, ValueError) as error:
        raise ViewError(f"the image cannot be written to {str(target)!r}: {error}; choose another --out.") from None
    if paper:
        for view in view_set:
            typer.echo(view.to_paper_notation())
    typer.echo(f"{len(view_set)} views of {image} written to {target}")


@views.command("candidates")
def propose_views(
    kind: Annotated[str, Argument(help="Kind of images: natural, digits, harmful or auto.")] = "natural",
    image_size: Annotated[int, Option(metavar="N", help="Side of the classifier's input, in pixels.")] = 32,
    number: Annotated[
        int, Option("-n", "--number", metavar="N", help="Number of views. The smallest changes come first.")
    ] = 100,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Text file to write.", show_default="standard output")
    ] = None,
) -> None:
    """Propose candidate views, of which secondlook search chooses the best.

    Example: secondlook views candidates natural --image-size 32 -o pool.txt
    """
    text = "\n".join(candidate_views(kind, image_size, number).texts)
    if out is None:
        typer.echo(text)
        return
    out.write_text(f"{text}\n", encoding="utf-8")
    typer.echo(f"{number} views written to {out}")
