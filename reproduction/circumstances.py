"""The circumstances of a run: what must stand beside every number that is kept."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import secondlook

PACKAGES = ("numpy", "scipy", "numba", "opencv-python-headless", "onnxruntime", "pyarrow", "matplotlib", "torch")


def circumstances(
    experiment: str,
    commit: str,
    seed: int,
    limit: int | None,
    digests: dict[str, str],
    predictions: dict[str, dict[str, str]],
) -> dict[str, object]:
    """Return machine, versions, commit, seed, date and the digests of data and classifiers, as JSON can hold them.

    `predictions` says under which versions each run in the store was begun: a store may have been filled elsewhere.
    Neither the name of the machine nor any path is in it.
    """
    return {
        "experiment": experiment,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit,
        "seed": seed,
        "limit": limit,
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "secondlook": secondlook.__version__, **_versions()},
        "digests": digests,
        "predictions": predictions,
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit_of_source() -> str:
    """Return the commit of the source tree, marked where it was changed since; 'unknown' outside of one."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy may lie in another tree
        return _git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
