"""Limit on the CPU threads of a process, for several processes on one machine."""

import os
import sys

_limit: list[int | None] = [None]


def limit_threads(count: int | None) -> None:
    """Limit the threads of this process for views, and for models loaded later; None means no limit."""
    _limit[0] = count
    if count is None:
        return
    import cv2

    cv2.setNumThreads(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def find_thread_limit() -> int | None:
    """Return the present limit; None if there is none."""
    return _limit[0]


def count_threads() -> int:
    """Return the number of threads that this process may use: the limit, or its number of cores."""
    return _limit[0] or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
