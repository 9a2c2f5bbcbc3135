"""The engine that computes chunks on a Ray cluster, by Ray Data."""

import math
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, cast

import secondlook
from secondlook.cluster.chunk_actor import ChunkActor, TryCounter, WorkerSettings, rebuild_error
from secondlook.cluster.connection import connect, silence_native_code, summarize_error
from secondlook.errors import ClusterError
from secondlook.predictions import Chunking, ComputedChunk, Engine, LoadWorker
from secondlook.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BLOCKS = 10_000
"""Ray Data keeps about 50 kB for each block, and takes some milliseconds; above, several chunks are one block."""


class RayEngine(Engine):
    """Computes chunks on a Ray cluster, or with all processors of this machine.

    In a `with` statement it stays connected from the first job to the end, so that a Ray is started once for all jobs.

    Parameters
    ----------
    address
        'host:port' of the head node, or 'auto' for the cluster of this machine. By default, the Ray that this process
        is connected to, that of the environment variable RAY_ADDRESS, or else one that is started on this machine and
        stopped at the end.
    workers
        Largest number of workers; by default, as many as the cluster holds.
    cpus_per_worker, gpus_per_worker
        What each worker occupies; fractions share a CPU or a GPU. A worker uses as many CPU threads.
    part_size
        Number of images per chunk by default.
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
                raise ClusterError(f"{name}={count!r}; expected a positive integer.")
        for name, share in (("cpus_per_worker", cpus_per_worker), ("gpus_per_worker", gpus_per_worker)):
            if not 0 <= share < math.inf or (share > 1 and share != int(share)):
                raise ClusterError(f"{name}={share!r}; expected a fraction up to 1, or an integer.")
        if cpus_per_worker == gpus_per_worker == 0:
            raise ClusterError("cpus_per_worker=0 and gpus_per_worker=0; expected at least one above 0.")
        self.address = address
        self.workers = workers
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker
        self.part_size = part_size
        self._connection: ExitStack | None = None
        """What stays open in a `with` statement."""

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
            at_end.callback(ray.kill, settings.tries)
            tasks = (_make_task(ray, source, chunking.indices_of(number), number) for number in numbers)
            with _ignore_warnings_of_ray():
                batches = self._start(ray, list(tasks), settings, initial)
            at_end.callback(batches.close)
            try:
                for batch in batches:
                    yield from _read_results(batch.to_pylist())
            except ray.exceptions.RayError as error:
                raise ClusterError(
                    f"the workers of the Ray cluster failed: {summarize_error(error)}; install the same versions of"
                    " Python and secondlook, with the same extras, on all machines of the cluster."
                ) from error

    def _start(
        self, ray: Any, tasks: "list[dict[str, Any]]", settings: WorkerSettings, initial: int
    ) -> "Generator[pa.Table, None, None]":
        """Return the results as they come; the workers start with the first, `initial` of them."""
        n_blocks = min(len(tasks), MAX_BLOCKS)
        maximum = min(n_blocks, self.workers or n_blocks)
        # Other sources of Ray Data read by tasks, which wait for a CPU while workers have all of them.
        data = ray.data.from_items(tasks, override_num_blocks=n_blocks)
        data.context.enable_progress_bars = False
        results = data.map_batches(
            ChunkActor,
            batch_size=-(-len(tasks) // n_blocks),
            batch_format="pyarrow",
            fn_constructor_args=(settings,),
            num_cpus=self.cpus_per_worker,
            num_gpus=self.gpus_per_worker,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=maximum, initial_size=min(maximum, initial)),
        )
        batches = results.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        return cast("Generator[pa.Table, None, None]", iter(batches))

    def _count_workers(self, ray: Any) -> int:
        """Return how many workers the cluster can hold now, at least 1; raise if none of its machines can ever."""
        wanted = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        wanted = {kind: share for kind, share in wanted.items() if share}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fitting = sum(min(int(machine.get(kind, 0) // share) for kind, share in wanted.items()) for machine in machines)
        if not fitting:
            largest = {kind: max((machine.get(kind, 0) for machine in machines), default=0) for kind in ("CPU", "GPU")}
            raise ClusterError(
                f"no machine of the Ray cluster has enough for cpus_per_worker={self.cpus_per_worker:g} and"
                f" gpus_per_worker={self.gpus_per_worker:g}; the largest have {largest['CPU']:g} CPUs and"
                f" {largest['GPU']:g} GPUs; pass smaller numbers, or add machines with more."
            )
        free = ray.available_resources()
        return max(1, min(fitting, *(int(free.get(kind, 0) // share) for kind, share in wanted.items())))

    def _send(self, ray: Any, load_worker: LoadWorker, source: Source) -> WorkerSettings:
        """Put what all workers need where they find it."""
        pickled = _pickle(ray, load_worker, "the classifier")
        whole = None
        if source.extract(range(1)) is None:
            whole = source.without_labels()
            _pickle(ray, whole, f"the source {source.spec!r}", buffer_callback=lambda _: None)
            whole = ray.put(whole)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        counter = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(TryCounter)
        loader = ray.put(pickled)
        # Once in each process, native code of Ray warns that an actor with references for arguments, like those of Ray
        # Data, cannot be restarted when these are gone; this one, whose argument stays, makes it do so.
        with silence_native_code():
            tries = counter.remote([loader])
        return WorkerSettings(secondlook.__version__, max(1, int(self.cpus_per_worker)), loader, whole, tries)


def _make_task(ray: Any, source: Source, positions: range, number: int) -> dict[str, Any]:
    part = source.extract(positions)
    return {
        "number": number,
        "start": positions.start,
        "stop": positions.stop,
        "first": source.ids[positions[0]],
        "last": source.ids[positions[-1]],
        # Ids and paths resemble each other: what stays in memory until the end is a tenth.
        "source": None if part is None else zlib.compress(_pickle(ray, part, f"the source {source.spec!r}"), 1),
    }


def _pickle(ray: Any, value: object, name: str, buffer_callback: Callable[[object], object] | None = None) -> bytes:
    """Pickle something to be sent to workers; with `buffer_callback`, arrays are left out."""
    try:
        pickled: bytes = ray.cloudpickle.dumps(value, protocol=5, buffer_callback=buffer_callback)
    except Exception as error:
        raise ClusterError(
            f"{name} cannot be sent to the workers, because it cannot be pickled: {summarize_error(error)}; open"
            " files and connections when they are first used, not before."
        ) from error
    return pickled


@contextmanager
def _ignore_warnings_of_ray() -> Iterator[None]:
    """Ignore that Ray Data uses its own deprecated settings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"ray\.")
        yield


def _read_results(rows: "list[dict[str, Any]]") -> Iterator[ComputedChunk]:
    for row in rows:
        if row["error"] is not None:
            raise rebuild_error(row["error"], row["message"])
        yield ComputedChunk(row["number"], row["content"], row["worker"], row["seconds"])
