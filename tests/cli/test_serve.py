"""`secondlook serve` and `demo --serve`: options become settings, and mistakes are one sentence."""

import logging
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from secondlook.cli.serve import parse_duration
from secondlook.errors import ServingError
from secondlook.serving import server
from secondlook.serving.service import Service
from tests.cli.conftest import Here
from tests.serving.running import read_rows, run_in_thread

pytestmark = pytest.mark.usefixtures("run")


@pytest.fixture
def policy(here: Here) -> str:
    here.calibrate("--risk", "0.1", "--delta", "0.1", "--out", "policy.json")
    return "policy.json"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Service, dict[str, Any]]]:
    """The services that would listen now, with how."""
    found: list[tuple[Service, dict[str, Any]]] = []

    def note(service: Service, **how: Any) -> None:
        found.append((service, how | {"level": logging.getLogger("secondlook").level}))

    monkeypatch.setattr(server, "run_server", note)
    return found


def test_options_become_settings(here: Here, policy: str, served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--port 0 --audit 0.1 --keep 30d --no-store --lease 90s --batch-size 8 --max-wait 3 --max-waiting 50"
    here.ok(
        "serve", "--policy", policy, "--data-dir", "service", *words.split(), "--max-body", "2", "--max-pixels", "9"
    )
    ((service, how),) = served
    options = service.options
    assert (options.audit, options.keep, options.store_images, options.lease_seconds) == (0.1, 2_592_000, False, 90)
    assert (options.batch_size, options.max_wait, options.max_waiting) == (8, 0.003, 50)
    assert (options.max_body_bytes, options.max_pixels, options.port) == (2 * 2**20, 9, 0)
    assert (how["certificate"], how["key"], how["level"]) == (None, None, logging.INFO)
    assert (Path("service") / "service.db").is_file()
    monkeypatch.setitem(sys.modules, "fastapi", None)
    here.refuse("serve", "--policy", policy, "--data-dir", "service", told="secondlook[serve]")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--keep 3x", "'3x'"),
        ("--lease 0m", "'0m'"),
        ("--data-dir /dev/null/service", "'/dev/null/service'"),
        ("--database mysql://a:secret@b/c", "postgresql://"),
        ("--database postgresql://a:secret@127.0.0.1:1/c", "//***@"),
        ("--model onnx:missing.onnx", "missing.onnx"),
        ("--policy missing.json", "missing.json"),
        ("--audit 2", "--audit 2.0"),
    ],
)
def test_mistakes_are_one_sentence(here: Here, policy: str, served: list[Any], words: str, told: str) -> None:
    done = here.refuse("serve", "--policy", policy, "--data-dir", "service", *words.split(), told=told)
    assert "secret" not in done.err
    assert not served


def test_durations() -> None:
    for text, seconds in {"45s": 45, "1.5h": 5400, "30d": 2_592_000, " 2m ": 120}.items():
        assert parse_duration(text) == seconds
    for text in ("", "30", "d", "-1d", "1w", "0s", "1e3s"):
        with pytest.raises(ServingError):
            parse_duration(text)


def test_the_demo_sends_its_digits_and_opens_the_review_page(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)

    def serve_until_all_are_decided(service: Service, *, ready: Callable[[str], None], **_: object) -> None:
        with run_in_thread(service) as url:
            ready(url)
            deadline = time.monotonic() + 120
            while service.watcher.status.get("decisions", {}).get("images") != 799:
                assert time.monotonic() < deadline, service.watcher.status
                time.sleep(0.05)
            assert urllib.request.urlopen(f"{url}/review").status == 200

    monkeypatch.setattr(server, "run_server", serve_until_all_are_decided)
    here.ok("demo", "--serve", "--port", "0", "--out", "shown")
    assert opened[0].endswith("/review")
    ((images, rejected),) = read_rows(Path("shown/service"), "SELECT count(*), sum(NOT accept) FROM decisions")
    assert images == 799
    assert rejected > 50
    again = here("demo", "--serve", "--port", "0", "--out", "shown")  # the dashboard still has the decisions
    assert again.code == 0, again.err
    assert read_rows(Path("shown/service"), "SELECT count(*) FROM deployments") == [(1,)]
