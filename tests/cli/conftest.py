import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
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
VIEWS = "identity shift:1,0 shift:-1,0 gamma:0.9 gamma:1.1"
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


class Here:
    """Runs the command line in this process."""

    def __init__(self, run: Callable[..., Ended]) -> None:
        self.run = run

    def __call__(self, *words: str) -> Ended:
        return self.run(*words)

    def ok(self, *words: str) -> Ended:
        """Run a command that must succeed."""
        done = self(*words)
        assert done.code == 0, done.err
        return done

    def fail(self, *words: str, told: str | Sequence[str] = ()) -> Ended:
        """Run a command that must end with a message about the user's mistake, which has some texts."""
        done = self(*words)
        assert done.code == 2, done.out + done.err
        assert done.err
        assert "Traceback" not in done.err
        for text in [told] if isinstance(told, str) else told:
            assert text in done.err
        return done

    def refuse(self, *words: str, told: str | Sequence[str] = ()) -> Ended:
        """Run a command whose message must be one sentence, without warnings or the usage before it."""
        done = self.fail(*words, told=told)
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1, done.err
        return done

    def calibrate(self, *words: str) -> Ended:
        """Calibrate on the run of the folder."""
        return self.ok("calibrate", "--run", "run", *words)


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
) -> Iterator[Here]:
    """The command line in this process, in a folder of its own with a model, labeled and new images."""
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

    yield Here(run)
    warnings.showwarning = shown
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: model.onnx, m.onnx, val/ with a folder per class, new/ and pool/ without, others/ with noise."""
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
    (folder / "pool").mkdir()
    for place in unseen[440:1540]:
        Image.fromarray(images[place, :, :, 0]).save(folder / "pool" / f"{place:04d}.png")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(folder / "photo.jpg")
    (folder / "others").mkdir()
    for number in range(60):
        noise = rng.integers(0, 256, images.shape[1:3], dtype=np.uint8)
        Image.fromarray(noise).save(folder / "others" / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def stored_run(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 400 digits with five views that round no pixels; a quarter of the digits can be set apart."""
    path = tmp_path_factory.mktemp("runs") / "run"
    execution = sl.Execution(progress=False)
    with contextlib.chdir(digits):
        sl.create_run(
            "onnx:model.onnx",
            "folder:val/",
            out=path,
            views=VIEWS,
            resamples=5,
            check_setup=False,
            execution=execution,
        )
    return path


@pytest.fixture
def run(here: Here, stored_run: Path) -> Path:
    """A copy of that run in the folder of the test, since calibrations are recorded in it."""
    return Path(shutil.copytree(stored_run, "run"))


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
