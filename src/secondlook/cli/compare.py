"""`secondlook compare`: confidence methods and classifiers of several runs side by side, on the same images."""

import json
from pathlib import Path
from typing import Annotated

import typer

from secondlook.cli import options
from secondlook.errors import MetricError


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders on the same images.")],
    method: options.Methods = None,
    metric: options.Metrics = None,
    predict_from: options.PredictFromOfRun = None,
    top_k: options.TopKOfRun = None,
    level: options.Level = 0.95,
    resamples: options.Resamples = 500,
    seed: options.Seed = 0,
    config: options.Config = None,
    as_json: options.Json = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Compare runs on the images they share; differences are to the first row.

    Example: secondlook compare run-a/ run-b/ --metric auroc
    """
    from secondlook.evaluation import compare as compare_predictions
    from secondlook.predictions import Execution
    from secondlook.report import open_run

    _check_distinct(runs)
    opened = {str(path): open_run(path) for path in runs}
    first = next(iter(opened.values()))
    chosen = {name: value for name, value in {"methods": method, "metrics": metric}.items() if value}
    result = compare_predictions(
        opened,
        **chosen,
        predict_from=predict_from or first.predict_from,
        top_k=top_k or first.top_k,
        level=level,
        resamples=resamples,
        seed=seed,
        execution=Execution(progress=not no_progress),
    )
    typer.echo(json.dumps(result.to_dict(), ensure_ascii=False) if as_json else str(result))


def _check_distinct(runs: list[Path]) -> None:
    places = [path.resolve() for path in runs]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise MetricError(f"duplicate run {str(runs[index])!r}; give each run once.")
