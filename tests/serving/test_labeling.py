"""Label on demand: which images the review page asks for, what it tells meanwhile, and how it ends."""

import csv
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import secondlook as sl
from secondlook.cli.demo import digit_images, split_digits
from secondlook.serving import ServiceOptions, labeling, server
from secondlook.serving.database import open_database
from secondlook.serving.store import DecisionStore, ReviewStore
from tests.cli.conftest import write_color_model
from tests.serving.running import make_png, send, wait_for

TERMS: dict[str, Any] = {"risk": 0.2, "delta": 0.2, "seed": 3}
N_IMAGES = 60
FORM = "text/csv"


@dataclass
class Desk:
    """A pool of digits, and a person who knows them."""

    folder: Path
    preds: sl.Predictions
    source: sl.Source
    classifier: sl.Classifier
    truth: dict[str, int]
    saved: list[int] = field(default_factory=list)
    """How many images were certified whenever a policy was saved."""
    url: str = ""

    def make_plan(self) -> sl.LabelingPlan:
        return sl.LabelingPlan(self.preds, **TERMS)

    @contextmanager
    def open(self, labels: dict[str, int] | None = None) -> Iterator[sl.LabelingPlan]:
        """Serve the page in a thread; it may end by itself."""
        plan, ready = self.make_plan(), threading.Event()

        def announce(url: str) -> None:
            self.url = url
            ready.set()

        task = labeling.LabelingTask(
            plan=plan,
            preds=self.preds,
            source=self.source,
            classifier=self.classifier,
            save=lambda: self.saved.append(plan.progress.accepted),
            where="The policy is in policy.json.",
        )
        made: list[Any] = []
        make_server = server.make_server

        def keep(*arguments: Any, **options: Any) -> Any:
            made.append(make_server(*arguments, **options))
            return made[-1]

        options = ServiceOptions(self.folder / "labels", port=0)

        def run() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "make_server", keep)
                labeling.serve_labeling(task, options, labels or {}, announce)
            ready.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert ready.wait(120)
        self.is_running = thread.is_alive
        yield plan
        for one in made:
            one.should_exit = True
        thread.join(120)
        assert not thread.is_alive()

    def post(self, path: str, **body: Any) -> Any:
        reply = send(f"{self.url}/v1/review/{path}", json.dumps(body).encode(), Content_Type="application/json")
        assert reply.status == 200, reply.body
        return reply.json

    def lease(self, count: int = 1) -> Any:
        return self.post("lease", count=count)

    def label(self, item: Any, label: int | None = None) -> Any:
        return self.post(f"{item['number']}/label", label=self.truth[item["id"]] if label is None else label)

    def read_labels(self) -> dict[str, int]:
        with closing(open_database(self.folder / "labels")) as database:
            numbers = [one.number for one in DecisionStore(database).list_deployments()]
            return ReviewStore(database, 1).labels(numbers)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    images, labels = digit_images()
    chosen = split_digits()[1][:N_IMAGES]
    (tmp_path / "pool").mkdir()
    for place in chosen:
        (tmp_path / "pool" / f"{place}.png").write_bytes(make_png(images[place]))
    write_color_model(tmp_path / "model.onnx")
    classifier = sl.load_classifier(f"onnx:{tmp_path / 'model.onnx'}")
    source = sl.open_source(f"folder:{tmp_path / 'pool'}")
    preds = sl.collect(classifier, source, "identity shift:1,0", execution=sl.Execution(progress=False))
    return Desk(tmp_path, preds, source, classifier, {id_: int(labels[int(id_.split(".")[0])]) for id_ in source.ids})


def test_it_asks_in_the_order_of_the_plan_and_tells_what_is_certified(desk: Desk) -> None:
    with desk.open() as plan:
        expected, found = desk.make_plan(), []
        first = desk.lease(8)
        assert [item["id"] for item in first["items"]] == list(expected.ids[:8])
        assert first["counts"]["waiting"] == min(labeling.AHEAD, len(expected.ids))
        assert (first["goal"]["next_step"], first["goal"]["finished"]) == (expected.progress.next_step, False)
        while not (told := desk.lease())["goal"]["finished"]:
            (item,) = told["items"][:1]
            found.append(item["id"])
            goal = desk.label(item)["goal"]
            expected.add({item["id"]: desk.truth[item["id"]]})
            assert (goal["next_step"], goal["finished"]) == (expected.progress.next_step, expected.progress.finished)
        assert found == list(expected.ids[: len(found)])
        assert (told["items"], told["counts"]["waiting"]) == ([], 0)
        assert "policy.json" in told["goal"]["text"]
        assert plan.policy.decides_like(expected.policy)
    assert desk.saved == sorted(set(desk.saved))
    assert desk.saved[-1] == expected.progress.accepted > 0
    assert desk.read_labels() == {id_: desk.truth[id_] for id_ in found}


def test_labels_that_change_or_come_later_change_the_plan(desk: Desk) -> None:
    with desk.open() as plan:
        one, other = desk.lease(2)["items"]
        desk.label(one, (one["label"] + 1) % 10)
        assert plan.progress.errors == 1
        needed = desk.post(f"{one['number']}/undo")["goal"]["next_step"]
        assert (plan.labels, needed) == ({}, desk.make_plan().progress.next_step)
        assert desk.lease(2)["items"][1]["id"] == other["id"]
        desk.post(f"{other['number']}/skip")
        assert desk.lease(40)["items"][-1]["id"] == other["id"], "a skipped image comes after all others"
        desk.label(one)
        assert plan.labels == {one["id"]: desk.truth[one["id"]]}
        third = plan.ids[2]
        rows = f"id,label\n{third},{desk.truth[third]}\n".encode()
        assert send(f"{desk.url}/v1/reviews", rows, Content_Type=FORM).json == {"labels": 1, "new": 1}
        assert plan.labels.keys() == {one["id"], third}
        # Without class names any number can be sent; one that is no class is no reason to stop.
        desk.label(other, 1_000)
        assert plan.labels[other["id"]] is None
        assert plan.progress.errors == 1


def test_it_resumes_with_all_labels_and_takes_those_of_a_file(desk: Desk) -> None:
    with desk.open():
        for _ in range(5):
            desk.label(desk.lease()["items"][0])
    with desk.open() as plan:
        assert desk.lease()["items"][0]["id"] == plan.ids[5]
        assert plan.progress.labels == 5
        desk.label(desk.lease()["items"][0])
    given = {id_: desk.truth[id_] for id_ in desk.make_plan().ids[6:]}
    with desk.open(given | {"elsewhere": 1}) as plan:
        assert plan.progress.labels == len(plan.ids)
        assert not desk.is_running(), "nothing is left to ask for, so no page is opened"
    expected = desk.make_plan()
    expected.add({id_: desk.truth[id_] for id_ in expected.ids})
    assert plan.policy.decides_like(expected.policy)


def test_it_stops_by_itself_unless_the_last_label_is_taken_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labeling, "CLOSING_SECONDS", 3.0)
    with desk.open() as plan:
        item = desk.lease()["items"][0]
        while not desk.label(item)["goal"]["finished"]:
            item = desk.lease()["items"][0]
        number = item["number"]
        undone = desk.post(f"{number}/undo")
        assert not undone["goal"]["finished"]
        assert desk.lease()["items"][0]["number"] == number
        time.sleep(3.5)
        assert desk.is_running()
        assert desk.label(item)["goal"]["finished"]
        wait_for(desk.is_running, lambda is_running: not is_running)
    assert plan.progress.finished


def test_page_shows_images_and_no_predictions_and_there_is_nothing_else(desk: Desk) -> None:
    with desk.open() as plan:
        (item,) = desk.lease()["items"]
        shown = send(f"{desk.url}/v1/review/{item['number']}/image")
        assert shown.body == (desk.folder / "pool" / plan.ids[0]).read_bytes()
        page = send(f"{desk.url}/", Accept="text/html").body.decode()
        assert "data-blind" in page
        assert "Dashboard" not in page
        assert "The predicted class is right" not in page
        decided = send(f"{desk.url}/v1/decide", shown.body, Content_Type="image/png")
        assert (decided.status, send(f"{desk.url}/v1/status").status) == (404, 404)
        desk.label(item)
        rows = list(csv.DictReader(io.StringIO(send(f"{desk.url}/v1/reviews?state=done").body.decode())))
        assert [(row["id"], row["label"]) for row in rows] == [(plan.ids[0], str(desk.truth[plan.ids[0]]))]


def test_ids_that_cannot_be_kept_are_named(desk: Desk) -> None:
    for file in (desk.folder / "pool").iterdir():
        file.rename(file.with_name(f"{'x' * 200}{file.name}"))
    desk.source = sl.open_source(f"folder:{desk.folder / 'pool'}")
    desk.preds = sl.collect(desk.classifier, desk.source, "identity", execution=sl.Execution(progress=False))
    task = labeling.LabelingTask(desk.make_plan(), desk.preds, desk.source, desk.classifier, lambda: None, "nowhere")
    with pytest.raises(sl.SecondLookError, match="xxx"):
        labeling.serve_labeling(task, ServiceOptions(desk.folder / "labels"), {}, lambda _: None)
