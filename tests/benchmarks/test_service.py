"""The benchmark of the service: its load generator, its kills in a short form, and the documentation."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from secondlook.serving.responses import ServedDecision
from service_kills import KillReport, compare_rows, kill_service
from service_load import draw_arrivals, make_requests, send_requests
from tests.serving.running import make_digits

DELAY = 0.05


@pytest.fixture
def slow_server() -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes some time for each request, one after another; yields its port and what it received."""
    received: list[bytes] = []
    lock = threading.Lock()

    def handle(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while line := file.readline():
                length = 0
                while (header := file.readline()) != b"\r\n":
                    if header.lower().startswith(b"content-length"):
                        length = int(header.split(b":")[1])
                body = file.read(length)
                with lock:
                    received.append(line + body)
                    time.sleep(DELAY)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
                connection.sendall(b"done")

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=handle, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], received
        listener.shutdown(socket.SHUT_RDWR)


def test_clients_wait_for_their_response_before_they_send_again(slow_server: tuple[int, list[bytes]]) -> None:
    port, received = slow_server
    requests = make_requests([b"a", b"bb", b"ccc"] * 2, [str(number) for number in range(6)])
    load = send_requests(port, requests, n_clients=2)
    assert load.failures == 0
    assert sorted(received) == sorted(
        f"POST /v1/decide?id={number} HTTP/1.1\r\n".encode() + (b"a", b"bb", b"ccc")[number % 3] for number in range(6)
    )
    assert load.seconds >= 6 * DELAY
    # Two clients share a server that takes one at a time: each waits for the other.
    assert np.median(load.latencies) >= 1.5 * DELAY


def test_latency_counts_from_the_moment_a_request_was_due(slow_server: tuple[int, list[bytes]]) -> None:
    port, _ = slow_server
    requests = make_requests([b"a"] * 5, list("abcde"))
    load = send_requests(port, requests, n_clients=1, due=np.zeros(5))
    np.testing.assert_array_less(np.arange(1, 6) * DELAY, np.sort(load.latencies))
    due = np.arange(5.0) * 2 * DELAY
    load = send_requests(port, make_requests([b"a"] * 5, list("fghij")), n_clients=1, due=due)
    assert load.seconds >= due[-1] + DELAY
    assert np.median(load.latencies) < 2 * DELAY


def test_arrivals_are_a_poisson_process() -> None:
    gaps = np.diff(draw_arrivals(50.0, 20_000, seed=1))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.03)
    assert np.mean(gaps > 1 / 50) == pytest.approx(np.exp(-1), abs=0.02)


@pytest.mark.posix
def test_nothing_is_lost_or_twice_when_the_service_is_killed(tmp_path: Path) -> None:
    digits = make_digits(tmp_path)
    report = kill_service(digits.policy, tmp_path / "service", digits.files, kills=2, seed=1)
    assert report.failures == []
    assert report.kills == 2
    assert report.acknowledged > report.in_flight > 0
    assert report.reviewed_images > 0


def test_what_is_lost_twice_or_different_is_found(tmp_path: Path) -> None:
    import sqlite3

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
    rejected = ("reviewed", "no image", "no review")
    made = {
        id_: make_decision(id_, id_ not in rejected)
        for id_ in ("good", "reviewed", "twice", "other label", "no image", "lost", "no review")
    }
    report = KillReport()
    compare_rows(tmp_path, made, report)
    found = sorted(failure.split(":")[0].split(" was ")[0].split(" is ")[0] for failure in report.failures)
    assert found == ["lost", "no image", "no review", "other label", "twice", "unknown"]


def make_decision(id_: str, accept: bool) -> ServedDecision:
    return ServedDecision.model_validate(
        {
            "id": id_,
            "label": 3,
            "class": None,
            "confidence": 0.5,
            "interval": None,
            "accept": accept,
            "looks": 1,
            "first_look": 0.5,
            "disagreement": None,
            "review": "none" if accept else "waiting",
            "guarantee": None,
            "policy": "",
            "decided_at": "2026-01-02T03:04:05Z",
        }
    )
