"""Time limits for calls that can be stopped only from another thread."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeLimits:
    """Stops calls that take too long.

    One thread watches all calls: to start and join a thread for each takes longer than the call where all cores are
    busy. It is a daemon that waits in Python only, and so may be cut off when the interpreter exits.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[object, tuple[float, Callable[[], object]]] = {}
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop` if the body takes longer than `seconds`."""
        call = object()
        deadline = time.monotonic() + seconds
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, daemon=True, name="secondlook-time-limits")
                thread.start()  # which can fail, and waits for the lock
                self._thread = thread
            elif deadline < self._wakes_at:
                self._changed.notify()
            self._calls[call] = (deadline, stop)
        try:
            yield
        finally:
            with self._changed:
                self._calls.pop(call, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call, (deadline, stop) in list(self._calls.items()):
                    if deadline <= now:
                        del self._calls[call]
                        stop()
                self._wakes_at = min((deadline for deadline, _ in self._calls.values()), default=math.inf)
                self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))


TIME_LIMITS = TimeLimits()
"""The time limits of all classifiers of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TIME_LIMITS._reset)  # threads do not survive a fork
