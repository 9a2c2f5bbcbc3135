"""Other packages add methods, models, sources, view steps and exports by entry points."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
PLUGIN = '''
import numpy as np

from secondlook.classifiers import FunctionClassifier, model_scheme
from secondlook.decisions import EXPORTS, Export
from secondlook.estimators import method
from secondlook.sources import ArraySource, source_scheme
from secondlook.views import view_step


@method("top-two", symbol="T2", summary="difference of the two largest probabilities")
def top_two(preds, *, predict_from, top_k):
    ordered = np.sort(preds.probabilities[:, 0].astype(np.float64), axis=1)
    return ordered[:, -1] - ordered[:, -2]


@model_scheme("brightness", form="brightness:CLASSES", summary="class by the mean of all pixels")
def open_brightness(target, options):
    centers = np.arange(int(target)) / int(target)

    def classify(images):
        return -50 * np.abs(images.mean(axis=(1, 2, 3))[:, None] / 255 - centers)

    return FunctionClassifier(classify, options)


@source_scheme("gray", form="gray:COUNT", summary="gray images with noise, labeled by their brightness")
def open_gray(spec, read_options):
    random = np.random.default_rng(0)
    labels = np.arange(int(spec.location)) % 4
    levels = labels * 64 + random.integers(-20, 20, len(labels))
    images = np.clip(levels, 0, 255).astype(np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 1), np.uint8)
    return ArraySource(images, spec=str(spec), labels=labels)


@view_step("dim:FACTOR")
def dim(images, factor):
    """multiply all pixels"""
    return images * factor


def write_ids(path, queue, locations):
    path.write_text("\\n".join(image.id for image in queue))


EXPORTS.add(Export("ids", "the ids of the images to review", write=write_ids, reads_files=False))
'''


def build_wheel(folder: Path, name: str, source: str) -> Path:
    """Write a wheel with one module and an entry point that names it."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[secondlook]\n{name} = {name}\n",
    }
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    encoded = {path: base64.urlsafe_b64encode(digest).decode().rstrip("=") for path, digest in digests.items()}
    record = [f"{path},sha256={encoded[path]},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: a plugin that works, and two that do not."""
    folder, built = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    twice = "from secondlook.views import view_step\n\n@view_step('hflip')\ndef hflip(images):\n    return images\n"
    wheels = [
        build_wheel(built, "graytools", PLUGIN),
        build_wheel(built, "brokentools", "import a_module_that_is_missing\n"),
        build_wheel(built, "twicetools", twice),
    ]
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*install, *map(str, wheels)], check=True, capture_output=True)
    return folder


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """Run the command line, or other code, in a process that finds the plugins."""

    def run_command(*arguments: str, code: str = "from secondlook.cli import main; main()") -> Done:
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "150", "NO_COLOR": "1"}
        line = [sys.executable, "-c", code, *arguments]
        return subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    return run_command


def test_records_of_a_plugin_are_listed_last(run: Run) -> None:
    names = {
        ("methods", "method"): "top-two",
        ("models", "model"): "brightness",
        ("sources", "source"): "gray",
        ("views", "step"): "dim",
        ("exports", "export"): "ids",
    }
    for (kind, title), name in names.items():
        done = run("list", kind, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[title][-1]["name"] == name


def test_records_of_a_plugin_work_together(run: Run, tmp_path: Path) -> None:
    views = "identity dim:0.9"
    lines = [
        f"evaluate|--model|brightness:4?output=logits&name=b|--data|gray:600|--views|{views}|--method|top-two|--out|run",
        "calibrate|--run|run|--risk|0.2|--delta|0.1|--method|top-two",
        "score|--policy|policy.json|--model|brightness:4?output=logits&name=b|--data|gray:200|--out|scores.csv"
        "|--rejected|rejected|--export|ids:review.txt",
    ]
    for line in lines:
        done = run(*line.split("|"))
        assert done.returncode == 0, done.stderr
    rows = [line.split(",") for line in (tmp_path / "scores.csv").read_text().splitlines()]
    rejected = {row[0] for row in rows if row[rows[0].index("accept")] == "false"}
    assert set((tmp_path / "review.txt").read_text().split()) == rejected
    assert "top-two" in (tmp_path / "policy.json").read_text()


def test_broken_plugins_are_named_and_ignored(run: Run) -> None:
    done = run("list", "views")
    assert done.returncode == 0
    assert "dim:FACTOR" in done.stdout
    assert "Traceback" not in done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 2
    assert any("'brokentools'" in line and "a_module_that_is_missing" in line for line in warnings)
    assert any("'twicetools'" in line and "'hflip'" in line for line in warnings)


def test_known_names_load_no_plugin(run: Run) -> None:
    is_loaded = "print('graytools' in sys.modules)"
    code = f"import sys; from secondlook.estimators import METHODS; METHODS.find('mean'); {is_loaded}; "
    assert run(code=f"{code}METHODS.find('top-two'); {is_loaded}").stdout.split() == ["False", "True"]
