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
from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.report import page, write_report
from secondlook.report.findings import choose_images
from secondlook.report.operating_points import OperatingPoint, describe_decisions, point_at_risk
from secondlook.report.study import build_study
from secondlook.views import ViewSet
from tests.report.references import point_at_coverage, write_run_report

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
    path = write_run_report(
        hostile,
        tmp_path / "report.html",
        title=evil,
        image=read_image,
        facts={evil: evil},
        notes=(evil,),
        command=evil,
        methods=["msr", "mean"],
        artifacts=False,
    )
    text = path.read_text("utf-8")
    assert "<script>alert" not in text
    assert len(re.findall(r"<script\b", text)) == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(&#34;x&#34;)" in text


def test_pictures_tell_the_prediction_for_every_view(
    preds: Predictions, report: Path, read_page_data: PageDataReader
) -> None:
    data = read_page_data(report)
    study = build_study(preds)
    assert (data["classes"], data["views"]) == (list(CLASSES), list(preds.views.texts))
    assert [preds.ids.index(one["id"]) for one in data["pictures"]] == choose_images(study, "blend").tolist()
    leading = preds.probabilities.argmax(axis=2)
    for one in data["pictures"]:
        index = preds.ids.index(one["id"])
        assert one["correct"] == bool(preds.correct()[index])
        assert (one["label"], one["predicted"]) == (preds.labels[index], [leading[index, 0]])
        assert one["view_predicted"] == leading[index].tolist()
        assert one["confidences"] == [values[index] for values in study.confidences.values()]
        assert all(one[name].startswith("data:image/webp;base64,") for name in ("picture", "sheet"))


def test_cells_of_any_operating_point_can_be_counted(
    preds: Predictions, report: Path, read_page_data: PageDataReader
) -> None:
    data = read_page_data(report)
    study = build_study(preds)
    cells = data["cells"]
    for method in data["methods"]:
        point = point_at_coverage(study.rankings[method["name"]], 0.6)
        counts = np.bincount(method["cells"][: point.accepted], minlength=len(cells["labels"]))
        accept = study.confidences[method["name"]] >= point.threshold
        for place, (label, predicted) in enumerate(zip(cells["labels"], cells["predicted"], strict=True)):
            members = (preds.labels == label) & (preds.predicted() == predicted)
            assert cells["images"][place] == members.sum()
            assert counts[place] == (members & accept).sum()


def test_lead_describes_the_first_operating_point(preds: Predictions, report: Path) -> None:
    study = build_study(preds)
    sentence = describe_decisions(600, study.n_errors, point_at_risk(study.rankings["blend"], 0.1))
    text = report.read_text("utf-8")
    assert f'id="lead" role="status">{sentence}</p>' in text
    assert text.index('id="lead"') < text.index("AUROC"), "the lead comes before AUROC"


def test_calibrated_operating_point_is_the_first_one(
    preds: Predictions, tmp_path: Path, read_page_data: PageDataReader
) -> None:
    methods = ["mean", "entropy"]
    rule = certify(preds, methods, risk=0.15, delta=0.1)
    options: dict[str, Any] = {"risk": 0.15, "delta": 0.1, "artifacts": False, "resamples": 10}
    path = write_run_report(
        preds, tmp_path / "report.html", title="t", methods=["msr", "mean"], calibrated=methods, **options
    )
    data = read_page_data(path)
    assert rule.calibration is not None
    assert rule.calibration.errors is not None
    assert [method["name"] for method in data["methods"]] == ["msr", "mean", "entropy"], "what was calibrated is shown"
    assert (data["method"], data["risk"], data["guaranteed"]) == (rule.method, 0.15, True)
    assert (data["calibrated"], data["sharing"]) == (methods, methods)
    point = OperatingPoint(rule.threshold, rule.calibration.accepted, rule.calibration.errors)
    assert describe_decisions(600, build_study(preds).n_errors, point) in path.read_text("utf-8")
    assert "calibrated for mean and entropy at 15 % risk" in path.read_text("utf-8")


def test_page_of_a_thousand_classes_is_small(tmp_path: Path, read_page_data: PageDataReader) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1000, 3000)
    logits = rng.normal(size=(3000, 1, 1000)).astype(np.float32)
    logits[np.arange(3000), 0, labels] += 4
    preds = Predictions(logits=logits, views=ViewSet(["identity"]), labels=labels)
    path = write_report(preds, tmp_path / "report.html", title="t", artifacts=False, resamples=10)
    assert path.stat().st_size < 400_000
    assert path.read_text("utf-8").count("<td") < 200, "no table grows with the number of classes"
    data = read_page_data(path)
    assert len(data["methods"][0]["cells"]) == 3000


def test_provenance_is_shown(preds: Predictions, tmp_path: Path) -> None:
    labeled = Predictions(
        probabilities=preds.probabilities,
        views=preds.views,
        labels=preds.labels,
        skipped=[("a/b.png", "truncated")],
    )
    path = write_run_report(
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
