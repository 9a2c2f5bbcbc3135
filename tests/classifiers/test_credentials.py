"""Credentials of remote models: they are sent, and are found nowhere else."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from secondlook.classifiers import LoadOptions, load_classifier, split_credentials
from secondlook.cli.app import app
from secondlook.errors import ClassifierError, SecondLookError
from tests.classifiers.loopback_server import IMAGES, Chunks, Server, http, respond_by, respond_well, serve

SECRET = "pa55word-of-alice"
BASIC = base64.b64encode(f"alice:{SECRET}".encode()).decode()
VARIABLE = "MODEL_SERVER_HEADER"


respond_to_many = respond_by(lambda pixels: pixels.mean(axis=(2, 3)) * 20)
"""Respond with the mean of each channel of the images as logits."""


def find_secrets(folder: Path) -> list[str]:
    """Return the files below a folder that contain the secret, its base64 form, or the user name."""
    secrets = [SECRET.encode(), BASIC.encode(), base64.b64encode(SECRET.encode()), b"alice:"]
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [str(file) for file in files if any(secret in file.read_bytes() for secret in secrets)]


def run(*arguments: str) -> str:
    """Run a command and return what it prints."""
    ended = CliRunner().invoke(app, list(arguments))
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended.output


@pytest.fixture
def data(tmp_path: Path) -> str:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=images.mean(axis=(1, 2)).argmax(axis=1))
    return f"npz:{tmp_path / 'data.npz'}"


def test_credentials_of_a_url_are_sent_and_stored_nowhere(data: str, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    with serve(respond_to_many) as server:
        model = f"http://alice:{SECRET}@{server.host}/v2/models/m?output=logits"
        members = ["--model", model, "--model", f"{model}&std=0.9"]
        printed = evaluate(*members, data=data, out=folder) + run("report", str(folder)) + run("info", str(folder))
        assert_all_authorized(server, f"Authorization: Basic {BASIC}")
    assert find_secrets(folder) == []
    assert SECRET not in printed
    assert BASIC not in printed


def test_a_header_from_the_environment_is_sent_and_stored_nowhere(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"Authorization: Bearer {SECRET}")
    folder = tmp_path / "results"
    with serve(respond_to_many) as server:
        address = f"http://{server.host}/v2/models/m?output=logits"
        model = ["--model", address, "--header-from-env", VARIABLE]
        printed = evaluate(*model, data=data, out=folder)
        printed += run("calibrate", "--run", str(folder), "--coverage", "0.5", "--out", f"{folder}/policy.json")
        out = ["--out", f"{folder}/scores.csv", "--no-progress"]
        printed += run("score", *model, "--policy", f"{folder}/policy.json", "--data", data, *out)
        assert_all_authorized(server, f"Authorization: Bearer {SECRET}")
    assert (folder / "scores.csv").exists()
    assert find_secrets(folder) == []
    assert SECRET not in printed


def evaluate(*model: str, data: str, out: Path) -> str:
    options = ["--views", "identity hflip", "--method", "msr", "--resamples", "2", "--no-progress"]
    return run("evaluate", *model, "--data", data, "--out", str(out), *options)


def assert_all_authorized(server: Server, header: str) -> None:
    assert server.requests
    assert all(header.encode() in request for request in server.requests)


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
    "spec",
    [
        f"http://a:{SECRET}/x@127.0.0.1:9/v2/models/m?output=logits",
        f"http://a:{SECRET}?x=1@127.0.0.1:9/v2/models/m?output=logits",
        f"http://a:{SECRET}@127.0.0.1:9/v2/models/m?output=logits&outputs=x",
        f"http://a:{SECRET}@127.0.0.1:9/v2/models/m?output=logit",
        f"http://a:{SECRET}@127.0.0.1:9/v2/models/m",
        f"http://a:{SECRET}@127.0.0.1:9/?output=logits",
        f"http://a:{SECRET}@127.0.0.1:99999/v2/models/m?output=logits",
        f"http://a:{SECRET}@127.0.0.1:port/v2/models/m?output=logits",
        f"http://a:{SECRET}@127.0.0.1:9/v2/models/m?output=logits&retries=0&timeout=1",
        f"http://a:{SECRET}@/v2/models/m?output=logits",
        f"http://a:{SECRET}@\u2603\u3002.invalid./v2/models/m?output=logits&retries=0",
        f"HTTP://a:{SECRET}@127.0.0.1:9/v2/models/m",
    ],
)
def test_errors_do_not_contain_credentials(spec: str) -> None:
    with pytest.raises(ClassifierError) as raised:
        load_classifier(spec)
    assert SECRET not in str(raised.value)
    with pytest.raises(SecondLookError) as raised_by_command:
        run("evaluate", "--model", spec, "--output", "logits", "--data", "npz:x", "--out", "y")
    assert SECRET not in str(raised_by_command.value)


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


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (None, VARIABLE),
        (SECRET, VARIABLE),
        (f"X: {SECRET}\r\nY: z", "invalid"),
        (f": {SECRET}", "invalid"),
    ],
)
def test_an_environment_variable_without_a_header_is_rejected(
    line: str | None, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if line is not None:
        monkeypatch.setenv(VARIABLE, line)
    with pytest.raises(ClassifierError, match=match) as raised:
        load_classifier(f"http://127.0.0.1:9/v2/models/m?output=logits&header_from_env={VARIABLE}")
    assert SECRET not in str(raised.value)


def test_a_header_is_given_once() -> None:
    with pytest.raises(ClassifierError, match="duplicate header 'authorization'") as raised:
        load_classifier("http://u:p@127.0.0.1:9/v2/models/m", output="logits", headers={"authorization": SECRET})
    assert SECRET not in str(raised.value)
