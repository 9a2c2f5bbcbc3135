"""Files of the review queue: what is exported comes back, and labels that cannot be recorded change nothing."""

import base64
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.serving.responses import RequestError
from secondlook.serving.review_exports import parse_label_file
from secondlook.serving.service import Service
from secondlook.serving.store import NewLabel
from secondlook.tables import format_csv_row
from tests.serving.running import Digits, Reply, make_noise, send, send_image, serve

CLASSES = ("cat", "dog", "2", "=1+1")
IDS = ("a", "=cmd|'/c calc'!A0", 'quote " and, comma', "ünïcode/../x", "<b>")


def read_csv(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def make_parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def make_task(id_: object, *classes: list[str], **annotation: Any) -> dict[str, Any]:
    results = [{"value": {"choices": choices}, "type": "choices"} for choices in classes]
    return {"data": {"id": id_}, "annotations": [{"result": results, **annotation}]}


def check_error(code: str, content: bytes, *, names: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_label_file(content, CLASSES)
    assert (caught.value.status, caught.value.code) == (422, code)
    assert names in str(caught.value)


def test_labels_are_read_from_csv_by_name_or_index() -> None:
    content = b"\xef\xbb\xbfname,label,id\r\nx,cat,a\r\ny,,b\r\nz, 1 ,c\r\n\r\nz,2,d\r\n"
    expected = [NewLabel("line 2", "a", 0), NewLabel("line 4", "c", 1), NewLabel("line 6", "d", 2)]
    assert parse_label_file(content, CLASSES) == expected, "the name 2 is the third class, as is the index"
    assert parse_label_file(b"id,label\na,17\n", None) == [NewLabel("line 2", "a", 17)]


PRINTABLE = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200).filter(str.isprintable)


@given(st.dictionaries(PRINTABLE, st.integers(0, 3)))
def test_csv_of_any_ids_comes_back(labels: dict[str, int]) -> None:
    rows = [format_csv_row((id_, CLASSES[label])) for id_, label in labels.items()]
    content = "".join(["id,label\n", *rows]).encode()
    assert {one.id: one.label for one in parse_label_file(content, CLASSES)} == labels


def test_labels_are_read_from_parquet() -> None:
    expected = [NewLabel("row 1", "a", 1), NewLabel("row 3", "c", 3)]
    assert parse_label_file(make_parquet(id=["a", "b", "c"], label=[1, None, 3]), CLASSES) == expected
    assert parse_label_file(make_parquet(id=["a", "b", "c"], label=["dog", "", "=1+1"]), CLASSES) == expected
    assert parse_label_file(make_parquet(id=["a", "b", "c"], label=[1.0, float("nan"), 3.0]), CLASSES) == expected


def test_labels_are_read_from_label_studio() -> None:
    tasks = [
        make_task("a", ["dog"]),
        {"data": {"id": "b"}},
        make_task("c", ["cat"], was_cancelled=True),
        make_task("d", ["cat"], ["cat"]),
        {"data": {"id": "e"}, "annotations": [{"result": [{"type": "textarea", "value": {"text": ["?"]}}]}]},
    ]
    expected = [NewLabel("task 1", "a", 1), NewLabel("task 4", "d", 0)]
    assert parse_label_file(json.dumps(tasks).encode(), CLASSES) == expected


@pytest.mark.parametrize(
    ("code", "content", "names"),
    [
        ("unknown_class", b"id,label\na,cat\nb,horse\n", "line 3"),
        ("unknown_class", b"id,label\na,4\n", "line 2"),
        ("unknown_class", b"id,label\na,-1\n", "line 2"),
        ("unknown_class", make_parquet(id=["a"], label=[1.5]), "row 1"),
        ("unknown_class", json.dumps([make_task("a", ["horse"])]).encode(), "task 1"),
        ("unreadable_labels", b"id,label\na,cat\na,dog\n", "line 3"),
        ("unreadable_labels", json.dumps([make_task("a", ["cat", "dog"])]).encode(), "task 1"),
        ("unreadable_labels", json.dumps([make_task("a", ["cat"]), make_task("a", ["dog"])]).encode(), "task 2"),
        ("unreadable_labels", json.dumps([make_task(7, ["cat"])]).encode(), "task 1"),
        ("unreadable_labels", b"[3]", "task 1"),
        ("unreadable_labels", b"[", "JSON"),
        ("unreadable_labels", b"[" * 100_000, "JSON"),
        ("unreadable_labels", b"id;label\na;cat\n", "'id'"),
        ("unreadable_labels", b"", "'id' and 'label'"),
        ("unreadable_labels", b"id,label\n\xff,cat\n", "UTF-8"),
        ("unknown_id", b"id,label\n\0,cat\n", "line 2"),
        (
            "unknown_id",
            b'[{"data": {"id": "\\ud800"}, "annotations": [{"result": [{"value": {"choices": ["cat"]}}]}]}]',
            "task 1",
        ),
        ("unreadable_labels", make_parquet(id=["a"]), "'label'"),
        ("unreadable_labels", b"PAR1 and nothing else", "Parquet"),
    ],
)
def test_files_that_cannot_be_read_name_the_row(code: str, content: bytes, names: str) -> None:
    check_error(code, content, names=names)


@pytest.fixture
def server(digits: Digits, tmp_path: Path) -> Iterator[tuple[str, Service]]:
    """A server with five rejected images."""
    with serve(digits.policy, tmp_path / "service") as (url, service):
        ids, seed = list(IDS), 0
        while ids:
            # Of the noise, only what is rejected gets one of the ids.
            image = make_noise(16, seed)
            if not send_image(url, image).json["accept"]:
                assert send(f"{url}/v1/decide", make_form(ids.pop(), image), Content_Type=FORM).status == 200
            seed += 1
        yield url, service


FORM = "multipart/form-data; boundary=--cut"


def make_form(id_: str, image: bytes) -> bytes:
    text = b'----cut\r\nContent-Disposition: form-data; name="id"\r\n\r\n' + id_.encode() + b"\r\n"
    file = b'----cut\r\nContent-Disposition: form-data; name="image"; filename="=x.png"\r\n\r\n' + image + b"\r\n"
    return text + file + b"----cut--\r\n"


def export(url: str, **options: str) -> Reply:
    reply = send(f"{url}/v1/reviews?" + "&".join(f"{name}={value}" for name, value in options.items()))
    assert reply.status == 200, reply.body
    return reply


def test_exports_list_the_queue_in_the_order_of_review(server: tuple[str, Service]) -> None:
    url, service = server
    rows = read_csv(export(url, format="csv", state="waiting").body)
    confidences = [float(row["confidence"]) for row in rows]
    assert confidences == sorted(confidences)
    assert len(rows) == service.reviews.counts().waiting
    assert rows[0]["state"] == "waiting"
    assert rows[0]["label"] == rows[0]["reviewer"] == rows[0]["reviewed_at"] == ""
    assert rows[0]["accept"] == "false"
    assert rows[0]["policy"] == service.live.deployment.policy.checksum
    named = {row["id"]: row for row in rows}
    assert "'=cmd|'/c calc'!A0" in named, "spreadsheets must not run ids"
    assert named["a"]["name"] == "'=x.png"
    table = pq.read_table(pa.BufferReader(export(url, format="parquet", state="waiting").body))
    assert set(IDS) <= set(table["id"].to_pylist())
    assert table["confidence"].to_pylist() == confidences
    assert table["label"].null_count == len(table)


def test_export_headers_and_states(server: tuple[str, Service]) -> None:
    url, _ = server
    reply = export(url)
    assert reply.headers["content-disposition"] == 'attachment; filename="reviews-waiting.csv"'
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    assert read_csv(export(url, format="csv", state="done").body) == []
    assert json.loads(export(url, format="label-studio", state="done").body) == []
    assert len(pq.read_table(pa.BufferReader(export(url, format="parquet", state="done").body))) == 0
    for query in ("format=xml", "state=lost"):
        assert send(f"{url}/v1/reviews?{query}").status == 422


@pytest.mark.parametrize("format_", ["csv", "parquet", "label-studio"])
def test_labels_that_were_added_to_an_export_come_back(server: tuple[str, Service], format_: str) -> None:
    url, service = server
    waiting = service.reviews.counts().waiting
    content = export(url, format=format_, state="waiting").body
    if format_ == "csv":
        rows = read_csv(content)
        lines = [format_csv_row(rows[0])] + [",".join(quote(v) for v in {**row, "label": "7"}.values()) for row in rows]
        changed = "\r\n".join(line.rstrip("\n") for line in lines).encode()
    elif format_ == "parquet":
        table = pq.read_table(pa.BufferReader(content)).to_pydict()
        changed = make_parquet(id=table["id"], label=["7"] * len(table["id"]))
    else:
        tasks = json.loads(content)
        changed = json.dumps([{**task, "annotations": make_task("", ["7"])["annotations"]} for task in tasks]).encode()
    for expected in (waiting, 0):  # the second time, everything is known
        reply = send(f"{url}/v1/reviews", changed, Content_Type="application/octet-stream")
        assert (reply.status, reply.json) == (200, {"labels": waiting, "new": expected})
    counts = service.reviews.counts()
    assert (counts.waiting, counts.done) == (0, waiting)
    rows = read_csv(export(url, format="csv", state="done").body)
    assert {(row["label"], row["reviewer"], row["state"]) for row in rows} == {("7", "local", "done")}
    tasks = json.loads(export(url, format="label-studio", state="all").body)
    assert {task["annotations"][0]["result"][0]["value"]["choices"][0] for task in tasks} == {"7"}


def quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def test_label_studio_gets_the_images_themselves(server: tuple[str, Service]) -> None:
    url, service = server
    tasks = {task["data"]["id"]: task for task in json.loads(export(url, format="label-studio").body)}
    stored = service.decisions.find(["a"])["a"]
    image = service.reviews.read_image(stored.number)
    assert image is not None
    head, _, encoded = tasks["a"]["data"]["image"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(encoded) == image.content
    assert tasks["a"]["predictions"][0]["result"][0]["value"]["choices"] == [str(stored.label)]
    config = ElementTree.fromstring(export(url, format="label-studio-config").body)
    assert [one.get("value") for one in config.iter("Choice")] == [str(digit) for digit in range(10)]


def test_images_that_are_not_stored_are_exported_by_name(digits: Digits, tmp_path: Path) -> None:
    with serve(digits.policy, tmp_path / "service", store_images=False) as (url, _):
        for seed in range(10):
            send(f"{url}/v1/decide?id=n{seed}&name=scan-{seed}.png", make_noise(16, seed), Content_Type="image/png")
        tasks = json.loads(export(url, format="label-studio").body)
        assert tasks
        for task in tasks:
            assert task["data"]["image"] == task["data"]["id"].replace("n", "scan-") + ".png"
