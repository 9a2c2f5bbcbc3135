"""The page /docs: every route with its parameters and errors, and examples that work as they are."""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secondlook.serving.pages import list_operations, mark_code
from secondlook.serving.service import Service
from tests.serving.running import Digits, send, serve

Running = tuple[str, Service]


def read_page(url: str, **headers: str) -> str:
    reply = send(f"{url}/docs", None, Accept="text/html", **headers)
    assert reply.status == 200
    return reply.body.decode()


def read_examples(page: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code>", page, re.DOTALL)]


def test_every_route_is_on_the_page_with_parameters_and_errors(server: Running) -> None:
    page = read_page(server[0])
    document = send(f"{server[0]}/openapi.json").json
    assert len(document["paths"]) > 10
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"<code>{method.upper()} {path}</code>" in page
            for parameter in operation.get("parameters", []):
                assert f"<code>{parameter['name']}</code>" in page
    for code in ("id_conflict", "busy", "unreadable_image", "storage_failed"):
        assert f"<code>{code}</code>" in page
    assert "Confidence of the prediction" in page


def test_the_page_loads_nothing_of_other_hosts(server: Running) -> None:
    page = read_page(server[0])
    loaded = re.findall(r'(?:src|href|action)="([^"]*)"', page)
    assert loaded
    assert not [address for address in loaded if not address.startswith(("/", "#", "data:,"))]
    assert "<script" not in page.replace("<script src=", "")
    assert " style=" not in page


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.posix
@pytest.mark.parametrize("with_token", [False, True])
def test_the_examples_for_curl_work(digits: Digits, tmp_path: Path, with_token: bool) -> None:
    for name, file in zip(("image.png", "first.png", "second.jpg"), digits.files, strict=False):
        (tmp_path / name).write_bytes(file)
    with serve(digits.policy, tmp_path / "service") as (url, service):
        headers: dict[str, str] = {}
        environment = {"PATH": "/usr/bin:/bin"}
        if with_token:
            environment["TOKEN"] = service.tokens.add("a", "client")
            headers["Authorization"] = f"Bearer {environment['TOKEN']}"
        commands = [text for text in read_examples(read_page(url, **headers)) if text.startswith("curl")]
        replies: list[Any] = [
            json.loads(
                subprocess.run(
                    ["/bin/sh", "-c", command.replace("curl", "curl --silent", 1)],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    check=True,
                ).stdout
            )
            for command in commands
        ]
    one, several, again = replies
    assert one["id"] == again["id"] == "image-1"
    assert len(several["decisions"]) == 2


def test_the_examples_for_python_work(server: Running, digits: Digits, tmp_path: Path) -> None:
    pytest.importorskip("tritonclient.http")
    (tmp_path / "image.png").write_bytes(digits.files[0])
    programs = [text for text in read_examples(read_page(server[0])) if text.startswith(("import", "from"))]
    assert len(programs) == 2
    label = str(send(f"{server[0]}/v1/decide", digits.files[0], Content_Type="image/png").json["label"])
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert label in done.stdout


def test_a_host_name_cannot_break_out_of_the_page(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        token = service.tokens.add("a", "admin")
        page = read_page(url, Host='"><b>x', Authorization=f"Bearer {token}")
    assert "<b>" not in page


def test_descriptions_are_escaped() -> None:
    assert mark_code("a <b> `c<d>` e") == "a &lt;b&gt; <code>c&lt;d&gt;</code> e"


def test_operations_are_listed_by_tag() -> None:
    document = {
        "paths": {
            "/a": {
                "get": {
                    "tags": ["x"],
                    "summary": "Read",
                    "parameters": [{"name": "n", "in": "query", "required": True, "schema": {"type": "integer"}}],
                    "responses": {
                        "200": {
                            "description": "ok",
                            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}},
                        },
                        "422": {"description": "Validation Error"},
                        "404": {"description": "`gone`: it is gone"},
                    },
                }
            },
            "/b": {"post": {"responses": {}, "requestBody": {"content": {"image/*": {}}}}},
        },
        "components": {
            "schemas": {
                "A": {
                    "properties": {
                        "pair": {"anyOf": [{"type": "array", "prefixItems": [{}, {}]}, {"type": "null"}]},
                        "names": {"type": "array", "items": {"type": "string"}, "description": "All names."},
                        "state": {"enum": ["on", "off"]},
                    }
                }
            }
        },
    }
    sections = list_operations(document)
    assert list(sections) == ["x", "other"]
    (read,), (write,) = sections.values()
    assert (read["method"], read["path"], read["summary"]) == ("GET", "/a", "Read")
    assert read["parameters"] == [("n", "integer, query, required", "")]
    assert read["fields"] == [
        ("pair", "list of 2 or null", ""),
        ("names", "list of string", "All names."),
        ("state", "'on' or 'off'", ""),
    ]
    assert read["failures"] == [("404", "`gone`: it is gone")]
    assert write["bodies"] == ["image/*"]
