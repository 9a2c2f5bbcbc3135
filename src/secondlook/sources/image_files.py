"""Images that are files, decoded when they are read."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from numpy.typing import ArrayLike

from secondlook.arrays import Array
from secondlook.sources.decoding import decode_file
from secondlook.sources.digests import digest_of_file, digest_of_file_status
from secondlook.sources.source import DECODING_THREADS, ReadOptions, Source

HASHED_BYTES = 2_000_000_000
"""Up to so many bytes in all, the digest covers what is in the files; above, their sizes and times of change."""


class FileSource(Source):
    """A list of image files."""

    threads: int = DECODING_THREADS

    def __init__(
        self,
        spec: str,
        paths: Sequence[Path],
        ids: Sequence[str],
        rules: ReadOptions,
        *,
        labels: ArrayLike | None = None,
        class_names: Iterable[str] | None = None,
    ) -> None:
        super().__init__(spec, ids, labels=labels, class_names=class_names, on_error=rules.on_error)
        self.paths = tuple(paths)
        self.max_pixels = rules.max_pixels

    def read(self, index: int) -> Array:
        """Decode one file. -> uint8 [H, W, 3]"""
        path = self.paths[index]
        return decode_file(path, str(path), self.max_pixels)

    def content(self, index: int) -> bytes:
        """Return the digest of one file: of its bytes, or of its size and time of change where there is too much."""
        path = self.paths[index]
        return digest_of_file(path) if self._hashes_bytes else digest_of_file_status(path)

    @cached_property
    def _hashes_bytes(self) -> bool:
        return sum(path.stat().st_size for path in self.paths if path.is_file()) <= HASHED_BYTES
