"""Shared by the benchmarks: options, timing, peak memory, CIFAR-10 inputs, and results with their circumstances."""

import argparse
import csv
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from secondlook.classifiers import Classifier, load_classifier

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for the classifiers and splits of `reproduction`
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("secondlook", "numpy", "onnxruntime", "opencv-python-headless", "pyarrow")

CIFAR10 = ROOT.parent / "shared" / "cifar10"
"""Folder with test.npz and the ONNX models; benchmarks that need it are skipped without it."""
CIFAR10_MEAN, CIFAR10_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Row = dict[str, object]
"""One row of a CSV file of results. Do not rename columns and jobs, to keep results comparable."""


def create_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the common option of all benchmarks: the folder for the results."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results (default: %(default)s)")
    return parser


def load_cifar10_classifier(path: Path) -> Classifier:
    """Load a CIFAR-10 classifier, an ONNX file without normalization."""
    return load_classifier(f"onnx:{path}", output="logits", mean=CIFAR10_MEAN, std=CIFAR10_STD)


# --- Time and memory ---


def time_rounds(*jobs: Callable[[], object], rounds: int) -> list[list[float]]:
    """Return the seconds of each job in each round.

    The jobs alternate within a round, so that a busy moment of a shared machine affects all of them.
    """
    seconds: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds):
        for job, times in zip(jobs, seconds, strict=True):
            start = time.perf_counter()
            job()
            times.append(time.perf_counter() - start)
    return seconds


def peak_memory_bytes() -> int:
    """Return the peak memory of this process.

    On Linux `getrusage` of a new process starts with the peak of its parent; the status file does not.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        (line,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# --- Results ---


def make_row(what: str, measure: str, value: float, target: str = "", *, seed: int = 0) -> Row:
    """Return a row of results with one value."""
    return {"what": what, "measure": measure, "value": round(value, 4), "target": target, "seed": seed}


def print_table(rows: list[Row], title: str) -> None:
    """Print rows of `make_row` as a table."""
    from rich.console import Console
    from rich.table import Table

    columns = ("what", "measure", "value", "target")
    table = Table(*columns, title=f"{title}, {os.cpu_count()} cores")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns))
    Console().print(table)


def write_results(path: Path, rows: list[Row], packages: tuple[str, ...] = PACKAGES) -> None:
    """Write rows as CSV, each with its random seed, machine, cores, versions of `packages`, commit and date.

    Rows of an earlier run keep theirs.
    """
    circumstances = _describe_circumstances(packages)
    described = [{**row, "seed": row.get("seed", "none"), **circumstances, **row} for row in rows]
    columns = list(dict.fromkeys(name for row in described for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(described)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of an earlier run, if any."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file)]


def _describe_circumstances(packages: tuple[str, ...]) -> Row:
    """Return flat columns; `reproduction/result_files.py` has its own nested layout for JSON and other packages."""
    return {
        "machine": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": _versions(packages),
        "commit": _commit(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions(packages: tuple[str, ...]) -> str:
    versions = [f"python {platform.python_version()}"]
    for package in packages:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return "; ".join(versions)


def _commit() -> str:
    commit = _run_git("rev-parse", "HEAD")
    return f"{commit} with changes" if commit and _run_git("status", "--porcelain") else commit or "none"


def _run_git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
