"""One progress bar: how much is done, how fast, and how long it will still take. Silent where nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(description: str, total: int, unit: str, *, enabled: bool = True) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many more are done; draws on standard error where that is a terminal."""
    if not (enabled and total > 0 and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """How many are done per second, of late."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s")

    columns = (
        # Narrow enough that rate and time left fit beside it on 80 columns.
        TextColumn("{task.description}", table_column=Column(max_width=20, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=16),
        TextColumn("{task.percentage:>3.0f} %"),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.update(task, advance=done)
