"""Evaluation on a Ray cluster: the same files as in this process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.cli import demo
from secondlook.cli.demo import digit_images
from secondlook.cluster import RayEngine
from secondlook.predictions import batching

pytestmark = [
    pytest.mark.posix,
    pytest.mark.xdist_group("ray"),  # with --dist loadgroup, one test process starts the cluster
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
    pytest.mark.filterwarnings("ignore::secondlook.views.ViewWarning"),
]

MODEL = f"onnx:{Path(demo.__file__).parent / 'demo_data' / 'digits.onnx'}"
VIEWS = "identity shift:1,0 shift:-1,0 rotate:5"


@pytest.fixture
def digits(tmp_path: Path) -> str:
    images, labels = digit_images()
    np.savez(tmp_path / "digits.npz", images=images[:300], labels=labels[:300])
    return f"npz:{tmp_path / 'digits.npz'}"


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_run_on_a_cluster_has_the_same_evaluation_and_predictions(
    connected: Any, digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image: Array = np.load(digits.removeprefix("npz:"))["images"][0]
    monkeypatch.setattr(batching, "CHUNK_BYTES", 64 * image.nbytes)
    arguments: dict[str, Any] = {"views": VIEWS, "resamples": 20, "check_setup": False}
    here = sl.create_run(MODEL, digits, out=tmp_path / "here", execution=sl.Execution(progress=False), **arguments)
    execution = sl.Execution(engine=RayEngine(), progress=False)
    there = sl.create_run(MODEL, digits, out=tmp_path / "there", execution=execution, **arguments)
    assert (there.path / "evaluation.json").read_bytes() == (here.path / "evaluation.json").read_bytes()
    assert read_files(there.path / "predictions") == read_files(here.path / "predictions")
