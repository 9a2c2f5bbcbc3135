"""`secondlook demo`: from a model to decisions, with a small included network and the digits of scikit-learn."""

import csv
import filecmp
import os
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Annotated

import numpy as np
import typer
from pydantic import ValidationError
from typer import Option

from secondlook.arrays import Array, IntArray
from secondlook.cli import options
from secondlook.decisions import Review
from secondlook.errors import ReportError, SecondLookError
from secondlook.estimators import confidence
from secondlook.files import write_bytes_atomically
from secondlook.policies import Policy, certify_confidence, read_policy
from secondlook.tables import format_image_share, format_rate

TRAINING_IMAGES = 200
"""Few, so that the network makes enough errors."""
RISK, DELTA = 0.02, 0.05
"""The guaranteed error rate among accepted digits, and the failure probability."""
MODEL = Path(__file__).parent / "demo_data" / "digits.onnx"
_OUTPUTS = ("labeled.npz", "new.npz", "run", "policy.json", "scores.csv", "rejected")

OPENING = f"""\
A small network reads handwritten digits. It was trained on only {TRAINING_IMAGES}, so it makes mistakes.
Which of its predictions can be trusted?
"""
CLOSING = """
Tables and plots: {report}
Output of each command: {command} demo --verbose

The same with your own model and images:

  {command} evaluate --model onnx:model.onnx --data folder:val/ --out run/
  {command} calibrate --run run/ --risk 0.01 --delta 0.001 --out policy.json
  {command} score --policy policy.json --data folder:new/ --out scores.parquet
"""


def demo(
    out: Annotated[Path, Option("--out", "-o", metavar="DIR", help="Folder for the files of the demo.")] = Path("demo"),
    serve: Annotated[bool, Option("--serve", help="Also serve decisions, and open the page to review images.")] = False,
    port: Annotated[int, Option(min=0, max=65535, help=f"{options.PORT_HELP} Needs --serve.")] = 8000,
    verbose: Annotated[bool, Option("--verbose", help=options.VERBOSE_HELP)] = False,
    quiet: options.Quiet = False,
) -> None:
    """Run all steps on handwritten digits; no data and no model needed.

    Example: secondlook demo
    """
    from secondlook.cli.app import app

    policy = out / "policy.json"
    earlier = policy.read_bytes() if serve and policy.is_file() else None
    _clear_demo(out)
    write_digits(out)
    if not quiet:
        typer.echo(OPENING)
    for arguments in commands(out):
        if not quiet:
            typer.echo("\n" * verbose + f"$ secondlook {shlex.join(arguments)}")
        # Replace the files of an earlier demo.
        more = ["--force"] * (arguments[0] in ("calibrate", "score")) + ["--quiet"] * (quiet or not verbose)
        app([*arguments, *more], prog_name="secondlook", standalone_mode=False)
    if not quiet:
        typer.echo("\n" + "\n".join(f"{number}. {line}" for number, line in enumerate(describe_outcome(out), 1)))
    if serve:
        # Keep an equivalent earlier policy, so that the service shows its earlier decisions.
        with suppress(ValidationError):
            if earlier is not None and read_policy(policy).decides_like(Policy.model_validate_json(earlier)):
                write_bytes_atomically(policy, earlier)
        serve_digits(out, port)
    elif not quiet:
        typer.echo(CLOSING.format(command=find_command(), report=out / "run" / "report.html"))


def describe_outcome(out: Path) -> list[str]:
    """Describe the outcome for the new digits, using their true labels, which the commands do not see."""
    from secondlook.report import open_run

    run, labels = open_run(out / "run"), digit_images()[1][split_unseen()[1]]
    with (out / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    accept = np.array([row["accept"] == "true" for row in rows])
    wrong = np.array([int(row["label"]) for row in rows]) != labels
    accepted, missed, n_errors = int(accept.sum()), int((accept & wrong).sum()), int(wrong.sum())
    # From arrays, because the ledger records calibrations on stored predictions. The first look is 'msr'.
    judged = run.predictions.select(images=np.delete(np.arange(run.predictions.n_images), run.tuning_positions))
    alone = certify_confidence(judged.correct(), confidence(judged, "msr"), risk=RISK, delta=DELTA)
    n_alone = int((np.array([float(row["first_look"]) for row in rows]) >= alone.threshold).sum())
    known, choice = run.evaluation["msr", "auroc"], run.record.view_choice
    examples = "" if choice is None else f" ({'; '.join(choice.describe_views()[::3])})"
    error_rate = format_image_share(known.errors / known.images, known.images)
    risk, level = format_rate(RISK), format_rate(1 - DELTA)
    return [
        f"The network is wrong on {known.errors} of {known.images} labeled digits ({error_rate}).",
        f"A second look shows it {len(run.record.views) - 1} versions of each digit{examples}.",
        f"A threshold is chosen on the labeled digits: at most {risk} of the accepted digits may be wrong.",
        f"Of {len(rows)} new digits, {accepted} are accepted. {len(rows) - accepted} go to a person, "
        f"with {n_errors - missed} of the {n_errors} errors.",
        f"The true labels show: of {accepted} accepted new digits, {missed} were wrong "
        f"({format_image_share(missed / accepted, accepted)}; guaranteed: at most {risk}, with {level} confidence).",
        f"Without a second look, {n_alone} could have been accepted with the same guarantee.",
    ]


def serve_digits(out: Path, port: int) -> None:
    """Serve the policy of the demo, send it the new digits in the background, and open the review page."""
    from secondlook.cli.serve import start

    def show(url: str) -> None:
        typer.echo(
            f"\nServing at {url}. The demo now sends the new digits.\n\n"
            f"  Review doubtful digits: {url}/review\n  Dashboard: {url}/\n  API: {url}/openapi.json\n\n"
            "Stop with Ctrl-C."
        )
        Thread(target=_send_digits, args=(out / "new.npz", url), daemon=True).start()
        typer.launch(f"{url}/review")

    settings = {"data_dir": out / "service", "port": port, "audit": 0.05}
    start(out / "policy.json", settings, ready=show, quiet=True)


def _send_digits(archive: Path, url: str) -> None:
    """Send the images of an archive to a service; restarting the demo sends the same ids."""
    from secondlook.serving import Client

    with suppress(SecondLookError), Client(url) as client:  # the service may be stopped before all are sent
        for number, image in enumerate(np.load(archive)["images"]):
            client.decide(image, id=f"digit-{number:04d}")


def find_command() -> str:
    """Return the command of this installation: its name, or its path if the shell does not find the name."""
    found, typed = shutil.which("secondlook"), sys.argv[0]
    is_found = found is not None and Path(found).resolve() == Path(typed).resolve()
    return "secondlook" if is_found else shlex.quote(typed)


def commands(out: Path) -> list[list[str]]:
    """Return the four commands of the demo."""
    run, policy = f"{out}/run", f"{out}/policy.json"
    scores = ["--out", f"{out}/scores.csv", "--rejected", f"{out}/rejected"]
    return [
        ["evaluate", "--model", f"onnx:{out}/{MODEL.name}", "--data", f"npz:{out}/labeled.npz", "--out", run],
        ["calibrate", "--run", run, "--risk", f"{RISK:g}", "--delta", f"{DELTA:g}", "--out", policy],
        ["score", "--policy", policy, "--data", f"npz:{out}/new.npz", *scores],
        ["report", run],
    ]


def _clear_demo(out: Path) -> None:
    """Remove the rejected images of an earlier demo; raise an error for files that the demo did not write."""
    model, listed = out / MODEL.name, out / "rejected" / Review.LIST
    if not (model.is_file() and filecmp.cmp(model, MODEL, shallow=False)):
        for path in (model, *(out / name for name in _OUTPUTS)):
            if os.path.lexists(path):
                raise ReportError(f"{str(path)!r} was not written by the demo; move it or choose another --out.")
    elif listed.is_file():  # other files are kept, and `score` raises an error for them
        with listed.open(newline="", encoding="utf-8") as file:
            paths = [*(listed.parent / row["file"] for row in csv.DictReader(file)), listed]
        for path in paths:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()


def write_digits(out: Path) -> None:
    """Write the network, and the digits outside its training set as two archives: labeled and new digits."""
    images, labels = digit_images()
    labeled, new = split_unseen()
    names = np.array([str(digit) for digit in range(10)])
    out.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(out / MODEL.name, MODEL.read_bytes())  # first: it marks the folder of a demo
    np.savez(out / "labeled.npz", images=images[labeled], labels=labels[labeled], class_names=names)
    np.savez(out / "new.npz", images=images[new], class_names=names)


def digit_images() -> tuple[Array, IntArray]:
    """Return the digits of scikit-learn, enlarged from 8x8, and their labels. uint8 [1797, 16, 16, 1], int64 [1797]"""
    import cv2
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    large = [cv2.resize(image, (16, 16), interpolation=cv2.INTER_CUBIC) for image in small]
    return np.stack(large)[..., None], digits.target.astype(np.int64)


def split_digits() -> tuple[IntArray, IntArray]:
    """Return the indices of the training images and of all others. int64 [200], [1597]"""
    order = shuffle_digits()
    return order[:TRAINING_IMAGES], np.sort(order[TRAINING_IMAGES:])


def split_unseen() -> tuple[IntArray, IntArray]:
    """Return the indices of the labeled and of the new images, both in random order. int64 [798], [799]

    scikit-learn sorts the digits by writer; in that order, a monitor rightly raises an alarm at a new writer.
    """
    unseen = shuffle_digits()[TRAINING_IMAGES:]
    return unseen[: len(unseen) // 2], unseen[len(unseen) // 2 :]


def shuffle_digits() -> IntArray:
    """Return the indices of all digits in random order, the same for all splits. int64 [1797]"""
    return np.random.default_rng(0).permutation(1797)
