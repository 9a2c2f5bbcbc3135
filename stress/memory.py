"""Peak memory of every command, on some images and on ten times as many."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from measurement import Row
from secondlook.cli import demo
from stress import ROOT
from stress.plan import Plan, Result
from stress.processes import temporary_folder

GROWTH = 10
SIDE = 64
LIMIT = 1024 * 2**20
"""Maximum peak memory of all commands: 512 MB of images in flight, and the same for code and results."""

CODE = """
import sys
from pathlib import Path
from secondlook.cli.app import main
sys.path.insert(0, sys.argv.pop(1))
from measurement import peak_memory_bytes
report = Path(sys.argv.pop(1))
try:
    main()
finally:
    report.write_text(str(peak_memory_bytes()))
"""

MODEL = "onnx:model.onnx?resize=16,16&gray=luminance"
COMMANDS = {
    "evaluate": f"evaluate --model {MODEL} --data npz:images.npz --views digits --out run",
    "evaluate compressed": f"evaluate --model {MODEL} --data npz:compressed.npz --views digits --out compressed-run",
    "evaluate folder": f"evaluate --model {MODEL} --data folder:images --views digits --out folder-run",
    "calibrate": "calibrate --run run --coverage 0.8",
    "calibrate adaptively": "calibrate --run run --coverage 0.8 --adaptive --out adaptive.json",
    "score": "score --policy policy.json --data npz:images.npz --out scores.parquet",
    "score for review": "score --policy policy.json --data folder:images --out scores.csv --rejected rejected",
    "score adaptively": "score --policy adaptive.json --data npz:images.npz --out adaptive.parquet",
    "report": "report run",
    "search": "search --run run --budget 3",
    "compare": "compare run --metric auroc",
    "info": "info run",
}


def measure_memory(plan: Plan) -> Iterator[Result]:
    """Measure the peak memory of every command on `count` images and on ten times as many."""
    with temporary_folder() as temporary:
        folders = [Path(temporary) / name for name in ("one", "ten")]
        for folder, images in zip(folders, (plan.count, GROWTH * plan.count), strict=True):
            _write_images(folder, images, plan.seed)
        for name, line in COMMANDS.items():
            if not plan.includes(name) or plan.seconds_left < 0:
                continue
            one, ten = (_measure(folder, line.split()) for folder in folders)
            row: Row = {"test": "memory", "case": name, "images": plan.count, "megabytes": round(one / 2**20)}
            row |= {"megabytes_at_10x": round(ten / 2**20), "data_megabytes_at_10x": _size(folders[1])}
            failures = [f"{name}: {ten / 2**20:.0f} MB"] if ten > LIMIT else []
            yield Result({**row, "seed": plan.seed}, failures)


def _size(folder: Path) -> int:
    return round((folder / "images.npz").stat().st_size / 2**20)


def _write_images(folder: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    shutil.copy(Path(demo.__file__).parent / "demo_data" / "digits.onnx", folder / "model.onnx")
    images = rng.integers(0, 256, (count, SIDE // 8, SIDE // 8, 3), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)
    labels = rng.integers(0, 10, count)
    np.savez(folder / "images.npz", images=images, labels=labels)
    np.savez_compressed(folder / "compressed.npz", images=images, labels=labels)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / "images" / str(label) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)


def _measure(folder: Path, words: list[str]) -> int:
    report = folder / "peak.txt"
    command = [sys.executable, "-c", CODE, str(ROOT / "benchmarks"), str(report), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"secondlook {' '.join(words)} failed: {done.stderr[-1000:]}")
    return int(report.read_text())
