"""Commands for new images: `score` applies a policy, `monitor` checks whether its guarantee still holds."""

import warnings
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from secondlook.cli import options
from secondlook.cli.options import ClusterExecution, Printing

if TYPE_CHECKING:
    from secondlook.predictions import Predictions


def score(
    *,
    policy: options.PolicyOrExport,
    data: options.Data,
    out: Annotated[
        str,
        Option(
            metavar="FILE|DIR|URL",
            help="Score file to write (.parquet, .csv, .jsonl), or a folder or URL for Parquet files (s3://bucket/scores).",
        ),
    ],
    model: options.PolicyModel = None,
    header_from_env: options.HeaderFromEnv = None,
    per_view: Annotated[
        bool, Option("--per-view", help="Also write the predicted class and its probability for each view.")
    ] = False,
    audit: Annotated[
        float | None,
        Option(
            metavar="FRACTION",
            help=f"{options.AUDIT_HELP} Monitoring needs these audits.",
        ),
    ] = None,
    rejected: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder for the rejected images, with a folder for each predicted class."),
    ] = None,
    link: Annotated[bool, Option("--link", help="With --rejected: link the images instead of copying them.")] = False,
    export: Annotated[
        list[str] | None,
        Option(
            metavar="SCHEME:FILE", help="Review file to write: label-studio:FILE or fiftyone:FILE; may be repeated."
        ),
    ] = None,
    export_all: Annotated[bool, Option("--export-all", help="With --export: also export the accepted images.")] = False,
    image_prefix: Annotated[
        str | None,
        Option(metavar="URL", help="With --export: URL from which Label Studio loads an image; its id is appended."),
    ] = None,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    execution: ClusterExecution,
    part_size: Annotated[
        int | None,
        Option(
            min=1,
            help="Images per chunk. A resumed job continues with the next chunk.",
            show_default="by image size; 1000 with --engine ray",
        ),
    ] = None,
    allow_mismatch: options.AllowMismatch = False,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> None:
    """Accept or reject the prediction for every new image. An interrupted job resumes when run again.

    The score file has a row for each image, with its class, confidence and decision.

    Example: secondlook score --policy policy.json --data folder:new/ --out scores.parquet --rejected rejected/
    """
    from secondlook.decisions import Review, load_policy
    from secondlook.decisions import score as score_images

    if not model:
        options.refuse({"--header-from-env": header_from_env}, "without --model")
    if rejected is None:
        options.refuse({"--link": link}, "without --rejected")
    if not export:
        options.refuse({"--export-all": export_all, "--image-prefix": image_prefix}, "without --export")
    specs = [options.add_options(spec, {"header_from_env": header_from_env}) for spec in model or ()] or None
    with execution.open(printing.progress, part_size) as settings:
        summary = score_images(
            load_policy(policy, classifier=specs, allow_mismatch=True) if allow_mismatch else policy,
            data,
            out,
            classifier=None if allow_mismatch else specs,
            per_view=per_view,
            audit=audit,
            level=level,
            seed=seed,
            review=Review(rejected, link, export or (), export_all, image_prefix),
            overwrite=overwrite,
            execution=settings,
            on_first_predictions=None if printing.quiet else _warn_of_harmful_views,
        )
    printing.print(summary.to_dict(), summary)


def _warn_of_harmful_views(preds: "Predictions") -> None:
    from secondlook.diagnosis import diagnose_views
    from secondlook.views import ViewWarning

    if message := diagnose_views(preds).describe_harmful():
        warnings.warn(message, ViewWarning, stacklevel=1)


def monitor(
    *,
    policy: options.PolicyOrExport,
    scores: Annotated[
        list[str],
        Option(
            metavar="PATTERN|DIR|URL",
            help=options.SCORES_HELP,
        ),
    ],
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the page, the results and the state.")],
    reviewed: Annotated[
        Path | None,
        Option(metavar="FILE", help=f"{options.REVIEWED_HELP} Fill in to_review.csv, and save it under another name."),
    ] = None,
    data: Annotated[
        str | None, Option(metavar="SPEC", help=f"{options.DATA_HELP} The page shows the worst of the scored ones.")
    ] = None,
    alpha: Annotated[
        float | None,
        Option(
            help="Probability that a test ever raises a false alarm, however long the stream.",
            show_default="0.05, or as before",
        ),
    ] = None,
    window: Annotated[
        int | None,
        Option(min=1, help="Number of images in a window of the timeline.", show_default="500, or as before"),
    ] = None,
    burn_in: Annotated[
        int | None,
        Option(min=0, help="Number of images before the status can be good.", show_default="100, or as before"),
    ] = None,
    seed: Annotated[int | None, Option(min=0, help="Random seed.", show_default="0, or as before")] = None,
    reviewer_error: Annotated[
        float | None, Option(help=options.REVIEWER_ERROR_HELP, show_default="0, or as before")
    ] = None,
    shuffle: Annotated[
        bool, Option("--shuffle", help="Read each file in random order, for images that are not in the order of time.")
    ] = False,
    printing: Printing,
) -> None:
    """Check whether new images still look like the calibration images, and the guarantee still holds.

    A second run reads only new files. The exit code is 3 on an alarm, and 0 otherwise.

    Example: secondlook monitor --policy policy.json --scores 'scores/*.parquet' --out monitor/
    """
    from secondlook.monitoring import monitor_scores
    from secondlook.predictions import Execution
    from secondlook.report import write_monitor_page
    from secondlook.sources import open_source

    source = None if data is None else open_source(data)
    result = monitor_scores(
        policy,
        scores,
        out,
        reviewed=reviewed,
        alpha=alpha,
        window=window,
        burn_in=burn_in,
        seed=seed,
        reviewer_error=reviewer_error,
        shuffle=shuffle,
        execution=Execution(progress=printing.progress),
    )
    labels = "labels.csv" if reviewed is None else str(reviewed)
    patterns = "".join(f" --scores {quote(pattern)}" for pattern in scores)
    files = f"--reviewed {quote(labels)} --policy {quote(str(policy))}{patterns}"
    command = f"secondlook calibrate {files} --out fresh.json"
    page = write_monitor_page(result.monitor, out / "monitor.html", source=source, command=command)
    following = [f"Next: {command}"] if result.status.alarm else []
    printing.print(result.to_dict(), "\n".join([str(result), f"Page: {page}", *following]))
    if result.status.alarm:
        raise typer.Exit(3)
