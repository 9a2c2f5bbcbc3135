"""Requests to a service, as light as possible, because they share the cores of the service.

Prepared requests go over open connections, handled by one loop over plain sockets. `run_load` sends them from a
separate process.
"""

import multiprocessing
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import Float64Array

HOST = "127.0.0.1"
PIECE = 65536
END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length: "


@dataclass(frozen=True)
class Load:
    """Results of a load."""

    seconds: float
    """From the first request to the last response."""
    latencies: Float64Array
    """Seconds from the due time of each request to its response, in the order of the responses."""
    failures: int
    """Responses with a status other than 200."""


def make_requests(files: Sequence[bytes], ids: Sequence[str]) -> list[bytes]:
    """Return the bytes of a request for each image file."""
    return [
        f"POST /v1/decide?id={id_} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: image/png\r\nContent-Length: {len(file)}"
        "\r\n\r\n".encode()
        + file
        for file, id_ in zip(files, ids, strict=True)
    ]


def draw_arrivals(rate: float, count: int, seed: int) -> Float64Array:
    """Return the seconds at which requests of a Poisson process are due."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def run_load(port: int, requests: list[bytes], n_clients: int, due: Float64Array | None = None) -> Load:
    """Send requests from a separate process, see `send_requests`."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(send_requests, port, requests, n_clients, due).result()


def send_requests(port: int, requests: list[bytes], n_clients: int, due: Float64Array | None = None) -> Load:
    """Send requests over `n_clients` connections.

    Without `due`, each client sends its next request after the response to the last one (closed loop). With `due`, each
    request is sent at its due time, independently of the service (open loop). If all connections are in use, it waits,
    and its latency includes that.
    """
    with selectors.DefaultSelector() as selector:
        clients = [_Connection(port) for _ in range(n_clients)]
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        try:
            return _exchange(selector, deque(clients), deque(requests), due)
        finally:
            for client in clients:
                client.socket.close()


def _exchange(
    selector: selectors.BaseSelector, idle: "deque[_Connection]", waiting: deque[bytes], due: Float64Array | None
) -> Load:
    latencies: list[float] = []
    total, started, failures = len(waiting), time.perf_counter(), 0
    moments = deque([] if due is None else (due + started).tolist())
    while len(latencies) < total:
        now = time.perf_counter()
        while waiting and idle and (due is None or moments[0] <= now):
            moment = time.perf_counter() if due is None else moments.popleft()
            idle.popleft().send(waiting.popleft(), moment)
        timeout = max(0.0, moments[0] - now) if moments and idle else None
        for key, _ in selector.select(timeout):
            client: _Connection = key.data
            status = client.receive()
            if status is not None:
                latencies.append(time.perf_counter() - client.moment)
                failures += status != 200
                idle.append(client)
    return Load(time.perf_counter() - started, np.array(latencies), failures)


class _Connection:
    """A connection with at most one request in flight."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.moment = 0.0
        self._received = b""

    def send(self, request: bytes, moment: float) -> None:
        self.moment = moment
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """Return the status of the response once it is complete."""
        piece = self.socket.recv(PIECE)
        if not piece:
            raise ConnectionError(f"the service closed the connection after {self._received[:200]!r}")
        self._received += piece
        head, separator, body = self._received.partition(END_OF_HEAD)
        if not separator:
            return None
        start = head.lower().index(LENGTH) + len(LENGTH)
        if len(body) < int(head[start:].split(b"\r\n", 1)[0]):
            return None
        self._received = b""
        return int(head[9:12])
