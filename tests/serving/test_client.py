"""`Client`: what it sends, what it repeats, and what it makes of responses."""

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
from secondlook.serving.client import encode_image
from secondlook.serving.responses import RequestError, ServedDecision
from secondlook.serving.service import Service
from secondlook.serving.tokens import Principal
from stress.server_process import ServerProcess
from tests.classifiers.loopback_server import Server, as_json, http, serve
from tests.serving.running import Digits, make_noise, read_rows
from tests.serving.running import serve as run_service

DECISION: dict[str, Any] = {
    "id": "a",
    "label": 3,
    "labels": None,
    "class": "cat",
    "confidence": 0.75,
    "interval": [0.5, 0.875],
    "accept": True,
    "looks": 13,
    "first_look": 0.5,
    "disagreement": 0.25,
    "review": "none",
    "guarantee": {"risk": 0.01, "delta": 0.001, "text": "at most 1 %"},
    "policy": "c" * 64,
    "decided_at": "2026-01-02T03:04:05Z",
}
Reply = bytes | None
"""A response, or None to hang up."""


def respond(*replies: Reply) -> Callable[[str, bytes], Iterable[bytes]]:
    """Send each reply once, then the last one for ever."""
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


def read_ids(server: Server) -> list[str]:
    return [read_query(request)["id"][0] for request in server.requests]


def test_decision_of_one_image() -> None:
    with serve(respond(decision())) as server, Client(f"http://{server.host}/") as service:
        made = service.decide(b"the bytes of a file", id="a")
    (request,) = server.requests
    assert request.startswith(b"POST /v1/decide?id=a ")
    assert request.endswith(b"\r\n\r\nthe bytes of a file")
    assert (made.id, made.label, made.class_name, made.accept, made.interval) == ("a", 3, "cat", True, (0.5, 0.875))
    assert made.guarantee is not None
    assert (made.guarantee.risk, made.guarantee.text) == (0.01, "at most 1 %")
    assert made.decided_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert made.reviewed_label is None


def test_a_decision_without_interval_names_or_guarantee() -> None:
    bare = decision(**{"class": None}, interval=None, disagreement=None, guarantee=None, labels=[3, 1], new_field=1)
    with serve(respond(bare)) as server:
        made = Client(f"http://{server.host}").decide(b"file")
    assert (made.class_name, made.interval, made.guarantee, made.labels) == (None, None, None, (3, 1))


def test_a_service_below_a_path_of_a_proxy() -> None:
    with serve(respond(decision())) as server:
        Client(f"http://{server.host}/digits/").decide(b"file")
    assert server.requests[0].startswith(b"POST /digits/v1/decide?id=")


COLOR = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (COLOR, COLOR),
        (COLOR[None], COLOR),
        (COLOR[..., :1], COLOR[..., 0]),
        ((COLOR / 255).astype(np.float32), COLOR),
        (Image.fromarray(COLOR), COLOR),
        (Image.fromarray(COLOR[..., 0]), np.repeat(COLOR[..., :1], 3, axis=2)),
    ],
)
def test_pixels_are_sent_as_a_file_without_loss(image: object, expected: np.ndarray) -> None:
    content, name = encode_image(image)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), expected)
    assert name is None


def test_tensors_are_sent_as_files() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(COLOR).permute(2, 0, 1)
    for each in (tensor, tensor / 255):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_image(each)[0]))), COLOR)


def test_files_are_sent_as_they_are_with_their_names(tmp_path: Path) -> None:
    path = tmp_path / "größe & ä?.jpg"
    path.write_bytes(b"any bytes")
    assert encode_image(path) == encode_image(str(path)) == (b"any bytes", path.name)
    with serve(respond(decision())) as server:
        Client(f"http://{server.host}").decide(path)
    assert read_query(server.requests[0])["name"] == [path.name]
    assert server.requests[0].endswith(b"any bytes")


@pytest.mark.parametrize("image", [3, None, np.zeros((2, 2)), np.full((2, 2, 3), 2, np.float32), "missing.png", "a\0b"])
def test_what_is_no_image_is_an_error_before_anything_is_sent(image: object) -> None:
    with serve(respond(decision())) as server, pytest.raises(SourceError):
        Client(f"http://{server.host}").decide(image)
    assert server.requests == []


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_id_arrives_as_it_is(id_: str) -> None:
    with serve(respond(decision())) as server:
        service = Client(f"http://{server.host}")
        service.decide(b"file", id=id_)
        service.get(id_)
    assert read_query(server.requests[0])["id"] == [id_]
    path = server.requests[1].split(b" ")[1].decode()
    assert unquote(path.removeprefix("/v1/decisions/")) == id_
    assert "?" not in path


@pytest.mark.parametrize("id_", ["\ud800", 3, b"a"])
def test_an_id_that_is_no_text_is_an_error(id_: Any) -> None:
    with pytest.raises(ServingError, match="id"):
        Client("http://127.0.0.1:9").decide(b"file", id=id_)


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
def test_a_request_is_repeated_with_the_same_id(failure: Reply) -> None:
    with serve(respond(failure, failure, decision())) as server:
        assert Client(f"http://{server.host}").decide(b"file").label == 3
    assert len(server.requests) == 3
    assert len(set(read_ids(server))) == 1
    assert len({request.rpartition(b"\r\n\r\n")[2] for request in server.requests}) == 1


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "409 Conflict", "500 Error", "507 Full"])
def test_other_failures_are_raised_at_once_with_the_code(status: str) -> None:
    with (
        serve(respond(error(status, "odd"))) as server,
        pytest.raises(RequestError, match="it is odd") as caught,
    ):
        Client(f"http://{server.host}").decide(b"file")
    assert (caught.value.status, caught.value.code) == (int(status[:3]), "odd")
    assert len(server.requests) == 1


def test_a_service_that_stays_busy_is_given_up_when_the_time_is_over() -> None:
    busy = error("429 Too Many Requests", "busy", Retry_After=100)
    with serve(respond(busy)) as server, pytest.raises(RequestError) as caught:
        Client(f"http://{server.host}", timeout=5).decide(b"file")
    assert caught.value.code == "busy"
    assert len(server.requests) == 1, "the service said that it will be busy for longer than the time that is left"


def test_a_service_that_is_away_is_given_up_when_the_time_is_over() -> None:
    with serve(respond(decision())) as server:
        pass
    started = time.monotonic()
    with pytest.raises(ServingError, match=r"did not respond .*url="):
        Client(f"http://{server.host}", timeout=0.5).decide(b"file")
    assert time.monotonic() - started < 120


def test_all_attempts_together_are_bounded() -> None:
    replies = iter([1.0, 30.0])

    def respond_slowly(path: str, request: bytes) -> Iterable[bytes]:
        time.sleep(next(replies))
        return []

    with serve(respond_slowly) as server, pytest.raises(ServingError) as caught:
        Client(f"http://{server.host}", timeout=5.0).decide(b"file")
    waited = re.search(r"within ([\d.]+) seconds", str(caught.value))
    assert waited is not None
    assert float(waited[1]) <= 4.0, "the rest of the time"


def test_an_unknown_host_is_reported_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(ServingError, match="url="):
        Client("http://no-such-host.invalid:80", timeout=600).decide(b"file")
    assert time.monotonic() - started < 120


@pytest.mark.parametrize(
    "body",
    [b" ", b"<html>", b"[]", b"3", b"null", b"{}", as_json({**DECISION, "label": "cat"}), b"[" * 100_000, b"\xff"],
)
def test_a_response_that_is_no_decision_is_an_error(body: bytes) -> None:
    with serve(respond(http(body))) as server, pytest.raises(ServingError, match="url="):
        Client(f"http://{server.host}").decide(b"file")


@pytest.mark.parametrize("body", [b'{"error": %s}' % (b"1" * 5000), b"[" * 100_000, b"\xff", b"[]", b'{"error": 1}'])
def test_an_error_of_something_else_is_told_by_its_status(body: bytes) -> None:
    with serve(respond(http(body, status="418 Teapot"))) as server, pytest.raises(RequestError) as caught:
        Client(f"http://{server.host}").decide(b"file")
    assert (caught.value.status, caught.value.code) == (418, "")


def test_a_response_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secondlook.classifiers.http_client.MAX_RESPONSE_BYTES", 1000)
    with serve(respond(http(b" " * 2**22))) as server, pytest.raises(ServingError, match="MB"):
        Client(f"http://{server.host}").status()


def test_redirects_are_not_followed() -> None:
    with serve(respond(http(b"", status="302 Found", Location="http://elsewhere"))) as server:
        with pytest.raises(RequestError) as caught:
            Client(f"http://{server.host}").decide(b"file")
        assert caught.value.status == 302
        assert len(server.requests) == 1


def test_the_token_is_sent_and_never_shown() -> None:
    echo = http(
        as_json({"error": {"code": "token", "message": "unknown token sl_1_secret"}}), status="401 Unauthorized"
    )
    with serve(respond(echo)) as server:
        service = Client(f"http://{server.host}", token="sl_1_secret")
        with pytest.raises(RequestError) as caught:
            service.decide(b"file")
    assert b"Authorization: Bearer sl_1_secret\r\n" in server.requests[0]
    assert "secret" not in str(caught.value) + repr(service)


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "", "a b", "é", b"a b"])
def test_a_token_that_cannot_be_a_header_is_an_error_that_hides_it(token: Any) -> None:
    with pytest.raises(ServingError, match="token=") as caught:
        Client("http://127.0.0.1:9", token=token)
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://host:0", "http://user:secret@host",
     "http://host?token=secret", "file:///etc/passwd", 3],
)  # fmt: skip
def test_what_is_no_address_is_an_error_that_hides_it(url: Any) -> None:
    with pytest.raises(ServingError, match="url=") as caught:
        Client(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "30", None])
def test_a_timeout_must_be_a_number_above_0(timeout: Any) -> None:
    with pytest.raises(ServingError, match="timeout="):
        Client("http://127.0.0.1:9", timeout=timeout)


def test_decisions_about_many_images_come_in_their_order() -> None:
    def reply(path: str, request: bytes) -> Iterable[bytes]:
        id_ = read_query(request)["id"][0]
        time.sleep(0.05 if id_ == "0" else 0)
        return [decision(id=id_)]

    ids = [str(number) for number in range(40)]
    with serve(reply) as server:
        service = Client(f"http://{server.host}")
        assert [made.id for made in service.decide_many((b"file" for _ in ids), ids)] == ids
        assert service.decide_many([]) == []
        assert len({made.id for made in service.decide_many([b"file"] * 5)}) == 5
        with pytest.raises(ServingError, match="ids="):
            service.decide_many([b"file"] * 2, ids=["a"])


def test_an_image_that_is_refused_ends_the_others() -> None:
    with serve(respond(error("422 Unprocessable", "unreadable_image"))) as server:
        with pytest.raises(RequestError):
            Client(f"http://{server.host}").decide_many([b"file"] * 1000)
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


def test_all_kinds_of_images_are_decided_as_by_the_policy(server: tuple[str, Service], digits: Digits) -> None:
    policy = sl.load_policy(digits.policy)
    with Client(server[0]) as service:
        for number, file in enumerate(digits.files[:3]):
            picture = Image.open(io.BytesIO(file))
            pixels = np.asarray(picture)[..., None]
            expected = policy.decide(pixels, interval=True)
            for kind, image in (("bytes", file), ("array", pixels), ("PIL", picture)):
                made = service.decide(image, id=f"{kind} {number}")
                assert (made.label, made.class_name, made.accept) == (
                    expected.label,
                    expected.class_name,
                    expected.accept,
                )
                assert made.confidence == pytest.approx(expected.confidence)
                assert made.interval == pytest.approx(expected.interval)
                assert service.get(made.id).confidence == made.confidence
                assert made.guarantee is not None
                assert made.guarantee.risk == 0.05
        assert isinstance(service.status(), dict)


def test_the_review_of_an_image_is_told(server: tuple[str, Service]) -> None:
    url, running = server
    with Client(url) as service:
        made = service.decide(make_noise(), id="noise")
        assert (made.accept, made.review) == (False, "waiting")
        (item,) = running.reviews.lease("me", 1)
        running.reviews.label(item.number, 4, Principal("Ada", "reviewer", "me"))
        found = service.get("noise")
    assert (found.review, found.reviewed_label, found.reviewed_class, found.reviewer) == ("done", 4, "4", "Ada")


def test_errors_of_the_service_have_their_code(server: tuple[str, Service], digits: Digits) -> None:
    with Client(server[0]) as service:
        service.decide(digits.files[0], id="a")
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: service.decide(digits.files[1], id="a"), "id_conflict"),
            (lambda: service.decide(b"no image"), "unreadable_image"),
            (lambda: service.decide(b""), "no_image"),
            (lambda: service.decide(b"\0" * (33 * 2**20)), "body_too_large"),
            (lambda: service.decide(digits.files[0], id="a\nb"), "id"),
            (lambda: service.get("nothing"), "unknown_id"),
        ]
        for call, code in calls:
            with pytest.raises(RequestError) as caught:
                call()
            assert caught.value.code == code


def test_many_threads_share_a_client_and_a_busy_service_decides_all(digits: Digits, tmp_path: Path) -> None:
    with run_service(digits.policy, tmp_path / "service", max_waiting=4) as (url, running), Client(url) as service:
        ids = [f"image {number}" for number in range(100)]
        made = service.decide_many((digits.files * 100)[:100], ids)
        assert [each.id for each in made] == ids
        assert running.decisions.find(ids).keys() == set(ids)


@pytest.mark.posix
def test_decisions_arrive_once_although_the_server_is_killed_and_started_again(digits: Digits, tmp_path: Path) -> None:
    files = (digits.files * 150)[:150]
    ids = [f"image {number}" for number in range(len(files))]
    made: list[ServedDecision] = []
    with ServerProcess(digits.policy, tmp_path / "service") as process, Client(process.url, timeout=240) as service:
        thread = threading.Thread(target=lambda: made.extend(service.decide_many(files, ids)))
        thread.start()
        wait_for_rows(tmp_path / "service")
        process.kill()
        process.start()
        thread.join()
    assert [each.id for each in made] == ids
    rows = read_rows(tmp_path / "service", "select id, label, confidence, accept from decisions")
    assert sorted(rows) == sorted((each.id, each.label, each.confidence, each.accept) for each in made)


def wait_for_rows(data_dir: Path) -> None:
    """Wait until some more images are decided."""
    before, deadline = count_rows(data_dir), time.monotonic() + 120
    while count_rows(data_dir) < before + 30:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def count_rows(data_dir: Path) -> int:
    return int(read_rows(data_dir, "select count(*) from decisions")[0][0])
