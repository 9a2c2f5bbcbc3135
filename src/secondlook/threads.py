"""The number of CPU threads that a process may use, where several processes share a machine."""

import os
import sys

_limit: list[int | None] = [None]


def limit_threads(count: int | None) -> None:
    """Limit the threads of this process for views, and for models that are loaded from now on; None is no limit."""
    _limit[0] = count
    if count is None:
        return
    import cv2

    cv2.setNumThreads(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def find_thread_limit() -> int | None:
    """Return the limit that was set, None if there is none."""
    return _limit[0]


def count_threads() -> int:
    """Return how many threads this process may use: the limit that was set, or the number of its cores."""
    return _limit[0] or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
