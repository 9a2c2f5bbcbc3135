"""A full disk: requests fail with a clear error, the server keeps running, and no acknowledged decision is lost."""

import sys
from pathlib import Path

import pytest

from stress.server_process import ServerProcess
from tests.serving.running import Digits, make_noise, read_rows, send, send_image

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can be set on Linux only")

ROOM = 24 * 1024
"""Bytes that the files of the database may still grow."""


def test_server_recovers_from_a_full_disk(digits: Digits, tmp_path: Path) -> None:
    from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

    data_dir = tmp_path / "service"
    with ServerProcess(digits.policy, data_dir) as server:
        used = max(file.stat().st_size for file in data_dir.iterdir())
        prlimit(server.pid, RLIMIT_FSIZE, (used + ROOM, RLIM_INFINITY))
        replies = {f"{number}": send_image(server.url, make_noise(seed=number), f"{number}") for number in range(30)}
        kept = {id_ for id_, reply in replies.items() if reply.status == 200}
        failed = {id_: reply for id_, reply in replies.items() if reply.status != 200}
        assert kept
        assert failed
        assert {(reply.status, reply.code) for reply in failed.values()} == {(507, "storage_failed")}
        assert send(f"{server.url}/healthz").status == 200
        prlimit(server.pid, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
        for id_ in failed:
            assert send_image(server.url, make_noise(seed=int(id_)), id_).status == 200
        server.wait_until_ready()
    ids = read_rows(data_dir, "SELECT id FROM decisions")
    assert sorted(ids) == sorted((f"{number}",) for number in range(30))
    rejected = read_rows(data_dir, "SELECT id FROM decisions WHERE NOT accept")
    images = read_rows(data_dir, "SELECT d.id, i.content FROM decisions d JOIN images i ON i.number = d.number")
    assert len(rejected) > 15
    assert dict(images) == {id_: make_noise(seed=int(id_)) for (id_,) in rejected}
