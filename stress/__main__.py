"""The command line: python -m stress NAME... [--count N] [--seconds S] [--seed N] [--case CASE ...] [--out FOLDER]."""

import argparse
import sys
import time
from pathlib import Path

from measurement import Row, write_results
from stress.crashes import fail_jobs, kill_jobs
from stress.guarantees import calibrate_worlds
from stress.inputs import flip_bits, forge_records, mutate_inputs
from stress.memory import measure_memory
from stress.plan import Plan, Test

TESTS: dict[str, tuple[Test, int]] = {
    # name: the test, and the number of kills, errors, inputs, bits, forged records, calibrations or images by default
    "kills": (kill_jobs, 4000),
    "errors": (fail_jobs, 500),
    "inputs": (mutate_inputs, 52_000),
    "bits": (flip_bits, 4000),
    "forged": (forge_records, 65_000),
    "calibrations": (calibrate_worlds, 60_000),
    "memory": (measure_memory, 2000),
}
SHOWN_FAILURES = 3
"""Maximum number of printed failures per case."""


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", metavar="NAME", nargs="+", choices=[*TESTS, "all"], help=f"{', '.join(TESTS)}, or all")
    parser.add_argument("--count", type=int, help="number of trials (default: that of the test)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="longest time of a test (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--case", action="append", default=[], help="run this case only; may be repeated")
    parser.add_argument("--out", type=Path, help="folder for stress.csv (default: print only)")
    return parser.parse_args()


def main() -> int:
    """Run tests, print a line for each case, write the results, and return 1 if anything failed."""
    options = parse_options()
    rows: list[Row] = []
    failed = 0
    for name in TESTS if "all" in options.names else options.names:
        test, count = TESTS[name]
        start = time.monotonic()
        plan = Plan(options.count or count, options.seconds, options.seed, tuple(options.case))
        for result in test(plan):
            rows.append(result.row)
            failed += len(result.failures)
            print("  ".join(f"{key}={value}" for key, value in result.row.items()), flush=True)
            for failure in result.failures[:SHOWN_FAILURES]:
                print(f"    FAILURE {failure}", flush=True)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    if options.out is not None:
        write_results(options.out / "stress.csv", rows)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
