"""One progress bar: how much is done, how fast, and how long it will still take. Silent where nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

Advance = Callable[[int], None]
"""Takes how many more are done."""

SHORT = 1.0
"""Seconds that a job may take without a bar."""


def unwatched(_: int) -> None:
    """Take how many more are done, and tell nobody."""


@contextmanager
def progress_bar(description: str, total: int, unit: str, *, enabled: bool = True) -> Iterator[Advance]:
    """Give a function that takes how many more are done; a long job is drawn on standard error, if a terminal."""
    if not (enabled and total > 0 and sys.stderr.isatty()):
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """How many are done per second, of late."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.{0 if speed >= 10 else 1}f} {unit}/s")

    columns = (
        # Narrow enough that rate and time left fit beside it on 80 columns.
        TextColumn("{task.description}", table_column=Column(max_width=20, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        TextColumn("{task.percentage:>3.0f} %"),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task(description, total=total)
    appearing = Timer(SHORT, progress.start)
    appearing.daemon = True
    appearing.start()
    try:
        yield lambda done: progress.update(task, advance=done)
        progress.update(task, completed=total)  # where the total was a guess, nothing is left all the same
    finally:
        appearing.cancel()
        appearing.join()
        if progress.live.is_started:
            progress.stop()
