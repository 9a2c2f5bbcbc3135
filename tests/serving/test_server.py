"""Tests of a real server over real sockets: invalid requests, limits and shutdown."""

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from email import message_from_string
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from secondlook.errors import ServingError
from secondlook.serving import ServiceOptions, middleware, server
from secondlook.serving.server import bind_sockets, check_certificate, count_connections, format_address, make_server
from stress.server_process import ServerProcess
from tests.serving.running import Digits, Reply, Server, make_noise, send, send_image, serve, wait_for

HEADERS = b"POST /v1/decide HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"
GIGABYTE = HEADERS + b"Content-Length: 1073741824\r\n"


@pytest.fixture(scope="module")
def running(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service without tokens, with limits that tests can reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "DRAIN_SECONDS", 0.5)
        with serve(digits.policy, tmp_path_factory.mktemp("open"), max_body_bytes=2**20) as one:
            yield one


@pytest.fixture
def url(running: Server, digits: Digits) -> Iterator[str]:
    """Its URL; after every test it must still decide."""
    yield running[0]
    assert send_image(running[0], digits.files[0]).status == 200


@contextmanager
def connect(url: str, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Connect from a loopback address."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port or 0), 120, (address, 0)) as connection:
        yield connection


def read_reply(connection: socket.socket, end: bytes | None = None) -> Reply:
    """Read until the server closes the connection or the response has the expected end, and return the response."""
    received = b""
    while (end is None or not received.endswith(end)) and (piece := connection.recv(65536)):
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    first, _, headers = head.decode().partition("\r\n")
    return Reply(int(first.split(" ")[1]), message_from_string(headers), body)


@contextmanager
def sending(connection: socket.socket, piece: bytes, pause: float = 0.0) -> Iterator[None]:
    """Send as fast as the server reads, or with pauses, until it closes the connection, as it must."""
    stopped = threading.Event()

    def send_forever() -> None:
        deadline = time.monotonic() + 120
        try:
            while time.monotonic() < deadline:
                connection.sendall(piece)
                time.sleep(pause)
        except OSError:
            stopped.set()

    sender = start_thread(send_forever)
    yield
    sender.join()
    assert stopped.is_set(), "the server did not close the connection"


def start_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_refused(url: str) -> bool:
    try:
        with connect(url):
            return False
    except ConnectionRefusedError:
        return True


class TestRequests:
    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            *((GIGABYTE + more + b"\r\n", 413) for more in (b"", b"Expect: 100-continue\r\n")),
            *((CHUNKED + body, 400) for body in (b"zzz\r\n", b"-1\r\n", b"5\r\nabcdefgh\r\n")),
            *(
                (sent, 400)
                for sent in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET  HTTP/9.9\r\n\r\n", b"\x00" * 100)
            ),
        ],
    )
    def test_gigabyte_content_length_and_invalid_http_are_refused(self, url: str, sent: bytes, status: int) -> None:
        with connect(url) as connection:
            connection.sendall(sent)
            reply = read_reply(connection)
        assert reply.status == status
        if status == 413:
            assert (reply.code, reply.headers["connection"]) == ("body_too_large", "close")

    @pytest.mark.parametrize(
        ("head", "piece", "status"),
        [
            (GIGABYTE + b"\r\n", b"x" * 2**16, 413),
            (CHUNKED, b"10000\r\n" + b"x" * 2**16 + b"\r\n", 413),
            (CHUNKED + b"1\r\nx\r\n0\r\nTrailer: ", b"x" * 2**12, 400),
            (b"GET / HTTP/1.1\r\n", b"X-Flood: a\r\n", 400),
            (b"GET / HTTP/1.1\r\n", b"X" * 1000, 400),
            (b"GET / HTTP/1.1\r\n", b"X-Flood: " + b"a" * 5000 + b"\r\n", 400),
        ],
        ids=["gigabyte", "chunks", "trailers", "headers", "one name", "long headers"],
    )
    def test_flood_is_refused_with_a_reason(self, url: str, head: bytes, piece: bytes, status: int) -> None:
        """Trailers and headers are no part of the body, and take memory until they are complete."""
        with connect(url) as connection:
            connection.sendall(head)
            with sending(connection, piece):
                if status == 413:
                    assert read_reply(connection, end=b"}}").code == "body_too_large"
                else:
                    assert b" 400 " in connection.recv(65536)

    def test_only_image_and_file_routes_accept_large_bodies(self, url: str) -> None:
        """Forms and JSON are parsed before tokens are checked: strangers cannot make the service parse much."""
        large = ("v1/decide", "v1/policy", "v1/reviews", "v2/models/secondlook/infer", "v2/models/m/versions/1/infer")
        small = ("login", "logout", "v1/review/lease", "v1/review/1/label", "v1/decide/x", "")
        for path in large + small:
            for kind in ("application/json", "application/x-www-form-urlencoded"):
                reply = send(f"{url}/{path}", b"x" * (64 * 1024 + 1), Content_Type=kind, Host="evil.example")
                assert (reply.status == 413) == (path in small), path

    @pytest.mark.usefixtures("running")  # which does not wait long for the rest of a body
    def test_slow_body_is_refused(self, digits: Digits, tmp_path: Path) -> None:
        with serve(digits.policy, tmp_path, body_seconds=0.5) as (url, _), connect(url) as connection:
            connection.sendall(HEADERS + b"Content-Length: 10000\r\n\r\n")
            with sending(connection, b"x", pause=0.1):
                reply = read_reply(connection, end=b"}}")
        assert (reply.status, reply.code) == (408, "slow_body")

    def test_pipelined_requests_are_answered_in_order(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A short rest of a body does not cost the connection."""
        monkeypatch.setattr(middleware, "DRAIN_SECONDS", 120.0)
        with connect(url) as connection:
            connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n")
            assert read_reply(connection, end=b"}}").status == 404
            request = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
            both = request % (b"healthz", b"") + request % (b"nowhere", b"Connection: close\r\n")
            connection.sendall(b"12345" + both)
            received = b""
            while piece := connection.recv(65536):
                received += piece
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"404"]


class TestConnections:
    def test_number_of_connections_is_limited(
        self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
        with serve(digits.policy, tmp_path / "service") as (url, _):
            with ExitStack() as opened:
                for number in (2, 3, 4):
                    opened.enter_context(connect(url, f"127.0.0.{number}")).sendall(HEADERS)
                wait_for(lambda: send(f"{url}/healthz"), lambda reply: reply.status == 503)
            wait_for(lambda: send(f"{url}/healthz"), lambda reply: reply.status == 200)

    def test_one_address_has_at_most_half_of_the_connections(
        self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
        with serve(digits.policy, tmp_path / "service") as (url, _), ExitStack() as opened:
            held = [opened.enter_context(connect(url, "127.0.0.2")) for _ in range(2)]
            with connect(url, "127.0.0.2") as refused:
                assert refused.recv(1) == b""
            assert send(f"{url}/healthz").status == 200
            held[0].close()

            def is_admitted() -> bool:
                with connect(url, "127.0.0.2") as connection, suppress(ConnectionResetError):
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    return connection.recv(1) != b""
                return False

            wait_for(is_admitted)

    def test_silent_connections_are_closed(
        self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
        with serve(digits.policy, tmp_path / "service") as (url, _), connect(url) as silent:
            assert silent.recv(1) == b""

    def test_connections_use_at_most_half_of_the_open_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resource = pytest.importorskip("resource")
        for files, expected in ((256, 128), (100_000, 512), (resource.RLIM_INFINITY, 512)):
            monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
            assert count_connections() == expected


def log_in(url: str, token: str, headers: bytes = b"") -> str:
    """Log a browser in, and return its cookie; the response is a redirection."""
    form = f"token={token}".encode()
    head = b"POST /login HTTP/1.1\r\nHost: a.example\r\nOrigin: https://a.example\r\nConnection: close\r\n"
    kind = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(form)
    with connect(url) as connection:
        connection.sendall(head + headers + kind + form)
        return str(read_reply(connection).headers["set-cookie"])


def test_requests_with_and_without_permission(digits: Digits, tmp_path: Path) -> None:
    tokens = ServiceOptions(tmp_path / "service").open_tokens()
    client, reviewer = tokens.add("robot", "client"), tokens.add("Anna", "reviewer")
    with serve(digits.policy, tmp_path / "service") as (url, _):
        image = digits.files[0]
        for token, status in (("wrong", 401), (client[:-1], 401), (reviewer, 403), (client, 200)):
            assert send_image(url, image, Authorization=f"Bearer {token}").status == status
        assert send_image(url, image).code == "token"
        assert send(f"{url}/healthz").status == 200
        assert b"Access token" in send(f"{url}/", Accept="text/html").body
        assert "Secure" not in log_in(url, reviewer)
        assert "Secure" in log_in(url, reviewer, b"X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\n")


class TestAddresses:
    def test_public_host_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor is a name local because it looks like it."""

        def check(host: str, match: str) -> None:
            with pytest.raises(ServingError, match=match), bind_sockets(ServiceOptions(tmp_path, host=host, port=0)):
                pass

        for host in ("203.0.113.1", "no-such-host.invalid", "a" * 300):
            check(host, "host=")
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.1", 0))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        for host in ("localhost", "127.evil.example"):
            check(host, r"203\.0\.113\.1")

    def test_localhost_listens_on_all_addresses_at_one_exclusive_port(self, tmp_path: Path) -> None:
        with bind_sockets(ServiceOptions(tmp_path, host="localhost", port=0)) as sockets:
            (port,) = {one.getsockname()[1] for one in sockets}
            options = ServiceOptions(tmp_path, host="localhost", port=port)
            with pytest.raises(ServingError, match=str(port)), bind_sockets(options):
                pass
        assert format_address("127.0.0.1", 80, secure=False) == "http://127.0.0.1:80"
        assert format_address("::1", 8443, secure=True) == "https://[::1]:8443"
        assert format_address("0.0.0.0", 80, secure=False) == "http://localhost:80"


class TestCertificates:
    def test_key_without_certificate_and_invalid_files_are_errors(self, tmp_path: Path) -> None:
        file = tmp_path / "file.pem"
        file.write_text("nothing")
        for certificate, key in ((None, file), (file, file), (tmp_path / "missing.pem", None)):
            with pytest.raises(ServingError):
                check_certificate(certificate, key)

    @pytest.mark.posix
    def test_https(self, running: Server, tmp_path: Path) -> None:
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.create_default_context(cafile=certificate)

        def ask(sent: bytes, end: bytes | None = None) -> Reply:
            with connect(address) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                connection.sendall(sent)
                return read_reply(connection, end)

        with bind_sockets(ServiceOptions(tmp_path, port=0)) as sockets:
            made = make_server(running[1], certificate=certificate, key=key)
            thread = start_thread(lambda: made.run(sockets))
            address = f"https://127.0.0.1:{sockets[0].getsockname()[1]}"
            try:
                large = ask(HEADERS + b"Content-Length: 100000000\r\n\r\n" + b"x" * 100_000, end=b"}}")
                page = ask(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
            finally:
                made.should_exit = True
                thread.join()
        assert large.code == "body_too_large"
        assert "Secure" in str(page.headers["set-cookie"])


@pytest.mark.posix
def test_stopping_process_finishes_pending_requests_and_logs_json(digits: Digits, tmp_path: Path) -> None:
    """A request is decided and stored even if the signal arrives before its body is complete."""
    image, secret = make_noise(), "sl_0123456789ab_secret"
    with ServerProcess(digits.policy, tmp_path / "service") as process, connect(process.url) as connection:
        send_image(process.url, image, Authorization=f"Bearer {secret}", Cookie="secondlook_session=secret-cookie")
        send(f"{process.url}/%0A%1B%5B31m%22%7D%F0%9F%98%80?token={secret}")
        connection.sendall(b"\x1b[31m\xff\n\n")
        with connect(process.url) as late:
            head = HEADERS + b"Content-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(image)
            late.sendall(head + image[:9])
            send(f"{process.url}/healthz")  # which is read after what came before it
            code: list[int] = []
            stopping = start_thread(lambda: code.append(process.stop()))
            wait_for(lambda: is_refused(process.url))
            late.sendall(image[9:])
            reply = read_reply(late)
            stopping.join()
        assert (reply.status, "id" in reply.json, code) == (200, True, [0])
        log = process.log
    lines = [json.loads(line) for line in log.splitlines() if not line.startswith("Serving at ")]
    requests = [line for line in lines if line["event"] == "request"]
    assert {"time", "level", "id", "method", "path", "status", "ms", "principal"} <= requests[0].keys()
    assert [(line["status"], line["principal"]) for line in requests] == [(401, None), (404, None), (200, "local")]
    assert requests[1]["path"] == '/\n\x1b[31m"}\U0001f600'
    assert "secret" not in log
    assert re.search(r"[^\n\x20-\x7e]", log) is None
