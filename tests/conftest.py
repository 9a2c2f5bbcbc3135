"""Fixtures and markers for all tests."""

import copy
import hashlib
import logging
import os
import pickle
import shutil
import subprocess
import venv
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Preprocessing
from secondlook.files import exclusive_lock
from secondlook.predictions import Chunking, ComputedChunk, Engine, LoadWorker, Worker
from secondlook.sources import Source
from secondlook.views import STEPS

ROOT = Path(__file__).resolve().parents[1]

# On a busy machine any example may take long.
settings.register_profile("secondlook", deadline=None)
settings.load_profile("secondlook")


OUTSIDE = (
    "cluster",
    "stress",
    "benchmarks/test_service.py",
    "cli/test_documented_commands.py",
    "cli/test_documented_python.py",
    "cli/test_serve.py",
    "decisions/test_job_killed.py",
    "monitoring/test_monitor_killed.py",
    "predictions/test_killed.py",
    "serving/test_full_disk.py",
    "serving/test_service_docs.py",
    "test_plugins.py",
)
"""Tests that `make test` leaves out, beside those with the marker: Ray, other servers, kills, documented commands."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what goes outside the process; skip on Windows what needs a POSIX system."""
    outside = tuple(str(ROOT / "tests" / path) for path in OUTSIDE)
    for item in items:
        if str(item.path).startswith(outside) or "postgresql" in item.name or "postgres_url" in _fixtures(item):
            item.add_marker(pytest.mark.outside)
        if os.name == "nt" and item.get_closest_marker("posix"):
            item.add_marker(pytest.mark.skip(reason="needs a POSIX system"))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def python_with() -> Callable[..., Path]:
    """Return the Python of an environment .venv-NAME with a file's requirements; it is made once."""

    def made(name: str, requirements: Path, *options: str) -> Path:
        folder = ROOT / f".venv-{name}" / "environment"
        stamp = folder / f"ready-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
        python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        folder.parent.mkdir(exist_ok=True)
        # Two test workers may come here at once; the second waits until the first has made the environment.
        with exclusive_lock(folder.parent / "lock"):
            if not stamp.exists():
                shutil.rmtree(folder, ignore_errors=True)
                venv.create(folder, with_pip=True)
                quiet = ["--quiet", "--disable-pip-version-check", *options]
                subprocess.run([python, "-m", "pip", "install", *quiet, "--requirement", requirements], check=True)
                stamp.touch()
        return python

    return made


@pytest.fixture
def temporary_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that a test registers are removed after it."""
    monkeypatch.setattr(STEPS, "_records", dict(STEPS))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server on this machine."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it prints a line per request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Let s3:// URLs lead to a server on this machine; returns a function that makes an empty bucket there."""
    from pyarrow.fs import S3FileSystem

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    made: list[str] = []
    system = S3FileSystem(endpoint_override=s3_server, allow_bucket_creation=True, allow_bucket_deletion=True)

    def make_bucket(name: str) -> Any:
        """Make a bucket, and return the file system, whose paths begin with the name of the bucket."""
        system.create_dir(name)
        made.append(name)
        return system

    yield make_bucket
    for name in made:
        if system.get_file_info(name).type.name != "NotFound":
            system.delete_dir(name)


@pytest.fixture
def cpu_as_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as two GPUs, so that torch models make their views on their device."""
    torch = pytest.importorskip("torch")
    from secondlook.classifiers import device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "list_gpus", lambda _: ["cpu", "cpu"])
    monkeypatch.setattr(device, "is_on_gpu", lambda _: True)


@pytest.fixture
def cuda_1_only() -> Classifier:
    """A classifier of dark and bright images that can be put on any device, and fails on each but 'cuda:1'."""
    return _MovableClassifier(
        name="dark or bright",
        digest="dark or bright",
        output="probabilities",
        preprocessing=Preprocessing(input_dtype="uint8"),
        n_classes=2,
    )


class _MovableClassifier(Classifier):
    device = "auto"

    def on_device(self, device: str) -> Classifier:
        moved = copy.copy(self)
        moved.device = self.device if device == "auto" else device
        return moved

    def forward(self, images: Array) -> Array:
        assert self.device == "cuda:1"
        bright = images.reshape(len(images), -1).mean(axis=1) / 255
        return np.stack([1 - bright, bright], axis=1)


class PickledEngine(Engine):
    """Computes chunks in this process, in a random order, from nothing but what was pickled."""

    part_size = 7

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Numbers of the chunks that were computed."""
        self.loads: list[LoadWorker] = []
        """What loaded the workers."""
        self.dies_after: int | None = None
        """Number of chunks after which the job is killed."""
        self.worker: Worker | None = None
        """The worker of the last job."""

    def compute_chunks(
        self, load_worker: LoadWorker, source: Source, chunking: Chunking, numbers: Sequence[int]
    ) -> Generator[ComputedChunk, None, None]:
        import ray

        cloudpickle: Any = ray.cloudpickle  # as in `RayEngine`

        assert source.labels is None
        self.loads.append(load_worker)
        worker = self.worker = pickle.loads(cloudpickle.dumps(load_worker))()
        for number in np.random.default_rng(len(numbers)).permutation(numbers).tolist():
            if len(self.numbers) == self.dies_after:
                raise KeyboardInterrupt
            positions = chunking.indices_of(number)
            part = source.extract(positions) or source.select(np.array(positions))
            content = worker(number, pickle.loads(pickle.dumps(part)))
            self.numbers.append(number)
            yield ComputedChunk(number, content, "this process", 0.1)


@pytest.fixture
def pickled_engine() -> PickledEngine:
    return PickledEngine()
