"""The progress bar: progress, speed and remaining time on standard error, if it is a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

Advance = Callable[[int], None]
"""Called with the number of newly finished items."""

IMAGES_X_VIEWS = "images x views"
"""Unit of progress for jobs that process every view of every image."""

SHORT = 1.0
"""Seconds before a bar appears."""

HUGGING_FACE_SWITCHES = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
"""Environment variables that hide the bars of transformers and huggingface_hub, and of datasets."""


def hide_hugging_face_bars() -> None:
    """Hide the progress bars of Hugging Face libraries; call it before they are imported."""
    os.environ.update(dict.fromkeys(HUGGING_FACE_SWITCHES, "1"))


def ignore_progress(_: int) -> None:
    """Do nothing."""


@contextmanager
def progress_bar(description: str, total: int, unit: str, *, enabled: bool = True) -> Iterator[Advance]:
    """Yield a function to call with the number of newly finished items; the bar appears if the job takes long."""
    if not (enabled and total > 0 and sys.stderr.isatty()):
        yield ignore_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """Recent number of items per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.{0 if speed >= 10 else 1}f} {unit}/s")

    columns = (
        # Narrow enough for speed and remaining time to fit into 80 columns.
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
        progress.update(task, completed=total)  # the total may have been an estimate
    finally:
        appearing.cancel()
        appearing.join()
        if progress.live.is_started:
            progress.stop()
