"""Stress tests: crashes, failing disks, mutated files, bit flips, simulated calibrations and peak memory.

`make stress` runs all of them; `tests/stress` runs short forms. `docs/background/reliability.md` has the results.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))  # for the circumstances of results, and the simulated populations
