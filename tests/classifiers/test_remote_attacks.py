"""Remote models on a server that misbehaves: whatever it sends is a `ClassifierError`, soon and in little memory."""

import gzip
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.classifiers import HttpClient, load_classifier
from secondlook.errors import ClassifierError
from tests.classifiers.loopback_server import (
    IMAGES,
    LOGITS,
    METADATA,
    SERVER,
    Chunks,
    Server,
    as_json,
    http,
    infer_response,
    respond_well,
    serve,
)

Array = np.ndarray[Any, Any]
N_RESPONSES = 100
"""Of the fuzz test; the stress tests run more."""


def attack(place: str, chunks: Callable[[], Chunks]) -> Callable[[str, bytes], Chunks]:
    """Respond well except at one of the places 'metadata', 'server' and 'infer'."""

    def respond(path: str, request: bytes) -> Chunks:
        here = "infer" if path.endswith("/infer") else "metadata" if "models" in path else "server"
        return chunks() if here == place else respond_well(path, request)

    return respond


def classify(server: Server, **options: Any) -> Array:
    """Load the model of a server and classify two images, without retries."""
    settings = {"output": "logits", "retries": 0, "timeout": 1.0, **options}
    classifier = load_classifier(f"http://{server.host}/v2/models/m", **settings)
    try:
        return classifier(IMAGES)
    finally:
        classifier.close()  # type: ignore[attr-defined]


def test_the_server_of_these_tests_works() -> None:
    with serve(respond_well) as server:
        np.testing.assert_array_equal(classify(server), np.array(LOGITS, np.float32))


def test_a_server_without_the_binary_extension_gets_json() -> None:
    with serve(attack("server", lambda: [http(as_json({**SERVER, "extensions": []}))])) as server:
        np.testing.assert_array_equal(classify(server), np.array(LOGITS, np.float32))
    assert b'"data": [0.0, ' in server.requests[-1]


STRANGE_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    "x" * 5000,
    "",
    [],
    {},
    [[1], [2, 3]],
    "FP64",
    "BYTES",
    0.5,
    ["a"],
]


def mutate_json(document: Any, rng: np.random.Generator) -> Any:
    """Replace one value somewhere in a document, or remove it."""
    if isinstance(document, dict | list) and document and rng.random() < 0.85:
        changed = document.copy()
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = keys[rng.integers(len(keys))]
        if rng.random() < 0.1:
            del changed[key]
        else:
            changed[key] = mutate_json(document[key], rng)
        return changed
    return STRANGE_VALUES[rng.integers(len(STRANGE_VALUES))]


def flip_bits(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for place in rng.integers(0, len(changed), rng.integers(1, 9)):
        changed[place] ^= 1 << rng.integers(8)
    return bytes(changed)


def malformed_response(place: str, rng: np.random.Generator) -> bytes:
    """Return a response that is malformed in one of many ways."""
    outputs = {"outputs": [{"name": "scores", "datatype": "FP32", "shape": [2, 3], "data": np.ravel(LOGITS).tolist()}]}
    document: Any = {"metadata": METADATA, "server": SERVER, "infer": outputs}[place]
    body, garbage = as_json(document), rng.bytes(int(rng.integers(1, 300)))
    size = int(rng.choice([-1, 0, 7, 23, 25, 2**31, 2**63]))
    lying = {"outputs": [{**outputs["outputs"][0], "data": None, "parameters": {"binary_data_size": size}}]}
    lying_head = as_json(lying)
    numbers = b'{"outputs": [{"name": "scores", "datatype": "FP32", "shape": [2, 3], "data": [%s]}]}'
    number = [b"NaN", b"Infinity", b"1e999", b"9" * 5000, b"9" * 400, b'"1"', b"null", b"true", b"[" * 9000]

    def pick(values: list[Any]) -> Any:
        return values[rng.integers(len(values))]

    choices: list[Callable[[], bytes]] = [
        lambda: http(as_json(mutate_json(document, rng))),
        lambda: http(as_json(mutate_json(document, rng))),
        lambda: http(as_json(mutate_json(document, rng))),
        lambda: http(body[: rng.integers(len(body))]),
        lambda: http(flip_bits(body, rng)),
        lambda: flip_bits(http(body), rng),
        lambda: http(body)[: rng.integers(len(http(body)))],
        lambda: flip_bits(infer_response(), rng),
        lambda: http(b"<html><body>Please sign in</body></html>", Content_Type="text/html"),
        lambda: http(b"<html>Bad gateway</html>", status=f"{rng.integers(100, 1000)} Strange"),
        lambda: http(b"", status="302 Found", Location="http://192.0.2.1/v2"),
        lambda: http(b""),
        lambda: http(garbage),
        lambda: garbage,
        lambda: b"",
        lambda: http(numbers % b", ".join([pick(number)] * 6)),
        lambda: http(lying_head + bytes(24), Inference_Header_Content_Length=len(lying_head)),
        lambda: http(body, Inference_Header_Content_Length=pick(["-5", "0", "3", "1" * 30, "x", ""])),
        lambda: http(body, length=pick(["-1", "5", "1000000", "1" * 30, "x", ""])),
        lambda: http(b"-1\r\n" + body, Transfer_Encoding="chunked"),
        lambda: http(pick([b"zz\r\n", b"-7\r\nabc", b"fffffffffff\r\nabc", b"5\r\nab"]), Transfer_Encoding="chunked"),
        lambda: http(gzip.compress(bytes(10**6)), Content_Encoding="gzip"),
        lambda: http(body, Content_Encoding="deflate"),
        lambda: b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        lambda: b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70000,
        lambda: b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        lambda: http(b"[" * 100000),
    ]
    return bytes(pick(choices)())


def run_malformed(number: int) -> BaseException | None:
    """Classify with a malformed response; return what is raised."""
    rng = np.random.default_rng((13, number))
    place = ("metadata", "server", "infer", "infer")[rng.integers(4)]
    response = malformed_response(place, rng)
    with serve(attack(place, lambda: [response])) as server:
        try:
            classify(server)
        except Exception as error:  # noqa: BLE001
            return error
    return None


@pytest.mark.parametrize("start", range(0, N_RESPONSES, 25))
def test_malformed_responses_are_errors(start: int) -> None:
    for number in range(start, start + 25):
        error = run_malformed(number)
        assert error is None or isinstance(error, ClassifierError), (number, error)
        assert len(str(error)) < 1000, number


def drip(content: bytes, stop: threading.Event) -> Chunks:
    """Send a byte every now and then, for ever."""
    yield content
    while not stop.wait(0.05):
        yield b" "


@pytest.mark.parametrize("place", ["metadata", "server", "infer"])
@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX:", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_slow_response_ends_at_the_timeout(place: str, start: bytes) -> None:
    stop = threading.Event()
    with serve(attack(place, lambda: drip(start, stop))) as server:
        with pytest.raises(ClassifierError, match=r"within 0\.3 seconds"):
            classify(server, timeout=0.3)
        stop.set()


def test_a_server_that_never_reads_ends_at_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient("127.0.0.1", listener.getsockname()[1], encrypted=False, timeout=0.3)
        with pytest.raises(TimeoutError):
            client.send("POST", "/", headers={}, body=bytes(64 * 2**20))


ENDLESS = {
    "no length": b"HTTP/1.1 200 OK\r\n\r\n",
    "large length": b"HTTP/1.1 200 OK\r\nContent-Length: 1500000000\r\n\r\n",
    "one chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n59682f00\r\n",
    "chunk of size -1": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
    "status 500": b"HTTP/1.1 500 No\r\n\r\n",
    "continue": b"",
}


@pytest.mark.parametrize("place", ["metadata", "infer"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_large_response_is_rejected_while_it_arrives(place: str, kind: str) -> None:
    sent = [0]
    block = b"HTTP/1.1 100 Continue\r\n\r\n" * 40000 if kind == "continue" else b" " * 10**6

    def respond() -> Chunks:
        yield ENDLESS[kind]
        for _ in range(1500):
            yield block
            sent[0] += len(block)

    with serve(attack(place, respond)) as server, pytest.raises(ClassifierError, match="more than 32 MB"):
        classify(server, timeout=20.0)
    assert sent[0] < 60e6


@pytest.mark.parametrize("value", [b"[]", b"1e1", b'"ab"'])
def test_a_response_of_very_many_values_is_rejected_before_it_is_parsed(value: bytes) -> None:
    response = http(b'{"outputs": [' + b",".join([value] * 2 * 10**6) + b"]}")
    with serve(attack("infer", lambda: [response])) as server, pytest.raises(ClassifierError, match="rows_per_request"):
        classify(server)


def test_a_compressed_response_is_rejected_before_it_is_decompressed() -> None:
    bomb = http(gzip.compress(bytes(5 * 10**7)), Content_Encoding="gzip")
    with serve(attack("infer", lambda: [bomb])) as server, pytest.raises(ClassifierError, match="compressed"):
        classify(server)


@pytest.mark.parametrize("place", ["metadata", "server", "infer"])
def test_the_page_of_a_proxy_is_described(place: str) -> None:
    page = http(b"<html>Please sign in", Content_Type="text/html")
    with (
        serve(attack(place, lambda: [page])) as server,
        pytest.raises(ClassifierError, match=r"status 200, text/html.*<html>Please sign in"),
    ):
        classify(server)


def test_redirects_are_not_followed() -> None:
    with serve(respond_well) as other:
        moved = http(b"", status="307 Moved", Location=f"http://{other.host}/v2/models/m")
        with (
            serve(attack("metadata", lambda: [moved])) as server,
            pytest.raises(ClassifierError, match=rf"307.*{other.host}"),
        ):
            classify(server)
        assert not other.requests


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(respond_well) as server:
        classify(server)


def test_rows_that_do_not_belong_to_the_request_are_rejected() -> None:
    """Two requests with three rows and one row have four in all, but they would be those of other images."""
    numbers = itertools.count()

    def respond() -> Chunks:
        rows = 3 if next(numbers) == 0 else 1
        output = {"name": "scores", "datatype": "FP32", "shape": [rows, 3], "data": [0] * rows * 3}
        return [http(as_json({"outputs": [output]}))]

    with serve(attack("infer", respond)) as server:
        classifier = load_classifier(f"http://{server.host}/v2/models/m", output="logits", rows_per_request=2)
        with pytest.raises(ClassifierError, match=r"for 2 images"):
            classifier(np.concatenate([IMAGES, IMAGES]))
        classifier.close()  # type: ignore[attr-defined]


def test_a_fixed_batch_size_cannot_fill_the_memory() -> None:
    described = {**METADATA, "inputs": [{"name": "images", "datatype": "FP32", "shape": [10**9, 3, 8, 8]}]}
    with (
        serve(attack("metadata", lambda: [http(as_json(described))])) as server,
        pytest.raises(ClassifierError, match="1000000000"),
    ):
        classify(server)


@pytest.mark.parametrize(("status", "attempts"), [("404 Not Found", 2), ("503 Busy", 2), ("401 Unauthorized", 1)])
def test_only_transient_statuses_are_retried(status: str, attempts: int) -> None:
    """A server that has just started answers 404 until the model is loaded; 401 is permanent."""
    numbers = itertools.count(1)

    def respond(path: str, request: bytes) -> Chunks:
        if path.endswith("/infer") and next(numbers) == 1:
            return [http(as_json({"error": "not\nnow"}), status=status)]
        return respond_well(path, request)

    with serve(respond) as server:
        if attempts == 1:
            with pytest.raises(ClassifierError, match=r"1 attempt.*\[401\] not now"):
                classify(server, retries=3)
        else:
            np.testing.assert_array_equal(classify(server, retries=3), np.array(LOGITS, np.float32))
    assert next(numbers) == attempts + 1


def test_a_server_can_ask_to_wait_before_a_retry() -> None:
    times: list[float] = []

    def respond(path: str, request: bytes) -> Chunks:
        if path.endswith("/infer"):
            times.append(time.monotonic())
            if len(times) == 1:
                return [http(b"{}", status="503 Busy", Retry_After="1")]
        return respond_well(path, request)

    with serve(respond) as server:
        classify(server, retries=1)
    assert times[1] - times[0] >= 1


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    """The server hangs up after each response although it does not say so; no retry is spent on that."""
    with serve(respond_well) as server:
        classifier = load_classifier(f"http://{server.host}/v2/models/m", output="logits", retries=0)
        for _ in range(3):
            classifier(IMAGES)
        classifier.close()  # type: ignore[attr-defined]
