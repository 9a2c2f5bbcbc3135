"""Results of benchmarks as CSV files, with the circumstances of each number beside it."""

import csv
import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("secondlook", "numpy", "onnxruntime", "opencv-python-headless", "pyarrow", "numba")


def write_results(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as CSV, each with the seed it names, and with machine, cores, versions, commit and date."""
    described = [{**row, "seed": row.get("seed", "none"), **_circumstances()} for row in rows]
    columns = list(dict.fromkeys(name for row in described for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(described)


def _circumstances() -> dict[str, object]:
    return {
        "machine": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": _versions(),
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


def _versions() -> str:
    installed = [f"python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            installed.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return "; ".join(installed)


def _commit() -> str:
    commit = _git("rev-parse", "HEAD")
    return f"{commit} with changes" if commit and _git("status", "--porcelain") else commit or "none"


def _git(*arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
