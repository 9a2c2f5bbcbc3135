"""The page: well-formed, self-contained, small, escaped, and with the same numbers as in Python."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.metrics import rank
from secondlook.predictions import Predictions
from secondlook.report import page, write_report
from secondlook.report.study import build_study
from secondlook.views import ViewSet

PageDataReader = Callable[[Path], dict[str, Any]]
ImageReader = Callable[[int], Array]
CLASSES = ("cat", "dog", "bird", "frog")
VOID = {"meta", "link", "input", "img", "br", "hr"}


class PageParser(HTMLParser):
    """Collects ids, references and headings, and fails if an element that is not open is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.levels: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.levels.append(int(tag[1]))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("for", "aria-labelledby", "aria-describedby") or (
                name == "href" and (value or "").startswith("#")
            ):
                self.references.append((value or "").removeprefix("#"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


@pytest.fixture
def report(preds: Predictions, read_image: ImageReader, tmp_path: Path) -> Path:
    return write_report(
        preds, tmp_path / "report.html", title="Cats & dogs", image=read_image, delta=0.05, risk=0.1, artifacts=False
    )


def test_page_is_well_formed_and_its_references_exist(report: Path) -> None:
    parser = PageParser()
    parser.feed(report.read_text("utf-8"))
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert set(parser.references) <= set(parser.ids)
    assert parser.levels[0] == 1
    assert parser.levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(parser.levels, parser.levels[1:], strict=False))


def test_page_fetches_nothing(report: Path) -> None:
    text = report.read_text("utf-8")
    # The only URL of the page names a namespace, which is never fetched.
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", text)
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    assert "default-src &#39;none&#39;; img-src data:" in text


def test_script_and_style_match_the_content_security_policy(report: Path) -> None:
    import base64
    import hashlib

    text = report.read_text("utf-8")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode().replace("+", r"\+")
        assert re.search(rf"{rule} &#39;sha256-{digest}&#39;", text)


def test_embedded_numbers_equal_those_in_python(
    preds: Predictions, report: Path, read_page_data: PageDataReader
) -> None:
    data = read_page_data(report)
    study = build_study(preds)
    assert [method["name"] for method in data["methods"]] == list(study.confidences)
    assert (data["images"], data["errors"]) == (600, study.n_errors)
    for method in data["methods"]:
        ranking = rank(study.correct, study.confidences[method["name"]])
        assert method["complete"]
        np.testing.assert_array_equal(method["thresholds"], ranking.confidences)
        np.testing.assert_array_equal(np.cumsum(method["sizes"], dtype=np.int64), ranking.accepted)
        np.testing.assert_array_equal(np.cumsum(method["wrong"], dtype=np.int64), ranking.errors)
    assert data["risk"] in data["risks"].tolist()


def test_large_data_sets_keep_a_limited_number_of_thresholds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preds: Predictions, read_page_data: PageDataReader
) -> None:
    monkeypatch.setattr(page, "MAX_THRESHOLDS", 400)
    path = write_report(preds, tmp_path / "report.html", title="t", artifacts=False, methods=["msr", "mean"])
    for method in read_page_data(path)["methods"]:
        assert len(method["thresholds"]) <= 200
        assert method["sizes"].sum() == 600
        assert not method["complete"]


def test_page_of_ten_thousand_images_is_below_one_megabyte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(10_000, 2, 3)).astype(np.float32)
    many = Predictions(logits=logits, views=ViewSet(["identity", "hflip"]), labels=rng.integers(0, 3, 10_000))
    path = write_report(many, tmp_path / "report.html", title="t", artifacts=False, methods=["msr", "mean"])
    assert path.stat().st_size < 1_000_000
    largest = 8 + 4 + 4  # bytes of a threshold and its two counts; base64 takes four characters for three bytes
    assert page.MAX_THRESHOLDS * largest * 4 / 3 < 4_500_000


def test_names_cannot_inject_markup(preds: Predictions, read_image: ImageReader, tmp_path: Path) -> None:
    evil = '</script><script>alert("x")</script>'
    hostile = Predictions(
        probabilities=preds.probabilities,
        views=preds.views,
        labels=preds.labels,
        class_names=[f"{evil}{place}" for place in range(4)],
        ids=[f"{evil}{place}.png" for place in range(600)],
        skipped=[(evil, evil)],
    )
    path = write_report(
        hostile,
        tmp_path / "report.html",
        title=evil,
        image=read_image,
        facts={evil: evil},
        notes=[evil],
        command=evil,
        methods=["msr", "mean"],
        artifacts=False,
    )
    text = path.read_text("utf-8")
    assert "<script>alert" not in text
    assert len(re.findall(r"<script\b", text)) == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(&#34;x&#34;)" in text


def test_galleries_hold_every_view_with_its_prediction(
    preds: Predictions, report: Path, read_page_data: PageDataReader
) -> None:
    data = read_page_data(report)
    assert [gallery["name"] for gallery in data["galleries"]] == [
        "most-confident-errors",
        "least-confident-correct",
        "changed-decisions",
    ]
    shown = {str(index) for gallery in data["galleries"] for index in gallery["images"]}
    assert shown == set(data["pictures"])
    for index, one in data["pictures"].items():
        position = int(index)
        assert one["id"] == preds.ids[position]
        assert one["correct"] == bool(preds.correct()[position])
        assert [view["text"] for view in one["views"]] == list(preds.views.texts)
        predicted = preds.probabilities[position].argmax(axis=1)
        assert [view["predicted"] for view in one["views"]] == [CLASSES[index] for index in predicted]
        assert len({view["picture"] for view in one["views"]}) == 3, "each view has its own picture"
        assert all(view["picture"].startswith("data:image/webp;base64,") for view in one["views"])


def test_provenance_is_shown(preds: Predictions, tmp_path: Path) -> None:
    labeled = Predictions(
        probabilities=preds.probabilities,
        views=preds.views,
        labels=preds.labels,
        skipped=[("a/b.png", "truncated")],
    )
    path = write_report(
        labeled,
        tmp_path / "report.html",
        title="t",
        methods=["msr"],
        facts={"classifier": "onnx:m.onnx"},
        notes=["the lamp was new"],
        command="secondlook report run/",
    )
    text = path.read_text("utf-8")
    for expected in (
        "onnx:m.onnx",
        "the lamp was new",
        "a/b.png",
        "truncated",
        "secondlook report run/",
        "report-files",
    ):
        assert expected in text
