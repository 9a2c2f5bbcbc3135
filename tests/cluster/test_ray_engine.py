"""The Ray engine: the same chunks as in this process, each once, despite failures; errors are one sentence."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import secondlook as sl
from secondlook.cluster import RayEngine, chunk_actor, ray_engine
from secondlook.errors import ClassifierError, ClusterError, MissingExtraError, SecondLookError, SourceError
from secondlook.predictions import Chunking, ComputedChunk, LoadWorker, Worker
from secondlook.sources import ArraySource, Source, UnreadableImageError, open_source

pytestmark = [
    pytest.mark.posix,
    pytest.mark.xdist_group("ray"),  # with --dist loadgroup, one test process starts the cluster
    # Ray Data leaves a log file open.
    pytest.mark.filterwarnings("ignore:.*ray-data-dataset:pytest.PytestUnraisableExceptionWarning"),
]


def load_by(work: Callable[[int, Source], bytes]) -> LoadWorker:
    """Return a `LoadWorker` whose worker is a function; a local function is sent by value."""

    def load() -> Worker:
        return work

    return load


def load_summary() -> LoadWorker:
    """Return a `LoadWorker` whose results contain the ids and pixels of its images, and zeros at the end."""

    def summarize(number: int, source: Source) -> bytes:
        pixels = b"".join(source.read(index).tobytes() for index in range(len(source)))
        return repr((number, list(source.ids), source.labels)).encode() + pixels + b"\0\0"

    return load_by(summarize)


def make_images(count: int) -> Source:
    """Return images in memory, which have no location."""
    pixels = np.random.default_rng(count).integers(0, 256, (count, 3, 4, 3), dtype=np.uint8)
    return ArraySource(pixels, ids=[f"image {index}" for index in range(count)], labels=np.arange(count) % 2)


def write_folder(folder: Path, count: int) -> Source:
    for index in range(count):
        Image.fromarray(np.full((3, 4, 3), index, dtype=np.uint8)).save(folder / f"{index:03}.png")
    return open_source(f"folder:{folder}")


def compute_here(load_worker: LoadWorker, source: Source, chunking: Chunking, numbers: list[int]) -> dict[int, bytes]:
    worker = load_worker()
    contents = {}
    for number in numbers:
        positions = np.array(chunking.indices_of(number))
        part = ArraySource(
            np.stack([source.read(int(position)) for position in positions]),
            ids=[source.ids[position] for position in positions],
        )
        contents[number] = worker(number, part)
    return contents


def compute(load_worker: LoadWorker, n_chunks: int = 3, engine: RayEngine | None = None) -> list[ComputedChunk]:
    """Compute chunks of two images each."""
    chunking = Chunking(2 * n_chunks, 2)
    engine = RayEngine() if engine is None else engine
    return list(engine.compute_chunks(load_worker, make_images(2 * n_chunks), chunking, chunking.numbers))


@contextmanager
def run_until_end(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the end of the block, even if a test fails in it."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    """Whether a worker is alive; if possible, excludes a new process or thread with the same number."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        if not status.exists():
            return not Path("/proc/self").exists()
        is_zombie = status.read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie and b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("stored", "max_blocks"), [(False, 3), (True, 1000)], ids=["in memory, blocks of chunks", "in files, single chunks"]
)
def test_chunks_equal_those_of_a_local_job_without_repeats(
    connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool, max_blocks: int
) -> None:
    monkeypatch.setattr(ray_engine, "MAX_BLOCKS", max_blocks)
    rng = np.random.default_rng([stored, max_blocks])
    count, rows = int(rng.integers(20, 40)), int(rng.integers(2, 5))
    source = write_folder(tmp_path, count) if stored else make_images(count)
    assert (source.extract(range(2)) is not None) == stored
    chunking = Chunking(count, rows)
    numbers = sorted(rng.choice(len(chunking.numbers), size=len(chunking.numbers) - 2, replace=False).tolist())
    found = list(RayEngine().compute_chunks(load_summary(), source, chunking, numbers))
    assert sorted(chunk.number for chunk in found) == numbers
    assert {chunk.number: chunk.content for chunk in found} == compute_here(load_summary(), source, chunking, numbers)
    assert all(chunk.seconds >= 0 for chunk in found)


def test_a_worker_loads_once_and_keeps_to_its_cpus(connected: Any, tmp_path: Path) -> None:
    def load() -> Worker:
        (tmp_path / f"{os.getpid()}").touch(exist_ok=False)

        def count_threads(number: int, source: Source) -> bytes:
            import cv2

            return f"{os.getpid()} {cv2.getNumThreads()}".encode()

        return count_threads

    found = compute(load, 6, RayEngine(workers=1))
    (pid,) = [int(path.name) for path in tmp_path.iterdir()]
    assert {chunk.content for chunk in found} == {f"{pid} 1".encode()}
    assert {chunk.worker for chunk in found} == {f"{socket.gethostname()}:{pid}"}


def test_a_killed_worker_is_replaced(connected: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def die_once(number: int, source: Source) -> bytes:
        if number == 2 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return source.ids[0].encode()

    found = compute(load_by(die_once), 5)
    assert (tmp_path / "died").exists()
    assert sorted(chunk.number for chunk in found) == list(range(5))
    assert {chunk.number: chunk.content for chunk in found}[2] == b"image 4"
    assert capfd.readouterr() == ("", "")


def test_chunks_of_a_killed_node_are_computed_elsewhere(connected: Any, tmp_path: Path) -> None:
    def work_on_node(number: int, source: Source) -> bytes:
        import ray

        node = str(ray.get_runtime_context().get_node_id())
        with (tmp_path / node).open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.3)
        return node.encode()

    doomed = connected.add_node(num_cpus=1, object_store_memory=100_000_000)
    chunking = Chunking(24, 2)
    chunks = RayEngine().compute_chunks(load_by(work_on_node), make_images(24), chunking, chunking.numbers)
    found = []
    for chunk in chunks:
        found.append(chunk)
        if doomed is not None and (tmp_path / doomed.node_id).exists():
            connected.remove_node(doomed, allow_graceful=False)
            doomed = None
    assert doomed is None, "the node took part"
    assert sorted(chunk.number for chunk in found) == list(chunking.numbers)


def test_a_chunk_that_kills_workers_fails_the_job(
    connected: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def die(number: int, source: Source) -> bytes:
        if number == 1:
            with (tmp_path / "tries").open("a") as file:
                file.write("x")
            os._exit(1)
        return b""

    with pytest.raises(ClusterError, match=r"chunk 1 .*'image 2' to 'image 3'"):
        compute(load_by(die), 3)
    assert len((tmp_path / "tries").read_text()) == chunk_actor.MAX_TRIES
    assert capfd.readouterr() == ("", "")


class _OwnError(ClassifierError):
    """An error class that exists only on the worker."""


@pytest.mark.parametrize(
    "error",
    [MissingExtraError("Torch models", "torch", "torch"), _OwnError("a sentence."), SecondLookError("another.")],
)
def test_errors_keep_their_public_class_and_sentence(error: SecondLookError) -> None:
    rebuilt = pickle.loads(chunk_actor.encode_error(error))
    assert type(rebuilt) is (ClassifierError if isinstance(error, _OwnError) else type(error))
    assert str(rebuilt) == str(error)


def test_worker_errors_are_raised_locally(connected: Any, tmp_path: Path) -> None:
    def fail(number: int, source: Source) -> bytes:
        if number == 1:
            (tmp_path / "tried").touch(exist_ok=False)  # fails if it is tried again
            raise UnreadableImageError(source.ids[0], "it is empty")
        (tmp_path / "worker").write_text(f"{os.getpid()}")
        return b""

    with pytest.raises(SourceError) as caught:
        compute(load_by(fail))
    assert type(caught.value) is SourceError
    assert str(caught.value) == str(UnreadableImageError("image 2", "it is empty"))
    # `caught` still refers to everything that was in use.
    wait_until(lambda: not is_alive(int((tmp_path / "worker").read_text())))


def test_unexpected_worker_errors_are_raised_locally(connected: Any) -> None:
    def fail(number: int, source: Source) -> bytes:
        return bytes(number // (number - 2) + 1)

    def load() -> Worker:
        raise ClassifierError("the model is missing.")

    with pytest.raises(ClusterError, match=r"chunk 2 .*'image 4' to 'image 5'.*ZeroDivisionError"):
        compute(load_by(fail))
    with pytest.raises(ClassifierError, match="the model is missing"):
        compute(load)


def test_worker_with_another_version_is_rejected() -> None:
    worker = chunk_actor.ChunkActor("0.0.1", 1, None, None, None)
    (row,) = worker(pa.table({"number": [3]})).to_pylist()
    error = pickle.loads(row["error"])
    assert (row["number"], type(error)) == (3, ClusterError)
    assert "0.0.1" in str(error)
    assert sl.__version__ in str(error)


def test_closing_early_ends_the_workers(connected: Any, tmp_path: Path) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()

    def linger(number: int, source: Source) -> bytes:
        (workers / f"{os.getpid()}").touch()
        try:
            (tmp_path / "first").touch(exist_ok=False)
        except FileExistsError:
            time.sleep(100)
        return str(number).encode()

    chunking = Chunking(12, 2)
    chunks = RayEngine().compute_chunks(load_by(linger), make_images(12), chunking, chunking.numbers)
    first = next(chunks)  # whichever it is: workers start at different times
    assert first.seconds < 100
    assert first.content == str(first.number).encode()
    chunks.close()
    pids = [int(path.name) for path in workers.iterdir()]
    wait_until(lambda: not any(map(is_alive, pids)))


JOB = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, a shell ignores it
import numpy as np
from secondlook.cluster import RayEngine
from secondlook.predictions import Chunking
from secondlook.sources import ArraySource

folder, address = Path(sys.argv[1]), sys.argv[2] or None

def load():
    def work(number, source):
        (folder / f"{os.getpid()}").touch()
        if address:
            time.sleep(600)
        return source.ids[0].encode()
    return work

source = ArraySource(np.zeros((6, 2, 2, 3), dtype=np.uint8), ids=list("abcdef"))
import ray
with RayEngine(address) as engine:
    for _ in range(2):
        chunks = engine.compute_chunks(load, source, Chunking(6, 2), range(3))
        print(sorted(chunk.content.decode() for chunk in chunks), ray.is_initialized())
print(ray.is_initialized())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_workers_exit_with_the_job(cluster: Any, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", JOB, str(tmp_path), cluster.address]
    with run_until_end(command, stderr=subprocess.DEVNULL) as job:
        wait_until(lambda: any(tmp_path.iterdir()) or job.poll() is not None, 400)
        job.send_signal(number)
        assert job.wait(400) != 0
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids, "the job failed before it had workers"
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_local_ray_instance_starts_and_stops_quietly(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path), ""], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "['a', 'c', 'e'] True\n" * 2 + "False\n"
    assert done.stderr == ""
    wait_until(lambda: not any(is_alive(int(path.name)) for path in tmp_path.iterdir()))


def test_only_the_head_of_a_cluster_is_accepted(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_engine.check_address(cluster.address)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        with pytest.raises(ClusterError, match=f"{server.server_port}.*dashboard"):
            ray_engine.check_address(f"127.0.0.1:{server.server_port}")
        answering.join()
    monkeypatch.setattr(ray_engine, "SECONDS_TO_CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=address):
            ray_engine.check_address(address)


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:10001", "127.0.0.1:1", "somewhere", "host:port", "127.0.0.1:99999"]
)
def test_invalid_address_is_rejected(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError) as caught:
        compute(load_summary(), engine=RayEngine(address))
    assert address in str(caught.value)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=address):
        compute(load_summary())


def test_address_of_a_different_cluster_is_rejected(connected: Any) -> None:
    with pytest.raises(ClusterError, match=connected.address):
        compute(load_summary(), engine=RayEngine("127.0.0.1:1"))


@pytest.mark.parametrize(("name", "value"), [("gpus_per_worker", 1), ("cpus_per_worker", 100)])
def test_excessive_resources_are_rejected(connected: Any, name: str, value: int) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ClusterError, match=f"{name}={value}"):
        compute(load_summary(), engine=RayEngine(**options))


def test_workers_are_counted_machine_by_machine() -> None:
    machines = [{"CPU": 7.0}, {"CPU": 3.0, "GPU": 2.0}]
    nodes = [{"Alive": True, "Resources": machine} for machine in machines]
    gone = {"Alive": False, "Resources": {"CPU": 100.0, "GPU": 100.0}}
    ray = SimpleNamespace(nodes=lambda: [*nodes, gone], available_resources=lambda: {"CPU": 8.0, "GPU": 2.0})
    assert RayEngine()._count_workers(ray) == 8, "the others are in use"
    assert RayEngine(cpus_per_worker=3)._count_workers(ray) == 2
    assert RayEngine(cpus_per_worker=4)._count_workers(ray) == 1
    assert RayEngine(cpus_per_worker=2, gpus_per_worker=0.5)._count_workers(ray) == 1
    assert RayEngine(cpus_per_worker=0, gpus_per_worker=0.5)._count_workers(ray) == 4
    with pytest.raises(ClusterError, match=r"cpus_per_worker=4 and gpus_per_worker=1"):
        RayEngine(cpus_per_worker=4, gpus_per_worker=1)._count_workers(ray)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": True},
        {"part_size": 0},
        {"cpus_per_worker": -1},
        {"cpus_per_worker": 1.5},
        {"gpus_per_worker": float("nan")},
        {"cpus_per_worker": 0},
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ClusterError, match=f"{name}={value}"):
        RayEngine(**options)


def test_unpicklable_objects_are_named(connected: Any, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        source = make_images(2)
        source.file = file  # type: ignore[attr-defined]
        with pytest.raises(ClusterError, match=source.spec.replace("[", r"\[")):
            list(RayEngine().compute_chunks(load_summary(), source, Chunking(2, 1), [0]))
        with pytest.raises(ClusterError, match="classifier"):
            compute(load_by(lambda number, source: file.name.encode()))


def test_no_chunks_start_no_cluster() -> None:
    assert list(RayEngine("127.0.0.1:1").compute_chunks(load_summary(), make_images(2), Chunking(2, 1), [])) == []
