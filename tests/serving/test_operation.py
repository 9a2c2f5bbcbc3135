"""Tests for operators: files, starting, failing databases, exports of large queues, and the description of the API."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.requests import Request

from secondlook.serving import ServiceOptions
from secondlook.serving.access import Access
from secondlook.serving.database import Database
from tests.serving.running import Digits, Server, send, send_image, serve
from tests.serving.test_server import connect, read_reply


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
