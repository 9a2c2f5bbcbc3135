"""`secondlook demo`: the whole way from a model to a decision, without data, model or network of one's own."""

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from secondlook.cli import options
from secondlook.errors import ReportError

RISK, DELTA = "0.02", "0.05"
ASKED = "asked"
"""The folder of rejected images."""

CLOSING = """
The same with your own model and images:

  secondlook evaluate --model onnx:model.onnx --data folder:val/ --views natural --out run/
  secondlook calibrate --run run/ --risk 0.01 --delta 0.001 --out policy.json
  secondlook score --policy policy.json --data folder:new/ --out scores.parquet
"""


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for what the demo makes.")] = Path(
        "demo"
    ),
    quiet: options.Quiet = False,
) -> None:
    """Show what secondlook does, on real handwritten digits and a small network that ship with it.

    Example: secondlook demo
    """
    from secondlook.cli.app import app

    _remove_asked_of_earlier_demo(out / ASKED)
    write_digits(out)
    if not quiet:
        typer.echo(
            "A small network, trained on 200 handwritten digits, reads 1,597 others. When is it wrong?\n"
            "The first half of these has labels; the other half stands for new images."
        )
    for arguments in commands(out):
        if not quiet:
            typer.echo(f"\n$ secondlook {shlex.join(arguments)}")
        app([*arguments, *(["--quiet"] if quiet else [])], prog_name="secondlook", standalone_mode=False)
    if not quiet:
        typer.echo(CLOSING)


def commands(out: Path) -> list[list[str]]:
    """Return the four commands of the demo."""
    model = Path(__file__).parent / "demo_data" / "digits.onnx"
    run, policy = f"{out}/run", f"{out}/policy.json"
    return [
        ["evaluate", *_options(model=f"onnx:{model}", data=f"npz:{out}/labeled.npz", views="digits", out=run)],
        ["calibrate", *_options(run=run, risk=RISK, delta=DELTA, out=policy)],
        [
            "score",
            *_options(policy=policy, data=f"npz:{out}/new.npz", out=f"{out}/scores.csv", rejected=f"{out}/{ASKED}"),
        ],
        ["report", run],
    ]


def _remove_asked_of_earlier_demo(folder: Path) -> None:
    """Make room for rejected images, which are not written among other files; what is no such folder stays."""
    from secondlook.scoring import REJECTED_LIST

    if (folder / REJECTED_LIST).is_file():
        shutil.rmtree(folder)
    elif folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ReportError(
            f"the demo puts rejected images into {str(folder)!r}, but what is there is of no earlier demo: it has no "
            f"{REJECTED_LIST}; move it away or choose another --out."
        )


def _options(**values: str) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def write_digits(out: Path) -> None:
    """Write the digits that the network never saw as two archives: labeled ones, and new ones without labels."""
    from secondlook.cli.demo_digits import digit_images, seen_and_unseen

    images, labels = digit_images()
    unseen = seen_and_unseen()[1]
    names = np.array([str(digit) for digit in range(10)])
    labeled, new = unseen[: len(unseen) // 2], unseen[len(unseen) // 2 :]
    try:
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / "labeled.npz", images=images[labeled], labels=labels[labeled], class_names=names)
        np.savez(out / "new.npz", images=images[new], class_names=names)
    except OSError as error:
        raise ReportError(f"the demo cannot write to {str(out)!r}: {error.strerror}; choose another --out.") from None
