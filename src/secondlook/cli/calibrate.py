"""`secondlook calibrate`: a policy file with a guaranteed threshold, from a run or from reviewed images."""

import json
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from typer import Option

from secondlook.cli import options
from secondlook.cli.options import Printing
from secondlook.errors import DecisionError
from secondlook.files import read_regular_file
from secondlook.policies import DEFAULT_DELTA, Familiarity, Ledger, Policy, Schedule, ShiftModel, read_policy
from secondlook.predictions import Execution
from secondlook.specs import MEMBER_SEPARATOR


def calibrate(
    *,
    run: Annotated[Path | None, Option(metavar="DIR", help=options.RUN_HELP)] = None,
    out: Annotated[Path, Option(metavar="FILE", help="Policy file to write.")] = Path("policy.json"),
    risk: Annotated[float | None, Option(help=options.RISK_HELP)] = None,
    delta: Annotated[
        float | None,
        Option(help=options.DELTA_HELP, show_default=f"{DEFAULT_DELTA:g}, or with --reviewed that of the policy"),
    ] = None,
    average_risk: Annotated[
        float | None,
        Option(help="Maximum error rate on average over calibrations. Takes fewer labels, but guarantees less."),
    ] = None,
    coverage: Annotated[
        float | None, Option(help="Fraction of the images to accept instead, without a guarantee.")
    ] = None,
    cost_error: Annotated[
        float | None, Option(help="Cost of an accepted error. With --cost-review: choose the threshold of least cost.")
    ] = None,
    cost_review: Annotated[
        float | None, Option(help="Cost of the review of a rejected image, in the unit of --cost-error.")
    ] = None,
    method: options.ThresholdMethods = None,
    class_thresholds: Annotated[
        bool,
        Option("--class-thresholds", help="Choose a threshold for each predicted class. --risk holds in all of them."),
    ] = False,
    class_risk: Annotated[
        list[str] | None,
        Option(metavar="NAME=RISK", help="With --class-thresholds: another risk for one class; may be repeated."),
    ] = None,
    class_groups: Annotated[
        Path | None,
        Option(metavar="FILE", help="With --class-thresholds: JSON file of groups of classes that share a threshold."),
    ] = None,
    adaptive: Annotated[
        bool, Option("--adaptive", help="Look at an image again only while its decision is open: about two looks each.")
    ] = False,
    tolerance: Annotated[
        float | None,
        Option(
            metavar="T",
            help="With --adaptive: fraction of decisions that may differ from those with all looks.",
            show_default=f"{Schedule.DEFAULT_TOLERANCE:g}",
        ),
    ] = None,
    max_looks: Annotated[
        int | None, Option(metavar="N", help="With --adaptive: maximum looks per image.", show_default="all views")
    ] = None,
    unknown: Annotated[
        str | None,
        Option(
            metavar="SPEC",
            help=f"{options.UNKNOWN_HELP} The policy learns to reject images like one half of them. The other half "
            "bounds how many it accepts.",
        ),
    ] = None,
    unknown_budget: Annotated[
        float | None,
        Option(
            metavar="B",
            help="Fraction of known images that the policy may reject as unfamiliar. Works without --unknown, too.",
            show_default=f"with --unknown {Familiarity.DEFAULT_BUDGET:g}, otherwise none",
        ),
    ] = None,
    reviewed: Annotated[
        str | None,
        Option(
            metavar="FILE|DIR|URL",
            help=f"{options.REVIEWED_HELP} Calibrates from them instead of a run; a file also needs --policy and "
            "--scores. The data folder or the PostgreSQL URL of a service works, too.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        Option(metavar="FILE", help=f"{options.POLICY_HELP} With --reviewed FILE: it scored the reviewed images."),
    ] = None,
    scores: Annotated[
        list[str] | None,
        Option(metavar="PATTERN|DIR|URL", help=f"{options.SCORES_HELP} With --reviewed FILE: of all new images."),
    ] = None,
    planned_looks: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="With --reviewed: how many calibrations of this stream are planned. A number fixed in advance takes "
            "fewer labels if all accepted images are reviewed.",
        ),
    ] = None,
    reviewer_error: Annotated[
        float | None,
        Option(help=f"{options.REVIEWER_ERROR_HELP} Only with --reviewed.", show_default="that of the service, or 0"),
    ] = None,
    shifts: Annotated[
        bool,
        Option("--shifts", help="Also learn from corrupted images, to estimate the accuracy when images change."),
    ] = False,
    limit: Annotated[
        int | None,
        Option(
            "--shift-images",
            metavar="N",
            min=ShiftModel.MIN_IMAGES,
            help="With --shifts: number of labeled images to corrupt.",
            show_default=f"{ShiftModel.DEFAULT_IMAGES}",
        ),
    ] = None,
    model: options.PolicyModel = None,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    predict_from: options.PredictFromOption = None,
    top_k: options.TopK = None,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> None:
    """Choose the threshold above which predictions are accepted, and write a policy file.

    Pass --risk for a guaranteed error rate, or --cost-error and --cost-review for the least cost. Both guarantee an
    error rate among accepted images. --average-risk and --coverage guarantee less.

    Example: secondlook calibrate --run run/ --risk 0.01 --delta 0.001 --out policy.json
    """
    from secondlook.monitoring import count_looks
    from secondlook.report import open_run
    from secondlook.tables import describe_prediction

    if (run is None) == (reviewed is None):
        raise DecisionError("give either --run or --reviewed.")
    if not shifts:
        options.refuse({"--shift-images": limit}, "without --shifts")
    if not shifts and unknown is None:
        running = {"--model": model, "--batch-size": batch_size, "--device": device if device != "auto" else None}
        options.refuse(running, "without --shifts or --unknown")
    if run is not None:
        needs_reviews = {"--planned-looks": planned_looks, "--reviewer-error": reviewer_error}
        options.refuse({"--policy": policy, "--scores": scores, **needs_reviews}, "without --reviewed")
        opened = open_run(run)
        settings = _choose_target(risk, delta, method, average_risk, coverage, cost_error, cost_review)
        settings |= _choose_looks(adaptive, tolerance, max_looks) | _choose_groups(
            class_thresholds, class_risk, class_groups, risk
        )
        settings |= {"predict_from": predict_from, "top_k": top_k, "progress": printing.progress}
        execution = Execution(device, batch_size or "auto", progress=printing.progress)
        if risk is None:
            options.refuse({"--unknown": unknown, "--unknown-budget": unknown_budget}, "without --risk")
            calibrated = opened.threshold_for(**settings)
        else:
            examples = None if unknown is None else opened.collect_unknown(unknown, model, execution=execution)
            calibrated = opened.certify(**settings, unknown=examples, unknown_budget=unknown_budget)
        accepted = None if unknown is not None else opened.count_accepted_unknowns(calibrated)
        baseline = opened.describe_baseline(calibrated)
        changes = [str(one) for one in (accepted, baseline) if one is not None]
        if shifts:
            n_images = limit or ShiftModel.DEFAULT_IMAGES
            if not printing.quiet:
                shown = min(n_images, opened.record.data.images)
                looks = f"{count_looks(calibrated, shown):,} looks, kept in {opened.path / opened.SHIFTS}"
                typer.echo(f"Classifying corrupted versions of {shown:,} images to learn from: {looks}.", err=True)
            calibrated = opened.learn_shifts(calibrated, model or None, n_images=n_images, execution=execution)
            changes += ["", str(calibrated.shifts)]
    else:
        kept = {
            "--average-risk": average_risk,
            "--coverage": coverage,
            "--cost-error": cost_error,
            "--cost-review": cost_review,
            "--method": method,
            "--class-thresholds": class_thresholds,
            "--class-risk": class_risk,
            "--class-groups": class_groups,
            "--adaptive": adaptive,
            "--predict-from": predict_from,
            "--top-k": top_k,
            "--shifts": shifts,
            "--unknown": unknown,
            "--unknown-budget": unknown_budget,
        }
        options.refuse(kept, "with --reviewed, which keeps that of the policy")
        terms: dict[str, Any] = {"risk": risk, "delta": delta, "planned_looks": planned_looks}
        terms["reviewer_error"] = reviewer_error
        terms["execution"] = Execution(progress=printing.progress)
        calibrated, changes = _recertify(str(reviewed), policy, scores, **terms)
    try:
        calibrated.save(out, overwrite=overwrite)
        calibrated = Policy.model_validate_json(out.read_bytes())  # includes the time of creation
    except OSError as error:
        raise DecisionError(f"{str(out)!r} cannot be written: {error.strerror}; choose another --out.") from None
    about = [str(calibrated), describe_prediction(calibrated.predict_from, calibrated.top_k), *changes]
    next_step = describe_next_step(calibrated, out)
    if reviewed is not None and _is_service(reviewed):
        next_step = f"Next: curl --data-binary @{quote(str(out))} http://127.0.0.1:8000/v1/policy"
    text = "\n".join([*about, "", f"Saved in {out}. {next_step}"])
    printing.print(json.loads(calibrated.model_dump_json()), text)


def _is_service(reviewed: str) -> bool:
    """Whether the reviewed images belong to a service: its data folder or its database."""
    is_database = reviewed.startswith(("postgresql:", "postgresql+", "postgres:"))
    return is_database or reviewed.endswith("/") or Path(reviewed).is_dir()


def _recertify(reviewed: str, policy: Path | None, scores: list[str] | None, **terms: Any) -> tuple[Policy, list[str]]:
    """Return a fresh policy from reviewed images, and a description of its data and changes."""
    from secondlook.imports import import_extra
    from secondlook.monitoring import recertify

    if not _is_service(reviewed):
        if policy is None or not scores:
            missing = "--policy" if policy is None else "--scores"
            raise DecisionError(f"--reviewed needs {missing}, unless it is the data folder of a service.")
        terms["reviewer_error"] = terms["reviewer_error"] or 0.0
        made = recertify(read_policy(policy), scores, reviewed, data=" ".join(scores), **terms)
        return made.policy, ["", "What changed:", str(made)]
    options.refuse({"--policy": policy, "--scores": scores}, "with --reviewed of a service, which already has it")
    for package in ("sqlalchemy", "argon2"):
        import_extra(package, feature="calibrating from a service", extra="serve")
    from secondlook.serving import ServiceOptions

    service = ServiceOptions(Path(), database=reviewed) if "://" in reviewed else ServiceOptions(Path(reviewed))
    found = service.read_reviews()
    images = sum(map(len, found.tables))
    others = f"; {found.left_out:,} decided without audits are left out" if found.left_out else ""
    used = f"made from {images:,} images of the service, {len(found.labels):,} of them reviewed{others}"
    # The data folder of a service in a database is unknown here.
    ledger = None if "://" in reviewed else Path(reviewed) / Ledger.OF_RUN
    terms |= {"data": f"service {found.where}", "ledger": ledger}
    if terms["reviewer_error"] is None:
        terms["reviewer_error"] = found.reviewer_error
    made = recertify(found.policy, found.tables, found.labels, **terms)
    return made.policy, [used, "", "What changed:", str(made)]


def _choose_target(
    risk: float | None,
    delta: float | None,
    method: list[str] | None,
    average_risk: float | None,
    coverage: float | None,
    cost_error: float | None,
    cost_review: float | None,
) -> dict[str, Any]:
    """Return the arguments for the target and the methods of the threshold."""
    has_costs = cost_error is not None or cost_review is not None
    if [risk, average_risk, coverage].count(None) + (not has_costs) != 3:
        fault = "give one of --risk (with a guarantee), --cost-error with --cost-review, --average-risk and --coverage"
        raise DecisionError(f"{fault}.")
    if risk is None and not has_costs:
        options.refuse({"--delta": delta}, "without --risk or costs")
    delta = DEFAULT_DELTA if delta is None else delta
    if risk is not None:
        return {"method": method or None, "risk": risk, "delta": delta}
    if len(method or ()) > 1:
        raise DecisionError("several --method need --risk, to choose the best of them; give one.")
    costs = {"cost_error": cost_error, "cost_review": cost_review, "delta": delta}
    return {"method": method[0] if method else None, "average_risk": average_risk, "coverage": coverage, **costs}


def _choose_looks(adaptive: bool, tolerance: float | None, max_looks: int | None) -> dict[str, Any]:
    if not adaptive:
        options.refuse({"--tolerance": tolerance, "--max-looks": max_looks}, "without --adaptive")
        return {}
    tolerance = Schedule.DEFAULT_TOLERANCE if tolerance is None else tolerance
    return {"adaptive": True, "tolerance": tolerance, "max_looks": max_looks}


def _choose_groups(
    class_thresholds: bool, class_risk: list[str] | None, class_groups: Path | None, risk: float | None
) -> dict[str, Any]:
    """Return the arguments for class thresholds, if any."""
    if not class_thresholds:
        options.refuse({"--class-risk": class_risk, "--class-groups": class_groups}, "without --class-thresholds")
        return {}
    if risk is None:
        options.refuse({"--class-thresholds": True}, "without --risk")
    risks: dict[str, float] = {}
    for text in class_risk or ():
        name, separator, value = text.rpartition("=")
        if name in risks:
            raise DecisionError(f"--class-risk gives {name!r} a risk twice; give each class one.")
        with suppress(ValueError):
            risks[name] = float(value)
        if not separator or not 0 < risks.get(name, 0) < 1:
            raise DecisionError(f"--class-risk {text!r} is not NAME=RISK with a risk between 0 and 1.")
    groups = "class" if class_groups is None else _read_class_groups(class_groups)
    return {"groups": groups, "risk": {"*": risk, **risks}} if risks else {"groups": groups}


def _read_class_groups(path: Path) -> dict[str, list[str | int]]:
    try:
        return TypeAdapter(dict[str, list[str | int]]).validate_json(read_regular_file(path), strict=True)
    except (OSError, ValidationError):
        expected = 'expected a JSON file like {"vehicles": ["bus", "car"]}'
        raise DecisionError(f"--class-groups {str(path)!r} cannot be read; {expected}.") from None


def describe_next_step(policy: Policy, path: Path) -> str:
    """Return the command that scores new images, with models that the policy cannot load by itself."""
    from secondlook.classifiers import MODELS
    from secondlook.decisions import can_load_classifier

    specs = [] if can_load_classifier(policy) else policy.known_classifier.name.split(MEMBER_SEPARATOR)
    if any(spec.partition(":")[0] not in MODELS for spec in specs):
        return f"Next, in Python: secondlook.score({str(path)!r}, 'folder:new/', 'scores.parquet', classifier=...)"
    models = "".join(f" --model {quote(spec)}" for spec in specs)
    return f"Next: secondlook score --policy {quote(str(path))}{models} --data folder:new/ --out scores.parquet"
