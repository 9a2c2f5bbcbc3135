"""`secondlook calibrate`: a threshold with a guarantee, from the predictions of a run, as a policy file."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from secondlook.cli import options
from secondlook.cli.config import Config
from secondlook.errors import DecisionError


def calibrate(
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="A run of labeled images.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the policy goes.")] = Path("policy.json"),
    risk: Annotated[float | None, typer.Option(help="Most errors among the accepted, such as 0.01.")] = None,
    delta: Annotated[float, typer.Option(help="How improbable it must be that the guarantee fails.")] = 0.001,
    coverage: Annotated[float | None, typer.Option(help="Accept this share instead; guarantees nothing.")] = None,
    method: Annotated[str, typer.Option(metavar="NAME", help="The confidence to decide by.")] = "mean",
    predict_from: options.ByOfRun = None,
    top_k: options.TopKOfRun = None,
    config: Config = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Choose an operating point.

    Example: secondlook calibrate --run run/ --risk 0.01 --delta 0.001 --out policy.json
    """
    from secondlook.runs import Run
    from secondlook.selective import Policy, certify, threshold_for

    if (risk is None) == (coverage is None):
        raise DecisionError("say either --risk (with a guarantee) or --coverage (without one), not both or neither.")
    folder = Run.open(run)
    answer: Any = {
        "predict_from": predict_from or folder.predict_from,
        "top_k": top_k or folder.top_k,
    }  # checked where it is used, with a sentence
    with folder.predictions.read_with_bar("confidences", 2, enabled=not (quiet or no_progress)) as preds:
        if risk is not None:
            rule = certify(preds, method, risk=risk, delta=delta, **answer)
        else:
            rule = threshold_for(preds, method, coverage=coverage or 0.0, **answer)
    if risk is not None and not rule.certified:
        raise DecisionError(f"{rule.shortfall}.")
    record = folder.record
    policy = Policy.of(
        rule,
        classifier=record.classifier,
        views=record.views,
        data=record.data.spec,
        data_digest=record.data.digest,
        class_names=preds.class_names,
    )
    try:
        policy.save(out)
    except OSError as error:
        raise DecisionError(
            f"the policy cannot be written to {str(out)!r}: {error.strerror}; choose another --out."
        ) from None
    if as_json:
        typer.echo(policy.model_dump_json())
    elif not quiet:
        about = (
            []
            if (policy.predict_from, policy.top_k) == ("image", 1)
            else [f"about the {options.answer_text(policy.predict_from, policy.top_k)}"]
        )
        following = f"secondlook score --policy {quote(str(out))} --data folder:new/ --out scores.parquet"
        typer.echo("\n".join([str(policy), *about, "", f"Kept in {out}. Next: {following}"]))
