"""Tests for operators: files, starting, failing databases, exports of large queues, and the description of the API."""

import asyncio
import base64
import gc
import json
import os
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from starlette.requests import Request

from secondlook.serving import Client, ServiceOptions
from secondlook.serving import store as store_module
from secondlook.serving.access import Access
from secondlook.serving.database import Database
from secondlook.serving.review_exports import ReviewExport
from secondlook.serving.store import DecisionStore, NewDecision, ReviewStore, StoredImage
from tests.monitoring.streams import make_policy
from tests.serving.running import Digits, Server, send, send_image, serve, wait_for
from tests.serving.streams import make_decision
from tests.serving.test_server import connect, read_reply, start_thread


def test_simultaneous_requests_share_the_check_of_a_token(
    tmp_path: Path, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ServiceOptions(tmp_path)
    access = Access(options, options.open_tokens(), sqlite)
    token = access.tokens.add("robot", "client")
    hasher = Mock(wraps=access.tokens._hasher)
    monkeypatch.setattr(access.tokens, "_hasher", hasher)

    async def send_all(token: str) -> set[str | None]:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        requests = [Request({"type": "http", "headers": headers}) for _ in range(64)]
        found = await asyncio.gather(*map(access.authenticate, requests))
        return {None if principal is None else principal.name for principal in found}

    assert asyncio.run(send_all(token)) == {"robot"}
    assert asyncio.run(send_all(token + "x")) == {None}
    assert hasher.verify.call_count == 2


def test_first_decision_finds_the_service_warm(digits: Digits, tmp_path: Path) -> None:
    """Neither the first image nor the first decision imports packages, which takes a second."""
    (tmp_path / "image.png").write_bytes(digits.files[0])
    code = f"""
import asyncio, sys
from pathlib import Path
from secondlook.serving import ServiceOptions
from secondlook.serving.request_images import SubmittedImage
from secondlook.serving.service import open_service
folder = Path({str(tmp_path)!r})
with open_service({str(digits.policy)!r}, ServiceOptions(folder / "service", audit=0.2)) as service:
    before = set(sys.modules)
    asyncio.run(service.worker.decide([SubmittedImage((folder / "image.png").read_bytes())]))
    print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"PIL", "scipy", "pandas", "pyarrow"} & {name.partition(".")[0] for name in done.stdout.split()}


def test_headers_are_limited_whether_complete_or_not(running: Server) -> None:
    def ask(n_bytes: int, name: bytes = b"X-Long") -> int:
        head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + name + b": "
        with connect(running[0]) as connection:
            connection.sendall(head + b"a" * (n_bytes - len(head) - 4) + b"\r\n\r\n")
            return read_reply(connection).status

    assert [ask(kib * 1024) for kib in (1, 63, 65, 80, 100)] == [200, 200, 400, 400, 400]


def test_health_checks_answer_head_requests(running: Server) -> None:
    for path in ("healthz", "readyz"):
        reply = send(f"{running[0]}/{path}", method="HEAD")
        assert (reply.status, reply.body) == (200, b"")


def test_model_configuration_has_the_tensors_of_the_metadata(running: Server) -> None:
    url = f"{running[0]}/v2/models/secondlook"
    about, version = send(url).json, send(url).json["versions"][0]
    found = send(f"{url}/config").json
    assert send(f"{url}/versions/{version}/config").json == found
    assert (found["name"], found["max_batch_size"]) == ("secondlook", 0)
    for kind in ("input", "output"):
        named = {each["name"]: each["data_type"].removeprefix("TYPE_") for each in found[kind]}
        assert named == {each["name"]: each["datatype"].replace("BYTES", "STRING") for each in about[f"{kind}s"]}
        assert all(each["dims"] == [-1] for each in found[kind])
    assert send(f"{running[0]}/v2/models/other/config").status == 404
    client = pytest.importorskip("tritonclient.http").InferenceServerClient(running[0].removeprefix("http://"))
    assert client.get_model_config("secondlook") == found


class Relay:
    """Passes the connections of a database on, or resets them."""

    def __init__(self, host: str, port: int) -> None:
        self._target, self.is_broken, self.resets = (host, port), False, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        start_thread(self._accept)

    def set_broken(self, is_broken: bool) -> None:
        self.is_broken = is_broken
        while is_broken and self._open:
            with suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.set_broken(True)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # after `close`
            while True:
                client, _ = self._listener.accept()
                if self.is_broken:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                    self.resets += 1
                    continue
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    start_thread(partial(self._pass_on, source, target))

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while piece := source.recv(65536):
                target.sendall(piece)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # pg8000 does not close the sockets of lost connections
def test_lost_postgresql_connections_are_unavailable_storage(digits: Digits, tmp_path: Path, postgres_url: str) -> None:
    address = sa.make_url(postgres_url)
    relay = Relay(address.host or "", address.port or 0)
    url_of_relay = address.set(port=relay.port).render_as_string(hide_password=False)
    try:
        with serve(digits.policy, tmp_path, database=url_of_relay) as (url, _), Client(url, timeout=240) as client:
            client.decide(digits.files[0])
            relay.set_broken(True)
            reply = send_image(url, digits.files[1])
            assert (reply.status, reply.code) == (503, "storage_unavailable")
            assert send(f"{url}/v1/decisions/a").status == 503
            with ThreadPoolExecutor(1) as pool:
                before = relay.resets
                decided = pool.submit(client.decide, digits.files[2], "lost")
                wait_for(lambda: relay.resets > before)
                relay.set_broken(False)
                assert decided.result().id == "lost"
    finally:
        relay.close()
        gc.collect()


def test_exports_read_images_in_blocks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{place}": StoredImage("image/png", bytes([place]) * size) for place, size in enumerate([3, 0, 40, 9, 2])}
    files |= {f"{place}": StoredImage("image/png", b"12345678") for place in range(5, 200)}
    store, queue = DecisionStore(database), ReviewStore(database, 300.0)
    deployment = store.deploy(make_policy(), None)
    new = [NewDecision(make_decision(id=id_), "d", None, image) for id_, image in files.items()]
    numbers = [outcome.decision.number for outcome in store.add(new, deployment.number)]
    monkeypatch.setattr(store_module, "BLOCK_BYTES", 10)
    assert list(queue.iter_images(numbers[4::-1])) == [*files.values()][4::-1]
    assert list(queue.iter_images([max(numbers) + 1, numbers[0]])) == [None, files["0"]]
    monkeypatch.undo()
    queries: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        queries.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    export = ReviewExport(SimpleNamespace(reviews=queue, decisions=store), ("a", "b", "c", "d"), ["waiting"])  # type: ignore[arg-type]
    tasks = json.loads(b"".join(export.write("label-studio")))
    sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert {task["data"]["id"]: base64.b64decode(task["data"]["image"].partition(",")[2]) for task in tasks} == {
        id_: image.content for id_, image in files.items()
    }
    assert len(queries) < 10


def test_statuses_are_described_in_the_api(running: Server) -> None:
    url, paths = running[0], send(f"{running[0]}/openapi.json").json["paths"]
    cross_site, token = {"Origin": "https://evil.example"}, {"Authorization": "Bearer wrong"}
    json_ = {"Content_Type": "application/json"}
    for method, path, target, headers, body, status in (
        ("get", "/v1/decisions/{id_}", "v1/decisions/missing", {}, None, 404),
        ("get", "/v1/decisions/{id_}", "v1/decisions/%00", {}, None, 400),
        ("get", "/v1/status", "v1/status", token, None, 401),
        ("post", "/v1/review/release", "v1/review/release", cross_site, b"", 403),
        ("get", "/v1/status", "v1/status", {"Host": "evil.example"}, None, 400),
        ("get", "/v1/status", "v1/status?timeline=maybe", {}, None, 422),
        ("get", "/v2/models/{name}", "v2/models/other", {}, None, 404),
        ("get", "/v2/models/{name}/config", "v2/models/other/config", {}, None, 404),
        ("get", "/v2/models/{name}/ready", "v2/models/other/ready", {}, None, 404),
        ("post", "/v2/models/{name}/infer", "v2/models/other/infer", {}, b"{}", 404),
        ("post", "/v2/models/{name}/infer", "v2/models/secondlook/infer", {}, b"{}", 400),
        ("post", "/v2/models/{name}/infer", "v2/models/secondlook/infer", {"Content_Encoding": "gzip"}, b"{}", 415),
        ("post", "/v1/policy", "v1/policy", {}, b"{}", 422),
        ("post", "/v1/review/lease", "v1/review/lease", json_, b"{}" * 2**16, 413),
        ("post", "/v1/review/lease", "v1/review/lease", json_, b'{"count": 51}', 422),
        ("post", "/v1/review/{number}/label", "v1/review/99/label", json_, b'{"label": 1}', 404),
        ("get", "/v1/review/{number}/image", "v1/review/99/image", {}, None, 404),
        ("post", "/v1/reviews", "v1/reviews", {}, b"id\n", 422),
    ):
        reply = send(f"{url}/{target}", body, **headers)
        assert reply.status == status, (target, reply.body)
        described = paths[path][method]["responses"]
        assert str(status) in described, target
        assert {"401", "403", "429", "500", "503", "507"} <= described.keys()


@pytest.mark.posix
def test_new_data_folders_and_databases_are_private(digits: Digits, tmp_path: Path) -> None:
    def list_modes(folder: Path) -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.glob("service.db*"))}

    umask = os.umask(0o022)
    try:
        expected = {"service.db": 0o600, "service.db-wal": 0o600, "service.db-shm": 0o600}
        with serve(digits.policy, tmp_path / "new") as (url, _):
            send_image(url, digits.files[0])
            assert list_modes(tmp_path / "new") == {"new": 0o700} | expected
        (tmp_path / "known").mkdir(mode=0o755)
        with serve(digits.policy, tmp_path / "known"):
            assert list_modes(tmp_path / "known") == {"known": 0o755} | expected
        ServiceOptions(tmp_path / "tokens").open_tokens().add("Anna", "admin")
        assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)
