"""The engine that computes chunks on a Ray cluster through Ray Data, without log lines on the terminal."""

import itertools
import logging
import math
import os
import pickle
import socket
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, cast

import secondlook
from secondlook import Source
from secondlook.cluster.chunk_actor import ChunkActor, TryCounter, summarize_error
from secondlook.extension import ANY, Chunking, ClusterError, ComputedChunk, Engine, LoadWorker, Repair, import_extra

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BLOCKS = 10_000
"""Above this number, chunks share blocks: Ray Data needs about 50 kB and some milliseconds per block."""
SECONDS_TO_CONNECT = 5.0
"""Deadline for the response of a head node. Ray itself waits for more than a minute."""
_HTTP_2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""Connection preface and empty settings (RFC 9113). A Ray head is a gRPC server, which responds with its settings."""


class RayEngine(Engine):
    """Computes chunks on a Ray cluster, or with all processors of this machine.

    A `with` statement keeps the connection open from the first job to the end, so all jobs share one Ray instance.

    Parameters
    ----------
    address
        'host:port' of the head node, or 'auto' for the cluster of this machine. By default, the Ray instance that this
        process is connected to, else that of the environment variable RAY_ADDRESS, else a local one that is stopped at
        the end.
    workers
        Maximum number of workers; by default, limited only by the cluster.
    cpus_per_worker, gpus_per_worker
        CPUs and GPUs per worker; fractions share a CPU or a GPU. The CPUs also set the number of threads.
    part_size
        Default number of images per chunk.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 0,
        part_size: int = 1000,
    ) -> None:
        for name, count in (("workers", workers), ("part_size", part_size)):
            if count is not None and (type(count) is not int or count < 1):
                raise ClusterError("is invalid; expected a positive integer", argument=name, value=count)
        for name, share in (("cpus_per_worker", cpus_per_worker), ("gpus_per_worker", gpus_per_worker)):
            if not 0 <= share < math.inf or (share > 1 and share != int(share)):
                fault = "is invalid; expected a fraction up to 1, or an integer"
                raise ClusterError(fault, argument=name, value=share)
        if cpus_per_worker == gpus_per_worker == 0:
            repair = Repair("pass {gpus_per_worker} above 0 as well", gpus_per_worker=ANY)
            raise ClusterError("needs GPUs", argument="cpus_per_worker", value=0, repair=repair)
        self.address, self.workers, self.part_size = address, workers, part_size
        self.cpus_per_worker, self.gpus_per_worker = cpus_per_worker, gpus_per_worker
        self._connection: ExitStack | None = None
        """The connection of a `with` statement."""

    def __enter__(self) -> Self:
        self._connection = ExitStack()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._connection is not None, "called by a with statement"
        self._connection.close()
        self._connection = None

    def compute_chunks(
        self, load_worker: LoadWorker, source: Source, chunking: Chunking, numbers: Sequence[int]
    ) -> Generator[ComputedChunk, None, None]:
        """Compute chunks on the cluster and yield each once, in the order in which they are finished."""
        if not numbers:
            return
        if self._connection is not None:
            self._connection.enter_context(connect(self.address))
        with connect(self.address) as ray, ExitStack() as at_end:
            initial = self._count_workers(ray)
            settings = self._send(ray, load_worker, source)
            at_end.callback(ray.kill, settings[-1])
            tasks = [_make_task(ray, source, chunking.indices_of(number), number) for number in numbers]
            with warnings.catch_warnings():  # Ray Data uses its own deprecated settings
                warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"ray\.")
                batches = self._start(ray, tasks, settings, initial)
            at_end.callback(batches.close)
            try:
                for row in itertools.chain.from_iterable(batch.to_pylist() for batch in batches):
                    if row["error"] is not None:
                        raise pickle.loads(row["error"])
                    yield ComputedChunk(row["number"], row["content"], row["worker"], row["seconds"])
            except ray.exceptions.RayError as error:
                repair = "install the same versions of Python and secondlook, with the same extras, on all machines"
                fault = f"the workers of the Ray cluster failed: {summarize_error(error)}"
                raise ClusterError(fault, repair=repair) from error

    def _start(
        self, ray: Any, tasks: "list[dict[str, Any]]", settings: tuple[Any, ...], initial: int
    ) -> "Generator[pa.Table, None, None]":
        """Return an iterator over finished results; its first step starts `initial` workers."""
        n_blocks = min(len(tasks), MAX_BLOCKS)
        maximum = min(n_blocks, self.workers or n_blocks)
        # Other sources of Ray Data use read tasks, which would wait for a CPU while the workers hold all of them.
        data = ray.data.from_items(tasks, override_num_blocks=n_blocks)
        data.context.enable_progress_bars = False
        results = data.map_batches(
            ChunkActor,
            batch_size=-(-len(tasks) // n_blocks),
            batch_format="pyarrow",
            fn_constructor_args=settings,
            num_cpus=self.cpus_per_worker,
            num_gpus=self.gpus_per_worker,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=maximum, initial_size=min(maximum, initial)),
        )
        batches = results.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        return cast("Generator[pa.Table, None, None]", iter(batches))

    def _count_workers(self, ray: Any) -> int:
        """Return how many workers the cluster can hold now, at least 1; raise if no machine is large enough."""
        wanted = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        wanted = {kind: share for kind, share in wanted.items() if share}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fitting = sum(min(int(machine.get(kind, 0) // share) for kind, share in wanted.items()) for machine in machines)
        if not fitting:
            largest = {kind: max((machine.get(kind, 0) for machine in machines), default=0) for kind in ("CPU", "GPU")}
            shares = {"cpus_per_worker": self.cpus_per_worker, "gpus_per_worker": self.gpus_per_worker}
            found = f"the largest have {largest['CPU']:g} CPUs and {largest['GPU']:g} GPUs"
            repair = Repair("pass less than {cpus_per_worker} and {gpus_per_worker}, or add machines", **shares)
            raise ClusterError(f"no machine of the Ray cluster is large enough for a worker; {found}", repair=repair)
        free = ray.available_resources()
        return max(1, min(fitting, *(int(free.get(kind, 0) // share) for kind, share in wanted.items())))

    def _send(self, ray: Any, load_worker: LoadWorker, source: Source) -> tuple[Any, ...]:
        """Put the shared objects of all workers into the object store; return the arguments of `ChunkActor`."""
        loader = ray.put(_serialize(ray.cloudpickle.dumps, load_worker, "the classifier"))
        whole = None
        if source.extract(range(1)) is None:
            whole = _serialize(ray.put, source.without_labels(), f"the source {source.spec!r}")
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        counter = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(TryCounter)
        # Once per process, native code of Ray warns that actors with references as arguments cannot be restarted
        # without these. This argument stays, so the warning is silenced here, before the actors of Ray Data start.
        with silence_native_code():
            tries = counter.remote([loader])
        return secondlook.__version__, max(1, int(self.cpus_per_worker)), loader, whole, tries


def _make_task(ray: Any, source: Source, positions: range, number: int) -> dict[str, Any]:
    part: Any = source.extract(positions)
    if part is not None:
        # Ids and paths compress well: the memory held until the end falls to a tenth.
        part = zlib.compress(_serialize(ray.cloudpickle.dumps, part, f"the source {source.spec!r}"), 1)
    first, last = source.ids[positions[0]], source.ids[positions[-1]]
    bounds = {"start": positions.start, "stop": positions.stop, "first": first, "last": last}
    return {"number": number, **bounds, "source": part}


def _serialize(serialize: Callable[[object], Any], value: object, name: str) -> Any:
    """Serialize a value for the workers."""
    try:
        return serialize(value)
    except Exception as error:
        fault = f"{name} cannot be sent to the workers, because it cannot be pickled: {summarize_error(error)}"
        raise ClusterError(fault, repair="open files and connections on first use, not earlier") from error


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """Connect to Ray and return its module; disconnect at the end, unless this process was connected before.

    None means the Ray instance of this process, of RAY_ADDRESS, or a local one until the end of the block.
    """
    ray = import_extra("ray", feature="Computing on a Ray cluster", extra="ray")
    import_extra("ray.data", feature="Computing on a Ray cluster", extra="ray")
    if address is None or address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    with ExitStack() as at_end:
        at_end.enter_context(_quiet())
        if ray.is_initialized():
            connected = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", connected):
                fault = f"differs from the Ray cluster {connected} that this process is connected to"
                repair = "call ray.shutdown() first, or pass no address"
                raise ClusterError(fault, argument="address", value=address, repair=repair)
        else:
            _start(ray, address)
            at_end.callback(ray.shutdown)
        yield ray


def _start(ray: Any, address: str | None) -> None:
    if address not in (None, "auto", "local"):
        check_address(str(address))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        repair = "run this on a machine of a running cluster, with the same versions of Ray and Python"
        raise ClusterError(f"cannot be used: {reason}", argument="address", value=address, repair=repair) from error


def check_address(address: str) -> None:
    """Raise `ClusterError` unless an address is 'host:port' and a gRPC server such as a Ray head responds there."""
    host, _, port = address.rpartition(":")
    if address.startswith("ray://"):
        fault = "is a Ray Client address, which is not supported; use 'ray job submit', or pass 'host:port'"
    elif not host or not port.isdigit() or not 0 < int(port) < 65536:
        fault = "is invalid; expected 'host:port' of the head node, such as '10.0.0.1:6379', or 'auto'"
    else:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT) as connection:
                connection.sendall(_HTTP_2_GREETING)
                answer = connection.recv(9)
            if answer[3:4] == b"\x04":  # the type of a SETTINGS frame
                return
            fault = "is not the head of a Ray cluster; pass its address (port 6379 by default, 8265 is the dashboard)"
        except OSError as error:
            reason = error.strerror or summarize_error(error)
            fault = f"is not a Ray cluster: {reason}; start one with 'ray start', or pass the address of its head node"
    raise ClusterError(fault, argument="address", value=address)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray and Ray Data from writing to the terminal; log files are not affected."""
    ray_worker: Any = import_module("ray._private.worker")
    handlers = [each for each in logging.getLogger("ray.data").handlers if hasattr(each, "stream")]
    levels = [handler.level for handler in handlers]
    # `log_to_driver` does not silence reports of dead workers; this switch of Ray's debugger does.
    prints = ray_worker._worker_logs_enabled
    ray_worker._worker_logs_enabled = False
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        ray_worker.stdout_deduplicator.flush()  # would be printed later
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)
        ray_worker._worker_logs_enabled = prints


@contextmanager
def silence_native_code() -> Iterator[None]:
    """Discard output of native code on standard error. Use it briefly: it applies to the whole process."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
