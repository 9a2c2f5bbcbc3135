"""`secondlook calibrate`: a policy file with a guaranteed threshold, from a run or from reviewed images."""

import json
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from secondlook.cli import options
from secondlook.cli.options import Printing
from secondlook.errors import DecisionError
from secondlook.policies import DEFAULT_DELTA, Policy, Schedule, ShiftModel, read_policy
from secondlook.predictions import Execution
from secondlook.specs import MEMBER_SEPARATOR

if TYPE_CHECKING:
    from secondlook.report import Run

DATABASES = ("postgresql:", "postgresql+", "postgres:")
"""Starts of the URL of a service's database."""


def calibrate(
    *,
    run: Annotated[
        Path | None, Option("--run", metavar="DIR", help="Run folder that secondlook evaluate wrote.")
    ] = None,
    out: Annotated[Path, Option("--out", metavar="FILE", help="Policy file to write.")] = Path("policy.json"),
    risk: Annotated[float | None, Option(help="Maximum error rate among accepted images, such as 0.01.")] = None,
    delta: Annotated[
        float | None,
        Option(
            help="Failure probability of the guarantee (0.001 means 99.9 % confidence).",
            show_default=f"{DEFAULT_DELTA:g}, or with --reviewed that of the policy",
        ),
    ] = None,
    coverage: Annotated[
        float | None, Option(help="Accept this share of the images instead, without a guarantee.")
    ] = None,
    method: Annotated[
        str | None,
        Option(
            metavar="NAME[,NAME]",
            help="Confidence method to decide by, or several to choose from, which share delta. "
            f"Methods: {options.METHODS_HELP}.",
            show_default="blend",
        ),
    ] = None,
    per_class: Annotated[
        bool,
        Option(
            "--per-class",
            help="A threshold for each predicted class: --risk is guaranteed in every class, in all of them at once.",
        ),
    ] = False,
    class_risk: Annotated[
        list[str] | None,
        Option(
            "--class-risk", metavar="NAME=RISK", help="With --per-class: another risk for a class; may be repeated."
        ),
    ] = None,
    adaptive: Annotated[
        bool,
        Option(
            "--adaptive",
            help="Look at an image again only while its decision is open: most are decided after one or two looks.",
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        Option(
            metavar="T",
            help="With --adaptive: share of decisions that may differ from those with all looks.",
            show_default=f"{Schedule.DEFAULT_TOLERANCE:g}",
        ),
    ] = None,
    max_looks: Annotated[
        int | None,
        Option("--max-looks", metavar="N", help="With --adaptive: looks per image at most.", show_default="all views"),
    ] = None,
    reviewed: Annotated[
        str | None,
        Option(
            "--reviewed",
            metavar="FILE|DIR|URL",
            help="Calibrate again from images that people reviewed instead of a run: the data folder or PostgreSQL URL "
            "of secondlook serve, or a CSV file with the columns id and label, together with --policy and --scores.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        Option("--policy", metavar="FILE", help="With --reviewed FILE: the policy that the images were scored with."),
    ] = None,
    scores: Annotated[
        list[str] | None,
        Option(
            "--scores",
            metavar="PATTERN",
            help="With --reviewed FILE: the scores of all new images, such as 'scores/*.parquet'; may be repeated.",
        ),
    ] = None,
    shifts: Annotated[
        bool,
        Option(
            "--shifts",
            help="Also classify corrupted versions of labeled images, and learn to estimate accuracy without labels "
            "when images change.",
        ),
    ] = False,
    images: Annotated[
        int | None,
        Option(
            "--shift-images",
            metavar="N",
            min=ShiftModel.MIN_IMAGES,
            help="With --shifts: number of labeled images to corrupt.",
            show_default=f"{ShiftModel.DEFAULT_IMAGES}",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        Option(
            "--model",
            metavar="SPEC",
            help="With --shifts: classifier of the run, if it is not an ONNX file or now somewhere else.",
        ),
    ] = None,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    predict_from: options.PredictFromOfRun = None,
    top_k: options.TopKOfRun = None,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> None:
    """Choose the threshold above which predictions are accepted, and write a policy file.

    Example: secondlook calibrate --run run/ --risk 0.01 --delta 0.001 --out policy.json
    """
    from secondlook.monitoring import recertify
    from secondlook.report import open_run
    from secondlook.tables import describe_prediction

    _check_origin(run, reviewed, policy, scores)
    learning = {"--shift-images": images, "--model": model or None, "--batch-size": batch_size}
    options.require_partner({**learning, "--device": device if device != "auto" else None}, "--shifts", shifts)
    is_served = reviewed is not None and _is_service(reviewed)
    changes = []
    if reviewed is not None:
        kept = {
            "--coverage": coverage,
            "--method": method,
            "--per-class": per_class,
            "--class-risk": class_risk or None,
            "--adaptive": adaptive,
            "--predict-from": predict_from,
            "--top-k": top_k,
            "--shifts": shifts,
        }
        _refuse(kept, "--reviewed, which keeps that of the policy")
        given: dict[str, Any] = {"risk": risk, "delta": delta, "execution": Execution(progress=printing.progress)}
        if is_served:
            made, used = _calibrate_from_service(reviewed, **given)
            changes = [used]
        else:
            assert policy is not None and scores is not None, "checked before"  # noqa: PT018
            made = recertify(read_policy(policy), scores, reviewed, data=" ".join(scores), **given)
        calibrated, changes = made.policy, [*changes, "", "What changed:", str(made)]
    else:
        settings: dict[str, Any] = {"predict_from": predict_from, "top_k": top_k}
        settings |= _choose_target(risk, DEFAULT_DELTA if delta is None else delta, coverage, method)
        looking = {"tolerance": tolerance, "max_looks": max_looks}
        options.require_partner({"--tolerance": tolerance, "--max-looks": max_looks}, "--adaptive", adaptive)
        if adaptive:
            settings |= {"adaptive": True} | {name: value for name, value in looking.items() if value is not None}
        settings |= _choose_groups(per_class, class_risk, risk, adaptive)
        assert run is not None, "it is given where reviewed images are not"
        opened = open_run(run)
        calibrated = _calibrate_run(opened, settings, printing)
        if shifts:
            execution = Execution(device, batch_size or "auto", progress=printing.progress)
            calibrated = _learn_shifts(
                opened, calibrated, model, images or ShiftModel.DEFAULT_IMAGES, execution, quiet=printing.quiet
            )
            changes = ["", str(calibrated.shifts)]
    try:
        calibrated.save(out, overwrite=overwrite)
        calibrated = Policy.model_validate_json(out.read_bytes())  # with the time when it was made
    except OSError as error:
        raise DecisionError(
            f"the policy cannot be written to {str(out)!r}: {error.strerror}; choose another --out."
        ) from None
    about = [describe_prediction(calibrated.predict_from, calibrated.top_k), *changes]
    swap = f"Next: curl --data-binary @{quote(str(out))} http://127.0.0.1:8000/v1/policy"
    next_step = swap if is_served else _describe_next_step(calibrated, out)
    text = "\n".join([str(calibrated), *about, "", f"Saved in {out}. {next_step}"])
    printing.print(json.loads(calibrated.model_dump_json()), text)


def _check_origin(run: Path | None, reviewed: str | None, policy: Path | None, scores: list[str] | None) -> None:
    """Raise an error unless the images are those of a run or a service, or reviewed ones with policy and scores."""
    if (run is None) == (reviewed is None):
        raise DecisionError("give either --run (labeled images) or --reviewed (reviewed ones), not both or neither.")
    partners = {"--policy": policy, "--scores": scores or None}
    options.require_partner(partners, "--reviewed", reviewed)
    if reviewed is not None and _is_service(reviewed):
        _refuse(partners, "--reviewed of a service, which has it")
    elif reviewed is not None and (policy is None or not scores):
        missing = "--policy" if policy is None else "--scores"
        raise DecisionError(
            f"--reviewed needs {missing}: the policy and all scores of the images that were reviewed, unless it is the "
            "data folder of a service."
        )


def _refuse(given: Mapping[str, object], reason: str) -> None:
    for option, value in given.items():
        if value is not None and value is not False:
            raise DecisionError(f"{option} has no effect with {reason}; omit it.")


def _is_service(reviewed: str) -> bool:
    """Whether reviewed images are those of a service: in its data folder, or in a database."""
    return reviewed.startswith(DATABASES) or reviewed.endswith("/") or Path(reviewed).is_dir()


def _calibrate_from_service(location: str, **options: Any) -> tuple[Any, str]:
    """Return a fresh policy from the reviews of a service, and what it was made from in words."""
    from secondlook.imports import import_extra
    from secondlook.monitoring import recertify

    for package in ("sqlalchemy", "argon2"):
        import_extra(package, feature="calibrating from a service", extra="serve")
    from secondlook.serving import ServiceOptions

    is_url = "://" in location
    service = ServiceOptions(Path(), database=location) if is_url else ServiceOptions(Path(location))
    found = service.read_reviews()
    images = sum(map(len, found.tables))
    others = f"; {found.left_out:,} decided without audits are left out" if found.left_out else ""
    used = f"made from {images:,} images of the service, {len(found.labels):,} of them reviewed{others}"
    return recertify(found.policy, found.tables, found.labels, data=f"service {found.where}", **options), used


def _calibrate_run(run: "Run", settings: dict[str, Any], printing: Printing) -> Policy:
    """Return the policy from the labeled images of a run."""
    from secondlook.diagnosis import SetupWarning
    from secondlook.report import CalibrationWarning
    from secondlook.views import ViewWarning

    with warnings.catch_warnings():
        if printing.quiet:  # the run and the policy have them, too
            for category in (CalibrationWarning, SetupWarning, ViewWarning):
                warnings.simplefilter("ignore", category)
        if "coverage" in settings:
            return run.threshold_for(**settings, progress=printing.progress)
        return run.certify(**settings, progress=printing.progress)


def _learn_shifts(
    run: "Run", policy: Policy, model: list[str] | None, images: int, execution: Execution, *, quiet: bool
) -> Policy:
    """Return a policy that has also learned from corrupted images; say before what it takes."""
    from secondlook.monitoring import count_looks

    if not quiet:
        used = min(images, run.record.data.images)
        typer.echo(
            f"Classifying corrupted versions of {used:,} images to learn from: {count_looks(policy, used):,} looks, "
            f"kept in {run.path / run.SHIFTS}.",
            err=True,
        )
    return run.learn_shifts(policy, model or None, n_images=images, execution=execution)


def _choose_target(risk: float | None, delta: float, coverage: float | None, method: str | None) -> dict[str, Any]:
    """Return the arguments of what the threshold is chosen for, and by which methods."""
    methods = None if method is None else split_methods(method)
    if (risk is None) == (coverage is None):
        raise DecisionError("give either --risk (with a guarantee) or --coverage (without one), not both or neither.")
    if coverage is None:
        return {"method": methods, "risk": risk, "delta": delta}
    if methods is not None and len(methods) > 1:
        raise DecisionError(f"--coverage needs one --method, got {method!r}; the best of several needs --risk.")
    return {"method": methods[0] if methods else None, "coverage": coverage}


def _choose_groups(per_class: bool, class_risk: list[str] | None, risk: float | None, adaptive: bool) -> dict[str, Any]:
    """Return the arguments of a threshold for each class, if any."""
    options.require_partner({"--per-class": per_class}, "--risk", risk is not None)
    options.require_partner({"--class-risk": class_risk or None}, "--per-class", per_class)
    if per_class and adaptive:
        raise DecisionError(
            "--adaptive looks at an image until one threshold decides, and --per-class has several; omit one of them."
        )
    if not class_risk:
        return {"groups": "class"} if per_class else {}
    return {"groups": "class", "risk": {"*": risk, **parse_class_risks(class_risk)}}


def _describe_next_step(policy: Policy, path: Path) -> str:
    """Return the command that scores new images; it names the models that a policy does not load by itself."""
    from secondlook.classifiers import MODELS
    from secondlook.decisions import can_load_classifier

    specs = [] if can_load_classifier(policy) else policy.known_classifier.name.split(MEMBER_SEPARATOR)
    if any(spec.partition(":")[0] not in MODELS for spec in specs):
        return f"Next, in Python: secondlook.score({str(path)!r}, 'folder:new/', 'scores.parquet', classifier=...)"
    models = "".join(f" --model {quote(spec)}" for spec in specs)
    return f"Next: secondlook score --policy {quote(str(path))}{models} --data folder:new/ --out scores.parquet"


def parse_class_risks(texts: list[str]) -> dict[str, float]:
    """Return the risks of classes by name, given as NAME=RISK."""
    risks: dict[str, float] = {}
    for text in texts:
        name, separator, value = text.rpartition("=")
        try:
            risk = float(value)
        except ValueError:
            risk = math.nan
        if not separator or not 0 < risk < 1:
            raise DecisionError(
                f"--class-risk {text!r} is not NAME=RISK with a risk between 0 and 1, such as 'cat=0.05'."
            )
        if name in risks:
            raise DecisionError(f"--class-risk gives {name!r} a risk twice; give each class one.")
        risks[name] = risk
    return risks


def split_methods(text: str) -> list[str]:
    """Split 'mean,view:shift:1,0' into methods; a number after a comma belongs to the view before it."""
    return re.split(r"[,\s]\s*(?=[a-z])", text.strip())
