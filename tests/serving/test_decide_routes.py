"""`POST /v1/decide` over real sockets: bodies, forms, ids, limits; and what a restart finds."""

import re
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import onnx
import pytest

import secondlook as sl
from secondlook.errors import ServingError
from secondlook.serving.options import ServiceOptions
from secondlook.serving.service import Service, open_service
from tests.serving.running import (
    Digits,
    Reply,
    make_bomb,
    make_noise,
    read_rows,
    send,
    send_image,
    serve,
)

Server = tuple[str, Service]


def send_form(url: str, *parts: tuple[str, str | None, bytes], query: str = "", **headers: str) -> Reply:
    """Send a form of parts: name, file name, content."""
    boundary = uuid.uuid4().hex
    body = b""
    for name, file_name, content in parts:
        file = "" if file_name is None else f'; filename="{file_name}"'
        body += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
        )
    kind = f"multipart/form-data; boundary={boundary}"
    return send(f"{url}/v1/decide{query}", body + f"--{boundary}--\r\n".encode(), Content_Type=kind, **headers)


class TestBody:
    @pytest.mark.parametrize("kind", ["image/jpeg", "application/octet-stream", "application/x-www-form-urlencoded"])
    def test_the_content_type_of_a_body_hardly_matters(self, server: Server, digits: Digits, kind: str) -> None:
        assert send(f"{server[0]}/v1/decide", digits.files[0], Content_Type=kind).status == 200

    def test_an_id_may_be_in_the_query(self, server: Server, digits: Digits) -> None:
        reply = send(f"{server[0]}/v1/decide?id=a%20b&name=c.png", digits.files[0], Content_Type="image/png")
        assert reply.json["id"] == "a b"
        ((name,),) = read_rows(server[1].options.data_dir, "SELECT name FROM decisions")
        assert name == "c.png"

    def test_ids_are_text_in_utf_8(self, server: Server, digits: Digits) -> None:
        sent = send_image(server[0], digits.files[0], "größe".encode().decode("latin-1"))  # as headers are sent
        assert sent.json["id"] == "größe"
        assert send(f"{server[0]}/v1/decisions/gr%C3%B6%C3%9Fe").json["id"] == "größe"
        reply = send(f"{server[0]}/v1/decide?id=gr%F6%DFe", digits.files[0], Content_Type="image/png")
        assert (reply.status, reply.code) == (400, "id")

    def test_an_id_is_made_where_none_is_given(self, server: Server, digits: Digits) -> None:
        ids = {send_image(server[0], digits.files[0]).json["id"] for _ in range(2)}
        assert len(ids) == 2
        assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)

    def test_a_repeated_request_gets_the_same_decision(self, server: Server, digits: Digits) -> None:
        first, again = (send_image(server[0], digits.files[0], "a") for _ in range(2))
        assert first.json == again.json
        assert "Idempotent-Replay" not in first.headers
        assert again.headers["Idempotent-Replay"] == "true"


class TestForm:
    def test_several_images_are_decided_in_order(self, server: Server, digits: Digits) -> None:
        parts = [("image", f"{place}.png", digits.files[place]) for place in range(5)]
        ids = [("id", None, f"id{place}".encode()) for place in range(5)]
        reply = send_form(server[0], *parts, *ids)
        assert reply.status == 200
        made = reply.json["decisions"]
        assert [one["id"] for one in made] == [f"id{place}" for place in range(5)]
        alone = [send_image(server[0], digits.files[place]).json for place in range(5)]
        assert [one["label"] for one in made] == [one["label"] for one in alone]
        names = read_rows(server[1].options.data_dir, "SELECT name FROM decisions WHERE id LIKE 'id%' ORDER BY id")
        assert names == [(f"{place}.png",) for place in range(5)]

    def test_one_image_without_an_id(self, server: Server, digits: Digits) -> None:
        (made,) = send_form(server[0], ("file", "x.png", digits.files[0])).json["decisions"]
        assert len(made["id"]) == 32

    def test_as_many_ids_as_images_are_needed(self, server: Server, digits: Digits) -> None:
        image = ("image", "x.png", digits.files[0])
        reply = send_form(server[0], image, image, ("id", None, b"a"))
        assert (reply.status, reply.code) == (400, "id")

    @pytest.mark.parametrize("place", ["query", "header"])
    def test_the_key_of_a_request_is_the_id_of_its_only_image(self, server: Server, digits: Digits, place: str) -> None:
        image = ("image", "x.png", digits.files[0])
        query, headers = ("?id=a", {}) if place == "query" else ("", {"Idempotency_Key": "a"})
        first, again = (send_form(server[0], image, query=query, **headers) for _ in range(2))
        assert first.json == again.json
        assert first.json["decisions"][0]["id"] == "a"
        assert again.headers["Idempotent-Replay"] == "true"
        reply = send_form(server[0], image, image, query=query, **headers)
        assert (reply.status, reply.code) == (400, "id")
        ids = [("id", None, id_) for id_ in (b"b", b"c")]
        both = send_form(server[0], image, image, *ids, query=query, **headers)
        assert [one["id"] for one in both.json["decisions"]] == ["b", "c"]
        assert read_rows(server[1].options.data_dir, "SELECT count(*) FROM decisions") == [(3,)]

    def test_a_form_without_files_has_no_image(self, server: Server) -> None:
        assert send_form(server[0], ("image", None, b"text")).code == "no_image"

    @pytest.mark.parametrize("limits", [{"max_images": 2}, {"max_waiting": 2}])
    def test_too_many_images_are_refused(self, digits: Digits, tmp_path: Path, limits: dict[str, Any]) -> None:
        with serve(digits.policy, tmp_path / "service", **limits) as (url, _):
            parts = [("image", "x.png", digits.files[0])] * 40
            for n_images in (3, 4, 40):
                reply = send_form(url, *parts[:n_images])
                assert (reply.status, reply.code) == (413, "too_many_images")
            assert send_form(url, *parts[:2]).status == 200


class TestBadInput:
    @pytest.mark.parametrize(
        ("body", "headers", "status", "code"),
        [
            (b"", {"Content_Type": "image/png"}, 400, "no_image"),
            (b"not an image", {"Content_Type": "image/png"}, 422, "unreadable_image"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", {"Content_Type": "image/png"}, 422, "unreadable_image"),
            (make_noise()[:80], {"Content_Type": "image/png"}, 422, "unreadable_image"),
            (make_bomb(), {"Content_Type": "image/png"}, 413, "image_too_large"),
            (make_noise(20), {"Content_Type": "image/png"}, 422, "image_size"),
            (b"{}", {"Content_Type": "application/json"}, 415, "content_type"),
            (b"x", {"Content_Type": "multipart/form-database"}, 415, "content_type"),
            (b"x", {"Content_Type": "multipart/form-data"}, 400, "invalid"),
            (b"x", {"Content_Type": "multipart/form-data; boundary=b"}, 400, "invalid"),
            (make_noise(), {"Content_Type": "image/png", "Idempotency_Key": "x" * 300}, 400, "id"),
            (make_noise(), {"Content_Type": "image/png", "Idempotency_Key": "\xff"}, 400, "id"),
        ],
    )
    def test_each_is_a_clear_error_and_the_server_goes_on(
        self, server: Server, digits: Digits, body: bytes, headers: dict[str, str], status: int, code: str
    ) -> None:
        reply = send(f"{server[0]}/v1/decide", body, **headers)
        assert (reply.status, reply.code) == (status, code)
        assert not reply.json["error"]["message"].endswith("..")
        assert reply.json["error"]["message"].endswith(".")
        assert send_image(server[0], digits.files[0]).status == 200

    def test_unknown_ids_and_paths(self, server: Server, digits: Digits) -> None:
        assert send(f"{server[0]}/v1/decisions/none").code == "unknown_id"
        for id_ in ("a%00b", "%FF"):  # PostgreSQL stores no NUL
            reply = send(f"{server[0]}/v1/decisions/{id_}")
            assert (reply.status, reply.code) == (400, "id")
        assert send(f"{server[0]}/v1/none").code == "not_found"
        assert send(f"{server[0]}/v1/decide").code == "method"

    @pytest.mark.parametrize(
        "id_", ["../../etc/passwd", "a/b/c", "<script>alert(1)</script>", "'; DROP TABLE decisions;--", "ä%20"]
    )
    def test_odd_ids_are_found_again(self, server: Server, digits: Digits, id_: str) -> None:
        made = send(f"{server[0]}/v1/decide?id={quote(id_, safe='')}", digits.files[0], Content_Type="image/png").json
        assert made["id"] == id_
        found = send(f"{server[0]}/v1/decisions/{quote(id_, safe='')}").json
        assert {name: found[name] for name in made} == made
        assert found["reviewed_label"] is None


class TestRestart:
    def test_decisions_are_there_after_a_restart(self, digits: Digits, tmp_path: Path) -> None:
        with serve(digits.policy, tmp_path / "service") as (url, _):
            made = send_image(url, digits.files[0], "a").json
        with serve(digits.policy, tmp_path / "service") as (url, _):
            again = send_image(url, digits.files[0], "a")
            assert again.json == made
            assert again.headers["Idempotent-Replay"] == "true"

    @pytest.mark.posix
    def test_two_services_in_one_folder_are_refused(self, digits: Digits, tmp_path: Path) -> None:
        with (
            open_service(digits.policy, ServiceOptions(tmp_path)),
            pytest.raises(ServingError, match="another service"),
            open_service(digits.policy, ServiceOptions(tmp_path)),
        ):
            pass

    def test_two_instances_share_a_postgresql_database(self, digits: Digits, tmp_path: Path, postgres_url: str) -> None:
        options: dict[str, Any] = {"database": postgres_url}
        with (
            serve(digits.policy, tmp_path / "one", **options) as (one, first),
            serve(digits.policy, tmp_path / "two", **options) as (two, second),
        ):
            made = send_image(one, digits.files[0], "a").json
            again = send_image(two, digits.files[0], "a")
            assert again.json == made
            assert again.headers["Idempotent-Replay"] == "true"
            first.deploy(sl.load_policy(digits.adaptive_policy))
            second.refresh()
            assert send_image(two, digits.files[0], "b").json["looks"] == 1

    def test_an_instance_of_another_classifier_is_refused(self, digits: Digits, tmp_path: Path) -> None:
        other = tmp_path / "other.onnx"
        model = onnx.load(digits.policy.parent / "digits.onnx")
        model.producer_name = "another"
        onnx.save(model, other)
        with open_service(digits.policy, ServiceOptions(tmp_path / "service")):
            pass
        with (
            pytest.raises(sl.SecondLookError, match="digest"),
            open_service(digits.policy, ServiceOptions(tmp_path / "service"), classifier=f"onnx:{other}"),
        ):
            pass

    def test_an_exported_file_is_refused(self, tmp_path: Path) -> None:
        with (
            pytest.raises(ServingError, match="exported"),
            open_service(tmp_path / "decide.onnx", ServiceOptions(tmp_path / "service")),
        ):
            pass


def test_the_schema_describes_the_decision(server: Server) -> None:
    schema = send(f"{server[0]}/openapi.json").json
    route = schema["paths"]["/v1/decide"]["post"]
    assert set(route["requestBody"]["content"]) == {"image/*", "multipart/form-data"}
    assert {"408", "409", "413", "429", "507"} <= set(route["responses"])
    properties = schema["components"]["schemas"]["ServedDecision"]["properties"]
    assert {"id", "label", "class", "confidence", "interval", "accept", "looks", "guarantee"} <= set(properties)
