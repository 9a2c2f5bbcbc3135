"""The page: well formed, self-contained, small, escaped, and with the numbers that Python found."""

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
from secondlook.report import page_data, write_report
from secondlook.report.study import studied
from secondlook.sources import Skipped
from secondlook.views import ViewSet

Embedded = Callable[[Path], dict[str, Any]]
Reader = Callable[[int], Array]
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Nesting(HTMLParser):
    """Collects tags, ids and headings, and fails where an element is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.pointed_at: list[str] = []
        self.levels: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.levels.append(int(tag[1]))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("for", "aria-labeledby", "aria-describedby") or (
                name == "href" and (value or "").startswith("#")
            ):
                self.pointed_at.append((value or "").removeprefix("#"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


@pytest.fixture
def written(preds: Predictions, pixels: Reader, tmp_path: Path) -> Path:
    return write_report(
        preds, tmp_path / "report.html", title="Cats & dogs", image=pixels, delta=0.05, risk=0.1, artefacts=False
    )


def test_it_is_well_formed_and_every_reference_has_its_end(written: Path) -> None:
    nesting = Nesting()
    nesting.feed(written.read_text("utf-8"))
    assert nesting.open == []
    assert len(set(nesting.ids)) == len(nesting.ids)
    assert set(nesting.pointed_at) <= set(nesting.ids)
    assert nesting.levels[0] == 1
    assert nesting.levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(nesting.levels, nesting.levels[1:], strict=False))


def test_nothing_is_fetched_from_elsewhere(written: Path) -> None:
    text = written.read_text("utf-8")
    # The one address in the page is the name of a namespace, which nobody fetches.
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", text)
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    assert "default-src &#39;none&#39;; img-src data:" in text


def test_the_script_and_style_match_the_policy(written: Path) -> None:
    import base64
    import hashlib

    text = written.read_text("utf-8")
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode().replace("+", r"\+")
        assert re.search(rf"{rule} &#39;sha256-{digest}&#39;", text)


def test_the_embedded_numbers_are_python_s(preds: Predictions, written: Path, embedded: Embedded) -> None:
    data = embedded(written)
    study = studied(preds, None, predict_from="image", top_k=1, seed=0, class_names=None)
    assert [method["name"] for method in data["methods"]] == list(study.confidences)
    assert (data["images"], data["errors"]) == (600, study.n_errors)
    for method in data["methods"]:
        ranking = rank(study.correct, study.confidences[method["name"]])
        assert method["complete"]
        np.testing.assert_array_equal(method["thresholds"], ranking.confidences)
        np.testing.assert_array_equal(np.cumsum(method["sizes"], dtype=np.int64), ranking.accepted)
        np.testing.assert_array_equal(np.cumsum(method["wrong"], dtype=np.int64), ranking.errors)
    assert data["risk"] in data["risks"].tolist()


def test_a_large_data_set_stays_below_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preds: Predictions, embedded: Embedded
) -> None:
    monkeypatch.setattr(page_data, "MOST_THRESHOLDS", 400)
    path = write_report(preds, tmp_path / "report.html", title="t", artefacts=False, methods=["msr", "mean"])
    for method in embedded(path)["methods"]:
        assert len(method["thresholds"]) <= 200
        assert method["sizes"].sum() == 600
        assert not method["complete"]


def test_ten_thousand_images_fit_well(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(10_000, 2, 3)).astype(np.float32)
    many = Predictions(logits=logits, views=ViewSet(["identity", "hflip"]), labels=rng.integers(0, 3, 10_000))
    path = write_report(many, tmp_path / "report.html", title="t", artefacts=False, methods=["msr", "mean"])
    assert path.stat().st_size < 1_000_000
    largest = 8 + 4 + 4  # bytes of a threshold and its two counts; four characters of text hold three
    assert page_data.MOST_THRESHOLDS * largest * 4 / 3 < 4_500_000


def test_names_are_only_names(preds: Predictions, pixels: Reader, tmp_path: Path) -> None:
    evil = '</script><script>alert("x")</script>'
    hurt = Predictions(
        probabilities=preds.probabilities,
        views=preds.views,
        labels=preds.labels,
        class_names=[f"{evil}{place}" for place in range(4)],
        ids=[f"{evil}{place}.png" for place in range(600)],
    )
    path = write_report(
        hurt,
        tmp_path / "report.html",
        title=evil,
        image=pixels,
        facts={evil: evil},
        notes=[evil],
        skipped=[Skipped(evil, evil)],
        command=evil,
        methods=["msr", "mean"],
        artefacts=False,
    )
    text = path.read_text("utf-8")
    assert "<script>alert" not in text
    assert len(re.findall(r"<script\b", text)) == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(&#34;x&#34;)" in text


def test_pictures_open_to_every_view(preds: Predictions, written: Path, embedded: Embedded) -> None:
    data = embedded(written)
    assert [gallery["name"] for gallery in data["galleries"]] == ["surest-errors", "least-sure-right", "most-changed"]
    shown = {str(index) for gallery in data["galleries"] for index in gallery["images"]}
    assert shown == set(data["pictures"])
    for index, one in data["pictures"].items():
        place = int(index)
        assert one["id"] == preds.ids[place]
        assert one["right"] == bool(preds.correct()[place])
        assert [view["text"] for view in one["views"]] == list(preds.views.texts)
        answers = preds.probabilities[place].argmax(axis=1)
        assert [view["answer"] for view in one["views"]] == [("cat", "dog", "bird", "frog")[one] for one in answers]
        assert len({view["picture"] for view in one["views"]}) == 3, "each view is a picture of its own"
        assert all(view["picture"].startswith("data:image/webp;base64,") for view in one["views"])


def test_what_came_about_is_told(preds: Predictions, tmp_path: Path) -> None:
    path = write_report(
        preds,
        tmp_path / "report.html",
        title="t",
        methods=["msr"],
        facts={"classifier": "onnx:m.onnx"},
        notes=["the lamp was new"],
        skipped=[Skipped("a/b.png", "truncated")],
        command="secondlook report run/",
    )
    text = path.read_text("utf-8")
    for told in ("onnx:m.onnx", "the lamp was new", "a/b.png", "truncated", "secondlook report run/", "report-files"):
        assert told in text
    assert "1 could not be read and is not among the images above" in text
