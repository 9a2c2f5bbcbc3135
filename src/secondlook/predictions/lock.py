"""Locks between processes that share a store; the system gives them back when a process dies."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def alone(path: Path) -> Iterator[BinaryIO]:
    """Hold the lock file `path` so that no other process holds it, waiting for it if need be; gives the open file."""
    with path.open("ab") as file:
        _lock(file, shared=False, wait=True)
        yield file


@contextmanager
def together(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` beside others; gives whether this process was alone at the beginning."""
    with path.open("ab") as file:
        was_alone = _lock(file, shared=False, wait=False)
        _lock(file, shared=True, wait=True)
        yield was_alone


if sys.platform == "win32":

    def _lock(file: BinaryIO, *, shared: bool, wait: bool) -> bool:
        """Windows has no shared locks: one store is for one process at a time there, and nothing is cleaned up."""
        return shared or wait

else:
    import fcntl

    def _lock(file: BinaryIO, *, shared: bool, wait: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
