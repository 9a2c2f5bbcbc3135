"""Remote models: a real server of the protocol (MLServer), and servers that misbehave or die.

Whatever they send is a `ClassifierError`, soon and in little memory.
"""

import gzip
import itertools
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
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
    respond_by,
    respond_well,
    serve,
)

N_RESPONSES = 100
"""Of the fuzz test."""


@pytest.mark.outside
def test_model_of_a_real_server(load: Any, server: Any, images: Array, logits: Array) -> None:
    address = f"{server.address}/v2/models/tiny"
    remote = load(address, rows_per_request=2, in_flight=3)
    assert remote.preprocessing.input_size == (8, 8)
    assert remote.preprocessing.layout == "NCHW"
    assert remote.n_classes == 5
    with ThreadPoolExecutor(3) as threads:  # which share the classifier
        for found in threads.map(remote, [np.concatenate([images] * 5)] * 3):
            np.testing.assert_allclose(found, np.concatenate([logits] * 5), atol=1e-4)
    darker = load(f"{address}?output=logits&std=.5", output=None)
    assert darker.preprocessing.std == (0.5,)
    np.testing.assert_allclose(darker(images // 2), remote(images // 2 * 2), atol=1e-4)
    first, second = (load(f"{address}{end}", name="mine") for end in ("", "/"))
    assert first.digest == second.digest != remote.digest
    with pytest.raises(ClassifierError, match=r"'tny' at .* 1 attempt"):
        load(f"{server.address}/v2/models/tny")


@pytest.mark.outside
def test_a_server_that_restarts_during_a_batch_loses_nothing(
    load: Any, mortal_server: Any, images: Array, logits: Array
) -> None:
    classifier = load(f"{mortal_server.address}/v2/models/tiny", rows_per_request=1, in_flight=2, retries=200)
    with ThreadPoolExecutor(1) as thread:
        outputs = thread.submit(classifier, np.concatenate([images] * 12))
        while not mortal_server.was_used:
            assert not outputs.done()
            time.sleep(0.01)
        mortal_server.kill()
        assert not outputs.done()
        mortal_server.start(wait=False)
    np.testing.assert_allclose(outputs.result(), np.concatenate([logits] * 12), atol=1e-4)


@pytest.mark.parametrize("path", ["/v2/models/m", "/base/v2/models/m/versions/3", "/base%20a/v2/models/m/"])
def test_requests_go_to_the_path_of_the_url(path: str, load: Any) -> None:
    with serve(respond_well) as server:
        load(f"http://{server.host}{path}")(IMAGES)
    model, base = path.rstrip("/"), path.partition("/v2")[0]
    assert [request.split()[1].decode() for request in server.requests] == [model, f"{base}/v2", f"{model}/infer"]


def test_fixed_batches_are_padded(load: Any, images: Array) -> None:
    rows: list[int] = []

    def classify(inputs: Array) -> Array:
        rows.append(len(inputs))
        return inputs[:, 0, 0]

    described = {"inputs": [{"name": "images", "datatype": "UINT8", "shape": [4, 8, 8, 3]}]}
    with serve(respond_by(classify, {**METADATA, **described})) as server:
        np.testing.assert_array_equal(load(f"http://{server.host}/v2/models/m")(images), images[:, 0, 0])
    assert rows == [4, 4]


def attack(place: str, chunks: Callable[[], Chunks]) -> Callable[[str, bytes], Chunks]:
    """Respond well except at one of the places 'metadata', 'server' and 'infer'."""

    def respond(path: str, request: bytes) -> Chunks:
        here = "infer" if path.endswith("/infer") else "metadata" if "models" in path else "server"
        return chunks() if here == place else respond_well(path, request)

    return respond


def classify(server: Server, **options: Any) -> Array:
    """Load the model of a server and classify two images, without retries."""
    settings = {"output": "logits", "retries": 0, "timeout": 300.0, **options}
    classifier = load_classifier(f"http://{server.host}/v2/models/m", **settings)
    try:
        return classifier(IMAGES)
    finally:
        classifier.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("extensions", [["binary_tensor_data"], []])
def test_a_server_without_the_binary_extension_gets_json(
    extensions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):  # which are not used
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(attack("server", lambda: [http(as_json({**SERVER, "extensions": extensions}))])) as server:
        np.testing.assert_array_equal(classify(server), np.array(LOGITS, np.float32))
    assert (b'"data": [0.0, ' in server.requests[-1]) == (not extensions)


STRANGE_TEXTS = ["x" * 5000, "", "FP64", "BYTES"]
STRANGE_VALUES: list[Any] = [None, True, -1, 0, 10**30, 1e308, 0.5, [], {}, [[1], [2, 3]], ["a"], *STRANGE_TEXTS]


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


def malformed_response(place: str, rng: np.random.Generator) -> bytes:
    """Return a response that is malformed in one of many ways."""
    outputs = {"outputs": [{"name": "scores", "datatype": "FP32", "shape": [2, 3], "data": np.ravel(LOGITS).tolist()}]}

    def flip_bits(content: bytes) -> bytes:
        changed = bytearray(content)
        for spot in rng.integers(0, len(changed), rng.integers(1, 9)):
            changed[spot] ^= 1 << rng.integers(8)
        return bytes(changed)

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
        *[lambda: http(as_json(mutate_json(document, rng)))] * 3,
        lambda: http(body[: rng.integers(len(body))]),
        lambda: http(flip_bits(body)),
        lambda: flip_bits(http(body)),
        lambda: http(body)[: rng.integers(len(http(body)))],
        lambda: flip_bits(infer_response()),
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


@pytest.mark.parametrize("start", range(0, N_RESPONSES, 25))
def test_malformed_responses_are_errors(start: int) -> None:
    messages = []
    for number in range(start, start + 25):
        rng = np.random.default_rng((13, number))
        place = ("metadata", "server", "infer", "infer")[rng.integers(4)]
        response = malformed_response(place, rng)
        with serve(attack(place, [response].copy)) as server:
            try:
                classify(server)
            except ClassifierError as error:
                messages.append(str(error))
    assert max(map(len, messages)) < 1000


def drip(content: bytes) -> Chunks:
    """Send a byte every now and then, until the server is closed."""
    yield content
    while True:
        time.sleep(0.05)
        yield b" "


@pytest.mark.parametrize("place", ["metadata", "server", "infer"])
@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX:", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_slow_response_ends_at_the_timeout(place: str, start: bytes) -> None:
    respond = attack(place, lambda: drip(start))
    with serve(respond) as server, pytest.raises(ClassifierError, match=r"within 0\.3 seconds"):
        classify(server, timeout=0.3)


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
        classify(server)
    assert sent[0] < 60e6


def repeat_value(value: bytes) -> bytes:
    return http(b'{"outputs": [' + b",".join([value] * 2 * 10**6) + b"]}")


def describe_input(**changes: object) -> bytes:
    return http(as_json({**METADATA, **changes}))


PAGE = http(b"<html>Please sign in", Content_Type="text/html")
HUGE_BATCH = [{"name": "images", "datatype": "FP32", "shape": [10**9, 3, 8, 8]}]


@pytest.mark.parametrize(
    ("place", "respond", "offending"),
    [
        ("infer", lambda: repeat_value(b"[]"), "rows_per_request"),  # before it is parsed
        ("infer", lambda: repeat_value(b"1e1"), "rows_per_request"),
        ("infer", lambda: repeat_value(b'"ab"'), "rows_per_request"),
        ("infer", lambda: http(gzip.compress(bytes(5 * 10**7)), Content_Encoding="gzip"), "compressed"),
        *((place, lambda: PAGE, r"200, text/html.*<html>Please sign in") for place in ("metadata", "server", "infer")),
        ("metadata", lambda: describe_input(inputs=HUGE_BATCH), "1000000000"),  # which would fill the memory
        ("metadata", lambda: describe_input(inputs=None, outputs=[]), "has 0 inputs"),
    ],
)
def test_unusable_responses_are_described(place: str, respond: Callable[[], bytes], offending: str) -> None:
    response = respond()
    with serve(attack(place, lambda: [response])) as server, pytest.raises(ClassifierError, match=offending):
        classify(server)


def test_a_server_that_never_reads_ends_at_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient("127.0.0.1", listener.getsockname()[1], encrypted=False, timeout=0.3)
        with pytest.raises(TimeoutError):
            client.send("POST", "/", headers={}, body=bytes(64 * 2**20))


def test_redirects_are_not_followed() -> None:
    with serve(respond_well) as other:
        moved = http(b"", status="307 Moved", Location=f"http://{other.host}/v2/models/m")
        with (
            serve(attack("metadata", lambda: [moved])) as server,
            pytest.raises(ClassifierError, match=rf"307.*{other.host}"),
        ):
            classify(server)
        assert not other.requests


def test_rows_that_do_not_belong_to_the_request_are_rejected(load: Any) -> None:
    """Two requests with three rows and one row have four in all, but they would be those of other images."""
    numbers = itertools.count()

    def respond() -> Chunks:
        rows = 3 if next(numbers) == 0 else 1
        output = {"name": "scores", "datatype": "FP32", "shape": [rows, 3], "data": [0] * rows * 3}
        return [http(as_json({"outputs": [output]}))]

    with serve(attack("infer", respond)) as server:
        classifier = load(f"http://{server.host}/v2/models/m", rows_per_request=2)
        with pytest.raises(ClassifierError, match=r"for 2 images"):
            classifier(np.concatenate([IMAGES, IMAGES]))


@pytest.mark.parametrize(
    ("status", "wait", "attempts"),
    [("404 Not Found", 0, 2), ("503 Busy", 0, 2), ("503 Busy", 1, 2), ("401 Unauthorized", 0, 1)],
)
def test_only_transient_statuses_are_retried(status: str, wait: int, attempts: int) -> None:
    """A server that has just started answers 404 until the model is loaded, or asks to wait; 401 is permanent."""
    times: list[float] = []

    def respond(path: str, request: bytes) -> Chunks:
        if path.endswith("/infer"):
            times.append(time.monotonic())
            if len(times) == 1:
                asked = {"Retry_After": str(wait)} if wait else {}
                return [http(as_json({"error": "not\nnow"}), status=status, **asked)]
        return respond_well(path, request)

    with serve(respond) as server:
        if attempts == 1:
            with pytest.raises(ClassifierError, match=r"1 attempt.*\[401\] not now"):
                classify(server, retries=3)
        else:
            np.testing.assert_array_equal(classify(server, retries=attempts - 1), np.array(LOGITS, np.float32))
    assert len(times) == attempts
    assert times[-1] - times[0] >= wait


def test_retries_are_bounded_and_none_is_spent_on_a_closed_connection(load: Any) -> None:
    """The server hangs up after each response although it does not say so."""
    with serve(respond_well) as server:
        classifiers = [load(f"http://{server.host}/v2/models/m", retries=retries) for retries in (0, 2)]
        for _ in range(3):
            classifiers[0](IMAGES)
    with pytest.raises(ClassifierError, match=r"'m' at http://127.* 3 attempt"):
        classifiers[1](IMAGES)
    for location, options in (("http://localhost:9/v2/models/m", {"in_flight": 0}), ("http://localhost:9", {})):
        with pytest.raises(ClassifierError, match="in_flight=0" if options else "'http://localhost:9'"):
            load(location, **options)
