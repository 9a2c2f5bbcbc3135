"""The examples of docs/service.md work as they are."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from secondlook.serving.service import Service
from tests.serving.running import Digits, send

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8000"


@pytest.fixture
def images(digits: Digits, tmp_path: Path) -> Path:
    for name, file in zip(("image.png", "first.png", "second.jpg"), digits.files, strict=False):
        (tmp_path / name).write_bytes(file)
    return tmp_path


def list_blocks(language: str, start: str) -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return [block for block in blocks if block.startswith(start)]


@pytest.mark.parametrize("program", list_blocks("python", "import"), ids=lambda program: program.splitlines()[-1][:30])
def test_programs(program: str, server: tuple[str, Service], images: Path) -> None:
    if "tritonclient" in program:
        pytest.importorskip("tritonclient.http")
    code = program.replace(ADDRESS, server[0].removeprefix("http://"))
    done = subprocess.run([sys.executable, "-c", code], cwd=images, capture_output=True, text=True, check=True)
    assert "True" in done.stdout or "False" in done.stdout


@pytest.mark.posix
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_commands(server: tuple[str, Service], images: Path) -> None:
    lines = [line for block in list_blocks("text", "curl") for line in block.splitlines()]
    lines = [line for line in lines if "/v1/deci" in line and "Bearer" not in line]
    assert len(lines) >= 3
    for line in lines:
        command = line.replace(ADDRESS, server[0].removeprefix("http://")).replace("curl", "curl --silent --fail", 1)
        done = subprocess.run(["/bin/sh", "-c", command], cwd=images, capture_output=True, check=True)
        assert {"confidence", "decisions"} & json.loads(done.stdout).keys()


def test_fields_and_codes_of_errors_are_those_of_the_api(server: tuple[str, Service], images: Path) -> None:
    (shown,) = list_blocks("text", "{")
    reply = send(f"{server[0]}/v1/decide", (images / "image.png").read_bytes(), Content_Type="image/png")
    assert list(json.loads(shown)) == list(reply.json)
    responses = send(f"{server[0]}/openapi.json").json["paths"]["/v1/decide"]["post"]["responses"]
    table = dict(re.findall(r"^\| (\d{3}) \| ([^|]*) \|", PAGE, re.MULTILINE))
    for status, response in responses.items():
        for code in re.findall(r"`([a-z_]+)`", response["description"].partition(":")[0]):
            assert f"`{code}`" in table[status], f"{code} of {status} is not in the table"
