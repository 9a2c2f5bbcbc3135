"""Short forms of the stress tests; `make stress` runs the long ones."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.posix
Row = dict[str, str]

JOBS = ["collect", "evaluate", "calibrate", "score", "score for review", "score adaptively", "report"]


def run_stress(out: Path, *words: str) -> list[Row]:
    command = [sys.executable, "-m", "stress", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (out / "stress.csv").is_file(), done.stdout + done.stderr
    with (out / "stress.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert done.returncode == any(row.get("failures", "0") not in ("", "0") for row in rows), done.stdout + done.stderr
    return rows


def total(rows: list[Row], *columns: str) -> int:
    return sum(int(row[column]) for row in rows for column in columns)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return run_stress(tmp_path_factory.mktemp("faults"), "kills", "errors", "--count", "20")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return run_stress(tmp_path_factory.mktemp("files"), "inputs", "bits", "forged", "--count", "208")


@pytest.mark.parametrize("test", ["kills", "errors"])
def test_jobs_with_faults_end_with_the_same_bytes(faults: list[Row], test: str) -> None:
    rows = [row for row in faults if row["test"] == test]
    assert [row["case"] for row in rows] == JOBS
    assert total(rows, "faults") >= 18
    assert total(rows, "wrong_files", "leftovers", "bad_endings", "failed_reruns") == 0


@pytest.mark.parametrize(
    ("test", "least", "forbidden"),
    [
        ("mutated inputs", (150, 50), ("raised", "crash", "hang", "failures")),
        ("bit flips", (100, 0), ("another_result", "failures")),
        ("forged records", (200, 50), ("raised", "crash", "hang", "failures")),
    ],
)
def test_changed_files_are_refused_or_valid(
    files: list[Row], test: str, least: tuple[int, int], forbidden: tuple[str, ...]
) -> None:
    rows = [row for row in files if row["test"] == test]
    assert total(rows, "inputs") > least[0]
    assert not least[1] or total(rows, "refused") > least[1]
    assert total(rows, *forbidden) == 0
    if test == "forged records":
        kinds = {"policy", "adaptive policy", "run record", "evaluation", "ledger", "manifest"}
        assert {row["case"] for row in rows} >= kinds
        many = [row for row in rows if int(row["inputs"]) > 20]
        assert all(int(row["refused"]) < int(row["inputs"]) for row in many), "some are valid"


def test_guarantees_hold_in_simulated_worlds(tmp_path: Path) -> None:
    rows = run_stress(tmp_path, "calibrations", "--count", "150")
    assert len(rows) == 17
    assert all(int(row["broken"]) <= int(row["allowed_by_chance"]) for row in rows)


def test_peak_memory_is_bounded(tmp_path: Path) -> None:
    rows = run_stress(tmp_path, "memory", "--count", "50", "--case", "evaluate", "--case", "calibrate")
    assert [row["case"] for row in rows] == ["evaluate", "calibrate"]
    assert all(50 < int(row["megabytes_at_10x"]) < 1024 for row in rows)
