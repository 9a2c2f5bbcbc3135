"""Engines: where the chunks of a job are computed, if not in this process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from secondlook.predictions.batching import Chunking
from secondlook.sources import Source

Worker = Callable[[int, Source], bytes]
"""Computes one chunk from its number and a source of its images only, and returns it encoded."""

LoadWorker = Callable[[], Worker]
"""Loads a worker, with its classifier, in another process. It is sent there by pickle."""


class ComputedChunk(NamedTuple):
    """A chunk that a worker has computed."""

    number: int
    content: bytes
    """What the worker returned."""
    worker: str
    """Name of the worker: its machine and process."""
    seconds: float
    """How long the worker took."""


class Engine(ABC):
    """Computes chunks in other processes or on other machines."""

    part_size: int
    """Number of images per chunk by default: small enough to keep all workers busy to the end."""

    @abstractmethod
    def compute_chunks(
        self, load_worker: LoadWorker, source: Source, chunking: Chunking, numbers: Sequence[int]
    ) -> Generator[ComputedChunk, None, None]:
        """Compute the chunks with the given numbers and yield each once, in the order in which they are finished.

        An error that a worker raises on purpose (`SecondLookError`) is raised here; a worker that dies is replaced.
        """
