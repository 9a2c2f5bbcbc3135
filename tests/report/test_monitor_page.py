"""The page of a monitor: its texts and images, self-contained and safe."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.errors import MonitoringError
from secondlook.monitoring import Monitor
from secondlook.report import write_monitor_page
from secondlook.sources import ArraySource
from tests.monitoring.streams import make_policy, make_rows, review
from tests.report.conftest import Report


@pytest.fixture(scope="module")
def alarmed() -> Monitor:
    monitor = Monitor(make_policy())
    monitor.update(make_rows(1500, audit=0.2) + make_rows(700, first=1500, damage=1.5, audit=0.2))
    monitor.add_labels(review(monitor, 0.1))
    return monitor


def write(monitor: Monitor, path: Path, **options: Any) -> Report:
    return Report(write_monitor_page(monitor, path / "monitor.html", **options))


def write_rows(rows: list[dict[str, Any]], path: Path) -> Report:
    """Write the page of a monitor that has seen rows."""
    monitor = Monitor(make_policy())
    monitor.update(rows)
    return write(monitor, path)


def test_page_shows_the_status_reproducibly(alarmed: Monitor, tmp_path: Path) -> None:
    page = write(alarmed, tmp_path, command="secondlook calibrate --reviewed l.csv")
    text, data, content, status = page.text, page.data, page.path.read_bytes(), alarmed.status()
    assert status.alarm
    shown = (status.verdict, status.next_step, "▲ Alarm", "secondlook calibrate --reviewed l.csv")
    for told in (*shown, "estimate, not guarantee"):
        assert told in text
    assert len(data["windows"]) == len(alarmed.timeline()) == 5
    assert data["windows"][-1]["confidence"] == alarmed.timeline()[-1].confidence
    assert data["guaranteed"] == 0.05
    assert text.count('<tr><th scope="row">') >= 5, "a table of windows"
    alarmed.save(tmp_path / "state.json")
    again = Monitor.load(tmp_path / "state.json", alarmed.policy)
    assert write(again, tmp_path, command="secondlook calibrate --reviewed l.csv").path.read_bytes() == content


def test_quiet_page_has_no_command(tmp_path: Path) -> None:
    text = write_rows(make_rows(600, audit=None), tmp_path).text
    assert "✓ No alarm" in text
    assert 'id="command"' not in text
    assert "Audited risk</dt>" not in text.partition('id="meaning"')[0]


def test_page_fetches_nothing_and_escapes_ids(tmp_path: Path) -> None:
    text = write_rows([{**row, "id": f"<script>alert(1)</script>{row['id']}"} for row in make_rows(300)], tmp_path).text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<b>fish" not in text
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_page_shows_reviews_other_than_classes(tmp_path: Path) -> None:
    monitor = Monitor(make_policy())
    monitor.update(make_rows(1000, audit=0.2))
    answers = itertools.cycle(("none of these", "bad image", "cannot tell", "cat"))
    assert monitor.add_labels(dict(zip(monitor.labels, answers, strict=False))) > 300
    page, unknown = write(monitor, tmp_path), monitor.status().unknown
    assert unknown is not None
    assert unknown.share is not None
    for number in (f"{unknown.none_of_these} of {unknown.reviewed} reviewed", f"{unknown.bad_images} bad images"):
        assert number in page.text
    assert "label none of these" in page.text or "✗ wrong:</b> none of these" in page.text
    assert 'id="unknown-plot"' in page.text
    shares = [window["unknown"] for window in page.data["windows"]]
    assert all(abs(share - unknown.share) < 0.1 for share in shares)
    assert 'id="unknown-plot"' not in write_rows(make_rows(300), tmp_path).text


def test_worst_images_are_shown_if_their_source_is_given(alarmed: Monitor, tmp_path: Path) -> None:
    worst = alarmed.worst_images()
    ids = [image.id for image in worst[:-1]]
    pixels = np.random.default_rng(0).integers(0, 256, (len(ids), 300, 200, 3), dtype=np.uint8)
    text = write(alarmed, tmp_path, source=ArraySource(pixels, ids=ids)).text
    assert text.count("data:image/webp") == len(ids)
    assert text.count("no picture") == 1, "an image that the source does not have"
    assert len(text) < 2_000_000
    assert text.count("✗ wrong") == sum(image.wrong is True for image in worst) > 0


def test_short_streams_have_no_page_and_single_looks_no_disagreement_plot(tmp_path: Path) -> None:
    page = write_rows([{**row, "disagreement": None, "looks": 1} for row in make_rows(300)], tmp_path)
    assert {window["disagreement"] for window in page.data["windows"]} == {None}
    assert 'id="disagreement-plot"' not in page.text
    assert 'id="confidence-plot"' in page.text
    with pytest.raises(MonitoringError, match="burn_in=100"):
        write_rows(make_rows(50), tmp_path)


@pytest.mark.parametrize("images", [120, 9000])
def test_page_of_any_length_can_be_written(images: int, tmp_path: Path) -> None:
    monitor = Monitor(make_policy(risk=None), window=10)
    monitor.update(make_rows(images))
    page = write(monitor, tmp_path)
    windows = page.data["windows"]
    assert 10 < len(windows) <= 400
    assert ("<details open>" in page.text) == (len(windows) <= 24)
