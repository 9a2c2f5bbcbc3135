"""The benchmark of the service: its load generator, and its kills in a short form."""

import socketserver
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service_kills import KillReport, compare_rows, kill_service
from service_load import draw_arrivals, make_requests, send_requests
from tests.serving.running import make_digits

DELAY = 0.05


@pytest.fixture
def slow_server() -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes some time for each request, one after another; yields its port and what it received."""
    received: list[bytes] = []
    lock = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                length = 0
                while (header := self.rfile.readline()) != b"\r\n":
                    if header.lower().startswith(b"content-length"):
                        length = int(header.split(b":")[1])
                body = self.rfile.read(length)
                with lock:
                    received.append(line + body)
                    time.sleep(DELAY)
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
                self.wfile.write(b"done")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_address[1], received
        server.shutdown()


def test_clients_wait_and_latency_counts_from_when_a_request_was_due(
    slow_server: tuple[int, list[bytes]],
) -> None:
    port, received = slow_server
    bodies = [b"a", b"bb", b"ccc"] * 2
    load = send_requests(port, make_requests(bodies, list("012345")), n_clients=2)
    assert load.failures == 0
    assert sorted(received) == [b"POST /v1/decide?id=%d HTTP/1.1\r\n%s" % pair for pair in enumerate(bodies)]
    assert load.seconds >= 6 * DELAY
    # Two clients share a server that takes one at a time: each waits for the other.
    assert np.median(load.latencies) >= 1.5 * DELAY
    load = send_requests(port, make_requests([b"a"] * 5, list("abcde")), n_clients=1, due=np.zeros(5))
    np.testing.assert_array_less(np.arange(1, 6) * DELAY, load.latencies)
    due = np.arange(5.0) * 2 * DELAY
    load = send_requests(port, make_requests([b"a"] * 5, list("fghij")), n_clients=1, due=due)
    np.testing.assert_array_less(due + DELAY, due + load.latencies)
    np.testing.assert_array_less(due + load.latencies, load.seconds + 1e-6)


def test_arrivals_are_a_poisson_process() -> None:
    gaps = np.diff(draw_arrivals(50.0, 20_000, seed=1))
    assert [gaps.mean(), gaps.std()] == pytest.approx([1 / 50] * 2, rel=0.03)
    assert np.mean(gaps > 1 / 50) == pytest.approx(np.exp(-1), abs=0.02)


@pytest.mark.posix
def test_nothing_is_lost_or_twice_when_the_service_is_killed(tmp_path: Path) -> None:
    digits = make_digits(tmp_path)
    report = kill_service(digits.policy, tmp_path / "service", digits.files, kills=2, seed=1)
    assert (report.failures, report.kills) == ([], 2)
    assert report.acknowledged > report.in_flight > 0
    assert report.reviewed_images > 0


def test_what_is_lost_twice_or_different_is_found(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "service.db")
    connection.executescript(
        """
        create table decisions (number integer, id text, label integer, confidence real, accept boolean);
        create table reviews (number integer);
        create table images (number integer, content blob);
        insert into decisions values (1, 'good', 3, 0.5, 1), (2, 'reviewed', 3, 0.5, 0), (3, 'twice', 3, 0.5, 1),
            (4, 'twice', 3, 0.5, 1), (5, 'other label', 4, 0.5, 1), (6, 'no image', 3, 0.5, 0),
            (7, 'unknown', 3, 0.5, 1), (8, 'no review', 3, 0.5, 0);
        insert into reviews values (2), (6);
        insert into images values (2, 'x');
        """
    )
    connection.close()
    made: dict[str, Any] = {
        id_: SimpleNamespace(label=3, confidence=0.5, accept=review == "none", review=review)
        for review, ids in {
            "none": ("good", "twice", "other label", "lost"),
            "waiting": ("reviewed", "no image", "no review"),
        }.items()
        for id_ in ids
    }
    report = KillReport()
    compare_rows(tmp_path, made, report)
    found = sorted(failure.split(":")[0].split(" was ")[0].split(" is ")[0] for failure in report.failures)
    assert found == ["lost", "no image", "no review", "other label", "twice", "unknown"]
