"""`Client`: requests, retries and parsed responses."""

import io
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import secondlook as sl
from secondlook.errors import ServingError, SourceError
from secondlook.serving import Client
from secondlook.serving.responses import RequestError
from stress.server_process import ServerProcess
from tests.classifiers.loopback_server import as_json, http
from tests.classifiers.loopback_server import serve as serve_loopback
from tests.serving.running import Digits, Server, make_noise, read_rows, serve, wait_for
from tests.serving.streams import REVIEWER

DECISION: dict[str, Any] = {
    "id": "a", "label": 3, "labels": None, "class": "cat", "confidence": 0.75, "interval": [0.5, 0.875],
    "accept": True, "looks": 13, "first_look": 0.5, "disagreement": 0.25, "review": "none", "policy": "c" * 64,
    "guarantee": {"risk": 0.01, "delta": 0.001, "text": "at most 1 %"}, "decided_at": "2026-01-02T03:04:05Z",
}  # fmt: skip
ANYWHERE = "http://127.0.0.1:9"
Respond = Callable[[str, bytes], Iterable[bytes]]


def respond(*replies: bytes | None) -> Respond:
    """Send each reply once, then the last one for ever; None hangs up."""
    left = list(replies)
    lock = threading.Lock()

    def reply(path: str, request: bytes) -> Iterable[bytes]:
        with lock:
            one = left.pop(0) if len(left) > 1 else left[0]
        return [] if one is None else [one]

    return reply


def decision(**changes: Any) -> bytes:
    return http(as_json({**DECISION, **changes}))


def error(status: str, code: str, **headers: object) -> bytes:
    return http(as_json({"error": {"code": code, "message": f"it is {code}."}}), status=status, **headers)


def read_query(request: bytes) -> dict[str, list[str]]:
    return parse_qs(urlsplit(request.split(b" ")[1].decode()).query, keep_blank_values=True)


def decide(respond: Respond, image: object = b"file", timeout: float = 240, **options: Any) -> tuple[Any, list[bytes]]:
    """Send an image to a server; returns the decision or the error, and the received request."""
    with serve_loopback(respond) as server, Client(f"http://{server.host}", timeout=timeout, **options) as service:
        try:
            return service.decide(image), server.requests
        except (ServingError, SourceError) as raised:
            return raised, server.requests


def test_decide_returns_the_decision_and_never_shows_the_token() -> None:
    with serve_loopback(respond(decision())) as server:
        service = Client(f"http://{server.host}/digits/", timeout=240)
        made = service.decide(b"the bytes of a file", id="a")
    (request,) = server.requests
    assert request.startswith(b"POST /digits/v1/decide?id=a "), "below a path of a proxy"
    assert request.endswith(b"\r\n\r\nthe bytes of a file")
    assert (made.id, made.label, made.class_name, made.accept, made.interval) == ("a", 3, "cat", True, (0.5, 0.875))
    assert made.guarantee is not None
    assert (made.guarantee.risk, made.guarantee.text) == (0.01, "at most 1 %")
    assert made.decided_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert made.reviewed_label is None
    bare = decision(**{"class": None}, interval=None, disagreement=None, guarantee=None, labels=[3, 1], new_field=1)
    made, _ = decide(respond(bare))
    assert (made.class_name, made.interval, made.guarantee, made.labels) == (None, None, None, (3, 1))
    echo = http(as_json({"error": {"code": "token", "message": "unknown sl_1_secret"}}), status="401 Unauthorized")
    raised, (request,) = decide(respond(echo), token="sl_1_secret")
    assert b"Authorization: Bearer sl_1_secret\r\n" in request
    assert "secret" not in str(raised) + repr(Client(ANYWHERE, token="sl_1_secret"))


COLOR = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


def list_images() -> Iterable[tuple[object, Any]]:
    yield from ((one, COLOR) for one in (COLOR, COLOR[None], (COLOR / 255).astype(np.float32), Image.fromarray(COLOR)))
    yield COLOR[..., :1], COLOR[..., 0]
    yield Image.fromarray(COLOR[..., 0]), np.repeat(COLOR[..., :1], 3, axis=2)
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(COLOR).permute(2, 0, 1)
    yield from ((tensor, COLOR), (tensor / 255, COLOR))


def test_files_are_sent_unchanged_and_pixels_lossless(tmp_path: Path) -> None:
    path = tmp_path / "größe & ä?.jpg"
    path.write_bytes(b"any bytes")
    for image in (path, str(path)):
        _, (request,) = decide(respond(decision()), image)
        assert read_query(request)["name"] == [path.name]
        assert request.endswith(b"\r\n\r\nany bytes")
    for wrong in (3, None, np.zeros((2, 2)), np.full((2, 2, 3), 2, np.float32), "missing.png", "a\0b"):
        raised, requests = decide(respond(decision()), wrong)
        assert isinstance(raised, SourceError)
        assert requests == []
    for pixels, expected in list_images():
        _, (request,) = decide(respond(decision()), pixels)
        content = request.partition(b"\r\n\r\n")[2]
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), expected)
        assert "name" not in read_query(request)


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_id_arrives_unchanged(id_: str) -> None:
    with serve_loopback(respond(decision())) as server:
        service = Client(f"http://{server.host}", timeout=240)
        service.decide(b"file", id=id_)
        service.get(id_)
    assert read_query(server.requests[0])["id"] == [id_]
    path = server.requests[1].split(b" ")[1].decode()
    assert unquote(path.removeprefix("/v1/decisions/")) == id_
    assert "?" not in path


@pytest.mark.parametrize(
    "failure",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"nonsense\r\n\r\n",
        error("429 Too Many Requests", "busy", Retry_After=0),
        error("503 Service Unavailable", "stopping", Retry_After=0),
        error("503 Service Unavailable", "stopping"),
        http(b"<html>bad gateway</html>", status="502 Bad Gateway"),
    ],
    ids=["hangs up", "cut body", "cut head", "nonsense", "busy", "stopping", "stopping without time", "proxy"],
)
def test_a_request_is_repeated_with_the_same_id(failure: bytes | None) -> None:
    made, requests = decide(respond(failure, failure, decision()))
    assert made.label == 3
    assert len(requests) == 3
    assert len({read_query(request)["id"][0] for request in requests}) == 1
    assert len({request.rpartition(b"\r\n\r\n")[2] for request in requests}) == 1


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        *[(error(f"{status} Name", "odd"), status, "odd") for status in (400, 401, 409, 500, 507)],
        *[
            (http(body, status="418 Teapot"), 418, "")
            for body in (b'{"error": %s}' % (b"1" * 5000), b"[" * 100_000, b"\xff", b"[]", b'{"error": 1}')
        ],
        (http(b"", status="302 Found", Location="http://elsewhere"), 302, ""),
        # The service will be busy for longer than the time that is left, and than a client waits between attempts.
        (error("429 Too Many Requests", "busy", Retry_After=1000), 429, "busy"),
    ],
)
def test_other_failures_are_raised_at_once_with_the_code(reply: bytes, status: int, code: str) -> None:
    raised, requests = decide(respond(reply), timeout=50 if code == "busy" else 240)
    assert isinstance(raised, RequestError)
    assert (raised.status, raised.code) == (status, code)
    assert f"it is {code}" in str(raised) if code else True
    assert len(requests) == 1


def test_unreachable_or_slow_service_times_out() -> None:
    with serve_loopback(respond(decision())) as server:
        pass
    with pytest.raises(ServingError, match=r"did not respond .*url="):
        Client(f"http://{server.host}", timeout=0.5).decide(b"file")
    started = time.monotonic()
    with pytest.raises(ServingError, match="url="):
        Client("http://no-such-host.invalid:80", timeout=1200).decide(b"file")
    assert time.monotonic() - started < 600, "an unknown host is reported at once"
    over, replies = threading.Event(), iter([1.0, 240.0])

    def respond_slowly(path: str, request: bytes) -> Iterable[bytes]:
        over.wait(next(replies))
        return []

    raised, _ = decide(respond_slowly, timeout=15.0)
    over.set()
    waited = re.search(r"within ([\d.]+) seconds", str(raised))
    assert waited is not None
    assert float(waited[1]) <= 14.0, "the rest of the time"


@pytest.mark.parametrize(
    ("shown", "bodies"),
    [
        ("url=", (b" ", b"<html>", b"[]", b"3", b"null", b"{}", b"[" * 100_000, b"\xff")),
        ("label", (as_json({**DECISION, "label": "cat"}),)),
        ("32 MB", (b" " * (32 * 2**20 + 1),)),
    ],
)
def test_invalid_response_is_an_error(shown: str, bodies: tuple[bytes, ...]) -> None:
    for body in bodies:
        raised, _ = decide(respond(http(body)))
        assert isinstance(raised, ServingError)
        assert shown in str(raised)


@pytest.mark.parametrize(
    ("named", "values"),
    [
        ("token", ("a\r\nX-Evil: secret", "", "a b", "é", b"a b")),
        ("url", ("", "127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://host:0", 3,
                 "http://user:secret@host", "http://host?token=secret", "file:///etc/passwd")),
        ("timeout", (0, -1, float("nan"), float("inf"), "30", None)),
    ],
)  # fmt: skip
def test_invalid_arguments_are_errors_without_secrets(named: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ServingError, match=f"{named}=") as caught:
            Client(**{"url": ANYWHERE, named: value})
        assert "secret" not in str(caught.value)


def test_decisions_are_in_image_order_and_a_refused_image_cancels_the_rest() -> None:
    second_is_sent = threading.Event()

    def reply(path: str, request: bytes) -> Iterable[bytes]:
        id_ = read_query(request)["id"][0]
        if id_ == "0":
            second_is_sent.wait(120)
        second_is_sent.set()
        return [decision(id=id_)]

    ids = [str(number) for number in range(40)]
    with serve_loopback(reply) as server:
        service = Client(f"http://{server.host}", timeout=240)
        assert [made.id for made in service.decide_many((b"file" for _ in ids), ids)] == ids
        assert service.decide_many([]) == []
        assert len({made.id for made in service.decide_many([b"file"] * 5)}) == 5
        with pytest.raises(ServingError, match="ids="):
            service.decide_many([b"file"] * 2, ids=["a"])
        for id_ in ("\ud800", 3, b"a"):
            with pytest.raises(ServingError, match="id"):
                service.decide(b"file", id=id_)  # type: ignore[arg-type]
    with serve_loopback(respond(error("422 Unprocessable", "unreadable_image"))) as server:
        with pytest.raises(RequestError):
            Client(f"http://{server.host}", timeout=240).decide_many([b"file"] * 1000)
        assert len(server.requests) < 1000


def test_the_client_needs_no_package_of_the_service() -> None:
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'sqlalchemy', 'prometheus_client', 'argon2'):\n"
        "    sys.modules[name] = None\n"
        "from secondlook.serving import Client\n"
        "print(Client('http://127.0.0.1:8000'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Client('http://127.0.0.1:8000')"


def test_client_returns_decisions_of_the_policy_with_reviews_and_errors(running: Server, digits: Digits) -> None:
    policy, (url, serving) = sl.load_policy(digits.policy), running
    with Client(url, timeout=240) as service:
        for number, file in enumerate(digits.files[:3]):
            picture = Image.open(io.BytesIO(file))
            pixels = np.asarray(picture)[..., None]
            expected = policy.decide(pixels, interval=True)
            for kind, image in (("bytes", file), ("array", pixels), ("PIL", picture)):
                made = service.decide(image, id=f"{kind} {number}")
                assert (made.label, made.class_name) == (expected.label, expected.class_name)
                assert made.accept == expected.accept
                assert made.confidence == pytest.approx(expected.confidence)
                assert made.interval == pytest.approx(expected.interval)
                assert service.get(made.id).confidence == made.confidence
                assert made.guarantee is not None
                assert made.guarantee.risk == 0.05
        assert isinstance(service.status(), dict)
        made = service.decide(make_noise(), id="noise")
        assert (made.accept, made.review) == (False, "waiting")
        serving.reviews.label(serving.decisions.find(["noise"])["noise"].number, 4, REVIEWER)
        found = service.get("noise")
        assert (found.review, found.reviewed_label, found.reviewed_class, found.reviewer) == ("done", 4, "4", "Ada")
        service.decide(digits.files[0], id="a")
        for image, id_, code in (
            (digits.files[1], "a", "id_conflict"),
            (b"no image", None, "unreadable_image"),
            (b"", None, "no_image"),
            (b"\0" * (33 * 2**20), None, "body_too_large"),
            (digits.files[0], "a\nb", "id"),
        ):
            with pytest.raises(RequestError) as caught:
                service.decide(image, id=id_)
            assert caught.value.code == code
        with pytest.raises(RequestError) as caught:
            service.get("nothing")
        assert caught.value.code == "unknown_id"


def test_many_threads_share_a_client_and_a_busy_service_decides_all(digits: Digits, tmp_path: Path) -> None:
    ids = [f"image {number}" for number in range(100)]
    with (
        serve(digits.policy, tmp_path / "service", max_waiting=4) as (url, running),
        Client(url, timeout=240) as service,
    ):
        assert [each.id for each in service.decide_many((digits.files * 100)[:100], ids)] == ids
        assert running.decisions.find(ids).keys() == set(ids)


@pytest.mark.posix
def test_decisions_are_made_once_when_the_server_is_killed_and_restarted(digits: Digits, tmp_path: Path) -> None:
    data_dir, files = tmp_path / "service", (digits.files * 150)[:150]
    ids = [f"image {number}" for number in range(len(files))]
    made: list[Any] = []
    with ServerProcess(digits.policy, data_dir) as process, Client(process.url, timeout=240) as service:
        thread = threading.Thread(target=lambda: made.extend(service.decide_many(files, ids)))
        thread.start()
        wait_for(lambda: read_rows(data_dir, "select count(*) from decisions")[0][0], lambda stored: stored >= 30)
        process.kill()
        process.start()
        thread.join()
    assert [each.id for each in made] == ids
    rows = read_rows(data_dir, "select id, label, confidence, accept from decisions")
    assert sorted(rows) == sorted((each.id, each.label, each.confidence, each.accept) for each in made)
