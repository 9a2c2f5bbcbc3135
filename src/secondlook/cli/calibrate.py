"""`secondlook calibrate`: a threshold with a guarantee from the predictions of a run, written as a policy file."""

import re
import warnings
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from secondlook.cli import options
from secondlook.errors import DecisionError
from secondlook.selective import DEFAULT_DELTA, DEFAULT_TOLERANCE, Policy
from secondlook.specs import MEMBER_SEPARATOR


def calibrate(
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="Run folder that secondlook evaluate wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Policy file to write.")] = Path("policy.json"),
    risk: Annotated[float | None, typer.Option(help="Maximum error rate among accepted images, such as 0.01.")] = None,
    delta: options.Delta = DEFAULT_DELTA,
    coverage: Annotated[
        float | None, typer.Option(help="Accept this share of the images instead, without a guarantee.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Confidence method to decide by, or several to choose from, which share delta. "
            f"Methods: {options.METHODS_HELP}.",
            show_default="blend",
        ),
    ] = None,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            help="Look at an image again only while its decision is open: most are decided after one or two looks.",
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="With --adaptive: share of decisions that may differ from those with all looks.",
            show_default=f"{DEFAULT_TOLERANCE:g}",
        ),
    ] = None,
    max_looks: Annotated[
        int | None,
        typer.Option(
            "--max-looks", metavar="N", help="With --adaptive: looks per image at most.", show_default="all views"
        ),
    ] = None,
    predict_from: options.PredictFromOfRun = None,
    top_k: options.TopKOfRun = None,
    overwrite: options.Overwrite = False,
    config: options.Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Choose the threshold above which predictions are accepted, and write a policy file.

    Example: secondlook calibrate --run run/ --risk 0.01 --delta 0.001 --out policy.json
    """
    from secondlook.evaluation import describe_prediction
    from secondlook.runs import CalibrationWarning, open_run
    from secondlook.setup_check import SetupWarning
    from secondlook.views import ViewWarning

    opened = open_run(run)
    methods = None if method is None else split_methods(method)
    if (risk is None) == (coverage is None):
        raise DecisionError("give either --risk (with a guarantee) or --coverage (without one), not both or neither.")
    if coverage is not None and methods is not None and len(methods) > 1:
        raise DecisionError(f"--coverage needs one --method, got {method!r}; the best of several needs --risk.")
    options.require_partner({"--tolerance": tolerance, "--max-looks": max_looks}, "--adaptive", adaptive)
    settings: dict[str, Any] = {"predict_from": predict_from, "top_k": top_k, "progress": not (quiet or no_progress)}
    if adaptive:
        given = {"tolerance": tolerance, "max_looks": max_looks}
        settings |= {"adaptive": True} | {name: value for name, value in given.items() if value is not None}
    with warnings.catch_warnings():
        if quiet:  # the run and the policy have them, too
            for category in (CalibrationWarning, SetupWarning, ViewWarning):
                warnings.simplefilter("ignore", category)
        if risk is not None:
            policy = opened.certify(methods, risk=risk, delta=delta, **settings)
        else:
            assert coverage is not None, "one of the two was given"
            policy = opened.threshold_for(methods[0] if methods else None, coverage=coverage, **settings)
    try:
        policy.save(out, overwrite=overwrite)
    except OSError as error:
        raise DecisionError(
            f"the policy cannot be written to {str(out)!r}: {error.strerror}; choose another --out."
        ) from None
    if as_json:
        typer.echo(policy.model_dump_json())
    elif not quiet:
        about = [describe_prediction(policy.predict_from, policy.top_k)]
        typer.echo("\n".join([str(policy), *about, "", f"Saved in {out}. {_describe_next_step(policy, out)}"]))


def _describe_next_step(policy: Policy, path: Path) -> str:
    """Return the command that scores new images; it names the models that a policy does not load by itself."""
    from secondlook.classifiers import MODELS
    from secondlook.scoring import can_load_classifier

    specs = [] if can_load_classifier(policy) else policy.classifier.name.split(MEMBER_SEPARATOR)
    if any(spec.partition(":")[0] not in MODELS for spec in specs):
        return f"Next, in Python: secondlook.score({str(path)!r}, 'folder:new/', 'scores.parquet', classifier=...)"
    models = "".join(f" --model {quote(spec)}" for spec in specs)
    return f"Next: secondlook score --policy {quote(str(path))}{models} --data folder:new/ --out scores.parquet"


def split_methods(text: str) -> list[str]:
    """Split 'mean,view:shift:1,0' into methods; a number after a comma belongs to the view before it."""
    return re.split(r"[,\s]\s*(?=[a-z])", text.strip())
