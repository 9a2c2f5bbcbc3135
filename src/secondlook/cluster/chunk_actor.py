"""The actor that computes chunks in the worker processes of a cluster."""

import os
import pickle
import re
import socket
import time
import zlib
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import secondlook
from secondlook import SecondLookError, Source
from secondlook.extension import ANY, ClusterError, Repair, Worker, limit_threads

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TRIES = 4
"""How often workers may die on the same chunks. Ray Data retries forever, and its option for a limit is deprecated."""


class TryCounter:
    """Counts the starts of each task, in a process that outlives the workers. `references` are not used."""

    def __init__(self, references: list[Any]) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, task: int) -> int:
        """Count a start of a task, and return its number of starts."""
        self._counts[task] += 1
        return self._counts[task]


class ChunkActor:
    """Computes the chunks of one task after another; Ray Data creates one in each worker process.

    The arguments are the secondlook version of the reader, the number of CPU threads, and references to a pickled
    `LoadWorker`, to the source if its chunks cannot be sent one by one, and to the actor `TryCounter`.
    """

    def __init__(self, version: str, threads: int, load_worker: Any, whole_source: Any, tries: Any) -> None:
        # Loads nothing: Ray restarts a process forever if it dies in its constructor.
        self._version, self._threads, self._tries = version, threads, tries
        self._load_worker, self._source = load_worker, whole_source
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, tasks: "pa.Table") -> "pa.Table":
        """Return a row for each chunk: number, content, worker, seconds; or one with an error."""
        import pyarrow as pa

        chunks = tasks.to_pylist()
        try:
            self._begin(chunks)
            rows = [self._compute(chunk) for chunk in chunks]
        except SecondLookError as error:
            rows = [{"number": chunks[0]["number"], "error": encode_error(error)}]
        binary, text = pa.large_binary(), pa.large_string()
        types = {"number": pa.int64(), "content": binary, "worker": text, "seconds": pa.float64(), "error": binary}
        # Without a schema, NumPy would strip trailing zero bytes of `content`.
        return pa.Table.from_pylist(rows, schema=pa.schema(types))

    def _begin(self, chunks: "list[dict[str, Any]]") -> None:
        import ray

        if self._version != secondlook.__version__:
            fault = f"worker {self._name} has secondlook {secondlook.__version__}, the job {self._version}"
            raise ClusterError(fault, repair="install the same version on all machines of the cluster")
        tries = ray.get(self._tries.begin.remote(chunks[0]["number"]))
        if tries > MAX_TRIES:
            fault = f"worker processes died {MAX_TRIES} times on {_describe(chunks)}, perhaps out of memory"
            repair = Repair("try these images on one machine, or pass a smaller {part_size}", part_size=ANY)
            raise ClusterError(fault, repair=repair)

    def _compute(self, chunk: dict[str, Any]) -> dict[str, Any]:
        try:
            worker = self._worker
            if chunk["source"] is None:
                source: Source = self._whole_source.select(np.arange(chunk["start"], chunk["stop"]))
            else:
                source = pickle.loads(zlib.decompress(chunk["source"]))
            started = time.perf_counter()
            content = worker(chunk["number"], source)
        except SecondLookError:
            raise
        except Exception as error:
            fault = f"worker {self._name} failed on {_describe([chunk])}: {summarize_error(error)}"
            raise ClusterError(fault, repair="try these images on one machine") from error
        seconds = time.perf_counter() - started
        return {"number": chunk["number"], "content": content, "worker": self._name, "seconds": seconds}

    @cached_property
    def _worker(self) -> Worker:
        import ray

        limit_threads(self._threads)
        worker: Worker = pickle.loads(ray.get(self._load_worker))()
        return worker

    @cached_property
    def _whole_source(self) -> Any:
        import ray

        return ray.get(self._source)


def encode_error(error: SecondLookError) -> bytes:
    """Pickle an error as its nearest base class in `secondlook.errors`, which every process can import."""
    kind: Any = next(kind for kind in type(error).__mro__ if kind.__module__ == SecondLookError.__module__)
    known = kind.__new__(kind)
    known.__dict__.update(error.__dict__)
    return pickle.dumps(known)


def _describe(chunks: "list[dict[str, Any]]") -> str:
    first, last = chunks[0], chunks[-1]
    numbers = f"chunk {first['number']}" if first is last else f"chunks {first['number']} to {last['number']}"
    return f"{numbers} (images {first['first']!r} to {last['last']!r})"


def summarize_error(error: BaseException) -> str:
    """Return the type and the first line of an error; for errors of Ray, of the first cause."""
    message = str(error).strip()
    first_line = message.partition("\n")[0]
    if type(error).__module__.startswith(
        "ray."
    ):  # the message contains the tracebacks of other processes, causes first
        cause = re.search(r"^\s*([\w.]+(?:Error|Exception): .+)$", message, re.MULTILINE)
        return (cause.group(1) if cause else first_line).rstrip(".")
    return f"{type(error).__name__}: {first_line}".rstrip(".: ")
