"""`secondlook compare`: methods and classifiers of several runs side by side, paired on the same images."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from secondlook.arrays import BoolArray, Float64Array
from secondlook.cli import options
from secondlook.cli.config import Config
from secondlook.errors import MetricError

if TYPE_CHECKING:
    from secondlook.predictions import Predictions


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs on the same images.")],
    method: options.Methods = None,
    metric: options.Metrics = None,
    predict_from: options.ByOfRun = None,
    top_k: options.TopKOfRun = None,
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
    from secondlook.estimators import confidence, find_method
    from secondlook.evaluation import compare as compare_entries
    from secondlook.runs import Run

    _refuse_a_repeated_run(runs)
    folders = [Run.open(path) for path in runs]
    answer: Any = {
        "predict_from": predict_from or folders[0].predict_from,
        "top_k": top_k or folders[0].top_k,
    }  # checked where it is used, with a sentence
    paired = _on_shared_images([folder.predictions for folder in folders])
    _refuse_other_labels(runs, paired)
    methods = method or ["msr", "mean"]
    entries: dict[str, tuple[BoolArray, Float64Array]] = {}
    scores: list[str] = []
    for path, chosen in zip(runs, paired, strict=True):
        with chosen.read_with_bar(str(path), len(methods) + 1, enabled=not no_progress) as preds:
            correct = preds.correct(**answer)
            for name in methods:
                entries[f"{path} {name}"] = (correct, confidence(preds, name, **answer))
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
    images = paired[0].n_images
    if as_json:
        typer.echo(json.dumps({"images": images, **answer, **result.to_dict()}, ensure_ascii=False))
        return
    typer.echo(f"{images:,} images in all {len(runs)} runs, {options.answer_text(**answer)}")
    typer.echo(str(result))


def _refuse_a_repeated_run(runs: list[Path]) -> None:
    places = [path.resolve() for path in runs]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise MetricError(f"the run {str(runs[index])!r} is given twice; give each once.")


def _on_shared_images(runs: "list[Predictions]") -> "list[Predictions]":
    """Return the predictions on the images that all runs have, in the order of the first."""
    in_all = set(runs[0].ids).intersection(*(preds.ids for preds in runs[1:]))
    shared = [name for name in runs[0].ids if name in in_all]
    if not shared:
        raise MetricError("the runs have no image in common; compare runs of the same data.")
    places = [{name: position for position, name in enumerate(preds.ids)} for preds in runs]
    return [
        preds.select(images=np.array([place[name] for name in shared]))
        for preds, place in zip(runs, places, strict=True)
    ]


def _refuse_other_labels(runs: list[Path], paired: "list[Predictions]") -> None:
    """Refuse images that only share their ids, such as those of two archives, which are positions."""
    for path, preds in zip(runs[1:], paired[1:], strict=True):
        differ = int(np.sum(preds.labels != paired[0].labels))
        if differ:
            raise MetricError(
                f"the runs {str(runs[0])!r} and {str(path)!r} are of other images: {differ:,} of {preds.n_images:,} "
                "shared ids have another label; compare runs of the same data."
            )
