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


def test_mutated_inputs_are_refused_or_valid(files: list[Row]) -> None:
    rows = [row for row in files if row["test"] == "mutated inputs"]
    assert total(rows, "inputs") > 150
    assert total(rows, "refused") > 50
    assert total(rows, "raised", "crash", "hang", "failures") == 0


def test_bit_flips_are_noticed(files: list[Row]) -> None:
    rows = [row for row in files if row["test"] == "bit flips"]
    assert total(rows, "inputs") > 100
    assert total(rows, "another_result", "failures") == 0


def test_forged_records_are_refused_or_valid(files: list[Row]) -> None:
    rows = [row for row in files if row["test"] == "forged records"]
    assert {row["case"] for row in rows} >= {
        "policy",
        "adaptive policy",
        "run record",
        "evaluation",
        "ledger",
        "manifest",
    }
    assert total(rows, "inputs") > 200
    assert total(rows, "refused") > 50
    assert all(int(row["refused"]) < int(row["inputs"]) for row in rows if int(row["inputs"]) > 20), "some are valid"
    assert total(rows, "raised", "crash", "hang", "failures") == 0


def test_guarantees_hold_in_simulated_worlds(tmp_path: Path) -> None:
    rows = run_stress(tmp_path, "calibrations", "--count", "150")
    assert len(rows) == 15
    assert all(int(row["broken"]) <= int(row["allowed_by_chance"]) for row in rows)


def test_peak_memory_is_bounded(tmp_path: Path) -> None:
    rows = run_stress(tmp_path, "memory", "--count", "50", "--case", "evaluate", "--case", "calibrate")
    assert [row["case"] for row in rows] == ["evaluate", "calibrate"]
    assert all(50 < int(row["megabytes_at_10x"]) < 1024 for row in rows)
