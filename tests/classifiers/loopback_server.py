"""A loopback server of the Open Inference Protocol that can be made to misbehave."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

Chunks = Iterable[bytes]
IMAGES = np.zeros((2, 8, 8, 3), np.uint8)
LOGITS = [[0.5, -2.0, 3.25], [1.0, 2.0, 4.0]]
METADATA = {
    "name": "m",
    "versions": ["1"],
    "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
}
SERVER = {"name": "s", "version": "1", "extensions": ["binary_tensor_data"]}


class Server:
    """A loopback server that sends the bytes of `respond(path, request)` for each request and then hangs up."""

    def __init__(self, respond: Callable[[str, bytes], Chunks]) -> None:
        self.requests: list[bytes] = []
        self._respond = respond
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                self._connections.append(self._listener.accept()[0])
                self._threads.append(threading.Thread(target=self._handle, args=self._connections[-1:], daemon=True))
                self._threads[-1].start()

    def _handle(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = _receive(connection)
            self.requests.append(request)
            for chunk in self._respond(request.split(b" ")[1].decode(), request):
                connection.sendall(chunk)

    def close(self) -> None:
        """Hang up, which ends the threads, except one that `respond` itself keeps waiting."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(1)


def _receive(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65536) or bytes(int(lengths[0]))
    return head + b"\r\n\r\n" + body


@contextmanager
def serve(respond: Callable[[str, bytes], Chunks]) -> Iterator[Server]:
    server = Server(respond)
    try:
        yield server
    finally:
        server.close()


def http(body: bytes, *, status: str = "200 OK", length: object = None, **headers: object) -> bytes:
    lines = {"Content-Length": len(body) if length is None else length, **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


def infer_response(*, binary: bool = True) -> bytes:
    output: dict[str, Any] = {"name": "scores", "datatype": "FP32", "shape": [2, 3]}
    values = np.array(LOGITS, np.float32)
    if not binary:
        return http(as_json({"outputs": [{**output, "data": values.ravel().tolist()}]}))
    head = as_json({"outputs": [{**output, "parameters": {"binary_data_size": values.nbytes}}]})
    return http(head + values.tobytes(), Inference_Header_Content_Length=len(head))


def respond_well(path: str, request: bytes) -> Chunks:
    if path.endswith("/infer"):
        yield infer_response(binary=b"binary_data_size" in request)
    else:
        yield http(as_json(METADATA if "models" in path else SERVER))


def respond_by(classify: Callable[[Any], Any], metadata: object = METADATA) -> Callable[[str, bytes], Chunks]:
    """Respond to inputs, which come as JSON, with what a function returns for them. [n, ...] -> [n, classes]"""

    def respond(path: str, request: bytes) -> Chunks:
        if not path.endswith("/infer"):
            return [http(as_json(metadata if "models" in path else {}))]
        sent = json.loads(request.partition(b"\r\n\r\n")[2])["inputs"][0]
        values = classify(np.array(sent["data"]).reshape(sent["shape"]))
        tensor = {"name": "scores", "datatype": "FP32", "shape": list(values.shape), "data": values.ravel().tolist()}
        return [http(as_json({"outputs": [tensor]}))]

    return respond
