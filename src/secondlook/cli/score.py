"""`secondlook score`: decide about new images by a policy, and hand the rejected ones to people."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secondlook.cli import options
from secondlook.cli.config import Config
from secondlook.errors import DecisionError
from secondlook.specs import MEMBER_SEPARATOR

if TYPE_CHECKING:
    from secondlook.predictions import Predictions


def score(
    policy: Annotated[Path, typer.Option("--policy", metavar="FILE", help="What secondlook calibrate wrote.")],
    data: options.Data,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .parquet, .csv or .jsonl file.")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="SPEC", help="The policy's classifier, where it lies elsewhere now."),
    ] = None,
    per_view: Annotated[bool, typer.Option("--per-view", help="Tell what each view is taken for, too.")] = False,
    rejected: Annotated[
        Path | None, typer.Option("--rejected", metavar="DIR", help="Put rejected images there, by predicted class.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="Link rejected images instead of copying them.")] = False,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="SCHEME:FILE", help="label-studio:FILE or fiftyone:FILE, of the rejected."),
    ] = None,
    export_all: Annotated[bool, typer.Option("--export-all", help="Export accepted images, too.")] = False,
    image_prefix: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Label Studio finds an image there, followed by its id."),
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    on_error: options.OnError = "fail",
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Take another classifier than the policy's; no guarantee then.")
    ] = False,
    config: Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Decide about new images. Started again after a kill, it goes on where it was.

    Example: secondlook score --policy policy.json --data folder:new/ --out scores.parquet --rejected rejected/
    """
    from secondlook.scoring import score as score_images
    from secondlook.selective import Policy

    _refuse_without_partner({"--link": link}, "--rejected", rejected)
    _refuse_without_partner({"--export-all": export_all, "--image-prefix": image_prefix}, "--export", export)
    texts = model if allow_mismatch or not model else _with_options_of(Policy.load(policy).classifier.name, model)
    summary = score_images(
        policy,
        data,
        out,
        classifier=None if not texts else options.load_models(texts),
        per_view=per_view,
        level=level,
        seed=seed,
        rejected=rejected,
        link=link,
        exports=export or [],
        export_all=export_all,
        image_prefix=image_prefix,
        batch_size=batch_size or "auto",
        progress=not (quiet or no_progress),
        allow_mismatch=allow_mismatch,
        # The text of the source may say it as well, so only what differs from the default is passed on.
        on_error=None if on_error == "fail" else on_error,  # type: ignore[arg-type]  # checked there, with a sentence
        look=None if quiet else _warn_of_harmful_views,
    )
    if as_json:
        typer.echo(json.dumps(summary.to_dict(), ensure_ascii=False))
    elif not quiet:
        typer.echo(str(summary))


def _refuse_without_partner(asked: Mapping[str, object], partner: str, given: object) -> None:
    for option, value in asked.items():
        if value and not given:
            raise DecisionError(f"{option} does nothing without {partner}; give {partner} as well, or leave it out.")


def _with_options_of(name: str, models: list[str]) -> list[str]:
    """Return the texts with the options in a classifier's name, where one model of its kind is given without any."""
    address, _, query = name.partition("?")
    if len(models) > 1 or MEMBER_SEPARATOR in name or "?" in models[0] or not query:
        return models
    alike = models[0].partition(":")[0] == address.partition(":")[0]
    return [f"{models[0]}?{query}"] if alike else models


def _warn_of_harmful_views(preds: "Predictions") -> None:
    from secondlook.diagnosis import harmful_view_warnings

    for sentence in harmful_view_warnings(preds):
        warnings.warn(sentence, stacklevel=1)
