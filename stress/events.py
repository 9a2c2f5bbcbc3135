"""File-system events: count those of this process inside a folder, and kill or fail at one of them."""

import builtins
import errno
import io
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Literal, cast

FaultName = Literal["kill", "full disk", "I/O error", "permission", "memory"]
ERRORS: tuple[FaultName, ...] = ("full disk", "I/O error", "permission", "memory")

CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
"""Audit events of changes; they, and that of opening a file, are raised before the system is called."""
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Fault:
    """A kill or an error at the `at`-th event in a folder; nothing if `at` is 0.

    Events are: opening a file, each write to it (a fault happens after half of it), flushing it to disk, and every
    rename, removal, link and new folder. Reads are events for errors only, since killing a reader changes nothing.
    The number of events is shared with the parent process, which can read it after a kill.
    """

    def __init__(self, name: FaultName, at: int) -> None:
        self.name = name
        self.at = at
        self._shared = mmap.mmap(-1, 8)
        self._lock = Lock()

    @property
    def events(self) -> int:
        """Number of events so far."""
        return cast(int, struct.unpack("q", self._shared[:8])[0])

    def reach(self, *, writes: bool, half: Callable[[], object] = lambda: None) -> None:
        """Count an event, and cause the fault at the chosen one; `half` first does half of the work."""
        with self._lock:
            number = self.events + 1
            self._shared[:8] = struct.pack("q", number)
        # A full disk stays full; other faults happen once.
        if self.at and (number == self.at or (self.name == "full disk" and writes and number > self.at)):
            half()
            self._happen()

    def _happen(self) -> None:
        if self.name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "memory":
            raise MemoryError
        number = {"full disk": errno.ENOSPC, "I/O error": errno.EIO, "permission": errno.EACCES}[self.name]
        raise OSError(number, os.strerror(number))

    def install(self, folder: Path) -> None:
        """Watch the events of this process inside a folder, which must be the current one."""
        prefix, fsync, plain_open = str(folder.resolve()) + os.sep, os.fsync, builtins.open

        def is_inside(path: object) -> bool:
            if not isinstance(path, str | bytes | os.PathLike):
                return False
            text = os.fsdecode(path)
            return not os.path.isabs(text) or text.startswith(prefix)  # noqa: PTH117 - called inside an audit hook

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and is_inside(arguments[0]):
                mode, flags = arguments[1] or "", arguments[2] or 0
                writes = bool(set(mode) & set("wxa+")) or bool(flags & WRITING_FLAGS)
                if writes or self.name != "kill":
                    self.reach(writes=writes)
            elif event in CHANGES and is_inside(arguments[0]):
                self.reach(writes=event in ("os.mkdir", "os.link", "os.symlink"))

        def flush_to_disk(descriptor: Any) -> None:
            self.reach(writes=True)
            fsync(descriptor)

        def open_watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if mode in ("wb", "xb") and is_inside(file):
                return _WatchedFile(self, file, mode)
            return plain_open(file, mode, *arguments, **options)

        os.fsync = cast(Any, flush_to_disk)
        builtins.open = io.open = cast(Any, open_watched)
        sys.addaudithook(watch)


class _WatchedFile(io.BufferedWriter):
    """A file that counts writes as events."""

    def __init__(self, fault: Fault, path: Any, mode: str) -> None:
        super().__init__(cast(Any, io.FileIO(path, mode)))
        self._fault = fault

    def write(self, content: Any) -> int:
        """Write, which is an event; a fault happens after half of the content is in the file."""
        view = memoryview(content).cast("B")

        def write_half() -> None:
            super(_WatchedFile, self).write(view[: len(view) // 2])
            self.flush()

        self._fault.reach(writes=True, half=write_half)
        return super().write(content)
