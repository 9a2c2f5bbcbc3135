"""Tests of a real server over real sockets: what clients do wrong, and how it stops."""

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_string
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from secondlook.errors import ServingError
from secondlook.serving import middleware, server
from secondlook.serving.options import ServiceOptions
from secondlook.serving.server import (
    bind_sockets,
    check_certificate,
    count_connections,
    format_address,
    make_server,
)
from secondlook.serving.service import Service
from secondlook.serving.tokens import TokenFile
from stress.server_process import ServerProcess
from tests.serving.running import Digits, Reply, make_noise, send, send_image, serve

LIMITS = {"max_body_bytes": 2**20, "body_seconds": 1.0}
HEADERS = b"POST /v1/decide HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def quick_limits() -> Iterator[None]:
    """A time limit that tests can wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "DRAIN_SECONDS", 0.5)
        yield


@pytest.fixture(scope="module")
def running(
    digits: Digits, tmp_path_factory: pytest.TempPathFactory, quick_limits: None
) -> Iterator[tuple[str, Service]]:
    """A service without tokens."""
    with serve(digits.policy, tmp_path_factory.mktemp("open"), **LIMITS) as (url, service):
        yield url, service


@pytest.fixture
def url(running: tuple[str, Service], digits: Digits) -> Iterator[str]:
    """Its URL; after every test it must still decide."""
    yield running[0]
    assert send_image(running[0], digits.files[0]).status == 200


@contextmanager
def connect(url: str) -> Iterator[socket.socket]:
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port or 0), timeout=120) as connection:
        yield connection


def read_reply(connection: socket.socket) -> Reply:
    """Read until the server closes the connection, and return the response."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return parse_reply(received)


def read_error(connection: socket.socket) -> Reply:
    """Read an error that comes while the client is sending; the server resets the connection at some time."""
    received = b""
    while not received.endswith(b"}}"):
        received += connection.recv(65536)
    return parse_reply(received)


def parse_reply(received: bytes) -> Reply:
    head, _, body = received.partition(b"\r\n\r\n")
    first, _, headers = head.decode().partition("\r\n")
    return Reply(int(first.split(" ")[1]), message_from_string(headers), body)


def send_forever(connection: socket.socket, piece: bytes, seconds: float = 120) -> None:
    """Send as fast as the server reads, until it closes the connection."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            connection.sendall(piece)
    except ConnectionError:
        return
    raise AssertionError("the server did not close the connection")


def start_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_for(ask: Callable[[], Any], is_done: Callable[[Any], bool], seconds: float = 120) -> Any:
    """Ask again and again until the result is as expected, and return it."""
    deadline = time.monotonic() + seconds
    while not is_done(result := ask()):
        assert time.monotonic() < deadline, result
        time.sleep(0.02)
    return result


def is_refused(url: str) -> bool:
    """Whether a server no longer listens."""
    try:
        with connect(url):
            return False
    except ConnectionRefusedError:
        return True


def trickle(connection: socket.socket, piece: bytes, pause: float = 0.2) -> None:
    """Send a little, again and again, until the server closes the connection."""
    try:
        for _ in range(100):
            connection.sendall(piece)
            time.sleep(pause)
    except OSError:
        return


class TestBodies:
    def test_an_announced_gigabyte_is_refused_before_it_is_sent(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Content-Length: 1073741824\r\n\r\n")
            reply = read_reply(connection)
        assert (reply.status, reply.code) == (413, "body_too_large")
        assert reply.headers["connection"] == "close"

    def test_a_client_that_sends_a_gigabyte_anyway_reads_why_it_was_refused(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Content-Length: 1073741824\r\n\r\n")
            sender = start_thread(lambda: send_forever(connection, b"x" * 2**16))
            assert read_error(connection).code == "body_too_large"
            sender.join(120)
        assert not sender.is_alive()

    def test_a_chunked_body_without_end_is_refused(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n")
            sender = start_thread(lambda: send_forever(connection, b"10000\r\n" + b"x" * 2**16 + b"\r\n"))
            assert read_error(connection).code == "body_too_large"
            sender.join(120)
        assert not sender.is_alive()

    @pytest.mark.parametrize("path", ["login", "logout", "v1/review/lease", "v1/review/1/label"])
    def test_strangers_cannot_make_the_service_parse_much(self, url: str, path: str) -> None:
        """Forms and JSON are parsed before tokens are checked."""
        for kind in ("application/json", "application/x-www-form-urlencoded"):
            reply = send(f"{url}/{path}", b"x" * (64 * 1024 + 1), Content_Type=kind, Host="evil.example")
            assert (reply.status, reply.code) == (413, "body_too_large")

    def test_a_client_that_waits_for_permission_to_send_is_refused_at_once(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Content-Length: 1073741824\r\nExpect: 100-continue\r\n\r\n")
            assert read_reply(connection).code == "body_too_large"

    def test_trailers_without_end_are_refused(self, url: str) -> None:
        """They are no part of the body, and take memory until they are complete."""
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nTrailer: ")
            sender = start_thread(lambda: send_forever(connection, b"x" * 2**12))
            assert b" 400 " in connection.recv(65536)
            sender.join(120)
        assert not sender.is_alive()

    def test_a_body_that_trickles_is_refused(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Content-Length: 1000\r\n\r\n")
            start_thread(lambda: trickle(connection, b"x"))
            reply = read_reply(connection)
        assert (reply.status, reply.code) == (408, "slow_body")

    def test_a_short_rest_of_a_body_does_not_cost_the_connection(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n")
            assert b" 404 " in connection.recv(65536)
            connection.sendall(b"12345GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in connection.recv(65536)

    @pytest.mark.parametrize("body", [b"zzz\r\n", b"-1\r\n", b"5\r\nabcdefgh\r\n"])
    def test_broken_chunks_are_refused(self, url: str, body: bytes) -> None:
        with connect(url) as connection:
            connection.sendall(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n" + body)
            assert read_reply(connection).status == 400


class TestHeaders:
    @pytest.mark.parametrize("piece", [b"X-Flood: a\r\n", b"X" * 1000, b"X-Flood: " + b"a" * 5000 + b"\r\n"])
    def test_a_flood_of_headers_is_refused(self, url: str, piece: bytes) -> None:
        with connect(url) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            sender = start_thread(lambda: send_forever(connection, piece))
            assert b" 400 " in connection.recv(65536)
            sender.join(120)
        assert not sender.is_alive()

    @pytest.mark.parametrize(
        "sent", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET  HTTP/9.9\r\n\r\n", b"\x00" * 100]
    )
    def test_what_is_not_http_is_refused(self, url: str, sent: bytes) -> None:
        with connect(url) as connection:
            connection.sendall(sent)
            assert read_reply(connection).status == 400

    def test_requests_behind_one_another_are_answered_in_their_order(self, url: str) -> None:
        request = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
        with connect(url) as connection:
            connection.sendall(request % (b"healthz", b"") + request % (b"nowhere", b"Connection: close\r\n"))
            received = b""
            while piece := connection.recv(65536):
                received += piece
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"404"]


class TestConnections:
    def test_their_number_is_bounded(self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
        with serve(digits.policy, tmp_path / "service") as (url, _):
            with connect(url) as one, connect(url) as two, connect(url) as three:
                for connection in (one, two, three):
                    connection.sendall(HEADERS)
                wait_for(lambda: send(f"{url}/healthz"), lambda reply: reply.status == 503)
            wait_for(lambda: send(f"{url}/healthz"), lambda reply: reply.status == 200)

    def test_half_of_the_open_files_are_for_other_things(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resource = pytest.importorskip("resource")
        for files, expected in ((256, 128), (100_000, 512), (resource.RLIM_INFINITY, 512)):
            monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
            assert count_connections() == expected


def log_in(url: str, token: str, headers: bytes = b"") -> Reply:
    """Log a browser in; the response is a redirection."""
    form = f"token={token}".encode()
    head = b"POST /login HTTP/1.1\r\nHost: a.example\r\nOrigin: https://a.example\r\nConnection: close\r\n"
    kind = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(form)
    with connect(url) as connection:
        connection.sendall(head + headers + kind + form)
        return read_reply(connection)


class TestTokens:
    def test_requests_with_and_without_permission(self, digits: Digits, tmp_path: Path) -> None:
        tokens = TokenFile(tmp_path / "service" / "tokens.json")
        client, reviewer = tokens.add("robot", "client"), tokens.add("Anna", "reviewer")
        with serve(digits.policy, tmp_path / "service") as (url, _):
            image = digits.files[0]
            assert send_image(url, image).code == "token"
            assert send_image(url, image, Authorization="Bearer wrong").code == "token"
            assert send_image(url, image, Authorization=f"Bearer {client[:-1]}").code == "token"
            assert send_image(url, image, Authorization=f"Bearer {reviewer}").code == "permission"
            assert send_image(url, image, Authorization=f"Bearer {client}").status == 200
            assert send(f"{url}/healthz").status == 200
            assert b"Access token" in send(f"{url}/", Accept="text/html").body
            assert "Secure" not in str(log_in(url, reviewer).headers["set-cookie"])
            behind_proxy = log_in(url, reviewer, b"X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\n")
            assert "Secure" in str(behind_proxy.headers["set-cookie"])


class TestAddresses:
    def test_a_port_that_is_taken_is_an_error(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ServingError, match=str(port)), bind_sockets(ServiceOptions(tmp_path, port=port)):
                pass

    @pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "a" * 300])
    def test_a_host_that_is_not_this_machine_is_an_error(self, tmp_path: Path, host: str) -> None:
        with pytest.raises(ServingError, match="host="), bind_sockets(ServiceOptions(tmp_path, host=host, port=0)):
            pass

    def test_a_name_is_not_local_because_it_looks_like_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.1", 0))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        for host in ("localhost", "127.evil.example"):
            options = ServiceOptions(tmp_path, host=host)
            with pytest.raises(ServingError, match=r"203\.0\.113\.1"), bind_sockets(options):
                pass

    def test_localhost_is_served_at_one_port_of_all_its_addresses(self, tmp_path: Path) -> None:
        with bind_sockets(ServiceOptions(tmp_path, host="localhost", port=0)) as sockets:
            assert len({one.getsockname()[1] for one in sockets}) == 1

    def test_addresses_are_urls(self) -> None:
        assert format_address("127.0.0.1", 80, secure=False) == "http://127.0.0.1:80"
        assert format_address("::1", 8443, secure=True) == "https://[::1]:8443"
        assert format_address("0.0.0.0", 80, secure=False) == "http://localhost:80"


class TestCertificates:
    def test_a_key_without_a_certificate_and_files_that_are_none_are_errors(self, tmp_path: Path) -> None:
        file = tmp_path / "file.pem"
        file.write_text("nothing")
        for certificate, key in ((None, file), (file, file), (tmp_path / "missing.pem", None)):
            with pytest.raises(ServingError):
                check_certificate(certificate, key)

    @pytest.mark.posix
    def test_https(self, running: tuple[str, Service], tmp_path: Path) -> None:
        certificate, key = make_certificate(tmp_path)
        context = ssl.create_default_context(cafile=certificate)
        with bind_sockets(ServiceOptions(tmp_path, port=0)) as sockets:
            made = make_server(running[1], certificate=certificate, key=key)
            thread = start_thread(lambda: made.run(sockets))
            url = f"https://127.0.0.1:{sockets[0].getsockname()[1]}"
            with connect(url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                connection.sendall(HEADERS + b"Content-Length: 100000000\r\n\r\n" + b"x" * 100_000)
                assert read_error(connection).code == "body_too_large"
            with connect(url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
                connection.sendall(head)
                assert "Secure" in str(read_reply(connection).headers["set-cookie"])
            made.should_exit = True
            thread.join()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1; returns the files of it and of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.mark.posix
class TestProcess:
    def test_it_finishes_what_is_in_work_and_logs_json(self, digits: Digits, tmp_path: Path) -> None:
        """A request whose body is on its way when the signal comes is decided and stored."""
        image = make_noise()
        secret = "sl_0123456789ab_secret"
        with ServerProcess(digits.policy, tmp_path / "service") as process, connect(process.url) as connection:
            send_image(process.url, image, Authorization=f"Bearer {secret}", Cookie="secondlook_session=secret-cookie")
            send(f"{process.url}/%0A%1B%5B31m%22%7D%F0%9F%98%80?token={secret}")
            connection.sendall(b"\x1b[31m\xff\n\n")
            with connect(process.url) as late:
                late.sendall(
                    HEADERS + b"Content-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(image) + image[:9]
                )
                send(f"{process.url}/healthz")  # which is read after what came before it
                code: list[int] = []
                stopping = start_thread(lambda: code.append(process.stop()))
                wait_for(lambda: is_refused(process.url), bool)
                late.sendall(image[9:])
                reply = read_reply(late)
                stopping.join(120)
            assert reply.status == 200
            assert "id" in reply.json
            assert code == [0]
            log = process.log
        lines = [json.loads(line) for line in log.splitlines() if not line.startswith("Serving at ")]
        requests = [line for line in lines if line["event"] == "request"]
        assert {"time", "level", "id", "method", "path", "status", "ms", "principal"} <= requests[0].keys()
        assert [(line["status"], line["principal"]) for line in requests] == [(401, None), (404, None), (200, "local")]
        assert requests[1]["path"] == '/\n\x1b[31m"}\U0001f600'
        assert "secret" not in log
        assert re.search(r"[^\n\x20-\x7e]", log) is None
