"""Deciding about images: `POST /v1/decide` over real sockets, and the worker behind it."""

import asyncio
import os
import re
import threading
import tracemalloc
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import onnx
import pytest

import secondlook as sl
from secondlook.errors import SecondLookError, ServingError
from secondlook.policies import AuditPlan, read_policy
from secondlook.serving import ServiceOptions, request_images
from secondlook.serving import serve as serve_policy
from secondlook.serving.database import StorageError, StorageUnavailableError
from secondlook.serving.request_images import SubmittedImage, fit_image
from secondlook.serving.responses import RequestError
from secondlook.serving.service import Service, open_service
from secondlook.serving.store import StoredOutcome
from secondlook.sources import read_image
from tests.serving.running import Digits, Reply, Server, make_bomb, make_noise, read_rows, send, send_image, serve

PATIENCE = 120
"""Timeout for a decision in seconds."""
PNG = {"Content_Type": "image/png"}


def send_form(url: str, *parts: tuple[str, str | None, bytes], query: str = "", **headers: str) -> Reply:
    boundary = uuid.uuid4().hex
    body = b""
    for name, file_name, content in parts:
        file = "" if file_name is None else f'; filename="{file_name}"'
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    kind = f"multipart/form-data; boundary={boundary}"
    return send(f"{url}/v1/decide{query}", body + f"--{boundary}--\r\n".encode(), Content_Type=kind, **headers)


class TestRequests:
    def test_ids_are_read_from_query_or_header_or_generated(self, server: Server, digits: Digits) -> None:
        url, service = server
        assert send(f"{url}/v1/decide?id=a%20b&name=c.png", digits.files[0], **PNG).json["id"] == "a b"
        assert read_rows(service.options.data_dir, "SELECT name FROM decisions") == [("c.png",)]
        sent = send_image(url, digits.files[0], "größe".encode().decode("latin-1"))  # as headers are sent
        assert sent.json["id"] == "größe"
        assert send(f"{url}/v1/decisions/gr%C3%B6%C3%9Fe").json["id"] == "größe"
        reply = send(f"{url}/v1/decide?id=gr%F6%DFe", digits.files[0], **PNG)
        assert (reply.status, reply.code) == (400, "id")
        made = {send_image(url, digits.files[0]).json["id"] for _ in range(2)}
        assert len(made) == 2
        assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)

    def test_several_images_of_a_form_are_decided_in_order(self, running: Server, digits: Digits) -> None:
        url, service = running
        parts = [("image", f"{place}.png", digits.files[place]) for place in range(5)]
        reply = send_form(url, *parts, *[("id", None, f"id{place}".encode()) for place in range(5)])
        assert reply.status == 200
        made = reply.json["decisions"]
        assert [one["id"] for one in made] == [f"id{place}" for place in range(5)]
        alone = [send_image(url, digits.files[place]).json for place in range(5)]
        assert [one["label"] for one in made] == [one["label"] for one in alone]
        names = read_rows(service.options.data_dir, "SELECT name FROM decisions WHERE id LIKE 'id%' ORDER BY id")
        assert names == [(f"{place}.png",) for place in range(5)]
        (made,) = send_form(url, ("file", "x.png", digits.files[0])).json["decisions"]
        assert len(made["id"]) == 32
        reply = send_form(url, parts[0], parts[0], ("id", None, b"a"))
        assert (reply.status, reply.code) == (400, "id"), "as many ids as images are needed"
        assert send_form(url, ("image", None, b"text")).code == "no_image", "a form without files"

    def test_key_of_a_form_is_the_id_of_its_only_image(self, server: Server, digits: Digits) -> None:
        image = ("image", "x.png", digits.files[0])
        for key, query, headers in (("a", "?id=a", {}), ("b", "", {"Idempotency_Key": "b"})):
            first, again = (send_form(server[0], image, query=query, **headers) for _ in range(2))
            assert first.json == again.json
            assert first.json["decisions"][0]["id"] == key
            assert again.headers["Idempotent-Replay"] == "true"
            reply = send_form(server[0], image, image, query=query, **headers)
            assert (reply.status, reply.code) == (400, "id")
            ids = [f"{key}1", f"{key}2"]
            parts = [("id", None, id_.encode()) for id_ in ids]
            both = send_form(server[0], image, image, *parts, query=query, **headers)
            assert [one["id"] for one in both.json["decisions"]] == ids
        assert read_rows(server[1].options.data_dir, "SELECT count(*) FROM decisions") == [(6,)]

    @pytest.mark.parametrize("limits", [{"max_images": 2}, {"max_waiting": 2}])
    def test_too_many_images_are_refused(self, digits: Digits, tmp_path: Path, limits: dict[str, Any]) -> None:
        with serve(digits.policy, tmp_path / "service", **limits) as (url, _):
            parts = [("image", "x.png", digits.files[0])] * 40
            for n_images in (3, 4, 40):
                reply = send_form(url, *parts[:n_images])
                assert (reply.status, reply.code) == (413, "too_many_images")
            assert send_form(url, *parts[:2]).status == 200

    @pytest.mark.parametrize(
        ("body", "headers", "status", "code"),
        [
            (b"", PNG, 400, "no_image"),
            (b"not an image", PNG, 422, "unreadable_image"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", PNG, 422, "unreadable_image"),
            (make_noise()[:80], PNG, 422, "unreadable_image"),
            (make_bomb(), PNG, 413, "image_too_large"),
            (make_noise(20), PNG, 422, "image_size"),
            (b"{}", {"Content_Type": "application/json"}, 415, "content_type"),
            (b"x", {"Content_Type": "multipart/form-database"}, 415, "content_type"),
            (b"x", {"Content_Type": "multipart/form-data"}, 400, "invalid"),
            (b"x", {"Content_Type": "multipart/form-data; boundary=b"}, 400, "invalid"),
            (make_noise(), {**PNG, "Idempotency_Key": "x" * 300}, 400, "id"),
            (make_noise(), {**PNG, "Idempotency_Key": "\xff"}, 400, "id"),
        ],
    )
    def test_invalid_input_is_a_clear_error_and_the_server_keeps_running(
        self, running: Server, digits: Digits, body: bytes, headers: dict[str, str], status: int, code: str
    ) -> None:
        reply = send(f"{running[0]}/v1/decide", body, **headers)
        assert (reply.status, reply.code) == (status, code)
        assert re.search(r"[^.]\.$", reply.json["error"]["message"])
        assert send_image(running[0], digits.files[0]).status == 200

    @pytest.mark.parametrize(
        ("id_", "kind"),
        [
            *((id_, "image/jpeg") for id_ in ("../../etc/passwd", "a/b/c", "<script>alert(1)</script>", "ä%20")),
            ("'; DROP TABLE decisions;--", "application/octet-stream"),
            ("as a form", "application/x-www-form-urlencoded"),
        ],
    )
    def test_odd_ids_and_types_do_not_matter(self, running: Server, digits: Digits, id_: str, kind: str) -> None:
        made = send(f"{running[0]}/v1/decide?id={quote(id_, safe='')}", digits.files[0], Content_Type=kind).json
        assert made["id"] == id_
        found = send(f"{running[0]}/v1/decisions/{quote(id_, safe='')}").json
        assert {name: found[name] for name in made} == made
        assert found["reviewed_label"] is None

    def test_the_schema_describes_the_decision_and_unknown_paths_are_errors(self, running: Server) -> None:
        schema = send(f"{running[0]}/openapi.json").json
        route = schema["paths"]["/v1/decide"]["post"]
        assert set(route["requestBody"]["content"]) == {"image/*", "multipart/form-data"}
        assert {"408", "409", "413", "429", "507"} <= set(route["responses"])
        properties = schema["components"]["schemas"]["ServedDecision"]["properties"]
        assert {"id", "label", "class", "confidence", "interval", "accept", "looks", "guarantee"} <= set(properties)
        assert send(f"{running[0]}/v1/decisions/none").code == "unknown_id"
        for id_ in ("a%00b", "%FF"):  # PostgreSQL stores no NUL
            reply = send(f"{running[0]}/v1/decisions/{id_}")
            assert (reply.status, reply.code) == (400, "id")
        assert send(f"{running[0]}/v1/none").code == "not_found"
        assert send(f"{running[0]}/v1/decide").code == "method"


class TestRestart:
    @pytest.mark.posix
    def test_two_services_in_one_folder_are_refused(self, digits: Digits, tmp_path: Path) -> None:
        options = ServiceOptions(tmp_path)
        with open_service(digits.policy, options), pytest.raises(ServingError, match="another service"):
            serve_policy(digits.policy, options)

    def test_another_classifier_and_exported_files_are_refused(self, digits: Digits, tmp_path: Path) -> None:
        model = onnx.load(digits.policy.parent / "digits.onnx")
        model.producer_name = "another"
        onnx.save(model, tmp_path / "other.onnx")
        with open_service(digits.policy, ServiceOptions(tmp_path)):
            pass
        with pytest.raises(SecondLookError, match="digest"):
            serve_policy(digits.policy, ServiceOptions(tmp_path), classifier=f"onnx:{tmp_path / 'other.onnx'}")
        with pytest.raises(ServingError, match="exported"):
            serve_policy(tmp_path / "decide.onnx", ServiceOptions(tmp_path))


class Bench:
    """The worker of a service without a server."""

    def __init__(self, service: Service) -> None:
        self.service, self.worker = service, service.worker
        self.model = service.live.plan.resolved.classifier

    def decide(self, *requests: Sequence[SubmittedImage]) -> list[list[StoredOutcome] | BaseException]:
        """Send requests at once, and return the outcome of each."""

        async def send() -> list[list[StoredOutcome] | BaseException]:
            decided = asyncio.gather(*map(self.worker.decide, requests), return_exceptions=True)
            return await asyncio.wait_for(decided, PATIENCE)

        return asyncio.run(send())

    def decide_one(self, content: Any, id_: str | None = None) -> StoredOutcome:
        (result,) = self.decide([SubmittedImage(content, id_)])
        if isinstance(result, BaseException):
            raise result
        return result[0]

    def decide_files(self, files: Sequence[bytes]) -> list[Any]:
        results = self.decide(*[[SubmittedImage(file, f"{place}")] for place, file in enumerate(files)])
        made = [one[0].decision for one in results if isinstance(one, list)]
        assert len(made) == len(files), results
        return made

    def find_error(self, *images: SubmittedImage) -> tuple[int, str, str]:
        """Send a request that fails, and return the status, the code and the message."""
        (result,) = self.decide(images)
        assert isinstance(result, RequestError)
        return result.status, result.code, str(result)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        return read_rows(self.service.options.data_dir, text)

    @contextmanager
    def hold_looks(self) -> Iterator[tuple[threading.Event, threading.Event]]:
        """Make the classifier wait; yields an event that it waits, and an event to release it."""
        looks, released = threading.Event(), threading.Event()
        forward = self.model.forward

        def wait(images: Any) -> Any:
            looks.set()
            released.wait(2 * PATIENCE)
            return forward(images)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.model, "forward", wait)
            yield looks, released
            released.set()


@contextmanager
def open_bench(policy: Path, folder: Path, **options: Any) -> Iterator[Bench]:
    with open_service(policy, ServiceOptions(folder, **options)) as service:
        yield Bench(service)


@pytest.fixture
def bench(digits: Digits, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(digits.policy, tmp_path, audit=0.2) as bench:
        yield bench


class TestDecisions:
    @pytest.mark.parametrize("kind", ["policy", "adaptive_policy", "limited_policy"])
    def test_decisions_are_those_of_score(self, digits: Digits, tmp_path: Path, kind: str) -> None:
        policy = getattr(digits, kind)
        files = (*digits.files[:60], *(make_noise(seed=seed) for seed in range(3)))
        with open_bench(policy, tmp_path) as bench:
            made = bench.decide_files(files)
            expected = sl.SelectiveClassifier(bench.model, policy).decide(
                np.stack([read_image(file)[:, :, :1] for file in files])
            )
            metrics = bench.service.metrics.render().decode()
            monitor = sl.Monitor(read_policy(policy))
            for _, table in bench.service.decisions.iter_score_tables(monitor.policy, {1: None}):
                monitor.update(table)
        assert monitor.describe().images == len(files), "what is stored has the columns of score files"
        rejections = [expected.find_rejection(place) for place in range(len(files))]
        assert [one.rejection for one in made] == rejections
        assert ("unfamiliar" in rejections) == (expected.familiarity is not None) == (kind == "limited_policy")
        found = [one.familiarity for one in made]
        if expected.familiarity is None:
            assert set(found) == {None}
        else:
            np.testing.assert_allclose(found, expected.familiarity, atol=1e-6)
        for name, values in (("label", expected.labels), ("accept", expected.accept), ("looks", expected.looks)):
            assert [getattr(one, name) for one in made] == values.tolist()
        np.testing.assert_allclose([one.confidence for one in made], expected.confidence, atol=1e-6)
        np.testing.assert_allclose([one.first_look for one in made], expected.first_look, atol=1e-6)
        images, batches = (
            re.findall(rf"^secondlook_batch_size_{name} (.*)", metrics, re.M) for name in ("sum", "count")
        )
        assert float(images[0]) > float(batches[0]), "several images are looked at together"

    def test_pixels_to_review_are_stored_and_audits_drawn_by_seed(self, bench: Bench, digits: Digits) -> None:
        pixels = read_image(make_noise())
        assert not bench.decide_one(pixels).decision.accept
        ((kind, content),) = bench.query("SELECT media_type, content FROM images")
        assert kind == "image/png"
        np.testing.assert_array_equal(read_image(content), pixels)
        made = bench.decide_files(digits.files[:200])
        drawn = AuditPlan.draw([one.id for one in made], bench.service.database.audit_seed)
        for one, number in zip(made, drawn, strict=True):
            assert (one.audit_probability is None) == (not one.accept)
            assert one.audit == (one.accept and number < (one.audit_probability or 0))
        assert 0 < sum(one.audit for one in made) < sum(one.accept for one in made)

    def test_nothing_is_stored_with_no_store(self, digits: Digits, tmp_path: Path) -> None:
        with open_bench(digits.policy, tmp_path, store_images=False) as bench:
            bench.decide_one(make_noise())
            assert [bench.query(f"SELECT count(*) FROM {name}") for name in ("reviews", "images")] == [[(1,)], [(0,)]]


class TestIdempotency:
    def test_all_requests_share_a_decision(self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
        results = bench.decide(*[[SubmittedImage(digits.files[0], "a")] for _ in range(20)])
        outcomes = [one[0] for one in results if isinstance(one, list)]
        assert len(outcomes) == 20
        assert sum(not one.replayed for one in outcomes) == 1
        assert all(one.decision == outcomes[0].decision for one in outcomes)
        assert bench.query("SELECT id FROM decisions") == [("a",)]
        # As if the other were written in between.
        monkeypatch.setattr(bench.service.decisions, "find", lambda ids, **_: {})
        assert bench.decide_one(digits.files[0], "a") == StoredOutcome(outcomes[0].decision, replayed=True)

    @pytest.mark.parametrize("at_once", [False, True])
    def test_another_image_with_the_same_id_is_refused(self, bench: Bench, digits: Digits, at_once: bool) -> None:
        requests = [[SubmittedImage(digits.files[place], "a")] for place in (0, 1)]
        results = bench.decide(*requests) if at_once else [*bench.decide(requests[0]), *bench.decide(requests[1])]
        errors = [one for one in results if isinstance(one, RequestError)]
        assert [(one.status, one.code) for one in errors] == [(409, "id_conflict")]
        two = [SubmittedImage(make_noise(), "b"), SubmittedImage(digits.files[2], "a")]
        assert bench.find_error(*two)[1] == "id_conflict"
        assert bench.query("SELECT id FROM decisions") == [("a",)], "nothing of a request with a conflict is decided"

    def test_request_with_the_id_of_a_pending_image_decides_nothing(self, bench: Bench, digits: Digits) -> None:
        async def send() -> RequestError:
            with bench.hold_looks() as (looks, released):
                first = asyncio.create_task(bench.worker.decide([SubmittedImage(digits.files[0], "a")]))
                await asyncio.to_thread(looks.wait)
                images = [SubmittedImage(digits.files[1], "b"), SubmittedImage(digits.files[2], "a")]
                with pytest.raises(RequestError) as caught:
                    await asyncio.wait_for(bench.worker.decide(images), PATIENCE)
                assert bench.worker.waiting == 1
                released.set()
                await first
                return caught.value

        assert asyncio.run(send()).code == "id_conflict"
        bench.worker.stop()
        assert bench.worker.waiting == 0
        assert bench.query("SELECT id FROM decisions") == [("a",)]


class TestFaults:
    def test_bad_images_do_not_affect_others(
        self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        status, code, _ = bench.find_error(SubmittedImage(make_noise()[:100], None, "max_pixels.png"))
        assert (status, code) == (422, "unreadable_image"), "not too large because of its name"
        for id_ in ("", "a" * 201, "new\nline", "\x1b[31m", "a\0b", "\ufffd"):
            assert bench.find_error(SubmittedImage(digits.files[0], id_))[:2] == (400, "id")
        good, bad = SubmittedImage(digits.files[0], "good"), SubmittedImage(b"bad", "bad", "bad.png")
        assert "image 2 ('bad.png')" in bench.find_error(good, bad)[2]
        assert bench.query("SELECT count(*) FROM decisions") == [(0,)]
        forward, poison = bench.model.forward, read_image(digits.files[1])[:, :, :1]

        def fail(images: Any) -> Any:
            if any(np.array_equal(image, poison) for image in images):
                raise ValueError("a classifier may raise anything")
            return forward(images)

        monkeypatch.setattr(bench.model, "forward", fail)
        first, failed, last = bench.decide(*[[SubmittedImage(digits.files[place])] for place in (0, 1, 2)])
        assert isinstance(failed, RequestError)
        assert (failed.status, failed.code, "anything" in str(failed)) == (500, "internal", False)
        assert isinstance(first, list) is isinstance(last, list) is True

    @pytest.mark.parametrize(
        ("part", "step", "error", "expected"),
        [
            ("decisions", "find", StorageUnavailableError("it is away"), (503, "storage_unavailable")),
            ("decisions", "find", ValueError("secret"), (500, "internal")),
            ("metrics", "count_look", ValueError("secret"), (500, "internal")),
            ("decisions", "add", StorageError("the disk is full"), (507, "storage_failed")),
            ("metrics", "count_decisions", ValueError("the decision is stored already"), None),
        ],
    )
    def test_worker_survives_any_failure(
        self, bench: Bench, digits: Digits, part: str, step: str, error: Exception, expected: tuple[int, str] | None
    ) -> None:
        failed = threading.Event()

        def fail(*_: object, **__: object) -> None:
            failed.set()
            raise error

        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(getattr(bench.service, part), step, fail)
            (result,) = bench.decide([SubmittedImage(digits.files[0], "a")])
            assert failed.wait(PATIENCE), "what is stored is counted after the response"
        if expected is None:
            assert isinstance(result, list)
        else:
            assert isinstance(result, RequestError)
            assert (result.status, result.code) == expected
            assert "secret" not in str(result)
        assert bench.worker.is_alive
        assert bench.decide_one(digits.files[0], "a").replayed == (expected is None)

    def test_worker_survives_canceled_requests(self, bench: Bench, digits: Digits) -> None:
        async def leave(looks: threading.Event) -> None:
            task = asyncio.create_task(bench.worker.decide([SubmittedImage(digits.files[0], "a")]))
            await asyncio.to_thread(looks.wait)
            task.cancel()

        with bench.hold_looks() as (looks, _):
            asyncio.run(leave(looks))
        assert bench.decide_one(digits.files[0], "a").decision.id == "a"
        assert bench.worker.is_alive


class TestLimits:
    def test_full_queue_refuses_images_with_a_retry_time(self, digits: Digits, tmp_path: Path) -> None:
        async def send(bench: Bench) -> tuple[RequestError, list[StoredOutcome]]:
            with bench.hold_looks() as (_, released):
                first = asyncio.create_task(bench.worker.decide([SubmittedImage(file) for file in digits.files[:3]]))
                await asyncio.sleep(0)
                with pytest.raises(RequestError) as error:
                    await bench.worker.decide([SubmittedImage(digits.files[3])])
                released.set()
                return error.value, await first

        with open_bench(digits.policy, tmp_path, max_waiting=3) as bench:
            error, decided = asyncio.run(send(bench))
            assert (error.status, error.code) == (429, "busy")
            assert int(error.headers["Retry-After"]) >= 1
            assert len(decided) == 3
            assert bench.worker.waiting == 0
            assert bench.decide_one(digits.files[3]).decision.label >= 0

    @pytest.mark.parametrize("is_bounded", [True, False])
    def test_number_of_pixels_decoded_at_once_is_limited(
        self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bounded: bool
    ) -> None:
        n_pixels, at_once, changed, are_many = 16 * 16, 0, threading.Lock(), threading.Event()

        def read_slowly(*image: Any, max_pixels: int) -> Any:
            nonlocal at_once
            pixels = read_image(*image, max_pixels=max_pixels)
            with changed:
                at_once += 1
                if at_once > request_images.MAX_LARGEST:
                    are_many.set()
            are_many.wait(0.2 if is_bounded else PATIENCE)
            with changed:
                at_once -= 1
            return pixels

        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(request_images, "read_image", read_slowly)
        with open_bench(digits.policy, tmp_path, max_pixels=n_pixels * (1 if is_bounded else 100)) as bench:
            bench.decide_files(digits.files[:8])
        assert are_many.is_set() != is_bounded

    def test_gray_files_are_recognized_without_a_copy(self) -> None:
        class GrayPlan:
            def fit_image(self, pixels: Any) -> Any:
                if pixels.shape[2] != 1:
                    raise SecondLookError("one channel is expected")
                return pixels[None]

        plan = cast(Any, GrayPlan())
        pixels = np.zeros((1000, 1000, 3), dtype=np.uint8)
        tracemalloc.start()
        assert fit_image(plan, pixels).shape == (1, 1000, 1000, 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < pixels.nbytes / 10
        pixels[-1, -1, 2] = 1
        with pytest.raises(SecondLookError):
            fit_image(plan, pixels)

    def test_stopping_worker_finishes_pending_images(self, bench: Bench, digits: Digits) -> None:
        async def send() -> list[StoredOutcome]:
            with bench.hold_looks() as (looks, released):
                images = [SubmittedImage(file) for file in digits.files[:40]]  # more than a batch
                task = asyncio.create_task(bench.worker.decide(images))
                await asyncio.to_thread(looks.wait)
                stopping = asyncio.create_task(asyncio.to_thread(bench.worker.stop))
                released.set()
                await stopping
            with pytest.raises(RequestError) as error:
                await bench.worker.decide([SubmittedImage(digits.files[0])])
            assert error.value.code == "stopping"
            return await task

        assert len(asyncio.run(send())) == 40
