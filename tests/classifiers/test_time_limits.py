"""Time limits: calls that take too long are stopped, by one thread for all of them."""

import os
import threading
import time

import pytest

from secondlook.classifiers.onnx_file import TIME_LIMITS, TimeLimits


def test_only_the_call_that_takes_too_long_is_stopped() -> None:
    limits, stopped, late = TimeLimits(), threading.Event(), threading.Event()
    with limits.limit(60, late.set), limits.limit(0.01, stopped.set):
        assert stopped.wait(20)
    with limits.limit(60, late.set):
        pass
    assert not late.is_set()


def test_call_in_time_is_never_stopped() -> None:
    limits, stopped = TimeLimits(), threading.Event()
    with limits.limit(0.2, stopped.set):
        pass
    assert not stopped.wait(0.4)


def test_shorter_limit_is_kept_while_a_longer_one_is_watched() -> None:
    limits, stopped = TimeLimits(), threading.Event()
    with limits.limit(60, lambda: None):
        time.sleep(0.05)
        with limits.limit(0.01, stopped.set):
            assert stopped.wait(20)


def test_call_is_forgotten_when_it_fails() -> None:
    limits, stopped = TimeLimits(), threading.Event()
    with pytest.raises(ZeroDivisionError), limits.limit(0.2, stopped.set):
        raise ZeroDivisionError
    assert not stopped.wait(0.4)


def test_one_thread_watches_all_calls() -> None:
    def count() -> int:
        return sum(thread.name == "secondlook-time-limits" for thread in threading.enumerate())

    limits = TimeLimits()
    before = count()
    for _ in range(100):
        with limits.limit(60, lambda: None):
            pass
    assert count() == before + 1


def test_a_thread_that_cannot_be_started_is_started_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, stopped = TimeLimits(), threading.Event()

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError), limits.limit(0.01, lambda: None):
            pass
    with limits.limit(0.01, stopped.set):
        assert stopped.wait(20)


@pytest.mark.posix
def test_limits_hold_in_a_forked_process() -> None:
    with TIME_LIMITS.limit(60, lambda: None):
        pass
    process = os.fork()
    if process == 0:
        stopped = threading.Event()
        with TIME_LIMITS.limit(0.01, stopped.set):
            os._exit(0 if stopped.wait(20) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
