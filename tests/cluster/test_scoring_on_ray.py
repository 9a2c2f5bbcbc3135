"""Scoring and evaluation on a Ray cluster: the same rows and files as locally, despite failures."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.cli import demo
from secondlook.cli.demo import digit_images
from secondlook.cluster import RayEngine
from secondlook.policies import Policy
from secondlook.predictions import ComputedChunk, batching
from tests.classifiers.test_pickling import write_model
from tests.cluster.test_ray_engine import run_until_end, wait_until
from tests.policy_maker import attach, score

pytestmark = [
    pytest.mark.posix,
    pytest.mark.xdist_group("ray"),  # with --dist loadgroup, one test process starts the cluster
    # Ray Data leaves a log file open.
    pytest.mark.filterwarnings("ignore:.*ray-data-dataset:pytest.PytestUnraisableExceptionWarning"),
]

CIFAR10 = Path(__file__).resolve().parents[3] / "shared" / "cifar10"
MODEL = f"onnx:{Path(demo.__file__).parent / 'demo_data' / 'digits.onnx'}"
VIEWS = "identity shift:1,0 shift:-1,0 rotate:5"
IMAGES, BROKEN = 60, "013.png"


@pytest.fixture(scope="module")
def pixels() -> Array:
    """Images, uint8 [60, 8, 8, 3]."""
    return np.random.default_rng(3).integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def folder(pixels: Array, tmp_path: Path) -> Path:
    """The images as files, one of which is broken."""
    folder = tmp_path / "new"
    folder.mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    (folder / BROKEN).write_bytes(b"broken")
    return folder


@pytest.fixture
def bucket(folder: Path, s3: Callable[[str], Any], s3_server: str) -> Callable[[str], str]:
    """Return a function that makes a bucket with the files, and returns the spec by which workers read them."""

    def fill(name: str) -> str:
        system = s3(name)
        for path in folder.iterdir():
            with system.open_output_stream(f"{name}/new/{path.name}") as file:
                file.write(path.read_bytes())
        return f"folder:s3://{name}/new?endpoint={s3_server}"

    return fill


def make_slow_classifier(seconds: float = 0.05) -> Classifier:
    """Return a classifier that sleeps; a local function is sent to workers by value."""

    def classify(batch: Any) -> Any:
        time.sleep(seconds)
        bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 127.5) / 3))
        return np.stack([1 - bright, bright], axis=1)

    return load_classifier(classify, name="brightness")


def make_policy(classifier: Classifier) -> Policy:
    return attach(Policy(threshold=0.7, method="mean"), classifier=classifier, views=("identity", "hflip", "shift:1,0"))


def read_rows(path: Path | str, **options: Any) -> pa.Table:
    return pq.read_table(path, **options).replace_schema_metadata(None)


class EventfulEngine(RayEngine):
    """Calls a function after the first chunk."""

    def __init__(self, happen: Callable[[], object], **options: Any) -> None:
        super().__init__(**options)
        self.happen = happen

    def compute_chunks(self, *arguments: Any) -> Generator[ComputedChunk, None, None]:
        for number, chunk in enumerate(super().compute_chunks(*arguments)):
            yield chunk
            if number == 0:
                self.happen()


def test_a_node_dies_while_images_are_scored_from_s3_to_s3(
    connected: Any, folder: Path, bucket: Callable[[str], str], s3: Callable[[str], Any], tmp_path: Path
) -> None:
    classifier = make_slow_classifier()
    limit = {"limit": 0.5, "budget": 0.02, "images": 100, "given_up": 2}
    policy = make_policy(classifier).replace(familiarity=limit)
    options: dict[str, Any] = {"classifier": classifier, "progress": False}
    score(policy, f"folder:{folder}", tmp_path / "local.parquet", on_error="skip", **options)
    spec, results = bucket("pictures"), s3("scores")
    doomed = connected.add_node(num_cpus=1, object_store_memory=100_000_000)
    engine = EventfulEngine(lambda: connected.remove_node(doomed, allow_graceful=False), part_size=4)
    summary = score(policy, spec, "s3://scores/today", engine=engine, **options)
    rows = read_rows("scores/today", filesystem=results)
    assert set(rows["rejection"].to_pylist()) == {None, "unfamiliar"}
    assert rows.equals(read_rows(tmp_path / "local.parquet"))
    assert [id_ for id_, _ in summary.skipped] == [BROKEN]
    assert summary.to_dict()["computed"] == IMAGES
    assert summary.use is not None
    assert len(summary.use.workers) > 1


@pytest.fixture
def spec(folder: Path, tmp_path: Path) -> str:
    """Images for policy.json, which has an ONNX model: CIFAR-10 if present, synthetic ones otherwise."""
    if CIFAR10.is_dir():
        options: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "output": "logits"}
        model, spec = CIFAR10 / "resnet20.onnx", f"npz:{CIFAR10 / 'test.npz'}?limit=240"
    else:
        model, options, spec = tmp_path / "model.onnx", {}, f"folder:{folder}"
        write_model(model, seed=0)
    make_policy(load_classifier(f"onnx:{model}", **options)).save(tmp_path / "policy.json")
    return spec


def test_killed_job_is_resumed_by_the_same_command(cluster: Any, spec: str, tmp_path: Path) -> None:
    score(tmp_path / "policy.json", spec, tmp_path / "local.parquet", on_error="skip", progress=False)
    command = [
        *(str(Path(sys.executable).with_name("secondlook")), "score", "--policy", str(tmp_path / "policy.json")),
        *("--data", spec, "--out", str(tmp_path / "scores"), "--engine", "ray", "--address", cluster.address),
        *("--part-size", "6", "--workers", "2", "--quiet"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}

    def list_parts() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "scores").glob("part-*")}

    with run_until_end(command, env=environment) as process:
        wait_until(lambda: len(list_parts()) >= 2 or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        assert process.wait(120) == -signal.SIGKILL
    kept = list_parts()
    assert len(kept) < len(pq.read_table(tmp_path / "local.parquet")) / 6, "it was killed in the middle"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert read_rows(tmp_path / "scores").equals(read_rows(tmp_path / "local.parquet"))
    assert {name: changed for name, changed in list_parts().items() if name in kept} == kept, "not computed again"


@pytest.fixture
def digits(tmp_path: Path) -> str:
    images, labels = digit_images()
    np.savez(tmp_path / "digits.npz", images=images[:300], labels=labels[:300])
    return f"npz:{tmp_path / 'digits.npz'}"


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
@pytest.mark.filterwarnings("ignore::secondlook.views.ViewWarning")
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
