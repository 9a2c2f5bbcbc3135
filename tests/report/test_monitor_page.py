"""The page of a monitor: what it says, what it shows, and that it is self-contained and safe."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor
from secondlook.report import write_monitor_page
from secondlook.sources import ArraySource
from tests.monitoring.streams import make_policy, make_rows, review


@pytest.fixture(scope="module")
def alarmed() -> Monitor:
    monitor = Monitor(make_policy())
    monitor.update(make_rows(1500, audit=0.2) + make_rows(700, first=1500, damage=1.5, audit=0.2))
    monitor.add_labels(review(monitor, 0.1))
    return monitor


def read_data(text: str) -> dict[str, object]:
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    data: dict[str, object] = json.loads(content)
    return data


def test_page_says_what_the_status_says(alarmed: Monitor, tmp_path: Path) -> None:
    path = write_monitor_page(alarmed, tmp_path / "monitor.html", command="secondlook calibrate --reviewed l.csv")
    text = path.read_text("utf-8").replace("\u00a0", " ")
    status = alarmed.status()
    assert status.alarm
    assert status.verdict in text
    assert status.next_step in text
    assert "▲ Alarm" in text
    assert "secondlook calibrate --reviewed l.csv" in text
    assert "estimate, not guarantee" in text
    data = read_data(text)
    windows = data["windows"]
    assert isinstance(windows, list)
    assert len(windows) == len(alarmed.timeline()) == 5
    assert windows[-1]["confidence"] == alarmed.timeline()[-1].confidence
    assert data["guaranteed"] == 0.05
    assert text.count('<tr><th scope="row">') >= 5, "a table of windows"


def test_quiet_page_has_no_command(tmp_path: Path) -> None:
    monitor = Monitor(make_policy())
    monitor.update(make_rows(600, audit=None))
    text = write_monitor_page(monitor, tmp_path / "monitor.html").read_text("utf-8")
    assert "✓ No alarm" in text
    assert 'id="command"' not in text
    assert "Audited risk</dt>" not in text.partition('id="meaning"')[0]


def test_nothing_is_fetched_and_ids_are_escaped(tmp_path: Path) -> None:
    rows = make_rows(300)
    for row in rows:
        row["id"] = f"<script>alert(1)</script>{row['id']}"
    monitor = Monitor(make_policy())
    monitor.update(rows)
    text = write_monitor_page(monitor, tmp_path / "monitor.html").read_text("utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<b>fish" not in text
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_same_monitor_gives_the_same_bytes(alarmed: Monitor, tmp_path: Path) -> None:
    alarmed.save(tmp_path / "state.json")
    again = Monitor.load(tmp_path / "state.json", alarmed.policy)
    pages = [write_monitor_page(one, tmp_path / f"{index}.html") for index, one in enumerate((alarmed, again))]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_worst_images_are_shown_if_their_source_is_given(alarmed: Monitor, tmp_path: Path) -> None:
    worst = alarmed.worst_images()
    ids = [image.id for image in worst[:-1]]
    pixels = np.random.default_rng(0).integers(0, 256, (len(ids), 300, 200, 3), dtype=np.uint8)
    source = ArraySource(pixels, ids=ids)
    text = write_monitor_page(alarmed, tmp_path / "monitor.html", source=source).read_text("utf-8")
    assert text.count("data:image/webp") == len(ids)
    assert text.count("no picture") == 1, "an image that the source does not have"
    assert len(text) < 2_000_000
    assert text.count("✗ wrong") == sum(image.wrong is True for image in worst) > 0


def test_stream_of_single_looks_has_no_plot_of_disagreements(tmp_path: Path) -> None:
    monitor = Monitor(make_policy())
    monitor.update([{**row, "disagreement": None, "looks": 1} for row in make_rows(300)])
    assert monitor.timeline()[0].disagreement is None
    text = write_monitor_page(monitor, tmp_path / "monitor.html").read_text("utf-8")
    assert 'id="disagreement-plot"' not in text
    assert 'id="confidence-plot"' in text


def test_stream_shorter_than_the_burn_in_has_no_page(tmp_path: Path) -> None:
    monitor = Monitor(make_policy())
    monitor.update(make_rows(50))
    with pytest.raises(MonitoringError, match="burn_in=100"):
        write_monitor_page(monitor, tmp_path / "monitor.html")


@pytest.mark.parametrize("images", [120, 9000])
def test_page_of_any_length_can_be_written(images: int, tmp_path: Path) -> None:
    monitor = Monitor(make_policy(risk=None), window=10)
    monitor.update(make_rows(images))
    text = write_monitor_page(monitor, tmp_path / "monitor.html").read_text("utf-8")
    windows = read_data(text)["windows"]
    assert isinstance(windows, list)
    assert 10 < len(windows) <= 400
    assert ("<details open>" in text) == (len(windows) <= 24)
