"""Credentials of remote models: they are sent, and are found nowhere else."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from secondlook.classifiers import load_classifier, split_credentials
from secondlook.classifiers.loading import LoadOptions
from secondlook.cli.app import app
from secondlook.errors import ClassifierError, SecondLookError
from tests.classifiers.loopback_server import IMAGES, Chunks, http, respond_by, respond_well, serve

SECRET = "pa55word-of-alice"
BASIC = base64.b64encode(f"alice:{SECRET}".encode()).decode()
VARIABLE = "MODEL_SERVER_HEADER"


def run(*arguments: str) -> str:
    """Run a command and return what it prints."""
    ended = CliRunner().invoke(app, list(arguments))
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended.output


@pytest.mark.parametrize("place", ["URL", "environment"])
def test_credentials_are_sent_and_stored_nowhere(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=images.mean(axis=(1, 2)).argmax(axis=1))
    data = ("--data", f"npz:{tmp_path}/data.npz", "--no-progress")
    folder = tmp_path / "results"
    monkeypatch.setenv(VARIABLE, f"Authorization: Bearer {SECRET}")
    with serve(respond_by(lambda pixels: pixels.mean(axis=(2, 3)) * 20)) as server:
        user = f"alice:{SECRET}@" if place == "URL" else ""
        address = f"http://{user}{server.host}/v2/models/m?output=logits"
        second = ("--model", f"{address}&std=0.9") if place == "URL" else ("--header-from-env", VARIABLE)
        model = ["--model", address, *second]
        options = ["--views", "identity hflip", "--method", "msr", "--resamples", "2"]
        printed = run("evaluate", *model, *data, "--out", str(folder), *options)
        if place == "URL":
            printed += run("report", str(folder)) + run("info", str(folder))
        else:
            printed += run("calibrate", "--run", str(folder), "--coverage", "0.5", "--out", f"{folder}/policy.json")
            policy = ("--policy", f"{folder}/policy.json", "--out", f"{folder}/scores.csv")
            printed += run("score", *model, *policy, *data)
        assert server.requests
        header = f"Authorization: Basic {BASIC}" if place == "URL" else f"Authorization: Bearer {SECRET}"
        assert all(header.encode() in request for request in server.requests)
    assert (folder / "scores.csv").exists() == (place == "environment")
    secrets = [SECRET.encode(), BASIC.encode(), base64.b64encode(SECRET.encode()), b"alice:"]
    contents = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert contents
    assert not any(secret in content for secret in secrets for content in contents)
    assert SECRET not in printed
    assert BASIC not in printed


def test_credentials_do_not_change_the_identity(load: Any) -> None:
    with serve(respond_well) as server:
        plain, secret = (load(f"http://{user}{server.host}/v2/models/m") for user in ("", f"a:{SECRET}@"))
        assert (plain.digest, plain.name) == (secret.digest, secret.name)
        assert SECRET not in repr(secret)
        assert SECRET not in repr(LoadOptions("m", authorization=SECRET))
        for classifier in (plain, secret):
            classifier(IMAGES)


@pytest.mark.parametrize(
    ("text", "without", "credentials"),
    [
        ("http://h:80/v2/models/m", "http://h:80/v2/models/m", None),
        ("http://u:p@h:80/v2", "http://h:80/v2", "u:p"),
        ("https://u:p%40%2f%3f@[::1]:80/v2/models/m@2", "https://[::1]:80/v2/models/m@2", "u:p@/?"),
        ("http://u:p@q@h/v2", "http://h/v2", "u:p@q"),
        ("http://token@h/v2", "http://h/v2", "token:"),
        ("onnx:a@b/c.onnx", "onnx:a@b/c.onnx", None),
    ],
)
def test_credentials_are_split_from_a_url(text: str, without: str, credentials: str | None) -> None:
    found, authorization = split_credentials(text)
    assert found == without
    expected = None if credentials is None else f"Basic {base64.b64encode(credentials.encode()).decode()}"
    assert authorization == expected


@pytest.mark.parametrize(
    "rest",
    [
        "/x@127.0.0.1:9/v2/models/m?output=logits",
        "?x=1@127.0.0.1:9/v2/models/m?output=logits",
        "@127.0.0.1:9/v2/models/m?output=logits&outputs=x",
        "@127.0.0.1:9/v2/models/m?output=logit",
        "@127.0.0.1:9/v2/models/m",
        "@127.0.0.1:9/?output=logits",
        "@127.0.0.1:99999/v2/models/m?output=logits",
        "@127.0.0.1:port/v2/models/m?output=logits",
        "@127.0.0.1:9/v2/models/m?output=logits&retries=0&timeout=1",
        "@/v2/models/m?output=logits",
        "@\u2603\u3002.invalid./v2/models/m?output=logits&retries=0",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_errors_do_not_contain_credentials(scheme: str, rest: str) -> None:
    spec = f"{scheme}://a:{SECRET}{rest}"
    line = ("evaluate", "--model", spec, "--output", "logits", "--data", "npz:x", "--out", "y")
    doors: dict[type[SecondLookError], Any] = {ClassifierError: lambda: load_classifier(spec)}
    doors[SecondLookError] = lambda: run(*line)
    for kind, fail in doors.items():
        with pytest.raises(kind) as raised:
            fail()
        assert SECRET not in str(raised.value)


@pytest.mark.parametrize("place", ["metadata", "infer"])
@pytest.mark.parametrize("status", ["401 Unauthorized", "200 OK"])
def test_a_server_that_repeats_credentials_is_not_quoted(place: str, status: str) -> None:
    def respond(path: str, request: bytes) -> Chunks:
        if path.endswith("/infer") or place == "metadata":
            return [http(request.partition(b"Authorization:")[2][:50], status=status)]
        return respond_well(path, request)

    with serve(respond) as server, pytest.raises(ClassifierError, match=r"\*\*\*") as raised:
        load_classifier(f"http://alice:{SECRET}@{server.host}/v2/models/m?output=logits&retries=0")(IMAGES)
    assert BASIC not in str(raised.value)


def test_invalid_and_duplicate_headers_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {None: VARIABLE, SECRET: VARIABLE, f"X: {SECRET}\r\nY: z": "invalid", f": {SECRET}": "invalid"}
    monkeypatch.delenv(VARIABLE, raising=False)
    for line, match in lines.items():
        if line is not None:
            monkeypatch.setenv(VARIABLE, line)
        with pytest.raises(ClassifierError, match=match) as raised:
            load_classifier(f"http://127.0.0.1:9/v2/models/m?output=logits&header_from_env={VARIABLE}")
        assert SECRET not in str(raised.value)
    with pytest.raises(ClassifierError, match="duplicate header 'authorization'") as raised:
        load_classifier("http://u:p@127.0.0.1:9/v2/models/m", output="logits", headers={"authorization": SECRET})
    assert SECRET not in str(raised.value)
