"""The progress bar: one line on a terminal, silent elsewhere."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from secondlook import progress
from secondlook.evaluation import evaluate
from secondlook.predictions import Execution, Predictions
from secondlook.progress import progress_bar
from secondlook.report import write_report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("collecting", 10, "images") as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("total", "enabled"), [(10, False), (0, True)])
def test_it_is_silent_if_disabled_or_without_work(monkeypatch: pytest.MonkeyPatch, total: int, enabled: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("collecting", total, "images", enabled=enabled) as advance:
        advance(total)
    assert terminal.getvalue() == ""


def watched_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal, on which a bar appears as soon as a job lasts a hundredth of a second."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "SHORT", 0.01)
    return shown


def wait_for(text: str, terminal: Terminal) -> None:
    deadline = time.monotonic() + 300
    while text not in terminal.getvalue():
        assert time.monotonic() < deadline, terminal.getvalue()
        time.sleep(0.01)


def test_it_shows_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched_terminal(monkeypatch)
    with progress_bar("collecting", 10, "images") as advance:
        wait_for("  0 %", terminal)  # though nothing is done yet
        advance(5)
        advance(5)
    assert "collecting" in terminal.getvalue()
    assert "100 %" in terminal.getvalue()
    assert "images/s" in terminal.getvalue()


def test_a_short_job_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched_terminal(monkeypatch)
    monkeypatch.setattr(progress, "SHORT", 30.0)
    with progress_bar("collecting", 10, "images") as advance:
        advance(10)
    assert terminal.getvalue() == ""


def test_a_bar_disappears_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched_terminal(monkeypatch)

    def fail() -> None:
        with progress_bar("collecting", 10, "images"):
            wait_for("collecting", terminal)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert "100 %" not in terminal.getvalue()
    length = len(terminal.getvalue())
    time.sleep(0.3)
    assert len(terminal.getvalue()) == length


def test_reading_predictions_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched_terminal(monkeypatch)
    preds = Predictions(probabilities=np.full((40, 2, 4), 0.25), views="identity hflip", labels=np.zeros(40, int))
    told: list[int] = []

    @contextmanager
    def counting(description: str, total: int, unit: str, *, enabled: bool) -> Iterator[Callable[[int], None]]:
        told.append(total)
        yield told.append

    monkeypatch.setattr("secondlook.predictions.predictions.progress_bar", counting)
    with preds.show_progress("reading", 2) as seen:
        assert [rows.stop for rows, _ in seen.blocks(15)] == [15, 30, 40]
        list(seen.select(views="identity").blocks())
        seen.predicted()
    assert told == [80, 15, 15, 10, 40, 40]
    preds.predicted()  # what was found while being watched is known
    list(preds.blocks())
    assert len(told) == 6
    assert terminal.getvalue() == ""


def test_long_work_on_predictions_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answers = rng.dirichlet(np.ones(5), size=(4000, 3))
    preds = Predictions(probabilities=answers, views="identity hflip shift:1,0", labels=rng.integers(5, size=4000))
    evaluate(preds, resamples=2)  # compiles what is compiled
    terminal = watched_terminal(monkeypatch)
    evaluate(preds, resamples=100)
    write_report(preds, tmp_path / "report.html", title="t")
    for expected in ("intervals", "resamples/s", "plots", "files/s", "bands"):
        assert expected in terminal.getvalue()
    length = len(terminal.getvalue())
    evaluate(preds, resamples=100, execution=Execution(progress=False))
    write_report(preds, tmp_path / "report.html", title="t", progress=False)
    assert len(terminal.getvalue()) == length
