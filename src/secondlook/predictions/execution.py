"""`Execution`: where and how a job runs, without effect on its results; `Engine`: other processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from secondlook.classifiers import Classifier
from secondlook.predictions.batching import BatchSize, Chunking, check_size
from secondlook.sources import OnError, Source

Worker = Callable[[int, Source], bytes]
"""Computes one chunk from its number and a source of its images only, and returns it encoded."""

LoadWorker = Callable[[], Worker]
"""Loads a worker, with its classifier, in another process; must be picklable."""


class ComputedChunk(NamedTuple):
    """A chunk that a worker has computed."""

    number: int
    content: bytes
    """The encoded chunk."""
    worker: str
    """Name of the worker: its machine and process."""
    seconds: float
    """Run time of the worker."""


class Engine(ABC):
    """Computes chunks in other processes or on other machines."""

    part_size: int
    """Number of images per chunk by default: small enough to keep all workers busy to the end."""

    @abstractmethod
    def compute_chunks(
        self, load_worker: LoadWorker, source: Source, chunking: Chunking, numbers: Sequence[int]
    ) -> Generator[ComputedChunk, None, None]:
        """Compute the chunks with the given numbers and yield each once, in the order of completion.

        A `SecondLookError` of a worker is raised here; a worker that dies is replaced.
        """


@dataclass(frozen=True)
class Execution:
    """Where and how a job runs: `Execution(device="cuda", batch_size=256)`.

    Attributes
    ----------
    device
        Where to classify: "auto" (GPUs if the model can use them), "cpu", "cuda" (all GPUs) or "cuda:N".
    batch_size
        Number of images per call of the classifier; "auto" chooses it by the size of the images.
    engine
        Where to compute chunks: by default in this process, with `secondlook.cluster.RayEngine` on a cluster.
    part_size
        Number of images per chunk; by default chosen by the size of the images, or by the engine.
    on_error
        Handling of unreadable images: "fail" (the default), or "skip" (the default with an engine).
    progress
        Whether to show progress bars.
    """

    device: str = "auto"
    batch_size: BatchSize = "auto"
    engine: Engine | None = None
    part_size: int | None = None
    on_error: OnError | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        Classifier.check_device(self.device)
        if self.batch_size != "auto":
            check_size("batch_size", self.batch_size)
        if self.part_size is not None:
            check_size("part_size", self.part_size)


DEFAULT_EXECUTION = Execution()
