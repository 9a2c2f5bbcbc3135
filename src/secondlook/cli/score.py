"""`secondlook score`: apply a policy to new images, and hand the rejected ones to people."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secondlook.cli import options
from secondlook.errors import DecisionError

if TYPE_CHECKING:
    from secondlook.predictions import Predictions


def score(
    data: options.Data,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="FILE|DIR|URL",
            help="File to write (.parquet, .csv or .jsonl), or a folder or URL such as s3://bucket/scores for Parquet "
            "parts.",
        ),
    ],
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="Policy file that calibrate wrote.")
    ] = None,
    decider: Annotated[
        Path | None,
        typer.Option("--decider", metavar="FILE.onnx", help="ONNX file that export wrote, instead of a policy."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="SPEC", help="Classifier of the policy, if it is not an ONNX file or now somewhere else."
        ),
    ] = None,
    header_from_env: options.HeaderFromEnv = None,
    per_view: Annotated[
        bool, typer.Option("--per-view", help="Also write the class predicted from each view and its probability.")
    ] = False,
    audit: Annotated[
        float | None,
        typer.Option(
            "--audit",
            metavar="FRACTION",
            help="Mark about this fraction of the accepted images for review, such as 0.01; secondlook monitor tells "
            "from the reviewed ones whether the guarantee still holds.",
        ),
    ] = None,
    rejected: Annotated[
        Path | None, typer.Option("--rejected", metavar="DIR", help="Folder for rejected images, by predicted class.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Link rejected images instead of copying them.")] = False,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="SCHEME:FILE", help="Review file: label-studio:FILE or fiftyone:FILE."),
    ] = None,
    export_all: Annotated[bool, typer.Option("--export-all", help="Export accepted images too.")] = False,
    image_prefix: Annotated[
        str | None, typer.Option(metavar="URL", help="URL that, followed by an image's id, serves it to Label Studio.")
    ] = None,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    cpus_per_worker: options.CpusPerWorker = None,
    gpus_per_worker: options.GpusPerWorker = None,
    part_size: options.PartSize = None,
    on_error: options.OnErrorOfEngine = None,
    allow_mismatch: Annotated[
        bool,
        typer.Option("--allow-mismatch", help="Use a classifier other than the policy's; the guarantee is lost."),
    ] = False,
    overwrite: options.Overwrite = False,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Accept or reject the prediction for every new image. An interrupted job resumes when run again.

    Example: secondlook score --policy policy.json --data folder:new/ --out scores.parquet --rejected rejected/
    """
    from secondlook.decisions import load_decider
    from secondlook.decisions import score as score_images

    _check_decider(policy, decider, engine)
    options.require_partner({"--header-from-env": header_from_env}, "--model", model)
    options.require_partner({"--link": link}, "--rejected", rejected)
    options.require_partner({"--export-all": export_all, "--image-prefix": image_prefix}, "--export", export)
    specs = [options.add_options(spec, {"header_from_env": header_from_env}) for spec in model or ()]
    with options.open_engine(engine, address, workers, cpus_per_worker, gpus_per_worker, part_size) as opened:
        summary = score_images(
            load_decider(decider, device=device) if decider is not None else policy or "",
            data,
            out,
            classifier=specs or None,
            per_view=per_view,
            audit=audit,
            level=level,
            seed=seed,
            rejected=rejected,
            link=link,
            exports=export or [],
            export_all=export_all,
            image_prefix=image_prefix,
            batch_size=batch_size or "auto",
            device=device if decider is None else "auto",
            progress=not (quiet or no_progress),
            allow_mismatch=allow_mismatch,
            overwrite=overwrite,
            engine=opened,
            part_size=part_size,
            on_error=on_error,
            on_first_predictions=None if quiet else _warn_of_harmful_views,
        )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(str(summary))


def _check_decider(policy: Path | None, decider: Path | None, engine: str) -> None:
    if (policy is None) == (decider is None):
        given = "neither --policy nor --decider is" if policy is None else "both --policy and --decider are"
        raise DecisionError(f"{given} given; pass one of them.")
    if decider is not None and engine != "local":
        raise DecisionError("--engine ray does not go with --decider; score with --policy, or omit --engine.")


def _warn_of_harmful_views(preds: "Predictions") -> None:
    from secondlook.diagnosis import describe_harmful_views
    from secondlook.views import ViewWarning

    message = describe_harmful_views(preds)
    if message is not None:
        warnings.warn(message, ViewWarning, stacklevel=1)
