"""A workspace with everything that commands read (a model, images, a run, a policy), and the jobs that write to it."""

import atexit
import importlib
import json
import os
import pickle
import shlex
import shutil
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from secondlook.cli import demo
from secondlook.cli.demo import digit_images, split_digits
from secondlook.errors import SecondLookError
from secondlook.policies import read_policy
from secondlook.predictions import Execution
from stress.events import Fault
from stress.processes import Ended, run_forked, temporary_folder

MODEL = "onnx:model.onnx?threads=1"
VIEWS = "identity hflip shift:1,0"
LABELED_IMAGES, NEW_IMAGES = 60, 40
"""A few chunks each, since a chunk has 16 images here."""

EVALUATE = f"evaluate --model {MODEL} --data npz:labeled.npz --unknown npz:new.npz --views '{VIEWS}' --resamples 5"
EVALUATE += " --method msr --method mean --metric auroc --out"
SCORE = "score --policy policy.json --data npz:new.npz --out"
ADAPTIVE_SCORE = "score --policy adaptive.json --data npz:new.npz --out"


@dataclass(frozen=True)
class Job:
    """Something that reads the workspace and writes new files to it; it ends the process like a command."""

    name: str
    run: Callable[[], object]


def run_command(*words: str) -> None:
    """Run a command line in this process, which it ends."""
    from secondlook.cli import app

    sys.argv = ["secondlook", *words, "--quiet"]
    app.main()


def collect_ensemble() -> None:
    """Collect the predictions of two members; an error is printed as commands do."""
    from secondlook.predictions import collect

    try:
        collect(
            [MODEL, f"{MODEL}&mean=.1"], "npz:labeled.npz", VIEWS, store="store", execution=Execution(progress=False)
        )
    except (SecondLookError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def write_adaptive_policy() -> None:
    """Write a policy with a schedule that leaves some images open after each look; there are too few to fit one."""
    from secondlook.policies import Schedule

    policy = read_policy("policy.json")
    schedule = Schedule(
        views=("identity", "shift:1,0", "hflip"),
        method=policy.method,
        changes=(0.0, 0.0, 0.0),
        spreads=(2.0, 1.0, 0.0),
        margin=1.0,
        tolerance=0.01,
        full_looks=3,
        images=100,
        threshold=policy.threshold,
    )
    assert policy.calibration is not None, "calibrate counts images"
    calibration = policy.calibration.model_copy(
        update={"mean_looks": 1.5, "differing": 1, "differing_bound": 0.1, "differing_delta": 0.05}
    )
    policy.replace(views=schedule.views, schedule=schedule, calibration=calibration).save("adaptive.json")


def _command(line: str) -> Callable[[], None]:
    return lambda: run_command(*shlex.split(line))


JOBS = (
    Job("collect", collect_ensemble),
    Job("evaluate", _command(f"{EVALUATE} second-run")),
    Job("calibrate", _command("calibrate --run run --risk 0.3 --delta 0.3 --out second-policy.json")),
    Job("score", _command(f"{SCORE} scores.csv")),
    Job(
        "score for review",
        _command(
            f"{SCORE} scores.parquet --rejected rejected --per-view "
            "--export label-studio:tasks.json --export fiftyone:labels.json"
        ),
    ),
    Job("score adaptively", _command(f"{ADAPTIVE_SCORE} scores.jsonl --per-view")),
    Job("report", _command("report run")),
)


@cache
def make_workspace() -> Path:
    """Write the inputs, a run and a policy, the same bytes each time; afterwards all modules are imported here.

    The folder is made once, and removed at the end of the process.
    """
    temporary = temporary_folder()
    atexit.register(temporary.cleanup)
    folder, trial = Path(temporary.name) / "workspace", Path(temporary.name) / "trial"
    _write_inputs(folder)
    _run_checked(folder, _command(f"{EVALUATE} run"))
    for policy in ("--risk 0.3 --delta 0.2 --out certified.json", "--coverage 0.7 --out policy.json"):
        _run_checked(folder, _command(f"calibrate --run run {policy}"))
    _run_checked(folder, write_adaptive_policy)
    _run_checked(folder, _command("export --policy policy.json --out decide.onnx"))
    for job in JOBS:
        copy_workspace(folder, trial)
        _import_modules_of(trial, job)
    return folder


def copy_workspace(folder: Path, target: Path) -> None:
    """Replace the folder `target` by a copy of the workspace."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)


def read_files(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every file by its path, and None for every folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def run_in(folder: Path, job: Callable[[], object], fault: Fault | None = None) -> Ended:
    """Run a job in a forked process in a folder, with a fault at one of its file-system events."""

    def run() -> None:
        os.chdir(folder)
        make_small_and_repeatable()
        if fault is not None:
            fault.install(folder)
        job()

    return run_forked(run)


def make_small_and_repeatable() -> None:
    """Make chunks small, time constant and plots empty; for forked processes only."""
    from secondlook.policies import policy
    from secondlook.predictions import batching
    from secondlook.report import writer

    now = types.SimpleNamespace(now=lambda _: datetime(2026, 1, 1, tzinfo=UTC))
    batching.CHUNK_BYTES = 16 * 8 * 8  # 16 digits of 8 x 8 pixels
    vars(policy)["datetime"] = types.SimpleNamespace(datetime=now, UTC=UTC)
    vars(writer)["render_plots"] = lambda _: [(f"plot-{number}.png", bytes(5000)) for number in range(3)]


def _write_inputs(folder: Path) -> None:
    """Write the model and images in the formats of sources, all of digits."""
    from scipy.io import savemat

    folder.mkdir(parents=True)
    images, labels = digit_images()
    unseen, names = split_digits()[1], np.array([str(digit) for digit in range(10)])
    first, new = unseen[:LABELED_IMAGES], unseen[LABELED_IMAGES : LABELED_IMAGES + NEW_IMAGES]
    shutil.copy(Path(demo.__file__).parent / "demo_data" / "digits.onnx", folder / "model.onnx")
    np.savez(folder / "labeled.npz", images=images[first], labels=labels[first], class_names=names)
    np.savez_compressed(folder / "new.npz", images=images[new], class_names=names)
    picture = Image.fromarray(images[first[:27], :, :, 0].reshape(48, 48, 3))
    for suffix in ("png", "jpg", "webp", "bmp", "tif"):
        (folder / suffix).mkdir()
        picture.save(folder / suffix / f"photo.{suffix}")
    (folder / "list.csv").write_text("path,label\npng/photo.png,a\njpg/photo.jpg,b\nbmp/photo.bmp,a\n")
    (folder / "indices.txt").write_text("3\n1\n12\n40\n")
    np.save(folder / "indices.npy", np.array([3, 1, 12, 40]))
    (folder / "views.txt").write_text("\n".join(["# chosen", *VIEWS.split(), "rotate:5+hflip", "zoom:1.1", ""]))
    (folder / "settings.toml").write_text(
        '[calibrate]\nrun = "run"\ncoverage = 0.7\nmethod = "mean"\npredict_from = "image"\ntop_k = 1\nquiet = true\n'
    )
    write_responses(folder)
    color = np.repeat(np.pad(images[first[:5]], ((0, 0), (8, 8), (8, 8), (0, 0))), 3, axis=3)
    rows = color.transpose(0, 3, 1, 2).reshape(5, -1)
    (folder / "cifar").mkdir()
    for name in ("test_batch", *(f"data_batch_{number}" for number in range(1, 6))):
        (folder / "cifar" / name).write_bytes(pickle.dumps({b"data": rows, b"labels": [0, 1, 2, 0, 1]}, protocol=2))
    (folder / "cifar" / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a", b"b", b"c"]}, protocol=2))
    (folder / "svhn").mkdir()
    digits = {"X": color.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [2], [3], [4]], dtype=np.uint8)}
    savemat(folder / "svhn" / "test_32x32.mat", digits, do_compression=True)


def write_responses(folder: Path) -> None:
    """Write responses of a server of the Open Inference Protocol: the description of a model, and outputs [2, 10]."""
    tensors = {"name": "x", "datatype": "FP32", "shape": [-1, 1, 16, 16]}, {"name": "y", "datatype": "FP32"}
    bodies = {
        "description": {
            "name": "m",
            "versions": ["1"],
            "inputs": [tensors[0]],
            "outputs": [tensors[1] | {"shape": [-1, 10]}],
        },
        "inference": {"model_name": "m", "outputs": [tensors[1] | {"shape": [2, 10], "data": list(range(20))}]},
    }
    for name, content in bodies.items():
        body = json.dumps(content)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        (folder / f"{name}.http").write_bytes((head + body).encode())


def _run_checked(folder: Path, job: Callable[[], object]) -> None:
    ended = run_in(folder, job)
    if ended.code != 0:
        raise RuntimeError(f"preparing the workspace failed with exit code {ended.code}: {ended.text}")


def _import_modules_of(folder: Path, job: Job) -> None:
    """Import the modules of all jobs before forking processes."""
    listing = folder / "modules.txt"

    def run() -> None:
        try:
            job.run()
        finally:
            listing.write_text("\n".join(sys.modules))

    _run_checked(folder, run)
    for name in listing.read_text().split():
        with suppress(ImportError):
            importlib.import_module(name)
