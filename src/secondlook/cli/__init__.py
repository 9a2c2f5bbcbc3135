"""The command line: `secondlook` and its commands. This module is the entry point and imports almost nothing."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = "Progress is saved; run the same command to resume."


class Interrupted(BaseException):
    """Ctrl-C. Not a `KeyboardInterrupt`, which click would turn into exit code 1."""


def main() -> None:
    """Handle Ctrl-C before the slow imports, run the command line, and exit without tearing the interpreter down.

    Threads of other libraries that need Python during teardown would abort the process after all work is done.
    """
    signal.signal(signal.SIGINT, interrupt)
    from secondlook.cli import app

    try:
        app.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise `Interrupted`; during an import, which may swallow exceptions, and the second time, exit at once."""
    signal.signal(signal.SIGINT, exit_at_once)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            exit_at_once()
        frame = frame.f_back
    raise Interrupted


def exit_at_once(_signal: int = signal.SIGINT, _frame: FrameType | None = None) -> None:
    """Exit without cleanup; this is safe because all files are written atomically."""
    os.write(2, f"interrupted: {INTERRUPTED}\n".encode())
    os._exit(130)
