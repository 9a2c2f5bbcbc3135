"""The review queue over HTTP: images and labels of reviewers, exports and imports."""

import base64
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from secondlook.extension import Answer
from secondlook.policies import read_policy
from secondlook.serving import Client
from secondlook.serving.database import images
from secondlook.serving.label_files import parse_label_file
from secondlook.serving.responses import RequestError, ServedDecision
from secondlook.serving.review_routes import find_class_names
from secondlook.serving.service import Service
from secondlook.tables import format_csv_row
from tests.serving.running import VIEWS, Digits, Reply, Server, make_noise, send, send_image, serve

HOSTILE = "<script>alert('1')</script>"
CLASSES = ("cat", "dog", "2", "=1+1")
IDS = ("a", "=cmd|'/c calc'!A0", 'quote " and, comma', "ünïcode/../x", "<b>")
FORM = "multipart/form-data; boundary=--cut"


class Team(NamedTuple):
    """A server with three rejected images, two reviewers and a client."""

    url: str
    service: Service
    tokens: dict[str, str]

    def post(self, who: str, path: str, **body: Any) -> Reply:
        token, content = f"Bearer {self.tokens[who]}", json.dumps(body).encode()
        return send(f"{self.url}/v1/review/{path}", content, Content_Type="application/json", Authorization=token)

    def get(self, who: str, path: str) -> Reply:
        return send(f"{self.url}{path}", Authorization=f"Bearer {self.tokens[who]}")

    def lease(self, who: str, count: int) -> list[Any]:
        reply = self.post(who, "lease", count=count)
        assert reply.status == 200, reply.body
        return list(reply.json["items"])

    def lease_one(self) -> tuple[int, bytes, Any]:
        """Lease an image; returns its number, its file and its pixels."""
        (item,) = self.lease("anna", 1)
        file = make_noise(seed=int(item["id"].removeprefix("noise ")))
        return item["number"], file, np.asarray(Image.open(io.BytesIO(file)))


@pytest.fixture
def team(digits: Digits, tmp_path: Path) -> Iterator[Team]:
    with serve(digits.policy, tmp_path / "service") as (url, service):
        seed = 0
        while service.reviews.counts().waiting < 3:
            send_image(url, make_noise(seed=seed), f"noise {seed}")
            seed += 1
        roles = {"anna": "reviewer", HOSTILE: "reviewer", "client": "client"}
        tokens = {name: service.tokens.add(name, role) for name, role in roles.items()}  # type: ignore[arg-type]
        yield Team(url, service, tokens)


def read_gray(reply: Reply) -> Any:
    assert reply.headers["content-type"] == "image/png", reply.body
    return np.asarray(Image.open(io.BytesIO(reply.body)).convert("L"))


class TestRoutes:
    def test_reviewer_gets_images_with_their_predictions(self, team: Team) -> None:
        answer = team.post("anna", "lease", count=2).json
        first, second = answer.pop("items")
        assert answer == {
            "counts": {"waiting": 3, "audits": 0, "leased": 2, "disputed": 0, "done": 0, "expired": 0},
            "pace": {"own": None, "everyone": None},
            "lease_seconds": 300,
            "last": None,
            "goal": None,
        }
        assert first["confidence"] <= second["confidence"]
        assert first["likely"][0]["label"] == first["label"]
        assert first["likely"][0]["class"] == first["class"] == str(first["label"])
        assert len(first["likely"]) == 9
        assert [view["view"] for view in first["views"]] == VIEWS.split()
        assert (first["image"], first["accept"]) == (True, False)
        offered = {"classes": [str(digit) for digit in range(10)], "answers": [answer.text for answer in Answer]}
        assert team.get("anna", "/v1/review/classes").json == offered
        page = team.get(HOSTILE, "/review").body.decode()
        assert page.count('data-answer="') == len(Answer)
        assert HOSTILE not in page
        assert 'data-reviewer="&lt;script&gt;' in page
        assert 'src="/static/review.js' in page

    def test_audits_come_without_their_predictions(self, digits: Digits, tmp_path: Path) -> None:
        with serve(digits.policy, tmp_path / "service", audit=1.0) as (url, service):
            files = [*digits.files[:20], *(make_noise(seed=seed) for seed in range(20))]
            decided = [send_image(url, file, f"image {place}").json for place, file in enumerate(files)]
            found = {one["id"]: one for one in decided if one["accept"]}
            assert service.reviews.counts().audits == len(found) > 4
            json_ = {"Content_Type": "application/json"}
            body = send(f"{url}/v1/review/lease", b'{"count": 6}', **json_).json
            assert [item["id"] in found for item in body["items"]] == [False, False, True] * 2
            shown = {"id", "number", "name", "image", "skips", "second", "asked"}
            assert [set(item) == shown for item in body["items"]] == [False, False, True] * 2
            body = send(f"{url}/v1/review/lease", b'{"count": 50, "audits": true}', **json_).json
            assert [item["id"] for item in body["items"]] == list(found), "in stream order"
            (first, *_), address = body["items"], f"{url}/v1/review/{body['items'][0]['number']}"
            progress = send(f"{address}/label", b'{"label": 3}', **json_).json
            assert progress["counts"]["audits"] == len(found) - 1
            assert send(f"{url}/v1/review/lease", b'{"audits": true}', **json_).json["last"] == first["number"]
            undone = send(f"{address}/undo", b"{}", **json_).json
            assert undone["item"] == first
            rows = {row["id"]: row for row in read_csv(export(url).body)}
            assert rows[first["id"]]["predicted"] == found[first["id"]]["class"], "exports are complete"

    def test_two_reviewers_label_skip_and_undo(self, team: Team) -> None:
        ours, theirs = team.lease("anna", 2), team.lease(HOSTILE, 2)
        assert len({item["number"] for item in ours + theirs}) == 3
        number, id_ = ours[0]["number"], ours[0]["id"]
        reply = team.post("anna", f"{number}/label", label=7)
        assert (reply.status, reply.json["counts"]["done"]) == (200, 1)
        assert team.post("anna", f"{number}/label", label="7").status == 200, "by name, and once more"
        assert team.post(HOSTILE, f"{number}/label", label=1).code == "already_reviewed"
        assert team.post(HOSTILE, f"{number}/undo").code == "already_reviewed"
        assert team.post(HOSTILE, f"{ours[1]['number']}/label", label=1).code == "lease_lost"
        stored = team.service.reviews.read(number)
        assert (stored.reviewed_label, stored.reviewer) == (7, "anna")
        assert team.post("anna", "lease", count=1).json["last"] == number
        undone = team.post("anna", f"{number}/undo").json
        assert (undone["item"]["number"], undone["item"]["id"], undone["counts"]["done"]) == (number, id_, 0)
        assert team.post("anna", f"{number}/skip").json["counts"]["leased"] == 2
        assert team.post(HOSTILE, "release").json["counts"]["leased"] == 1
        assert [item["skips"] for item in team.lease("anna", 3)] == [0, 0, 1]

    def test_reviewer_gives_an_answer_other_than_a_class(self, team: Team) -> None:
        number, *_ = team.lease_one()
        assert team.post("anna", f"{number}/label", label="cannot tell").json["counts"]["done"] == 1
        assert team.post("anna", f"{number}/label", label="Cannot tell").status == 200, "the same once more"
        assert team.post("anna", f"{number}/label", label="bad image").code == "already_reviewed"
        id_ = team.service.reviews.read(number).id
        served = ServedDecision(**team.get("client", f"/v1/decisions/{id_.replace(' ', '%20')}").json)
        found = (served.review, served.reviewed_label, served.reviewed_class)
        assert found == ("done", Answer.CANNOT_TELL, "cannot tell")
        item = team.post("anna", f"{number}/undo").json["item"]
        assert (item["review"], item["reviewed_label"]) == ("waiting", None)
        assert team.post("anna", f"{number}/label", label="none of these").status == 200
        assert team.service.reviews.labels([1]) == {id_: Answer.NONE_OF_THESE}

    def test_only_reviewers_see_the_queue_and_unknown_images_are_errors(self, team: Team) -> None:
        known, *_ = team.lease_one()
        labels: list[Any] = [10, -1, "ten", True, 1.5, None, 2**40, []]
        for label in labels:
            reply = team.post("anna", f"{known}/label", label=label)
            assert (reply.status, reply.code) == (422, "invalid"), label
        for number in (0, -1, 999, 2**62, 10**30):
            for path in (f"{number}/label", f"{number}/undo", f"{number}/skip"):
                reply = team.post("anna", path, label=1)
                assert (reply.status, reply.code) == (404, "unknown_number"), path
            for path in (f"{number}/image", f"{number}/views/0"):
                assert team.get("anna", f"/v1/review/{path}").status == 404
        for path in ("/v1/review/classes", f"/v1/review/{known}/image", f"/v1/review/{known}/views/0", "/v1/reviews"):
            assert team.get("client", path).code == "permission"
            assert send(f"{team.url}{path}").code == "token"
        for path in ("lease", "release", f"{known}/label", f"{known}/undo", f"{known}/skip"):
            assert team.post("client", path, label=1, count=1).code == "permission"
            assert send(f"{team.url}/v1/review/{path}", b"{}", Content_Type="application/json").code == "token"
        token = f"Bearer {team.tokens['client']}"
        assert send(f"{team.url}/v1/reviews", b"id,label\n", Authorization=token).status == 403
        assert team.service.reviews.counts().done == 0

    def test_images_are_served_unchanged_and_views_as_the_classifier_saw_them(self, team: Team) -> None:
        number, file, pixels = team.lease_one()
        reply = team.get("anna", f"/v1/review/{number}/image")
        assert reply.body == file
        shown = {"content-type": "image/png", "x-content-type-options": "nosniff", "cache-control": "no-store"}
        assert {name: reply.headers[name] for name in shown} == shown
        right, up = np.zeros_like(pixels), np.zeros_like(pixels)
        right[:, 1:], up[:-1] = pixels[:, :-1], pixels[1:]
        for view, expected in (("identity", pixels), ("shift:1,0", right), ("shift:0,-1", up)):
            found = read_gray(team.get("anna", f"/v1/review/{number}/views/{VIEWS.split().index(view)}"))
            np.testing.assert_array_equal(found, expected, err_msg=view)
        for position in (-1, len(VIEWS.split())):
            assert team.get("anna", f"/v1/review/{number}/views/{position}").code == "unknown_view"
        tiff = io.BytesIO()
        Image.fromarray(pixels).save(tiff, format="TIFF")
        with team.service.database.write() as connection:
            connection.execute(sa.update(images).values(media_type="image/tiff", content=tiff.getvalue()))
        shown_as_png = read_gray(team.get("anna", f"/v1/review/{number}/image"))  # which browsers can show
        np.testing.assert_array_equal(shown_as_png, pixels)

    def test_images_that_are_not_stored_are_labeled_and_exported_by_name(self, digits: Digits, tmp_path: Path) -> None:
        json_ = {"Content_Type": "application/json"}
        with serve(digits.policy, tmp_path / "service", store_images=False) as (url, service):
            for seed in range(20):
                send(f"{url}/v1/decide?id=n{seed}&name=scan-{seed}.png", make_noise(seed=seed))
            tasks = json.loads(export(url, format="label-studio").body)
            assert len(tasks) > 1
            for task in tasks:
                assert task["data"]["image"] == task["data"]["id"].replace("n", "scan-") + ".png"
            (item,) = send(f"{url}/v1/review/lease", b'{"count": 1}', **json_).json["items"]
            assert item["image"] is False
            for path in ("image", "views/0"):
                assert send(f"{url}/v1/review/{item['number']}/{path}").code == "no_image"
            assert send(f"{url}/v1/review/{item['number']}/label", b'{"label": 3}', **json_).status == 200
            assert service.reviews.read(item["number"]).reviewed_label == 3

    @pytest.mark.parametrize(
        ("of_classifier", "n_classes", "expected"),
        [("ab", 2, "ab"), (None, None, "cd"), ("a", 2, "cd"), (None, 2, None)],
    )
    def test_class_names_fit_the_number_of_classes(
        self, of_classifier: str | None, n_classes: int | None, expected: str | None
    ) -> None:
        classifier = SimpleNamespace(class_names=of_classifier and tuple(of_classifier), n_classes=n_classes)
        policy = SimpleNamespace(class_names=expected and ("c", "d"))
        plan = SimpleNamespace(resolved=SimpleNamespace(classifier=classifier))
        live = SimpleNamespace(plan=plan, deployment=SimpleNamespace(policy=policy))
        service: Any = SimpleNamespace(labeling=None, live=live)
        assert find_class_names(service) == (expected and tuple(expected))


def read_csv(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def read_parquet(content: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(content))


def make_parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def make_task(id_: object, *classes: list[str], **annotation: Any) -> dict[str, Any]:
    results = [{"value": {"choices": choices}, "type": "choices"} for choices in classes]
    return {"data": {"id": id_}, "annotations": [{"result": results, **annotation}]}


def make_tasks(*tasks: dict[str, Any]) -> bytes:
    return json.dumps(tasks).encode()


class TestLabelFiles:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            # The name 2 is the third class, as is the index.
            (b"\xef\xbb\xbfname,label,id\r\nx,cat,a\r\ny,,b\r\nz, 1 ,c\r\n\r\nz,2,d\r\n",
             [("line 2", "a", 0), ("line 4", "c", 1), ("line 6", "d", 2)]),
            *[(make_parquet(id=["a", "b", "c"], label=labels), [("row 1", "a", 1), ("row 3", "c", 3)])
              for labels in ([1, None, 3], ["dog", "", "=1+1"], [1.0, float("nan"), 3.0])],
            (b"id,label\na,none of these\nb,Bad Image\nc,'=1+1\nd, cannot tell \n",
             [("line 2", "a", -1), ("line 3", "b", -3), ("line 4", "c", 3), ("line 5", "d", -2)]),
            (make_tasks(make_task("a", ["dog"]), {"data": {"id": "b"}}, make_task("c", ["cat"], was_cancelled=True),
                        make_task("d", ["cat"], ["cat"]),
                        {"data": {"id": "e"}, "annotations": [{"result": [{"type": "textarea"}]}]}),
             [("task 1", "a", 1), ("task 4", "d", 0)]),
        ],
        ids=["csv", "parquet indices", "parquet names", "parquet floats", "answers", "label studio"],
    )  # fmt: skip
    def test_labels_are_read_by_name_or_index(self, content: bytes, expected: list[tuple[str, str, int]]) -> None:
        assert [tuple(one) for one in parse_label_file(content, CLASSES)] == [(*one, None) for one in expected]
        assert [tuple(one) for one in parse_label_file(b"id,label\na,17\n", None)] == [("line 2", "a", 17, None)]

    @given(
        st.dictionaries(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=200).filter(str.isprintable), st.integers(0, 3)
        )
    )
    def test_exported_csv_of_any_ids_can_be_imported(self, labels: dict[str, int]) -> None:
        rows = [format_csv_row((id_, CLASSES[label])) for id_, label in labels.items()]
        content = "".join(["id,label\n", *rows]).encode()
        assert {one.id: one.label for one in parse_label_file(content, CLASSES)} == labels

    @pytest.mark.parametrize(
        ("code", "content", "names"),
        [
            ("unknown_class", b"id,label\na,cat\nb,horse\n", "line 3"),
            ("unknown_class", b"id,label\na,4\n", "line 2"),
            ("unknown_class", b"id,label\na,-1\n", "line 2"),
            ("unknown_class", make_parquet(id=["a"], label=[1.5]), "row 1"),
            ("unknown_class", make_tasks(make_task("a", ["horse"])), "task 1"),
            ("unreadable_labels", b"id,label\na,cat\na,dog\n", "line 3"),
            ("unreadable_labels", make_tasks(make_task("a", ["cat", "dog"])), "task 1"),
            ("unreadable_labels", make_tasks(make_task("a", ["cat"]), make_task("a", ["dog"])), "task 2"),
            ("unreadable_labels", make_tasks(make_task(7, ["cat"])), "task 1"),
            ("unreadable_labels", b"[3]", "task 1"),
            ("unreadable_labels", b"[", "JSON"),
            ("unreadable_labels", b"[" * 100_000, "JSON"),
            ("unreadable_labels", b"id;label\na;cat\n", "'id'"),
            ("unreadable_labels", b"", "'id' and 'label'"),
            ("unreadable_labels", b"id,label\n\xff,cat\n", "UTF-8"),
            ("unknown_id", b"id,label\n\0,cat\n", "line 2"),
            ("unknown_id", make_tasks(make_task("\ud800", ["cat"])), "task 1"),
            ("unreadable_labels", make_parquet(id=["a"]), "'label'"),
            ("unreadable_labels", b"PAR1 and nothing else", "Parquet"),
        ],
    )
    def test_errors_of_label_files_name_the_row(self, code: str, content: bytes, names: str) -> None:
        with pytest.raises(RequestError, match=names) as caught:
            parse_label_file(content, CLASSES)
        assert (caught.value.status, caught.value.code) == (422, code)


@pytest.fixture
def queue(digits: Digits, tmp_path: Path) -> Iterator[Server]:
    """A server with five rejected images of odd ids, and others."""
    with serve(digits.policy, tmp_path / "service") as (url, service):
        ids, seed = list(IDS), 0
        while ids:
            # Of the noise, only what is rejected gets one of the ids.
            image = make_noise(seed=seed)
            if not send_image(url, image).json["accept"]:
                part = '----cut\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
                text, file = part.format("id") + ids.pop() + "\r\n", part.format('image"; filename="=x.png')
                body = text.encode() + file.encode() + image + b"\r\n----cut--\r\n"
                assert send(f"{url}/v1/decide", body, Content_Type=FORM).status == 200
            seed += 1
        yield url, service


def export(url: str, **options: str) -> Reply:
    reply = send(f"{url}/v1/reviews?" + "&".join(f"{name}={value}" for name, value in options.items()))
    assert reply.status == 200, reply.body
    return reply


class TestExports:
    def test_exports_list_the_queue_in_the_order_of_review(self, queue: Server) -> None:
        url, service = queue
        reply = export(url)
        assert reply.headers["content-disposition"] == 'attachment; filename="reviews-waiting.csv"'
        assert reply.headers["content-type"] == "text/csv; charset=utf-8"
        rows = read_csv(export(url, format="csv", state="waiting").body)
        confidences = [float(row["confidence"]) for row in rows]
        assert confidences == sorted(confidences)
        assert len(rows) == service.reviews.counts().waiting
        policy = service.live.deployment.policy.checksum
        expected = {"state": "waiting", "label": "", "reviewer": "", "reviewed_at": "", "accept": "false"}
        assert rows[0].items() >= (expected | {"policy": policy}).items()
        named = {row["id"]: row for row in rows}
        assert "'=cmd|'/c calc'!A0" in named, "spreadsheets must not run ids"
        assert named["a"]["name"] == "'=x.png"
        table = read_parquet(export(url, format="parquet", state="waiting").body)
        assert set(IDS) <= set(table["id"].to_pylist())
        assert table["confidence"].to_pylist() == confidences
        assert table["label"].null_count == len(table)
        assert read_csv(export(url, format="csv", state="done").body) == []
        assert json.loads(export(url, format="label-studio", state="done").body) == []
        assert len(read_parquet(export(url, format="parquet", state="done").body)) == 0
        for query in ("format=xml", "state=lost"):
            assert send(f"{url}/v1/reviews?{query}").status == 422
        tasks = {task["data"]["id"]: task for task in json.loads(export(url, format="label-studio").body)}
        stored = service.decisions.find(["a"])["a"]
        image = service.reviews.read_image(stored.number)
        assert image is not None
        head, _, encoded = tasks["a"]["data"]["image"].partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(encoded) == image.content
        assert tasks["a"]["predictions"][0]["result"][0]["value"]["choices"] == [str(stored.label)]
        config = ElementTree.fromstring(export(url, format="label-studio-config").body)
        answers = [answer.text for answer in Answer]
        assert [one.get("value") for one in config.iter("Choice")] == [*map(str, range(10)), *answers]

    @pytest.mark.parametrize("first", ["one", "bad image", None])
    def test_labels_of_every_export_format_can_be_imported(
        self, digits: Digits, tmp_path: Path, first: str | None
    ) -> None:
        """With and without class names, and with a class named like an answer, which is then not offered."""
        (tmp_path / "digits.onnx").write_bytes((digits.policy.parent / "digits.onnx").read_bytes())
        names = None if first is None else (first, *(f"digit {place}" for place in range(1, 10)))
        read_policy(digits.policy).model_copy(update={"class_names": names}).save(tmp_path / "policy.json")
        with serve(tmp_path / "policy.json", tmp_path / "service") as (url, service):
            seed = 0
            while service.reviews.counts().waiting < 4:
                send_image(url, make_noise(seed=seed), f"noise {seed}")
                seed += 1
            told = send(f"{url}/v1/review/classes").json
            answers = ["none of these", "cannot tell"] + ["bad image"] * (first != "bad image")
            assert (told["classes"], told["answers"]) == (None if names is None else list(names), answers)
            assert send(f"{url}/review").body.decode().count('data-answer="') == len(answers)
            waiting = [item for block in service.reviews.iter_items(["waiting"]) for item in block]
            for item, label in zip(waiting, [*answers, "bad image", 7], strict=False):
                body = json.dumps({"label": label}).encode()
                assert send(f"{url}/v1/review/{item.number}/label", body, Content_Type="application/json").status == 200
            stored = service.reviews.labels([1])
            assert sorted(stored.values()) == sorted([-2, -1, 0, 7] if first == "bad image" else [-3, -3, -2, -1])
            for format_ in ("csv", "parquet", "label-studio"):
                content = export(url, format=format_, state="done").body
                assert {one.id: one.label for one in parse_label_file(content, names)} == stored
                reply = send(f"{url}/v1/reviews", content, Content_Type="application/octet-stream")
                assert reply.json == {"labels": len(stored), "new": 0}
            rows = read_csv(export(url, format="csv", state="done").body)
            assert set(answers) <= {row["label"] for row in rows}

    def test_both_rejection_reasons_are_reported(self, digits: Digits, tmp_path: Path) -> None:
        with serve(digits.limited_policy, tmp_path / "service") as (url, service), Client(url) as client:
            made = {one.id: one for one in client.decide_many([make_noise(seed=seed) for seed in range(20)])}
            made |= {one.id: one for one in client.decide_many(digits.files[:60])}
            limit = service.live.deployment.policy.familiarity
            assert limit is not None
            assert {one.rejection for one in made.values()} == {None, "unsure", "unfamiliar"}
            for one in made.values():
                assert one.familiarity is not None
                assert one.accept == (one.rejection is None)
                assert (one.rejection == "unfamiliar") == (one.familiarity < limit.limit)
            rejected = {id_: (one.rejection, one.familiarity) for id_, one in made.items() if not one.accept}
            rows = read_csv(export(url).body)
            assert {row["id"]: (row["rejection"], float(row["familiarity"])) for row in rows} == rejected
            table = read_parquet(export(url, format="parquet").body).to_pylist()
            assert {row["id"]: (row["rejection"], row["familiarity"]) for row in table} == rejected
            items = send(f"{url}/v1/review/lease", b'{"count": 50}', Content_Type="application/json").json["items"]
            assert {item["id"]: (item["rejection"], item["familiarity"]) for item in items} == rejected

    @pytest.mark.parametrize("format_", ["csv", "parquet", "label-studio"])
    def test_labels_added_to_an_export_can_be_imported(self, queue: Server, format_: str) -> None:
        url, service = queue
        waiting = service.reviews.counts().waiting
        content = export(url, format=format_, state="waiting").body
        if format_ == "csv":
            written = io.StringIO(newline="")
            rows = read_csv(content)
            csv.writer(written, quoting=csv.QUOTE_ALL).writerows(
                [rows[0], *({**r, "label": "7"}.values() for r in rows)]
            )
            changed = written.getvalue().encode()
        elif format_ == "parquet":
            ids = read_parquet(content)["id"].to_pylist()
            changed = make_parquet(id=ids, label=["7"] * len(ids))
        else:
            found = make_task("", ["7"])["annotations"]
            changed = make_tasks(*({**task, "annotations": found} for task in json.loads(content)))
        for expected in (waiting, 0):  # the second time, everything is known
            reply = send(f"{url}/v1/reviews", changed, Content_Type="application/octet-stream")
            assert (reply.status, reply.json) == (200, {"labels": waiting, "new": expected})
        counts = service.reviews.counts()
        assert (counts.waiting, counts.done) == (0, waiting)
        rows = read_csv(export(url, format="csv", state="done").body)
        assert {(row["label"], row["reviewer"], row["state"]) for row in rows} == {("7", "local", "done")}
        tasks = json.loads(export(url, format="label-studio", state="all").body)
        assert {task["annotations"][0]["result"][0]["value"]["choices"][0] for task in tasks} == {"7"}
