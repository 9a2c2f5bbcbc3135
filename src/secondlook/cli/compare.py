"""`secondlook compare`: methods and classifiers of several runs side by side, paired on the same images."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from secondlook.arrays import BoolArray, Float64Array
from secondlook.cli import options
from secondlook.cli.config import Config
from secondlook.errors import MetricError


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs on the same images.")],
    method: options.Methods = None,
    metric: options.Metrics = None,
    by: options.By = "x",
    top_k: options.TopK = 1,
    level: options.Level = 0.95,
    resamples: options.Resamples = 500,
    seed: options.Seed = 0,
    config: Config = None,
    as_json: options.Json = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Compare runs; every difference is to the first line.

    Example: secondlook compare run-a/ run-b/ --metric auroc
    """
    from secondlook.cli.run_folder import RunFolder
    from secondlook.estimators import confidence
    from secondlook.estimators.registry import find_method
    from secondlook.evaluation.across import compare as compare_entries

    folders = [RunFolder.open(path) for path in runs]
    ids = [tuple(folder.predictions.ids) for folder in folders]
    in_all = set(ids[0]).intersection(*ids[1:])
    shared = [name for name in ids[0] if name in in_all]
    if not shared:
        raise MetricError("the runs have no image in common; compare runs of the same data.")
    methods = method or ["msr", "mean"]
    entries: dict[str, tuple[BoolArray, Float64Array]] = {}
    scores: list[str] = []
    for path, folder, names in zip(runs, folders, ids, strict=True):
        place = {name: position for position, name in enumerate(names)}
        chosen = folder.predictions.select(images=np.array([place[name] for name in shared]))
        with chosen.read_with_bar(str(path), len(methods) + 1, enabled=not no_progress) as preds:
            correct = preds.correct(by=by, k=top_k)  # type: ignore[arg-type]  # checked there, with a sentence
            for name in methods:
                sure = confidence(preds, name, by=by, k=top_k)  # type: ignore[arg-type]
                entries[f"{path} {name}"] = (correct, sure)
                if not find_method(name)[0].is_probability:
                    scores.append(f"{path} {name}")
    result = compare_entries(
        entries,
        metric or ["accuracy", "auroc", "aurc", "risk_at:0.8"],
        no_probabilities=scores,
        level=level,
        resamples=resamples,
        seed=seed,
        progress=not no_progress,
    )
    if as_json:
        typer.echo(json.dumps({"images": len(shared), **result.to_dict()}, ensure_ascii=False))
        return
    typer.echo(f"{len(shared):,} images in all {len(runs)} runs")
    typer.echo(str(result))
