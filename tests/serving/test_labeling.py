"""Label on demand: images, progress and end of labeling on the review page."""

import csv
import io
import json
import time
from pathlib import Path

import pytest

import secondlook as sl
from secondlook.extension import Answer
from secondlook.serving import ServiceOptions, labeling
from tests.serving.desk import Desk, make_desk
from tests.serving.running import send, wait_for


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return make_desk(tmp_path)


def test_images_are_offered_in_plan_order_with_the_certified_text(desk: Desk) -> None:
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


def test_changed_and_later_labels_update_the_plan(desk: Desk) -> None:
    with desk.open() as plan:
        one, other = desk.lease(2)["items"]
        desk.label(one, "none of these")
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
        assert send(f"{desk.url}/v1/reviews", rows, Content_Type="text/csv").json == {"labels": 1, "new": 1}
        assert plan.labels.keys() == {one["id"], third}
        for answer in Answer:
            desk.label(other, answer.text)
            assert (plan.labels[other["id"]], plan.progress.errors) == (None, 1), "each counts as wrong"
            desk.post(f"{other['number']}/undo")
        refused = json.dumps({"label": 10}).encode()
        reply = send(f"{desk.url}/v1/review/{other['number']}/label", refused, Content_Type="application/json")
        assert (reply.status, plan.progress.errors) == (422, 0)


def test_skipped_images_do_not_block_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labeling, "AHEAD", 3)
    with desk.open() as plan:
        for place in range(8):
            (item,) = desk.lease()["items"]
            assert item["id"] == plan.ids[place]
            desk.post(f"{item['number']}/skip")


def test_labeling_resumes_with_stored_labels_and_labels_of_a_file(desk: Desk) -> None:
    with desk.open():
        for _ in range(5):
            desk.label(desk.lease()["items"][0])
    with desk.open() as plan:
        assert desk.lease()["items"][0]["id"] == plan.ids[5]
        assert plan.progress.labels == 5
        desk.label(desk.lease()["items"][0])
    given = {id_: desk.truth[id_] for id_ in desk.make_plan().ids[6:-1]}
    given[desk.make_plan().ids[-1]] = Answer.BAD_IMAGE
    desk.url = ""
    with desk.open(given | {"elsewhere": 1}) as plan:
        wait_for(desk.is_running, lambda is_running: not is_running)
        assert plan.progress.labels == len(plan.ids)
        assert desk.url == "", "nothing is left to ask for, so no page is opened"
    expected = desk.make_plan()
    expected.add({id_: desk.truth[id_] for id_ in expected.ids[:-1]} | {expected.ids[-1]: None})
    assert plan.policy.decides_like(expected.policy)


def test_server_stops_unless_the_last_label_is_undone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labeling, "CLOSING_SECONDS", 600.0)
    with desk.open() as plan:
        item = desk.lease()["items"][0]
        while not desk.label(item)["goal"]["finished"]:
            item = desk.lease()["items"][0]
        number = item["number"]
        undone = desk.post(f"{number}/undo")
        assert not undone["goal"]["finished"]
        assert desk.lease()["items"][0]["number"] == number
        monkeypatch.setattr(labeling, "CLOSING_SECONDS", 0.0)
        time.sleep(0.5)  # several looks at whether it is over
        assert desk.is_running()
        assert desk.label(item)["goal"]["finished"]
        wait_for(desk.is_running, lambda is_running: not is_running)
    assert plan.progress.finished


def test_labeling_has_only_a_page_without_predictions(desk: Desk) -> None:
    with desk.open() as plan:
        (item,) = desk.lease()["items"]
        shown = send(f"{desk.url}/v1/review/{item['number']}/image")
        assert shown.body == (desk.folder / "pool" / plan.ids[0]).read_bytes()
        page = send(f"{desk.url}/", Accept="text/html").body.decode()
        assert set(item) == {"id", "number", "name", "image", "skips", "second", "asked"}
        assert "Dashboard" not in page
        assert "queue=audits" not in page
        decided = send(f"{desk.url}/v1/decide", shown.body, Content_Type="image/png")
        assert (decided.status, send(f"{desk.url}/v1/status").status) == (404, 404)
        desk.label(item)
        rows = list(csv.DictReader(io.StringIO(send(f"{desk.url}/v1/reviews?state=done").body.decode())))
        assert [(row["id"], row["label"]) for row in rows] == [(plan.ids[0], str(desk.truth[plan.ids[0]]))]


def test_invalid_ids_are_named(desk: Desk) -> None:
    for file in (desk.folder / "pool").iterdir():
        file.rename(file.with_name(f"{'x' * 200}{file.name}"))
    desk.source = sl.open_source(f"folder:{desk.folder / 'pool'}")
    desk.preds = sl.collect(desk.classifier, desk.source, "identity", execution=sl.Execution(progress=False))
    task = labeling.LabelingTask(desk.make_plan(), desk.preds, desk.source, desk.classifier, lambda: None, "nowhere")
    with pytest.raises(sl.SecondLookError, match="xxx"):
        labeling.serve_labeling(task, ServiceOptions(desk.folder / "labels"), {}, lambda _: None)
