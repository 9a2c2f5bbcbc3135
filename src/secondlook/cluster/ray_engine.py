"""The engine that computes chunks on a Ray cluster, by Ray Data."""

import itertools
import math
import pickle
import warnings
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, cast

import secondlook
from secondlook import Source
from secondlook.cluster.chunk_actor import ChunkActor, TryCounter, WorkerSettings
from secondlook.cluster.connection import connect, silence_native_code, summarize_error
from secondlook.extension import ANY, Chunking, ClusterError, ComputedChunk, Engine, LoadWorker, Repair

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
                "no machine of the Ray cluster has enough for a worker; the largest have"
                f" {largest['CPU']:g} CPUs and {largest['GPU']:g} GPUs",
                repair=Repair(
                    "pass less than {cpus_per_worker} and {gpus_per_worker}, or add machines with more",
                    cpus_per_worker=self.cpus_per_worker,
                    gpus_per_worker=self.gpus_per_worker,
                ),
            )
        free = ray.available_resources()
        return max(1, min(fitting, *(int(free.get(kind, 0) // share) for kind, share in wanted.items())))

    def _send(self, ray: Any, load_worker: LoadWorker, source: Source) -> WorkerSettings:
        """Put what all workers need where they find it."""
        loader = ray.put(_serialize(ray.cloudpickle.dumps, load_worker, "the classifier"))
        whole = None
        if source.extract(range(1)) is None:
            whole = _serialize(ray.put, source.without_labels(), f"the source {source.spec!r}")
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        counter = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)(TryCounter)
        # Once in each process, native code of Ray warns that an actor with references for arguments, like those of Ray
        # Data, cannot be restarted when these are gone; this one, whose argument stays, makes it do so.
        with silence_native_code():
            tries = counter.remote([loader])
        return WorkerSettings(secondlook.__version__, max(1, int(self.cpus_per_worker)), loader, whole, tries)


def _make_task(ray: Any, source: Source, positions: range, number: int) -> dict[str, Any]:
    part: Any = source.extract(positions)
    if part is not None:
        # Ids and paths resemble each other: what stays in memory until the end is a tenth.
        part = zlib.compress(_serialize(ray.cloudpickle.dumps, part, f"the source {source.spec!r}"), 1)
    first, last = source.ids[positions[0]], source.ids[positions[-1]]
    bounds = {"start": positions.start, "stop": positions.stop, "first": first, "last": last}
    return {"number": number, **bounds, "source": part}


def _serialize(serialize: Callable[[object], Any], value: object, name: str) -> Any:
    """Return something in a form that can be sent to workers."""
    try:
        return serialize(value)
    except Exception as error:
        raise ClusterError(
            f"{name} cannot be sent to the workers, because it cannot be pickled: {summarize_error(error)}; open"
            " files and connections when they are first used, not before."
        ) from error
