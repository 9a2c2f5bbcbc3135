"""`secondlook label`: a policy from unlabeled images, by asking for labels from the most confident image down."""

import json
import socket
import warnings
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic_core import from_json
from typer import Option

from secondlook.classifiers import Classifier
from secondlook.cli import options
from secondlook.cli.calibrate import describe_next_step
from secondlook.cli.options import LocalExecution, ModelOptions, Printing
from secondlook.decisions import LabelStudio, ReviewImage
from secondlook.errors import DecisionError, Repair, SecondLookError
from secondlook.files import read_regular_file, write_bytes_atomically
from secondlook.imports import import_extra
from secondlook.policies import DEFAULT_DELTA, LabelingPlan, LabelingProgress, Policy, read_policy
from secondlook.predictions import ClassifierRecord, Execution, Predictions, read_first_image
from secondlook.sources import OnError, Source, open_source
from secondlook.tables import format_csv_row
from secondlook.views import AUTO

if TYPE_CHECKING:
    from secondlook.serving import ServiceOptions

SETTINGS = "settings.json"
HOST, PORT = "127.0.0.1", 8000
SMALLEST_FILE = 100
"""Minimum number of images in a file of next images, to need few files."""


def label(
    *,
    model: ModelOptions,
    data: options.Data,
    risk: Annotated[float, Option(help=options.RISK_HELP)],
    delta: Annotated[float, Option(help=options.DELTA_HELP)] = DEFAULT_DELTA,
    out: Annotated[Path, Option(metavar="FILE", help="Policy file to write.")] = Path("policy.json"),
    views: options.Views = AUTO,
    method: options.ThresholdMethod = None,
    max_labels: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Maximum number of labels to ask for.",
            show_default="three times the number needed without errors",
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        Option(
            metavar="DIR", help="Folder for the labels and the predictions.", show_default="--out with suffix .labels"
        ),
    ] = None,
    labels: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help="Labels made elsewhere: a CSV file with the columns id and label, or a Label Studio export; may be "
            "repeated.",
        ),
    ] = None,
    next_: Annotated[
        Path | None,
        Option(
            "--next",
            metavar="FILE",
            help="Write the next images to label to this file instead of opening a page: .csv, or .json for Label "
            "Studio.",
        ),
    ] = None,
    host: Annotated[str, Option(help=options.HOST_HELP)] = HOST,
    port: Annotated[
        int | None, Option(min=0, max=65535, help=options.PORT_HELP, show_default=f"{PORT}, or a free one")
    ] = None,
    open_: Annotated[bool, Option("--open/--no-open", help="Open the page in the browser.")] = True,
    predict_from: options.PredictFromOption = None,
    top_k: options.TopK = None,
    seed: options.Seed = 0,
    execution: LocalExecution,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> None:
    """Ask for the labels that a guarantee needs, the most confident image first, and write a policy file.

    A page shows the images to label, and the guarantee after every label. Labeling ends when more labels would not
    help. An interrupted job resumes when run again. The exit code is 1 if nothing can be guaranteed.

    Example: secondlook label --model onnx:m.onnx --data folder:pool/ --risk 0.01 --out policy.json
    """
    if next_ is not None:
        elsewhere = None if host == HOST else host
        options.refuse({"--host": elsewhere, "--port": port, "--no-open": not open_}, "with --next")
        _check_new(next_, overwrite)
    else:
        for package in ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client", "argon2", "python_multipart"):
            import_extra(package, feature="the page to label images", extra="serve")
    terms: dict[str, Any] = {"risk": risk, "delta": delta, "max_labels": max_labels, "seed": seed}
    terms |= {"method": method, "predict_from": predict_from or "image", "top_k": top_k or 1}
    execute = execution.make(printing.progress)
    task = LabelingJob.open(model.load().on_device(execute.device), data, views, terms, execute.on_error)
    folder = work_dir or out.with_suffix(".labels")
    uses_labels = next_ is None or bool(labels)
    if uses_labels:
        task.check_folder(folder)
    file = PolicyFile.open(out, task, overwrite=overwrite)
    plan, preds = task.make_plan(folder / "predictions", execute)
    names = preds.class_names or tuple(map(str, range(preds.n_classes)))
    given = _read_labels(labels or [], names)
    if uses_labels:
        task.write_settings(folder)
    if next_ is None:
        _open_page(
            _make_service_options(folder, host, port),
            given,
            is_opened=open_,
            quiet=printing.quiet,
            plan=plan,
            preds=preds,
            source=task.source,
            classifier=task.classifier,
            save=lambda: file.update(plan),
            where=f"The policy is in {out}.",
        )
        resume = f"Labels are saved in {folder}; run the same command to resume."
    else:
        plan.add({id_: None if label < 0 else label for id_, label in given.items()})  # other reviews count as wrong
        written = _write_next(next_, plan, preds, task.source, names)
        resume = f"Written: {next_} with {written:,} images to label, most confident first."
    policy, progress = file.update(plan), plan.progress
    lines = [str(progress) if policy is None or not progress.finished else str(policy)]
    lines += [] if policy is None else [f"Saved in {out}. {describe_next_step(policy, out)}"]
    lines += [] if progress.finished else [resume]
    printing.print(_describe(progress, policy), "\n".join(lines))
    if progress.finished and policy is None:
        raise typer.Exit(1)


def _describe(progress: LabelingProgress, policy: Policy | None) -> dict[str, Any]:
    """Return the progress and the policy as JSON values."""
    content = {**vars(progress), "guarantee": progress.guarantee.model_dump(), "coverage": progress.coverage}
    content["finished"] = progress.finished
    return {"progress": content, "policy": None if policy is None else json.loads(policy.model_dump_json())}


@dataclass(frozen=True)
class LabelingJob:
    """The images and settings of a labeling plan. Labels continue a plan only with the same settings."""

    classifier: Classifier
    source: Source
    views: str
    terms: dict[str, Any]

    @classmethod
    def open(
        cls, classifier: Classifier, data: str, views: str, terms: dict[str, Any], on_error: OnError | None
    ) -> "LabelingJob":
        """Open the images without their labels; class names are kept if they fit the classifier."""
        source = open_source(data, on_error=on_error)
        unlabeled, names = source.without_labels(), classifier.class_names or source.class_names
        if names is not None and classifier(read_first_image(classifier, source)[None]).shape[1] == len(names):
            unlabeled.class_names = names
        return cls(classifier, unlabeled, views, terms)

    def make_plan(self, store: Path, execution: Execution) -> tuple[LabelingPlan, Predictions]:
        """Classify the images that are not in the store, and return the plan without labels."""
        from secondlook.diagnosis import collect_views

        preds, tuning, choice = collect_views(
            self.classifier, self.source, self.views, top_k=self.terms["top_k"], store=store, execution=execution
        )
        copies = [self.source.ids[index] for index in self.source.find_duplicates()]
        return LabelingPlan(preds, **self.terms, duplicates=copies, tuning=None if choice is None else tuning), preds

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values, by option name."""
        model = ClassifierRecord.describe(self.classifier).model_dump(mode="json", exclude={"name"})
        return {"model": model, "data": self.source.digest, "views": self.views, **self.terms}

    def write_settings(self, folder: Path) -> None:
        """Write the settings into the folder of the labels."""
        write_bytes_atomically(folder / SETTINGS, json.dumps(self.settings, indent=2).encode() + b"\n")

    def check_folder(self, folder: Path) -> None:
        """Raise an error if the labels of a folder belong to other settings."""
        path, settings = folder / SETTINGS, self.settings
        if not path.exists():
            return
        try:
            known = from_json(read_regular_file(path))
            changed = [name for name, value in settings.items() if known[name] != value]
        except (OSError, ValueError, LookupError, TypeError):
            raise DecisionError(f"{str(path)!r} cannot be read; choose another --work-dir.") from None
        for name in changed:
            values = "" if name in ("model", "data") else f" ({known[name]}, now {settings[name]})"
            fault = f"the labels in {str(folder)!r} belong to another --{name.replace('_', '-')}{values}"
            raise DecisionError(f"{fault}; pass the same value, or choose another --work-dir.")


@dataclass
class PolicyFile:
    """The policy file. It always contains the policy certified by the labels; without one, it does not exist."""

    path: Path
    is_own: bool
    """Whether the file belongs to this plan, or does not exist."""

    @classmethod
    def open(cls, path: Path, task: LabelingJob, *, overwrite: bool) -> "PolicyFile":
        """Return the file; raise if it belongs to something else and must not be replaced."""
        if path.is_dir():
            raise DecisionError(f"{str(path)!r} is a folder; choose a file for --out.")
        is_own = not path.exists()
        with suppress(SecondLookError), warnings.catch_warnings(action="ignore"):
            found = read_policy(path)
            guarantee, counts = found.guarantee, found.calibration
            if guarantee and counts and counts.labels is not None and counts.digest == task.source.digest:
                is_same = (guarantee.risk, guarantee.delta) == (task.terms["risk"], task.terms["delta"])
                is_own = is_same and found.find_mismatch(task.classifier) is None
        if not is_own and not overwrite:
            repair = Repair("pass {overwrite} to replace it, or choose another name", overwrite=True)
            raise DecisionError(f"{str(path)!r} is not a policy for these images and this risk", repair=repair)
        return cls(path, is_own)

    def update(self, plan: LabelingPlan) -> Policy | None:
        """Save and return the policy certified by the labels; None if they certify none, for example after an undo."""
        if plan.progress.accepted:
            plan.policy.save(self.path, overwrite=True)
            self.is_own = True
            return read_policy(self.path)  # includes the time of creation
        if self.is_own:
            self.path.unlink(missing_ok=True)
        return None


def _read_labels(files: list[Path], class_names: tuple[str, ...]) -> dict[str, int]:
    """Return the labels of several files by id, which must agree."""
    from secondlook.serving import ServiceOptions

    labels: dict[str, int] = {}
    for path in files:
        for id_, label in ServiceOptions.read_labels(path, class_names).items():
            if labels.setdefault(id_, label) != label:
                fault = f"image {id_!r} has a different label in {str(path)!r} than in an earlier file"
                raise DecisionError(f"{fault}; keep the correct one.")
    return labels


def _make_service_options(folder: Path, host: str, port: int | None) -> "ServiceOptions":
    """Return the options of the page. The port is the same each time if it is free, so an open page continues."""
    from secondlook.serving import ServiceOptions

    if port is None:
        try:
            socket.create_server((host, PORT)).close()
            port = PORT
        except OSError:
            port = 0
    return ServiceOptions(folder, host=host, port=port)


def _open_page(service: "ServiceOptions", labels: dict[str, int], *, is_opened: bool, quiet: bool, **task: Any) -> None:
    """Serve the review page until labeling is finished or interrupted."""

    def announce(url: str) -> None:
        if not quiet:
            text = "Labels are saved at once. Stop with Ctrl-C; the same command resumes."
            typer.echo(f"Label images at {url}/review. {text}", err=True)
        if is_opened:  # a browser of the terminal would block the page
            Thread(target=webbrowser.open, args=(f"{url}/review",), daemon=True).start()

    service.serve_labeling(labels, announce, **task)


def _check_new(path: Path, overwrite: bool) -> None:
    """Raise an error for an existing file, which may contain labels."""
    if path.suffix.lower() not in (".csv", ".json"):
        raise DecisionError(f"--next {str(path)!r} is neither a .csv nor a .json file; choose another name.")
    if path.exists() and not overwrite:
        repair = Repair("pass {overwrite} to replace it, or choose another name", overwrite=True)
        raise DecisionError(f"{str(path)!r} exists, perhaps with labels", repair=repair)


def _write_next(path: Path, plan: LabelingPlan, preds: Predictions, source: Source, names: tuple[str, ...]) -> int:
    """Write the images of the next step, or more, and return their number."""
    ids = plan.next_ids(max(plan.progress.next_step or 0, SMALLEST_FILE))
    images = _describe_images(ids, plan, preds, source, names) if ids else []
    if path.suffix.lower() == ".csv":
        rows: list[tuple[object, ...]] = [("id", "label", "file", "predicted", "confidence")]
        for image in images:
            file = source.find_path(image.position) or ""
            rows.append((image.id, "", str(file), image.class_name, image.confidence))
        write_bytes_atomically(path, "".join(map(format_csv_row, rows)).encode())
    else:
        LabelStudio.write_blind(path, images, source, names)
    return len(ids)


def _describe_images(
    ids: tuple[str, ...], plan: LabelingPlan, preds: Predictions, source: Source, names: tuple[str, ...]
) -> list[ReviewImage]:
    positions = {id_: position for position, id_ in enumerate(preds.ids)}
    indices = {id_: index for index, id_ in enumerate(source.ids)}
    chosen = preds.select(images=[positions[id_] for id_ in ids])
    settings = plan.settings
    predicted = chosen.predicted(settings.predict_from, settings.top_k).reshape(len(ids), -1)[:, 0].tolist()
    images = []
    for id_, one, confidence in zip(ids, predicted, settings.confidence(chosen).tolist(), strict=True):
        images.append(ReviewImage(indices[id_], id_, one, names[one], "", confidence, None, accept=False))
    return images
