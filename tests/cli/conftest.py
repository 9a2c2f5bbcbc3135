import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.cli import app, demo
from secondlook.cli.demo import digit_images, split_digits
from secondlook.progress import HUGGING_FACE_SWITCHES

Command = Callable[..., "subprocess.CompletedProcess[str]"]
MODEL = Path(demo.__file__).parent / "demo_data" / "digits.onnx"
CIFAR10_JPEG = Path(__file__).resolve().parents[3] / "shared" / "cifar10-jpeg"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def secondlook(tmp_path: Path) -> Command:
    """Run the real command in a process of its own, in an empty folder."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        program = Path(sys.executable).with_name("secondlook")
        environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1"}
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )

    return run


@pytest.fixture
def here(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    """Run the command line in this process, in a folder of its own with a model, labeled and new images."""
    for item in digits.iterdir():
        (tmp_path / item.name).symlink_to(item)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in HUGGING_FACE_SWITCHES:  # --quiet sets them for the rest of the process, as may have happened before
        monkeypatch.setenv(name, "1")
        monkeypatch.delenv(name)
    shown = warnings.showwarning
    handler = signal.getsignal(signal.SIGINT)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["secondlook", *arguments])
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            with pytest.raises(SystemExit) as ended:
                app.main()
        written = capfd.readouterr()
        return Ended(int(ended.value.code or 0), written.out, written.err)

    yield run
    warnings.showwarning = shown
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: model.onnx and m.onnx, val/ with a folder per class, new/ without, photo.jpg."""
    folder = tmp_path_factory.mktemp("digits")
    images, labels = digit_images()
    unseen = split_digits()[1]
    write_color_model(folder / "model.onnx")
    shutil.copy(folder / "model.onnx", folder / "m.onnx")
    for place in unseen[:400]:
        target = folder / "val" / f"{labels[place]}" / f"{place:04d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[place, :, :, 0]).save(target)
    (folder / "new").mkdir()
    for place in unseen[400:440]:
        Image.fromarray(images[place, :, :, 0]).save(folder / "new" / f"{place:04d}.png")
    photo = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(photo).save(folder / "photo.jpg")
    return folder


def create_digits_run(digits: Path, path: Path, views: str) -> Path:
    """Evaluate the model of the folder on its 400 labeled digits."""
    before = Path.cwd()
    os.chdir(digits)
    try:
        sl.create_run(
            "onnx:model.onnx",
            "folder:val/",
            out=path,
            views=views,
            resamples=5,
            check_setup=False,
            execution=sl.Execution(progress=False),
        )
    finally:
        os.chdir(before)
    return path


@pytest.fixture
def run(here: Callable[..., Ended], stored_run: Path) -> Path:
    """A copy of the run of a module in the folder of the test, since calibrations are recorded in it."""
    return Path(shutil.copytree(stored_run, "run"))


def calibrate(here: Callable[..., Ended], *words: str) -> Ended:
    """Calibrate on that run."""
    done = here("calibrate", "--run", "run", *words)
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the reader of the tutorial has it: model.onnx, val/ with photographs by class, new/ without."""
    if not CIFAR10_JPEG.is_dir():
        pytest.skip("needs the photographs of ../shared/cifar10-jpeg")
    folder = tmp_path_factory.mktemp("photographs")
    shutil.copy(CIFAR10_JPEG / "wrn16-2-seed0.onnx", folder / "model.onnx")
    (folder / "new").mkdir()
    for number, kind in enumerate(sorted((CIFAR10_JPEG / "test").iterdir())):
        *labeled, new = sorted(kind.iterdir())[:31]
        (folder / "val" / kind.name).mkdir(parents=True)
        for file in labeled:
            shutil.copy(file, folder / "val" / kind.name)
        shutil.copy(new, folder / "new" / f"{number:04d}.jpg")
    return folder


def write_color_model(path: Path) -> None:
    """Write the demo's network so that it takes color images, as files give them, and averages their channels."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(MODEL)
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["gray" if name == "images" else name for name in node.input]
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "channels"))
    graph.node.insert(0, helper.make_node("ReduceMean", ["images", "channels"], ["gray"], keepdims=1))
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 16, 16]))
    onnx.checker.check_model(model)
    onnx.save(model, path)
