"""Deciding in batches: the decisions of `score`, once per id, and limits that hold."""

import asyncio
import os
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

import secondlook as sl
from secondlook.classifiers import Classifier
from secondlook.decisions import Decision, Plan, RowOptions, compile_policy, load_policy
from secondlook.errors import SecondLookError
from secondlook.policies import AuditPlan, Policy
from secondlook.serving import request_images
from secondlook.serving.database import DatabaseReadError, StorageError, open_database
from secondlook.serving.decision_worker import DecisionWorker, LiveDeployment
from secondlook.serving.options import ServiceOptions
from secondlook.serving.request_images import SubmittedImage, fit_image
from secondlook.serving.responses import RequestError
from secondlook.serving.store import DecisionStore, StoredOutcome
from secondlook.sources import read_image
from tests.serving.running import Digits, make_noise, read_rows

PATIENCE = 120
"""Seconds after which a decision does not come any more."""


def compile_plan(policy: Policy) -> Plan:
    plan = compile_policy(policy)
    assert isinstance(plan, Plan)
    return plan


class Bench:
    """A worker with its store, and what it did."""

    def __init__(self, policy: Path, folder: Path, audit: float | None = None, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.database = open_database(folder)
        self.folder = folder
        self.store = DecisionStore(self.database)
        loaded = load_policy(policy)
        deployment = self.store.deploy(loaded, audit)
        self.plan = compile_plan(loaded)
        self.live = LiveDeployment(deployment, self.plan, RowOptions(loaded, audit=audit), self.database.audit_seed)
        self.batches: list[int] = []
        settings = ServiceOptions(folder, **options)
        self.n_stored = 0
        self.worker = DecisionWorker(
            lambda: self.live,
            self.store,
            settings,
            cast(Any, SimpleNamespace(count_look=self._count, count_decisions=self._count_stored, overloads=Mock())),
        )
        self.worker.start()

    def _count(self, n_images: int, seconds: float) -> None:
        self.batches.append(n_images)

    def _count_stored(self, decisions: Sequence[Decision]) -> None:
        self.n_stored += len(decisions)

    @property
    def model(self) -> Classifier:
        """What looks at the images."""
        return self.plan.resolved.classifier

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


def hold_looks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make the classifier wait; returns what tells that it does, and what lets it go on."""
    looks, goes_on = threading.Event(), threading.Event()
    forward = bench.model.forward

    def wait(images: Any) -> Any:
        looks.set()
        goes_on.wait(2 * PATIENCE)
        return forward(images)

    monkeypatch.setattr(bench.model, "forward", wait)
    return looks, goes_on


@pytest.fixture
def bench(digits: Digits, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(digits.policy, tmp_path, audit=0.2)
    yield bench
    bench.worker.stop()


class TestDecisions:
    @pytest.mark.parametrize("adaptive", [False, True])
    def test_decisions_are_those_of_score(self, digits: Digits, tmp_path: Path, adaptive: bool) -> None:
        policy = digits.adaptive_policy if adaptive else digits.policy
        bench = Bench(policy, tmp_path)
        files = digits.files[:60]
        outcomes = bench.decide(*[[SubmittedImage(file, f"{place}")] for place, file in enumerate(files)])
        bench.worker.stop()
        made = [one[0].decision for one in outcomes if isinstance(one, list)]
        pixels = np.stack([read_image(file)[:, :, :1] for file in files])
        expected = sl.SelectiveClassifier(bench.model, policy).decide(pixels)
        assert [one.label for one in made] == expected.labels.tolist()
        assert [one.accept for one in made] == expected.accept.tolist()
        assert [one.looks for one in made] == expected.looks.tolist()
        np.testing.assert_allclose([one.confidence for one in made], expected.confidence, atol=1e-6)
        np.testing.assert_allclose([one.first_look for one in made], expected.first_look, atol=1e-6)
        assert max(bench.batches) > 1

    def test_pixels_to_review_are_stored_as_a_file(self, bench: Bench) -> None:
        pixels = read_image(make_noise())
        outcome = bench.decide_one(pixels)
        assert not outcome.decision.accept
        ((kind, content),) = read_rows(bench.folder, "SELECT media_type, content FROM images")
        assert kind == "image/png"
        np.testing.assert_array_equal(read_image(content), pixels)

    def test_nothing_is_stored_with_no_store(self, digits: Digits, tmp_path: Path) -> None:
        bench = Bench(digits.policy, tmp_path, store_images=False)
        bench.decide_one(make_noise())
        bench.worker.stop()
        assert read_rows(tmp_path, "SELECT count(*) FROM reviews") == [(1,)]
        assert read_rows(tmp_path, "SELECT count(*) FROM images") == [(0,)]

    def test_audits_are_drawn_with_the_seed_of_the_database(self, bench: Bench, digits: Digits) -> None:
        requests = [[SubmittedImage(file, f"{place}")] for place, file in enumerate(digits.files[:200])]
        results = bench.decide(*requests)
        made = [one[0].decision for one in results if isinstance(one, list)]
        assert len(made) == len(requests), results
        drawn = AuditPlan.draw([one.id for one in made], bench.database.audit_seed)
        for one, number in zip(made, drawn, strict=True):
            assert (one.audit_probability is None) == (not one.accept)
            assert one.audit == (one.accept and number < (one.audit_probability or 0))
        assert 0 < sum(one.audit for one in made) < sum(one.accept for one in made)


class TestIdempotency:
    def test_the_same_id_has_one_row_and_one_decision(self, bench: Bench, digits: Digits) -> None:
        first = bench.decide_one(digits.files[0], "a")
        again = bench.decide_one(digits.files[0], "a")
        assert (first.replayed, again.replayed) == (False, True)
        assert first.decision == again.decision
        assert read_rows(bench.folder, "SELECT count(*) FROM decisions") == [(1,)]

    def test_requests_at_once_share_the_decision(self, bench: Bench, digits: Digits) -> None:
        results = bench.decide(*[[SubmittedImage(digits.files[0], "a")] for _ in range(20)])
        outcomes = [one[0] for one in results if isinstance(one, list)]
        assert len(outcomes) == 20
        assert sum(not one.replayed for one in outcomes) == 1
        assert all(one.decision == outcomes[0].decision for one in outcomes)
        assert read_rows(bench.folder, "SELECT count(*) FROM decisions") == [(1,)]

    @pytest.mark.parametrize("at_once", [False, True])
    def test_another_image_with_the_same_id_is_refused(self, bench: Bench, digits: Digits, at_once: bool) -> None:
        requests = [[SubmittedImage(digits.files[place], "a")] for place in (0, 1)]
        results = bench.decide(*requests) if at_once else [*bench.decide(requests[0]), *bench.decide(requests[1])]
        errors = [one for one in results if isinstance(one, RequestError)]
        assert [(one.status, one.code) for one in errors] == [(409, "id_conflict")]
        assert read_rows(bench.folder, "SELECT count(*) FROM decisions") == [(1,)]

    def test_a_request_with_a_stored_id_of_another_image_decides_nothing(self, bench: Bench, digits: Digits) -> None:
        bench.decide_one(digits.files[0], "a")
        (result,) = bench.decide([SubmittedImage(digits.files[1], "b"), SubmittedImage(digits.files[2], "a")])
        assert isinstance(result, RequestError)
        assert result.code == "id_conflict"
        assert read_rows(bench.folder, "SELECT id FROM decisions") == [("a",)]

    def test_a_request_with_an_id_of_another_image_in_work_decides_nothing(
        self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks, goes_on = hold_looks(bench, monkeypatch)

        async def send() -> RequestError:
            first = asyncio.create_task(bench.worker.decide([SubmittedImage(digits.files[0], "a")]))
            await asyncio.to_thread(looks.wait)
            images = [SubmittedImage(digits.files[1], "b"), SubmittedImage(digits.files[2], "a")]
            with pytest.raises(RequestError) as caught:
                await asyncio.wait_for(bench.worker.decide(images), PATIENCE)
            assert bench.worker.waiting == 1
            goes_on.set()
            await first
            return caught.value

        assert asyncio.run(send()).code == "id_conflict"
        bench.worker.stop()
        assert bench.worker.waiting == 0
        assert read_rows(bench.folder, "SELECT id FROM decisions") == [("a",)]

    def test_an_id_of_another_instance_is_found_when_it_is_stored(
        self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = bench.decide_one(digits.files[0], "a")
        # As if the other were written in between.
        monkeypatch.setattr(bench.store, "find", lambda ids, **_: {})
        again = bench.decide_one(digits.files[0], "a")
        assert again == StoredOutcome(first.decision, replayed=True)


class TestFaults:
    def test_a_damaged_file_is_not_too_large_because_of_its_name(self, bench: Bench) -> None:
        (result,) = bench.decide([SubmittedImage(make_noise()[:100], None, "max_pixels.png")])
        assert isinstance(result, RequestError)
        assert (result.status, result.code) == (422, "unreadable_image")

    @pytest.mark.parametrize("id_", ["", "a" * 201, "new\nline", "\x1b[31m", "a\0b", "\ufffd"])
    def test_bad_ids_are_refused(self, bench: Bench, digits: Digits, id_: str) -> None:
        with pytest.raises(RequestError) as error:
            bench.decide_one(digits.files[0], id_)
        assert (error.value.status, error.value.code) == (400, "id")

    def test_one_bad_image_of_a_request_refuses_all_of_it(self, bench: Bench, digits: Digits) -> None:
        (result,) = bench.decide([SubmittedImage(digits.files[0], "good"), SubmittedImage(b"bad", "bad", "bad.png")])
        assert isinstance(result, RequestError)
        assert "image 2 ('bad.png')" in str(result)
        assert read_rows(bench.folder, "SELECT count(*) FROM decisions") == [(0,)]

    def test_an_image_that_the_classifier_fails_on_does_not_spoil_the_batch(
        self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forward, poison = bench.model.forward, read_image(digits.files[1])[:, :, :1]

        def fail(images: Any) -> Any:
            if any(np.array_equal(image, poison) for image in images):
                raise ValueError("a classifier may raise anything")
            return forward(images)

        monkeypatch.setattr(bench.model, "forward", fail)
        results = bench.decide(*[[SubmittedImage(digits.files[place])] for place in (0, 1, 2)])
        assert isinstance(results[1], RequestError)
        assert (results[1].status, results[1].code) == (500, "internal")
        assert "anything" not in str(results[1])
        assert isinstance(results[0], list)
        assert isinstance(results[2], list)

    def test_a_full_disk_fails_the_request_and_not_the_service(
        self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = bench.store.add

        def fail(*_: object) -> Any:
            raise StorageError("the disk is full")

        monkeypatch.setattr(bench.store, "add", fail)
        with pytest.raises(RequestError) as error:
            bench.decide_one(digits.files[0], "a")
        assert (error.value.status, error.value.code) == (507, "storage_failed")
        monkeypatch.setattr(bench.store, "add", add)
        assert not bench.decide_one(digits.files[0], "a").replayed

    @pytest.mark.parametrize(
        ("error", "status", "code"),
        [(DatabaseReadError("it is away"), 503, "storage_unavailable"), (ValueError("secret"), 500, "internal")],
    )
    def test_whatever_fails_before_looking_the_worker_goes_on(
        self,
        bench: Bench,
        digits: Digits,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        status: int,
        code: str,
    ) -> None:
        def fail(*_: object, **__: object) -> Any:
            raise error

        with monkeypatch.context() as broken:
            broken.setattr(bench.store, "find", fail)
            with pytest.raises(RequestError) as caught:
                bench.decide_one(digits.files[0], "a")
        assert (caught.value.status, caught.value.code) == (status, code)
        assert bench.worker.is_alive
        assert not bench.decide_one(digits.files[0], "a").replayed

    def test_whatever_fails_after_storing_the_worker_goes_on(self, digits: Digits, tmp_path: Path) -> None:
        bench = Bench(digits.policy, tmp_path)
        bench.n_stored = cast(Any, None)  # so that counting fails
        for _ in range(2):
            assert bench.decide_one(digits.files[0], "a").decision.label >= 0
        assert bench.worker.is_alive
        bench.worker.stop()
        assert not bench.worker.is_alive

    def test_whatever_fails_while_looking_the_worker_goes_on(self, digits: Digits, tmp_path: Path) -> None:
        bench = Bench(digits.policy, tmp_path)
        bench.batches = cast(Any, None)  # so that counting fails
        with pytest.raises(RequestError) as caught:
            bench.decide_one(digits.files[0], "a")
        assert (caught.value.status, caught.value.code) == (500, "internal")
        bench.batches = []
        assert bench.decide_one(digits.files[0], "a").decision.label >= 0
        assert bench.worker.is_alive
        bench.worker.stop()

    def test_requests_that_the_server_gave_up_do_not_end_the_worker(
        self, bench: Bench, digits: Digits, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks, goes_on = hold_looks(bench, monkeypatch)

        async def leave() -> None:
            task = asyncio.create_task(bench.worker.decide([SubmittedImage(digits.files[0], "a")]))
            await asyncio.to_thread(looks.wait)
            task.cancel()

        asyncio.run(leave())
        goes_on.set()
        assert bench.decide_one(digits.files[0], "a").decision.id == "a"
        assert bench.worker.is_alive


class TestLimits:
    def test_too_many_waiting_images_are_asked_to_come_back(
        self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench(digits.policy, tmp_path, max_waiting=3)
        _, goes_on = hold_looks(bench, monkeypatch)

        async def send() -> tuple[RequestError, list[StoredOutcome]]:
            first = asyncio.create_task(bench.worker.decide([SubmittedImage(file) for file in digits.files[:3]]))
            await asyncio.sleep(0)
            with pytest.raises(RequestError) as error:
                await bench.worker.decide([SubmittedImage(digits.files[3])])
            goes_on.set()
            return error.value, await first

        error, decided = asyncio.run(send())
        assert (error.status, error.code) == (429, "busy")
        assert int(error.headers["Retry-After"]) >= 1
        assert len(decided) == 3
        assert bench.worker.waiting == 0
        assert len(bench.decide([SubmittedImage(digits.files[3])])) == 1
        bench.worker.stop()

    def test_pixels_that_are_decoded_at_once_are_bounded(
        self, digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        n_pixels = 16 * 16
        at_once, most, patience, changed = 0, 0, 0.0, threading.Condition()

        def read_slowly(*image: Any, max_pixels: int) -> Any:
            nonlocal at_once, most
            pixels = read_image(*image, max_pixels=max_pixels)
            with changed:
                at_once += 1
                most = max(most, at_once)
                changed.notify_all()
                changed.wait_for(lambda: at_once > request_images.MAX_LARGEST, patience)
                at_once -= 1
            return pixels

        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(request_images, "read_image", read_slowly)
        for max_pixels in (n_pixels, 100 * n_pixels):
            most, patience = 0, 0.2 if max_pixels == n_pixels else 10.0
            bench = Bench(digits.policy, tmp_path / str(max_pixels), max_pixels=max_pixels)
            results = bench.decide(*[[SubmittedImage(file)] for file in digits.files[:8]])
            bench.worker.stop()
            assert all(isinstance(one, list) for one in results)
            assert (most > request_images.MAX_LARGEST) == (max_pixels > n_pixels)

    def test_gray_files_are_recognized_without_a_copy(self) -> None:
        class GrayPlan:
            def fit_image(self, pixels: Any) -> Any:
                if pixels.shape[2] != 1:
                    raise SecondLookError("one channel is expected")
                return pixels[None]

        plan = cast(Plan, GrayPlan())
        pixels = np.zeros((1000, 1000, 3), dtype=np.uint8)
        tracemalloc.start()
        assert fit_image(plan, pixels).shape == (1, 1000, 1000, 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < pixels.nbytes / 10
        pixels[-1, -1, 2] = 1
        with pytest.raises(SecondLookError):
            fit_image(plan, pixels)

    def test_what_is_in_work_is_finished_when_the_worker_stops(self, digits: Digits, tmp_path: Path) -> None:
        bench = Bench(digits.policy, tmp_path)

        async def send() -> list[StoredOutcome]:
            task = asyncio.create_task(bench.worker.decide([SubmittedImage(file) for file in digits.files[:40]]))
            while not bench.worker._queue and not bench.batches:
                await asyncio.sleep(0.001)
            await asyncio.get_running_loop().run_in_executor(None, bench.worker.stop)
            with pytest.raises(RequestError) as error:
                await bench.worker.decide([SubmittedImage(digits.files[0])])
            assert error.value.code == "stopping"
            return await task

        assert len(asyncio.run(send())) == 40
