"""The progress bar: silent where nobody looks, one line where somebody does."""

import io
import sys

import pytest

from secondlook.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("collecting", 10, "images") as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("total", "enabled"), [(10, False), (0, True)])
def test_it_is_silent_when_not_wanted_or_nothing_is_to_be_done(
    monkeypatch: pytest.MonkeyPatch, total: int, enabled: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("collecting", total, "images", enabled=enabled) as advance:
        advance(total)
    assert terminal.getvalue() == ""


def test_it_shows_how_much_is_done_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar("collecting", 10, "images") as advance:
        advance(5)
        advance(5)
    assert "collecting" in terminal.getvalue()
    assert "100 %" in terminal.getvalue()
    assert "images/s" in terminal.getvalue()
