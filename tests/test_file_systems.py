"""Locations: URLs and local paths, their errors, and pickling."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from secondlook.errors import PredictionsError, SourceError
from secondlook.file_systems import FileEntry, Location, _explain, is_url, open_location, reject_credentials

S3 = Callable[[str], Any]


@pytest.fixture(params=["s3", "file", "path"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A location without files, in each kind of file system."""
    if request.param == "s3":
        request.getfixturevalue("s3")("empty-bucket")
        return open_location("s3://empty-bucket/a folder/", SourceError)
    root = tmp_path / "a folder"
    return open_location(root.as_uri() if request.param == "file" else str(root), SourceError)


def test_urls_are_distinguished_from_other_texts() -> None:
    assert all(map(is_url, ["s3://bucket", "gs://b/x", "abfs://c@a/x", "hdfs://host:8020/x", "file:///x"]))
    assert not any(map(is_url, ["C:\\x", "C://x", "folder", "/x/s3://y", "folder:s3://bucket", "", "s3:bucket"]))


def test_written_files_are_listed_and_read(empty: Location) -> None:
    assert empty.list_files() == []
    assert not empty.exists()
    empty.write_bytes("b/2.bin", b"second")
    empty.write_bytes("a.bin", b"first")
    empty.write_bytes(".hidden/c.bin", b"hidden")
    empty.write_bytes("b/.c.bin", b"hidden")
    assert empty.exists()
    files = empty.list_files()
    assert [(file.name, file.size) for file in files] == [("a.bin", 5), ("b/2.bin", 6)]
    assert all(file.mtime_ns > 10**18 for file in files)
    assert empty.list_folders() == ["b"]
    assert empty.find("b/2.bin") == files[1]
    assert empty.find("b") is None
    assert empty.read_bytes("a.bin") == b"first"
    with empty.open("a.bin") as opened:
        assert opened.read() == b"first"
    empty.write_bytes("a.bin", b"replaced")
    assert empty.read_bytes("a.bin") == b"replaced"
    empty.delete("a.bin")
    empty.delete("a.bin")
    assert [file.name for file in empty.list_files()] == ["b/2.bin"]
    file = open_location(f"{empty.url.rstrip('/')}/b/2.bin", SourceError)
    assert file.find() == FileEntry("", 6, empty.list_files()[0].mtime_ns)
    assert file.name == "2.bin"
    assert file.parent.read_bytes("2.bin") == b"second"
    assert empty.find() is None
    with pytest.raises(SourceError, match=r"a\.bin") as caught:
        empty.read_bytes("a.bin")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.posix
def test_link_to_a_parent_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "b.bin").write_bytes(b"first")
    assert [file.name for file in open_location(str(tmp_path), SourceError).list_files()] == ["a/b.bin"]


def test_location_is_small_when_pickled_and_opens_its_files_in_another_process(empty: Location) -> None:
    empty.write_bytes("a.bin", b"first")
    content = pickle.dumps(empty)
    assert len(content) < 1000
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).read_bytes('a.bin').decode())"
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
    assert done.stdout.strip() == b"first"


def test_relative_path_is_resolved_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(b"first")
    monkeypatch.chdir(tmp_path)
    location = open_location(".", SourceError)
    monkeypatch.chdir(tmp_path.parent)
    assert location.read_bytes("a.bin") == b"first"


def test_missing_bucket(s3: S3) -> None:
    missing = open_location("s3://no-such-bucket/x", PredictionsError)
    assert not missing.exists()
    for fail in (missing.list_files, lambda: missing.write_bytes("a", b"a")):
        with pytest.raises(PredictionsError, match="'no-such-bucket'") as caught:
            fail()
        assert "Request ID" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("s3")
def test_unreachable_server_is_named() -> None:
    dead = open_location("s3://bucket/x?endpoint=http://127.0.0.1:1", SourceError)
    for fail in (dead.list_files, lambda: dead.read_bytes("a"), lambda: dead.write_bytes("a", b"a")):
        with pytest.raises(SourceError, match=r"127\.0\.0\.1:1.*endpoint=") as caught:
            fail()
        assert "curlCode" not in str(caught.value)


def test_endpoint_region_and_anonymous(s3_server: str, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3("some-bucket")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    options = {"endpoint": s3_server, "region": "eu-west-1", "anonymous": "true", "labels": "none"}
    location = open_location("s3://some-bucket", SourceError, options)
    assert (location.endpoint, location.region, location.anonymous) == (s3_server, "eu-west-1", True)
    location.write_bytes("a", b"a")
    same = open_location(f"s3://some-bucket/?endpoint={s3_server}&region=eu-west-1&anonymous=True", SourceError)
    assert [file.name for file in same.list_files()] == ["a"]


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@bucket/x",
        "s3://key:hun/ter2@bucket/x",
        "s3://hunter2@bucket/x",
        "s3://bucket/x?access_key=a&secret_key=hunter2",
        "s3://bucket/x?session_token=hunter2",
        "abfs://account:hunter2@host/x",
        "s3://bucket/x?endpoint=http://user:hunter2@host",
    ],
)
def test_credentials_in_a_url_are_rejected_and_not_repeated(url: str) -> None:
    with pytest.raises(SourceError, match="credentials") as caught:
        open_location(url, SourceError)
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["hdfs://host:8020/a@b", "abfs://container@account/x", "gs://bucket/a:b", "C:/a:b@c"])
def test_urls_without_credentials_are_not_rejected(url: str) -> None:
    reject_credentials(url, SourceError)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("zz://host/x", "zz"),
        ("s3:///x", "no bucket"),
        ("s3://bucket/x?regoin=eu", "region"),
        ("s3://bucket/x?anonymous=maybe", "maybe"),
        ("file:///x?region=eu", "region"),
        ("gs://bucket/x?region=eu", "region"),
    ],
)
def test_url_that_cannot_be_opened(url: str, found: str) -> None:
    with pytest.raises(PredictionsError, match=found):
        open_location(url, PredictionsError)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("When reading: AWS Error ACCESS_DENIED during HeadObject operation: No response body.", "AWS_ACCESS_KEY_ID"),
        ("AWS Error UNKNOWN (HTTP status 301) during ListObjectsV2 operation: moved (Request ID: 3)", "region="),
        ("AWS Error SLOW_DOWN during X operation: Reduce your rate. (Request ID: 3)", "Reduce your rate;"),
        ("google::Status(UNAVAILABLE: CURL error [7]=Could not connect error_info={reason=})", "(Could not connect)"),
    ],
)
def test_server_problems_come_with_a_repair(problem: str, told: str) -> None:
    assert told in _explain(OSError(problem), Location("s3://bucket/x", SourceError, path="bucket/x"))
